"""Tiny pretraining runs, and the values of the variables they leave."""

from albert_tf.training import checkpoints
from albert_tf.training.distribution import DistributionConfig
from albert_tf.training.optimizers import OptimizerConfig
from albert_tf.training.pretraining import PretrainingConfig, pretrain
from albert_tf.training.trainer import TrainingConfig


def values(output_dir):
    prefix = checkpoints.latest(str(output_dir))
    read = checkpoints.reader(prefix)
    return {name: read(name) for name in checkpoints.read_table(prefix)}


def run(data_dir, config_file, output_dir, training=None, hooks=(), **kwargs):
    values = {
        "num_train_steps": 4,
        "train_batch_size": 8,
        "eval_batch_size": 8,
        "eval_steps": 2,
    } | (training or {})
    return pretrain(
        PretrainingConfig(
            data_dir=data_dir,
            albert_config_file=str(config_file),
            output_dir=str(output_dir),
            **kwargs,
        ),
        OptimizerConfig(learning_rate=0.01, num_warmup_steps=2),
        TrainingConfig(**values),
        DistributionConfig(),
        hooks,
    )
