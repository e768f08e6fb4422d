"""A model and data that train within seconds."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig
from albert_tf.training.clock import Clock
from albert_tf.training.distribution import DistributionConfig, make_strategy
from albert_tf.training.objectives import PretrainingObjective
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.trainer import Trainer
from albert_tf.training.training_config import TrainingConfig

CONFIG = AlbertConfig(
    vocab_size=50,
    embedding_size=8,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
SHALLOW = dataclasses.replace(CONFIG, num_hidden_layers=1)
EXAMPLES = 48


def make_data(seed: int = 0) -> dict[str, np.ndarray]:
    """Return random pretraining examples with 8 tokens and 3 predictions."""
    rng = np.random.default_rng(seed)
    n, t, p, v = EXAMPLES, 8, 3, CONFIG.vocab_size
    lengths = rng.integers(4, t + 1, (n, 1))
    return {
        "input_ids": rng.integers(5, v, (n, t), np.int32),
        "input_mask": (np.arange(t) < lengths).astype(np.int32),
        "segment_ids": rng.integers(0, 2, (n, t), np.int32),
        "masked_lm_positions": rng.integers(0, 4, (n, p), np.int32),
        "masked_lm_ids": rng.integers(5, v, (n, p), np.int32),
        "masked_lm_weights": (rng.random((n, p)) < 0.7).astype(np.float32),
        "sentence_order_labels": rng.integers(0, 2, n, np.int32),
        "example_weights": np.ones(n, np.float32),
    }


def train_batches(start, num_shards, shard, batch_size):
    """Return an endless data set of batches, from the example `start` on."""
    dataset = tf.data.Dataset.from_tensor_slices(make_data())
    dataset = dataset.repeat().skip(start % EXAMPLES).shard(num_shards, shard)
    return dataset.batch(batch_size, drop_remainder=True)


def eval_batches(batch_size: int = 16) -> tf.data.Dataset:
    """Return batches of held-out examples."""
    dataset = tf.data.Dataset.from_tensor_slices(make_data(1))
    return dataset.batch(batch_size, drop_remainder=True)


TRAINING = {
    "num_train_steps": 20,
    "train_batch_size": 16,
    "eval_batch_size": 16,
    "eval_steps": 10,
    "save_checkpoints_steps": 7,
}


def make_trainer(
    replicas: int = 1,
    config: AlbertConfig = SHALLOW,
    optimizer: OptimizerConfig | None = None,
    per_replica: bool = False,
    **training,
) -> Trainer:
    """Return a trainer whose initial weights are always the same."""
    settings = TrainingConfig(**(TRAINING | training))
    keras.utils.set_random_seed(3)
    return Trainer(
        make_strategy(DistributionConfig(num_cpu_replicas=replicas)),
        lambda: AlbertForPretraining(config, settings.dtype_policy),
        PretrainingObjective(),
        optimizer or OptimizerConfig(learning_rate=0.01, num_warmup_steps=5),
        settings,
        per_replica=per_replica,
    )


def run_steps(trainer: Trainer, steps: int) -> np.ndarray:
    """Train for the given number of steps; return their summed metrics."""
    iterator = trainer.iterator(
        train_batches, trainer.step * trainer.training.train_batch_size
    )
    return trainer.run_steps(iterator, tf.constant(steps))[0].numpy()


def values(trainer: Trainer) -> dict[str, np.ndarray]:
    """Return {name: value} for the state that a resumed run requires."""
    return {name: v.numpy() for name, v in trainer.state().items()}


# Settings on which a trainer's graphs do not depend.
CADENCE = (
    *("stop_step", "max_hours", "steps_per_loop", "eval_steps"),
    *("save_checkpoints_steps", "keep_checkpoint_max"),
)
_TRAINERS: dict[tuple, tuple[Trainer, dict]] = {}


def traced_once(
    make: Callable[[], Trainer], training: TrainingConfig, *more
) -> Trainer:
    """Return a trainer in its initial state; reuse traced graphs if possible.

    Args:
      make: a function that creates the trainer; tracing takes seconds.
      training: the trainer's settings.
      more: everything else on which its graphs and initial weights depend.
    """
    cadence = {name: getattr(training, name) for name in CADENCE}
    fields = TrainingConfig.__dataclass_fields__
    usual = {name: fields[name].default for name in CADENCE}
    key = (dataclasses.replace(training, **usual), *more)
    if key not in _TRAINERS:
        trainer = make()
        _TRAINERS[key] = trainer, values(trainer)
    trainer, first = _TRAINERS[key]
    for name, variable in trainer.state().items():
        variable.assign(first[name])
    trainer.rate.follow(Clock(trainer.rate.end))
    trainer.training = dataclasses.replace(trainer.training, **cadence)
    return trainer


def new_trainer(
    replicas: int = 1,
    config: AlbertConfig = SHALLOW,
    optimizer: OptimizerConfig | None = None,
    per_replica: bool = False,
    **training,
) -> Trainer:
    """Return the result of `make_trainer`, traced once; see `traced_once`."""
    key = replicas, config, optimizer, per_replica
    return traced_once(
        lambda: make_trainer(*key, **training),
        TrainingConfig(**(TRAINING | training)),
        *key,
    )


def largest_difference(left: dict, right: dict) -> float:
    """Return the largest absolute difference between values of two tables."""
    return max(
        np.abs(left[n].astype("f8") - right[n].astype("f8")).max() for n in left
    )
