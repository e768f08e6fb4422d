"""Whole fine-tuning runs small enough for tests."""

import dataclasses
import os

import pytest

from albert_tf.base.errors import InputError
from albert_tf.finetuning.finetune import finetune
from albert_tf.finetuning.job import FinetuningConfig
from albert_tf.finetuning.recipes import RecipeConfig
from albert_tf.tasks.tables import Columns, read_rows
from albert_tf.tasks.task import DataConfig, TaskConfig
from albert_tf.training import checkpoints
from albert_tf.training.distribution import DistributionConfig
from albert_tf.training.optimizers import OptimizerConfig
from albert_tf.training.trainer import TrainingConfig

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEFAULTS = {
    OptimizerConfig: {
        "optimizer": "adamw",
        "learning_rate": 0.01,
        "num_warmup_steps": 5,
    },
    TrainingConfig: {
        "num_train_steps": 60,
        "train_batch_size": 16,
        "eval_batch_size": 16,
        "eval_steps": 20,
        "save_checkpoints_steps": 20,
        "steps_per_loop": 20,
    },
    TaskConfig: {"max_seq_length": 16},
}
CONFIGS = (
    FinetuningConfig,
    DataConfig,
    TaskConfig,
    OptimizerConfig,
    TrainingConfig,
    DistributionConfig,
    RecipeConfig,
)


def build(**values):
    """Return all settings, from values of any of them."""
    configs = []
    for cls in CONFIGS:
        names = {field.name for field in dataclasses.fields(cls)}
        own = {k: values.pop(k) for k in list(values) if k in names}
        configs.append(cls(**(DEFAULTS.get(cls, {}) | own)))
    assert not values
    return configs


def run(**values):
    """Fine-tune with settings of any of the classes; return the metrics."""
    return finetune(*build(**values))


def refusal(**values):
    """Return the message of the error that a run must raise."""
    with pytest.raises(InputError) as error:
        run(**values)
    return str(error.value)


def predictions(path):
    """Return the rows of a file of predictions."""
    return [row.values for row in read_rows(str(path), Columns())]


def weights(model_dir, name):
    """Return a variable of the newest checkpoint of a model directory."""
    prefix = checkpoints.latest(model_dir)
    key = f"variables/{name.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"
    return checkpoints.tf.train.load_checkpoint(prefix).get_tensor(key)
