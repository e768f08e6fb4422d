"""Changes to training targets: class weights, smoothed labels and a teacher."""

import dataclasses

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.finetuning.evaluation import load_evaluator, load_other
from albert_tf.finetuning.finetuning_setup import Job
from albert_tf.finetuning.recipe import RecipeConfig, named_weights
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.features import Features
from albert_tf.tasks.losses import LABEL_WEIGHTS
from albert_tf.tasks.tables import class_named
from albert_tf.tasks.task import Task
from albert_tf.training.objectives import Batch, Objective


def balanced(labels: np.ndarray, number: int) -> np.ndarray:
    """Return weights that balance the classes.

    If k classes occur, and class c occurs n_c times in n labels, the weight of
    c is n / (k n_c). Classes that do not occur have weight 1.

    Args:
      labels: [n], the label of each example.
      number: the number of classes.
    """
    present, counts = np.unique(labels, return_counts=True)
    weights = np.ones(number)
    weights[present] = len(labels) / (len(present) * counts)
    return weights


def weights_of_classes(
    labels: np.ndarray, task: Task, table: dict[str, float]
) -> np.ndarray:
    """Return weights [C] for labels [N], or [C, 2] for label sets [N, C].

    Args:
      labels: class indices [N], or sets [N, C], in which 1 marks the classes of
        an example. For sets, each class has a weight for 0 and a weight for 1.
      task: the task with the classes.
      table: {label: weight}, or {} to balance the classes.
    """
    number = len(task.labels)
    if table:
        weights = np.array([table.get(label, 1.0) for label in task.labels])
        if labels.ndim == 1:
            return weights
        return np.stack([np.ones(number), weights], axis=1)
    if labels.ndim == 1:
        return balanced(labels, number)
    return np.stack([balanced(column, 2) for column in labels.T])


def weighted(
    features: Features, task: Task, table: dict[str, float]
) -> tuple[Features, np.ndarray]:
    """Return features with a weight for each label, and the class weights."""
    part = "token_arrays" if "labels" in features.token_arrays else "arrays"
    arrays = getattr(features, part)
    labels = arrays["labels"].astype(np.int64)
    if labels.ndim == 1:
        is_labeled = labels >= 0
        classes = weights_of_classes(labels[is_labeled], task, table)
        values = np.where(is_labeled, classes[labels], 0.0)
    else:
        classes = weights_of_classes(labels, task, table)
        values = classes[np.arange(len(classes)), labels]
    changes = {part: arrays | {LABEL_WEIGHTS: values.astype(np.float32)}}
    changes["fills"] = features.fills | {LABEL_WEIGHTS: 0.0}
    return dataclasses.replace(features, **changes), classes


def summary(classes: np.ndarray, task: Task) -> str:
    """Return the class weights as text for the log."""
    rows = zip(task.labels, classes.tolist(), strict=True)
    if classes.ndim == 1:
        shown = [f"{label} {weight:.4g}" for label, weight in rows]
    else:
        shown = [
            f"{label} {yes:.4g} (no {no:.4g})" for label, (no, yes) in rows
        ]
    return f"Class weights: {', '.join(shown)}"


def with_class_weights(job: Job, entries: tuple[str, ...]) -> Job:
    """Return the job with weights for its training labels.

    Args:
      job: the task and its data.
      entries: the value of `RecipeConfig.class_weights`.
    """
    if not entries:
        return job
    shown = ",".join(entries)
    require(
        job.task.has_classes,
        f"`class_weights` does not apply to tasks of kind {job.task.kind}.",
        class_weights=shown,
    )
    labels, weights = job.task.labels, named_weights(entries)
    table = {
        class_named(label, labels, "`class_weights`"): weight
        for label, weight in weights.items()
    }
    rule = "`class_weights` must list each label once, by name or by number."
    require(len(table) == len(weights), rule, class_weights=shown)
    split = job.training_split
    features, classes = weighted(split.features, job.task, table)
    print(summary(classes, job.task))
    train = (dataclasses.replace(split, features=features),)
    return dataclasses.replace(job, train=train)


TEACHER = "teacher_"  # prefix of the teacher's outputs among the features


class SoftTargets:
    """The objective of a task with smoothed labels or a teacher.

    Smoothing: (1 - s) L(labels) + s L(uniform labels). Distillation:
    (1 - w) L(labels) + w T^2 L(teacher at temperature T). Here, L is the task's
    loss, s is `label_smoothing`, w is `distillation_weight`, and T is
    `distillation_temperature`.
    """

    def __init__(self, task: Task, recipe: RecipeConfig):
        self.objective, self.recipe = task.objective, recipe
        self.terms, self.metrics = self.objective.terms, self.objective.metrics
        self.weights = self.objective.weights

    def losses(self, model, batch: Batch, seed) -> tuple[dict, dict]:
        """Return `TaskObjective.losses`, but with soft targets."""
        return self.objective.losses(model, batch, seed, self.example_losses)

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
        hard = self.objective.example_losses(outputs, batch)
        soft = self.objective.soft_losses(outputs, targets, temperature, batch)
        return (1.0 - share) * hard + share * soft


def objective_of(task: Task, recipe: RecipeConfig) -> Objective:
    """Return a task's objective, with soft targets if the recipe uses them."""
    soft = recipe.label_smoothing or recipe.teacher
    return SoftTargets(task, recipe) if soft else task.objective


def with_teacher(
    features: Features,
    outputs: dict[str, np.ndarray],
    token_outputs: dict[str, float],
) -> Features:
    """Return features with a teacher's outputs for each example.

    Args:
      features: the features of the examples.
      outputs: the teacher's outputs, in the order of the examples.
      token_outputs: see `TaskObjective`; they have shape [N, T', ...], where T'
        is at most the maximum length.
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


def check_targets(recipe: RecipeConfig, task: Task) -> None:
    """Raise an error for soft targets that do not apply to the task."""
    require(
        task.objective.smooths or not recipe.label_smoothing,
        f"`label_smoothing` does not apply to tasks of kind {task.kind}.",
        label_smoothing=recipe.label_smoothing,
    )
    require(
        not recipe.teacher or task.objective.averages,
        f"`teacher` does not apply to tasks of kind {task.kind} whose "
        "outputs are not logits.",
        teacher=recipe.teacher,
    )


def load_teacher(directory: str, job: Job) -> Task:
    """Return a teacher's task; raise an error if it does not fit the job.

    The teacher's labels may be in a different order from the student's.
    """
    task = fitting = load_other(directory, "teacher", job)
    if task.has_classes and set(task.labels) == set(job.task.labels):
        fitting = dataclasses.replace(task, labels=job.task.labels)
    expected = job.task.for_model(fitting)
    expected = dataclasses.replace(expected, config=job.task.config)
    require(
        expected == job.task,
        "`teacher` must have the same labels as the training examples.",
        teacher=directory,
    )
    require(
        task.objective.averages == job.task.objective.averages,
        "`teacher` must have the simple `answer_head`, like its student.",
        teacher=directory,
        answer_head=task.config.answer_head,
    )
    return task


def teach(
    job: Job,
    recipe: RecipeConfig,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    bucketed: bool,
) -> Job:
    """Return the job with a teacher's outputs for its training examples."""
    directory, split = recipe.teacher, job.training_split
    task = load_teacher(directory, job)
    evaluator, fingerprint = load_evaluator(
        directory, task, strategy, batch_size
    )
    print(f"Computing outputs of teacher {directory} for the training examples")
    outputs = evaluator.predict(
        lambda: evaluation_batches(split.features, batch_size, bucketed),
        task.objective.outputs,
    )
    if task.has_classes and task.labels != job.task.labels:
        order = [task.labels.index(label) for label in job.task.labels]
        outputs = {name: value[..., order] for name, value in outputs.items()}
    features = with_teacher(
        split.features, outputs, task.objective.token_outputs
    )
    train = (dataclasses.replace(split, features=features),)
    return dataclasses.replace(job, train=train, teacher=fingerprint)
