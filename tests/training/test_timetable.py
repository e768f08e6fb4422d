"""Runs that end in time, on machines of a clock that the test moves."""

import dataclasses
import itertools
import types

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.training.budget.timetable import Course, KeepTime, Timetable
from albert_tf.training.optimization.optimizers import (
    Optimizer,
    OptimizerConfig,
)
from albert_tf.training.pretraining.phases import Phase, at
from albert_tf.training.runs.pace import Pace, next_stop
from albert_tf.training.runs.run import Run, Stretch

HOURS = 0.25
PLANNED = 1000


@dataclasses.dataclass
class Machine:
    """What things take there, in seconds.

    Attributes:
      pace: seconds of a step at a share of the time.
      evaluation: seconds of one, where a step takes 0.8.
      checkpoint: seconds of one.
      compiling: seconds of the first step of a phase in a process.
    """

    pace: object = lambda share: 0.8
    evaluation: float = 3.0
    checkpoint: float = 0.5
    compiling: float = 20.0


class Killed(Exception):
    """The process ends without a word."""


class Simulation:
    """A run of `KeepTime` alone: the rest is a clock.

    Args:
      machine: what things take.
      eval_steps, save_steps: cadences.
      hours: the budget.
      layers: {last step: layers} of the phases, as planned.

    Attributes:
      made: steps of each number of layers.
      now: seconds on the clock, which knows no pause.
      rates: of all steps.
      saved: (step, what was kept) of the last checkpoint.
    """

    def __init__(
        self, machine, eval_steps=100, save_steps=150, hours=HOURS, layers=None
    ):
        self.machine, self.now, self.saved = machine, 0.0, (0, None)
        self.eval_steps, self.save_steps = eval_steps, save_steps
        ends = layers or {PLANNED: 1}
        self.hours, self.made = hours, dict.fromkeys(ends.values(), 0)
        self.phases = tuple(
            Phase(first, last, 16, layers=ends[last])
            for first, last in itertools.pairwise((0, *ends))
        )
        self.rates, self.paused = {}, 0.0
        variables = {"w": tf.Variable([1.0])}
        config = OptimizerConfig(learning_rate=1.0, num_warmup_steps=50)
        self.optimizer = Optimizer(config, PLANNED, variables)
        make = types.SimpleNamespace
        training = make(num_train_steps=PLANNED, steps_per_loop=0)
        trainer = make(optimizer=self.optimizer, training=training)
        trainer.strategy = tf.distribute.get_strategy()
        self.run = make(phases=self.phases, pace=Pace(0), kept={})
        self.run.move_end, self.run.due = self.move_end, self.due
        self.run.trainer = trainer

    def move_end(self, step):
        self.run.last = step

    def due(self, every):
        return Run.due(self.run, every)

    def process(self, dies_at=None, known=0.8):
        """Run in one process from the last checkpoint, to the end or death."""
        run, machine = self.run, self.machine
        run.step, kept = self.saved
        run.phases = self.phases
        run.seconds, run.kept = {}, {}
        table = Timetable(
            self.hours * 3600,
            known,
            self.eval_steps,
            self.save_steps,
            closing=0.0,
        )
        keeper = KeepTime(table, self.now, None, kept, now=lambda: self.now)
        keeper.rehearse = lambda: (2.0, 0.0)
        keeper.begin(run)
        compiled = set()
        while run.step < run.last:
            cadences = [self.eval_steps, self.save_steps]
            run.phase = at(run.phases, run.step)
            border = min(run.last, run.phase.last_step)
            ahead = next_stop(run.step, border, cadences) - run.step
            steps = min(run.pace.steps(), ahead)
            layers = run.phase.layers
            self.made[layers] += steps
            share = (self.now - self.paused) / 3600 / self.hours
            seconds = steps * machine.pace(share)
            seconds += machine.compiling * (layers not in compiled)
            compiled.add(layers)
            made = range(run.step, run.step + steps)
            rates = self.optimizer.learning_rate(tf.constant([*made]))
            self.rates |= dict(zip(made, rates.numpy().tolist(), strict=True))
            self.now += seconds
            run.step += steps
            if dies_at and run.step >= dies_at:
                raise Killed
            if self.due(self.eval_steps):
                evaluation = machine.evaluation * machine.pace(share) / 0.8
                self.now += evaluation
                run.seconds["evaluation"] = evaluation
            keeper.after(run, Stretch(steps, seconds, {}, 0, 0))
            if self.due(self.save_steps):
                state = run.kept["budget"]()
                self.saved = run.step, {**state, "course": [*state["course"]]}
                self.now += machine.checkpoint
                run.seconds["checkpoint"] = machine.checkpoint
        keeper.end(run)
        return keeper

    def jump(self):
        """Return the largest change of the rate between two steps."""
        rates = [self.rates[step] for step in sorted(self.rates)]
        return np.abs(np.diff(rates)).max()


MACHINES = {
    "as measured": Machine(),
    "slower": Machine(lambda share: 2.0),
    "faster": Machine(lambda share: 0.1),
    "halves in the middle": Machine(lambda share: 0.8 if share < 0.5 else 1.6),
    "halves at the end": Machine(lambda share: 0.8 if share < 0.97 else 1.6),
    "doubles in the middle": Machine(lambda s: 0.8 if s < 0.5 else 0.4),
    "dear evaluations": Machine(evaluation=40.0),
    "dear checkpoints": Machine(checkpoint=20.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_a_run_ends_in_time_with_the_rate_decayed(name):
    """Within 1 % of the time, at less than 1 % of the peak, with no jump."""
    simulation = Simulation(MACHINES[name])
    simulation.process()
    assert simulation.now == pytest.approx(HOURS * 3600, rel=0.01)
    last = simulation.rates[simulation.run.step - 1]
    assert 0 < last < 0.01
    assert simulation.jump() < 0.08


# {last step: layers}, of one schedule and of two with different borders.
SCHEDULES = {
    "depth": {300: 1, 600: 2, PLANNED: 3},
    "two": {300: 1, 350: 2, 600: 3, 640: 4, PLANNED: 5},
    "late": {900: 1, 980: 2, 995: 3, PLANNED: 4},
}


@pytest.mark.parametrize("seconds", [30, 60, 120, 300])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_short_run_with_schedules_ends_at_no_rate(name, seconds):
    """All phases compile, for 10 s each, and all have steps.

    A run ends in time if its phases need less than half of it to compile; any
    other is late by what they need and a hundredth of the planned steps.
    """
    machine = Machine(lambda share: 0.05, 0.2, 0.1, compiling=10.0)
    ends = SCHEDULES[name]
    simulation = Simulation(machine, hours=seconds / 3600, layers=ends)
    simulation.process(known=0.05)
    last = simulation.rates[simulation.run.step - 1]
    assert 0 < last < 0.02
    assert all(simulation.made.values())
    late = simulation.now - seconds
    compiling = 10.0 * len(ends)
    assert late < (0.02 * seconds if 2 * compiling < seconds else compiling + 9)


def test_the_steps_follow_the_pace():
    """A machine of half the pace makes half the steps."""
    steps = []
    for pace in (0.5, 1.0):
        machine = Machine(lambda share, pace=pace: pace, 0.0, 0.0, 0.0)
        simulation = Simulation(machine)
        simulation.process()
        steps.append(simulation.run.step)
    assert steps[0] / steps[1] == pytest.approx(2, rel=0.02)


def test_a_run_that_goes_as_planned_has_the_ordinary_schedule():
    """Where the pace is as it was said, the rates are those of the plan."""
    pace = (HOURS * 3600 - 2.0) / PLANNED
    machine = Machine(lambda share: pace, 2.0, 0.0, compiling=0.0)
    simulation = Simulation(machine, 10**6, 10**6)
    simulation.process(known=pace)
    assert simulation.run.step == pytest.approx(PLANNED, abs=3)
    ordinary = Optimizer(simulation.optimizer.config, PLANNED, {})
    rates = ordinary.learning_rate(tf.constant([*simulation.rates]))
    np.testing.assert_allclose([*simulation.rates.values()], rates, atol=4e-3)


def test_a_kill_and_a_pause_take_no_time():
    """All processes together make the steps of one, and its rates."""
    whole, broken = Simulation(Machine()), Simulation(Machine())
    whole.process()
    with pytest.raises(Killed):
        broken.process(dies_at=500)
    step, kept = broken.saved
    assert step == 450
    broken.now += 5000.0
    broken.paused = broken.now - kept["seconds"]
    before, start = broken.now, kept["seconds"]
    broken.process()
    again = broken.now - before - broken.machine.compiling
    assert start + again == pytest.approx(HOURS * 3600, rel=0.01)
    assert broken.run.step == pytest.approx(whole.run.step, rel=0.01)
    assert broken.rates[451] == pytest.approx(whole.rates[451], abs=1e-6)
    assert broken.jump() < 0.04
    broken.now += 5000.0
    finished = broken.process()  # There is nothing left to train.
    assert finished.used() == broken.saved[1]["seconds"]


def test_other_phases_go_on_where_the_course_is():
    """Borders that a run had stay where they were; new ones follow, by hand."""
    layers = dict.fromkeys((100, 300, 1000), 1)
    run = Simulation(Machine(), layers=layers).run
    kept = {"course": [400, 200.0, 2.0], "borders": [[100, 150], [1000, 800]]}
    keeper = KeepTime(Timetable(9.0, 1.0, 1, 1), 0.0, None, kept)
    keeper.begin(run)
    assert [phase.last_step for phase in run.phases] == [150, 450, 800]
    assert keeper.state()["borders"] == [(100, 150), (300, 450), (1000, 800)]


def test_more_hours_lengthen_what_is_left():
    """A course turns without a jump, and ends where the schedule does."""
    course = Course().turned(400, 700, 1000).turned(500, 2000, 1000)
    assert course.place == pytest.approx(400 + 100 * 2)
    assert course.place + 1500 * course.pace == pytest.approx(1000)


def test_a_timetable_counts_what_is_due():
    """By hand: steps, evaluations and checkpoints with those of the end."""
    table = Timetable(100.0, 1.0, 10, 25, 2.0, 5.0, closing=3.0)
    # Evaluations at 20, 30, 40 and 45, checkpoints at 25 and 45.
    assert table.cost(11, 45) == 34 + 4 * 2 + 2 * 5 + 3
    # Neither 40 nor 25 is half a cadence before these ends.
    assert table.cost(11, 44) == 33 + 3 * 2 + 2 * 5 + 3
    assert table.cost(11, 37) == 26 + 3 * 2 + 5 + 3
    assert table.last(11, 55.0) == 45
    assert table.last(11, 54.9) == 44
    assert table.last(11, 0.0) == 12
    assert table.stretch(1000) == 5 and table.stretch(7) == 4
    assert table.stretch(1000, most=2) == 2 and table.stretch(1) == 1
