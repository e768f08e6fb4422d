"""A step that is exported to a file for JAX equals the trainer's step."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tiny

from albert_tf.base.errors import InputError
from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiled_step import Plan, Step, write_step
from albert_tf.tpu.compiler import EXTRAS
from albert_tf.tpu.run_step import StepFile
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.training_config import TrainingConfig

BENCHMARK = pathlib.Path(__file__).parents[2] / "benchmarks"
TRAINING = {"encoder_loop": "unrolled", "rematerialize": "none"}
OPTIMIZER = OptimizerConfig(learning_rate=0.01, num_warmup_steps=5)


def plan() -> Plan:
    """Return a plan for the tiny model and batches from `tiny.make_data`."""
    training = TrainingConfig(**tiny.TRAINING | TRAINING)
    return Plan(tiny.CONFIG, "none", OPTIMIZER, training, 8, 3)


def test_a_step_of_several_replicas_is_refused(tmp_path):
    """A step of several replicas cannot be exported."""
    with pytest.raises(InputError, match="topology=v5e:2x4, 8 replicas"):
        write_step(str(tmp_path / "step.zip"), Step(plan(), parse("v5e-8")))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Return the path of the tiny model's step file."""
    for package in EXTRAS["step-file"]:
        pytest.importorskip(package)
    path = tmp_path_factory.mktemp("step") / "step.zip"
    write_step(str(path), Step(plan(), parse("v5e:1x1")))
    return path


@pytest.mark.slow
def test_the_file_is_the_step_of_the_trainer(file):
    """A step of the file computes the results of the trainer's step.

    All variables and outputs are compared, for equal weights and batches.
    """
    trainer = tiny.make_trainer(
        config=tiny.CONFIG, optimizer=OPTIMIZER, **TRAINING
    )
    before = tiny.values(trainer) | {
        "optimizer/rate_factor": np.float32(1),
        "optimizer/clock": np.array([0, 0, 1], np.float32),
    }
    batch = next(iter(tiny.train_batches(0, 1, 0, 16)))
    step = StepFile(str(file))
    values = before | {name: x.numpy() for name, x in batch.items()}
    with step.jax.enable_x64(True):
        program = step.jax.export.deserialize(bytearray(step.programs[0]))
        made = program.call(*(values[name] for name in step.shapes))
        outputs = dict(zip(step.info["outputs"], made, strict=True))
    iterator = trainer.iterator(tiny.train_batches, 0)
    sums = trainer.run_steps(iterator, tf.constant(1))
    after = tiny.values(trainer)
    moved = {name for name in after if name in outputs}
    assert moved == after.keys()
    expected = after | {"report": sums.report, "norm": sums.norm}
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, 1e-4, 1e-6, name)
    assert max(np.abs(after[n] - before[n]).max() for n in moved) > 1e-3


@pytest.mark.slow
def test_the_benchmark_needs_no_tensorflow(file):
    """Without TensorFlow, `accelerator_step.py` times and compares a step."""
    code = (
        "import runpy, sys; sys.modules |= {'tensorflow': None}; "
        f"sys.argv = sys.argv[1:]; sys.path.append({str(BENCHMARK)!r}); "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    script = BENCHMARK / "accelerator_step.py"
    result = subprocess.run(
        [sys.executable, "-c", code, script, file, "--rounds=2"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "16 x 8 tokens, float32, lamb, unrolled loop" in result.stdout
    assert "relative differences of 99 outputs from the CPU's" in result.stdout
    assert "| this file | " in result.stdout
