"""The outputs of a teacher, a larger fine-tuned model, for every example."""

import dataclasses
import hashlib
import os

import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.finetuning.ensemble import load_evaluator
from albert_tf.finetuning.feature_cache import cached, content_hash
from albert_tf.finetuning.job import Job, load_other
from albert_tf.finetuning.recipes import RecipeConfig
from albert_tf.finetuning.soft_targets import with_teacher
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.features import Features
from albert_tf.tasks.task import Task
from albert_tf.training.machines import distribution
from albert_tf.training.model_directory import checkpoints


def check_targets(recipe: RecipeConfig, task: Task) -> None:
    """Refuse soft targets that the kind of task has no meaning for."""
    require(
        task.head.smooths or not recipe.label_smoothing,
        f"`label_smoothing` has no meaning for a task of {task.kind}.",
        label_smoothing=recipe.label_smoothing,
    )
    require(
        not recipe.teacher or task.head.averages,
        f"`teacher` has no meaning for a task of {task.kind} whose outputs "
        "are not logits.",
        teacher=recipe.teacher,
    )


def load_teacher(directory: str, job: Job) -> Task:
    """Return the task of a teacher, or refuse one that has another task."""
    task = load_other(directory, "teacher", job)
    same = dataclasses.replace(job.task.for_model(task), config=job.task.config)
    require(
        same == job.task,
        "`teacher` must have the labels of the training examples.",
        teacher=directory,
    )
    require(
        task.head.averages == job.task.head.averages,
        "`teacher` must have the `answer_head` of its student, simple.",
        teacher=directory,
        answer_head=task.config.answer_head,
    )
    return task


def key_of(features: Features, directory: str) -> dict:
    """Return what a teacher's outputs follow from: inputs and weights."""
    digest = hashlib.sha256()
    for name in ("tokens", "row_splits", "second_starts"):
        digest.update(np.ascontiguousarray(getattr(features, name)))
    folder, name = os.path.split(checkpoints.for_inference(directory))
    parts = files.matches(f"{name}.[id]*", folder)
    config = AlbertConfig.from_model_dir(directory)
    return {
        "features": digest.hexdigest(),
        "max_seq_length": features.max_seq_length,
        "teacher": [content_hash(part) for part in parts],
        "config": config.to_json(),
    }


def teach(
    job: Job,
    recipe: RecipeConfig,
    cache_dir: str | None,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    bucketed: bool,
) -> Job:
    """Return the job with the teacher's outputs beside its training examples.

    They are computed once, and kept where features are cached; not by several
    workers, of which none can ask the teacher alone.
    """
    directory, split = recipe.teacher, job.train[0]
    task = load_teacher(directory, job)

    def make():
        evaluator = load_evaluator(directory, task, strategy, batch_size)
        print(f"Asking the teacher {directory} about the training examples")
        return evaluator.predict(
            lambda: evaluation_batches(split.features, batch_size, bucketed),
            task.head.outputs,
        )

    if distribution.processes(strategy) > 1:
        cache_dir = None
    outputs = cached(cache_dir, lambda: key_of(split.features, directory), make)
    features = with_teacher(split.features, outputs, task.head.token_outputs)
    train = (dataclasses.replace(split, features=features),)
    return dataclasses.replace(job, train=train)
