"""Dropout whose masks follow from a seed that is passed along.

A seed is an int32 pair for TensorFlow's stateless random ops; None stands for
inference. Replicas, steps and layers fold their numbers into it, so that masks
differ between them and are the same when a step is run again.
"""

import keras
import tensorflow as tf

from albert_tf.model.devices import is_tpu

Seed = tf.Tensor | None


def fold_in(seed: Seed, number: int | tf.Tensor) -> Seed:
    """Return the seed of a numbered part; None stays None."""
    if seed is None:
        return None
    return tf.random.fold_in(seed, number, alg="philox")


def drawn(generator: keras.random.SeedGenerator) -> Seed:
    """Return a generator's next seed, another one in each replica."""
    seed = tf.cast(generator.next(), tf.int32)
    context = tf.distribute.get_replica_context()
    return fold_in(seed, context.replica_id_in_sync_group) if context else seed


def dropout(x: tf.Tensor, rate: float, seed: Seed) -> tf.Tensor:
    """Drop units with a mask that depends on the seed alone."""
    if seed is None or rate == 0.0:
        return x
    # A TPU has a generator of its own, and would work Philox out in 177
    # operations a number. CPUs take 80 times longer by XLA's default.
    generator = "auto_select" if is_tpu() else "philox"
    return tf.nn.experimental.stateless_dropout(x, rate, seed, generator)
