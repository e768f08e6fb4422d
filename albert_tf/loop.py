"""The run around the steps: resume, evaluate, save, report, stop cleanly."""

import dataclasses
import math
import signal
import time
from collections.abc import Callable

import tensorflow as tf

from albert_tf import checkpoints, distribution, files
from albert_tf.errors import InputError
from albert_tf.history import History, Scalars, draw_curves
from albert_tf.progress import Progress
from albert_tf.training import Trainer

SECONDS_PER_LOOP = 5.0


class StopRequest:
    """Whether SIGTERM came, as it does before a machine is taken away."""

    def __init__(self):
        self.received = False
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, *_) -> None:
        self.received = True


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


class Run:
    """One training run in a model directory.

    Args:
      trainer: the model and its steps.
      output_dir: the model directory; a checkpoint in it is resumed.
      batches: see `Trainer.iterator`.
      evaluate: returns held-out metrics of the current weights; None for a
        run without held-out data.
      best_metric: keep the weights with its largest value in `best/`.
    """

    def __init__(
        self,
        trainer: Trainer,
        output_dir: str,
        batches: Callable,
        evaluate: Callable[[], dict[str, float]] | None,
        best_metric: str | None = None,
    ):
        self.trainer, self.output_dir = trainer, output_dir
        self.batches, self.evaluate = batches, evaluate
        self.best_metric = best_metric
        self.chief = distribution.is_chief(trainer.strategy)
        self.manager = checkpoints.manager(
            output_dir, trainer.state(), trainer.training.keep_checkpoint_max
        )
        self.last_good = checkpoints.latest(output_dir)
        if self.last_good:
            checkpoints.restore(self.last_good, trainer.state(), ignore=())
        self.history = History(output_dir, trainer.step)
        self.scalars = Scalars(output_dir)
        self.pace = Pace(self._fixed_steps())

    def _fixed_steps(self) -> int:
        """Several processes must return to Python at the same steps."""
        fixed = self.trainer.training.steps_per_loop
        workers = self.trainer.strategy.extended.worker_devices
        several = len({d.split("/device")[0] for d in workers}) > 1
        return fixed or (100 if several else 0)

    def train(self) -> dict[str, float]:
        """Run to the last step, or to SIGTERM; return the last metrics."""
        training = self.trainer.training
        last, step = training.num_train_steps, self.trainer.step
        stop, progress = StopRequest(), Progress(last, step)
        if self.last_good:
            progress.message(f"Resuming at step {step} from {self.last_good}")
        iterator = self.trainer.iterator(self.batches, step)
        metrics: dict[str, float] = {}
        while step < last and not stop.received:
            target = next_stop(
                step, last, training.eval_steps, training.save_checkpoints_steps
            )
            steps = min(self.pace.steps(), target - step)
            self._stretch(iterator, step, steps, progress)
            step += steps
            if self.evaluate and due(step, last, training.eval_steps):
                metrics = self._evaluate(step, progress)
            if due(step, last, training.save_checkpoints_steps):
                self._save(step)
        if stop.received and step < last:
            self._save(step)
            progress.message(f"Stopped by SIGTERM; saved {self.last_good}")
        progress.close()
        if self.chief and self.history.rows:
            draw_curves(self.history, self.output_dir, self._curves())
        return metrics

    def _curves(self) -> tuple[str, ...]:
        """Return what evaluation measured, or else what training did."""
        rows = self.history.rows
        row = next((r for r in rows if r["split"] == "eval"), rows[0])
        return tuple(k for k in row if k not in ("step", "split"))

    def _stretch(self, iterator, step, steps, progress) -> None:
        start = time.monotonic()
        report, norm = self.trainer.run_steps(iterator, tf.constant(steps))
        values = self.trainer.summarize(report.numpy())
        values["gradient_norm"] = float(norm)
        self._require_finite(values, step, step + steps)
        seconds = time.monotonic() - start
        self.pace.measure(steps, seconds)
        rate = steps * self.trainer.training.train_batch_size / seconds
        values["learning_rate"] = float(
            self.trainer.optimizer.learning_rate(step + steps - 1)
        )
        values["examples_per_second"] = rate
        self.history.add(step + steps, "train", values)
        if self.chief:
            self.scalars.write(step + steps, "train", values)
        progress.advance(
            steps,
            f"loss {values['loss']:.3f}, rate {values['learning_rate']:.2e}, "
            f"{rate:.1f} examples/s",
        )

    def _require_finite(self, values: dict, first: int, last: int) -> None:
        if all(map(math.isfinite, values.values())):
            return
        good = self.last_good or "none yet"
        raise InputError(
            f"The loss or its gradient is not finite between steps {first} "
            f"and {last}; lower `learning_rate` or raise `num_warmup_steps`. "
            f"The last good checkpoint: {good}"
        )

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
        if self.chief:
            self.last_good = self.manager.save(checkpoint_number=step)
            self.history.save()
