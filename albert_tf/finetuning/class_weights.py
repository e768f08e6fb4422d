"""Weights of training labels whose classes are unbalanced.

They stand beside the labels as data, so that sums and weights of the loss
come out the same however batches are cut. Evaluation is not weighted.
"""

import dataclasses

import numpy as np
from sklearn.utils.class_weight import compute_class_weight

from albert_tf.base.errors import require
from albert_tf.finetuning.job import Job
from albert_tf.finetuning.recipes import named_weights
from albert_tf.tasks.features import Features
from albert_tf.tasks.head import LABEL_WEIGHTS
from albert_tf.tasks.labels import class_named
from albert_tf.tasks.task import Task


def balanced(labels: np.ndarray, number: int) -> np.ndarray:
    """Return n / (k n_c) of each class, k of which occur; 1 of others.

    Args:
      labels: of n examples.
      number: of classes.
    """
    present = np.unique(labels)
    weights = np.ones(number)
    weights[present] = compute_class_weight(
        "balanced", classes=present, y=labels
    )
    return weights


def weights_of_classes(
    labels: np.ndarray, task: Task, table: dict[str, float]
) -> np.ndarray:
    """Return [C] for labels [N]; [C, 2] of no and yes for sets [N, C].

    Args:
      labels: numbers of classes, or 0 and 1.
      task: has the classes.
      table: {label: weight}; {} balances.
    """
    number = len(task.labels)
    if table:
        named = np.array([table.get(label, 1.0) for label in task.labels])
        if labels.ndim == 1:
            return named
        return np.stack([np.ones(number), named], axis=1)
    if labels.ndim == 1:
        return balanced(labels, number)
    return np.stack([balanced(column, 2) for column in labels.T])


def weighted(
    features: Features, task: Task, table: dict[str, float]
) -> tuple[Features, np.ndarray]:
    """Return features with a weight of each label, and those of classes."""
    arrays, token_arrays = dict(features.arrays), dict(features.token_arrays)
    home = token_arrays if "labels" in token_arrays else arrays
    labels = home["labels"].astype(np.int64)
    if labels.ndim == 1:
        there = labels >= 0
        classes = weights_of_classes(labels[there], task, table)
        values = np.where(there, classes[labels], 0.0)
    else:
        classes = weights_of_classes(labels, task, table)
        values = classes[np.arange(len(classes)), labels]
    home[LABEL_WEIGHTS] = values.astype(np.float32)
    changed = dataclasses.replace(
        features,
        arrays=arrays,
        token_arrays=token_arrays,
        fills=features.fills | {LABEL_WEIGHTS: 0.0},
    )
    return changed, classes


def summary(classes: np.ndarray, task: Task) -> str:
    """Return the weights of classes for the log."""
    rows = zip(task.labels, classes.tolist(), strict=True)
    if classes.ndim == 1:
        shown = [f"{label} {weight:.4g}" for label, weight in rows]
    else:
        shown = [
            f"{label} {yes:.4g} (no {no:.4g})" for label, (no, yes) in rows
        ]
    return f"Weights of the classes: {', '.join(shown)}"


def with_class_weights(job: Job, entries: tuple[str, ...]) -> Job:
    """Return the job whose training labels have the weights of a recipe.

    Args:
      job: the task and its data.
      entries: of `RecipeConfig.class_weights`.
    """
    if not entries or not job.train:
        return job
    shown = ",".join(entries)
    require(
        job.task.has_classes,
        f"`class_weights` has no meaning for a task of {job.task.kind}.",
        class_weights=shown,
    )
    labels, weights = job.task.labels, named_weights(entries)
    table = {
        class_named(label, labels, "`class_weights`"): weight
        for label, weight in weights.items()
    }
    rule = "`class_weights` must list each label once, by name or by number."
    require(len(table) == len(weights), rule, class_weights=shown)
    split = job.train[0]
    features, classes = weighted(split.features, job.task, table)
    print(summary(classes, job.task))
    train = (dataclasses.replace(split, features=features),)
    return dataclasses.replace(job, train=train)
