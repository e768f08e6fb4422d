"""Weights after gradient accumulation, beside one large batch.

    python benchmarks/accumulation.py

Trains a small model for some steps on the same random examples, with the
batch cut into 1, 2, 4 and 8 micro-batches and over 1 and 2 replicas, and
prints the largest difference of a weight from those of the whole batch, and
how far the weights moved. Examples have different numbers of predictions, so
that a mean of means would show.
"""

import keras
import numpy as np

from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig
from albert_tf.training.distribution import (
    DistributionConfig,
    make_strategy,
    prepare_devices,
)
from albert_tf.training.objectives import PretrainingObjective
from albert_tf.training.optimizers import OptimizerConfig
from albert_tf.training.trainer import Trainer, TrainingConfig

import tensorflow as tf  # isort: skip

STEPS, BATCH, TOKENS, PREDICTIONS = 20, 32, 32, 5
CONFIG = AlbertConfig(
    vocab_size=1000,
    embedding_size=32,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=256,
)
FORMS = ((2, 1), (4, 1), (8, 1), (1, 2), (4, 2))  # micro-batches, replicas
DEVICES = {n: DistributionConfig(num_cpu_replicas=n) for n in (1, 2)}


def examples() -> dict[str, np.ndarray]:
    """Return as many random examples as all steps need."""
    rng = np.random.default_rng(0)
    n, t, p, v = STEPS * BATCH, TOKENS, PREDICTIONS, CONFIG.vocab_size
    lengths = rng.integers(8, t + 1, (n, 1))
    return {
        "input_ids": rng.integers(5, v, (n, t), np.int32),
        "input_mask": (np.arange(t) < lengths).astype(np.int32),
        "segment_ids": rng.integers(0, 2, (n, t), np.int32),
        "masked_lm_positions": rng.integers(0, 8, (n, p), np.int32),
        "masked_lm_ids": rng.integers(5, v, (n, p), np.int32),
        "masked_lm_weights": (rng.random((n, p)) < 0.6).astype(np.float32),
        "sentence_order_labels": rng.integers(0, 2, n, np.int32),
        "example_weights": np.ones(n, np.float32),
    }


def trained(optimizer: str, pieces: int, replicas: int):
    """Return the weights before and after training."""
    keras.utils.set_random_seed(1)
    trainer = Trainer(
        make_strategy(DEVICES[replicas]),
        lambda: AlbertForPretraining(CONFIG),
        PretrainingObjective(),
        OptimizerConfig(
            optimizer=optimizer, learning_rate=0.01, num_warmup_steps=4
        ),
        TrainingConfig(
            num_train_steps=STEPS,
            train_batch_size=BATCH,
            gradient_accumulation_steps=pieces,
        ),
    )

    def batches(start, num_shards, shard, batch_size):
        dataset = tf.data.Dataset.from_tensor_slices(examples()).skip(start)
        dataset = dataset.shard(num_shards, shard)
        return dataset.batch(batch_size, drop_remainder=True)

    before = {n: v.numpy() for n, v in trainer.weights.items()}
    iterator = trainer.iterator(batches, 0)
    trainer.run_steps(iterator, tf.constant(STEPS))
    return before, {n: v.numpy() for n, v in trainer.weights.items()}


def largest(left: dict, right: dict) -> float:
    """Return the largest difference between two tables."""
    return max(np.abs(left[n] - right[n]).max() for n in left)


def main() -> None:
    """Train each way and print a line for each."""
    prepare_devices(DEVICES[2])
    print(f"{STEPS} steps, batch {BATCH}; largest difference of a weight")
    print("optimizer  micro-batches  replicas  difference  moved", flush=True)
    for optimizer in ("lamb", "adamw"):
        _, expected = trained(optimizer, 1, 1)
        for pieces, replicas in FORMS:
            before, found = trained(optimizer, pieces, replicas)
            print(
                f"{optimizer:<9}  {pieces:>13}  {replicas:>8}  "
                f"{largest(expected, found):10.1e}  "
                f"{largest(before, found):5.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
