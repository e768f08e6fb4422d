"""Tiny pretraining runs, and the variables in their checkpoints."""

import functools
from unittest import mock

import numpy as np
import tiny

import albert_tf
from albert_tf.data.builder import build
from albert_tf.data.builder.build_settings import BuildConfig
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.text_formats import ReadingConfig
from albert_tf.data.masking import MaskingConfig
from albert_tf.text.symbols import SymbolTable
from albert_tf.text.tokenizers import TokenizerConfig
from albert_tf.training import checkpoint_files, checkpoints
from albert_tf.training.distribution import DistributionConfig
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.pretraining import run_setup
from albert_tf.training.run import Hook
from albert_tf.training.training_config import TrainingConfig

DEFAULTS = {
    "num_train_steps": 4,
    "train_batch_size": 8,
    "eval_batch_size": 8,
    "eval_steps": 2,
    "learning_rate": 0.01,
    "num_warmup_steps": 2,
    "random_seed": 5,
}


class Look(Hook):
    """A hook that inspects a run and stops it before its first step."""

    def __init__(self, look):
        self.look = look

    def begin(self, run):
        self.look(run)
        run.stop("having seen it")


def table(prefix):
    """Return {name: value} for the variables in a checkpoint."""
    read = checkpoints.reader(prefix)
    return {name: read(name) for name in checkpoints.read_table(prefix)}


def values(output_dir):
    """Return {name: value} for the last checkpoint in a model directory."""
    return table(checkpoint_files.latest(str(output_dir)))


def assert_same_bits(left, right):
    """Assert that two directories' last checkpoints have equal values."""
    expected, found = values(left), values(right)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(value, found[name], name)


def make_setup(config, folders, **more):
    """Return the setup of a run; `folders` is {folder of records: metadata}."""
    files = {"albert_config_file": "c", "output_dir": "o"}
    return run_setup.Setup(
        run_setup.PretrainingConfig("records", **files | more),
        OptimizerConfig(),
        TrainingConfig(),
        DistributionConfig(),
        config,
        folders,
        None,
    )


make_trainer = run_setup.make_trainer


def traced_once(config, compat, optimizer, training, strategy, *more):
    """Return the result of `make_trainer`; see `tiny.traced_once`."""
    tables = [x.fingerprint() for x in more if isinstance(x, SymbolTable)]
    key = config, compat, optimizer
    make = functools.partial(make_trainer, *key, training, strategy, *more)
    return tiny.traced_once(make, training, *key, *tables)


def run(data_dir, config_file, output_dir, training=None, **kwargs):
    """Pretrain, and return the last held-out metrics."""
    with mock.patch.object(run_setup, "make_trainer", traced_once):
        result = albert_tf.pretrain(
            data_dir=data_dir,
            albert_config_file=config_file,
            output_dir=output_dir,
            **DEFAULTS | (training or {}) | kwargs,
        )
    return result.metrics.get("eval", {})


def build_records(text, output, model, tokens, **masking):
    """Build records from a text file, a tenth of them held out."""
    settings = {"dupe_factor": 1, "eval_fraction": 0.1, "num_processes": 1}
    build.run(
        BuildConfig(input_file=str(text), output_dir=str(output), **settings),
        TokenizerConfig(spm_model_file=str(model)),
        PairsConfig(max_seq_length=tokens),
        MaskingConfig(**masking),
        ReadingConfig(),
    )
