"""Loss traces are complete and are compared correctly."""

import dataclasses

import numpy as np
import pytest
from project_file import ROOT
from traces import comparison, runs

from albert_tf.tasks.registry import TASKS

HERE = {"tensorflow": "2", "processor": "this one"}
ELSEWHERE = HERE | {"processor": "another one"}
RECORDED = comparison.Recorded(
    machine=HERE,
    recipes=["base"],
    rows=[
        {"loss": 4.0 - step / 8, "rate": 0.5, "gradient_norm": 2.0}
        for step in range(22)
    ],
    evaluation={"loss": 3.0, "accuracy": 0.5},
)


def changed(step, name, factor, machine=HERE):
    """Return a run in which a value of one step is multiplied by `factor`."""
    rows = [dict(row) for row in RECORDED.rows]
    rows[step][name] *= factor
    return dataclasses.replace(RECORDED, rows=rows, machine=machine)


def test_the_recording_machine_compares_bits():
    """On the machine that recorded a trace, the smallest change is found."""
    least = float(np.nextafter(np.float32(0.5), np.float32(1))) / 0.5
    found = comparison.first_difference(RECORDED, changed(3, "rate", least))
    assert found.startswith("step 4: rate is 0.5000000596")
    assert comparison.first_difference(RECORDED, RECORDED) is None


def renamed(run, **names):
    """Return a run whose values have other names."""
    rows = [{names.get(k, k): x for k, x in row.items()} for row in run.rows]
    return dataclasses.replace(run, rows=rows)


@pytest.mark.parametrize("loss", ["loss", "task_loss"])
def test_another_machine_compares_to_a_tolerance(loss):
    """On other machines, values may differ within the tolerances.

    The tolerances are larger after the first 20 steps of fine-tuning.
    """
    tuned = loss == "task_loss"
    for name, step, near, far in (
        ("loss", 1, 1.001, 1.02),
        ("loss", 19, 1.001, 1.02),
        ("loss", 20, *((1.2, 1.3) if tuned else (1.001, 1.02))),
        ("rate", 1, 0.999, 0.98),
        ("rate", 20, 0.999, 0.98),
        ("gradient_norm", 19, 1.1, 1.4),
        ("gradient_norm", 20, *((9.9, np.nan) if tuned else (1.1, 1.4))),
    ):
        recorded, same, other = (
            renamed(run, loss=loss)
            for run in (
                RECORDED,
                changed(step, name, near, ELSEWHERE),
                changed(step, name, far, ELSEWHERE),
            )
        )
        assert comparison.first_difference(recorded, same) is None
        found = comparison.first_difference(recorded, other)
        assert found.startswith(f"step {step + 1}: ") and f"{name} is" in found


@pytest.mark.parametrize("machine", [HERE, ELSEWHERE])
def test_what_is_missing_is_a_difference(machine):
    """Missing steps, values or evaluations, and NaN, count as differences."""
    short = dataclasses.replace(RECORDED, rows=RECORDED.rows[:21])
    unnamed = changed(2, "loss", 1)
    del unnamed.rows[2]["loss"]
    evaluation = dataclasses.replace(RECORDED, evaluation={})
    for run in (short, unnamed, evaluation, changed(2, "loss", np.nan)):
        run = dataclasses.replace(run, machine=machine)
        assert comparison.first_difference(RECORDED, run) is not None


def test_a_record_is_read_as_it_was_saved(tmp_path, monkeypatch):
    """A trace is read from its file without losing a bit."""
    monkeypatch.setattr(comparison, "FOLDER", tmp_path)
    run = changed(2, "loss", 1 / 3)
    run.save("run")
    assert comparison.read("run") == run


def evaluated(machine, **values):
    return dataclasses.replace(RECORDED, evaluation=values, machine=machine)


def test_scores_that_count_are_compared_where_bits_are():
    """Scores such as accuracy may differ, but only on other machines.

    Losses must not differ by more than the tolerance, even there.
    """
    tie = {"loss": 3.0, "accuracy": 0.6}
    assert comparison.first_difference(RECORDED, evaluated(HERE, **tie))
    assert not comparison.first_difference(
        RECORDED, evaluated(ELSEWHERE, **tie)
    )
    worse = evaluated(ELSEWHERE, loss=3.1, accuracy=0.5)
    assert "evaluation: loss" in comparison.first_difference(RECORDED, worse)


def test_each_run_is_recorded():
    """Every run, and every pretraining flagfile, has a complete trace."""
    names = {path.stem for path in comparison.FOLDER.glob("*.jsonl")}
    assert names == set(runs.all_runs())
    traced = {name for n in names for name in comparison.read(n).recipes}
    recipes = (ROOT / "configs" / "pretraining").glob("*.flags")
    assert {path.stem for path in recipes} <= traced
    assert {len(comparison.read(name).rows) for name in names} == {runs.STEPS}


def test_each_kind_of_task_is_traced():
    """Every kind of task has a trace."""
    traced = {TASKS[name].kind for name in runs.TASKS}
    assert traced == {task.kind for task in TASKS.values()}
