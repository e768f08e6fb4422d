"""Many steps in one `tf.function`, and what they gave together."""

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

    def run(iterator, steps):
        start = tf.identity(iterations)
        report = tf.zeros([2, names])
        largest = tf.zeros([])
        first_bad, bad = tf.constant(-1, tf.int64), tf.constant(0)
        for i in tf.range(steps):
            parts, norms = strategy.run(replica_step, (next(iterator),))
            local = strategy.experimental_local_results
            parts, norm = local(parts)[0], local(norms)[0]
            finite = tf.reduce_all(tf.math.is_finite(parts))
            finite = tf.logical_and(finite, tf.math.is_finite(norm))
            report += tf.where(finite, parts, tf.zeros_like(parts))
            largest = tf.where(finite, tf.maximum(largest, norm), largest)
            first = tf.logical_and(~finite, first_bad < 0)
            here = start + tf.cast(i, tf.int64)
            first_bad = tf.where(first, here, first_bad)
            bad += tf.cast(~finite, tf.int32)
        return StepSums(report, largest, first_bad, bad)

    # TensorFlow warns of a function that is traced often, and takes those of
    # one `def` as one. That each depth has its own is no fault.
    return tf.function(functools.partial(run))
