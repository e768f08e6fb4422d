"""Training from a step file under JAX equals training in TensorFlow.

The tests run if the extra `step-file` is installed, as in `make interchange`.
"""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tiny
import tiny_pretraining
from project_file import ROOT
from tiny_corpus import make_records, write_corpus

import albert_tf
from albert_tf.tpu.compiler import EXTRAS
from albert_tf.tpu.tpu_check import tpu_check
from albert_tf.training.history import History

pytestmark = [pytest.mark.slow, pytest.mark.interchange]

STEPS = 100
FLAGS = {
    "num_train_steps": STEPS,
    "train_batch_size": 16,
    "eval_batch_size": 16,
    "eval_steps": 50,
    "save_checkpoints_steps": 20,
    "learning_rate": 0.02,
    "num_warmup_steps": 10,
    "steps_per_loop": 1,
    "ema_decay": 0.9,
}
WITHOUT_TENSORFLOW = (
    "import sys; sys.modules |= {'tensorflow': None, 'keras': None}; "
    "from albert_tf.tpu.run_step import cli; cli()"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with static and dynamic records and a step file."""
    for package in EXTRAS["step-file"]:
        pytest.importorskip(package)
    path = tmp_path_factory.mktemp("run")
    write_corpus(path)
    for masking in "static", "dynamic":
        make_records(path, path / masking, masking=masking)
    config = dataclasses.replace(
        tiny.CONFIG, vocab_size=308, max_position_embeddings=32
    )
    config.save(path)
    tpu_check(
        topology="v5e:1x1",
        step_file=path / "step.zip",
        data_dir=path / "static",
        albert_config_file=path / "albert_config.json",
        encoder_loop="unrolled",
        rematerialize="none",
        **FLAGS,
    )
    return path


def start(folder, records, output, *flags):
    """Start a run of the step file without TensorFlow; return the process."""
    paths = {
        "step_file": folder / "step.zip",
        "data_dir": folder / records,
        "output_dir": folder / output,
    }
    flags = [*(f"--{k}={v}" for k, v in paths.items()), *flags]
    # Only the first process compiles the step.
    quick = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, *flags],
        cwd=ROOT,
        env=os.environ | quick,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*arguments):
    """Run the step file to completion; return its output."""
    process = start(*arguments)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    return printed


def pretrain(folder, records, output, **flags):
    """Train with TensorFlow, using the step file's settings."""
    albert_tf.pretrain(
        data_dir=folder / records,
        albert_config_file=folder / "albert_config.json",
        output_dir=folder / output,
        **FLAGS | flags,
    )


@pytest.fixture(scope="module")
def printed(folder):
    """Run the step file; return the output."""
    return run(folder, "static", "jax")


def column(folder, split, name):
    """Return the values of a metric in a run's history."""
    return np.array(History.read(str(folder)).column(split, name)[1])


def test_a_run_is_that_of_tensorflow(folder, printed):
    """Losses of 100 steps, metrics and final weights match a TensorFlow run.

    `albert_tf.load` can load the model that the run writes.
    """
    pretrain(folder, "static", "tensorflow")
    ours, theirs = folder / "jax", folder / "tensorflow"
    for name in ("loss", "sop_loss", "gradient_norm"):
        values = [column(run, "train", name) for run in (ours, theirs)]
        print(name, np.abs(values[0] - values[1]).max(), values[0][[0, -1]])
        assert len(values[0]) == STEPS
        np.testing.assert_allclose(*values, rtol=1e-3)
    for name in ("loss", "mlm_loss", "sop_loss"):
        values = [column(run, "eval", name) for run in (ours, theirs)]
        print(name, values)
        assert len(values[0]) == 2
        np.testing.assert_allclose(*values, rtol=1e-3)
    for part in ("", "best"):
        found = tiny_pretraining.values(ours / part)
        expected = tiny_pretraining.values(theirs / part)
        print(
            part,
            max((np.abs(found[n] - x).max(), n) for n, x in expected.items()),
        )
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, 0.02, 1e-3, name)
    model = albert_tf.load(ours)
    assert model.tokenizer.vocab_size == 308
    assert re.search(r"\nloss = \d\.\d{4}\n", printed)


def test_a_killed_run_resumes_with_the_same_bits(folder):
    """Killing and resuming a run does not change a single bit of its result."""
    run(folder, "dynamic", "whole")
    process = start(folder, "dynamic", "killed", "--stop_step=90")
    while not (folder / "killed" / "ckpt-40.json").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    printed = run(folder, "dynamic", "killed")
    assert re.search(
        r"Resuming at step [4-8]0 from .*, at example \d+", printed
    )
    tiny_pretraining.assert_same_bits(folder / "whole", folder / "killed")


def test_tensorflow_resumes_it(folder, printed):
    """`pretrain.py` resumes a run that began with the step file."""
    run(folder, "static", "both", "--stop_step=60")
    pretrain(folder, "static", "both")
    losses = [
        column(folder / name, "train", "loss") for name in ("jax", "both")
    ]
    np.testing.assert_allclose(*losses, rtol=1e-3)
