"""ALBERT's LAMB and AdamW, their learning-rate schedule, and clipping.

The rules are those of the released `lamb_optimizer.py` and `optimization.py`:
no bias correction, weight decay inside the trust ratio, neither decay nor
trust ratio for norms and biases. `keras.optimizers.Lamb` differs in all three.
"""

import dataclasses
import math
import re
from collections.abc import Callable

import tensorflow as tf

from albert_tf.settings import setting, validate

# Matched against variable names; the released patterns are LayerNorm and bias.
EXCLUDED = re.compile(r"layer_norm/|bias$")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its schedule; the defaults are the released ones.

    Two differ: `schedule` and `clip_placement` default to what does not
    depend on a quirk or on the number of replicas; `--compat=google` restores
    them.
    """

    optimizer: str = setting("lamb", "Update rule.", choices=("lamb", "adamw"))
    learning_rate: float = setting(0.00176, "Peak learning rate.", minimum=0.0)
    num_warmup_steps: int = setting(3125, "Steps of linear warm-up.", minimum=0)
    start_warmup_step: int = setting(
        0, "Step at which the warm-up begins.", minimum=0
    )
    poly_power: float = setting(
        1.0, "Power of the polynomial decay to zero.", minimum=0.0
    )
    schedule: str = setting(
        "corrected",
        "Learning-rate formula; the released one starts at zero and falls by "
        "a jump when the warm-up ends.",
        choices=("corrected", "released"),
    )
    weight_decay_rate: float = setting(0.01, "Weight decay.", minimum=0.0)
    beta_1: float = setting(
        0.9, "Decay of the first moment.", minimum=0.0, maximum=0.999999
    )
    beta_2: float = setting(
        0.999, "Decay of the second moment.", minimum=0.0, maximum=0.999999
    )
    epsilon: float = setting(1e-6, "Added to the root of v.", minimum=0.0)
    bias_correction: bool = setting(
        False, "Divide the moments by 1 - beta^t; the release does not."
    )
    decay_placement: str = setting(
        "update",
        "Whether decay is part of the update, inside the trust ratio, or "
        "subtracted apart from it.",
        choices=("update", "decoupled"),
    )
    clip_norm: float = setting(
        1.0, "Largest global norm of the gradient; 0 is no limit.", minimum=0.0
    )
    clip_placement: str = setting(
        "global",
        "Clip the gradient of the whole batch, or each replica's share before "
        "the mean, as released.",
        choices=("global", "per_replica"),
    )

    def __post_init__(self):
        validate(self)


def released_schedule(
    config: OptimizerConfig, num_train_steps: int, step: tf.Tensor
) -> tf.Tensor:
    """Return the released learning rate of a float32 step counted from 0.

    Decay runs from step 0, so that the rate jumps when the warm-up ends, and
    steps before `start_warmup_step` have a negative rate.
    """
    done = tf.minimum(step, num_train_steps) / num_train_steps
    rate = config.learning_rate * (1.0 - done) ** config.poly_power
    if not config.num_warmup_steps:
        return rate
    since = step - config.start_warmup_step
    warmup = config.learning_rate * since / config.num_warmup_steps
    return tf.where(since < config.num_warmup_steps, warmup, rate)


def corrected_schedule(
    config: OptimizerConfig, num_train_steps: int, step: tf.Tensor
) -> tf.Tensor:
    """Return a rate that is never zero before the end, and never jumps.

    Warm-up ends at the peak, decay starts there. Before `start_warmup_step`
    the rate decays as if there were no warm-up: the run that is continued.
    """
    start, warmup = config.start_warmup_step, config.num_warmup_steps

    def decay(since, length):
        left = 1.0 - tf.clip_by_value(since / max(length, 1), 0.0, 1.0)
        return config.learning_rate * left**config.poly_power

    peak_step = start + warmup
    rate = decay(step - peak_step, num_train_steps - peak_step)
    if warmup:
        ramp = config.learning_rate * (step - start + 1.0) / warmup
        rate = tf.where(step < peak_step, tf.minimum(ramp, rate), rate)
    return tf.where(step < start, decay(step, num_train_steps), rate)


SCHEDULES: dict[str, Callable] = {
    "corrected": corrected_schedule,
    "released": released_schedule,
}


def debias(beta: float, t):
    """Return 1 - beta^t, exact in float32 for a beta near 1."""
    return -tf.math.expm1(t * math.log(beta)) if beta else 1.0


def adam_update(w, g, m, v, t, c: OptimizerConfig):
    """Return the update direction u and the new moments m, v."""
    m = c.beta_1 * m + (1.0 - c.beta_1) * g
    v = c.beta_2 * v + (1.0 - c.beta_2) * tf.square(g)
    m_hat, v_hat = m, v
    if c.bias_correction:
        m_hat = m / debias(c.beta_1, t)
        v_hat = v / debias(c.beta_2, t)
    return m_hat / (tf.sqrt(v_hat) + c.epsilon), m, v


def trust_ratio(w, u):
    """Return ||w|| / ||u||, or 1 where either norm is 0."""
    w_norm, u_norm = tf.norm(w), tf.norm(u)
    defined = tf.logical_and(w_norm > 0.0, u_norm > 0.0)
    return tf.where(defined, tf.math.divide_no_nan(w_norm, u_norm), 1.0)


def update_rule(w, g, m, v, rate, t, excluded: bool, c: OptimizerConfig):
    """Return the new (w, m, v) of one variable; a pure function.

    Args:
      w: the variable's value.
      g: its gradient.
      m, v: its first and second moments.
      rate: the learning rate of this step.
      t: the number of this step counted from 1, float32.
      excluded: whether w is spared weight decay and the trust ratio.
      c: the hyperparameters; `optimizer` says whether r is used (LAMB,
        https://arxiv.org/abs/1904.00962) or 1 (AdamW).
    """
    u, m, v = adam_update(w, g, m, v, t, c)
    decay = 0.0 if excluded else c.weight_decay_rate
    if c.decay_placement == "update":
        u, apart = u + decay * w, 0.0
    else:
        apart = decay * w
    adapts = c.optimizer == "lamb" and not excluded
    r = trust_ratio(w, u) if adapts else 1.0
    return w - rate * (r * u + apart), m, v


def clip(gradients: list[tf.Tensor], limit: float):
    """Scale gradients to a global norm of at most `limit`; also return it.

    The norm is NaN or infinite if any gradient is.
    """
    norm = tf.linalg.global_norm(gradients)
    if not limit:
        return gradients, norm
    scale = limit / tf.maximum(norm, limit)
    return [g * scale for g in gradients], norm


class Optimizer:
    """An update rule with its slots, on any `tf.distribute` strategy.

    Must be made inside the strategy's scope. Slots are variables of their
    own, named `optimizer/NAME/m` and `optimizer/NAME/v`; the step number is
    `iterations`.

    Args:
      config: rule, schedule and hyperparameters.
      num_train_steps: the step at which the schedule reaches zero.
      variables: {name: trainable variable}.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        num_train_steps: int,
        variables: dict[str, tf.Variable],
    ):
        self.config = config
        self.num_train_steps = num_train_steps
        self.variables = variables
        self.iterations = tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            name="iterations",
        )
        self.m = {n: self._slot(v, f"{n}/m") for n, v in variables.items()}
        self.v = {n: self._slot(v, f"{n}/v") for n, v in variables.items()}

    def _slot(self, variable: tf.Variable, name: str) -> tf.Variable:
        zeros = tf.zeros(variable.shape, tf.float32)
        return tf.Variable(zeros, trainable=False, name=name)

    def state(self) -> dict[str, tf.Variable]:
        """Return {name: variable} of everything that a resume needs."""
        slots = {"optimizer/iterations": self.iterations}
        slots |= {f"optimizer/{n}/m": slot for n, slot in self.m.items()}
        slots |= {f"optimizer/{n}/v": slot for n, slot in self.v.items()}
        return slots

    def excluded(self) -> list[str]:
        """Return the names without weight decay and trust ratio."""
        return [name for name in self.variables if EXCLUDED.search(name)]

    def learning_rate(self, step: tf.Tensor) -> tf.Tensor:
        """Return the float32 learning rate of a step counted from 0."""
        schedule = SCHEDULES[self.config.schedule]
        return schedule(
            self.config, self.num_train_steps, tf.cast(step, tf.float32)
        )

    def reduce(self, gradients: list[tf.Tensor]):
        """Return the clipped gradient of all replicas and its norm.

        Call in a replica; the replicas' gradients must add up to the whole.
        """
        context = tf.distribute.get_replica_context()
        limit = self.config.clip_norm
        if self.config.clip_placement == "per_replica":
            replicas = context.num_replicas_in_sync
            own = [g * replicas for g in gradients]
            gradients = [g / replicas for g in clip(own, limit)[0]]
            limit = 0.0
        if context.num_replicas_in_sync > 1:
            gradients = context.all_reduce(
                tf.distribute.ReduceOp.SUM, gradients
            )
        return clip(gradients, limit)

    def apply(self, gradients: list[tf.Tensor]) -> tf.Tensor:
        """Update every variable in a replica; return the gradient's norm.

        Args:
          gradients: this replica's share, in the order of `variables`.
        """
        gradients, norm = self.reduce(gradients)
        context = tf.distribute.get_replica_context()
        context.merge_call(self._update_all, args=(gradients,))
        return norm

    def _update_all(self, strategy, gradients):
        update = strategy.extended.update
        rate = self.learning_rate(self.iterations)
        t = tf.cast(self.iterations, tf.float32) + 1.0
        for (name, variable), g in zip(
            self.variables.items(), gradients, strict=True
        ):
            slots = (self.m[name], self.v[name])
            excluded = EXCLUDED.search(name) is not None
            update(variable, self._update_one, (g, *slots, rate, t, excluded))
        with tf.control_dependencies([rate, t]):
            update(self.iterations, lambda step: step.assign_add(1))

    def _update_one(self, w, g, m, v, rate, t, excluded):
        new_w, new_m, new_v = update_rule(
            w, g, m, v, rate, t, excluded, self.config
        )
        return tf.group(w.assign(new_w), m.assign(new_m), v.assign(new_v))
