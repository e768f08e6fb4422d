"""Scores and predictions of one model or an ensemble."""

import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.finetuning.finetuning_settings import FinetuningConfig
from albert_tf.finetuning.job import Job, Split, load_other, metric_name
from albert_tf.model.config import AlbertConfig
from albert_tf.model.ops import is_tpu
from albert_tf.tasks.batches import (
    evaluation_batches,
    length_step,
    training_batches,
)
from albert_tf.tasks.features import Features
from albert_tf.tasks.losses import LOSS_WEIGHTS
from albert_tf.tasks.task import Task
from albert_tf.training import checkpoints, distribution
from albert_tf.training.evaluator import Batch, Evaluator
from albert_tf.training.training_config import TrainingConfig

METRICS_FILE = "metrics.json"


class TaskEvaluator:
    """Evaluates and predicts with the current weights of a model.

    Its `tuned` is the task with the threshold from the last evaluation;
    predictions of unlabelled data use it.

    Args:
      evaluator: runs the model.
      task: the model's task.
      bucketed: whether to sort examples by length; results are the same.
      outputs: replaces the head's `measured_outputs`.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        task: Task,
        bucketed: bool = False,
        outputs: Callable | None = None,
    ):
        self.evaluator, self.task, self.bucketed = evaluator, task, bucketed
        self.tuned = task
        self.outputs = outputs or task.head.measured_outputs

    def judge(self, split: Split) -> tuple[dict[str, float], Sequence[Any]]:
        """Return a split's metrics, {} without labels, and its predictions."""
        size = self.evaluator.eval_batch_size
        outputs = self.evaluator.predict(
            lambda: evaluation_batches(split.features, size, self.bucketed),
            self.outputs,
        )
        weights = outputs.pop(LOSS_WEIGHTS, None)
        losses = outputs.pop("task_loss", None)
        is_eval = split.name.startswith("eval")
        task = self.task if is_eval else self.tuned
        predictions = task.predictions(split.examples, outputs, split.features)
        if losses is None:
            return {}, predictions
        scores = task.score(split.examples, predictions)
        if is_eval:
            self.tuned = task.tuned(split.examples, predictions)
        loss = float(np.average(losses, None, weights))
        return {"loss": loss, **scores}, predictions

    def metrics(self, splits: Sequence[Split]) -> dict[str, float]:
        """Return the metrics of several splits, under different names."""
        return {
            metric_name(split.name, name): value
            for split in splits
            for name, value in self.judge(split)[0].items()
        }


SORTED = {"none": (), "evaluation": ("eval",), "all": ("train", "eval")}


def bucketed(run: FinetuningConfig, strategy, part: str) -> bool:
    """Return whether "train" or "eval" batches are bucketed by length."""
    return part in SORTED[run.length_bucketing] and not is_tpu(strategy)


def training_step(
    run: FinetuningConfig, training: TrainingConfig, strategy, most: int
) -> int:
    """Return `batcher`'s `step` for training rows of at most `most` tokens."""
    by_length, compiled = bucketed(run, strategy, "train"), training.jit_compile
    padded = run.length_bucketing == "none" or (compiled and not by_length)
    if padded or is_tpu(strategy):
        return 0
    few = compiled or tf.config.list_physical_devices("GPU")
    return length_step(most) if few else 1


def make_batches(
    features: Features,
    run: FinetuningConfig,
    training: TrainingConfig,
    strategy: tf.distribute.Strategy,
    size: int | None = None,
    number: int = 0,
) -> Callable:
    """Return a function that makes training batches, for `Trainer.iterator`.

    Args:
      features: the training examples.
      run: determines whether to bucket by length.
      training: determines batch size and seed.
      strategy: the strategy that trains.
      size: how many examples of each batch to draw from these; None for all.
      number: the task's number; each task has its own order.
    """
    whole = training.train_batch_size
    size = size or whole
    group = size if bucketed(run, strategy, "train") else 0
    step = training_step(run, training, strategy, features.max_seq_length)

    def batches(start, num_shards, shard, batch_size):
        return training_batches(
            features,
            batch_size=size * batch_size // whole,
            seed=training.random_seed + number,
            start=start // whole * size,
            num_shards=num_shards,
            shard=shard,
            group=group,
            step=step,
        )

    return batches


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
        strategy, lambda: task.build_model(config, dtype), head, batch_size
    )
    checkpoints.restore_weights(evaluator.model, directory)
    distribution.broadcast(strategy, list(evaluator.weights.values()))
    return evaluator


def averaged_outputs(task: Task) -> Callable:
    """Return a function from (ensemble, batch) to mean outputs and losses."""

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
    """Raise an error if models differ in their task or tokenizer."""
    require(
        job.task.head.averages,
        "The outputs of an `ensemble` must be logits; this task's outputs "
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
    """Return an evaluator of several models for `averaged_outputs`."""
    members = [
        load_evaluator(directory, job.task, strategy, batch_size, dtype).model
        for directory in directories
    ]
    # The attributes that an `Evaluator` needs.
    model = types.SimpleNamespace(name="ensemble", weights=(), members=members)
    return Evaluator(strategy, lambda: model, job.task.head, batch_size)
