"""How many steps a run makes before it returns to Python."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SECONDS_PER_LOOP, LEAST_SECONDS = 5.0, 1.0
# From SIGTERM to the end of a machine that is taken away.
NOTICE_SECONDS = 30.0


@dataclasses.dataclass
class Pace:
    """How many steps to run before returning to Python."""

    fixed: int
    seconds: float = 0.0  # of one step; 0 until it is measured
    compiled: bool = False

    def steps(self, save_seconds: float = 0.0) -> int:
        """Return the steps of the next stretch, in which no signal is seen.

        Args:
          save_seconds: what a checkpoint takes of a notice.
        """
        if self.fixed:
            return self.fixed
        if not self.compiled:
            return 1
        most = max(LEAST_SECONDS, NOTICE_SECONDS - save_seconds)
        most = min(most, SECONDS_PER_LOOP)
        seconds = self.seconds or SECONDS_PER_LOOP / 2
        return max(1, min(int(most / seconds), 1000))

    def measure(self, steps: int, seconds: float) -> None:
        """Take in a stretch; the first one compiles and does not count."""
        if self.compiled:
            self.seconds = seconds / steps
        self.compiled = True


def next_stop(step: int, last: int, cadences: Sequence[int]) -> int:
    """Return the first step after `step` at which something is due."""
    return min([last, *((step // c + 1) * c for c in cadences)])


# The pace is a mean over the last seconds, of which there are at most so many,
# and at most half of what is left.
PACE_SECONDS = 20.0
# Drawing the curves, the model's card.
CLOSING_SECONDS = 1.0
# Evaluations and checkpoints are not due in this share of their cadence before
# the end, so that they do not stand between a run and its time.
SLACK = 0.5
# When time runs out, the largest share of the schedule that one step may cover.
# The rate of the last step is this share of the peak.
LAST_SHARE = 0.01


@dataclasses.dataclass
class Clock:
    """The clock of a run of so many steps.

    Attributes:
      end: the place where all schedules end.
      step: updates made when the place was last known.
      place: that place.
      pace: places that each step from there goes on.
    """

    end: int
    step: int = 0
    place: float = 0.0
    pace: float = 1.0
    slack = 0.0

    def at(self, step: int) -> float:
        """Return the place after so many steps."""
        return self.place + (step - self.step) * self.pace

    def steps_to(self, place: float, step: int) -> int:
        """Return how many steps after one come to a place."""
        if self.at(step) >= place:
            return 0
        return max(math.ceil((place - self.at(step)) / self.pace - 1e-6), 1)

    def most(self, step: int) -> int:
        """Return how many steps to make at once, at most."""
        return self.steps_to(self.end, step)

    def measure(
        self, steps: int, seconds: float, fresh: bool, compiles: bool
    ) -> None:
        """Learn the pace from some steps.

        Args:
          steps: how many were made.
          seconds: that they took.
          fresh: whether they are the first of a phase.
          compiles: whether their shape is new to this process.
        """

    def turn(
        self,
        step: int,
        took: Mapping[str, float],
        over: bool,
        phases: int = 0,
        to_compile: int = 0,
    ) -> None:
        """Choose the pace from a step on.

        Args:
          step: updates made.
          took: the seconds of the last "evaluation" and "checkpoint".
          over: whether the run may end here if no time is left for a step.
          phases: how many have not begun; each gets at least one step.
          to_compile: how many compilations are still to come.
        """

    def state(self) -> dict[str, Any]:
        """Return what is kept beside a checkpoint."""
        return {}


@dataclasses.dataclass
class BudgetClock(Clock):
    """The clock of a run of so many seconds.

    Attributes:
      seconds: of the whole run.
      began: when the time began to run, by `now`.
      step_seconds: that a step takes, of late.
      eval_steps: steps between two evaluations; 0 is none.
      save_steps: steps between two checkpoints.
      evaluation: steps that take as long as one, for both are slower while
        others use the machine.
      checkpoint: seconds of one.
      closing: seconds after the last checkpoint.
      again: evaluations after it.
      compiling: extra seconds of the first step of a shape, which compiles.
      kept: the seconds of earlier processes, until the first stretch of this
        one, which compiles, is over.
      choices: {setting: value} that belong to the run.
      agree: makes a number that of the chief.
      now: a clock of seconds.
    """

    seconds: float = 0.0
    began: float = 0.0
    step_seconds: float = 1.0
    eval_steps: int = 0
    save_steps: int = 0
    evaluation: float = 0.0
    checkpoint: float = 0.0
    closing: float = CLOSING_SECONDS
    again: int = 0
    compiling: float = 0.0
    kept: float | None = None
    choices: dict[str, Any] = dataclasses.field(default_factory=dict)
    agree: Callable[[int], int] = int
    now: Callable[[], float] = time.monotonic
    slack = SLACK

    def used(self) -> float:
        """Return the seconds of the run up to now."""
        return self.now() - self.began if self.kept is None else self.kept

    def left(self) -> float:
        """Return the seconds that are left for all before the ending."""
        ending = (bool(self.eval_steps) + self.again) * self.evaluation
        ending = ending * self.step_seconds + self.checkpoint + self.closing
        return self.seconds - self.used() - ending

    def most(self, step: int) -> int:
        """Return half of the steps left, so that stretches get ever smaller."""
        return -(-self.steps_to(self.end, step) // 2)

    def measure(
        self, steps: int, seconds: float, fresh: bool, compiles: bool
    ) -> None:
        """Learn the pace; the first steps of a phase do not count."""
        made = steps * self.step_seconds
        if self.kept is not None:
            self.began, self.kept = self.now() - self.kept - made, None
        elif not fresh:
            memory = min(PACE_SECONDS, max(self.left(), 1.0) / 2)
            weight = -math.expm1(-seconds / memory)
            self.step_seconds += weight * (seconds / steps - self.step_seconds)
        if compiles:
            self.compiling = max(seconds - made, 0.0)

    def _least(self, step: int, over: bool) -> int:
        """Return how many steps let the rate decay even if the time is up."""
        left = (self.end - self.at(step)) / (LAST_SHARE * self.end)
        if over and left <= 0.5:
            return 0
        return min(math.ceil(left), self.steps_to(self.end, step))

    def turn(
        self,
        step: int,
        took: Mapping[str, float],
        over: bool,
        phases: int = 0,
        to_compile: int = 0,
    ) -> None:
        """Let the end be where the time is over."""
        self.checkpoint = took.get("checkpoint", self.checkpoint)
        if "evaluation" in took:
            self.evaluation = took["evaluation"] / self.step_seconds
        if self.kept is not None:
            return  # goes on as it was
        each = self.step_seconds
        if self.eval_steps:
            each *= 1.0 + self.evaluation / self.eval_steps
        each += self.checkpoint / self.save_steps
        left = self.left() - to_compile * self.compiling
        steps = self.agree(round(left / each))
        steps = max(steps, self._least(step, over), phases)
        self.step, self.place = step, self.at(step)
        if steps:
            self.pace = (self.end - self.place) / steps
        else:
            self.place = float(self.end)

    def state(self) -> dict[str, Any]:
        """Return what is kept beside a checkpoint, which is then written."""
        budget = {
            "seconds": self.used() + self.checkpoint,
            "step_seconds": self.step_seconds,
            "course": [self.step, self.place, self.pace],
            "over": self.place >= self.end,
            "choices": self.choices,
        }
        return {"budget": budget}
