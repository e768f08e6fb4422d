"""Complete runs are not repeated, and keep the settings that they used."""

import json
import os
import shutil

import pytest
from conversions import update
from tiny_runs import eagerly, refusal, run

from albert_tf.base import files
from albert_tf.finetuning.evaluation import TaskEvaluator
from albert_tf.training import checkpoints
from albert_tf.training.history import History


def contents(folder):
    """Return the content of each file in a folder."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


@pytest.fixture
def repeat(copy, pretrained, opinions):
    """Return the arguments that train again in the folder `copy`."""
    values = {"model_dir": pretrained, "output_dir": str(copy)}
    return opinions | values | {"do_train": True}


def test_a_refused_run_leaves_the_folder_as_it_was(copy, repeat):
    """A run that fails because its folder is in use writes no flags."""
    before = contents(copy)
    with files.locked(str(copy), "output_dir"):
        message = refusal(**repeat, random_seed=7)
    assert "another run is still writing" in message
    assert contents(copy) == before


@pytest.mark.parametrize("part", ["do_train", "do_eval"])
def test_a_folder_without_permission_is_found_early(repeat, part, monkeypatch):
    """A folder that cannot be written is found before any evaluation."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(TaskEvaluator, "evaluate", None)
    message = refusal(**repeat | {"do_train": False} | {part: True})
    assert message.startswith("`output_dir` must be writable.")


def test_a_finished_run_is_not_repeated(
    copy, repeat, finished, capsys, monkeypatch
):
    """A repetition of a finished run only evaluates and prints advice.

    The run reads the checkpoint with the first weights only once.
    """
    before, folders = History(str(copy), 60).rows, []
    for_inference = checkpoints.for_inference
    monkeypatch.setattr(
        checkpoints,
        "for_inference",
        lambda folder: folders.append(folder) or for_inference(folder),
    )
    metrics = run(**repeat, do_eval=True)
    assert folders.count(repeat["model_dir"]) == 1
    assert metrics["eval"] == finished[1]["eval"]
    assert History(str(copy), 60).rows == before
    printed = capsys.readouterr().out
    assert printed.count("Note: at learning rate 0.01") == 1
    assert f"eval accuracy = {metrics['eval']['accuracy']:.6g}\n" in printed


def test_a_finished_run_does_not_claim_other_examples(
    copy, repeat, opinions, capsys
):
    """After a completed run, different training examples raise an error.

    The card and the flags still describe the examples that were used. The error
    names everything that differs. Different examples for evaluation lead to a
    note.
    """
    before, other = contents(copy), opinions["predict_file"]
    message = refusal(**repeat | {"train_file": other}, learning_rate=0.5)
    assert "other training examples" in message
    for name in ("learning_rate was 0.01", "train data of classification was"):
        assert name in message
    assert contents(copy) == before
    capsys.readouterr()
    run(**repeat | {"eval_file": other}, do_eval=True)
    printed = capsys.readouterr().err
    assert "Note: eval data of classification was 53 examples" in printed
    assert "`best` compares evaluations of different examples" in printed
    assert "Note: train data" not in printed


@pytest.mark.parametrize(
    ("other", "change"),
    [
        ({"learning_rate": 0.5}, "learning_rate was 0.01 and is 0.5: "),
        ({"label_smoothing": 0.5}, "label_smoothing was 0.0 and is 0.5: "),
        ({"num_train_steps": 40}, "num_train_steps was 60 and is 40: "),
        ({"random_seed": 5}, "random_seed was 12345 and is 5: "),
        (
            {"length_bucketing": "all"},
            "length_bucketing=all was False and is True: ",
        ),
    ],
)
def test_a_finished_run_does_not_claim_other_settings(
    copy, repeat, other, change
):
    """After a completed run, new settings that affect weights are an error.

    Settings that affect only rounding, and the precision, may change. In either
    case, `run.flags` still has the flags that were used.
    """
    before = (copy / "run.flags").read_text("utf-8")
    message = refusal(**repeat, **other)
    assert "with other settings; choose another folder" in message
    assert f", where {change}" in message
    run(**repeat, gradient_accumulation_steps=2, length_bucketing="none")
    run(**repeat, dtype="bfloat16")
    assert (copy / "run.flags").read_text("utf-8") == before


@pytest.mark.parametrize("steps", [60, 70])
def test_a_run_does_not_claim_other_first_weights(
    copy, repeat, finished, steps
):
    """In a run's folder, a different `model_dir` or `init` is an error.

    Otherwise, the run would keep its weights, and attribute their results to
    the other model or to random weights.
    """
    repeat |= {"num_train_steps": steps}
    before = contents(copy)
    other = finished[0]
    message = refusal(**repeat | {"model_dir": other})
    assert (
        "`output_dir` contains a run that began with other weights" in message
    )
    assert "from step " in message and f"model_dir={other} with step" in message
    message = refusal(**repeat, init="random")
    assert message.endswith(f"model_dir={repeat['model_dir']} with random")
    assert contents(copy) == before


@pytest.mark.slow
@eagerly()
def test_a_finished_run_does_not_claim_another_teacher(
    finished, copy, repeat, tmp_path
):
    """After a completed run, a teacher with different weights is an error.

    The teacher's folder may differ, except in runs of earlier versions, which
    recorded only the folder.
    """
    student = tmp_path / "student"
    repeat |= {"output_dir": str(student), "num_train_steps": 1}
    run(**repeat, teacher=finished[0])
    run(**repeat, teacher=str(copy))
    (path,) = student.glob("ckpt-*.json")
    recorded = path.read_text()
    facts = json.loads(recorded)["about"]
    del facts["teacher weights"]
    update(path, about=facts)
    for teacher in (str(copy), None):
        message = refusal(**repeat, teacher=teacher)
        assert f"where teacher was {finished[0]} and is {teacher}" in message
    path.write_text(recorded)
    shutil.rmtree(copy / checkpoints.BEST)
    message = refusal(**repeat, teacher=str(copy))
    assert "where teacher weights was step " in message
    assert message.endswith(": another recipe")
