"""Complete fine-tuning runs that are small enough for tests."""

import contextlib
import os

import pytest
import tensorflow as tf

import albert_tf
from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.finetuning.finetuning_setup import Settings
from albert_tf.tasks.tables import Columns, read_rows
from albert_tf.training import checkpoint_files

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEFAULTS = {
    "learning_rate": 0.01,
    "num_warmup_steps": 5,
    "num_train_steps": 60,
    "train_batch_size": 16,
    "eval_batch_size": 16,
    "eval_steps": 20,
    "save_checkpoints_steps": 20,
    "keep_checkpoint_max": 5,
    "steps_per_loop": 20,
    "max_seq_length": 16,
}


@contextlib.contextmanager
def eagerly():
    """Run without graphs, because tracing takes longer than a few steps."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def build(**values):
    """Return the settings of a run."""
    program = albert_tf.finetune.program
    return Settings(*program.configs(**DEFAULTS | values))


def run(**values):
    """Fine-tune; return the metrics."""
    return albert_tf.finetune(**DEFAULTS | values).metrics


def refusal(**values):
    """Return the message of the error that a run must raise."""
    with pytest.raises(InputError) as error:
        run(**values)
    return str(error.value)


def predictions(path):
    """Return the rows of a file of predictions."""
    return [row.values for row in read_rows(str(path), Columns())]


def read(folder, name="metrics"):
    """Return the content of a JSON file in the folder of a run."""
    return files.read_json(os.path.join(folder, f"{name}.json"), name)


def weights(model_dir, name):
    """Return a variable from the latest checkpoint of a model directory."""
    prefix = checkpoint_files.latest(model_dir)
    key = f"variables/{name.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"
    return tf.train.load_checkpoint(prefix).get_tensor(key)
