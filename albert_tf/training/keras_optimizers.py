"""LAMB, AdamW and a schedule for `compile`, with Keras's argument names."""

import dataclasses
import re
from typing import ClassVar

import keras
import tensorflow as tf

from albert_tf.base.errors import input_errors, require
from albert_tf.base.settings import plain, positive
from albert_tf.model.layers import registered
from albert_tf.training.optimizer import (
    RATE_AT_4096,
    SCHEDULES,
    Optimizer,
    OptimizerConfig,
)


@registered
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate with warm-up and decay over the steps of a run.

    Args:
      learning_rate: the peak rate.
      num_train_steps: the step at which decay ends.
      num_warmup_steps: steps of linear warm-up.
      **kwargs: `schedule`, `poly_power` and `start_warmup_step`; see the flags
        with these names.
    """

    def __init__(
        self,
        learning_rate: float,
        num_train_steps: int,
        num_warmup_steps: int = 0,
        **kwargs,
    ):
        steps = positive("num_train_steps", num_train_steps)
        named = {
            "learning_rate": learning_rate,
            "num_warmup_steps": num_warmup_steps,
            **kwargs,
        }
        self.num_train_steps, self.config = steps, OptimizerConfig(**named)
        self.values = {name: getattr(self.config, name) for name in named}

    def __call__(self, step):
        """Return the float32 rate at a step counted from 0."""
        schedule = SCHEDULES[self.config.schedule]
        return schedule(
            self.config, self.num_train_steps, tf.cast(step, tf.float32)
        )

    def get_config(self) -> dict:
        """Return the constructor's arguments."""
        return {"num_train_steps": self.num_train_steps, **self.values}


class Released(Optimizer):
    """The base class of optimizers with the arguments of Keras's optimizers.

    Attributes:
      rule: the name of the update rule.
      default_rate: the default learning rate.
    """

    rule: ClassVar[str]
    default_rate: ClassVar[float]

    def __init__(
        self,
        learning_rate=None,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        bias_correction: bool = False,
        global_clipnorm: float | None = 1.0,
        **kwargs,
    ):
        if learning_rate is None:
            learning_rate = self.default_rate
        learning_rate = plain(learning_rate)
        if isinstance(learning_rate, int):
            learning_rate = float(learning_rate)
        config = OptimizerConfig(
            optimizer=self.rule,
            weight_decay_rate=weight_decay,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            bias_correction=bias_correction,
            clip_norm=plain(global_clipnorm) or 0.0,
        )
        super().__init__(config, learning_rate, **plain(kwargs))

    # Attributes with Keras's names; as in Keras, None means 0.

    @property
    def weight_decay(self) -> float:
        """The weight decay, which can be changed before training."""
        return self.config.weight_decay_rate

    @weight_decay.setter
    def weight_decay(self, value: float | None):
        self._update(weight_decay_rate=value)

    @property
    def global_clipnorm(self) -> float | None:
        """The largest gradient norm, which can be changed before training."""
        return self.config.clip_norm or None

    @global_clipnorm.setter
    def global_clipnorm(self, value: float | None):
        self._update(clip_norm=value)

    def _update(self, **settings):
        """Change settings; do nothing while Keras sets its own defaults."""
        if hasattr(self, "config"):
            settings = {name: x or 0.0 for name, x in plain(settings).items()}
            self.config = dataclasses.replace(self.config, **settings)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Exclude more variables from weight decay and from the trust ratio.

        Call this method before training. `get_config` includes the exclusions.

        Args:
          var_list: variables to exclude.
          var_names: regular expressions; a variable is excluded if its name,
            the last part of its path, contains a match. Only the first
            character may be `^`.

        Raises:
          InputError: if the optimizer is built, or if an expression is invalid.
        """
        rule = "Variables must be excluded before the optimizer is built."
        require(not self.built, rule, optimizer=type(self).__name__)
        paths = [f"^{re.escape(v.path)}$" for v in var_list or ()]
        names = [
            f"{'(^|/)' * x.startswith('^')}({x.removeprefix('^')})[^/]*$"
            for x in var_names or ()
        ]
        excluded = "|".join(filter(None, [self.excluded, *paths, *names]))
        rule = "`var_names` must contain regular expressions"
        with input_errors(re.error, rule, var_names=var_names):
            re.compile(excluded)
        self.excluded = excluded

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Create an optimizer from a config of this or an earlier release."""
        config = dict(config)
        placement = config.pop("decay_placement", "update")
        rule = "Weight decay can only be part of the update."
        require(placement == "update", rule, decay_placement=placement)
        return super().from_config(config, custom_objects)

    def get_config(self) -> dict:
        """Return the constructor's arguments."""
        names = "beta_1", "beta_2", "epsilon", "bias_correction"
        values = {name: getattr(self.config, name) for name in names}
        own = "weight_decay", "global_clipnorm", "excluded"
        values |= {name: getattr(self, name) for name in own}
        return super().get_config() | values


@registered
class Lamb(Released):
    """LAMB as used to train ALBERT, unlike `keras.optimizers.Lamb`.

    The default rate is the paper's rate for batches of 4,096 examples. For the
    other arguments, see `AdamW`; variables without weight decay also have no
    trust ratio.
    """

    rule, default_rate = "lamb", RATE_AT_4096


@registered
class AdamW(Released):
    """AdamW as in the released fine-tuning code, without bias correction.

    Args:
      learning_rate: a number or a schedule. Default: 2e-5.
      weight_decay: weight decay of all variables that are not `excluded`.
      beta_1: decay of the first moment.
      beta_2: decay of the second moment.
      epsilon: a number added to the square root of the second moment.
      bias_correction: whether to divide moments by 1 - beta^t.
      global_clipnorm: largest global norm of the gradients; None means no
        limit. The default, 1, is the released value.
      **kwargs: `excluded`, a pattern for the paths of variables without weight
        decay, by default norms and biases ("" excludes none); and `name`.
    """

    rule, default_rate = "adamw", 2e-5
