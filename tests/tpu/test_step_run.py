"""Runs of step files, with stand-ins for JAX and for the files' programs."""

import dataclasses
import json
import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf
import vocabularies

from albert_tf.base import interrupts
from albert_tf.base.errors import InputError
from albert_tf.data.records.metadata import read_metadata
from albert_tf.text.tokenizers import tokenizer_in
from albert_tf.tpu import run_step as run_step_module
from albert_tf.tpu import tensor_bundle
from albert_tf.tpu.run_step import (
    Run,
    RunStepConfig,
    StepFile,
    records_of,
    run_step,
)
from albert_tf.training import checkpoint_files, checkpoints, health
from albert_tf.training.history import History

AVERAGE, ITERATIONS = "optimizer/average/w", "optimizer/iterations"


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
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "4 examples of 8 tokens per step, float32, lamb at 0.5, on a stand-in",
        *("loss = 2.5000", "mlm_loss = 2.5000", "sop_loss = 0.0000"),
        "accuracy = 98.0000",
    ]
    first, *_, last = printed.err.splitlines()
    assert first.startswith("step 3: loss 1.5000, mlm_loss 1.5000, sop_loss")
    assert "5/5 loss 4.000 (mean of 1), 8.0 examples/s" in printed.err
    assert last.startswith("step 5: loss 2.5000")
    assert len({number for batch in programs.read for number in batch}) == 20


def test_a_stopped_run_resumes_where_it_was(make, programs, tmp_path, capsys):
    """A resumed run reads the next records, as an uninterrupted run does.

    Both runs end with the same state. The order of the records depends on the
    seed.
    """
    run_step(**make("whole"))
    whole = programs.read.copy()
    programs.read.clear()
    run_step(**make("other", random_seed=8))
    assert len(programs.read) == len(whole) and programs.read != whole
    programs.read.clear()
    run_step(**make("broken"), stop_step=3)
    assert state_of(tmp_path / "broken")["w"] == [3, 3]
    capsys.readouterr()
    run_step(**make("broken"))
    assert programs.read == whole
    assert state_of(tmp_path / "broken") == state_of(tmp_path / "whole")
    (printed,) = (
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("Resuming")
    )
    assert (
        "at step 3 from" in printed
        and "broken/ckpt-3, at example 12" in printed
    )
    rows = History.read(str(tmp_path / "broken")).rows
    assert [row["step"] for row in rows if row["split"] == "eval"] == [3, 5]
    made = len(programs.read)
    run_step(**make("broken", random_seed=8), stop_step=9)
    assert len(programs.read) == made  # nothing is left to train
    printed = capsys.readouterr()
    assert "Note: seed was 7 and is 8: other data\n" in printed.err
    assert "Stopped" not in printed.out


def test_a_signal_in_the_last_step_stops_nothing(make, programs, capsys):
    """A run whose last step ends after a signal is complete."""

    def stop(*made):
        os.kill(os.getpid(), signal.SIGTERM)
        return made

    programs.faults[4] = stop
    assert run_step(**make()).metrics["eval"]["loss"] == 2.5
    assert "Stopped" not in capsys.readouterr().out


@pytest.mark.parametrize("number", run_step_module.SIGNALS)
def test_a_signal_saves_and_stops(
    monkeypatch, make, programs, tmp_path, capsys, number
):
    """After a signal, a run saves and prints how to resume it."""
    monkeypatch.setattr(interrupts, "_leave_terminal", lambda: None)
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
    message = (
        f"Stopped at step 3 of 5; the same command resumes from {tmp_path}"
    )
    assert message in capsys.readouterr().out


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
    make, programs, tmp_path, capsys, fault
):
    """The error for values that are not finite names the steps.

    If such a step is skipped, the means do not include the step. If all steps
    of a window are skipped, there are no means to record.
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
    assert [row["step"] for row in rows if row["split"] == "train"] == [2]
    assert "1 update skipped: not finite" in capsys.readouterr().err


def test_held_out_metrics_that_are_not_finite_end_a_run(make, programs):
    """Held-out metrics that are not finite are an error, not a result."""
    programs.evaluation = lambda *_: (np.full([2, 3], np.nan, np.float32),)
    with pytest.raises(InputError, match="not finite"):
        run_step(**make())


@pytest.mark.parametrize("loop", [1, 2])
def test_only_updates_skipped_in_a_row_end_a_run(
    make, programs, monkeypatch, loop
):
    """Two skipped updates in a row end a run, in one window or in two."""
    monkeypatch.setattr(health, "MAX_BAD_STEPS", 2)
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

    If both are listed, the fingerprint counts. The run reads other records from
    example 0, and keeps the positions in all records. If the checkpoint lists
    no records, all of its steps count as steps on the records of the resumed
    run.
    """
    settings = make()
    run_step(**settings, stop_step=2)
    prefix = str(tmp_path / "model" / "ckpt-2")
    assert opened(settings).position == 8
    copy = shutil.copytree(records, tmp_path / "copy")
    assert opened(settings, data_dir=str(copy)).position == 8
    mine = read_metadata(str(records)).fingerprint()
    for read, position in (
        ({str(copy): 3}, 3),
        ({str(copy): 3, mine: 5}, 5),
        ({}, 8),
        ({"x": 9}, 0),
    ):
        checkpoint_files.write_about(prefix, {"read": read})
        assert opened(settings, data_dir=str(copy)).position == position
    run_step(**settings, stop_step=3)
    facts = checkpoint_files.read_facts(str(tmp_path / "model" / "ckpt-3"))
    assert facts["read"] == {"x": 9, mine: 4, str(records): 4}


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
    """The error for another model's checkpoint names variables that differ.

    They differ if only their shapes do.
    """
    other = {"w": tf.zeros([3]), "a": tf.zeros([]), "b": tf.zeros([])}
    wider = {"w": tf.zeros([3]), AVERAGE: tf.zeros([2])}
    wider[ITERATIONS] = tf.zeros([], tf.int64)
    for values, names in ((other, f"a, b, {AVERAGE}"), (wider, "w")):
        table = {name: tf.Variable(value) for name, value in values.items()}
        checkpoints.save(str(tmp_path / "model"), table)
        differs = f"model/ckpt-0, which differs in {names}$"
        with pytest.raises(InputError, match=differs):
            run_step(**make())


def test_the_files_of_another_run_are_refused(make, tmp_path):
    """A new run does not overwrite another run, or another tokenizer's model.

    A config without weights may be replaced.
    """
    path = tmp_path / "new" / "albert_config.json"
    path.parent.mkdir()
    path.write_text('{"vocab_size": 5}')
    run_step(**make("new"), stop_step=1)
    assert json.loads(path.read_text()) == {"vocab_size": 128}
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "task.json").write_text("{}")
    with pytest.raises(InputError, match="tuned with task.json$"):
        run_step(**make("tuned"))
    (tmp_path / "chinese").mkdir()
    vocabularies.chinese().save(str(tmp_path / "chinese"))
    with pytest.raises(InputError, match="another tok.*chinese with .*vocab"):
        run_step(**make("chinese"))
    assert not (tmp_path / "chinese" / "albert_config.json").exists()


def test_a_run_of_another_architecture_is_refused(make, tmp_path):
    """A config that differs in more than the layers is not overwritten.

    The shapes of the weights do not reveal, for example, the number of heads.
    """
    path = tmp_path / "model" / "albert_config.json"
    sizes = {"vocab_size": 128, "num_attention_heads": 3}
    sizes["num_hidden_layers"] = 2
    deeper, other = {"num_hidden_layers": 9}, {"num_attention_heads": 2}
    run_step(**make(config=sizes), stop_step=1)
    run_step(**make(config=sizes | deeper), stop_step=2)
    assert json.loads(path.read_text()) == sizes | deeper
    run_step(**make(config=sizes), stop_step=3)
    message = "model with num_attention_heads=3 instead of 2$"
    with pytest.raises(InputError, match=message):
        run_step(**make(config=sizes | other), stop_step=4)
    assert json.loads(path.read_text()) == sizes
    assert state_of(tmp_path / "model")["w"] == [3, 3]


def test_a_complete_run_keeps_its_files(make, records, tmp_path, capsys):
    """Repeating a completed run with different records changes no file."""
    run_step(**make(), stop_step=2)
    folder = tmp_path / "model"
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    copy = shutil.copytree(records, tmp_path / "copy")
    run_step(**make() | {"data_dir": str(copy)}, stop_step=2)
    after = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert after == before
    assert "Nothing left to train: 2 steps are" in capsys.readouterr().out
