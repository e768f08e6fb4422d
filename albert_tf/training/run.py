"""The run around the steps: resume, evaluate, save, report, stop cleanly."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.base.progress import Progress
from albert_tf.base.settings import Fact
from albert_tf.training import checkpoint_files, checkpoints, distribution
from albert_tf.training.health import Monitor
from albert_tf.training.history import HEALTH, History, Scalars, draw_curves
from albert_tf.training.stopping import Budget, StopRequest
from albert_tf.training.trainer import Trainer

SECONDS_PER_LOOP = 5.0

# With `on_nonfinite=skip` a run without a single update for so long ends.
MAX_BAD_STEPS = 100


@dataclasses.dataclass
class Pace:
    """How many steps to run before returning to Python."""

    fixed: int
    seconds: float = 0.0  # of one step, measured
    measured: int = 0

    def steps(self) -> int:
        """Return the steps of the next stretch."""
        if self.fixed:
            return self.fixed
        if not self.measured:
            return 1
        return max(1, min(int(SECONDS_PER_LOOP / self.seconds), 1000))

    def measure(self, steps: int, seconds: float) -> None:
        """Take in a stretch; the first one compiles and does not count."""
        self.measured += 1
        if self.measured > 1:
            self.seconds = seconds / steps
        else:
            self.seconds = SECONDS_PER_LOOP / 2


def next_stop(step: int, last: int, *cadences: int) -> int:
    """Return the first step after `step` at which something is due."""
    return min([last, *((step // c + 1) * c for c in cadences)])


def due(step: int, last: int, cadence: int) -> bool:
    """Return whether a job with a cadence is due at a step."""
    return step == last or step % cadence == 0


@contextlib.contextmanager
def claimed(
    strategy: tf.distribute.Strategy, output_dir: str, claim: Callable
) -> Iterator[None]:
    """Let no other run write to a model directory during the body.

    Args:
      strategy: says which process writes; all are refused together.
      output_dir: the model directory, which is made.
      claim: writes what stands beside the checkpoints, or refuses; called
        only once the folder is held, where it may not be another run's.
    """
    with contextlib.ExitStack() as stack:
        with distribution.agreed(strategy):
            if distribution.is_chief(strategy):
                files.make_folder(output_dir)
                stack.enter_context(files.held(output_dir, "output_dir"))
                claim()
        yield


class Run:
    """One training run in a model directory that is `claimed`.

    Args:
      trainer: the model and its steps.
      output_dir: the model directory; a checkpoint in it is resumed.
      batches: see `Trainer.iterator`.
      evaluate: returns held-out metrics of the current weights; None for a
        run without held-out data.
      best_metric: keep the weights with its largest value in `best/`.
      watch: looks at the history at the start and after each evaluation; the
        run ends where it returns True.
      monitor: what to measure and to warn of, if anything.
      facts: what the weights follow from beyond `Trainer.facts`.
    """

    def __init__(
        self,
        trainer: Trainer,
        output_dir: str,
        batches: Callable,
        evaluate: Callable[[], dict[str, float]] | None,
        best_metric: str | None = None,
        watch: Callable[[History], bool] = lambda history: False,
        monitor: Monitor | None = None,
        facts: dict[str, Fact] | None = None,
    ):
        self.trainer, self.output_dir = trainer, output_dir
        self.batches, self.evaluate = batches, evaluate
        self.watch, self.monitor = watch, monitor
        self.best_metric = best_metric
        training = trainer.training
        self.budget = Budget(training.max_hours)
        self.facts = trainer.facts() | (facts or {})
        self.chief = distribution.is_chief(trainer.strategy)
        self.saver = checkpoints.Saver(
            output_dir, trainer.state(), training.keep_checkpoint_max
        )
        with distribution.agreed(trainer.strategy):
            self.last_good = checkpoints.latest(output_dir)
            if self.last_good:
                checkpoints.restore(self.last_good, trainer.state(), ignore=())
        self._require_same_step()
        self.last = training.num_train_steps
        if training.stop_step:
            self.last = min(self.last, training.stop_step)
        self.history = History(output_dir, trainer.step)
        self.scalars = Scalars(output_dir)
        self.pace = Pace(self._fixed_steps())
        self.bad_steps = 0  # the last ones, without a good one between
        self.ended_early = self.watch(self.history)

    def _require_same_step(self) -> None:
        """Refuse workers of which some see no checkpoint, or another one."""
        trainer, output_dir = self.trainer, self.output_dir
        steps = distribution.of_processes(trainer.strategy, trainer.step)
        if len(set(steps)) > 1:
            listed = (f"worker {i} at {step}" for i, step in enumerate(steps))
            raise InputError(
                "All workers must begin at the same step: `output_dir` must "
                "be a folder that they share. Received: output_dir="
                f"{output_dir}, {', '.join(listed)}"
            )

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        return self.ended_early or self.trainer.step >= self.last

    def _fixed_steps(self) -> int:
        """Several processes must return to Python at the same steps."""
        fixed = self.trainer.training.steps_per_loop
        several = distribution.processes(self.trainer.strategy) > 1
        return fixed or (100 if several else 0)

    def resume_message(self) -> str:
        """Say where the run goes on, and what is not as it was."""
        lines = [f"Resuming at step {self.trainer.step} from {self.last_good}"]
        earlier = checkpoint_files.about(self.last_good)
        lines += [
            f"Note: {name} was {earlier[name]} and is {value}: {change}"
            for name, (value, change) in self.facts.items()
            if earlier.get(name, value) != value
        ]
        return "\n".join(lines)

    def train(self) -> dict[str, float]:
        """Run to the last step, or until told to stop; return last metrics."""
        with StopRequest() as stop:
            return self._train(stop)

    def _train(self, stop: StopRequest) -> dict[str, float]:
        training = self.trainer.training
        last, step = self.last, self.trainer.step
        progress = Progress(last, step)
        if self.last_good:
            progress.message(self.resume_message())
        iterator = self.trainer.iterator(self.batches, step)
        metrics: dict[str, float] = {}
        reason = ""
        while not self.finished and not (reason := self._reason(stop)):
            target = next_stop(
                step, last, training.eval_steps, training.save_checkpoints_steps
            )
            steps = min(self.pace.steps(), target - step)
            self._stretch(iterator, step, steps, progress)
            step += steps
            evaluates = due(step, last, training.eval_steps)
            saves = due(step, last, training.save_checkpoints_steps)
            if self.evaluate and evaluates:
                with self.trainer.evaluated_weights():
                    metrics = self._evaluate(step, progress)
                self.ended_early = self.watch(self.history)
            if evaluates or saves:
                self._warn(step, progress)
            if self.finished or saves:
                self._save(step)
        if reason and not self.finished:
            self._save(step)
            progress.message(self._farewell(reason))
        progress.close()
        if self.chief and self.history.rows:
            draw_curves(self.history, self.output_dir, self._curves())
        return metrics

    def _reason(self, stop: StopRequest) -> str:
        """Return why to stop now, the same in all processes, or nothing."""
        agree = distribution.any_process
        if agree(self.trainer.strategy, stop.received):
            return "SIGTERM"
        hours = self.trainer.training.max_hours
        if hours and agree(self.trainer.strategy, self.budget.spent()):
            return f"max_hours={hours:g}"
        return ""

    def _farewell(self, reason: str) -> str:
        hours = self.pace.seconds * (self.last - self.trainer.step) / 3600
        left = f", {hours:.2g} hours at this pace" if hours else ""
        return (
            f"Stopped by {reason} at step {self.trainer.step} of {self.last}; "
            f"saved {self.last_good}. The same command goes on from there"
            f"{left}"
        )

    def _curves(self) -> tuple[str, ...]:
        """Return what evaluation measured, or else what training did."""
        rows = [r for r in self.history.rows if r["split"] != HEALTH]
        row = next((r for r in rows if r["split"] == "eval"), rows[0])
        return tuple(k for k in row if k not in ("step", "split", "steps"))

    def _stretch(self, iterator, step, steps, progress) -> None:
        start = time.monotonic()
        stretch = self.trainer.run_steps(iterator, tf.constant(steps))
        bad = int(stretch.bad)
        seconds = time.monotonic() - start
        self._require_finite(stretch, steps)
        self.pace.measure(steps, seconds)
        self.budget.longest = max(self.budget.longest, seconds)
        if bad == steps:
            progress.advance(steps, f"{bad} updates skipped, not finite")
            return
        values = self.trainer.summarize(stretch.report.numpy())
        values |= self._measured(stretch, step + steps, steps / seconds)
        self.history.add(step + steps, "train", {"steps": steps, **values})
        if self.chief:
            self.scalars.write(step + steps, "train", values)
        progress.advance(
            steps,
            f"loss {values['loss']:.3f}, rate {values['learning_rate']:.2e}, "
            f"{values['examples_per_second']:.1f} examples/s",
        )

    def _measured(self, stretch, step: int, pace: float) -> dict[str, float]:
        """Return what a stretch says beyond its losses; `pace` is steps/s."""
        optimizer = self.trainer.optimizer
        rate = pace * self.trainer.training.train_batch_size
        values = {
            "gradient_norm": float(stretch.norm),
            "learning_rate": float(optimizer.learning_rate(step - 1)),
            "examples_per_second": rate,
            "hours_left": (self.last - step) / pace / 3600,
        }
        if self.trainer.training.on_nonfinite == "skip":
            values["skipped_updates"] = float(stretch.bad)
        if self.monitor:
            values |= self.monitor.scalars(rate)
            if optimizer.config.optimizer == "lamb":
                ratios = sorted(optimizer.trust_ratios().numpy().tolist())
                values["trust_ratio_min"] = ratios[0]
                values["trust_ratio_median"] = ratios[len(ratios) // 2]
                values["trust_ratio_max"] = ratios[-1]
        return values

    def _require_finite(self, stretch, steps: int) -> None:
        bad, first = int(stretch.bad), int(stretch.first_bad) + 1
        if not bad:
            self.bad_steps = 0
            return
        self.bad_steps = self.bad_steps + bad if bad == steps else 0
        where = f"at step {first}"
        if self.trainer.training.on_nonfinite == "skip":
            if self.bad_steps < MAX_BAD_STEPS:
                return
            where = f"in all of the last {self.bad_steps} steps"
        good = self.last_good or "none yet"
        raise InputError(
            f"The loss or its gradient is not finite {where}; lower "
            "`learning_rate` or raise `num_warmup_steps`. The last good "
            f"checkpoint: {good}"
        )

    def _warn(self, step: int, progress) -> None:
        """Say each thing that looks unhealthy once."""
        if not self.monitor:
            return
        rows = self.history.rows
        told = {row["kind"] for row in rows if row["split"] == HEALTH}
        for kind, note in self.monitor.notes(rows).items():
            if kind not in told:
                progress.message(f"Warning at step {step}: {note}")
                self.history.add(step, HEALTH, {"kind": kind, "note": note})

    def _evaluate(self, step: int, progress) -> dict[str, float]:
        metrics = self.evaluate()
        shown = ", ".join(f"{k} {v:.4f}" for k, v in metrics.items())
        progress.message(f"step {step}: {shown}")
        name = self.best_metric
        improved = name and metrics[name] > self.history.best(name)
        self.history.add(step, "eval", metrics)
        if self.chief:
            self.scalars.write(step, "eval", metrics)
            if improved:
                folder = files.join(self.output_dir, checkpoints.BEST)
                checkpoints.save(folder, self.trainer.weights, step)
        return metrics

    def _save(self, step: int) -> None:
        path = checkpoint_files.prefix(self.output_dir, step)
        if self.chief and path != self.last_good:
            start = time.monotonic()
            try:
                about = {n: fact.value for n, fact in self.facts.items()}
                self.saver.save(step, about)
            except InputError as error:
                good = self.last_good or "none yet"
                raise InputError(
                    f"{error}. The last good checkpoint: {good}"
                ) from None
            self.history.save()
            self.budget.saving = time.monotonic() - start
        self.last_good = path
