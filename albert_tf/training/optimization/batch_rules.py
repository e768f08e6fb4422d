"""What an optimizer's numbers are for a batch: its rate, its memory."""

import dataclasses

from albert_tf.base.errors import require
from albert_tf.training.optimization.learning_rate import (
    RATE_AT_4096,
    scaled_rate,
)
from albert_tf.training.optimization.optimizers import OptimizerConfig
from albert_tf.training.step.training_config import TrainingConfig


def with_rate(
    optimizer: OptimizerConfig, training: TrainingConfig
) -> OptimizerConfig:
    """Return settings with a number for `learning_rate=auto`, and print it."""
    if optimizer.learning_rate != "auto":
        return optimizer
    require(
        optimizer.optimizer == "lamb",
        "`learning_rate` must be a number but for optimizer=lamb, whose rule "
        "auto is.",
        learning_rate="auto",
        optimizer=optimizer.optimizer,
    )
    batch = training.train_batch_size
    rate = scaled_rate(batch)
    print(
        f"learning_rate=auto: {RATE_AT_4096} x sqrt({batch} / 4096) = {rate:g}"
    )
    return dataclasses.replace(optimizer, learning_rate=rate)


def with_half_life(
    optimizer: OptimizerConfig, half_life: float, tokens: int
) -> OptimizerConfig:
    """Return settings with the `beta_2` of a half-life, and print it.

    A gradient's share in the second moment halves while so many tokens go
    by, whatever the batch: https://arxiv.org/abs/2507.07101, section 3.

    Args:
      optimizer: the settings.
      half_life: in tokens; 0 leaves `beta_2` as it is.
      tokens: of a step.
    """
    if not half_life:
        return optimizer
    beta_2 = 2.0 ** (-tokens / half_life)
    print(
        f"beta_2_half_life={half_life:g}: 2 ^ -({tokens} / {half_life:g}), "
        f"beta_2 is {beta_2:.6g} instead of {optimizer.beta_2:g}"
    )
    return dataclasses.replace(optimizer, beta_2=beta_2)
