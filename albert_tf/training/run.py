"""A run: a loop over many steps, and hooks that act between steps.

`Run.windows` runs a number of steps, yields, and continues with the next steps.
Hooks do everything else; `hooks.py` contains the standard hooks, and users may
write others.
"""

import contextlib
import dataclasses
import functools
import signal
import time
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.console import Progress, counted
from albert_tf.base.errors import require
from albert_tf.base.interrupts import handling, in_main_thread, seen_at_once
from albert_tf.base.settings import RunFact
from albert_tf.training import checkpoint_files, checkpoints, distribution
from albert_tf.training.clock import Clock, Pace, next_stop
from albert_tf.training.history import History, Scalars
from albert_tf.training.phases import Phase, examples_read, phase_at, table_of
from albert_tf.training.trainer import Trainer

# The names of the signals that stop a run.
SIGTERM, SIGINT = "SIGTERM", "SIGINT (Ctrl-C)"
SIGNALS = {
    signal.SIGTERM: SIGTERM,
    signal.SIGINT: SIGINT,
    signal.SIGHUP: "SIGHUP (closed terminal)",
}


@dataclasses.dataclass
class Window:
    """The steps between two returns to Python.

    Attributes:
      steps: number of steps.
      seconds: the duration of the steps.
      values: means of the losses and metrics, and other measurements; a hook
        before `Log` may add values to record.
      bad: number of steps whose loss or gradient was not finite; the means and
        the gradient norm in `values` exclude them.
      first_bad: the first such step, counted from 1; 0 if there was none.
    """

    steps: int
    seconds: float
    values: dict[str, float]
    bad: int
    first_bad: int


class Run:
    """A training run in a model directory that `locked_model_dir` has locked.

    If the directory has a checkpoint, the run resumes from it.

    Args:
      trainer: the model and its steps.
      output_dir: the model directory.
      facts: settings that determine the weights, in addition to
        `Trainer.facts`.
      phases: the phases of the run; empty if there is a single phase.
      clock: the clock of the schedule; None means a `Clock` of
        `num_train_steps`.
      check_folder: a function that fails if `output_dir` was moved; the default
        detects moves since the creation of this object.

    Attributes:
      read: {`Phase.records`: examples read}.
      phase, phase_begun: the phase of the last update, and its first step.
      last_good: the newest checkpoint, or None before the first is saved.
      history: the metrics so far, including those before a resume.
      chief: whether this process writes files.
      ended_early: whether early stopping has completed the run before `last`.
      stopped_by: the reason why the run stops early, or ""; see `stop`.
      seconds: duration of the last "evaluation" and "checkpoint".
      compiled: the shapes for which this process has compiled a step.
    """

    def __init__(
        self,
        trainer: Trainer,
        output_dir: str,
        facts: dict[str, RunFact] | None = None,
        phases: Sequence[Phase] = (),
        clock: Clock | None = None,
        check_folder: Callable[[], None] | None = None,
    ):
        training = trainer.training
        self.trainer, self.output_dir = trainer, output_dir
        self.facts = trainer.facts() | (facts or {})
        self.chief = distribution.is_chief(trainer.strategy)
        with distribution.raise_everywhere(trainer.strategy):
            self.last_good = checkpoints.restore_latest(
                output_dir, trainer.state()
            )
        self._require_same_step()
        self.clock = clock or Clock(training.num_train_steps)
        whole = Phase(0, self.clock.end, training.train_batch_size)
        self.phases = tuple(phases) or (whole,)
        self.read: dict[str, int] = {}
        self.phase = self._last_phase()
        self.phase_begun = self.phase.begin
        self.pace = Pace(training.steps_per_loop)
        self.history = History(output_dir, trainer.step)
        self.scalars = Scalars(output_dir)
        self.ended_early, self.stopped_by = False, ""
        self.seconds: dict[str, float] = {}
        self.compiled: set[tuple] = set()
        unmoved = files.unmoved(output_dir)
        self.check_folder = check_folder or unmoved

    def _require_same_step(self) -> None:
        """Raise an error unless all workers resume from the same step."""
        steps = distribution.of_processes(self.trainer.strategy, self.step)
        workers = [f"worker {i} at {step}" for i, step in enumerate(steps)]
        require(
            len(set(steps)) == 1,
            "All workers must start at the same step: `output_dir` must be a "
            "folder that they share.",
            output_dir=", ".join([self.output_dir, *workers]),
        )

    @property
    def step(self) -> int:
        """The number of updates so far."""
        return self.trainer.step

    @property
    def end(self) -> int:
        """The last step of the schedule, as predicted by the clock."""
        return self.step + self.clock.steps_to(self.clock.end, self.step)

    @property
    def last(self) -> int:
        """The step at which this run ends: `end`, or an earlier `stop_step`."""
        return min(self.end, self.trainer.training.stop_step or self.end)

    @property
    def finished(self) -> bool:
        """Whether this run has reached its last step or ended early."""
        return self.ended_early or self.step >= self.last

    @functools.cached_property
    def progress(self) -> Progress:
        """The progress bar, which also prints messages."""
        return Progress(self.last, self.step)

    def due(self, every: int) -> bool:
        """Return whether an action with the interval `every` is due now.

        With an interval of 0, an action is due at each return to Python. Every
        action is due at the end. With a time budget, no action is due shortly
        before the end.
        """
        left = self.last - self.step
        due = self.step % (every or 1) == 0 and left >= self.clock.slack * every
        return due or not left

    def stop(self, reason: str) -> None:
        """End the run after the current steps; the same command resumes it."""
        self.stopped_by = reason

    def in_any_process(self, flag: bool) -> bool:
        """Return, in every process, whether a flag is set in any process.

        Every process must call this method, so that hooks make the same
        decision in all processes.
        """
        return distribution.any_process(self.trainer.strategy, flag)

    def record(self, split: str, values: dict, **columns) -> None:
        """Record values at this step; add `columns` only to the history."""
        self.history.add(self.step, split, columns | values)
        if self.chief:
            self.scalars.write(self.step, split, values)

    def resume(self) -> None:
        """Print where the run resumes, and print and record changed settings.

        A completed run does not use its new settings, so it records none.
        """
        where = f"Resuming at step {self.step} from {self.last_good}"
        changes = checkpoint_files.changes(self.last_good, self.facts)
        notes = [f"Note: {change}" for change in changes]
        self.progress.message("\n".join([where, *notes]))
        if self.finished:
            self.progress.message(self.nothing_left())
        else:
            self.history.resume(self.step, changes)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last evaluation, possibly from before a resume."""
        return self.history.last("eval")

    @property
    def hours_left(self) -> float:
        """The estimated hours left; 0 until the pace is measured."""
        return (self.last - self.step) * self.pace.seconds / 3600

    def farewell(self) -> str:
        """Return a message with the reason for the stop and the time left."""
        hours = self.hours_left
        left = f", and needs {hours:.2g} hours at this pace" if hours else ""
        return (
            f"Stopped by {self.stopped_by} at step {self.step} of {self.last}; "
            f"saved {self.last_good}. The same command resumes from there"
            f"{left}"
        )

    def nothing_left(self) -> str:
        """Return a message for a run that began with no steps left."""
        last = min(self.last, self.clock.last_step(self.step))
        return (
            f"Nothing left to train: {self.step} steps are complete, and the "
            f"run ends after {last}"
        )

    def windows(
        self, batches: Callable, cadences: Sequence[int] = ()
    ) -> Iterator[Window]:
        """Train until the run ends; yield a window at each return to Python.

        Args:
          batches: see `Trainer.iterator` and `Phase.reader`.
          cadences: intervals in steps; the method also yields at the multiples
            of each interval.
        """
        facts = {}
        if self.last_good:
            facts = checkpoint_files.read_facts(self.last_good)
        stored = facts.get("read", {})
        self.read = examples_read(self.phases, self.step)
        # Older checkpoints name folders; some may have equal records.
        named = [phase for phase in self.phases if phase.data_dir in stored]
        for phase in sorted(named, key=lambda phase: stored[phase.data_dir]):
            self.read[phase.records] = stored[phase.data_dir]
        self.read |= stored
        self.phase = self._last_phase()  # `init_state=run` restores the step
        self.phase_begun = facts.get("phase_begun", self.phase.begin)
        trainer = iterator = None
        while not (self.finished or self.stopped_by):
            phase = self._due_phase()
            if iterator is None or phase is not self.phase:
                trainer, iterator = self._begin(phase, batches)
            steps = self._window_steps(cadences)
            self.trainer.rate.follow(self.clock)
            start = time.monotonic()
            sums = trainer.run_steps(iterator, tf.constant(steps))
            bad, first_bad = int(sums.bad), int(sums.first_bad) + 1
            seconds = time.monotonic() - start
            self._measure(steps, seconds)
            self.read[phase.records] += steps * phase.batch_size
            values = self._values(sums, steps / seconds)
            self._turn(over=True)
            self.progress.total = self.last
            yield Window(steps, seconds, values, bad, first_bad)
            if not self.finished:
                self._turn(over=False)

    @property
    def _ahead(self) -> Sequence[Phase]:
        """The phases that follow the current one."""
        return self.phases[self.phases.index(self.phase) + 1 :]

    def _last_phase(self) -> Phase:
        """Return the phase of the last update."""
        return phase_at(self.phases, self.clock.at(max(self.step - 1, 0)))

    def _due_phase(self) -> Phase:
        """Return the phase of the next update.

        No phase is skipped, even if so few steps are left that one step
        advances the schedule past several phases.
        """
        steps_left = self.end - self.step
        index = self.phases.index(
            phase_at(self.phases, self.clock.at(self.step))
        )
        index = max(index, len(self.phases) - steps_left)
        now = self.phases.index(self.phase)
        return self.phases[min(max(index, now), now + 1)]

    def _window_steps(self, cadences: Sequence[int]) -> int:
        """Return the number of steps to run next, the same in all processes."""
        step, clock = self.step, self.clock
        last = min(self.last, step + clock.most(step))
        if self._ahead:
            border = step + max(clock.steps_to(self.phase.end, step), 1)
            last = min(last, border, self.end - len(self._ahead))
        steps = self.pace.steps(self.seconds.get("checkpoint", 0.0))
        steps = min(steps, next_stop(step, last, cadences) - step)
        return distribution.of_chief(self.trainer.strategy, max(steps, 1))

    def _measure(self, steps: int, seconds: float) -> None:
        """Pass the duration of some steps to `clock` and `pace`."""
        compiles = self.phase.shape not in self.compiled
        self.compiled.add(self.phase.shape)
        self.clock.measure(steps, seconds, not self.pace.compiled, compiles)
        self.pace.measure(steps, seconds)

    def _turn(self, over: bool) -> None:
        """Let the clock choose its advance; see `Clock.turn`."""
        shapes = {phase.shape for phase in self._ahead}
        phases, to_compile = len(self._ahead), len(shapes - self.compiled)
        self.clock.turn(self.step, self.seconds, over, phases, to_compile)

    def _begin(self, phase: Phase, batches: Callable):
        """Begin or resume a phase; return its trainer and remaining batches."""
        self.pace = Pace(self.pace.fixed)
        if phase is not self.phase:
            self.phase, self.phase_begun = phase, self.step
            self.progress.message(f"step {self.step}: {phase.summary()}")
        read, first = phase.reader(batches), self.read[phase.records]
        iterator = self.trainer.iterator(read, first, phase.batch_size)
        return self.trainer.at_depth(phase.layers), iterator

    def state(self) -> dict:
        """Return the facts to save with a checkpoint."""
        about = {name: fact.value for name, fact in self.facts.items()}
        about |= {"read": self.read, "phase_begun": self.phase_begun}
        return about | self.clock.state()

    def _values(self, sums, steps_per_second: float) -> dict[str, float]:
        """Return the values to record for some steps.

        `gradient_norm` is the largest norm; `learning_rate` is the last rate.
        """
        trainer = self.trainer
        left = {"hours_left": self.hours_left} if self.pace.seconds else {}
        return {
            **trainer.evaluator.summarize(sums.report.numpy()),
            "gradient_norm": float(sums.norm),
            "learning_rate": float(trainer.rate(self.step - 1)),
            "examples_per_second": steps_per_second * self.phase.batch_size,
            **left,
        }


class Hook:
    """The base class of actions between the steps of a run.

    Attributes:
      every: the interval, in steps, between calls of `after`, which is also
        called after the last step; 0 means a call at each return to Python.
    """

    every = 0

    def begin(self, run: Run) -> None:
        """Act once, before the first step."""

    def after(self, run: Run, window: Window) -> None:
        """Act after a window of steps, and after the run's earlier hooks."""

    def end(self, run: Run) -> None:
        """Act once, when the run ends without an error."""


class StopOnSignal(Hook):
    """A hook that stops a run on Ctrl-C, SIGTERM or SIGHUP.

    Machines send SIGTERM before preemption, and terminals send SIGHUP when they
    are closed. A second Ctrl-C raises `KeyboardInterrupt` without a new
    checkpoint. Outside the `with` block and in other threads, signals keep
    their usual effect. Signals that the process ignores are still ignored.

    Args:
      tell: a function that prints a message, called as soon as a signal
        arrives.

    Attributes:
      received: the number of the first signal; 0 if there was none.
    """

    def __init__(self, tell: Callable[[str], None] = print):
        self.tell, self.received = tell, 0
        # Numbers of Ctrl-C signals, seen and handled. While C++ code runs,
        # Python calls its handler only once for several signals.
        self._seen = self._handled = 0
        self._restore = contextlib.ExitStack()

    @property
    def interrupts(self) -> int:
        """The number of times that Ctrl-C was pressed."""
        return max(self._seen, self._handled)

    def __enter__(self) -> "StopOnSignal":
        if in_main_thread():
            self._restore.enter_context(handling(self._handle, *SIGNALS))
            self._restore.enter_context(seen_at_once(self._see))
        return self

    def __exit__(self, *_) -> None:
        self._restore.close()

    def _see(self, number: int) -> None:
        """Count a signal immediately, and print what happens next."""
        if number not in SIGNALS:
            return
        self.received = self.received or number
        self._seen += number == signal.SIGINT
        message = f"Received {SIGNALS[number]}: saving and stopping after the "
        message += "current steps"
        if number == signal.SIGINT:
            message += ". Press Ctrl-C again to end now without saving"
        if self._seen < 2:
            self.tell(message)

    def _handle(self, number: int, _) -> None:
        self.received = self.received or number
        self._handled += number == signal.SIGINT
        if self.interrupts > 1:
            raise KeyboardInterrupt

    def after(self, run, window):
        strategy = run.trainer.strategy
        if number := max(distribution.of_processes(strategy, self.received)):
            run.stop(SIGNALS[number])


def train(run: Run, batches: Callable, hooks: Sequence[Hook]) -> None:
    """Train to the last step, or until a hook or a signal stops the run.

    Args:
      run: the run, new or resumed.
      batches: see `Trainer.iterator`.
      hooks: the hooks, which are called in order.

    Raises:
      KeyboardInterrupt: if Ctrl-C was pressed. The run is saved unless Ctrl-C
        was pressed twice.
    """
    progress = run.progress
    named = checkpoint_files.naming_last_checkpoint(run)
    with named, StopOnSignal(progress.message) as stop:
        if run.last_good:
            run.resume()
        elif run.finished:
            progress.message(run.nothing_left())
        hooks = [*hooks, stop]
        for hook in hooks:
            hook.begin(run)
        cadences = [hook.every for hook in hooks if hook.every]
        for window in run.windows(batches, cadences):
            if run.chief:
                run.check_folder()  # hooks would create a new folder
            for hook in hooks:
                if run.due(hook.every):
                    hook.after(run, window)
        for hook in hooks:
            hook.end(run)
        if run.stopped_by and not run.finished:
            progress.message(run.farewell())
        progress.close()
    if stop.interrupts:
        raise KeyboardInterrupt


def warn_of_warmup(trainer: Trainer) -> None:
    """Warn if the run ends before warm-up does."""
    optimizer = trainer.optimizer.config
    steps = trainer.training.num_train_steps
    if steps < optimizer.peak_step:
        print(
            f"Warning: the learning rate reaches {optimizer.learning_rate:g} "
            f"after {optimizer.peak_step:,} steps of warm-up, but the run ends "
            f"after {steps:,} steps; see --num_warmup_steps"
        )


def describe_run(trainer: Trainer, run_phases: Sequence[Phase]) -> None:
    """Print a summary of the run."""
    first = run_phases[0]
    optimizer = trainer.optimizer
    size = sum(v.shape.num_elements() for v in trainer.weights.values())
    excluded = list(filter(optimizer.is_excluded, optimizer.names))
    replicas = trainer.strategy.num_replicas_in_sync
    has_ratio = optimizer.config.rule.has_trust_ratio
    print(
        f"{size:,} parameters, {counted(replicas, 'replica')}, "
        f"batches of {first.batch_size} x {first.metadata.max_seq_length} "
        f"tokens, {optimizer.config.optimizer} at "
        f"{optimizer.config.learning_rate:g}\n"
        f"Without weight decay{' and trust ratio' * has_ratio}: "
        f"{len(excluded)} of {len(trainer.trained)} variables: "
        f"{', '.join(excluded)}"
    )
    warn_of_warmup(trainer)
    if len(run_phases) > 1 or first.masked_lm_prob is not None:
        print(table_of(run_phases))
