"""Many steps in one `tf.function`, and what they gave together.

The sums stay on the devices until the last step: a host that waited for each
step's figures could not hand over the next one before.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf


class StepSums(NamedTuple):
    """What some steps gave, without those that were not finite.

    Attributes:
      report: float32 [2, names], see `Evaluator.report`, over the steps.
      norm: the largest norm of a gradient.
      first_bad: the first step, counted from 0, whose loss or gradient was
        not finite; -1 if there was none.
      bad: how many such steps there were.
    """

    report: tf.Tensor
    norm: tf.Tensor
    first_bad: tf.Tensor
    bad: tf.Tensor


def _device_variable(value: tf.Tensor) -> tf.Variable:
    """Return a variable of each replica's own; the first one's is read."""
    return tf.Variable(
        value,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def summed_steps(
    strategy: tf.distribute.Strategy,
    replica_step: Callable,
    iterations: tf.Variable,
    names: int,
):
    """Return a function (iterator, number of steps) -> `StepSums`.

    Args:
      strategy: where to run.
      replica_step: updates once with a replica's batch; returns the report of
        all replicas, float32 [2, names], and the norm of the gradient.
      iterations: the updates made so far.
      names: how many names a report has.
    """

    nothing = StepSums(
        tf.zeros([2, names]),
        tf.zeros([]),
        tf.constant(-1, tf.int64),
        tf.constant(0, tf.int64),
    )
    with strategy.scope():
        sums = StepSums(*map(_device_variable, nothing))

    def step(batch):
        report, norm = replica_step(batch)
        finite = tf.reduce_all(tf.math.is_finite(report))
        finite = tf.logical_and(finite, tf.math.is_finite(norm))
        first = tf.logical_and(~finite, sums.bad == 0)
        sums.report.assign_add(tf.where(finite, report, 0.0))
        largest = tf.maximum(sums.norm, norm)
        sums.norm.assign(tf.where(finite, largest, sums.norm))
        sums.first_bad.assign(tf.where(first, iterations - 1, sums.first_bad))
        sums.bad.assign_add(tf.cast(~finite, tf.int64))

    def run(iterator, steps):
        for variable, value in zip(sums, nothing, strict=True):
            variable.assign(value)
        for _ in tf.range(steps):
            strategy.run(step, (next(iterator),))
        return StepSums(*map(tf.identity, sums))

    # TensorFlow warns of a function that is traced often, and takes those of
    # one `def` as one. That each depth has its own is no fault.
    return tf.function(functools.partial(run))
