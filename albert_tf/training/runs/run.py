"""A run: stretches of steps, and hooks that act between them.

`Run.stretches` makes steps and yields after each stretch of them. All that a
run does besides is done by hooks, of which `hooks.py` has the usual ones and
a user may write more.
"""

import contextlib
import dataclasses
import functools
import signal
import time
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from albert_tf.base.console import Progress
from albert_tf.base.errors import InputError, require
from albert_tf.base.interrupts import in_main_thread, seen_at_once
from albert_tf.base.settings import Fact
from albert_tf.training.budget.phase_work import work_ahead
from albert_tf.training.machines import distribution
from albert_tf.training.model_directory import checkpoint_files, checkpoints
from albert_tf.training.pretraining.phases import Phase, at
from albert_tf.training.runs.history import History, Scalars
from albert_tf.training.runs.pace import Pace, next_stop
from albert_tf.training.step.trainer import Trainer

# The names of the signals that stop a run.
SIGTERM, SIGINT = "SIGTERM", "SIGINT (Ctrl-C)"
SIGNALS = {signal.SIGTERM: SIGTERM, signal.SIGINT: SIGINT}


@dataclasses.dataclass
class Stretch:
    """Some steps that a run has made.

    Attributes:
      steps: how many.
      seconds: that they took.
      values: means of the losses and metrics, and what else is measured; a
        hook before `Log` may add to what is recorded.
      bad: how many updates were not finite; they are not among `values`.
      first_bad: the number of the first of these steps, counted from 1.
    """

    steps: int
    seconds: float
    values: dict[str, float]
    bad: int
    first_bad: int


class Run:
    """A training run in a model directory that is `claimed`.

    A checkpoint that is there is resumed.

    Args:
      trainer: the model and its steps.
      output_dir: the model directory.
      facts: what the weights follow from beyond `Trainer.facts`.
      phases: of the whole run; none where nothing changes.

    Attributes:
      end: the last step of the schedule.
      last: the step at which this run ends: `end`, or an earlier `stop_step`.
      last_good: the newest checkpoint, None before the first.
      history: what was measured up to now, also before a resume.
      chief: whether this process writes files.
      ended_early: whether there is nothing left to train before `last`.
      stopped_by: why the run ends for now, see `stop`.
      kept: {name: function} of what stands beside checkpoints too.
      seconds: that the last "evaluation" and "checkpoint" took.
      slack: the share of a cadence before the end in which it is not due.
    """

    def __init__(
        self,
        trainer: Trainer,
        output_dir: str,
        facts: dict[str, Fact] | None = None,
        phases: Sequence[Phase] = (),
    ):
        training = trainer.training
        self.trainer, self.output_dir = trainer, output_dir
        self.facts = trainer.facts() | (facts or {})
        self.chief = distribution.is_chief(trainer.strategy)
        with distribution.agreed(trainer.strategy):
            self.last_good = checkpoints.restore_latest(
                output_dir, trainer.state()
            )
        self._require_same_step()
        self.end = self.last = training.num_train_steps
        self.phases = tuple(phases) or (
            Phase(0, self.last, training.train_batch_size),
        )
        if training.stop_step:
            self.last = min(self.last, training.stop_step)
        self.pace = Pace(training.steps_per_loop)
        self.history = History(output_dir, trainer.step)
        self.scalars = Scalars(output_dir)
        self.ended_early, self.stopped_by = False, ""
        self.kept: dict[str, Callable] = {}
        self.seconds: dict[str, float] = {}
        self.slack = 0.0

    def _require_same_step(self) -> None:
        """Refuse workers of which some see no checkpoint, or another one."""
        steps = distribution.of_processes(self.trainer.strategy, self.step)
        workers = [f"worker {i} at {step}" for i, step in enumerate(steps)]
        require(
            len(set(steps)) == 1,
            "All workers must begin at the same step: `output_dir` must be a "
            "folder that they share.",
            output_dir=", ".join([self.output_dir, *workers]),
        )

    @property
    def step(self) -> int:
        """The number of updates made so far."""
        return self.trainer.step

    @property
    def steps_left(self) -> float:
        """The steps to come, as many of the present phase as take as long."""
        left = self.last - self.step
        if len(self.phases) == 1:
            return left
        config = self.trainer.model.config
        return left * work_ahead(self.phases, self.step, self.phase, config)

    @property
    def phase(self) -> Phase:
        """The phase of the last update, the first one before there is any."""
        return at(self.phases, max(self.step - 1, 0))

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        return self.ended_early or self.step >= self.last

    @functools.cached_property
    def progress(self) -> Progress:
        """Where messages and the progress go to."""
        return Progress(self.last, self.step)

    def move_end(self, step: int) -> None:
        """End with another step than the one that was the last."""
        self.end, stop_step = step, self.trainer.training.stop_step or step
        self.last = self.progress.total = min(step, stop_step)

    def due(self, every: int) -> bool:
        """Return whether what comes each `every` steps, or 0, comes now."""
        left = self.last - self.step
        due = self.step % (every or 1) == 0 and left >= self.slack * every
        return due or not left

    def stop(self, reason: str) -> None:
        """End the run after this stretch; the same command goes on from it."""
        self.stopped_by = reason

    def in_any_process(self, flag: bool) -> bool:
        """Return in every process whether a flag is set in any of them.

        Hooks must decide alike in all of them, and all must ask.
        """
        return distribution.any_process(self.trainer.strategy, flag)

    def record(self, split: str, values: dict, **columns) -> None:
        """Keep figures of this step, with columns for the history alone."""
        self.history.add(self.step, split, columns | values)
        if self.chief:
            self.scalars.write(self.step, split, values)

    def resume_message(self) -> str:
        """Say where the run goes on, and what is not as it was."""
        lines = [f"Resuming at step {self.step} from {self.last_good}"]
        earlier = checkpoint_files.about(self.last_good)
        lines += [
            f"Note: {name} was {earlier[name]} and is {value}: {change}"
            for name, (value, change) in self.facts.items()
            if earlier.get(name, value) != value
        ]
        return "\n".join(lines)

    @property
    def metrics(self) -> dict[str, float]:
        """Those of the last evaluation, maybe of an earlier session."""
        return self.history.last("eval")

    @property
    def hours_left(self) -> float:
        """The hours of the steps to come; 0 until the pace is measured."""
        return self.steps_left * self.pace.seconds / 3600

    def farewell(self) -> str:
        """Say why the run ends before its last step, and what is left."""
        hours = self.hours_left
        left = f", {hours:.2g} hours at this pace" if hours else ""
        return (
            f"Stopped by {self.stopped_by} at step {self.step} of {self.last}; "
            f"saved {self.last_good}. The same command goes on from there"
            f"{left}"
        )

    def stretches(
        self, batches: Callable, cadences: Sequence[int] = ()
    ) -> Iterator[Stretch]:
        """Train, and yield after each stretch of steps until the run ends.

        Args:
          batches: see `Trainer.iterator` and `Phase.reader`.
          cadences: a stretch ends at each multiple of one of these steps.
        """
        begun = trainer = iterator = None
        while not (self.finished or self.stopped_by):
            phase = at(self.phases, self.step)
            if phase.first_step != begun:
                begun = phase.first_step
                trainer, iterator = self._begin(phase, batches)
            border = self.last if phase is self.phases[-1] else phase.last_step
            last = min(self.last, border)
            ahead = next_stop(self.step, last, cadences) - self.step
            steps = self.pace.steps(self.seconds.get("checkpoint", 0.0))
            steps = distribution.of_chief(trainer.strategy, min(steps, ahead))
            start = time.monotonic()
            sums = trainer.run_steps(iterator, tf.constant(steps))
            bad, first_bad = int(sums.bad), int(sums.first_bad) + 1
            seconds = time.monotonic() - start
            self.pace.measure(steps, seconds)
            values = self._values(sums, steps / seconds)
            yield Stretch(steps, seconds, values, bad, first_bad)

    def _begin(self, phase: Phase, batches: Callable):
        """Return the trainer of a phase, and its batches from this step on."""
        self.pace = Pace(self.pace.fixed)
        if 0 < phase.first_step == self.step:
            self.progress.message(f"step {self.step}: {phase.summary()}")
        read = phase.reader(batches)
        iterator = self.trainer.iterator(read, self.step, phase)
        return self.trainer.at_depth(phase.layers), iterator

    def _values(self, sums, pace: float) -> dict[str, float]:
        """Return what steps gave; `pace` is steps a second."""
        trainer = self.trainer
        rate = trainer.optimizer.learning_rate(self.step - 1)
        left = {"hours_left": self.hours_left} if self.pace.seconds else {}
        return {
            **trainer.evaluator.summarize(sums.report.numpy()),
            "gradient_norm": float(sums.norm),
            "learning_rate": float(rate),
            "examples_per_second": pace * self.phase.batch_size,
            **left,
        }


class Hook:
    """What a run does between its steps; override what is needed.

    Attributes:
      every: `after` is called at each multiple of so many steps and at the
        last one; no stretch runs past them. 0 is after each stretch.
    """

    every = 0

    def begin(self, run: Run) -> None:
        """Be called once, before the first step."""

    def after(self, run: Run, stretch: Stretch) -> None:
        """Be called after a stretch, in the order of the hooks."""

    def end(self, run: Run) -> None:
        """Be called once, where the run ends, unless by an error."""


class StopOnSignal(Hook):
    """Stop at SIGTERM, sent before a machine is taken away, and at Ctrl-C.

    A second Ctrl-C raises `KeyboardInterrupt` without saving. Outside the
    `with` block and in other threads, signals keep their usual meaning. A
    Ctrl-C that the process ignores, as in the background of a script, stays
    ignored.

    Args:
      tell: prints a message as soon as a signal arrives.

    Attributes:
      received: the number of the first signal, 0 before it.
    """

    def __init__(self, tell: Callable[[str], None] = print):
        self.tell, self.received = tell, 0
        # Counts of Ctrl-C. While C++ runs, Python's handler is called once for
        # several signals.
        self._seen = self._handled = 0
        self._restore = contextlib.ExitStack()

    @property
    def interrupts(self) -> int:
        """How many times Ctrl-C was pressed."""
        return max(self._seen, self._handled)

    def __enter__(self) -> "StopOnSignal":
        if in_main_thread():
            for number in SIGNALS:
                earlier = signal.getsignal(number)
                if number == signal.SIGINT and earlier == signal.SIG_IGN:
                    continue
                signal.signal(number, self._handle)
                # None is a handler set in C, which Python cannot restore.
                back = earlier or signal.SIG_DFL
                self._restore.callback(signal.signal, number, back)
            self._restore.enter_context(seen_at_once(self._see))
        return self

    def __exit__(self, *_) -> None:
        self._restore.close()

    def _see(self, number: int) -> None:
        """Count a signal at once, and print what happens next."""
        if number not in SIGNALS:
            return
        self.received = self.received or number
        self._seen += number == signal.SIGINT
        told = f"Received {SIGNALS[number]}: saving and stopping after the "
        told += "current steps"
        if number == signal.SIGINT:
            told += ". Press Ctrl-C again to end now without saving"
        if self._seen < 2:
            self.tell(told)

    def _handle(self, number: int, _) -> None:
        self.received = self.received or number
        self._handled += number == signal.SIGINT
        if self.interrupts > 1:
            raise KeyboardInterrupt

    def after(self, run, stretch):
        strategy = run.trainer.strategy
        if number := max(distribution.of_processes(strategy, self.received)):
            run.stop(SIGNALS[number])


@contextlib.contextmanager
def last_good_named(run: Run) -> Iterator[None]:
    """Name the last good checkpoint in errors of the body."""
    try:
        yield
    except (InputError, OSError) as error:
        good = f"The last good checkpoint: {run.last_good or 'none yet'}"
        if good in str(error):
            raise
        raise InputError(f"{error}. {good}") from error


def train(run: Run, batches: Callable, hooks: Sequence[Hook]) -> None:
    """Train to the last step, or until a hook or a signal stops the run.

    Args:
      run: where it stands.
      batches: see `Trainer.iterator`.
      hooks: called in their order.

    Raises:
      KeyboardInterrupt: Ctrl-C was pressed. The run is saved unless it was
        pressed twice.
    """
    progress = run.progress
    with last_good_named(run), StopOnSignal(progress.message) as stop:
        if run.last_good:
            progress.message(run.resume_message())
        if run.finished:
            progress.message(
                f"Nothing is left to train: step {run.step} of {run.last}"
            )
        hooks = [*hooks, stop]
        for hook in hooks:
            hook.begin(run)
        cadences = [hook.every for hook in hooks if hook.every]
        for stretch in run.stretches(batches, cadences):
            for hook in hooks:
                if run.due(hook.every):
                    hook.after(run, stretch)
        for hook in hooks:
            hook.end(run)
        if run.stopped_by and not run.finished:
            progress.message(run.farewell())
        progress.close()
    if stop.interrupts:
        raise KeyboardInterrupt
