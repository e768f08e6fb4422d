"""Pretrain an ALBERT on the records that create_pretraining_data.py wrote."""

from albert_tf.base import program, settings

with program.quiet_start():
    from albert_tf.training.distribution import DistributionConfig
    from albert_tf.training.optimizers import OptimizerConfig
    from albert_tf.training.pretraining import PretrainingConfig, pretrain
    from albert_tf.training.trainer import TrainingConfig

CONFIGS = (
    PretrainingConfig,
    OptimizerConfig,
    TrainingConfig,
    DistributionConfig,
)


def main() -> None:
    """Build the settings from the flags and pretrain."""
    configs = [settings.from_flags(cls) for cls in CONFIGS]
    for name, value in pretrain(*configs).items():
        print(f"{name} = {value:.4f}")


def cli() -> None:
    """Run as a console script."""
    settings.define_flags(*CONFIGS)
    settings.run(main)
