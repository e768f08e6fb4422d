"""Each standard hook is tested by itself, with a stand-in for the run."""

import contextlib
import types

import matplotlib.figure
import numpy as np
import pytest
import tensorflow as tf
from tiny_training import stopped_clock

from albert_tf.base.errors import InputError
from albert_tf.training import history, hooks
from albert_tf.training.history import History, Scalars, draw_curves
from albert_tf.training.hooks import (
    Draw,
    Evaluate,
    KeepAverage,
    Log,
    MeasureSpread,
    RequireFinite,
    Save,
    StopInTime,
    standard,
)
from albert_tf.training.run import SIGTERM, Hook, Window
from albert_tf.training.training_config import TrainingConfig


def window(steps, bad=0, first_bad=0):
    """Return a window of steps that took two seconds."""
    values = {"loss": 1.5, "learning_rate": 0.25, "examples_per_second": 8.0}
    return Window(steps, 2.0, values, bad, first_bad)


class FakeRun:
    """A stand-in for a run; it records messages and calls."""

    def __init__(self, **values):
        self.messages, self.rows, self.seconds, self.stops = [], [], {}, []
        self.progress = types.SimpleNamespace(
            advance=lambda *x: self.messages.append(x),
            message=self.messages.append,
        )
        self.step, self.chief, self.stopped_by = 6, True, ""
        vars(self).update(values)

    def record(self, split, values, **columns):
        self.rows.append((split, columns))

    def stop(self, reason):
        self.stops.append(reason)

    def in_any_process(self, flag):
        return flag


def test_a_column_that_does_not_exist_is_an_error(tmp_path):
    """An unknown metric or split raises an error that lists the legal names.

    A split without rows has empty columns.
    """
    history = History(str(tmp_path))
    assert history.column("eval", "loss") == ([], [])
    history.add(3, "train", {"loss": 0.5})
    history.add(6, "train", {"loss": 0.25, "accuracy": 1.0})
    assert history.column("train", "loss") == ([3, 6], [0.5, 0.25])
    assert history.column("train", "accuracy") == ([6], [1.0])
    assert history.column("eval", "accuracy") == ([], [])
    rule = "among step, loss, accuracy; did you mean `loss`.*name=los$"
    with pytest.raises(InputError, match=rule):
        history.column("train", "los")
    with pytest.raises(InputError, match="must be train, eval, health"):
        history.column("test", "loss")


def test_a_hundred_bad_steps_in_a_row_end_a_run():
    """A run that skips non-finite steps ends after a hundred in a row.

    The count restarts after a window that has a finite step. The number of
    skipped updates is recorded only if steps may be skipped.
    """
    skips = RequireFinite(True)
    skips.after(None, window(70, 70))
    skips.after(None, window(70, 69))
    skips.after(None, window(60, 60))
    last, other = window(39, 39), window(3)
    skips.after(None, last)
    RequireFinite(False).after(None, other)
    assert last.values["skipped_updates"] == 39.0
    assert "skipped_updates" not in other.values
    with pytest.raises(InputError, match="in all of the last 100 steps"):
        skips.after(None, window(1, 1))


def test_steps_are_shown_and_kept_unless_all_were_skipped():
    """Means of a window are recorded unless all of its updates were skipped."""
    run = FakeRun()
    for bad in (0, 2, 3):
        Log().after(run, window(3, bad))
    shown = "loss 1.500 (mean of 3), rate 2.50e-01, 8.0 examples/s"
    skipped = "3 updates skipped: not finite"
    assert run.messages == [(3, shown), (3, shown), (3, skipped)]
    assert run.rows == [("train", {"steps": 3})] * 2


@pytest.fixture
def clock(monkeypatch):
    """Return the clock that the hooks read."""
    return stopped_clock(monkeypatch, hooks)


@pytest.mark.parametrize("chief", [True, False])
def test_an_evaluation_is_timed_and_told(clock, chief):
    """An evaluation is timed and printed; only the chief writes the history.

    The model has its averaged weights during the evaluation.
    """
    saved, weights = [], ["last"]

    def evaluate():
        clock.now += 3.0
        assert weights[-1] == "averaged"
        return {"loss": 2.5, "accuracy": 0.25}

    @contextlib.contextmanager
    def evaluated_weights():
        weights.append("averaged")
        yield
        weights.pop()

    run = FakeRun(chief=chief)
    run.trainer = types.SimpleNamespace(evaluated_weights=evaluated_weights)
    run.history = types.SimpleNamespace(save=lambda: saved.append("history"))
    run.scalars = types.SimpleNamespace(flush=lambda: saved.append("scalars"))
    Evaluate(5, evaluate).after(run, None)
    assert run.seconds == {"evaluation": 3.0}
    assert run.messages == ["step 6: loss 2.5000, accuracy 0.2500"]
    assert run.rows == [("eval", {})]
    assert saved == ["history"] * chief + ["scalars"]
    assert weights == ["last"]


def test_an_average_is_kept_once_per_step(monkeypatch):
    """The chief saves averaged weights once per step.

    The chief also saves them at the end of a run, unless SIGTERM arrived.
    """
    saved = []
    monkeypatch.setattr(hooks, "keep_evaluated", lambda run: saved.append(run))
    keep, run = KeepAverage(3), FakeRun()
    keep.after(run, None)
    keep.end(run)
    assert saved == [run]
    for values in ({"chief": False}, {"stopped_by": SIGTERM}, {"step": 0}):
        KeepAverage(3).end(FakeRun(**values))
    assert saved == [run]
    run.stopped_by = "max_hours=1"
    KeepAverage(3).end(run)
    assert saved == [run, run]


def test_the_spread_is_measured_at_the_depth_of_the_phase():
    """From the step `every` on, the spread of the phase's layers is measured.

    If no text has two masks, there is no spread to record.
    """
    calls, weights = [], [[1, 1]]

    def predict(*arguments):
        calls.append(arguments)
        states, ids = np.array([[[1.0], [3.0]]]), np.array([[4, 4]])
        return {"states": states, "ids": ids, "weights": np.array(weights)}

    shallow = types.SimpleNamespace(
        evaluator=types.SimpleNamespace(predict=predict),
        objective=types.SimpleNamespace(masked_states="states"),
    )
    trainer = types.SimpleNamespace(at_depth={2: shallow}.get)
    run = FakeRun(trainer=trainer, phase=types.SimpleNamespace(layers=2))
    early, due, none = (window(3) for _ in range(3))
    MeasureSpread(7, "texts").after(run, early)
    assert not calls
    MeasureSpread(6, "texts").after(run, due)
    assert calls == [("texts", "states")]
    assert due.values["masked_spread"] == pytest.approx(2 / 5)
    weights[0][0] = 0
    MeasureSpread(6, "texts").after(run, none)
    assert early.values == none.values == window(3).values


@pytest.mark.parametrize("chief", [True, False])
def test_a_checkpoint_is_saved_once_and_timed(clock, monkeypatch, chief):
    """The chief saves a step only once, and never step 0; a save is timed."""
    saved = []

    def save(*arguments):
        clock.now += 4.0
        saved.append(arguments)

    monkeypatch.setattr(hooks.checkpoints, "save", save)
    run = FakeRun(chief=chief, output_dir="x", last_good=None)
    run.trainer = types.SimpleNamespace(state=lambda: {"w": 1})
    run.state = lambda: {"read": 3}
    run.history = types.SimpleNamespace(save=lambda: saved.append("history"))
    run.scalars = types.SimpleNamespace(flush=lambda: saved.append("scalars"))
    hook = Save(5, 2)
    hook.after(run, None)
    hook.end(run)
    all_of_it = [("x", {"w": 1}, 6, 2, {"read": 3}), "history", "scalars"]
    assert saved == all_of_it * chief and run.last_good == "x/ckpt-6"
    assert run.seconds == ({"checkpoint": 4.0} if chief else {})
    run.step = 0
    hook.end(run)
    assert run.last_good == "x/ckpt-6"


def test_time_ends_before_the_next_steps_and_saves_would_pass_it(clock):
    """The next steps, evaluation and saves must fit in the time left.

    The estimate is the longest window, an evaluation and two checkpoints.
    """
    limit, free = StopInTime(1.0), StopInTime(0.0)
    run = FakeRun(seconds={"checkpoint": 20.0, "evaluation": 300.0})
    for hook in (limit, free):
        hook.after(run, window(1))
        assert (hook.longest, hook.saving) == (2.0, 20.0)
        hook.longest = 30.0
        clock.now = 4229.5
        hook.after(run, window(1))
        assert hook.longest == 30.0 and not run.stops
        hook.end(run)
        assert hook.stopped is False
    clock.now = 4230.0
    free.after(run, window(1))
    assert run.stops == []
    limit.after(run, window(1))
    assert run.stops == ["max_hours=1"]
    limit.after(FakeRun(), window(1))
    assert limit.saving == 0.0
    limit.end(FakeRun(stopped_by="a test"))
    assert limit.stopped is True


ROWS = [
    {"step": 1, "split": "health", "kind": "x", "note": "y"},
    {"step": 2, "split": "train", "steps": 2, "loss": 1.0},
    {"step": 2, "split": "eval", "accuracy": 0.5, "loss": 1.0},
]


@pytest.mark.parametrize(
    "rows, names",
    [
        (ROWS, [["accuracy", "loss"]]),
        (ROWS[:2], [["loss"]]),
        (ROWS[:1], []),
    ],
)
@pytest.mark.parametrize("chief", [True, False])
def test_the_metrics_of_the_evaluation_are_drawn(
    monkeypatch, capsys, rows, names, chief
):
    """The chief plots the metrics of evaluations, or else of training.

    Warnings are not plotted. A note is printed if matplotlib is missing.
    """
    drawn = []
    monkeypatch.setattr(history, "draw_curves", lambda *x: drawn.append(x[2]))
    monkeypatch.setattr(hooks, "lacking", lambda *_: "no matplotlib")
    run_history = types.SimpleNamespace(rows=rows)
    run = FakeRun(chief=chief, history=run_history, output_dir="x")
    Draw().begin(run)
    Draw().end(run)
    assert drawn == names * chief
    printed = capsys.readouterr().out
    assert printed == "Note: no matplotlib\n" * chief
    monkeypatch.setattr(hooks, "lacking", lambda *_: "")
    Draw().begin(run)
    assert capsys.readouterr().out == ""


def test_users_hooks_are_between_evaluations_and_checkpoints():
    """A user's hook comes after evaluations and before checkpoints.

    Evaluations and time limits have hooks only if they are requested.
    """
    training = TrainingConfig(eval_steps=3, save_checkpoints_steps=4)
    mine = Hook()
    made = standard(training, None, mine)
    kinds = [RequireFinite, Log, Hook, Save, Draw]
    assert [type(hook) for hook in made] == kinds
    assert not made[0].finite.skips and made[2] is mine
    assert (made[3].every, made[3].keep) == (4, 5)
    training = TrainingConfig(max_hours=2.0, on_nonfinite="skip", eval_steps=3)
    made = standard(training, print, mine)
    kinds = [RequireFinite, Log, Evaluate, Hook, Save, StopInTime, Draw]
    assert [type(hook) for hook in made] == kinds
    assert made[0].finite.skips and made[2].every == 3 and made[5].hours == 2.0


@pytest.mark.parametrize(
    "number, axes, size",
    [(1, 1, (4.2, 3.2)), (3, 3, (12.6, 3.2)), (4, 6, (12.6, 6.4))],
)
def test_each_metric_has_its_plot(tmp_path, monkeypatch, number, axes, size):
    """Each metric has a plot, and three plots fit side by side.

    Unused positions in a row stay empty. Without matplotlib, nothing is drawn.
    """
    figures = []

    def savefig(figure, file, **kwargs):
        figures.append(figure)
        assert kwargs == {"format": "png", "dpi": 110}

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", savefig)
    run_history, names = History(str(tmp_path)), tuple("abcd"[:number])
    for split in ("train", "eval"):
        for step in (2, 4):
            run_history.add(step, split, {name: step / 2 for name in names})
    draw_curves(run_history, str(tmp_path), names)
    (figure,) = figures
    assert tuple(figure.get_size_inches()) == pytest.approx(size)
    shown = [axis for axis in figure.axes if axis.get_visible()]
    assert len(figure.axes) == axes
    assert [axis.get_title() for axis in shown] == list(names)
    for axis in shown:
        labels = [line.get_label() for line in axis.lines]
        assert labels == ["train", "eval"] and axis.get_legend()
        for line in axis.lines:
            assert [*map(list, line.get_data())] == [[2, 4], [1, 2]]
    monkeypatch.setattr(history, "is_installed", lambda _: False)
    draw_curves(run_history, str(tmp_path), names)
    assert len(figures) == 1


def test_a_resume_replaces_only_its_own_notes(tmp_path):
    """A resume replaces the notes of an earlier resume at the same step.

    Warnings and the notes of resumes at other steps stay.
    """
    run_history = History(str(tmp_path))
    run_history.resume(7, ["first"])
    run_history.add(20, "health", {"kind": "flat_loss", "note": "flat"})
    run_history.resume(20, ["second", "third"])
    run_history.resume(20, ["fourth"])
    notes = [(row["step"], row["note"]) for row in run_history.rows]
    assert notes == [(7, "first"), (20, "flat"), (20, "fourth")]


def test_each_scalar_is_written_once_at_its_step(tmp_path):
    """Each split has separate events; a flush writes only new values."""
    scalars = Scalars(str(tmp_path))
    scalars.write(3, "train", {"loss": 0.5, "rate": 0.25})
    scalars.write(5, "train", {"loss": 2.0})
    scalars.write(5, "eval", {"loss": 4.0})
    scalars.flush()
    scalars.write(8, "train", {"loss": 1.0})
    scalars.flush()

    def events(split):
        (path,) = (tmp_path / "tensorboard" / split).iterdir()
        return [
            (event.step, value.tag, tf.make_ndarray(value.tensor).item())
            for event in tf.compat.v1.train.summary_iterator(str(path))
            for value in event.summary.value
        ]

    first = [(3, "loss", 0.5), (3, "rate", 0.25)]
    assert events("train") == [*first, (5, "loss", 2.0), (8, "loss", 1.0)]
    assert events("eval") == [(5, "loss", 4.0)]
