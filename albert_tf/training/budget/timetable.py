"""When a run with so many hours ends: its last step, from what steps take.

The last step is worked out anew after each stretch, from the pace of late and
what evaluations and checkpoints took. The learning rate does not jump: it goes
on from where it is in its schedule, to the schedule's end, see `Course`.
"""

import bisect
import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from albert_tf.model.config import AlbertConfig
from albert_tf.training.budget.phase_work import step_work, work_ahead
from albert_tf.training.machines.distribution import of_chief
from albert_tf.training.pretraining.phases import Phase, moved
from albert_tf.training.runs import hooks
from albert_tf.training.runs.pace import SECONDS_PER_LOOP
from albert_tf.training.runs.run import Hook, Run

# The pace is a mean over the last seconds, of which there are at most so many,
# and at most half of what is left.
PACE_SECONDS = 20.0
# Drawing the curves, the model's card.
CLOSING_SECONDS = 1.0
MOST_STEPS = 1000  # of a stretch
# Evaluations and checkpoints are not due in this share of their cadence before
# the end, so that they do not stand between a run and its time.
SLACK = 0.5
END_OF_TIME = 2**31  # steps
# When time runs out, the largest share of the schedule that one step may cover.
# The rate of the last step is this share of the peak.
LAST_SHARE = 0.01


class Course(NamedTuple):
    """Where in the schedule a step is, while the last step moves.

    Attributes:
      step: of the last change.
      place: where in the schedule that was; like a step, of its own steps.
      pace: places that each step goes on.
    """

    step: int = 0
    place: float = 0.0
    pace: float = 1.0

    def at(self, step: int) -> float:
        """Return the place of a step."""
        return self.place + (step - self.step) * self.pace

    def step_at(self, place: float) -> float:
        """Return the step at a place."""
        return self.step + (place - self.place) / self.pace

    def turned(self, step: int, last: int, end: float) -> "Course":
        """Return the course from a step on that comes to the end at `last`."""
        place = self.at(step)
        return Course(step, place, (end - place) / (last - step))


@dataclasses.dataclass
class Timetable:
    """What is left of a run's time, and what it is for.

    Attributes:
      seconds: of the whole run.
      step_seconds: that a step takes, of late.
      eval_steps: steps between two evaluations; 0 is none.
      save_steps: steps between two checkpoints.
      evaluation: steps that take as long as one, for both are slower while
        others use the machine.
      checkpoint: seconds of one.
      closing: seconds after the last checkpoint.
      again: evaluations after it.
      ahead: what the steps left take on the average, as such steps.
      compiling: extra seconds of the first step of a phase, which compiles.
      to_compile: number of compilations still to come.
    """

    seconds: float
    step_seconds: float
    eval_steps: int
    save_steps: int
    evaluation: float = 0.0
    checkpoint: float = 0.0
    closing: float = CLOSING_SECONDS
    again: int = 0
    ahead: float = 1.0
    compiling: float = 0.0
    to_compile: int = 0

    def measure(self, steps: int, seconds: float, left: float) -> None:
        """Take in what some steps took."""
        memory = min(PACE_SECONDS, max(left, 1.0) / 2)
        weight = -math.expm1(-seconds / memory)
        self.step_seconds += weight * (seconds / steps - self.step_seconds)

    def cost(self, step: int, last: int) -> float:
        """Return the seconds from a step to the end of a run."""

        def due(every: int) -> int:
            latest = last - math.ceil(SLACK * every)
            return max(latest // every - step // every, 0) + 1 if every else 0

        return (
            (last - step) * self.step_seconds * self.ahead
            + (due(self.eval_steps) + self.again)
            * self.evaluation
            * self.step_seconds
            + due(self.save_steps) * self.checkpoint
            + self.to_compile * self.compiling
            + self.closing
        )

    def last(self, step: int, left: float) -> int:
        """Return the last step that fits; there is always one more."""
        lasts = range(step + 1, END_OF_TIME)
        fitting = bisect.bisect(lasts, left, key=lambda n: self.cost(step, n))
        return step + max(fitting, 1)

    def stretch(self, steps_left: int, most: int = 0) -> int:
        """Return how many steps to make at once.

        At most half of what is left, so that the end is met in ever smaller
        stretches.

        Args:
          steps_left: in the whole run.
          most: at once, as the user says; 0 is no limit.
        """
        usual = int(SECONDS_PER_LOOP / self.step_seconds)
        limit = min(usual, MOST_STEPS, -(-steps_left // 2), most or MOST_STEPS)
        return max(limit, 1)


def rehearse(
    run: Run, evaluate: Callable[[int], Any], batches: int
) -> tuple[float, float]:
    """Return the seconds of an evaluation and of drawing, both made once.

    Args:
      run: that is about to begin.
      evaluate: evaluates so many batches.
      batches: of a whole evaluation; 0 is none.
    """
    names, evaluation = run.trainer.evaluator.names, 0.0
    if batches:
        evaluate(1)  # compiles
        number, start = min(batches, 4), time.monotonic()
        evaluate(number)
        evaluation = (time.monotonic() - start) / number * batches
    start = time.monotonic()
    for _ in range(2 * run.chief):  # the first one imports
        start = time.monotonic()
        hooks.draw_curves(run.history, run.output_dir, names)
    return evaluation, time.monotonic() - start


def compiled_shape(phase: Phase) -> tuple:
    """Return the sizes of a phase; phases with equal ones compile once."""
    records = phase.metadata
    lengths = records and (
        records.max_seq_length,
        records.max_predictions_per_seq,
    )
    return phase.batch_size, phase.layers, lengths


class KeepTime(Hook):
    """Move the end of a run so that it meets its time; stands before `Save`.

    Args:
      timetable: with what is known before the first step.
      began: when the time began to run, by `now`.
      config: the architecture.
      kept: what a checkpoint kept of the run, see `state`; its time goes on
        when the first stretch, which compiles, is over.
      choices: {setting: value} that belong to the run.
      now: a clock of seconds.

    Attributes:
      rehearse: returns the seconds of an evaluation and of closing the run.
      last: the last step, as it is known by now.
    """

    def __init__(
        self,
        timetable: Timetable,
        began: float,
        config: AlbertConfig,
        kept: dict | None = None,
        choices: dict | None = None,
        now: Callable[[], float] = time.monotonic,
    ):
        self.timetable, self.began, self.now = timetable, began, now
        self.config, self.choices = config, choices or {}
        self.kept = kept or {}
        self.course = Course(*self.kept.get("course", ()))
        self.rehearse: Callable = lambda: (0.0, timetable.closing)
        self.last, self.outcome = 0, ""
        self.phase: Phase | None = None  # of the last stretch
        self.compiled: set[tuple] = set()  # in this process

    def used(self) -> float:
        """Return the seconds of the run up to now."""
        return self.kept.get("seconds") or self.now() - self.began

    def state(self) -> dict[str, Any]:
        """Return what a resume needs, while a checkpoint is written."""
        return {
            "seconds": self.used() + self.timetable.checkpoint,
            "step_seconds": self.timetable.step_seconds,
            "last": self.last,
            "course": self.course,
            "borders": self.borders,
            "choices": self.choices,
        }

    def _move(self, run, step: int, known: dict[int, int]) -> None:
        """Let phases that are not over at a step end where their places are.

        Args:
          run: whose phases they are.
          step: updates made.
          known: {place of an end in the schedule: its step}; others follow
            from the course.
        """
        places = [phase.last_step for phase in self.schedule]
        ends = [known.get(x, round(self.course.step_at(x))) for x in places]
        run.phases = moved(run.phases, step, ends)
        ends = [phase.last_step for phase in run.phases]
        self.borders = list(zip(places, ends, strict=True))

    def begin(self, run):
        table, training = self.timetable, run.trainer.training
        table.step_seconds = self.kept.get("step_seconds", table.step_seconds)
        evaluation, table.closing = self.rehearse()
        table.evaluation = evaluation / table.step_seconds
        self.last = self.kept.get("last", training.num_train_steps)
        self.schedule = run.phases
        self._move(run, -1, dict(self.kept.get("borders", ())))
        run.kept["budget"] = self.state
        with run.trainer.strategy.scope():
            run.trainer.optimizer.begin_course(list(self.course))
        run.move_end(self.last)
        run.pace.fixed, run.slack = 1, SLACK

    def _take_in(self, run, stretch) -> None:
        """Learn from a stretch; the first one of a phase also compiles."""
        table, before, self.phase = self.timetable, self.phase, run.phase
        compiles = compiled_shape(self.phase) not in self.compiled
        self.compiled.add(compiled_shape(self.phase))
        table.checkpoint = run.seconds.get("checkpoint", table.checkpoint)
        if self.kept:
            made = stretch.steps * table.step_seconds
            self.began = self.now() - self.kept["seconds"] - made
            self.kept = {}
        elif before and before.first_step == self.phase.first_step:
            left = table.seconds - self.used()
            table.measure(stretch.steps, stretch.seconds, left)
        elif before:
            work = (step_work(p, self.config) for p in (self.phase, before))
            table.step_seconds *= next(work) / next(work)
        if compiles:
            made = stretch.steps * table.step_seconds
            table.compiling = max(stretch.seconds - made, 0.0)
        if evaluation := run.seconds.pop("evaluation", None):
            table.evaluation = evaluation / table.step_seconds

    def _left(self, run) -> float:
        """Return the seconds for the steps to come and what they entail."""
        table, place = self.timetable, self.course.at(run.step)
        table.ahead = work_ahead(self.schedule, place, self.phase, self.config)
        ahead = [p for p in run.phases if p.last_step > run.step]
        table.to_compile = len({*map(compiled_shape, ahead)} - self.compiled)
        due = table.checkpoint if run.due(table.save_steps) else 0.0
        return table.seconds - self.used() - due

    def _least(self, run) -> int:
        """Return how many steps a run makes even if its time is up.

        They let the rate decay and give each phase at least one step.
        """
        end = run.trainer.training.num_train_steps
        left = end - self.course.at(run.step)
        decay = math.ceil(left / (LAST_SHARE * end))
        phases = sum(phase.last_step > run.step for phase in run.phases)
        return max(min(decay, self.last - run.step), phases)

    def _turn(self, run, last: int) -> None:
        """Let the schedules of the run end with another step."""
        self.last, end = last, run.trainer.training.num_train_steps
        self.course = self.course.turned(run.step, last, end)
        run.trainer.optimizer.course.assign(list(self.course))
        self._move(run, run.step, {})
        run.move_end(last)

    def after(self, run, stretch):
        self._take_in(run, stretch)
        if run.step >= self.last:
            return
        table, trainer = self.timetable, run.trainer
        last = table.last(run.step, self._left(run))
        last = max(last, run.step + self._least(run))
        last = of_chief(trainer.strategy, last)
        if last != self.last:
            self._turn(run, last)
        most = trainer.training.steps_per_loop
        steps = table.stretch(last - run.step, most)
        run.pace.fixed = of_chief(trainer.strategy, steps)

    def end(self, run):
        rate = run.trainer.optimizer.learning_rate(max(run.step - 1, 0))
        self.outcome = f"{run.step} steps, the last at a rate of {rate:.2g}"

    def summary(self) -> str:
        """Say how the time was met, and how far the rate fell."""
        seconds, used = self.timetable.seconds, self.used()
        return (
            f"budget_hours={seconds / 3600:g}: {used:.1f} of {seconds:.0f} s "
            f"({100 * used / seconds - 100:+.1f} %), {self.outcome}"
        )
