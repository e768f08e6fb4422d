"""The measurements that a time budget makes, on a simulated machine."""

import dataclasses
import types

import pytest
import tensorflow as tf
import tiny
from tiny_pretraining import make_setup
from tiny_training import stopped_clock

from albert_tf.data.records.metadata import Metadata, RecordFile
from albert_tf.training import checkpoints, history
from albert_tf.training.clock import CLOSING_SECONDS, BudgetClock
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.phases import mean_work, step_work
from albert_tf.training.pretraining import budget
from albert_tf.training.pretraining.budget import (
    Budget,
    Rehearse,
    measure,
    measured_choices,
    resources_of,
    time_steps,
)
from albert_tf.training.pretraining.budget_rules import Choice
from albert_tf.training.training_config import TrainingConfig

ONE = tf.distribute.get_strategy()
HELD_OUT = {"eval": (RecordFile("x", 20, 1000),)}
RECORDS = {"records": Metadata(16, 3, 50, "", HELD_OUT)}


def setup_with(optimizer=None, strategy=ONE, **training):
    """Return the setup of a run with 20 held-out examples."""
    return dataclasses.replace(
        make_setup(tiny.CONFIG, RECORDS),
        strategy=strategy,
        training=TrainingConfig(**training),
        optimizer=optimizer or OptimizerConfig(),
    )


@pytest.fixture
def clock(monkeypatch):
    """Return a simulated clock, which starts at 1000 seconds."""
    return stopped_clock(monkeypatch, budget)


@pytest.mark.parametrize(
    "batches, evaluation, evaluated",
    [(10, 40.0, [1, 4]), (2, 8.0, [1, 2]), (0, 7.0, [])],
)
@pytest.mark.parametrize("chief, closing, drawn", [(True, 1, 2), (False, 0, 0)])
def test_a_rehearsal_times_what_is_compiled_and_imported(
    clock, monkeypatch, batches, evaluation, evaluated, chief, closing, drawn
):
    """A rehearsal uses the times of the second evaluation and the second plot.

    The first calls include compilation and imports. The time of the evaluation
    is scaled to all batches, and divided by the time of a step. Only the chief
    draws plots.
    """
    calls, turns, plots = [], [], []

    def evaluate(number):
        clock.now += 2.0 * number + 100.0 * (not calls)
        calls.append(number)

    def draw(*_):
        clock.now += 1.0 if plots else 5.0
        plots.append("curves")

    monkeypatch.setattr(history, "draw_curves", draw)
    run = types.SimpleNamespace(
        clock=types.SimpleNamespace(
            step_seconds=0.5,
            evaluation=7.0,
            turn=lambda *x, **y: turns.append((x, y)),
        ),
        trainer=types.SimpleNamespace(
            evaluator=types.SimpleNamespace(names=())
        ),
        chief=chief,
        history=None,
        output_dir="",
        step=3,
        phases=(None, None, None),
    )
    Rehearse(evaluate, batches).begin(run)
    assert calls == evaluated and run.clock.evaluation == evaluation
    assert run.clock.closing == closing and len(plots) == drawn
    assert turns == [((3, {}), {"over": False, "phases": 2})]


def fake_trainer(clock, pace, made):
    """Return a trainer with simulated step times.

    The first call of `run_steps` takes 20 s longer, as if it compiled.
    """
    shallow = types.SimpleNamespace(strategy=ONE)

    def run_steps(iterator, steps):
        clock.now += pace * int(steps) + 20.0 * (not made)
        made.append(int(steps))
        return types.SimpleNamespace(bad=0)

    def iterator(read, first, batch_size):
        assert (first, batch_size) == (0, 32)

    def at_depth(layers):
        assert layers == 1
        return shallow

    shallow.run_steps = run_steps
    return types.SimpleNamespace(iterator=iterator, at_depth=at_depth)


@pytest.mark.parametrize(
    "pace, most, steps, found",
    [
        (0.5, 4.0, [1, 1, 2, 4], (0.5, 3.5)),
        (0.5, 0.0, [1, 1], (0.5, 0.5)),
        (0.0, 0.0, [1, 1], (1e-6, 0.0)),
    ],
)
def test_twice_as_many_steps_are_timed_until_they_suffice(
    clock, pace, most, steps, found
):
    """The number of steps doubles until a call takes half the time limit.

    The first call, which compiles, does not count. The steps have the batches
    and the depth of the run's first phase.
    """
    made = []
    trainer = fake_trainer(clock, pace, made)
    setup = setup_with(train_batch_size=32)
    setup = setup.with_settings({"depth_schedule": "1:0.5,2"})
    assert time_steps(setup, trainer, most) == found
    assert made == steps


def test_the_time_to_compile_is_the_rest_of_a_measurement(clock, monkeypatch):
    """The time to compile is a measurement's time without the timed steps."""

    def timed(setup, trainer, most):
        clock.now += 10.0 + most
        return 0.5, most

    setup = types.SimpleNamespace(folders={}, trainer=lambda: None)
    monkeypatch.setattr(budget, "time_steps", timed)
    assert measure(setup, 3.5) == (0.5, 10.0)


@pytest.mark.parametrize("seconds, left", [(2.5, 2.5), (0.5, 1.0), (-9.0, 1.0)])
def test_resources_are_those_of_the_run(seconds, left):
    """Resources describe a run's records, model and strategy.

    The available time is at least 1 s.
    """
    strategy = tiny.make_strategy(tiny.DistributionConfig(num_cpu_replicas=2))
    setup = setup_with(strategy=strategy, train_batch_size=32)
    found = resources_of(setup, seconds, 1e-9)
    work = mean_work(setup.phases(), tiny.CONFIG)
    assert (found.seconds, found.tokens) == (left, 16)
    assert found.example_seconds == pytest.approx(work * 1e-9)
    assert (found.hidden_size, found.eval_examples) == (16, 20)
    assert found.replicas == 2 and found.dtype.value in ("float32", "bfloat16")


def probes_of(monkeypatch, seconds_of, hours=100.0 / 3600):
    """Return the probes, and the result of `measured_choices`.

    A probe is the pair (batch size, limit of the measurement in seconds).
    """
    probes = []

    def measured(setup, most):
        batch = setup.training.train_batch_size
        probes.append((batch, most))
        return seconds_of(len(probes), batch), 20.0

    monkeypatch.setattr(budget, "measure", measured)
    end = 1000.0 + hours * 3600 + CLOSING_SECONDS
    return probes, measured_choices(setup_with(), {"eval_steps"}, end)


def test_the_batch_and_its_pace_are_found_together(clock, monkeypatch):
    """Batch sizes are measured until the chosen size stays the same.

    There are at most four measurements. Each takes a hundredth of the remaining
    time, at most three seconds, plus the time for compilation.
    """
    probes, (choices, seconds) = probes_of(monkeypatch, lambda n, batch: 0.5)
    (first, most), (second, later) = probes
    assert first > second == 256 and seconds == 0.5
    assert (most, later) == pytest.approx((1.0, 0.8))
    assert choices["train_batch_size"].value == 256
    # A twentieth of the time is for evaluations.
    assert choices["num_train_steps"].value == int(80 * 0.95 / 0.5)
    assert "eval_steps" not in choices
    probes, _ = probes_of(monkeypatch, lambda n, b: 1e-5 if n % 2 else 9.0)
    assert len(probes) == 4
    probes, _ = probes_of(monkeypatch, lambda n, batch: 0.5, hours=1.0)
    assert {most for _, most in probes} == {3.0}


@pytest.mark.parametrize("seconds, warned", [(100.0, False), (25.0, True)])
def test_a_budget_too_short_to_compile_is_a_warning(
    clock, monkeypatch, capsys, seconds, warned
):
    """A warning states the compilation time if it is most of the budget."""
    probes_of(monkeypatch, lambda n, batch: 0.5, hours=seconds / 3600)
    printed = capsys.readouterr().out
    assert ("Warning: the budget is too short" in printed) == warned
    assert (
        "compiling the steps of 1 of 1 phases takes about 20 s" in printed
    ) == warned


def test_phases_of_one_shape_are_compiled_once(capsys):
    """The warning counts the compilations, of which phases may share one."""
    setup = setup_with(num_train_steps=20)
    setup = setup.with_settings({"depth_schedule": "2:0.2,1:0.3,2"})
    assert len(setup.phases()) == 3
    budget.warn_of_compilations(setup, 10.0, 39.0)
    assert "2 of 3 phases takes about 20 s, and 39 s" in capsys.readouterr().out
    budget.warn_of_compilations(setup, 10.0, 40.0)
    assert not capsys.readouterr().out


def test_the_speed_is_that_of_the_measured_batch(clock, monkeypatch):
    """The next choice uses the seconds per FLOP of the last probe."""
    speeds = []

    def resources(setup, seconds, flop_seconds):
        speeds.append(flop_seconds)
        return resources_of(setup, seconds, flop_seconds)

    monkeypatch.setattr(budget, "resources_of", resources)
    probes, _ = probes_of(monkeypatch, lambda n, batch: 0.5)
    setup = setup_with(train_batch_size=probes[0][0])
    work = step_work(setup.phases()[0], tiny.CONFIG)
    assert speeds[:2] == pytest.approx([1e-11, 0.5 / work])


EARLIER = {
    "choices": {
        "num_train_steps": 50,
        "learning_rate": 0.5,
        "beta_2": 0.9,
        "depth_schedule": "1:0.5,2",
    },
    "step_seconds": 2.0,
    "seconds": 30.0,
    "course": [3, 0.5, 1.5],
}


@pytest.mark.parametrize("rate, chosen", [(0.25, 0.25), ("auto", 0.5)])
def test_an_earlier_process_chose_and_spent(clock, rate, chosen):
    """A resumed run keeps the choices and the clock of its checkpoint.

    A learning rate that the user set is also kept, unless it is `auto`.
    """
    limited = Budget(0.5, {"learning_rate"})
    limited.earlier = EARLIER
    optimizer = OptimizerConfig(learning_rate=rate)
    before = setup_with(optimizer, save_checkpoints_steps=7, eval_steps=9)
    setup = limited.choose_settings(before)
    assert setup.training.num_train_steps == 50
    assert setup.optimizer.beta_2 == 0.9
    assert setup.optimizer.learning_rate == chosen
    assert setup.pretraining == before.pretraining
    found = limited.clock
    assert (found.end, found.step) == (50, 3)
    assert (found.position, found.advance) == (0.5, 1.5)
    assert (found.seconds, found.start_time) == (1800.0, 1000.0)
    assert found.used_before == 30.0
    assert (found.step_seconds, found.eval_steps) == (2.0, 9)
    assert (found.save_steps, found.final_evals) == (7, 0)
    assert found.choices == EARLIER["choices"]
    assert found.agree(4) == 4


def test_a_new_run_prints_its_choices(clock, monkeypatch, capsys):
    """A new run prints the chosen settings, and its clock records them."""

    def choices(setup, fixed, end):
        assert fixed == {"beta_2"} and end == 1000.0 + 1800.0
        clock.now += 60.0
        return {"num_train_steps": Choice(70, "it fits")}, 0.25

    monkeypatch.setattr(budget, "measured_choices", choices)
    limited = Budget(0.5, {"beta_2"})
    limited.start_choices = {"initial_weights": Choice("informed", "better")}
    folders = {"records": dataclasses.replace(RECORDS["records"], splits={})}
    setup = dataclasses.replace(setup_with(), folders=folders)
    chosen = dataclasses.replace(setup.pretraining, do_eval=True)
    setup = dataclasses.replace(setup, pretraining=chosen)
    assert limited.choose_settings(setup).training.num_train_steps == 70
    assert capsys.readouterr().out.splitlines() == [
        "Chosen for budget_hours=0.5:",
        "  --initial_weights=informed  better",
        "  --num_train_steps=70        it fits",
    ]
    found = limited.clock
    assert (found.step, found.position, found.advance) == (0, 0.0, 1.0)
    assert (found.eval_steps, found.final_evals) == (0, 1)
    assert found.used_before is None
    assert (found.step_seconds, found.start_time) == (0.25, 1000.0)
    choices = {"initial_weights": "informed", "num_train_steps": 70}
    assert found.choices == choices


def test_without_a_budget_nothing_is_chosen_or_printed(capsys):
    """Without a budget, a setup stays the same, and nothing is printed."""
    setup, none = setup_with(), Budget(0.0, set())
    assert none.choose_settings(setup) == setup and none.clock is None
    assert none.hooks(setup, print) == []
    assert none.closed(setup, None) == setup
    assert capsys.readouterr().out == ""


def test_a_budget_rehearses_all_held_out_batches():
    """The hook gets the number of held-out batches, including a partial one."""
    limited = Budget(1.0, set())
    limited.clock = BudgetClock(10)
    for size, batches in ((8, 3), (20, 1), (64, 1), (10, 2)):
        (hook,) = limited.hooks(setup_with(eval_batch_size=size), print)
        assert (hook.evaluate, hook.batches) == (print, batches)


@pytest.mark.parametrize("step, rate", [(20, "0.5"), (0, "0")])
def test_the_end_states_the_time_used(capsys, step, rate):
    """The time used, the number of steps and the last rate are printed.

    The setup gets the last step of the schedule as `num_train_steps`, even if
    the run stops at an earlier `stop_step`.
    """
    limited = Budget(1.0, set())
    limited.clock = BudgetClock(10, seconds=3600.0, used_before=3636.04)
    trainer = types.SimpleNamespace(rate=lambda step: step / 38)
    run = types.SimpleNamespace(step=step, last=20, end=21, trainer=trainer)
    setup = limited.closed(setup_with(), run)
    assert setup.training.num_train_steps == 21
    assert capsys.readouterr().out == (
        f"budget_hours=1: 3636.0 of 3600 s (+1.0%), {step} steps, the last "
        f"at a rate of {rate}\n"
    )


@pytest.mark.parametrize(
    "facts, over",
    [
        ({"over": True}, True),
        ({"over": False, "last": 5}, False),
        ({"last": 5}, True),
        ({"last": 6}, False),
    ],
)
def test_a_run_whose_time_is_up_says_so(tmp_path, capsys, facts, over):
    """A message is printed only if the time of a run is up.

    Checkpoints record whether the time is up; earlier versions recorded
    only the last step.
    """
    folder, state = str(tmp_path), {"x": tf.Variable(0.0)}
    facts = facts | {"choices": {}}
    checkpoints.save(folder, state, 5, facts={"budget": facts})
    limited = Budget(1.0, set())
    setup = make_setup(tiny.CONFIG, RECORDS, output_dir=folder)
    assert limited.choose_start(setup) == setup
    assert limited.earlier == facts
    message = f"The time budget of {folder} is used up"
    assert (message in capsys.readouterr().out) == over
