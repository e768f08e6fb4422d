"""Step files are run with stand-ins for JAX and for the files' programs."""

import dataclasses
import json
import os
import shutil
import signal
import sys
import types
import zipfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import vocabularies
from tiny_records import write_records

from albert_tf.base.errors import InputError
from albert_tf.data.records.metadata import Metadata, read_metadata
from albert_tf.text.tokenizers import tokenizer_in
from albert_tf.tpu import run_step as run_step_module
from albert_tf.tpu import tensor_bundle
from albert_tf.tpu.run_step import (
    Run,
    RunStepConfig,
    StepFile,
    jax_for_steps,
    records_of,
    run_step,
)
from albert_tf.training import checkpoint_files, checkpoints
from albert_tf.training.history import History

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
    "eval_batch_size": 4,
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


@pytest.fixture(autouse=True)
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
def make(bundle, records, tmp_path):
    """Return a function that writes a step file and returns run settings."""

    def make(output="model", arguments=ARGUMENTS, tokens=8, **training):
        about = {
            "config": {"vocab_size": 128},
            "optimizer": {"optimizer": "lamb", "learning_rate": 0.5},
            "training": TRAINING | training,
            "examples": 4,
            "tokens": tokens,
            "arguments": [
                {"name": name, "shape": shape, "dtype": "float32"}
                for name, shape in arguments.items()
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


def state_of(folder):
    """Return {name: value as a list} of the newest checkpoint."""
    prefix = checkpoint_files.latest(str(folder))
    values = tensor_bundle.read(prefix).items()
    return {name: value.tolist() for name, value in values}


def test_a_run_saves_evaluates_and_describes_itself(
    make, programs, tmp_path, capsys, records
):
    """A run writes a model directory with averages, history and settings."""
    result = run_step(**make())
    folder = tmp_path / "model"
    rows = History.read(str(folder)).rows
    # The average is half of the weights after 3 or 5 steps.
    held_out = [
        {"loss": x, "mlm_loss": x, "sop_loss": 0.0, "accuracy": 98.0}
        for x in (1.5, 2.5)
    ]
    found = [row for row in rows if row["split"] == "eval"]
    assert found == [
        {"step": step, "split": "eval"} | values
        for step, values in zip((3, 5), held_out, strict=True)
    ]
    assert result.metrics == {"eval": held_out[1]}
    train = [row for row in rows if row["split"] == "train"]
    assert [row["step"] for row in train] == [2, 3, 4, 5]
    assert [row["steps"] for row in train] == [2, 1, 1, 1]
    means = {"loss": 4.0, "mlm_loss": 3.0, "sop_loss": 1.0, "accuracy": 0.25}
    speed = {"gradient_norm": 2.0, "examples_per_second": 16.0}
    first = {"step": 2, "split": "train", "steps": 2}
    assert train[0] == first | means | speed
    assert [row["gradient_norm"] for row in train] == [2, 3, 4, 5]
    names = {p.name for p in folder.glob("ckpt-*.index")}
    assert names == {"ckpt-4.index", "ckpt-5.index"}
    assert state_of(folder) == {"w": [5, 5], AVERAGE: [2.5, 2.5], ITERATIONS: 5}
    (best,) = (folder / "best").glob("ckpt-*.index")
    assert best.name == "ckpt-5.index"
    assert state_of(folder / "best")["w"] == [2.5, 2.5]
    facts = checkpoint_files.read_facts(str(folder / "ckpt-5"))
    fingerprint = read_metadata(str(records)).fingerprint()
    assert facts == {"seed": 7, "read": {fingerprint: 20, str(records): 20}}
    config = json.loads((folder / "albert_config.json").read_text())
    assert config == {"vocab_size": 128} and tokenizer_in(str(folder))
    flags = f"--data_dir={records}\n--output_dir={folder}\n--seed=7\n"
    assert (folder / "run.flags").read_text() == flags
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "4 examples of 8 tokens a step, float32, lamb at 0.5, on a stand-in",
        *("loss = 2.5000", "mlm_loss = 2.5000", "sop_loss = 0.0000"),
        "accuracy = 98.0000",
    ]
    first, *_, last = told.err.splitlines()
    assert first.startswith("step 3: loss 1.5000, mlm_loss 1.5000, sop_loss")
    assert "5/5 loss 4.000 (mean of 1), 8.0 examples/s" in told.err
    assert last.startswith("step 5: loss 2.5000")
    assert len({number for batch in programs.read for number in batch}) == 20


def test_a_stopped_run_resumes_where_it_was(make, programs, tmp_path, capsys):
    """A resumed run reads the next records, as an uninterrupted run does.

    Both runs end with the same state.
    """
    run_step(**make("whole"))
    whole = programs.read.copy()
    programs.read.clear()
    run_step(**make("broken"), stop_step=3)
    assert state_of(tmp_path / "broken")["w"] == [3, 3]
    capsys.readouterr()
    run_step(**make("broken"))
    assert programs.read == whole
    assert state_of(tmp_path / "broken") == state_of(tmp_path / "whole")
    (told,) = (
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("Resuming")
    )
    assert "at step 3 from" in told and "broken/ckpt-3, at example 12" in told
    rows = History.read(str(tmp_path / "broken")).rows
    assert [row["step"] for row in rows if row["split"] == "eval"] == [3, 5]
    made = len(programs.read)
    run_step(**make("broken", random_seed=8), stop_step=9)
    assert len(programs.read) == made  # nothing is left to train
    told = capsys.readouterr()
    assert "Note: seed was 7 and is 8: other data\n" in told.err
    assert "Stopped" not in told.out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops(make, programs, tmp_path, capsys, number):
    """After a signal, a run saves and prints how to resume it."""
    before = [signal.getsignal(n) for n in run_step_module.SIGNALS]

    def stop(*made):
        os.kill(os.getpid(), number)
        return made

    programs.faults[2] = stop
    settings = make(steps_per_loop=1)
    if number == signal.SIGINT:
        with pytest.raises(KeyboardInterrupt):
            run_step(**settings)
    else:
        run_step(**settings)
    assert [signal.getsignal(n) for n in run_step_module.SIGNALS] == before
    assert state_of(tmp_path / "model")["w"] == [3, 3]
    said = f"Stopped at step 3 of 5; the same command resumes from {tmp_path}"
    assert said in capsys.readouterr().out


def test_a_moved_folder_ends_a_run(make, programs, tmp_path):
    """A run whose folder is moved fails and does not create a new folder."""
    folder, moved = tmp_path / "model", tmp_path / "moved"

    def move(*made):
        folder.rename(moved)
        return made

    programs.faults[2] = move
    with pytest.raises(InputError, match=f"move it back.*={folder}$"):
        run_step(**make())
    assert not folder.exists() and state_of(moved)["w"] == [2, 2]


FAULTS = {
    "report": lambda report, norm: (report * np.float32("inf"), norm),
    "norm": lambda report, norm: (report, np.float32("nan")),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_step_that_is_not_finite_stops_or_is_skipped(
    make, programs, tmp_path, fault
):
    """The error for values that are not finite names the steps.

    If such a step is skipped, the means do not include the step.
    """
    programs.faults[1] = fault
    with pytest.raises(InputError, match="in steps 1 to 2; .*: none yet$"):
        run_step(**make())
    skips = make("skips", on_nonfinite="skip")
    run_step(**skips, stop_step=2)
    row = History.read(str(tmp_path / "skips")).rows[0]
    assert row["skipped_updates"] == 1 and row["gradient_norm"] == 1.0
    assert (row["loss"], row["accuracy"]) == (4.0, 0.25)
    programs.faults[2] = fault
    run_step(**skips, stop_step=3)  # a window in which each step is skipped
    rows = History.read(str(tmp_path / "skips")).rows
    skipped = [row.get("skipped_updates") for row in rows]
    assert skipped.count(1) == 2


@pytest.mark.parametrize("loop", [1, 2])
def test_only_updates_skipped_in_a_row_end_a_run(
    make, programs, monkeypatch, loop
):
    """Two skipped updates in a row end a run, in one window or in two."""
    monkeypatch.setattr(run_step_module, "MAX_BAD_STEPS", 2)
    settings = {"on_nonfinite": "skip", "steps_per_loop": loop}
    programs.faults = dict.fromkeys([0, 2, 4], FAULTS["norm"])
    run_step(**make("apart", **settings))
    programs.faults = dict.fromkeys(range(5), FAULTS["norm"])
    with pytest.raises(InputError, match="in all of the last 2 steps; .*"):
        run_step(**make("in_a_row", **settings))


def test_a_missing_config_is_written_again(make, tmp_path):
    """A run may resume from its checkpoints alone; the config is restored."""
    settings = make()
    run_step(**settings, stop_step=2)
    path = tmp_path / "model" / "albert_config.json"
    path.unlink()
    run_step(**settings)
    assert path.exists() and state_of(tmp_path / "model")["w"] == [5, 5]


def opened(settings, **more):
    """Return a run that has not trained yet."""
    config = RunStepConfig(**settings | more)
    step = StepFile(config.step_file)
    return Run(config, step, records_of(config, step))


def test_a_run_knows_its_place_in_the_records(make, records, tmp_path):
    """A run continues records whose path or fingerprint its checkpoint lists.

    Other records begin at example 0. If the checkpoint lists no records, all of
    its steps count as steps on these records.
    """
    settings = make()
    run_step(**settings, stop_step=2)
    prefix = str(tmp_path / "model" / "ckpt-2")
    assert opened(settings).position == 8
    copy = shutil.copytree(records, tmp_path / "copy")
    assert opened(settings, data_dir=str(copy)).position == 8
    for read, position in (({str(copy): 3}, 3), ({"x": 9}, 0), ({}, 8)):
        checkpoint_files.write_about(prefix, {"read": read})
        assert opened(settings, data_dir=str(copy)).position == position


def test_a_run_without_held_out_records_has_no_metrics(
    make, records, tmp_path, capsys
):
    """Without held-out records, a run only trains; a tokenizer is optional."""
    folder = shutil.copytree(records, tmp_path / "records")
    (folder / "tokenizer.json").unlink()
    metadata = read_metadata(str(records))
    splits = metadata.splits | {"eval": ()}
    dataclasses.replace(metadata, splits=splits).write(str(folder))
    result = run_step(**make() | {"data_dir": str(folder)}, stop_step=1)
    assert result.metrics == {} and "=" not in capsys.readouterr().out
    assert state_of(tmp_path / "model")["w"] == [1, 1]
    assert not tokenizer_in(str(tmp_path / "model"))


def test_a_run_of_another_model_is_refused(make, tmp_path):
    """The error for a checkpoint of another model names differing variables."""
    other = {"w": tf.zeros([3]), "a": tf.zeros([]), "b": tf.zeros([])}
    table = {name: tf.Variable(value) for name, value in other.items()}
    checkpoints.save(str(tmp_path / "model"), table)
    differs = f"model/ckpt-0, which differs in a, b, {AVERAGE}$"
    with pytest.raises(InputError, match=differs):
        run_step(**make())


@pytest.mark.parametrize(
    "slots, tokens, said",
    [(2, 8, None), (1, 8, "8 tokens, 2 predictions"), (3, 9, "8 tokens, 2")],
)
def test_records_must_fit_the_step(make, slots, tokens, said):
    """Records may have as many predictions as the step, but no more.

    The numbers of tokens must be equal.
    """
    sizes = {"masked_lm_ids": [4, slots]}
    settings = make(arguments=ARGUMENTS | sizes, tokens=tokens)
    step = StepFile(settings["step_file"])
    batch = {
        "input_ids": np.ones([4, 8], np.int32),
        "masked_lm_ids": np.ones([4, 2], np.int32),
    }
    if said:
        rule = f"{tokens} tokens and at most {slots} pred.*records={said}"
        with pytest.raises(InputError, match=rule):
            step.fitted(batch)
        return
    for name, value in step.fitted(batch).items():
        np.testing.assert_array_equal(value, batch[name], strict=True)


def test_records_must_suit_the_step(tmp_path, records):
    """Records must be of words, with a vocabulary no larger than the model's.

    Only records with dynamic masks may be trained with another mask rate.
    """
    folder = tmp_path / "dynamic"
    folder.mkdir()
    dynamic = {"masking": "dynamic"}
    Metadata(64, 9, 50, "", {"train": (), "eval": ()}, dynamic).write(
        str(folder)
    )
    paths = {"step_file": "x", "output_dir": "x"}
    config = RunStepConfig(data_dir=str(folder), masked_lm_prob=0.3, **paths)
    step = mock.Mock(info={"config": {"vocab_size": 50}})
    assert records_of(config, step).max_predictions_per_seq == 19
    config = dataclasses.replace(config, masked_lm_prob=0.0)
    assert records_of(config, step).max_predictions_per_seq == 9
    step.info["config"]["vocab_size"] = 49
    with pytest.raises(InputError, match="`vocab_size`, 49.*vocab_size=50$"):
        records_of(config, step)
    static = RunStepConfig(data_dir=str(records), masked_lm_prob=0.3, **paths)
    with pytest.raises(InputError, match=f"data_dir={records}, static$"):
        records_of(static, step)
    phonemes = {"task": "phonemes", "masking": "dynamic"}
    labels = {"word_labels": 4, "by_frequency": {"masked_symbol_accuracy": 0.1}}
    Metadata(64, 9, 50, "", {"train": (), "eval": ()}, phonemes, labels).write(
        str(folder)
    )
    with pytest.raises(InputError, match=f"task=words.*data_dir={folder}$"):
        records_of(config, step)


@pytest.mark.parametrize(
    "sizes, tokens, said",
    [([4, 1], 8, "at most 1 pred"), ([4, 3], 9, "must have 9 tokens")],
)
def test_records_are_checked_before_a_run_writes(
    make, tmp_path, sizes, tokens, said
):
    """Records that do not fit the step raise an error before a run writes."""
    arguments = ARGUMENTS | {"masked_lm_ids": sizes}
    with pytest.raises(InputError, match=said):
        run_step(**make(arguments=arguments, tokens=tokens))
    assert not (tmp_path / "model").exists()


def test_a_complete_run_keeps_its_files(make, records, tmp_path, capsys):
    """Repeating a complete run with other records changes no file."""
    run_step(**make(), stop_step=2)
    folder = tmp_path / "model"
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    copy = shutil.copytree(records, tmp_path / "copy")
    run_step(**make() | {"data_dir": str(copy)}, stop_step=2)
    after = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert after == before
    assert "Nothing left to train: 2 steps are" in capsys.readouterr().out


def test_what_is_no_step_file_is_one_error(make, tmp_path):
    """The error names a step file that is not an archive or lacks a part."""
    path = tmp_path / "step.zip"
    with pytest.raises(InputError, match=f"`step_file` must be .*{path}$"):
        StepFile(str(path))
    path.write_text("no archive")
    with pytest.raises(InputError, match=f"must be a file .*{path}$"):
        StepFile(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("step.jax", "step")
    with pytest.raises(InputError, match=f"'step.json'.*{path}$"):
        StepFile(str(path))


def test_jax_is_imported_with_long_integers(monkeypatch):
    """JAX is imported with 64-bit integers.

    If JAX is missing, the error states what to install.
    """
    assert jax_for_steps().options == {"jax_enable_x64": True}
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(InputError, match="install `flatbuffers` and `jax`"):
        jax_for_steps()


@pytest.mark.parametrize(("share", "slots"), [(0.0, 19), (0.3, 9)])
def test_held_out_records_have_the_stored_share(
    monkeypatch, tmp_path, share, slots
):
    """`masked_lm_prob` does not change the number of held-out predictions."""
    dynamic = {"masking": "dynamic"}
    splits = {"train": (), "eval": ()}
    stored = Metadata(64, 9, 50, "", splits, dynamic)
    stored.write(str(tmp_path))
    run, stream = mock.MagicMock(), mock.MagicMock()
    run.metadata, run.config.masked_lm_prob = stored.masked_at(0.3), share
    run.config.data_dir = str(tmp_path)
    run.file.summarize.return_value = {"loss": 1.0}
    monkeypatch.setattr(run_step_module, "RecordStream", stream)
    run_step_module.Run.evaluate(run)
    (_, records, _), _ = stream.call_args
    assert records.max_predictions_per_seq == slots
