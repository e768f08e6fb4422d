"""Tiny pretraining runs, and the values of the variables they leave."""

import functools
from unittest import mock

import tiny

import albert_tf
from albert_tf.training import checkpoints, pretraining

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


make_trainer = pretraining.make_trainer


def traced_once(config, compat, optimizer, training, strategy):
    """Return what `make_trainer` does, see `tiny.traced_once`."""
    key = config, compat, optimizer
    make = functools.partial(make_trainer, *key, training, strategy)
    return tiny.traced_once(make, training, *key)


def run(data_dir, config_file, output_dir, training=None, **kwargs):
    """Pretrain; return the last held-out metrics."""
    with mock.patch.object(pretraining, "make_trainer", traced_once):
        result = albert_tf.pretrain(
            data_dir=data_dir,
            albert_config_file=config_file,
            output_dir=output_dir,
            **DEFAULTS | (training or {}) | kwargs,
        )
    return result.metrics.get("eval", {})
