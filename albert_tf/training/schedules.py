"""Learning-rate schedules, and scaling of the rate by batch size.

A schedule is a function of an `OptimizerConfig`, the number of steps of the run
and a float32 step counted from 0.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import keras
import tensorflow as tf

from albert_tf.base.errors import require

# ALBERT's rate for batches of 4096 sequences.
RATE_AT_4096 = 0.00176


def released_schedule(
    config, num_train_steps: int, step: tf.Tensor
) -> tf.Tensor:
    """Return the rate of the released schedule at a step.

    Decay begins at step 0, so the rate jumps when warm-up ends, and steps
    before `start_warmup_step` have a negative rate.
    """
    done = tf.minimum(step, num_train_steps) / num_train_steps
    rate = config.learning_rate * (1.0 - done) ** config.poly_power
    if not config.num_warmup_steps:
        return rate
    since = step - config.start_warmup_step
    warmup = config.learning_rate * since / config.num_warmup_steps
    return tf.where(since < config.num_warmup_steps, warmup, rate)


def polynomial_decay(done: tf.Tensor, config) -> tf.Tensor:
    """Return the remaining share of the peak rate under polynomial decay.

    `done` is the completed share of the decay.
    """
    return (1.0 - done) ** config.poly_power


def cosine_decay(done: tf.Tensor, config) -> tf.Tensor:
    """Return the remaining share of the peak rate under cosine decay.

    `done` is the completed share of the decay. The result is computed as the
    square of a sine, which equals (1 + cos(pi done)) / 2, but does not round to
    0 in the last steps of a long run.
    """
    return tf.square(tf.sin(0.5 * math.pi * (1.0 - done)))


def no_decay(done: tf.Tensor, config) -> tf.Tensor:
    """Return 1, because the whole peak rate remains without decay."""
    return tf.ones_like(done)


def corrected_schedule(
    config,
    num_train_steps: int,
    step: tf.Tensor,
    share_left: Callable = polynomial_decay,
) -> tf.Tensor:
    """Return the rate of the corrected schedule at a step.

    The rate is never zero before the end of the run, and does not jump when
    warm-up ends: warm-up ends at the peak, where decay starts. Before
    `start_warmup_step`, the rate decays as if there were no warm-up, as in the
    run that is being continued. `share_left` is the decay function, such as
    `polynomial_decay`.
    """
    start, warmup = config.start_warmup_step, config.num_warmup_steps

    def decay(since, length):
        done = tf.clip_by_value(since / max(length, 1), 0.0, 1.0)
        return config.learning_rate * share_left(done, config)

    peak = config.peak_step
    rate = decay(step - peak, num_train_steps - peak)
    if warmup:
        ramp = config.learning_rate * (step - start + 1.0) / warmup
        rate = tf.where(step < peak, tf.minimum(ramp, rate), rate)
    return tf.where(step < start, decay(step, num_train_steps), rate)


SCHEDULES: dict[str, Callable] = {
    "corrected": corrected_schedule,
    "released": released_schedule,
    "cosine": functools.partial(corrected_schedule, share_left=cosine_decay),
    "constant": functools.partial(corrected_schedule, share_left=no_decay),
}


class RunRate(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of a run, at the schedule position of the run's clock.

    Hooks may scale the rate by `factor`, which is 1 at first and is not saved.

    Args:
      config: an `OptimizerConfig`.
      num_train_steps: the schedule position at which decay ends.
    """

    def __init__(self, config, num_train_steps: int):
        self.config, self.end = config, num_train_steps
        self.factor = tf.Variable(1.0, trainable=False)
        # A step, its schedule position, and the advance per step; see `Clock`.
        self.course = tf.Variable([0.0, 0.0, 1.0], trainable=False)

    def __call__(self, step):
        """Return the float32 rate at a step counted from 0."""
        start, position, advance = tf.unstack(self.course)
        position += (tf.cast(step, tf.float32) - start) * advance
        schedule = SCHEDULES[self.config.schedule]
        return schedule(self.config, self.end, position) * self.factor

    def follow(self, clock) -> None:
        """Use the schedule positions of a `Clock` from now on."""
        self.course.assign([clock.step, clock.position, clock.advance])


def with_rate(optimizer, training):
    """Return settings with `learning_rate=auto` resolved; print the rate.

    The rate grows with the square root of the batch size.

    Args:
      optimizer: the settings of the optimizer.
      training: the settings of the training, with the batch size.
    """
    if optimizer.learning_rate != "auto":
        return optimizer
    require(
        optimizer.optimizer == "lamb",
        "`learning_rate` must be a number unless optimizer=lamb; auto is "
        "LAMB's rule.",
        learning_rate="auto",
        optimizer=optimizer.optimizer,
    )
    batch = training.train_batch_size
    rate = RATE_AT_4096 * math.sqrt(batch / 4096)
    print(
        f"learning_rate=auto: {RATE_AT_4096} x sqrt({batch} / 4096) = {rate:g}"
    )
    return dataclasses.replace(optimizer, learning_rate=rate)
