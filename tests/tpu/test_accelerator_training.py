"""A run of exported steps without TensorFlow, on CPUs."""

import dataclasses
import importlib.util
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tiny
from tiny_corpus import settings, write_corpus

from albert_tf.data import records
from albert_tf.data.builder import build
from albert_tf.data.records import input_pipeline
from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiled_step import Plan
from albert_tf.tpu.compiler import VERSIONS
from albert_tf.tpu.step_file import write_plan
from albert_tf.training.model_directory import checkpoints
from albert_tf.training.optimization.optimizers import OptimizerConfig
from albert_tf.training.step.training_config import TrainingConfig

SCRIPT = pathlib.Path(__file__).parents[2] / (
    "benchmarks/accelerator_training.py"
)
STEPS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Dynamic records of random words."""
    path = tmp_path_factory.mktemp("records")
    write_corpus(path)
    build.run(*settings(path, path / "out", masking="dynamic"))
    return str(path / "out")


@pytest.fixture(scope="module")
def script():
    """The benchmark as a module."""
    spec = importlib.util.spec_from_file_location("training", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unmasked(batch):
    """Return the rows of a batch, without masks, in a fixed order."""
    batch = {name: np.asarray(value) for name, value in batch.items()}
    ids, weights = batch["input_ids"].copy(), batch["masked_lm_weights"] > 0
    rows = np.nonzero(weights)[0]
    ids[rows, batch["masked_lm_positions"][weights]] = batch["masked_lm_ids"][
        weights
    ]
    parts = ids, batch["input_mask"], batch["segment_ids"]
    labels = batch["sentence_order_labels"][:, None]
    return np.array(sorted(np.hstack([*parts, labels]).tolist()))


def test_an_epoch_has_the_examples_of_the_input_pipeline(script, folder):
    """Each once, in an order of its own, with as many masked words."""
    metadata = records.find.read_metadata(folder)
    ours, count = script.Records(folder, 1), metadata.count(records.TRAIN)
    slots = metadata.max_predictions_per_seq
    theirs = input_pipeline.train_batches(
        folder, metadata, batch_size=count, seed=1
    )
    theirs = next(iter(theirs.take(1)))
    found = ours.batch(0, count, 0.15, slots)
    assert found.keys() == theirs.keys()
    np.testing.assert_array_equal(unmasked(found), unmasked(theirs))
    weights = found["masked_lm_weights"], theirs["masked_lm_weights"].numpy()
    assert weights[0].sum() == weights[1].sum()
    later = ours.batch(count // 2, count, 0.15, slots)
    half = count - count // 2
    for name in ("sentence_order_labels", "input_mask"):
        np.testing.assert_array_equal(
            later[name][:half], found[name][count // 2 :]
        )
    assert (ours.places(0, count) != ours.places(count, count)).any()


@pytest.mark.slow
def test_a_run_learns_without_tensorflow(folder, tmp_path):
    """Two phases of a step; the model directory has the last weights."""
    for package in VERSIONS:
        pytest.importorskip(package)
    config = dataclasses.replace(
        tiny.CONFIG, vocab_size=308, max_position_embeddings=32
    )
    config.save(tmp_path)
    optimizer = OptimizerConfig(learning_rate=0.02, num_warmup_steps=5)
    training = TrainingConfig(
        num_train_steps=2 * STEPS,
        train_batch_size=16,
        encoder_loop="unrolled",
        rematerialize="none",
    )
    plan = Plan(config, "none", optimizer, training, 32, 5)
    write_plan(str(tmp_path / "step.zip"), plan, parse("v5e:1x1"))
    without = (
        "import runpy, sys; sys.modules |= {'tensorflow': None}; "
        "sys.argv = sys.argv[1:]; sys.path.insert(0, '.'); "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )

    def run(*arguments, code=()):
        command = [sys.executable, *code, SCRIPT, *arguments]
        root = SCRIPT.parents[1]
        result = subprocess.run(
            command, capture_output=True, text=True, cwd=root
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    first, last = tmp_path / "first.npz", tmp_path / "last.npz"
    shape = tmp_path / "albert_config.json"
    run("begin", first, shape, folder)
    phase = f"{tmp_path}/step.zip,{STEPS},0.15,{folder}"
    said = run("train", first, last, phase, phase, code=("-c", without))
    losses = list(map(float, re.findall(r"mlm_loss (\S+),", said)))
    assert losses[1] < losses[0]
    run("end", last, shape, folder, tmp_path / "model")
    prefix = checkpoints.for_inference(str(tmp_path / "model"))
    read = checkpoints.reader(prefix)
    with np.load(first) as before, np.load(last) as after:
        for name in checkpoints.read_table(prefix):
            np.testing.assert_array_equal(read(name), after[name])
        moved = [(before[name] != after[name]).any() for name in after]
    assert all(moved)
