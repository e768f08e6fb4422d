"""Runs with a simulated clock end on time."""

import dataclasses
import itertools
import types

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.training.clock import BudgetClock, Clock, Pace, next_stop
from albert_tf.training.keras_optimizers import WarmupDecay
from albert_tf.training.optimizer import OptimizerConfig, RunRate
from albert_tf.training.phases import Phase, phase_at
from albert_tf.training.run import Run

HOURS = 0.25
PLANNED = 1000


@dataclasses.dataclass
class Machine:
    """Durations on a simulated machine, in seconds.

    Attributes:
      pace: a function that takes the fraction of the time used so far and
        returns the seconds per step.
      evaluation: seconds per evaluation if a step takes 0.8 s.
      checkpoint: seconds per checkpoint.
      compiling: seconds that each process takes to compile a phase's step.
    """

    pace: object = lambda share: 0.8
    evaluation: float = 3.0
    checkpoint: float = 0.5
    compiling: float = 20.0


class Killed(Exception):
    """An exception that simulates the death of a process."""


class SimulatedRun(Run):
    """A run that has a clock, phases and step counts, but trains no model."""

    step = 0

    def __init__(self, clock, phases, step):
        self.clock, self.phases, self.step = clock, phases, step
        self.phase = phase_at(phases, clock.at(max(step - 1, 0)))
        self.pace, self.seconds, self.compiled = Pace(0), {}, set()
        self.ended_early = False
        self.trainer = types.SimpleNamespace(
            training=types.SimpleNamespace(stop_step=0),
            strategy=tf.distribute.get_strategy(),
        )


class Simulation:
    """A run on a machine, in consecutive processes.

    Args:
      machine: the durations.
      eval_steps, save_steps: steps between evaluations and between saves.
      hours: the time budget.
      layers: {position at which a phase ends: number of layers}. By default,
        the run has one phase with one layer.

    Attributes:
      made: {layers: number of steps with this number of layers}.
      now: seconds on the clock, including pauses.
      paused: seconds on the clock that do not count as time used.
      rates: {step: learning rate}.
      saved: (step, state) of the last checkpoint.
    """

    def __init__(
        self, machine, eval_steps=100, save_steps=150, hours=HOURS, layers=None
    ):
        self.machine, self.now, self.saved = machine, 0.0, (0, {})
        self.eval_steps, self.save_steps = eval_steps, save_steps
        ends = layers or {PLANNED: 1}
        self.hours, self.made = hours, dict.fromkeys(ends.values(), 0)
        self.phases = tuple(
            Phase(begin, end, 16, layers=ends[end])
            for begin, end in itertools.pairwise((0, *ends))
        )
        self.rates, self.paused, self.step = {}, 0.0, 0
        config = OptimizerConfig(learning_rate=1.0, num_warmup_steps=50)
        self.rate = RunRate(config, PLANNED)

    def clock(self, step_seconds):
        """Return the clock of a process that starts at this moment.

        A new run expects `step_seconds` seconds per step.
        """
        state = self.saved[1]
        return BudgetClock(
            PLANNED,
            *state.get("course", ()),
            seconds=self.hours * 3600,
            start_time=self.now,
            step_seconds=state.get("step_seconds", step_seconds),
            eval_steps=self.eval_steps,
            save_steps=self.save_steps,
            evaluation=2.0 / step_seconds,
            closing=0.0,
            used_before=state.get("seconds"),
            now=lambda: self.now,
        )

    def _train(self, run, share):
        """Run steps; return their number and their duration in seconds."""
        phase = run._due_phase()
        if phase is not run.phase:
            run.phase, run.pace = phase, Pace(0)
        steps = run._window_steps([self.eval_steps, self.save_steps])
        seconds = steps * self.machine.pace(share)
        seconds += self.machine.compiling * (phase.shape not in run.compiled)
        self.made[phase.layers] += steps
        self.rate.follow(run.clock)
        made = range(run.step, run.step + steps)
        rates = self.rate(tf.constant([*made]))
        self.rates |= dict(zip(made, rates.numpy().tolist(), strict=True))
        self.now += seconds
        run.step += steps
        return steps, seconds

    def process(self, dies_at=None, step_seconds=0.8):
        """Run from the last checkpoint to the end; return the clock.

        At step `dies_at`, raise `Killed` instead. A new run expects
        `step_seconds` seconds per step.
        """
        machine, clock = self.machine, self.clock(step_seconds)
        run = SimulatedRun(clock, self.phases, self.saved[0])
        run._turn(over=False)
        while not run.finished:
            share = (self.now - self.paused) / 3600 / self.hours
            steps, seconds = self._train(run, share)
            if dies_at and run.step >= dies_at:
                raise Killed
            run._measure(steps, seconds)
            run._turn(over=True)
            if run.due(self.eval_steps):
                evaluation = machine.evaluation * machine.pace(share) / 0.8
                run.seconds["evaluation"] = evaluation
                self.now += evaluation
            if run.due(self.save_steps):
                self.saved = run.step, clock.state()["budget"]
                self.now += machine.checkpoint
                run.seconds["checkpoint"] = machine.checkpoint
            if not run.finished:
                run._turn(over=False)
        self.step = run.step
        return clock

    def jump(self):
        """Return the largest change of the rate from one step to the next."""
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
    """A run's duration is within 1% of its time budget.

    The learning rate ends below 1% of the peak, without jumps.
    """
    simulation = Simulation(MACHINES[name])
    simulation.process()
    assert simulation.now == pytest.approx(HOURS * 3600, rel=0.01)
    last = simulation.rates[simulation.step - 1]
    assert 0 < last < 0.01
    assert simulation.jump() < 0.08


# {name: {position at which a phase ends: number of layers}}
SCHEDULES = {
    "depth": {300: 1, 600: 2, PLANNED: 3},
    "two": {300: 1, 350: 2, 600: 3, 640: 4, PLANNED: 5},
    "late": {900: 1, 980: 2, 995: 3, PLANNED: 4},
}


@pytest.mark.parametrize("seconds", [30, 60, 120, 300])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_short_run_with_schedules_ends_at_no_rate(name, seconds):
    """A short run ends with a low rate, after at least one step of each phase.

    Each phase compiles for 10 s. A run whose phases compile in less than half
    of the time is late by less than 2%. Any other run is late by less than the
    time to compile plus 9 s.
    """
    machine = Machine(lambda share: 0.05, 0.2, 0.1, compiling=10.0)
    ends = SCHEDULES[name]
    simulation = Simulation(machine, hours=seconds / 3600, layers=ends)
    simulation.process(step_seconds=0.05)
    last = simulation.rates[simulation.step - 1]
    assert 0 < last < 0.02
    assert all(simulation.made.values())
    late = simulation.now - seconds
    compiling = 10.0 * len(ends)
    assert late < (0.02 * seconds if 2 * compiling < seconds else compiling + 9)


def test_the_steps_follow_the_pace():
    """A machine that is half as fast runs half as many steps."""
    steps = []
    for pace in (0.5, 1.0):
        machine = Machine(lambda share, pace=pace: pace, 0.0, 0.0, 0.0)
        simulation = Simulation(machine, hours=HOURS / 3)
        simulation.process()
        steps.append(simulation.step)
    assert steps[0] / steps[1] == pytest.approx(2, rel=0.02)


def test_a_run_that_goes_as_planned_has_the_ordinary_schedule():
    """At the expected pace, rates are close to the rates of `WarmupDecay`."""
    pace = (HOURS * 3600 - 2.0) / PLANNED
    machine = Machine(lambda share: pace, 2.0, 0.0, compiling=0.0)
    simulation = Simulation(machine, 10**6, 10**6)
    simulation.process(step_seconds=pace)
    assert simulation.step == pytest.approx(PLANNED, abs=3)
    ordinary = WarmupDecay(1.0, PLANNED, 50)
    rates = ordinary(tf.constant([*simulation.rates]))
    np.testing.assert_allclose([*simulation.rates.values()], rates, atol=4e-3)


def test_a_kill_and_a_pause_take_no_time():
    """A resumed run has about as many steps as an uninterrupted run.

    The learning rate continues at the value of the uninterrupted run.
    """
    whole, broken = Simulation(Machine()), Simulation(Machine())
    whole.process()
    with pytest.raises(Killed):
        broken.process(dies_at=500)
    step, state = broken.saved
    assert step == 450
    broken.now += 5000.0
    broken.paused = broken.now - state["seconds"]
    before, start = broken.now, state["seconds"]
    broken.process()
    again = broken.now - before - broken.machine.compiling
    assert start + again == pytest.approx(HOURS * 3600, rel=0.01)
    assert broken.step == pytest.approx(whole.step, rel=0.01)
    assert broken.rates[451] == pytest.approx(whole.rates[451], abs=1e-6)
    assert broken.jump() < 0.04
    broken.now += 5000.0
    finished = broken.process()  # Nothing is left to train.
    assert finished.used() == broken.saved[1]["seconds"]


def test_a_run_of_steps_is_where_its_step_is():
    """Without a budget, the schedule position is the number of steps so far."""
    clock = Clock(1000)
    assert clock.at(700) == 700 and clock.steps_to(1000, 700) == 300
    assert clock.most(990) == 10 and clock.steps_to(600, 700) == 0
    clock.turn(700, {"evaluation": 9.0}, over=True)
    assert clock.at(701) == 701 and clock.state() == {}


@pytest.mark.parametrize("steps", [3, 7, 100])
def test_rounding_neither_adds_nor_drops_a_step(steps):
    """The steps to the end are exact although positions are rounded.

    A position just before the end is one step away from it.
    """
    clock = Clock(1000, advance=1000 / steps)
    left = [clock.steps_to(1000, step) for step in range(steps)]
    assert left == [*range(steps, 0, -1)]
    assert Clock(1000, 5, 1000 - 1e-9).steps_to(1000, 5) == 1


def test_a_budget_counts_what_is_due():
    """The time left excludes the final evaluations, save and learning curves.

    The time of a step includes its share of evaluations and checkpoints.
    """
    clock = BudgetClock(
        1000, 20, 400.0, 2.0, seconds=200.0, step_seconds=0.5, eval_steps=10,
        save_steps=25, evaluation=4.0, checkpoint=5.0, closing=3.0,
        final_evals=1, compiling=14.0, now=lambda: 26.0,
    )  # fmt: skip
    assert clock.left() == 200 - 26 - 2 * 2 - 5 - 3
    # A step takes 0.5 s, plus 0.2 s each for evaluations and checkpoints.
    clock.turn(30, {}, over=False, to_compile=1)
    assert clock.steps_to(1000, 30) == round((162 - 14) / 0.9)
    clock.turn(30, {}, over=False)
    steps = round(162 / 0.9)
    assert clock.at(30) == 420 and clock.at(30 + steps) == pytest.approx(1000)
    assert clock.steps_to(1000, 30) == steps and clock.most(30) == steps / 2
    # New durations, in seconds, replace the old durations.
    clock.turn(30, {"evaluation": 3.0, "checkpoint": 10.0}, over=False)
    assert clock.left() == 200 - 26 - 2 * 3 - 10 - 3
    assert clock.steps_to(1000, 30) == round(155 / (0.5 + 0.3 + 0.4)) == 129
    assert clock.most(30) == 65


@pytest.mark.parametrize("left", [49, 50])
def test_nothing_is_due_shortly_before_the_end(left):
    """With a budget, no action is due in the last half interval before the end.

    At the end itself, all actions are due.
    """
    phases = (Phase(0, 1000, 16),)
    clock = BudgetClock(1000, 100, 900.0, 100 / left)
    run = SimulatedRun(clock, phases, 100)
    assert run.last == 100 + left
    assert run.due(100) is (left == 50)
    assert run.due(0) and not run.due(30)
    assert SimulatedRun(Clock(100 + left), phases, 100).due(100)
    assert SimulatedRun(BudgetClock(1000, 99, 1000.0), phases, 99).due(100)


@pytest.mark.parametrize(
    "seconds, memory", [(100.0, 20.0), (11.0, 5.0), (1.5, 0.5)]
)
def test_the_pace_is_averaged_over_what_is_left(seconds, memory):
    """The pace is averaged over 20 s, or over half of the time left if shorter.

    The minimum is half a second.
    """
    clock = BudgetClock(1000, seconds=seconds, now=lambda: 0.0)
    assert clock.closing == 1.0
    clock.measure(10, 20.0, fresh=True, compiles=False)
    assert (clock.step_seconds, clock.compiling) == (1.0, 0.0)
    clock.measure(10, 20.0, fresh=False, compiles=False)
    weight = 1 - np.exp(-20.0 / memory)
    assert clock.step_seconds == pytest.approx(1 + weight)


def test_a_resumed_run_begins_when_its_steps_are_compiled():
    """In a resumed process, the time before the first steps does not count.

    The time to compile these steps does not count, either.
    """
    clock = BudgetClock(
        1000, 7, seconds=100.0, used_before=30.0, now=lambda: 500.0
    )
    clock.checkpoint = 2.0
    assert clock.used() == 30.0
    assert clock.state()["budget"]["seconds"] == 32.0
    clock.measure(10, 25.0, fresh=True, compiles=True)
    assert (clock.used(), clock.compiling) == (40.0, 15.0)
    assert clock.used_before is None
    assert clock.step_seconds == 1.0
    clock.measure(10, 5.0, fresh=True, compiles=True)
    assert clock.compiling == 0.0
    assert clock.state()["budget"]["course"] == [7, 0.0, 1.0]


def test_a_run_out_of_time_lets_the_rate_decay():
    """After the time limit, each step covers at most 1% of the schedule.

    Steps that already cover more are not divided. Each remaining phase has at
    least one step, and the run ends only when it is allowed to end.
    """
    clock = BudgetClock(1000, 0, 400.0, 1.0, save_steps=100, now=lambda: 9.0)
    clock.turn(0, {}, over=True)
    assert clock.steps_to(1000, 0) == 60
    clock.turn(59, {}, over=True, phases=2)
    assert clock.steps_to(1000, 59) == 2
    clock.turn(60, {}, over=False)
    assert clock.steps_to(1000, 60) == 1 and not clock.state()["budget"]["over"]
    clock.turn(60, {}, over=True)
    assert clock.steps_to(1000, 60) == 0 and clock.state()["budget"]["over"]
    few = BudgetClock(1000, 0, 400.0, 100.0, save_steps=9, now=lambda: 9.0)
    few.turn(0, {}, over=True)
    assert few.steps_to(1000, 0) == 6


def test_the_last_step_of_a_complete_schedule():
    """Without a budget, `last_step` is fixed; with a budget, it is predicted.

    If the schedule of a budget is complete, `last_step` is the current step.
    """
    assert Clock(90).last_step(120) == 90
    assert BudgetClock(90, 100, 90.0, 0.0).last_step(120) == 120
    assert BudgetClock(90, 100, 80.0, 2.0).last_step(100) == 105


def test_stops_fall_on_every_cadence():
    """Windows of steps end at each evaluation, each checkpoint and the end."""
    stops, step = [], 0
    while step < 20:
        step = next_stop(step, 20, [6, 7])
        stops.append(step)
    assert stops == [6, 7, 12, 14, 18, 20]


def test_pace_aims_at_seconds():
    """A window of steps lasts about 5 s, and has at most 1,000 steps.

    The first steps, which include compilation, do not affect the pace.
    """
    pace = Pace(fixed=0)
    assert pace.steps() == 1
    pace.measure(1, 30.0)
    assert pace.seconds == 0 and pace.steps() == 2
    pace.measure(2, 0.2)
    assert pace.steps() == 50
    pace.measure(1000, 0.1)
    assert pace.steps() == 1000  # SIGTERM is not handled during them
    pace.measure(2, 20.0)
    assert pace.steps() == 1


@pytest.mark.parametrize("save, steps", [(3, 50), (27, 30), (28, 20), (60, 10)])
def test_a_slow_checkpoint_shortens_a_stretch(save, steps):
    """Steps and a checkpoint fit into the 30 s that follow SIGTERM.

    Each step takes 0.1 s; at least 10 steps are run at once.
    """
    pace = Pace(fixed=0, seconds=0.1, compiled=True)
    assert pace.steps(save) == steps
    assert Pace(fixed=7).steps(save) == 7
