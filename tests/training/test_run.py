"""A run: exact resumption, clean stops, history and notes."""

import contextlib
import dataclasses
import itertools
import math
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import tensorflow as tf
import tiny
from tiny_training import go, make_run

from albert_tf.base import interrupts
from albert_tf.base.errors import InputError
from albert_tf.data.records.metadata import Metadata
from albert_tf.training import checkpoint_files, checkpoints, distribution, run
from albert_tf.training.history import History, draw_curves
from albert_tf.training.hooks import StopInTime
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.phases import Phase
from albert_tf.training.run import (
    SIGNALS,
    Hook,
    Run,
    StopOnSignal,
    describe_run,
)


def copied(folder, target, step):
    """Copy a checkpoint to a folder as its newest one; return the folder."""
    for path in folder.glob(f"ckpt-{step}.*"):
        shutil.copy(path, target)
    line = f'model_checkpoint_path: "ckpt-{step}"\n'
    (target / "checkpoint").write_text(line)
    return target


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    directory = tmp_path_factory.mktemp("unbroken")
    return directory, tiny.values(go(make_run(directory)))


def assert_same_bits(unbroken, trainer):
    found = tiny.values(trainer)
    assert tiny.largest_difference(unbroken[1], found) == 0.0


def test_a_resumed_run_ends_with_the_same_bits(unbroken, tmp_path):
    """A resumed run ends with the state of an uninterrupted run.

    The state consists of weights, slots and the step.
    """
    copied(unbroken[0], tmp_path, 7)
    resumed = make_run(tmp_path)
    assert resumed.step == 7
    assert_same_bits(unbroken, go(resumed))


def test_a_run_with_nothing_left_to_train_says_so(unbroken, tmp_path, capfd):
    """A completed run prints its number of steps and the number requested."""
    copied(unbroken[0], tmp_path, 7)
    for last, changes in (
        (4, {"stop_step": 4}),
        (5, {"num_train_steps": 5}),
        (5, {"num_train_steps": 5, "stop_step": 6}),
        (7, {"num_train_steps": 7}),
    ):
        resumed = make_run(tmp_path, **changes)
        go(resumed)
        assert resumed.step == 7
        message = (
            f"train: 7 steps are complete, and the run ends after {last}\n"
        )
        assert message in capfd.readouterr().err


def test_a_folder_is_claimed_by_one_run(tmp_path):
    """While a run uses a folder, a second run there fails and writes nothing.

    A later run may use the folder.
    """
    strategy, claims = tf.distribute.get_strategy(), []
    output_dir = str(tmp_path / "model")
    with checkpoints.locked_model_dir(
        strategy, output_dir, lambda: claims.append("first")
    ):
        with pytest.raises(InputError, match="another run is still writing"):
            with checkpoints.locked_model_dir(
                strategy, output_dir, lambda: claims.append(2)
            ):
                claims.append("body")
    with checkpoints.locked_model_dir(
        strategy, output_dir, lambda: claims.append("later")
    ):
        assert claims == ["first", "later"]


def test_a_moved_folder_ends_a_run(tmp_path):
    """A run whose folder is moved fails and does not create a new folder.

    Once the folder is back, the run resumes.
    """
    folder, moved = tmp_path / "model", tmp_path / "moved"
    folder.mkdir()

    class Move(Hook):
        def after(self, run, window):
            if run.step == 11:  # no write is due
                folder.rename(moved)

    saves = {"save_checkpoints_steps": 10, "steps_per_loop": 1}
    with pytest.raises(InputError, match="move it back.*model/ckpt-10$"):
        go(make_run(folder, **saves), Move())
    assert not folder.exists()
    moved.rename(folder)
    assert make_run(folder, **saves).step == 10


def handlers():
    return [signal.getsignal(n) for n in SIGNALS]


def interrupted_run(folder, number, times=1, fails=False):
    """Start a run that receives a signal during its first evaluation."""

    def evaluate():
        for _ in range(times):
            os.kill(os.getpid(), number)
        if fails:
            raise InputError("no")
        return {"mlm_accuracy": 0.5}

    go(make_run(folder), evaluate=evaluate)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_saves_and_stops(
    monkeypatch, unbroken, tmp_path, capfd, number
):
    """After a signal, the run saves, prints a message and can be resumed.

    The first Ctrl-C also raises `KeyboardInterrupt` at the end.
    """
    monkeypatch.setattr(interrupts, "_leave_terminal", lambda: None)
    before, interrupt = handlers(), number == signal.SIGINT
    none = contextlib.nullcontext()
    with pytest.raises(KeyboardInterrupt) if interrupt else none:
        interrupted_run(tmp_path, number)
    assert handlers() == before
    assert checkpoint_files.latest(str(tmp_path)).endswith("ckpt-10")
    evaluated = History.read(str(tmp_path)).column("eval", "mlm_accuracy")
    assert evaluated == ([10], [0.5])
    name = SIGNALS[number]
    printed = capfd.readouterr().err
    assert f"Received {name}: saving" in printed
    assert ("Press Ctrl-C again" in printed) == interrupt
    assert f"Stopped by {name} at step 10 of 20; saved" in printed
    assert_same_bits(unbroken, go(make_run(tmp_path)))


def test_a_second_interrupt_does_not_save(tmp_path):
    """A second Ctrl-C ends the run without saving and restores handlers."""
    before = handlers()
    with pytest.raises(KeyboardInterrupt):
        interrupted_run(tmp_path, signal.SIGINT, times=2)
    assert handlers() == before
    assert checkpoint_files.latest(str(tmp_path)).endswith("ckpt-7")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_handlers_are_back_after_an_error(tmp_path, number):
    """After an error, the caller's signal handlers are restored."""
    before = handlers()
    with pytest.raises(InputError, match="^no"):
        interrupted_run(tmp_path, number, fails=True)
    assert handlers() == before


def test_other_signals_do_not_stop_a_run():
    """Other signals, such as SIGUSR1, keep their handlers and stop no run."""
    printed, numbers = [], []
    earlier = signal.signal(signal.SIGUSR1, lambda n, _: numbers.append(n))
    try:
        with StopOnSignal(printed.append) as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, earlier)
    assert (numbers, printed, stop.received) == ([signal.SIGUSR1], [], 0)


def test_an_ignored_interrupt_stays_ignored():
    """A background job that ignores Ctrl-C still ignores it during a run."""
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopOnSignal():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, earlier)


def test_a_run_in_another_thread_leaves_signals_alone():
    """A run outside the main thread leaves signal handlers unchanged."""
    before = handlers()

    def enter():
        with StopOnSignal():
            return handlers()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result() == before


def test_hooks_are_called_at_their_cadence_in_order(tmp_path):
    """`after` is called in the order of hooks, at multiples of `every`.

    `after` is also called at the end. With `every=0`, it is called after each
    window of steps. `begin` and `end` are called once.
    """
    calls = []

    class Witness(Hook):
        def __init__(self, name, every):
            self.name, self.every = name, every

        def begin(self, run):
            calls.append((self.name, "begin", run.step))

        def after(self, run, window):
            assert window.steps > 0 and math.isfinite(window.values["loss"])
            calls.append((self.name, "after", run.step))

        def end(self, run):
            calls.append((self.name, "end", run.step))

    started = make_run(tmp_path, stop_step=7, steps_per_loop=50)
    witnesses = [Witness("a", 0), Witness("b", 3)]
    run.train(started, tiny.train_batches, witnesses)
    assert calls == [
        *(("a", "begin", 0), ("b", "begin", 0)),
        *(("a", "after", 3), ("b", "after", 3)),
        *(("a", "after", 6), ("b", "after", 6)),
        *(("a", "after", 7), ("b", "after", 7)),
        *(("a", "end", 7), ("b", "end", 7)),
    ]


def test_stretches_can_be_driven_by_hand(unbroken, tmp_path):
    """A caller may iterate over windows of steps, and stop between windows."""
    started = make_run(tmp_path, steps_per_loop=4)
    made = []
    for window in started.windows(tiny.train_batches, [7]):
        made.append(window.steps)
        if started.step == 11:
            break
    assert made == [4, 3, 4] and not started.finished
    for window in started.windows(tiny.train_batches):
        made.append(window.steps)
    assert sum(made) == 20 and started.finished
    assert_same_bits(unbroken, started.trainer)


def resume_notes(folder, **kwargs):
    """Return the notes that a resumed run prints."""
    resumed, printed = make_run(folder, **kwargs), []
    resumed.progress.message = printed.append
    resumed.resume()
    first, *notes = printed[0].splitlines()
    assert first.startswith("Resuming at step 20 from")
    return notes


def test_what_differs_on_resuming_is_said(unbroken):
    """When a run resumes, notes list old and new values of changed settings."""
    assert resume_notes(unbroken[0]) == []
    notes = resume_notes(
        unbroken[0],
        optimizer=OptimizerConfig(
            learning_rate=0.02, num_warmup_steps=5, beta_2=0.99
        ),
        random_seed=5,
        jit_compile=True,
        dtype="bfloat16",
        gradient_accumulation_steps=2,
        encoder_loop="while",
        rematerialize="layer",
        eval_batch_size=8,
        keep_checkpoint_max=9,
    )
    expected = {
        "learning_rate was 0.01 and is 0.02": "another update rule",
        "beta_2 was 0.999 and is 0.99": "another update rule",
        "random_seed was 12345 and is 5": "data in another order",
        "jit_compile was None and is True": "masks differ",
        "dtype was float32 and is bfloat16": "another precision",
        "gradient_accumulation_steps was 1 and is 2": "to rounding",
        "encoder_loop was auto and is while": "to rounding",
        "rematerialize was auto and is layer": "to rounding",
    }
    assert len(notes) == len(expected)
    for start, meaning in expected.items():
        (note,) = (n for n in notes if n.startswith(f"Note: {start}: "))
        assert meaning in note


def test_the_history_keeps_what_changed(unbroken, tmp_path):
    """The history notes each changed setting at the step of the resume.

    A second resume at the same step replaces the notes of the first resume. A
    completed run notes nothing, because it does not use the new settings.
    """
    folder = copied(unbroken[0], tmp_path, 20)
    for seed, steps in ((5, 30), (6, 30), (7, 20)):
        resumed = make_run(folder, random_seed=seed, num_train_steps=steps)
        resumed.resume()
        resumed.history.save()
    noted = [r for r in resumed.history.rows if r["split"] == "health"]
    first, second = sorted(row.pop("note") for row in noted)
    assert first.startswith("num_train_steps was 20 and is 30: ")
    assert second.startswith("random_seed was 12345 and is 6: ")
    row = {"step": 20, "split": "health", "kind": "resumed"}
    assert noted == [row, row]


def test_a_checkpoint_that_tells_less_resumes_quietly(unbroken, tmp_path):
    """If a checkpoint records few settings, only these cause notes."""
    prefix = str(copied(unbroken[0], tmp_path, 20) / "ckpt-20")
    facts = {"replicas": 1, "train_batch_size": 8, "num_train_steps": 20}
    checkpoint_files.write_about(prefix, facts)
    (note,) = resume_notes(tmp_path, random_seed=5)
    assert note.startswith("Note: train_batch_size was 8 and is 16: ")
    checkpoint_files.write_about(prefix, {})
    assert resume_notes(tmp_path, random_seed=5) == []


@pytest.mark.parametrize(
    "facts, start", [({}, 28), ({"read": {"": 9}, "phase_begun": 3}, 9)]
)
def test_another_batch_size_continues_the_data(
    unbroken, tmp_path, facts, start
):
    """A resumed run continues after the last example read.

    If a checkpoint does not record this example, it is estimated from the
    steps. The same rule applies to the first step of the phase.
    """
    prefix = str(copied(unbroken[0], tmp_path, 7) / "ckpt-7")
    whole = {"read": {"": 7 * 16}}
    assert checkpoint_files.read_facts(prefix).items() >= whole.items()
    checkpoint_files.write_about(prefix, facts)
    resumed, starts = make_run(tmp_path, train_batch_size=4), []

    def batches(start, **kwargs):
        starts.append(start)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(resumed.windows(batches))
    assert starts == [start]
    found = resumed.state()
    assert found["read"] == {"": start}
    assert found["phase_begun"] == facts.get("phase_begun", 0)


def test_workers_at_different_steps_are_refused(tmp_path, monkeypatch):
    """The error states the step of each worker and the folder to share."""
    answers = iter([[0, 0, 0], [7, 0, 7]])  # errors, then steps
    monkeypatch.setattr(distribution, "of_processes", lambda *_: next(answers))
    message = "share.*worker 0 at 7, worker 1 at 0, worker 2 at 7$"
    with pytest.raises(InputError, match=message):
        make_run(tmp_path)


def test_a_stop_after_the_end_is_the_end(tmp_path):
    """`stop_step` does not lengthen a run."""
    assert make_run(tmp_path, stop_step=99).last == 20


@pytest.mark.slow
def test_another_number_of_replicas_is_stated(unbroken, tmp_path, capfd):
    """A run that resumes with a different number of replicas prints a note.

    Its final weights match an uninterrupted run, except for rounding.
    """
    copied(unbroken[0], tmp_path, 14)
    found = tiny.values(go(make_run(tmp_path, replicas=2)))
    assert "replicas was 1 and is 2" in capfd.readouterr().err
    assert 0 < tiny.largest_difference(unbroken[1], found) < 2e-6


def test_a_time_budget_stops_with_a_checkpoint(
    unbroken, tmp_path, capfd, monkeypatch
):
    """A run whose time is up saves and stops.

    When the run is resumed, its result is bit-identical to an uninterrupted
    run's result.
    """
    ticks = itertools.count(1)  # the readings of a clock
    monkeypatch.setattr(StopInTime, "spent", lambda self: next(ticks) >= 2)
    stopped = make_run(tmp_path, max_hours=0.01, steps_per_loop=4)
    go(stopped)
    assert stopped.step == 7 and not stopped.finished  # 4 steps, then 3
    assert checkpoint_files.latest(str(tmp_path)).endswith("ckpt-7")
    printed = capfd.readouterr().err
    assert "Stopped by max_hours=0.01 at step 7 of 20" in printed
    assert_same_bits(unbroken, go(make_run(tmp_path)))


def test_the_history_holds_every_evaluation_once(unbroken, tmp_path):
    """When a run resumes at step 10, history rows after step 10 are dropped.

    The history of a finished run can be plotted.
    """
    directory, _ = unbroken
    history = History(str(directory), 20)
    assert history.column("eval", "mlm_loss")[0] == [10, 20]
    assert len(History(str(directory), 10).column("eval", "loss")[0]) == 1
    draw_curves(history, str(tmp_path), ("loss", "mlm_loss"))
    assert (tmp_path / "curves.png").stat().st_size > 5000


@pytest.mark.parametrize(
    "line", ["{broken", "[1]", "7", '{"loss": 1.0}', "", "7" * 61]
)
def test_a_damaged_history_is_one_error(line, tmp_path):
    """The error for a damaged history names the line.

    An incomplete last line is dropped instead.
    """
    row = '{"step": 1, "split": "train", "steps": 1}\n'
    path = tmp_path / "history.jsonl"
    path.write_text(f"{row}{line}\n{row}")
    for read in (History.read, lambda folder: History(folder, 20)):
        with pytest.raises(InputError) as error:
            read(str(tmp_path))
        assert "history.jsonl:2: the history is damaged" in str(error.value)
        assert str(error.value).endswith(f"line={line[:60]!r}")
    path.write_text(row + line)
    assert len(History.read(str(tmp_path)).rows) == 1


PHASES = [Phase(0, 20, 12, metadata=Metadata(8, 3, 50, "", {}))]


@pytest.mark.parametrize(
    "name, replicas, message",
    [
        ("lamb", 1, "1 replica, batches of 12 x 8 tokens, lamb at 0.5"),
        ("adamw", 2, "2 replicas, batches of 12 x 8 tokens, adamw at 0.5"),
    ],
)
def test_only_lamb_is_said_to_have_trust_ratios(
    name, replicas, message, capsys
):
    """The summary mentions trust ratios only if the optimizer is LAMB.

    For one replica, the summary uses the singular.
    """
    config = OptimizerConfig(
        optimizer=name, learning_rate=0.5, num_warmup_steps=2
    )
    trainer = tiny.new_trainer(replicas, optimizer=config)
    describe_run(trainer, PHASES)
    first, second = capsys.readouterr().out.splitlines()
    size = sum(weight.numpy().size for weight in trainer.weights.values())
    assert first == f"{size:,} parameters, {message}"
    assert second.startswith("Without weight decay")
    assert ("trust ratio" in second) == (name == "lamb")
    count, names = second.split(": ")[1:]
    names = names.split(", ")
    assert count == f"{len(names)} of {len(trainer.trained)} variables"
    for more in (
        PHASES * 2,
        [dataclasses.replace(*PHASES, masked_lm_prob=0.1)],
    ):
        describe_run(trainer, more)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 3 + len(more)


def test_a_run_that_begins_at_its_end_says_so(tmp_path, capsys):
    """A new run with nothing to train prints the note of a resumed run.

    With `init_state=run`, the restored step may be the last step.
    """
    made = Run(tiny.new_trainer(), str(tmp_path))
    made.trainer.optimizer.iterations.assign(20)
    run.train(made, tiny.train_batches, [])
    message = "Nothing left to train: 20 steps are complete, and the run ends "
    assert f"{message}after 20" in capsys.readouterr().err


def test_a_signal_in_any_process_stops_all(monkeypatch):
    """A run stops if any process received a signal; the reason is its name."""
    received = []
    monkeypatch.setattr(distribution, "of_processes", lambda *_: received)
    stop, made = StopOnSignal(), mock.Mock()
    received[:] = [0, 0]
    stop.after(made, None)
    made.stop.assert_not_called()
    received[:] = [0, signal.SIGTERM]
    stop.after(made, None)
    made.stop.assert_called_once_with("SIGTERM")


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    "start, warmup, late",
    [(0, 10, False), (3, 8, True), (0, 9, False), (0, 3125, True)],
)
def test_a_warmup_that_outlasts_the_run_is_said(start, warmup, late, capsys):
    """A warning is printed only if a run ends before warm-up is complete."""
    config = OptimizerConfig(
        learning_rate=0.5, start_warmup_step=start, num_warmup_steps=warmup
    )
    trainer = tiny.new_trainer(optimizer=config, num_train_steps=10)
    describe_run(trainer, PHASES)
    message = f"0.5 after {start + warmup:,} steps of warm-up, but the run ends"
    assert (message in capsys.readouterr().out) == late
