"""Tiny pretraining runs, and the values of the variables they leave."""

import albert_tf
from albert_tf.training import checkpoints

DEFAULTS = {
    "num_train_steps": 4,
    "train_batch_size": 8,
    "eval_batch_size": 8,
    "eval_steps": 2,
    "learning_rate": 0.01,
    "num_warmup_steps": 2,
}


def values(output_dir):
    prefix = checkpoints.latest(str(output_dir))
    read = checkpoints.reader(prefix)
    return {name: read(name) for name in checkpoints.read_table(prefix)}


def run(data_dir, config_file, output_dir, training=None, **kwargs):
    """Pretrain; return the last held-out metrics."""
    result = albert_tf.pretrain(
        data_dir=data_dir,
        albert_config_file=config_file,
        output_dir=output_dir,
        **DEFAULTS | (training or {}) | kwargs,
    )
    return result.metrics.get("eval", {})
