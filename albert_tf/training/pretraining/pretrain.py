"""Pretrain an ALBERT on records made by create_pretraining_data.py."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence, Set

import keras
import tensorflow as tf

from albert_tf.base import program, settings
from albert_tf.base.errors import require
from albert_tf.base.settings import RunFact
from albert_tf.data.records import input_pipeline, metadata
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.training import checkpoints, distribution, phases
from albert_tf.training.clock import BudgetClock, Clock
from albert_tf.training.distribution import DistributionConfig, with_dtype
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
from albert_tf.training.objectives import PretrainingObjective
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.pretraining import record_folders, warm_start
from albert_tf.training.pretraining.budget import Budget, Probe, Rehearse
from albert_tf.training.pretraining.informed_start import start_new
from albert_tf.training.pretraining.pretraining_settings import (
    PretrainingConfig,
    with_compat,
    with_rate,
)
from albert_tf.training.pretraining.record_folders import (
    Folders,
    fingerprint,
    phases_of,
)
from albert_tf.training.pretraining.warm_start import read_transplant
from albert_tf.training.run import (
    Hook,
    Run,
    describe_run,
    naming_last_checkpoint,
    train,
)
from albert_tf.training.trainer import Trainer
from albert_tf.training.training_config import TrainingConfig
from albert_tf.training.workers import explaining_lost_workers


def pretraining_hooks(
    run: Run,
    monitor_of: Callable[[Run], Monitor],
    batches: Callable,
    evaluate: Callable | None,
    more: Sequence[Hook],
) -> list[Hook]:
    """Return the hooks of a pretraining run.

    Args:
      run: the run, before its first step.
      monitor_of: returns the monitor of the current phase.
      batches: makes training batches, see `Phase.reader`; `MeasureSpread` reads
        the first ones.
      evaluate: see `Evaluate`; None without held-out records.
      more: the user's hooks, called after evaluations and before checkpoints.
    """
    training, optimizer = run.trainer.training, run.trainer.optimizer.config
    look = optimizer.peak_step + SETTLED_STEPS
    read, size = run.phases[0].reader(batches), training.eval_batch_size
    number = math.ceil(SPREAD_TEXTS / size)
    texts = MeasureSpread(look, lambda: read(batch_size=size).take(number))
    warnings = [
        Warn(every, monitor_of) for every in (look, training.eval_steps)
    ]
    averages = []
    if optimizer.ema_decay:
        averages.append(KeepAverage(training.save_checkpoints_steps))
    usual = standard(training, evaluate, *warnings, *more, *averages)
    return [Measure(monitor_of), texts, *usual]


def check_weights(run: PretrainingConfig) -> None:
    """Raise an error if there are no weights to evaluate."""
    require(
        run.do_train
        or run.init_checkpoint
        or checkpoints.has_weights(run.output_dir),
        "Without `do_train`, `output_dir` must contain a checkpoint, or "
        "`init_checkpoint` must.",
        output_dir=run.output_dir,
        init_checkpoint=None,
    )


def prepare(
    run: PretrainingConfig,
    training: TrainingConfig,
    devices: DistributionConfig,
) -> tuple[AlbertConfig, Folders, Tokenizer | None]:
    """Read and check all inputs before any device is used."""
    config = AlbertConfig.from_json_file(run.albert_config_file)
    folders = record_folders.read(run.data_dir, config, run.do_train)
    if run.do_train:
        record_folders.check_readers(folders, devices)
    last = phases_of(run, config, folders, 1, training)[-1].data_dir
    require(
        folders[last].count(metadata.EVAL) or not run.do_eval,
        "`do_eval` needs held-out records.",
        data_dir=f"{last} with none",
    )
    first = next(iter(folders))
    tokenizer = record_folders.tokenizer_of(first, run.init_checkpoint)
    source = run.init_checkpoint, run.init_state
    warm_start.check_warm_start(*source, config, tokenizer)
    checkpoints.check_claim(run.output_dir, config)
    if tokenizer:
        tokenizer.check_claim(run.output_dir)
    check_weights(run)
    return config, folders, tokenizer


# Paths may differ between machines.
PATHS = ("data_dir", "albert_config_file", "output_dir", "init_checkpoint")


def require_alike(
    strategy: tf.distribute.Strategy | None,
    model: AlbertConfig,
    folders: Folders,
    run: PretrainingConfig,
    *configs,
) -> None:
    """Raise an error unless all workers have the same settings and files."""
    settings = {k: v for c in (run, *configs) for k, v in vars(c).items()}
    schedule = phases.read_schedule("data_dir", run.data_dir)
    contents = {
        "albert_config_file": model,
        "data_dir": fingerprint(folders),
        "shares of data_dir": [share for _, share in schedule],
        "held-out records": [m.count(metadata.EVAL) for m in folders.values()],
    }
    alike = {k: v for k, v in settings.items() if k not in PATHS}
    distribution.require_alike(strategy, alike | contents)


def make_trainer(
    config: AlbertConfig,
    compat: str,
    optimizer: OptimizerConfig,
    training: TrainingConfig,
    strategy: tf.distribute.Strategy,
) -> Trainer:
    """Return the trainer of a new model on a strategy."""
    return Trainer(
        strategy,
        lambda: AlbertForPretraining(config, training.dtype_policy),
        PretrainingObjective(),
        with_compat(with_rate(optimizer, training), compat),
        training,
        per_replica=compat == "google",
    )


def start(run: PretrainingConfig, trainer: Trainer, folders: Folders) -> None:
    """Initialize the state of a new run as its settings say."""
    source, model = run.init_checkpoint, trainer.model
    config, (first, metadata) = model.config, next(iter(folders.items()))
    if not source:
        lines = ["Random weights"]
        if with_compat(run, run.compat).initial_weights == "informed":
            lines = start_new(model, first, metadata)
    elif run.init_state == "run":
        lines = warm_start.start_run(source, trainer.state())
    else:
        moved = None
        if run.init_state == warm_start.TRANSPLANT:
            tokenizer = record_folders.tokenizer_of(first, source)
            moved = read_transplant(source, tokenizer, first, config.vocab_size)
        lines = warm_start.start_weights(model, source, config, moved)
    distribution.broadcast(trainer.strategy, list(trainer.state().values()))
    print("\n  ".join(lines))


def evaluate(run: Run, folders: Folders, batches: int = -1) -> dict[str, float]:
    """Return metrics on the last folder's held-out records.

    All phases are evaluated on these records, with as many layers as in
    training. `batches` is the number of batches, -1 for all.
    """
    folder = run.phases[-1].data_dir
    evaluator = run.trainer.at_depth(run.phase.layers).evaluator
    return evaluator.evaluate(
        lambda: input_pipeline.eval_batches(
            folder, folders[folder], batch_size=evaluator.eval_batch_size
        ).take(batches)
    )


def run_job(
    config: PretrainingConfig,
    run: Run,
    folders: Folders,
    devices: DistributionConfig,
    hooks: Sequence[Hook],
) -> dict[str, float]:
    """Train and evaluate as configured; return the last held-out metrics."""
    training = run.trainer.training
    judge = functools.partial(evaluate, run, folders)
    peak = distribution.peak_flops(devices, run.trainer.strategy)
    monitor_of = functools.partial(make_monitor, peak_flops=peak)
    explained = record_folders.errors_explained(folders)
    with naming_last_checkpoint(run), explained:
        if not run.last_good:
            start(config, run.trainer, folders)
        if config.do_train:
            batches = functools.partial(
                input_pipeline.train_batches, seed=training.random_seed
            )
            held_out = folders[run.phases[-1].data_dir].count(metadata.EVAL)
            between = pretraining_hooks(
                run, monitor_of, batches, judge if held_out else None, hooks
            )
            if isinstance(run.clock, BudgetClock):
                number = -(-held_out // training.eval_batch_size)
                run.clock.again = int(config.do_eval)
                between.insert(0, Rehearse(judge, number))
            train(run, batches, between)
        with run.trainer.evaluated_weights():
            return judge() if config.do_eval else run.metrics


def claim(
    run: PretrainingConfig, config: AlbertConfig, tokenizer: Tokenizer | None
) -> None:
    """Write the config and tokenizer, unless the folder has another model."""
    checkpoints.create_model_dir(run.output_dir, config)
    if tokenizer:
        tokenizer.save(run.output_dir)


def write_flags(run: PretrainingConfig, *configs) -> None:
    """Write the flags that replay a run without its budget."""
    again = dataclasses.replace(run, budget_hours=0.0)
    settings.write_flagfile(run.output_dir, again, *configs)


def make_run(
    output_dir: str,
    trainer: Trainer,
    folders: Folders,
    course: tuple[phases.Phase, ...],
    clock: Clock | None,
) -> Run:
    """Return a run through the phases of `course`, and print a summary."""
    describe_run(trainer, course)
    facts = {
        "train_records": RunFact(fingerprint(folders), "other data"),
        "phases": RunFact(phases.facts(course), "another schedule"),
        "hosts": RunFact(
            distribution.hosts(trainer.strategy), "another order of examples"
        ),
    }
    return Run(trainer, output_dir, facts, course, clock)


@explaining_lost_workers()
def run_pretraining(
    run: PretrainingConfig,
    optimizer: OptimizerConfig,
    training: TrainingConfig,
    devices: DistributionConfig,
    hooks: Sequence[Hook] = (),
    said: Set[str] = frozenset(),
) -> dict[str, float]:
    """Pretrain into a model directory; return the last held-out metrics.

    Args:
      run: inputs and outputs.
      optimizer: the rule and its schedule.
      training: batch, steps and cadence.
      devices: where to run.
      hooks: additional hooks, called after evaluations and before checkpoints.
      said: names of the settings that a budget must not change.
    """
    budget = Budget(run.budget_hours * run.do_train, said)
    prepared = distribution.prepare_devices(devices)
    with distribution.raise_everywhere(prepared):
        config, folders, tokenizer = prepare(run, training, devices)
        run = budget.prepare(run, optimizer, config, folders)
    require_alike(prepared, config, folders, run, optimizer, training)
    strategy = prepared or distribution.make_strategy(devices)
    training = with_dtype(training, strategy)
    chief = run.do_train and distribution.is_chief(strategy)
    replicas = strategy.num_replicas_in_sync
    phases_in = functools.partial(phases_of, run, config, folders, replicas)

    def make(optimizer: OptimizerConfig, training: TrainingConfig) -> Trainer:
        keras.utils.set_random_seed(training.random_seed)
        return make_trainer(config, run.compat, optimizer, training, strategy)

    write = functools.partial(claim, run, config, tokenizer)
    claims = checkpoints.locked_model_dir(strategy, run.output_dir, write)
    with claims if run.do_train else contextlib.nullcontext():
        shop = Probe(strategy, config, make, phases_in)
        optimizer, training = budget.settle(shop, optimizer, training)
        trainer, course = make(optimizer, training), phases_in(training)
        job = make_run(run.output_dir, trainer, folders, course, budget.clock)
        if chief:  # only after all checks of the folder
            write_flags(run, optimizer, training, devices)
        metrics = run_job(run, job, folders, devices, hooks)
        if chief:
            write_flags(run, optimizer, budget.closed(training, job), devices)
            write_card(run.output_dir, run.output_dir)
        return metrics


@program.command(
    PretrainingConfig,
    OptimizerConfig,
    TrainingConfig,
    DistributionConfig,
    tells=True,
)
def pretrain(
    run,
    *configs,
    hooks: Iterable[Hook] | Hook = (),
    said: Set[str] = frozenset(),
) -> RunResult:
    """Pretrain an ALBERT on records, and write a model directory.

    An existing run in that directory resumes. The keyword arguments are the
    flags of `pretrain.py`.

    Args:
      run: inputs and outputs.
      *configs: the other settings.
      hooks: hooks to call between steps, in addition to the standard ones.
      said: names of the settings that the user set; a budget leaves them.

    Returns:
      The directory, the last held-out metrics and the run's history.
    """
    metrics = run_pretraining(run, *configs, check_hooks(hooks), said)
    for name, value in metrics.items():
        print(f"{name} = {value:.4f}")
    return RunResult(run.output_dir, {"eval": metrics} if metrics else {})


cli = pretrain.program.cli
