"""A run's training examples in batches, and how long these are.

On CPUs a batch is as long as its longest row. Where each length is compiled
anew, lengths are few; where that takes minutes, as on TPUs, there is one.
"""

from collections.abc import Callable

import tensorflow as tf

from albert_tf.finetuning.job import FinetuningConfig
from albert_tf.model.ops import is_tpu
from albert_tf.tasks.batches import length_step, training_batches
from albert_tf.tasks.features import Features
from albert_tf.training.step.training_config import TrainingConfig

SORTED = {"none": (), "evaluation": ("eval",), "all": ("train", "eval")}


def bucketed(run: FinetuningConfig, strategy, part: str) -> bool:
    """Return whether batches of "train" or "eval" go by length."""
    return part in SORTED[run.length_bucketing] and not is_tpu(strategy)


def training_step(
    run: FinetuningConfig, training: TrainingConfig, strategy, most: int
) -> int:
    """Return the `step` of `batcher` for training rows of at most so long."""
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
    """Return what makes training batches, see `Trainer.iterator`.

    Args:
      features: of the examples.
      run: whether batches go together by length.
      training: batch and seed.
      strategy: what trains.
      size: how many examples of a step's batch these are; None for all.
      number: of the task; each has its own order.
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
