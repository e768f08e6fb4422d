"""The standard hooks, which log, evaluate, warn, save and stop."""

import time
from collections.abc import Callable, Iterable

from albert_tf.base import files
from albert_tf.base.console import counted
from albert_tf.base.errors import require
from albert_tf.base.packages import lacking
from albert_tf.data.records.metadata import BY_FREQUENCY
from albert_tf.training import checkpoint_files, checkpoints, history
from albert_tf.training.health import FiniteSteps, Monitor, masked_spread
from albert_tf.training.history import HEALTH
from albert_tf.training.phases import step_work
from albert_tf.training.run import SIGTERM, Hook, Run
from albert_tf.training.training_config import TrainingConfig


def check_hooks(hooks: Iterable[Hook] | Hook) -> tuple[Hook, ...]:
    """Return a user's hooks as a tuple; raise an error for other objects."""
    hooks = tuple(hooks) if isinstance(hooks, Iterable) else (hooks,)
    invalid = [
        getattr(hook, "__name__", type(hook).__name__)
        for hook in hooks
        if not isinstance(hook, Hook)
    ]
    rule = "`hooks` must be a list of `Hook` instances."
    require(not invalid, rule, hooks=", ".join(invalid))
    return hooks


class RequireFinite(Hook):
    """A hook that raises an error if a loss or gradient is not finite.

    Args:
      skips: see `FiniteSteps`.
    """

    def __init__(self, skips: bool):
        self.finite = FiniteSteps(skips)

    def after(self, run, window):
        where = f"at step {window.first_bad}"
        window.values |= self.finite.check(window.steps, window.bad, where)


def make_monitor(run: Run, peak_flops: float | None = None) -> Monitor:
    """Return the monitor of a run's current phase.

    Losses of different phases are not comparable, so the monitor does not
    compare them. It also does not warn about the mask rates of a schedule.

    Args:
      run: the run.
      peak_flops: the peak FLOP/s of all devices together, or None if unknown.
    """
    phase, trainer = run.phase, run.trainer
    metadata = phase.metadata
    flops = step_work(phase, trainer.model.config) / phase.batch_size
    masked = metadata.statistics.get("masked_share")
    return trainer.objective.monitor(
        metadata.max_seq_length,
        flops,
        phase.batch_size,
        max(trainer.optimizer.config.peak_step, run.phase_begun),
        peak_flops,
        masked if phase.masked_lm_prob is None else None,
        metadata.statistics.get(BY_FREQUENCY, {}),
    )


class Measure(Hook):
    """A hook that measures speed, and trust ratios if the rule has them.

    This hook must precede `Log`.
    """

    def __init__(self, monitor_of: Callable[[Run], Monitor]):
        self.monitor_of = monitor_of

    def after(self, run, window):
        speed = window.values["examples_per_second"]
        window.values |= self.monitor_of(run).scalars(speed)
        if run.trainer.optimizer.config.rule.has_trust_ratio:
            ratios = sorted(run.trainer.trust_ratios().numpy().tolist())
            window.values |= {
                "trust_ratio_min": ratios[0],
                "trust_ratio_median": ratios[len(ratios) // 2],
                "trust_ratio_max": ratios[-1],
            }


class MeasureSpread(Hook):
    """A hook that measures `health.masked_spread`; it must precede `Log`.

    Args:
      every: the interval in steps; the first measurement is at this step.
      batches: a function that creates batches of texts; see
        `Evaluator.predict`.
    """

    def __init__(self, every: int, batches: Callable):
        self.every, self.batches = every, batches

    def after(self, run, window):
        if run.step >= self.every:  # a short run may end earlier
            trainer = run.trainer.at_depth(run.phase.layers)
            states = trainer.objective.masked_states
            spread = masked_spread(
                **trainer.evaluator.predict(self.batches, states)
            )
            if spread is not None:
                window.values["masked_spread"] = spread


class Log(Hook):
    """A hook that records the values of training steps and shows progress."""

    def after(self, run, window):
        values = window.values
        if window.bad == window.steps:
            shown = f"{counted(window.bad, 'update')} skipped: not finite"
        else:
            run.record("train", values, steps=window.steps)
            shown = (
                f"loss {values['loss']:.3f} (mean of {window.steps}), rate "
                f"{values['learning_rate']:.2e}, "
                f"{values['examples_per_second']:.1f} examples/s"
            )
        run.progress.advance(window.steps, shown)


class Evaluate(Hook):
    """A hook that evaluates the model with its averaged weights, if any.

    Args:
      every: steps between two evaluations.
      evaluate: a function that returns held-out metrics.
    """

    def __init__(self, every: int, evaluate: Callable[[], dict[str, float]]):
        self.every, self.evaluate = every, evaluate

    def after(self, run, window):
        start = time.monotonic()
        with run.trainer.evaluated_weights():
            metrics = self.evaluate()
        run.seconds["evaluation"] = time.monotonic() - start
        shown = ", ".join(f"{k} {v:.4f}" for k, v in metrics.items())
        run.progress.message(f"step {run.step}: {shown}")
        run.record("eval", metrics)
        if run.chief:
            run.history.save()  # in case the run is killed before it saves
        run.scalars.flush()


def keep_evaluated(run: Run) -> None:
    """Write the averaged weights, or else the current weights, to `best/`."""
    with run.trainer.evaluated_weights():
        folder = files.join(run.output_dir, checkpoints.BEST)
        checkpoints.save(folder, run.trainer.weights, run.step)


class KeepBest(Hook):
    """A hook that keeps the best weights; it must follow `Evaluate`.

    An additional evaluation at `stop_step` is ignored, so a run that stops at
    `stop_step` and resumes keeps the same weights as an uninterrupted run.

    Args:
      every: as for `Evaluate`.
      metric: name of the metric to maximize.
    """

    def __init__(self, every: int, metric: str):
        self.every, self.metric = every, metric

    def after(self, run, window):
        interval = self.every or 1
        if not run.chief or (run.step % interval and run.step < run.end):
            return
        # Ignore earlier evaluations whose weights were not kept.
        folder = files.join(run.output_dir, checkpoints.BEST)
        best_steps = map(
            checkpoint_files.number, checkpoint_files.listed(folder)
        )
        eligible_steps = {*best_steps, run.step}
        rows = zip(*run.history.column("eval", self.metric), strict=True)
        *earlier, value = (
            value for step, value in rows if step in eligible_steps
        )
        if value > max(earlier, default=float("-inf")):
            self.keep(run)

    def keep(self, run) -> None:
        """Write the evaluated weights to `best/`; see `keep_evaluated`."""
        keep_evaluated(run)


class KeepAverage(Hook):
    """A hook that saves the averaged weights along with each checkpoint.

    Programs that load the model read these averages rather than the weights
    that a resumed run needs. This hook must precede `Save`. On SIGTERM, there
    is time only for the checkpoint, which also contains the averages.

    Args:
      every: as for `Save`.
    """

    def __init__(self, every: int):
        self.every, self.saved_step = every, 0

    def after(self, run, window):
        if run.chief and self.saved_step != run.step:
            keep_evaluated(run)
        self.saved_step = run.step

    def end(self, run):
        if run.step and run.stopped_by != SIGTERM:
            self.after(run, None)


class Warn(Hook):
    """A hook that prints each health warning once."""

    def __init__(self, every: int, monitor_of: Callable[[Run], Monitor]):
        self.every, self.monitor_of = every, monitor_of

    def after(self, run, window):
        rows = run.history.rows
        reported = {row["kind"] for row in rows if row["split"] == HEALTH}
        for kind, note in self.monitor_of(run).notes(rows).items():
            if kind not in reported:
                run.progress.message(f"Warning at step {run.step}: {note}")
                run.history.add(run.step, HEALTH, {"kind": kind, "note": note})


class Save(Hook):
    """A hook that saves checkpoints and the history, including at the end.

    Args:
      every: steps between two checkpoints.
      keep: number of checkpoints to keep.
    """

    def __init__(self, every: int, keep: int):
        self.every, self.keep = every, keep

    def after(self, run, window):
        path = checkpoint_files.prefix(run.output_dir, run.step)
        if run.chief and path != run.last_good:
            start = time.monotonic()
            state = run.trainer.state()
            facts = run.state()
            checkpoints.save(run.output_dir, state, run.step, self.keep, facts)
            run.history.save()
            run.scalars.flush()
            run.seconds["checkpoint"] = time.monotonic() - start
        run.last_good = path

    def end(self, run):
        if run.step:
            self.after(run, None)


class StopInTime(Hook):
    """A hook that stops a run before it exceeds a time limit.

    The hook stops the run if the next steps, an evaluation and two checkpoints
    might take longer than the remaining time.

    Args:
      hours: the limit, measured from the creation of the hook, for all runs to
        which the hook is passed; 0 means no limit.

    Attributes:
      stopped: whether the last run was stopped, for any reason.
    """

    def __init__(self, hours: float):
        self.hours, self.start, self.stopped = hours, time.monotonic(), False
        self.longest = self.evaluation = self.saving = 0.0  # seconds

    def spent(self) -> bool:
        """Return whether the next steps and saves might exceed the limit."""
        ahead = self.longest + self.evaluation + 2 * self.saving
        used = time.monotonic() - self.start + ahead
        return 0 < self.hours * 3600 <= used

    def after(self, run, window):
        self.longest = max(self.longest, window.seconds)
        self.evaluation = run.seconds.get("evaluation", 0.0)
        self.saving = run.seconds.get("checkpoint", 0.0)
        if run.in_any_process(self.spent()):
            run.stop(f"max_hours={self.hours:g}")

    def end(self, run):
        self.stopped = bool(run.stopped_by)


class Draw(Hook):
    """A hook that plots the metrics of evaluations, if any, or of training."""

    def begin(self, run):
        note = lacking("A plot of the curves", "matplotlib")
        if run.chief and note:
            print(f"Note: {note}")

    def end(self, run):
        rows = [row for row in run.history.rows if row["split"] != HEALTH]
        if run.chief and rows:
            shown = next((r for r in rows if r["split"] == "eval"), rows[0])
            names = [k for k in shown if k not in ("step", "split", "steps")]
            history.draw_curves(run.history, run.output_dir, names)


def standard(
    training: TrainingConfig, evaluate: Callable | None, *extra_hooks: Hook
) -> list[Hook]:
    """Return the standard hooks of a run.

    Args:
      training: the intervals and limits.
      evaluate: see `Evaluate`; None if a run has no held-out data.
      *extra_hooks: hooks to call after evaluations and before checkpoints.
    """
    save = Save(training.save_checkpoints_steps, training.keep_checkpoint_max)
    hooks = [RequireFinite(training.on_nonfinite == "skip"), Log()]
    if evaluate:
        hooks.append(Evaluate(training.eval_steps, evaluate))
    hooks += [*extra_hooks, save]
    if training.max_hours:
        hooks.append(StopInTime(training.max_hours))
    return [*hooks, Draw()]
