"""Training with exported steps, without TensorFlow, on CPUs."""

import argparse
import dataclasses
import importlib.util
import pathlib
import re
import subprocess
import sys
import types

import numpy as np
import pytest
import tiny
from tiny_corpus import settings, write_corpus

from albert_tf.base.errors import InputError
from albert_tf.data.builder import build
from albert_tf.data.records import input_pipeline
from albert_tf.data.records.metadata import TRAIN, read_metadata
from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiled_step import Plan, write_plan
from albert_tf.tpu.compiler import VERSIONS
from albert_tf.training import checkpoints
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.training_config import TrainingConfig

SCRIPT = pathlib.Path(__file__).parents[2] / (
    "benchmarks/accelerator_training.py"
)
STEPS = 50, 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return dynamic records of random words, masked only by [MASK]."""
    path = tmp_path_factory.mktemp("records")
    write_corpus(path)
    changes = {"masking": "dynamic", "mask_same_random": (1, 0, 0)}
    build.run(*settings(path, path / "out", **changes))
    return str(path / "out")


@pytest.fixture(scope="module")
def script():
    """Return the benchmark as a module."""
    spec = importlib.util.spec_from_file_location("training", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unmasked(batch):
    """Return the unmasked rows of a batch in a fixed order."""
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
    """An epoch contains the pipeline's examples, with as many masked words."""
    metadata = read_metadata(folder)
    ours, count = script.Records(folder, 1), metadata.count(TRAIN)
    theirs = input_pipeline.train_batches(
        folder, metadata, batch_size=count, seed=1
    )
    theirs = next(iter(theirs.take(1)))
    found = ours.batch(0, count, 0.15)
    assert found.keys() == theirs.keys()
    np.testing.assert_array_equal(unmasked(found), unmasked(theirs))
    weights = found["masked_lm_weights"], theirs["masked_lm_weights"].numpy()
    assert weights[0].sum() == weights[1].sum()
    later = ours.batch(count // 2, count, 0.15)
    half = count - count // 2
    for name in ("sentence_order_labels", "input_mask"):
        np.testing.assert_array_equal(
            later[name][:half], found[name][count // 2 :]
        )
    assert (ours.places(0, count) != ours.places(count, count)).any()


def test_a_phase_masks_as_its_records_say(script, folder):
    """A phase masks its share of words, with the mask kinds of the folder."""
    ours = script.Records(folder, 1)
    batch = ours.batch(7, 20, 0.3)
    weights = batch["masked_lm_weights"] > 0
    rows = np.nonzero(weights)[0]
    masked = batch["input_ids"][rows, batch["masked_lm_positions"][weights]]
    assert (masked == ours.tokenizer.mask_id).all()
    lengths = batch["input_mask"].sum(axis=1)
    assert weights.shape == (20, 10)
    np.testing.assert_array_equal(
        weights.sum(axis=1), np.clip(np.rint(lengths * 0.3), 1, 10)
    )


def test_what_cannot_run_is_refused(script, folder, tmp_path):
    """A wrong phase, records or step file is an error before any step."""
    with pytest.raises(argparse.ArgumentTypeError, match="STEP_FILE,STEPS,"):
        script.Phase.of("step.zip,few,0.15,records")
    write_corpus(tmp_path)
    build.run(*settings(tmp_path, tmp_path / "out"))
    with pytest.raises(InputError, match="with --masking=dynamic.*static"):
        script.Records(str(tmp_path / "out"), 1)
    phase = script.Phase.of(f"step.zip,9,0.3,{folder}")
    step = types.SimpleNamespace(tokens=32, predictions=5)
    message = (
        "32 tokens of the records, and the 10 pred.*step.zip, 32 tokens, 5"
    )
    with pytest.raises(InputError, match=message):
        script.check(phase, step, script.Records(folder, 1))


@pytest.mark.slow
def test_a_run_learns_without_tensorflow(folder, tmp_path):
    """Phases continue from each other; the model has the final weights."""
    for package in VERSIONS:
        pytest.importorskip(package)
    config = dataclasses.replace(
        tiny.CONFIG, vocab_size=308, max_position_embeddings=32
    )
    config.save(tmp_path)
    optimizer = OptimizerConfig(learning_rate=0.02, num_warmup_steps=5)
    training = TrainingConfig(
        num_train_steps=sum(STEPS),
        train_batch_size=16,
        encoder_loop="unrolled",
        rematerialize="none",
    )
    phases = []
    for layers, steps, predictions in zip((1, 2), STEPS, (10, 5), strict=True):
        shape = dataclasses.replace(config, num_hidden_layers=layers)
        plan = Plan(shape, "none", optimizer, training, 32, predictions)
        path = f"{tmp_path}/{layers}.zip"
        write_plan(path, plan, parse("v5e:1x1"))
        phases.append(f"{path},{steps},{predictions * 0.03},{folder}")
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
    shallow, deep = phases
    half = deep.replace(",100,", ",50,")
    ends = []
    for course, steps in (
        ([deep], ["100"]),
        ([half, half], ["50", "100"]),
        ([shallow, deep], ["50", "150"]),
    ):
        said = run("train", first, last, *course, code=("-c", without))
        assert re.findall("(.*) steps", said) == steps
        losses = list(map(float, re.findall(r"mlm_loss (\S+),", said)))
        if course == [half, half]:
            assert losses[1] < losses[0]
        with np.load(last) as file:
            ends.append(dict(file))
    whole, halves, changed = ends
    for name, value in whole.items():
        np.testing.assert_array_equal(value, halves[name])
        assert (value != changed[name]).any()
    run("end", last, shape, folder, tmp_path / "model")
    prefix = checkpoints.for_inference(str(tmp_path / "model"))
    read = checkpoints.reader(prefix)
    with np.load(first) as before, np.load(last) as after:
        for name in checkpoints.read_table(prefix):
            np.testing.assert_array_equal(read(name), after[name])
        moved = [(before[name] != after[name]).any() for name in after]
    assert all(moved)
