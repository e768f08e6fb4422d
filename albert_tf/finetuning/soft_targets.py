"""Targets beside the labels: smoothed ones, and those of a teacher."""

import dataclasses

import numpy as np
import tensorflow as tf

from albert_tf.finetuning.recipes import RecipeConfig
from albert_tf.tasks.features import Features
from albert_tf.tasks.task import Task
from albert_tf.training.step.evaluator import Batch, Objective

TEACHER = "teacher_"  # prefix of the teacher's outputs among the features


class SoftTargets:
    """The objective of a task with smoothed labels, or with a teacher.

    Smoothing: (1 - s) L(labels) + s L(all labels alike). Distillation:
    (1 - w) L(labels) + w T^2 L(teacher at temperature T).
    """

    def __init__(self, task: Task, recipe: RecipeConfig):
        self.head, self.recipe = task.head, recipe
        self.terms, self.metrics = self.head.terms, self.head.metrics
        self.weights = self.head.weights

    def losses(self, model, batch: Batch, seed) -> tuple[dict, dict]:
        """Return what `Head.losses` does, with the other targets."""
        return self.head.losses(model, batch, seed, self.example_losses)

    def example_losses(self, outputs: dict[str, tf.Tensor], batch: Batch):
        """Return the mixed loss of each example, [B]."""
        recipe = self.recipe
        if recipe.teacher:
            share, temperature = (
                recipe.distillation_weight,
                recipe.distillation_temperature,
            )
            targets = {name: batch[TEACHER + name] for name in outputs}
        else:
            share, temperature = recipe.label_smoothing, 1.0
            targets = {name: tf.zeros_like(x) for name, x in outputs.items()}
        hard = self.head.example_losses(outputs, batch)
        soft = self.head.soft_losses(outputs, targets, temperature, batch)
        return (1.0 - share) * hard + share * soft


def objective_of(task: Task, recipe: RecipeConfig) -> Objective:
    """Return the head of a task, with soft targets if the recipe has some."""
    soft = recipe.label_smoothing or recipe.teacher
    return SoftTargets(task, recipe) if soft else task.head


def with_teacher(
    features: Features,
    outputs: dict[str, np.ndarray],
    token_outputs: dict[str, float],
) -> Features:
    """Return features that hold a teacher's outputs of each example.

    Args:
      features: of the examples.
      outputs: of the teacher, in their order.
      token_outputs: of the task's head; those outputs are [N, T', ...].
    """
    inside = np.arange(features.max_seq_length) < features.lengths[:, None]
    arrays, token_arrays = dict(features.arrays), dict(features.token_arrays)
    fills = dict(features.fills)
    for name, value in outputs.items():
        if name in token_outputs:
            value = value[inside[:, : value.shape[1]]]  # [tokens, ...]
            token_arrays[TEACHER + name] = value
            fills[TEACHER + name] = token_outputs[name]
        else:
            arrays[TEACHER + name] = value
    return dataclasses.replace(
        features, arrays=arrays, token_arrays=token_arrays, fills=fills
    )
