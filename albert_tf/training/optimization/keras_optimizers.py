"""LAMB, AdamW and their schedule for `compile`: the same rules as in a run."""

import dataclasses
import re
from typing import ClassVar

import keras
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.base.settings import as_type, plain
from albert_tf.model.layers import registered
from albert_tf.model.ops import freed_with_graph
from albert_tf.training.machines.distribution import all_sum
from albert_tf.training.optimization.learning_rate import (
    RATE_AT_4096,
    SCHEDULES,
)
from albert_tf.training.optimization.optimizers import (
    EXCLUDED,
    OptimizerConfig,
    update_rule,
)


@registered
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A warm-up and a decay over the steps of a run.

    Args:
      learning_rate: the peak.
      num_train_steps: the step at which the decay ends.
      num_warmup_steps: of linear warm-up.
      **kwargs: `schedule`, `poly_power` and `start_warmup_step`, as the flags
        of the same names.
    """

    def __init__(
        self,
        learning_rate: float,
        num_train_steps: int,
        num_warmup_steps: int = 0,
        **kwargs,
    ):
        steps = as_type("num_train_steps", num_train_steps, int)
        rule = "`num_train_steps` must be at least 1."
        require(steps > 0, rule, num_train_steps=steps)
        named = {
            "learning_rate": learning_rate,
            "num_warmup_steps": num_warmup_steps,
            **kwargs,
        }
        self.num_train_steps, self.config = steps, OptimizerConfig(**named)
        self.values = {name: getattr(self.config, name) for name in named}

    def __call__(self, step):
        """Return the float32 rate of a step counted from 0."""
        schedule = SCHEDULES[self.config.schedule]
        return schedule(
            self.config, self.num_train_steps, tf.cast(step, tf.float32)
        )

    def get_config(self) -> dict:
        """Return the arguments."""
        return {"num_train_steps": self.num_train_steps, **self.values}


class ReleasedOptimizer(keras.optimizers.Optimizer):
    """What LAMB and AdamW share, see `optimizers.update_rule`.

    Args:
      learning_rate: a number or a schedule.
      weight_decay: of all but `excluded` variables.
      beta_1: decay of the first moment.
      beta_2: decay of the second moment.
      epsilon: added to the root of the second moment.
      bias_correction: whether moments are divided by 1 - beta^t.
      decay_placement: "update", inside the trust ratio, or "decoupled".
      excluded: pattern of paths of variables without decay and trust ratio;
        as released, those of norms and biases.
      global_clipnorm: largest norm of all gradients, 1 as released.
      **kwargs: as of any `keras.optimizers.Optimizer`.
    """

    rule: ClassVar[str]

    def __init__(
        self,
        learning_rate,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        bias_correction: bool = False,
        decay_placement: str = "update",
        excluded: str = EXCLUDED.pattern,
        global_clipnorm: float | None = 1.0,
        **kwargs,
    ):
        learning_rate = plain(learning_rate)
        if isinstance(learning_rate, int):
            learning_rate = float(learning_rate)
        how = plain({"global_clipnorm": global_clipnorm} | kwargs)
        super().__init__(learning_rate, **how)
        self.hyperparameters = OptimizerConfig(
            optimizer=self.rule,
            weight_decay_rate=weight_decay,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            bias_correction=bias_correction,
            decay_placement=decay_placement,
        )
        self.excluded = excluded

    def build(self, variables):
        """Make the moments of the variables, at 0."""
        if self.built:
            return
        super().build(variables)
        names = ["m", "v"]
        self.m, self.v = self.add_optimizer_variables(variables, names)
        self.spared = [
            re.search(self.excluded, v.path) is not None for v in variables
        ]

    def apply(self, grads, trainable_variables=None):
        """Update the variables, as the project's own loop does.

        The gradient of a table's rows counts as a whole one where it is
        clipped; a variable without a gradient has one of 0, and decays.
        """
        grads = list(grads)
        if trainable_variables is not None:
            for i, variable in enumerate(trainable_variables):
                if grads[i] is None:
                    grads[i] = tf.zeros(variable.shape, variable.dtype)
        grads = [None if g is None else tf.convert_to_tensor(g) for g in grads]
        context = tf.distribute.get_replica_context()
        if context and context.num_replicas_in_sync > 1:
            # Keras clips what each replica has, and then adds that up.
            grads = all_sum(grads)
            clipped = self._clip_gradients(grads)
            grads = [g / context.num_replicas_in_sync for g in clipped]
        with freed_with_graph():  # Keras's all-reduce has a custom gradient
            return super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        """Update one variable by the rule of the project's own loop."""
        i = self._get_variable_index(variable)
        slots = self.m[i], self.v[i]
        values = map(tf.convert_to_tensor, (variable, gradient, *slots))
        new_values = update_rule(
            *(tf.cast(x, tf.float32) for x in values),
            tf.cast(learning_rate, tf.float32),
            tf.cast(self.iterations, tf.float32) + 1.0,
            self.spared[i],
            self.hyperparameters,
        )
        for target, value in zip((variable, *slots), new_values, strict=True):
            self.assign(target, value)

    def get_config(self) -> dict:
        """Return the arguments."""
        c = dataclasses.asdict(self.hyperparameters)
        names = """beta_1 beta_2 epsilon bias_correction
        decay_placement""".split()
        config = super().get_config() | {name: c[name] for name in names}
        return config | {
            "weight_decay": c["weight_decay_rate"],
            "excluded": self.excluded,
        }


@registered
class Lamb(ReleasedOptimizer):
    """LAMB as ALBERT was trained with; `keras.optimizers.Lamb` is another.

    Its rate is that of the paper's batches of 4,096.
    """

    rule = "lamb"

    def __init__(self, learning_rate=RATE_AT_4096, *args, **kwargs):
        super().__init__(learning_rate, *args, **kwargs)


@registered
class AdamW(ReleasedOptimizer):
    """AdamW as the release fine-tunes with: without bias correction."""

    rule = "adamw"

    def __init__(self, learning_rate=2e-5, *args, **kwargs):
        super().__init__(learning_rate, *args, **kwargs)
