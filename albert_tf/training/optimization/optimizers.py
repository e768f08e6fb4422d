"""ALBERT's LAMB and AdamW, their learning-rate schedule, and clipping.

The rules are those of the released `lamb_optimizer.py` and `optimization.py`:
no bias correction, weight decay inside the trust ratio, neither decay nor
trust ratio for norms and biases. `keras.optimizers.Lamb` differs in all three.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from albert_tf.base.settings import Checked, setting
from albert_tf.model.ops import xla_compiled
from albert_tf.training.machines.distribution import all_sum
from albert_tf.training.optimization.learning_rate import SCHEDULES, on_course
from albert_tf.training.optimization.muon import MATRICES, muon_rule
from albert_tf.training.optimization.weight_average import WeightAverage

# Matched against variable names; the released patterns are LayerNorm and bias.
EXCLUDED = re.compile(r"layer_norm/|(bias|beta|gamma)$")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Checked):
    """The optimizer and its schedule; the defaults are the released ones.

    Two differ: `schedule` and `clip_placement` default to what does not
    depend on a quirk or on the number of replicas; `--compat=google` restores
    them.
    """

    optimizer: str = setting(
        "lamb",
        "Update rule; muon: of the encoder's matrices, and AdamW of the rest.",
        choices=("lamb", "adamw", "muon"),
    )
    learning_rate: float | str = setting(
        0.00176,
        "Peak learning rate; auto: 0.00176 times the root of "
        "train_batch_size / 4096.",
        choices=("auto",),
        minimum=0.0,
    )
    num_warmup_steps: int = setting(3125, "Steps of linear warm-up.", minimum=0)
    start_warmup_step: int = setting(
        0, "Step at which the warm-up begins.", minimum=0
    )
    poly_power: float = setting(
        1.0, "Power of the polynomial decay to zero.", minimum=0.0
    )
    schedule: str = setting(
        "corrected",
        "Learning-rate formula: polynomial decay, the released one, which "
        "starts at zero and jumps when the warm-up ends, half a cosine wave, "
        "or no decay.",
        choices=SCHEDULES,
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
    ema_decay: float = setting(
        0.0,
        "Decay of the moving average of the weights, which is then what is "
        "evaluated, kept and exported; 0 is no average.",
        minimum=0.0,
        maximum=0.999999,
    )

    @property
    def peak_step(self) -> int:
        """The first step after the warm-up, counted from 0."""
        return self.start_warmup_step + self.num_warmup_steps


def debias(beta: float, t):
    """Return 1 - beta^t, exact in float32 for a beta near 1."""
    return -tf.math.expm1(t * math.log(beta)) if beta else 1.0


class Adam(NamedTuple):
    """The numbers of Adam's rule; equal tuples share a `tf.function` trace."""

    beta_1: float
    beta_2: float
    epsilon: float
    bias_correction: bool

    @classmethod
    def of(cls, c: OptimizerConfig) -> "Adam":
        """Take the numbers from an optimizer's settings."""
        return cls(*(getattr(c, name) for name in cls._fields))


def adam_direction(m, v, t, c: Adam):
    """Return the update direction of moments m, v after t steps."""
    if c.bias_correction:
        m = m / debias(c.beta_1, t)
        v = v / debias(c.beta_2, t)
    return m / (tf.sqrt(v) + c.epsilon)


def adam_update(w, g, m, v, t, decay: float, c: Adam):
    """Return the update direction u with its decay, and the new m and v."""
    m = c.beta_1 * m + (1.0 - c.beta_1) * g
    v = c.beta_2 * v + (1.0 - c.beta_2) * tf.square(g)
    u = adam_direction(m, v, t, c)
    return (u + decay * w if decay else u), m, v


# One pass over memory instead of ten; small variables are not worth a launch.
FUSED_SIZE = 1 << 16
compiled_adam_update = xla_compiled(adam_update)


def trust_ratio(w, u):
    """Return ||w|| / ||u||, or 1 where either norm is 0."""
    w_norm, u_norm = tf.norm(w), tf.norm(u)
    defined = tf.logical_and(w_norm > 0.0, u_norm > 0.0)
    return tf.where(defined, tf.math.divide_no_nan(w_norm, u_norm), 1.0)


def update_rule(
    w, g, m, v, rate, t, excluded: bool, c: OptimizerConfig, compiled=True
):
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
      compiled: whether XLA may compile a part.
    """
    decay = 0.0 if excluded else c.weight_decay_rate
    inside = decay if c.decay_placement == "update" else 0.0
    compiled = compiled and w.shape.num_elements() >= FUSED_SIZE
    update = compiled_adam_update if compiled else adam_update
    u, m, v = update(w, g, m, v, t, inside, Adam.of(c))
    adapts = c.optimizer == "lamb" and not excluded
    r = trust_ratio(w, u) if adapts else 1.0
    new_w = w - (rate * r) * u
    return (new_w if inside == decay else new_w - rate * decay * w), m, v


def rule_of(name: str, c: OptimizerConfig, dtype: str):
    """Return the function that updates a variable, see `update_rule`."""
    is_muons = c.optimizer == "muon" and MATRICES.match(name)
    return partial(muon_rule, dtype=dtype) if is_muons else update_rule


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
    `iterations`, and `average` has the weights' means.

    Args:
      config: rule, schedule and hyperparameters.
      num_train_steps: the step at which the schedule reaches zero.
      variables: {name: trainable variable}.
      compiled: whether XLA may compile a part of the update.
      dtype: of Muon's products.

    `rate_factor`, 1 at first, scales the rate of all; it is not part of the
    state. Nor is `course`, which is None or what moves the schedule's end.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        num_train_steps: int,
        variables: dict[str, tf.Variable],
        compiled: bool = True,
        dtype: str = "float32",
    ):
        self.config = config
        self.num_train_steps = num_train_steps
        self.variables = variables
        self.compiled, self.dtype = compiled, dtype
        self.rate_factor = tf.Variable(1.0, trainable=False)
        self.course: tf.Variable | None = None
        self.iterations = tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            name="iterations",
        )
        self.m = {n: self._slot(v, f"{n}/m") for n, v in variables.items()}
        self.v = {n: self._slot(v, f"{n}/v") for n, v in variables.items()}
        self.average = WeightAverage(config.ema_decay, variables)

    def _slot(self, variable: tf.Variable, name: str) -> tf.Variable:
        zeros = tf.zeros(variable.shape, tf.float32)
        return tf.Variable(zeros, trainable=False, name=name)

    def state(self) -> dict[str, tf.Variable]:
        """Return {name: variable} of everything that a resume needs."""
        slots = {"optimizer/iterations": self.iterations}
        slots |= {f"optimizer/{n}/m": slot for n, slot in self.m.items()}
        slots |= {f"optimizer/{n}/v": slot for n, slot in self.v.items()}
        return slots | self.average.state()

    def begin_course(self, course: Sequence[float]) -> None:
        """Let the schedule follow a course, see `on_course`, that can change.

        Call before the first step, in the scope of the strategy.
        """
        values = tf.constant(course, tf.float32)
        self.course = tf.Variable(values, trainable=False)

    def excluded(self) -> list[str]:
        """Return the names without weight decay and trust ratio."""
        return [name for name in self.variables if EXCLUDED.search(name)]

    def learning_rate(self, step: tf.Tensor) -> tf.Tensor:
        """Return the float32 learning rate of a step counted from 0."""
        schedule = SCHEDULES[self.config.schedule]
        place = tf.cast(step, tf.float32)
        if self.course is not None:
            place = on_course(self.course, place)
        rate = schedule(self.config, self.num_train_steps, place)
        return rate * self.rate_factor

    def reduce(self, gradients: list[tf.Tensor]):
        """Return the clipped gradient of all replicas and its norm.

        Call in a replica; the replicas' gradients must add up to the whole.
        """
        limit = self.config.clip_norm
        if self.config.clip_placement == "per_replica":
            context = tf.distribute.get_replica_context()
            replicas = context.num_replicas_in_sync
            scaled = [g * replicas for g in gradients]
            gradients = [g / replicas for g in clip(scaled, limit)[0]]
            limit = 0.0
        return clip(all_sum(gradients), limit)

    def apply(
        self, gradients: list[tf.Tensor], healthy: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Update every variable in a replica; return the gradient's norm.

        Args:
          gradients: this replica's share, in the order of `variables`.
          healthy: boolean; if it is given and false, or the norm not finite,
            the step is counted and nothing else changes.
        """
        gradients, norm = self.reduce(gradients)
        if healthy is not None:
            healthy = tf.logical_and(healthy, tf.math.is_finite(norm))
        context = tf.distribute.get_replica_context()
        context.merge_call(self._update_all, args=(gradients, healthy))
        return norm

    def _update_all(self, strategy, gradients, healthy):
        update = strategy.extended.update
        rate = self.learning_rate(self.iterations)
        t = tf.cast(self.iterations, tf.float32) + 1.0
        for (name, variable), g in zip(
            self.variables.items(), gradients, strict=True
        ):
            slots = (self.m[name], self.v[name])
            excluded = EXCLUDED.search(name) is not None
            rule = rule_of(name, self.config, self.dtype)
            args = (g, *slots, rate, t, excluded, healthy, rule)
            update(variable, self._update_one, args)
        with tf.control_dependencies([rate, t]):
            update(self.iterations, lambda step: step.assign_add(1))
        self.average.move(strategy, t)

    def _update_one(self, w, g, m, v, rate, t, excluded, healthy, rule):
        def assign():
            values = map(tf.convert_to_tensor, (w, g, m, v))
            new_w, new_m, new_v = rule(
                *values, rate, t, excluded, self.config, self.compiled
            )
            return tf.group(w.assign(new_w), m.assign(new_m), v.assign(new_v))

        if healthy is None:
            return assign()
        return tf.cond(healthy, assign, tf.no_op)

    def trust_ratios(self) -> tf.Tensor:
        """Return in a replica LAMB's trust ratio of each adapted variable.

        Worked out from the weights and moments that the last step left.
        """
        t, c = tf.cast(self.iterations, tf.float32), self.config
        inside = c.decay_placement == "update"
        decay = c.weight_decay_rate if inside else 0.0
        ratios = []
        for name, w in self.variables.items():
            if not EXCLUDED.search(name):
                moments = self.m[name], self.v[name]
                u = adam_direction(*moments, t, Adam.of(c))
                ratios.append(trust_ratio(w, u + decay * w))
        return tf.stack(ratios)
