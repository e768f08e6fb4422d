"""Step files with stand-ins for JAX and for the files' programs."""

import json
import sys
import types
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import vocabularies
from tiny_records import write_records

from albert_tf.tpu import run_step as run_step_module
from albert_tf.training import checkpoints

AVERAGE, ITERATIONS = "optimizer/average/w", "optimizer/iterations"
ARGUMENTS = {
    "input_ids": [4, 8],
    "masked_lm_ids": [4, 3],
    "masked_lm_weights": [4, 3],
    "w": [2],
    AVERAGE: [2],
    ITERATIONS: [],
    "optimizer/clock": [3],
}
TRAINING = {
    "num_train_steps": 5,
    "random_seed": 7,
    "eval_batch_size": 3,
    "on_nonfinite": "stop",
    "save_checkpoints_steps": 2,
    "keep_checkpoint_max": 2,
    "eval_steps": 3,
    "steps_per_loop": 2,
    "dtype": "float32",
}


class Programs:
    """A step file's training and evaluation programs, and a stand-in for JAX.

    Attributes:
      read: the first id of each row of the training batches.
      faults: {step: function that changes (report, norm)}; steps count from 0.
    """

    def __init__(self):
        self.read, self.faults = [], {}

    def step(self, ids, _, weights, w, average, step, clock):
        """Add 1 to both weights; return half of each as its average."""
        assert weights.shape == (4, 3) and not weights[:, 2].any()
        assert clock.tolist() == [0, 0, 1] and clock.dtype == np.float32
        self.read.append(ids[:, 0].tolist())
        report = np.array([[6, 0.5, 1], [2, 0.5, 4]], np.float32)
        made = report, np.float32(step + 1)
        made = self.faults.get(int(step), lambda *x: x)(*made)
        return *made, w + 1, (w + 1) / 2, step + 1

    def evaluation(self, w, ids, weights):
        """Report `w[0]`, a loss without examples, and the mean first id."""
        assert ids.shape == (3, 8)
        number = weights.sum()
        sums = [number * w[0], 0, (weights * ids[:, 0]).sum()]
        return (np.array([sums, [number, 0, number]], np.float32),)

    def jit(self, function, donate_argnums=()):
        """Return the function, which NumPy can run."""
        assert donate_argnums in ((), (0, 1))
        return function

    def device_put(self, values, device):
        """Return the values, which must be bound to the first device."""
        assert device.device_kind == "a stand-in"
        return values

    def deserialize(self, content):
        """Return the program with a given name."""
        return types.SimpleNamespace(call=getattr(self, content.decode()))

    def jax(self):
        """Return a module with the functions of JAX that a run uses."""
        jax = types.ModuleType("jax")
        jax.numpy, jax.jit = np, self.jit
        jax.device_put = self.device_put
        device = types.SimpleNamespace(device_kind="a stand-in")
        jax.devices = lambda: [device, None]
        jax.options = {}
        jax.config = types.SimpleNamespace(update=jax.options.__setitem__)
        jax.export = types.ModuleType("jax.export")
        jax.export.deserialize = self.deserialize
        return jax


@pytest.fixture
def programs(monkeypatch):
    """Replace JAX, and advance the clock by half a second at each reading."""
    made = Programs()
    jax = made.jax()
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.export", jax.export)
    ticks = iter(np.arange(0, 1000, 0.5))
    clock = types.SimpleNamespace(monotonic=lambda: next(ticks))
    monkeypatch.setattr(run_step_module, "time", clock)
    return made


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Return a folder of 93 training and 11 held-out records."""
    folder = tmp_path_factory.mktemp("records")
    write_records(folder)
    vocabularies.english().save(str(folder))
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Return a folder with a checkpoint of the initial state."""
    folder = tmp_path_factory.mktemp("bundle")
    zeros = tf.zeros([2])
    state = {"w": tf.Variable(zeros), AVERAGE: tf.Variable(zeros)}
    state[ITERATIONS] = tf.Variable(0, dtype=tf.int64)
    checkpoints.save(str(folder), state)
    return folder


@pytest.fixture
def make(programs, bundle, records, tmp_path):
    """Return a function that writes a step file and returns run settings."""

    def make(output="model", sizes=(), tokens=8, config=None, **training):
        about = {
            "config": config or {"vocab_size": 128},
            "optimizer": {"optimizer": "lamb", "learning_rate": 0.5},
            "training": TRAINING | training,
            "examples": 4,
            "tokens": tokens,
            "arguments": [
                {"name": name, "shape": shape, "dtype": "float32"}
                for name, shape in (ARGUMENTS | dict(sizes)).items()
            ],
            "outputs": ["report", "norm", "w", AVERAGE, ITERATIONS],
            "evaluation": ["w", "input_ids", "example_weights"],
            "names": ["mlm_loss", "sop_loss", "accuracy"],
            "constants": {"optimizer/clock": [0.0, 0.0, 1.0]},
            "averages": {"w": AVERAGE},
            "facts": {"seed": [training.get("random_seed", 7), "other data"]},
            "flags": "--seed=7\n",
        }
        path = tmp_path / "step.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("step.jax", "step")
            archive.writestr("evaluation.jax", "evaluation")
            archive.writestr("step.json", json.dumps(about))
            for file in bundle.glob("ckpt-0.*"):
                archive.write(file, file.name)
        return {
            "step_file": str(path),
            "data_dir": str(records),
            "output_dir": str(tmp_path / output),
        }

    return make
