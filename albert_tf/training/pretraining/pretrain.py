"""Pretrain an ALBERT model on records written by create_pretraining_data.py."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from albert_tf.base import files, program, settings
from albert_tf.base.settings import RunFact
from albert_tf.data.records import input_pipeline
from albert_tf.data.records.metadata import BY_FREQUENCY
from albert_tf.training import checkpoints, distribution, phases
from albert_tf.training.checkpoint_files import naming_last_checkpoint
from albert_tf.training.clock import Clock
from albert_tf.training.distribution import DistributionConfig
from albert_tf.training.health import SETTLED_STEPS, SPREAD_TEXTS, Monitor
from albert_tf.training.history import RunResult
from albert_tf.training.hooks import (
    KeepAverage,
    Measure,
    MeasureSpread,
    Warn,
    check_hooks,
    make_monitor,
    standard,
)
from albert_tf.training.model_card import write_card
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.pretraining import warm_start
from albert_tf.training.pretraining.budget import Budget
from albert_tf.training.pretraining.informed_start import start_new
from albert_tf.training.pretraining.run_setup import (
    Folders,
    PretrainingConfig,
    Setup,
    check_inputs,
    connect_devices,
    fingerprint,
    with_compat,
)
from albert_tf.training.run import Hook, Run, describe_run, train
from albert_tf.training.trainer import Trainer
from albert_tf.training.training_config import TrainingConfig
from albert_tf.training.workers import explaining_lost_workers


def pretraining_hooks(
    run: Run,
    monitor_of: Callable[[Run], Monitor],
    batches: Callable,
    evaluate: Callable | None,
    user_hooks: Sequence[Hook],
) -> list[Hook]:
    """Return the hooks of a pretraining run.

    Args:
      run: the run, before its first step.
      monitor_of: a function that returns the monitor of the current phase.
      batches: a function that creates training batches (see `Phase.reader`);
        `MeasureSpread` reads the first batches.
      evaluate: see `Evaluate`; None if there are no held-out records.
      user_hooks: the user's hooks, called after evaluations and before
        checkpoints.
    """
    training, optimizer = run.trainer.training, run.trainer.optimizer.config
    check_step = optimizer.peak_step + SETTLED_STEPS
    read, size = run.phases[0].reader(batches), training.eval_batch_size
    number = math.ceil(SPREAD_TEXTS / size)
    texts = MeasureSpread(
        check_step, lambda: read(batch_size=size).take(number)
    )
    warnings = [
        Warn(interval, monitor_of)
        for interval in (check_step, training.eval_steps)
    ]
    averages = []
    if optimizer.ema_decay:
        averages.append(KeepAverage(training.save_checkpoints_steps))
    standard_hooks = standard(
        training, evaluate, *warnings, *user_hooks, *averages
    )
    return [Measure(monitor_of), texts, *standard_hooks]


def start(setup: Setup, trainer: Trainer) -> None:
    """Initialize the state of a new run according to its settings."""
    pretraining, model, config = setup.pretraining, trainer.model, setup.config
    source = pretraining.init_checkpoint
    first, metadata = next(iter(setup.folders.items()))
    if not source:
        lines = ["Random weights"]
        effective = with_compat(pretraining, pretraining.compat)
        if effective.initial_weights == "informed":
            lines = start_new(model, first, metadata)
    elif pretraining.init_state == "run":
        lines = warm_start.start_run(source, trainer.state())
    else:
        transplant = None
        if pretraining.init_state == warm_start.TRANSPLANT:
            size = config.vocab_size
            transplant = warm_start.read_transplant(
                source, setup.vocabulary, first, size
            )
        lines = warm_start.start_weights(
            model, source, config, transplant, setup.vocabulary
        )
    distribution.broadcast(setup.strategy, list(trainer.state().values()))
    print("\n  ".join(lines))


def evaluate(run: Run, folders: Folders, batches: int = -1) -> dict[str, float]:
    """Return metrics on the last folder's held-out records.

    All phases are evaluated on these records, with the same number of layers as
    in training. `batches` is the number of batches, or -1 for all. If the
    records' metadata contain the metrics of a model that predicts by frequency
    alone, the result includes these metrics.
    """
    folder = run.phases[-1].data_dir
    evaluator = run.trainer.at_depth(run.phase.layers).evaluator
    metrics = evaluator.evaluate(
        lambda: input_pipeline.eval_batches(
            folder, folders[folder], batch_size=evaluator.eval_batch_size
        ).take(batches)
    )
    by_frequency = folders[folder].statistics.get(BY_FREQUENCY, {})
    return metrics | {f"{k}_by_frequency": v for k, v in by_frequency.items()}


@contextlib.contextmanager
def locked_output(setup: Setup) -> Iterator[Callable | None]:
    """Lock a training run's directory; write its config and vocabulary.

    Yield a function that fails if the directory is moved. If the run does not
    train, yield None, and neither lock nor write anything.
    """
    output_dir = setup.pretraining.output_dir

    def claim() -> None:
        checkpoints.create_model_dir(output_dir, setup.config)
        if setup.vocabulary:
            setup.vocabulary.save(output_dir)

    if not setup.pretraining.do_train:
        yield None
        return
    with checkpoints.locked_model_dir(setup.strategy, output_dir, claim):
        yield files.unmoved(output_dir)


def make_run(
    setup: Setup, clock: Clock | None, check_folder: Callable | None = None
) -> Run:
    """Print a summary of the training; return the run, new or resumed."""
    trainer, run_phases = setup.trainer(), setup.phases()
    if setup.pretraining.do_train:
        describe_run(trainer, run_phases)
    facts = settings.facts(setup.pretraining, setup.devices) | {
        "train_records": RunFact(fingerprint(setup.folders), "other data"),
        # This is not the optimizer's `schedule`, a fact of the trainer.
        "schedule of phases": RunFact(
            phases.description(run_phases), "later steps use the new one"
        ),
        "hosts": RunFact(
            distribution.hosts(setup.strategy),
            "another order of examples, with some twice in this epoch and "
            "others never",
        ),
    }
    folder = setup.pretraining.output_dir
    return Run(trainer, folder, facts, run_phases, clock, check_folder)


def write_flags(setup: Setup) -> None:
    """Write flags that repeat a run; a number of steps replaces the budget."""
    pretraining = dataclasses.replace(setup.pretraining, budget_hours=0.0)
    configs = setup.optimizer, setup.training, setup.devices
    settings.write_flagfile(pretraining.output_dir, pretraining, *configs)


@contextlib.contextmanager
def described(setup: Setup, run: Run, budget: Budget) -> Iterator[None]:
    """Write a run's flags before the block, and its flags and card afterwards.

    If the run was already complete, its flags are kept, because the new
    settings did not affect it. With a budget, the flags are written even then,
    because they must contain the number of steps.
    """
    if not setup.writes:
        yield
        return
    writes_flags = not run.finished or budget.clock
    run.check_folder()
    if writes_flags:
        write_flags(setup)
    yield
    run.check_folder()
    closed = budget.closed(setup, run)
    if writes_flags:
        write_flags(closed)
    write_card(run.output_dir, run.output_dir)


def train_and_evaluate(
    setup: Setup, run: Run, budget: Budget, hooks: Sequence[Hook]
) -> dict[str, float]:
    """Train and evaluate, as configured; return the held-out metrics.

    If the training stops early, return the metrics of its last evaluation: a
    machine that is about to shut down has no time for another evaluation.
    """
    do_train, do_eval = setup.pretraining.do_train, setup.pretraining.do_eval
    metrics_of = functools.partial(evaluate, run, setup.folders)
    peak = distribution.peak_flops(setup.devices, setup.strategy)
    monitor_of = functools.partial(make_monitor, peak_flops=peak)
    explained = input_pipeline.errors_explained(setup.folders)
    with naming_last_checkpoint(run), explained:
        if not run.last_good:
            start(setup, run.trainer)
        if do_train:
            held_out = metrics_of if setup.held_out else None
            run_hooks = pretraining_hooks(
                run, monitor_of, setup.batches, held_out, hooks
            )
            first = budget.hooks(setup, metrics_of)
            train(run, setup.batches, [*first, *run_hooks])
        if run.stopped_by or not do_eval:
            return run.metrics
        with run.trainer.evaluated_weights():
            return metrics_of()


@program.command(
    PretrainingConfig, OptimizerConfig, TrainingConfig, DistributionConfig
)
@explaining_lost_workers()
def pretrain(
    pretraining,
    optimizer,
    training,
    devices,
    *,
    hooks: Iterable[Hook] | Hook = (),
    set_by_user: Set[str] = frozenset(),
) -> RunResult:
    """Pretrain an ALBERT model on records, and write a model directory.

    If the directory contains a run, that run is resumed. The keyword arguments
    are the flags of `pretrain.py`.

    Args:
      pretraining: inputs and outputs.
      optimizer: the update rule and its schedule.
      training: the batch size, the steps and the intervals.
      devices: the devices to run on.
      hooks: hooks to call between steps, in addition to the standard hooks.
      set_by_user: names of the settings that a budget must not change.

    Returns:
      The directory, the last held-out metrics and the run's history.
    """
    hooks = check_hooks(hooks)
    budget = Budget(
        pretraining.budget_hours * pretraining.do_train, set_by_user
    )
    workers = distribution.prepare_devices(devices)
    with distribution.raise_everywhere(workers):
        setup = check_inputs(pretraining, optimizer, training, devices)
        setup = budget.choose_start(setup)
    setup = connect_devices(setup, workers)
    with locked_output(setup) as check_folder:
        setup = budget.choose_settings(setup)
        run = make_run(setup, budget.clock, check_folder)
        with described(setup, run, budget):
            metrics = train_and_evaluate(setup, run, budget, hooks)
    for name, value in metrics.items():
        print(f"{name} = {value:.4f}")
    return RunResult(
        files.absolute(run.output_dir), {"eval": metrics} if metrics else {}
    )


cli = pretrain.program.cli
