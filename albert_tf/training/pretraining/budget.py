"""Time budgets: measure a run's speed, and choose its settings."""

import functools
import gc
import time
from collections.abc import Callable, Mapping, Set
from typing import Any

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.data.records.input_pipeline import errors_explained
from albert_tf.training import checkpoint_files, history
from albert_tf.training.clock import CLOSING_SECONDS, BudgetClock
from albert_tf.training.distribution import faster, of_chief, require_alike
from albert_tf.training.phases import mean_work, step_work
from albert_tf.training.pretraining import budget_rules, run_setup
from albert_tf.training.pretraining.budget_rules import Choice, Resources
from albert_tf.training.pretraining.run_setup import COMPAT, Setup
from albert_tf.training.run import Hook, Run
from albert_tf.training.trainer import Trainer
from albert_tf.training.training_config import TrainingConfig


class Rehearse(Hook):
    """A hook that times an evaluation and plotting, and sets the clock's times.

    Args:
      evaluate: a function that evaluates a number of batches.
      batches: number of batches in a full evaluation; 0 without evaluations.
    """

    def __init__(self, evaluate: Callable[[int], Any], batches: int):
        self.evaluate, self.batches = evaluate, batches

    def begin(self, run):
        clock, names = run.clock, run.trainer.evaluator.names
        if self.batches:
            self.evaluate(1)  # compile the evaluation
            number, start = min(self.batches, 4), time.monotonic()
            self.evaluate(number)
            share = (time.monotonic() - start) / number
            clock.evaluation = share * self.batches / clock.step_seconds
        start = time.monotonic()
        for _ in range(2 * run.chief):  # the first call imports matplotlib
            start = time.monotonic()
            history.draw_curves(run.history, run.output_dir, names)
        clock.closing = time.monotonic() - start
        clock.turn(run.step, {}, over=False, phases=len(run.phases) - 1)


# FLOP/s of a CPU, for an estimate of the batch size before the first
# measurement.
USUAL_FLOPS = 1e11
# Seconds for which steps are measured, if the budget is large enough.
PROBE_SECONDS = 3.0
MOST_PROBES = 3
MICROSECONDS = 1e6  # processes exchange times as whole numbers


def check_budget(fixed: Set[str], init_state: str, optimizer: str) -> None:
    """Raise an error for settings that conflict with a budget."""
    require(
        "num_train_steps" not in fixed,
        "`num_train_steps` follows from `budget_hours`; set only one of them. "
        "Received: both",
    )
    require(
        init_state != "run",
        "`budget_hours` must not be set with init_state=run, because a run "
        "with a budget begins its schedule at step 0.",
        init_state=init_state,
    )
    require(
        optimizer in budget_rules.OPTIMIZERS
        or "learning_rate" in fixed
        or "optimizer" not in fixed,
        "`budget_hours` chooses `learning_rate` only for "
        f"{', '.join(budget_rules.OPTIMIZERS)}; set it for other optimizers.",
        optimizer=optimizer,
    )


def time_steps(
    setup: Setup, trainer: Trainer, target_seconds: float
) -> tuple[float, float]:
    """Return the seconds per compiled step, and the seconds spent measuring.

    Args:
      setup: the run; the measured steps train its first phase.
      trainer: the run's trainer; the weights may change.
      target_seconds: the approximate duration of the measurement.
    """
    phase = setup.phases()[0]
    read = phase.reader(setup.batches)
    iterator = trainer.iterator(read, 0, phase.batch_size)
    trainer = trainer.at_depth(phase.layers)

    def seconds(steps: int) -> float:
        start = time.monotonic()
        int(trainer.run_steps(iterator, tf.constant(steps)).bad)
        elapsed = (time.monotonic() - start) * MICROSECONDS
        return of_chief(trainer.strategy, round(elapsed)) / MICROSECONDS

    seconds(1)
    steps, last = 1, seconds(1)
    spent = last
    while last < target_seconds / 2:
        steps *= 2
        last = seconds(steps)
        spent += last
    return max(last, 1 / MICROSECONDS) / steps, spent


def measure(setup: Setup, target_seconds: float) -> tuple[float, float]:
    """Measure the duration of a step of the first phase.

    Args:
      setup: the run.
      target_seconds: the approximate duration of the measurement.

    Returns:
      The seconds per compiled step, and the seconds to compile the step.
    """
    start = time.monotonic()
    trainer = setup.trainer()
    with errors_explained(setup.folders):
        seconds, measuring = time_steps(setup, trainer, target_seconds)
    del trainer
    gc.collect()
    return seconds, time.monotonic() - start - measuring


def resources_of(
    setup: Setup, seconds: float, flop_seconds: float
) -> Resources:
    """Return a run's resources; the result is the same in all processes.

    Args:
      setup: the run.
      seconds: time for the run's phases.
      flop_seconds: seconds per FLOP.
    """
    phases, strategy = setup.phases(), setup.strategy
    left = round(max(seconds, 1.0) * MICROSECONDS)
    return Resources(
        of_chief(strategy, left) / MICROSECONDS,
        mean_work(phases, setup.config) * flop_seconds,
        phases[0].metadata.max_seq_length,
        setup.config.hidden_size,
        setup.held_out,
        strategy.num_replicas_in_sync,
        Choice(*faster(strategy)),
    )


def values_of(choices: Mapping[str, Choice]) -> dict[str, Any]:
    """Return {setting: value} for choices."""
    return {name: choice.value for name, choice in choices.items()}


def warn_of_compilations(setup: Setup, compiling: float, left: float) -> None:
    """Warn if compilations take most of a run's time.

    Args:
      setup: the run.
      compiling: seconds to compile a step.
      left: the seconds left in the budget.
    """
    phases = setup.phases()
    number = len({phase.shape for phase in phases})
    if number * compiling > left / 2:
        print(
            "Warning: the budget is too short: compiling the steps of "
            f"{number} of {len(phases)} phases takes about "
            f"{number * compiling:.0f} s, and {max(left, 0.0):.0f} s are left; "
            "raise --budget_hours",
            flush=True,
        )


def measured_choices(
    setup: Setup, fixed: Set[str], end: float
) -> tuple[dict[str, Choice], float]:
    """Return the choices, and the seconds per step in the first phase.

    The batch size and the speed depend on each other, so both are found by
    iteration.

    Args:
      setup: the run.
      fixed: names of the settings that must not change.
      end: the deadline, in seconds of `time.monotonic`.
    """
    flop_seconds, compiling, measured = 1 / USUAL_FLOPS, 0.0, 0
    for _ in range(MOST_PROBES + 1):
        left = end - time.monotonic() - compiling - CLOSING_SECONDS
        resources = resources_of(setup, left, flop_seconds)
        choices = budget_rules.choose_values(resources, setup.settings, fixed)
        setup = setup.with_settings(values_of(choices))
        if setup.training.train_batch_size == measured:
            break
        target_seconds = min(PROBE_SECONDS, resources.seconds / 100)
        seconds, compiling = measure(setup, target_seconds)
        flop_seconds = seconds / step_work(setup.phases()[0], setup.config)
        measured = setup.training.train_batch_size
    warn_of_compilations(setup, compiling, end - time.monotonic())
    return choices, seconds


def note_length(training: TrainingConfig) -> None:
    """Print the default length of a run, and the settings that change it."""
    print(
        f"Note: by default, the run has {training.num_train_steps:,} steps of "
        f"{training.train_batch_size:,} examples; `--budget_hours` or "
        "`--num_train_steps` sets another length"
    )


class Budget:
    """The time budget of a run, counted from the creation of this object.

    Args:
      hours: hours for the run; 0 means that there is no budget, so the methods
        choose nothing.
      fixed: names of the settings that the user set.

    Attributes:
      earlier: the state that an earlier process saved, or None for a new run.
      clock: the clock of the run, or None without a budget or before
        `choose_settings`.
    """

    def __init__(self, hours: float, fixed: Set[str]):
        self.hours, self.start_time = hours, time.monotonic()
        self.fixed = set(fixed)
        self.earlier: dict[str, Any] | None = None
        self.start_choices: dict[str, Choice] = {}
        self.clock: BudgetClock | None = None

    def choose_start(self, setup: Setup) -> Setup:
        """Check the settings and any earlier run; return the setup to use.

        With a budget, the result comes from `with_start`; without one, the
        setup is unchanged.
        """
        pretraining = setup.pretraining
        if not self.hours:
            if pretraining.do_train and "num_train_steps" not in self.fixed:
                note_length(setup.training)
            return setup
        check_budget(
            self.fixed, pretraining.init_state, setup.optimizer.optimizer
        )
        prefix = checkpoint_files.latest(pretraining.output_dir)
        if prefix:
            self.read_earlier(pretraining.output_dir, prefix)
        return self.with_start(setup)

    def read_earlier(self, output_dir: str, prefix: str) -> None:
        """Read the choices of an earlier run; warn if that run's time is up."""
        self.earlier = checkpoint_files.read_facts(prefix).get("budget")
        require(
            self.earlier,
            "`budget_hours` can only resume a run that had a budget; choose "
            "another folder.",
            output_dir=f"{output_dir} with {prefix}",
        )
        # Older checkpoints store the last step instead.
        step = checkpoint_files.number(prefix)
        if self.earlier.get("over", step == self.earlier.get("last")):
            print(
                f"The time budget of {output_dir} is used up, and its rate has "
                "decayed. To train longer, set another `output_dir`, and "
                f"`init_checkpoint={output_dir}`.",
                flush=True,
            )

    def with_start(self, setup: Setup) -> Setup:
        """Return a setup with chosen initial weights and schedules.

        The values are chosen now unless an earlier process chose them. Nothing
        is chosen for a pretrained model, which already uses all of its layers.
        """
        pretraining = setup.pretraining
        if pretraining.init_checkpoint and not self.earlier:
            return setup
        excluded = {*self.fixed, *COMPAT[pretraining.compat], *setup.kind.lacks}
        dynamic = run_setup.are_dynamic(setup.folders)
        choices = budget_rules.choose_start(setup.config, dynamic)
        self.start_choices = {
            name: choice
            for name, choice in choices.items()
            if name not in excluded
        }
        values = values_of(self.start_choices)
        if self.earlier:
            earlier_choices = self.earlier["choices"]
            values = {
                k: earlier_choices[k] for k in values if k in earlier_choices
            }
        return setup.with_settings(values)

    def _choose(self, setup: Setup) -> tuple[dict[str, Any], float]:
        """Return the choices {setting: value}, and the seconds per step."""
        if self.earlier:
            return self.earlier["choices"], self.earlier["step_seconds"]
        end = self.start_time + self.hours * 3600
        choices, seconds = measured_choices(setup, self.fixed, end)
        choices = self.start_choices | choices
        print(f"Chosen for budget_hours={self.hours:g}:")
        print("\n".join(budget_rules.format_choices(choices)), flush=True)
        return values_of(choices), seconds

    def choose_settings(self, setup: Setup) -> Setup:
        """Return the setup with every choice made, and create the clock.

        The choices of an earlier process, if any, are reused. Without a budget,
        there is no clock, and the setup is unchanged.
        """
        if not self.hours:
            return setup
        earlier = self.earlier or {}
        used = {"seconds used in output_dir": earlier.get("seconds")}
        require_alike(setup.strategy, used)
        if setup.optimizer.learning_rate == "auto":
            self.fixed -= {"learning_rate"}
        values, seconds = self._choose(setup)
        # The settings in `vars(setup.pretraining)` are set in `with_start`.
        excluded = self.fixed | vars(setup.pretraining).keys()
        setup = setup.with_settings(
            {k: v for k, v in values.items() if k not in excluded}
        )
        training = setup.training
        self.clock = BudgetClock(
            training.num_train_steps,
            *earlier.get("course", ()),
            seconds=self.hours * 3600,
            start_time=self.start_time,
            step_seconds=seconds,
            eval_steps=training.eval_steps if setup.held_out else 0,
            save_steps=training.save_checkpoints_steps,
            final_evals=int(setup.pretraining.do_eval),
            used_before=earlier.get("seconds"),
            choices=values,
            agree=functools.partial(of_chief, setup.strategy),
        )
        return setup

    def hooks(self, setup: Setup, evaluate: Callable[[int], Any]) -> list[Hook]:
        """Return the hooks that the clock needs, or [] without a clock.

        Args:
          setup: the run.
          evaluate: a function that evaluates a number of batches.
        """
        batches = -(-setup.held_out // setup.training.eval_batch_size)
        return [Rehearse(evaluate, batches)] if self.clock else []

    def closed(self, setup: Setup, run: Run) -> Setup:
        """Print the time used; return a setup with the run's number of steps.

        If the run stopped early, this is the number that the clock predicts for
        the whole schedule. Without a budget, print nothing and return the setup
        unchanged.
        """
        if not self.clock:
            return setup
        seconds, used = self.clock.seconds, self.clock.used()
        rate = run.trainer.rate(max(run.step - 1, 0))
        print(
            f"budget_hours={self.hours:g}: {used:.1f} of {seconds:.0f} s "
            f"({100 * used / seconds - 100:+.1f}%), {run.step} steps, the "
            f"last at a rate of {rate:.2g}",
            flush=True,
        )
        return setup.with_settings({"num_train_steps": run.end})
