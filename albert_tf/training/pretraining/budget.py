"""Budgets: measure a run's speed, and choose settings that fit its hours."""

import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.data.records import checks, input_pipeline
from albert_tf.data.records.metadata import EVAL
from albert_tf.model.config import AlbertConfig
from albert_tf.training import checkpoint_files, history
from albert_tf.training.clock import CLOSING_SECONDS, BudgetClock
from albert_tf.training.distribution import faster, of_chief, require_alike
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.phases import Phase, mean_work, step_work
from albert_tf.training.pretraining import budget_rules, record_folders
from albert_tf.training.pretraining.budget_rules import Choice, Resources
from albert_tf.training.pretraining.pretraining_settings import (
    COMPAT,
    PretrainingConfig,
)
from albert_tf.training.pretraining.record_folders import Folders
from albert_tf.training.run import Hook, Run
from albert_tf.training.trainer import Trainer
from albert_tf.training.training_config import TrainingConfig


class Rehearse(Hook):
    """Time an evaluation and the curves once, for the clock.

    Args:
      evaluate: evaluates a number of batches.
      batches: batches of a full evaluation; 0 for no evaluations.
    """

    def __init__(self, evaluate: Callable[[int], Any], batches: int):
        self.evaluate, self.batches = evaluate, batches

    def begin(self, run):
        clock, names = run.clock, run.trainer.evaluator.names
        if self.batches:
            self.evaluate(1)  # compiles
            number, start = min(self.batches, 4), time.monotonic()
            self.evaluate(number)
            share = (time.monotonic() - start) / number
            clock.evaluation = share * self.batches / clock.step_seconds
        start = time.monotonic()
        for _ in range(2 * run.chief):  # the first one imports
            start = time.monotonic()
            history.draw_curves(run.history, run.output_dir, names)
        clock.closing = time.monotonic() - start
        clock.turn(run.step, {}, over=False, phases=len(run.phases) - 1)


Configs = tuple[OptimizerConfig, TrainingConfig]

# FLOP/s of a CPU, to estimate the first batch before anything is measured.
USUAL_FLOPS = 1e11
# How long to measure steps; less with a small budget.
PROBE_SECONDS = 3.0
MOST_PROBES = 3
MICROSECONDS = 1e6  # processes agree on times as whole numbers


def check_budget(said: Set[str], init_state: str, optimizer: str) -> None:
    """Raise an error for settings that conflict with a budget."""
    require(
        "num_train_steps" not in said,
        "`num_train_steps` follows from `budget_hours`; set only one of them. "
        "Received: both",
    )
    require(
        init_state != "run",
        "`budget_hours` cannot have init_state=run, because its schedule "
        "begins at step 0.",
        init_state=init_state,
    )
    require(
        optimizer in budget_rules.OPTIMIZERS
        or "learning_rate" in said
        or "optimizer" not in said,
        "`budget_hours` knows rates for "
        f"{', '.join(budget_rules.OPTIMIZERS)}; set `learning_rate` for "
        "another optimizer.",
        optimizer=optimizer,
    )


def with_values(configs: Configs, values: Mapping[str, Any]) -> Configs:
    """Return settings with some values replaced."""
    optimizer, training = (
        dataclasses.replace(
            config,
            **{name: values[name] for name in vars(config) if name in values},
        )
        for config in configs
    )
    return optimizer, training


def probe(trainer: Trainer, phase: Phase, most: float) -> tuple[float, float]:
    """Return the seconds of a compiled training step, and of all measurements.

    Args:
      trainer: the trainer; its weights may change.
      phase: the phase to train.
      most: how many seconds to measure, approximately.
    """
    batches = functools.partial(
        input_pipeline.train_batches, seed=trainer.training.random_seed
    )
    iterator = trainer.iterator(phase.reader(batches), 0, phase.batch_size)
    trainer = trainer.at_depth(phase.layers)

    def seconds(steps: int) -> float:
        start = time.monotonic()
        int(trainer.run_steps(iterator, tf.constant(steps)).bad)
        passed = (time.monotonic() - start) * MICROSECONDS
        return of_chief(trainer.strategy, round(passed)) / MICROSECONDS

    seconds(1)
    steps, last = 1, seconds(1)
    spent = last
    while last < most / 2:
        steps *= 2
        last = seconds(steps)
        spent += last
    return max(last, 1 / MICROSECONDS) / steps, spent


def values_of(choices: Mapping[str, Choice]) -> dict[str, Any]:
    """Return {setting: value} of choices."""
    return {name: choice.value for name, choice in choices.items()}


@dataclasses.dataclass(frozen=True)
class Probe:
    """The means to measure the speed of a run with given settings.

    Attributes:
      strategy: where to run.
      config: the architecture.
      make: makes a trainer from settings.
      phases_in: makes the phases of a run from its settings.
    """

    strategy: tf.distribute.Strategy
    config: AlbertConfig
    make: Callable[[OptimizerConfig, TrainingConfig], Trainer]
    phases_in: Callable[[TrainingConfig], tuple[Phase, ...]]

    def means(self, phases: Sequence[Phase], seconds: float, pace: float):
        """Return the resources of a run, the same in all processes.

        Args:
          phases: the phases of the run.
          seconds: time for them.
          pace: seconds per FLOP.
        """
        work = mean_work(phases, self.config)
        left = round(max(seconds, 1.0) * MICROSECONDS)
        return Resources(
            of_chief(self.strategy, left) / MICROSECONDS,
            work * pace,
            phases[0].metadata.max_seq_length,
            self.config.hidden_size,
            phases[-1].metadata.count(EVAL),
            self.strategy.num_replicas_in_sync,
            Choice(*faster(self.strategy)),
        )

    def measure(self, configs: Configs, most: float) -> tuple[float, float]:
        """Return the seconds of a step in the first phase, and to compile it.

        Args:
          configs: the settings.
          most: how many seconds to measure, approximately.
        """
        start = time.monotonic()
        trainer = self.make(*configs)
        phase = self.phases_in(configs[1])[0]
        with checks.errors_explained(phase.data_dir, phase.metadata):
            seconds, measuring = probe(trainer, phase, most)
        del trainer
        gc.collect()
        return seconds, time.monotonic() - start - measuring


def measured_choices(
    workshop: Probe, configs: Configs, said: Set[str], end: float
) -> tuple[dict[str, Choice], float]:
    """Return the choices, and the seconds of a step in the first phase.

    The batch depends on the pace and the pace on the batch, so they are found
    by iteration.

    Args:
      workshop: measures the pace.
      configs: all settings.
      said: names of the settings that must not change.
      end: when time will be up, by `time.monotonic`.
    """
    pace, compiling, measured = 1 / USUAL_FLOPS, 0.0, 0
    for _ in range(MOST_PROBES + 1):
        phases = workshop.phases_in(configs[1])
        left = end - time.monotonic() - compiling - CLOSING_SECONDS
        means = workshop.means(phases, left, pace)
        values = vars(configs[0]) | vars(configs[1])
        choices = budget_rules.choose_values(means, values, said)
        configs = with_values(configs, values_of(choices))
        if configs[1].train_batch_size == measured:
            break
        most = min(PROBE_SECONDS, means.seconds / 100)
        seconds, compiling = workshop.measure(configs, most)
        first = workshop.phases_in(configs[1])[0]
        pace = seconds / step_work(first, workshop.config)
        measured = configs[1].train_batch_size
    return choices, seconds


class Budget:
    """The time budget of a run; time starts when this object is created.

    Args:
      hours: hours for the run; 0 for no budget, when the methods do nothing.
      said: names of the settings that the user set.

    Attributes:
      clock: the clock of the run, None before `settle` and without a budget.
    """

    def __init__(self, hours: float, said: Set[str]):
        self.hours, self.began = hours, time.monotonic()
        self.said = set(said)
        self.kept: dict[str, Any] | None = None
        self.start_choices: dict[str, Choice] = {}
        self.clock: BudgetClock | None = None

    def prepare(
        self,
        run: PretrainingConfig,
        optimizer: OptimizerConfig,
        config: AlbertConfig,
        folders: Folders,
    ) -> PretrainingConfig:
        """Check the settings and any earlier run; return `with_start`."""
        if not self.hours:
            return run
        check_budget(self.said, run.init_state, optimizer.optimizer)
        prefix = checkpoint_files.latest(run.output_dir)
        if prefix:
            self.kept = checkpoint_files.read_facts(prefix).get("budget")
            require(
                self.kept,
                "`budget_hours` can only resume a run that had a budget; "
                "choose another folder.",
                output_dir=f"{run.output_dir} with {prefix}",
            )
            # Older checkpoints have the last step instead.
            step = checkpoint_files.number(prefix)
            if self.kept.get("over", step == self.kept.get("last")):
                print(
                    f"The time of {run.output_dir} is up and its rate has "
                    "decayed. For more hours, set another `output_dir`, and "
                    f"`init_checkpoint={run.output_dir}`.",
                    flush=True,
                )
        return self.with_start(run, config, folders)

    def with_start(
        self, run: PretrainingConfig, config: AlbertConfig, folders: Folders
    ) -> PretrainingConfig:
        """Return settings with the first weights and schedules of a new model.

        They are those chosen now or in an earlier run. A pretrained model gets
        none: it already uses all of its layers.

        Args:
          run: the settings.
          config: the architecture.
          folders: the records.
        """
        if run.init_checkpoint and not self.kept:
            return run
        dynamic = record_folders.are_dynamic(folders)
        given = {*self.said, *COMPAT[run.compat]}
        chosen = budget_rules.choose_start(config, dynamic)
        self.start_choices = {
            name: choice for name, choice in chosen.items() if name not in given
        }
        values = values_of(self.start_choices)
        if self.kept:
            before = self.kept["choices"]
            values = {k: before[k] for k in values if k in before}
        return dataclasses.replace(run, **values)

    def _choose(self, workshop: Probe, configs: Configs):
        """Return the {setting: value} chosen, and the seconds of a step."""
        if self.kept:
            return self.kept["choices"], self.kept["step_seconds"]
        end = self.began + self.hours * 3600
        choices, seconds = measured_choices(workshop, configs, self.said, end)
        choices = self.start_choices | choices
        print(f"Chosen for budget_hours={self.hours:g}:")
        print("\n".join(budget_rules.format_choices(choices)), flush=True)
        return values_of(choices), seconds

    def settle(
        self,
        workshop: Probe,
        optimizer: OptimizerConfig,
        training: TrainingConfig,
    ) -> Configs:
        """Return the settings of a run, chosen now or in an earlier process."""
        configs = optimizer, training
        if not self.hours:
            return configs
        used = self.kept and self.kept["seconds"]
        about = {"seconds used in output_dir": used}
        require_alike(workshop.strategy, about)
        if optimizer.learning_rate == "auto":
            self.said -= {"learning_rate"}
        values, seconds = self._choose(workshop, configs)
        values = {k: v for k, v in values.items() if k not in self.said}
        optimizer, training = with_values(configs, values)
        last = workshop.phases_in(training)[-1]
        kept = self.kept or {}
        step, place, pace = kept.get("course", (0, 0.0, 1.0))
        self.clock = BudgetClock(
            training.num_train_steps,
            step,
            place,
            pace,
            seconds=self.hours * 3600,
            began=self.began,
            step_seconds=seconds,
            eval_steps=training.eval_steps if last.metadata.count(EVAL) else 0,
            save_steps=training.save_checkpoints_steps,
            kept=kept.get("seconds"),
            choices=values,
            agree=functools.partial(of_chief, workshop.strategy),
        )
        return optimizer, training

    def closed(self, training: TrainingConfig, run: Run) -> TrainingConfig:
        """Print the time used; return settings that repeat the steps made."""
        if not self.clock:
            return training
        seconds, used = self.clock.seconds, self.clock.used()
        rate = run.trainer.rate(max(run.step - 1, 0))
        print(
            f"budget_hours={self.hours:g}: {used:.1f} of {seconds:.0f} s "
            f"({100 * used / seconds - 100:+.1f} %), {run.step} steps, the "
            f"last at a rate of {rate:.2g}",
            flush=True,
        )
        return dataclasses.replace(training, num_train_steps=run.last)
