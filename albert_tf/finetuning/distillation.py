"""The outputs of a teacher, a larger fine-tuned model, for every example."""

import dataclasses

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.finetuning.ensemble import load_evaluator
from albert_tf.finetuning.job import Job, load_other
from albert_tf.finetuning.recipes import RecipeConfig
from albert_tf.finetuning.soft_targets import with_teacher
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.task import Task


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


def teach(
    job: Job,
    recipe: RecipeConfig,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    bucketed: bool,
) -> Job:
    """Return the job with a teacher's outputs beside its training examples."""
    directory, split = recipe.teacher, job.train[0]
    task = load_teacher(directory, job)
    evaluator = load_evaluator(directory, task, strategy, batch_size)
    print(f"Asking the teacher {directory} about the training examples")
    outputs = evaluator.predict(
        lambda: evaluation_batches(split.features, batch_size, bucketed),
        task.head.outputs,
    )
    features = with_teacher(split.features, outputs, task.head.token_outputs)
    train = (dataclasses.replace(split, features=features),)
    return dataclasses.replace(job, train=train)
