"""A fine-tuned model, or several as one: their outputs are averaged."""

import types
from collections.abc import Callable, Sequence

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.finetuning.job import Job, load_other
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.task import Task
from albert_tf.training.machines import distribution
from albert_tf.training.model_directory import checkpoints
from albert_tf.training.step.evaluator import Batch, Evaluator


def load_evaluator(
    directory: str,
    task: Task,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    dtype: str = "float32",
) -> Evaluator:
    """Return a fine-tuned model to evaluate and to predict with."""
    config, head = AlbertConfig.from_model_dir(directory), task.head
    evaluator = Evaluator(
        strategy, lambda: head.build_model(config, dtype), head, batch_size
    )
    checkpoints.restore_weights(evaluator.model, directory)
    distribution.share(strategy, list(evaluator.weights.values()))
    return evaluator


def averaged_outputs(task: Task) -> Callable:
    """Return (ensemble, batch) -> the mean outputs, and their losses."""

    head = task.head

    def outputs(ensemble, batch: Batch) -> dict[str, tf.Tensor]:
        every = [head.outputs(member, batch) for member in ensemble.members]
        mean = {
            name: tf.reduce_mean(tf.stack([x[name] for x in every]), axis=0)
            for name in every[0]
        }
        return head.with_losses(mean, batch)

    return outputs


def check_members(directories: Sequence[str], job: Job) -> None:
    """Refuse models that differ in their task or their tokenizer."""
    require(
        job.task.head.averages,
        "The outputs of an `ensemble` must be logits, those of this task "
        "cannot be averaged.",
        task=job.task.name,
    )
    tasks = [
        load_other(directory, "ensemble", job) for directory in directories
    ]
    for directory, task in zip(directories, tasks, strict=True):
        require(
            task.identity() == tasks[0].identity(),
            "The models of an `ensemble` must have the same task, labels and "
            "lengths.",
            ensemble=f"{directories[0]},{directory}",
        )


def load_ensemble(
    directories: Sequence[str],
    job: Job,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    dtype: str,
) -> Evaluator:
    """Return an evaluator of several models, for `averaged_outputs`."""
    members = [
        load_evaluator(directory, job.task, strategy, batch_size, dtype).model
        for directory in directories
    ]
    # What an `Evaluator` asks of a model.
    model = types.SimpleNamespace(name="ensemble", weights=(), members=members)
    return Evaluator(strategy, lambda: model, job.task.head, batch_size)
