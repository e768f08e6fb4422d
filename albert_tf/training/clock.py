"""Clocks map steps to schedule positions; `Pace` limits the steps per call.

The schedules of the learning rate and of phases depend on the schedule
position. In a run with a fixed number of steps, the position is the number of
steps so far. With a time budget, the remaining time determines how far each
step advances the position, so that the schedules end when the time is up.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# The maximum duration of a call that runs steps, in seconds. If saving is slow,
# this limit is lower, but at least `LEAST_SECONDS`.
SECONDS_PER_LOOP, LEAST_SECONDS = 5.0, 1.0
# Seconds from SIGTERM until a preempted machine shuts down.
NOTICE_SECONDS = 30.0


@dataclasses.dataclass
class Pace:
    """The duration of a step, and the number of steps to run in one call.

    Attributes:
      fixed: a fixed number of steps per call; 0 means that the number depends
        on `seconds`.
      seconds: seconds per step; 0 until measured.
      compiled: whether the first call, which compiles the steps, has ended.
    """

    fixed: int
    seconds: float = 0.0
    compiled: bool = False

    def steps(self, save_seconds: float = 0.0) -> int:
        """Return the number of steps to run in the next call.

        The number is limited, because signals must wait until the call ends.

        Args:
          save_seconds: the seconds that saving takes after SIGTERM.
        """
        if self.fixed:
            return self.fixed
        if not self.compiled:
            return 1
        max_seconds = max(LEAST_SECONDS, NOTICE_SECONDS - save_seconds)
        max_seconds = min(max_seconds, SECONDS_PER_LOOP)
        seconds = self.seconds or SECONDS_PER_LOOP / 2
        return max(1, min(int(max_seconds / seconds), 1000))

    def measure(self, steps: int, seconds: float) -> None:
        """Record the duration of steps, but ignore the call that compiles."""
        if self.compiled:
            self.seconds = seconds / steps
        self.compiled = True


def next_stop(step: int, last: int, cadences: Sequence[int]) -> int:
    """Return the step at which the next call must end.

    The result is the first multiple of any cadence after `step`, but at most
    `last`.
    """
    return min([last, *((step // c + 1) * c for c in cadences)])


# The seconds per step are averaged over this many seconds or over half of the
# remaining time, whichever is shorter.
PACE_SECONDS = 20.0
# Estimated seconds to draw the curves and write the model card, used until the
# time is measured.
CLOSING_SECONDS = 1.0
# With a time budget, an evaluation or a checkpoint is skipped if the remaining
# run is shorter than this share of its interval. Otherwise, it would delay the
# end of the run, when the model is evaluated and saved anyway.
SLACK = 0.5
# The largest share of the schedule that one step may cover when time runs out.
# With linear decay, the rate of the last step is then at most this share of the
# peak rate.
LAST_SHARE = 0.01


@dataclasses.dataclass
class Clock:
    """The clock of a run with a fixed number of steps.

    Attributes:
      end: the schedule position at which all schedules end.
      step: the step at which the schedule position was last set.
      position: the schedule position at `step`.
      advance: the amount by which each later step advances the position.
      slack: see `SLACK`; 0 without a time budget.
    """

    end: int
    step: int = 0
    position: float = 0.0
    advance: float = 1.0
    slack = 0.0

    def at(self, step: int) -> float:
        """Return the schedule position after `step` steps."""
        return self.position + (step - self.step) * self.advance

    def steps_to(self, position: float, step: int) -> int:
        """Return the number of steps from `step` to a schedule position.

        The result is 0 if the position is already reached.
        """
        if self.at(step) >= position:
            return 0
        steps = math.ceil((position - self.at(step)) / self.advance - 1e-6)
        return max(steps, 1)

    def last_step(self, step: int) -> int:
        """Return the last step of the schedule, which may be before `step`."""
        return self.end

    def most(self, step: int) -> int:
        """Return the largest number of steps to run in one call."""
        return self.steps_to(self.end, step)

    def measure(
        self, steps: int, seconds: float, fresh: bool, compiles: bool
    ) -> None:
        """Record the duration of some steps; this base class ignores it.

        Args:
          steps: number of steps.
          seconds: the time that the steps took.
          fresh: whether these steps are the first of a phase.
          compiles: whether the steps have a shape that is new to this process.
        """

    def turn(
        self,
        step: int,
        durations: Mapping[str, float],
        over: bool,
        phases: int = 0,
        to_compile: int = 0,
    ) -> None:
        """Choose `advance` after `step`; in this base class, it is fixed.

        Args:
          step: number of updates so far.
          durations: the seconds of the last "evaluation" and "checkpoint".
          over: whether the run may end now if no time is left for a step.
          phases: number of future phases, each of which has at least one step.
          to_compile: number of future compilations.
        """

    def state(self) -> dict[str, Any]:
        """Return the state to save with a checkpoint."""
        return {}


@dataclasses.dataclass
class BudgetClock(Clock):
    """The clock of a run with a time budget.

    Attributes:
      seconds: the time budget of the whole run.
      start_time: the time, as returned by `now`, when the run began.
      step_seconds: recent seconds per step.
      eval_steps: steps between two evaluations; 0 without evaluations.
      save_steps: steps between two checkpoints.
      evaluation: duration of an evaluation as a multiple of a step's duration,
        because other programs on the machine slow down both equally.
      checkpoint: seconds per checkpoint.
      closing: seconds that the run needs after the last checkpoint.
      final_evals: number of evaluations after the last checkpoint.
      compiling: additional seconds that the first step of each shape takes,
        because it is compiled.
      used_before: seconds used by earlier processes; None in a new run, and
        once this process has compiled and run its first steps.
      choices: {setting: value} chosen for the run.
      agree: a function that returns the chief's argument in every process.
      now: a function that returns the current time in seconds.
    """

    seconds: float = 0.0
    start_time: float = 0.0
    step_seconds: float = 1.0
    eval_steps: int = 0
    save_steps: int = 0
    evaluation: float = 0.0
    checkpoint: float = 0.0
    closing: float = CLOSING_SECONDS
    final_evals: int = 0
    compiling: float = 0.0
    used_before: float | None = None
    choices: dict[str, Any] = dataclasses.field(default_factory=dict)
    agree: Callable[[int], int] = int
    now: Callable[[], float] = time.monotonic
    slack = SLACK

    def used(self) -> float:
        """Return the seconds used so far."""
        return (
            self.now() - self.start_time
            if self.used_before is None
            else self.used_before
        )

    def left(self) -> float:
        """Return the seconds left before the final evaluations and save."""
        reserved = (bool(self.eval_steps) + self.final_evals) * self.evaluation
        reserved = reserved * self.step_seconds + self.checkpoint + self.closing
        return self.seconds - self.used() - reserved

    def last_step(self, step: int) -> int:
        return step + self.steps_to(self.end, step)

    def most(self, step: int) -> int:
        """Return half of the remaining steps.

        The other half may not be needed, because `advance` may change.
        """
        return -(-self.steps_to(self.end, step) // 2)

    def measure(
        self, steps: int, seconds: float, fresh: bool, compiles: bool
    ) -> None:
        """Update `step_seconds` and, after a compilation, `compiling`.

        The first steps of a phase do not change `step_seconds`.
        """
        expected = steps * self.step_seconds
        if self.used_before is not None:
            self.start_time = self.now() - self.used_before - expected
            self.used_before = None
        elif not fresh:
            time_constant = min(PACE_SECONDS, max(self.left(), 1.0) / 2)
            weight = -math.expm1(-seconds / time_constant)
            self.step_seconds += weight * (seconds / steps - self.step_seconds)
        if compiles:
            self.compiling = max(seconds - expected, 0.0)

    def _min_steps(self, step: int, over: bool) -> int:
        """Return the minimum number of steps still to run; see `LAST_SHARE`."""
        left = (self.end - self.at(step)) / (LAST_SHARE * self.end)
        if over and left <= 0.5:
            return 0
        return min(math.ceil(left), self.steps_to(self.end, step))

    def turn(
        self,
        step: int,
        durations: Mapping[str, float],
        over: bool,
        phases: int = 0,
        to_compile: int = 0,
    ) -> None:
        """Set `advance` so that the schedules end when the time is up."""
        self.checkpoint = durations.get("checkpoint", self.checkpoint)
        if "evaluation" in durations:
            self.evaluation = durations["evaluation"] / self.step_seconds
        if self.used_before is not None:
            return  # keep `advance` until steps are timed
        seconds_per_step = self.step_seconds
        if self.eval_steps:
            seconds_per_step *= 1.0 + self.evaluation / self.eval_steps
        seconds_per_step += self.checkpoint / self.save_steps
        left = self.left() - to_compile * self.compiling
        steps = self.agree(round(left / seconds_per_step))
        steps = max(steps, self._min_steps(step, over), phases)
        self.step, self.position = step, self.at(step)
        if steps:
            self.advance = (self.end - self.position) / steps
        else:
            self.position = float(self.end)

    def state(self) -> dict[str, Any]:
        """Return the state to save with the next checkpoint."""
        budget = {
            "seconds": self.used() + self.checkpoint,
            "step_seconds": self.step_seconds,
            "course": [self.step, self.position, self.advance],
            "over": self.position >= self.end,
            "choices": self.choices,
        }
        return {"budget": budget}
