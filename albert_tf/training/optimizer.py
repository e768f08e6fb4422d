"""The optimizer: an update rule with a learning-rate schedule and settings.

A schedule is a function of an `OptimizerConfig`, the number of steps of the run
and a float32 step counted from 0.

By default, norms and biases have neither weight decay nor a trust ratio, as in
the released code. `keras.optimizers.Lamb` differs in this respect, corrects
bias, and excludes weight decay from the trust ratio.
"""

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.base.settings import OPTIMIZER, Validated, setting
from albert_tf.training.distribution import all_sum
from albert_tf.training.update_rules import (
    RULES,
    Adam,
    Rule,
    adam_direction,
    trust_ratio,
    update_rule,
)

# ALBERT's rate for batches of 4096 sequences.
RATE_AT_4096 = 0.00176
AVERAGE = "optimizer/average/"  # prefix of averaged weights in a checkpoint


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


def corrected_schedule(
    config, num_train_steps: int, step: tf.Tensor, decay_of: Callable
) -> tf.Tensor:
    """Return the rate of the corrected schedule at a step.

    The rate is never zero before the end of the run, and does not jump when
    warm-up ends: warm-up ends at the peak, where decay starts. Before
    `start_warmup_step`, the rate decays as if there were no warm-up, as in the
    run that is being continued. `decay_of` returns the rate as a fraction of
    the peak, given the remaining fraction of the decay and `config`.
    """
    start, warmup = config.start_warmup_step, config.num_warmup_steps

    def decay(since, length):
        done = tf.clip_by_value(since / max(length, 1), 0.0, 1.0)
        return config.learning_rate * decay_of(1.0 - done, config)

    peak = config.peak_step
    rate = decay(step - peak, num_train_steps - peak)
    if warmup:
        ramp = config.learning_rate * (step - start + 1.0) / warmup
        rate = tf.where(step < peak, tf.minimum(ramp, rate), rate)
    return tf.where(step < start, decay(step, num_train_steps), rate)


SCHEDULES: dict[str, Callable] = {
    "corrected": functools.partial(
        corrected_schedule, decay_of=lambda left, c: left**c.poly_power
    ),
    "released": released_schedule,
    # The square equals (1 - cos(pi left)) / 2, but does not round to 0 in the
    # last steps of a long run.
    "cosine": functools.partial(
        corrected_schedule,
        decay_of=lambda left, _: tf.square(tf.sin(0.5 * math.pi * left)),
    ),
    "constant": functools.partial(
        corrected_schedule, decay_of=lambda left, _: tf.ones_like(left)
    ),
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
      optimizer: the optimizer settings.
      training: the training settings, with the batch size.
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


class WeightAverage:
    """A moving average of weights, created in the strategy's scope.

    Args:
      decay: largest share of the average that a step retains; 0 means no
        average, so `means` is empty.
      weights: {name: variable}.
    """

    def __init__(self, decay: float, weights: dict[str, tf.Variable]):
        self.decay, self.weights = decay, weights if decay else {}
        self.means = {
            name: tf.Variable(tf.zeros_like(w), trainable=False)
            for name, w in self.weights.items()
        }

    def state(self) -> dict[str, tf.Variable]:
        """Return {name: variable} for all averages, named as in checkpoints."""
        return {f"{AVERAGE}{name}": mean for name, mean in self.means.items()}

    def move(self, strategy, t: tf.Tensor) -> None:
        """Update all means in all replicas: mean <- d mean + (1 - d) w.

        At step t, counted from 1, d is (t - 1) / (t + 9), but at most `decay`.
        The mean therefore starts at the weights of the first step.
        """
        d = tf.minimum(self.decay, (t - 1.0) / (t + 9.0))

        def assign(mean, w, d):
            return mean.assign(d * mean + (1.0 - d) * w)

        for name, mean in self.means.items():
            strategy.extended.update(mean, assign, (self.weights[name], d))

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Replace the weights with their means while the block runs."""
        current = {n: tf.identity(w) for n, w in self.weights.items()}
        try:
            for name, mean in self.means.items():
                self.weights[name].assign(tf.identity(mean))
            yield
        finally:
            for name, value in current.items():
                self.weights[name].assign(value)


# A pattern for names of variables without weight decay or trust ratio; the
# released patterns are LayerNorm and bias.
EXCLUDED = re.compile(r"layer_norm/|(bias|beta|gamma)$")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Validated):
    """Settings for the optimizer and its schedule.

    The defaults are the released values, except the default of `schedule`,
    because the rate of the released schedule jumps. `--compat=google` restores
    the released schedule.
    """

    help_group = OPTIMIZER

    optimizer: str = setting(
        "lamb",
        "Update rule; muon uses Muon for the encoder's matrices and AdamW for "
        "all other weights.",
        choices=tuple(RULES),
    )
    learning_rate: float | str = setting(
        0.00176,
        "Peak learning rate; auto means 0.00176 times the square root of "
        "train_batch_size / 4096.",
        choices=("auto",),
        minimum=0.0,
    )
    num_warmup_steps: int = setting(3125, "Steps of linear warm-up.", minimum=0)
    start_warmup_step: int = setting(
        0, "Step at which warm-up begins.", minimum=0
    )
    poly_power: float = setting(
        1.0, "Power of the polynomial decay to zero.", minimum=0.0
    )
    schedule: str = setting(
        "corrected",
        "Learning-rate schedule: corrected (polynomial decay), released "
        "(starts at zero, and jumps when warm-up ends), cosine (half a cosine "
        "wave) or constant (no decay).",
        choices=SCHEDULES,
    )
    weight_decay_rate: float = setting(0.01, "Weight decay.", minimum=0.0)
    beta_1: float = setting(
        0.9, "Decay of the first moment.", minimum=0.0, maximum=0.999999
    )
    beta_2: float = setting(
        0.999, "Decay of the second moment.", minimum=0.0, maximum=0.999999
    )
    epsilon: float = setting(
        1e-6,
        "Number added to the square root of the second moment.",
        minimum=0.0,
    )
    bias_correction: bool = setting(
        False, "Divide the moments by 1 - beta^t, unlike the released code."
    )
    clip_norm: float = setting(
        1.0,
        "Largest global norm of the gradient; 0 means no limit.",
        minimum=0.0,
    )
    ema_decay: float = setting(
        0.0,
        "Decay of a moving average of the weights; the averaged weights are "
        "then evaluated, saved and exported.",
        means="no average",
        minimum=0.0,
        maximum=0.999999,
    )

    @property
    def rule(self) -> Rule:
        """The update rule."""
        return RULES[self.optimizer]

    @property
    def peak_step(self) -> int:
        """The first step after warm-up, counted from 0."""
        return self.start_warmup_step + self.num_warmup_steps


def clip(gradients: list[tf.Tensor], limit: float):
    """Return gradients scaled to a norm of at most `limit`, and their norm.

    The norm is computed before scaling. A limit of 0 means no scaling.
    """
    norm = tf.linalg.global_norm(gradients)
    if not limit:
        return gradients, norm
    scale = limit / tf.maximum(norm, limit)
    return [g * scale for g in gradients], norm


def _native(variable) -> tf.Variable:
    """Return the TensorFlow variable behind a Keras or TensorFlow variable."""
    return variable.value if isinstance(variable, keras.Variable) else variable


# Settings that only Keras's `apply` uses.
UNUSED = """clipnorm clipvalue use_ema loss_scale_factor
gradient_accumulation_steps""".split()


class Optimizer(keras.optimizers.Optimizer):
    """An update rule with its slots, on any `tf.distribute` strategy.

    The training loop and Keras's `fit` both call `apply` in a replica. Keras's
    own `apply` clips each replica's gradients before the sum; this `apply`
    clips the sum. Create and build the optimizer in the strategy's scope.

    Args:
      config: the rule and its hyperparameters.
      rate: the learning rate, a number or a function of a step counted from 0.
      excluded: a pattern for names of variables without weight decay or trust
        ratio; "" excludes none.
      **kwargs: as for any `keras.optimizers.Optimizer`, except `UNUSED`.

    Attributes:
      names: names of the variables, in order; their slots are `NAME/m` and
        `NAME/v`.
      compiled: whether XLA may compile parts of the update.
      products: dtype of Muon's matrix products.
      per_replica: whether to clip each replica's share of the gradients, as the
        released code does, instead of the sum.
      average: the `WeightAverage`.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        rate: float | Callable,
        excluded: str = EXCLUDED.pattern,
        **kwargs,
    ):
        unsupported = [name for name in UNUSED if kwargs.get(name)]
        require(
            not unsupported,
            "This optimizer clips gradients only by `global_clipnorm`. For "
            "other settings, use an optimizer such as "
            "`keras.optimizers.AdamW`.",
            settings=unsupported,
        )
        super().__init__(rate, **kwargs)
        self.config, self.excluded = config, excluded
        self.compiled, self.products = True, "float32"
        self.per_replica = False

    def build(self, variables, names: Sequence[str] = ()):
        """Create the variables' slots, initialized to zero.

        By default, `names` are the variables' Keras paths.
        """
        if self.built:
            return
        is_float8 = any(
            getattr(v, "overwrite_with_gradient", False) for v in variables
        )
        rule = "Float8 layers need one of Keras's optimizers, such as `adam`."
        require(not is_float8, rule, optimizer=type(self).__name__)
        super().build(variables)
        self.names = list(names) or [v.path for v in variables]
        self.m, self.v = self.add_optimizer_variables(variables, ("m", "v"))
        weights = dict(zip(self.names, map(_native, variables), strict=True))
        self.average = WeightAverage(self.config.ema_decay, weights)

    def _slots(self) -> Iterator[tuple]:
        """Yield each variable's name, the variable, and its slots m and v."""
        variables = zip(self._trainable_variables, self.m, self.v, strict=True)
        for name, slots in zip(self.names, variables, strict=True):
            yield name, *map(_native, slots)

    def state(self) -> dict[str, tf.Variable]:
        """Return {name: variable} for everything needed to resume."""
        state = {"optimizer/iterations": self.iterations.value}
        for name, _, m, v in self._slots():
            state[f"optimizer/{name}/m"] = m
            state[f"optimizer/{name}/v"] = v
        return state | self.average.state()

    def is_excluded(self, name: str) -> bool:
        """Return whether a variable has no weight decay and no trust ratio."""
        return bool(self.excluded and re.search(self.excluded, name))

    def reduce(self, gradients: list[tf.Tensor]):
        """Sum all replicas' gradients and clip the sum; return it and its norm.

        The norm is measured before clipping. With `per_replica`, each replica's
        share is clipped instead of the sum. Call this method in a replica; the
        replicas' gradients must add up to the gradient of the whole batch.
        """
        limit = self.config.clip_norm
        if self.per_replica:
            context = tf.distribute.get_replica_context()
            replicas = context.num_replicas_in_sync
            scaled = [g * replicas for g in gradients]
            gradients = [g / replicas for g in clip(scaled, limit)[0]]
            limit = 0.0
        return clip(all_sum(gradients), limit)

    def _in_order(self, grads, variables: list) -> list:
        """Return gradients of `variables` in the order of `build`."""
        table = {id(v): g for v, g in zip(variables, grads, strict=True)}
        order = [id(v) for v in self._trainable_variables]
        require(
            table.keys() == {*order} and len(variables) == len(order),
            "An optimizer updates only the variables with which it was built. "
            "For another model, or if a model's variables have changed, call "
            "`compile` again with a new optimizer.",
            variables=len(variables),
        )
        return [table[key] for key in order]

    def apply(self, grads, trainable_variables=None, healthy=None):
        """Update every variable in a replica; return the gradient's norm.

        Sparse gradients become dense before clipping. A missing gradient counts
        as zero, so that its variable still decays.

        Args:
          grads: this replica's share of the gradients, in the order of the
            variables.
          trainable_variables: the variables of `build` in any order, as passed
            by `fit`; None means the same order.
          healthy: a boolean tensor, or None to update in any case. If it is
            false, or the norm is not finite, only the step and `average`
            change.
        """
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            self.build(trainable_variables)
            grads = self._in_order(grads, trainable_variables)
        dense = [
            tf.zeros_like(w, tf.float32)
            if g is None
            else tf.cast(tf.convert_to_tensor(g), tf.float32)
            for g, (_, w, *_) in zip(grads, self._slots(), strict=True)
        ]
        gradients, norm = self.reduce(dense)
        if healthy is not None:
            healthy = tf.logical_and(healthy, tf.math.is_finite(norm))
        context = tf.distribute.get_replica_context()
        context.merge_call(self._update_all, args=(gradients, healthy))
        return norm

    def _update_all(self, strategy, gradients, healthy):
        update = strategy.extended.update
        rate = tf.convert_to_tensor(self.learning_rate)
        t = tf.cast(self.iterations.value, tf.float32) + 1.0
        for g, (name, w, m, v) in zip(gradients, self._slots(), strict=True):
            update(w, self._update_one, (g, m, v, rate, t, healthy, name))
        with tf.control_dependencies([rate, t]):
            step = self.iterations.value
            update(step, lambda step: step.assign_add(1))
        self.average.move(strategy, t)

    def _update_one(self, w, g, m, v, rate, t, healthy, name):
        def assign():
            # `tf.cast` alone would return float32 variables unchanged, and
            # every use would read them again.
            tensors = map(tf.convert_to_tensor, (w, g, m, v))
            values = (tf.cast(x, tf.float32) for x in tensors)
            excluded = self.is_excluded(name)
            options = self.config, name, self.compiled, self.products
            new_values = update_rule(*values, rate, t, excluded, *options)
            pairs = zip((w, m, v), new_values, strict=True)
            return tf.group(
                *(old.assign(tf.cast(new, old.dtype)) for old, new in pairs)
            )

        if healthy is None:
            return assign()
        return tf.cond(healthy, assign, tf.no_op)

    def trust_ratios(self) -> tf.Tensor:
        """Return LAMB's trust ratio for each variable that is not excluded.

        Call this method in a replica, after a step.
        """
        ratios, c = [], self.config
        t = tf.cast(self.iterations.value, tf.float32)
        for name, w, m, v in self._slots():
            if not self.is_excluded(name):
                u = adam_direction(m, v, t, Adam.of(c))
                ratios.append(trust_ratio(w, u + c.weight_decay_rate * w))
        return tf.stack(ratios)
