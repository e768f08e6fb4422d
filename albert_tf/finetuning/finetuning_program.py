"""Fine-tune, evaluate and predict with a model directory."""

from albert_tf.base import program, settings

with program.quiet_start():
    from albert_tf.finetuning.finetune import finetune
    from albert_tf.finetuning.job import DEFAULTS, FinetuningConfig
    from albert_tf.finetuning.multitask import finetune_together
    from albert_tf.finetuning.recipes import RecipeConfig
    from albert_tf.tasks.task import DataConfig, TaskConfig
    from albert_tf.training.distribution import DistributionConfig
    from albert_tf.training.optimizers import OptimizerConfig
    from albert_tf.training.trainer import TrainingConfig

CONFIGS = (
    FinetuningConfig,
    DataConfig,
    TaskConfig,
    OptimizerConfig,
    TrainingConfig,
    DistributionConfig,
    RecipeConfig,
)
# The released fine-tuning scripts' names of the same settings.
RELEASED_NAMES = {
    "task_name": "task",
    "train_step": "num_train_steps",
    "warmup_step": "num_warmup_steps",
    "dropout_prob": "classifier_dropout",
    "dev_file": "eval_file",
}


def define_flags() -> None:
    """Define the flags, with the defaults of fine-tuning."""
    settings.define_flags(*CONFIGS)
    for name, default in DEFAULTS.items():
        settings.FLAGS.set_default(name, default)
    for released, name in RELEASED_NAMES.items():
        settings.flags.DEFINE_alias(released, name)


def main() -> None:
    """Build the settings from the flags and fine-tune."""
    configs = [settings.from_flags(cls) for cls in CONFIGS]
    several = "," in (settings.FLAGS.task or "")
    run = finetune_together if several else finetune
    for split, metrics in run(*configs).items():
        for name, value in metrics.items():
            print(f"{split} {name} = {value:.6g}")


def cli() -> None:
    """Run as a console script."""
    define_flags()
    settings.run(main)
