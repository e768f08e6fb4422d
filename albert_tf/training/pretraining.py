"""A pretraining run: records in, a model directory out."""

import contextlib
import dataclasses
import functools
from collections.abc import Sequence

import keras
import tensorflow as tf

from albert_tf.base import files, settings
from albert_tf.base.errors import require
from albert_tf.base.settings import Fact, setting, validate
from albert_tf.data import records
from albert_tf.data.records import checks, find, input_pipeline
from albert_tf.data.records.piece_counts import (
    log_frequencies,
    read_piece_counts,
)
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig
from albert_tf.model.flops import training_flops
from albert_tf.text.tokenizers import TOKENIZER_FILE, Tokenizer, load_tokenizer
from albert_tf.training import checkpoints, distribution, warm_start
from albert_tf.training.batch_rules import with_half_life, with_rate
from albert_tf.training.distribution import DistributionConfig
from albert_tf.training.health import Monitor
from albert_tf.training.hooks import Measure, Warn, standard
from albert_tf.training.model_card import write_card
from albert_tf.training.objectives import PretrainingObjective
from albert_tf.training.optimizers import OptimizerConfig
from albert_tf.training.run import Hook, Run, claimed, last_good_named, train
from albert_tf.training.trainer import Trainer, TrainingConfig

# What `--compat=google` sets: the released schedule, its clipping of each
# replica's gradient, its average of the replicas' average losses.
COMPAT = {
    "none": {},
    "google": {
        "schedule": "released",
        "clip_placement": "per_replica",
        "loss_normalization": "per_replica",
    },
}


def with_compat(config, compat: str):
    """Return a settings dataclass with the values that a compat mode sets."""
    fields = {field.name for field in dataclasses.fields(config)}
    values = {k: v for k, v in COMPAT[compat].items() if k in fields}
    return dataclasses.replace(config, **values)


@dataclasses.dataclass(frozen=True)
class PretrainingConfig:
    """What a pretraining run reads and writes."""

    data_dir: str = setting(
        "",
        "Folder made by create_pretraining_data.py, or a folder or globs of "
        "records that the released code made.",
        required=True,
    )
    albert_config_file: str = setting(
        "", "Architecture, a JSON file of configs/models.", required=True
    )
    output_dir: str = setting(
        "", "Model directory to write; a run in it resumes.", required=True
    )
    init_checkpoint: str | None = setting(
        None, "Model directory whose weights a new run starts from."
    )
    init_state: str = setting(
        "weights",
        "What to take from init_checkpoint: weights; or run, with the "
        "optimizer's slots and the step, and so the schedule, for a second "
        "phase with other records.",
        choices=warm_start.STATES,
    )
    beta_2_half_life: float = setting(
        0.0,
        "Tokens, counted with padding, after which a gradient's share in the "
        "second moment is half: sets beta_2 so that it fits the batch; 0 "
        "leaves beta_2 as it is.",
        minimum=0.0,
    )
    do_train: bool = setting(True, "Train.")
    do_eval: bool = setting(
        False,
        "Evaluate the newest checkpoint after, or without, training; without, "
        "nothing is written.",
    )
    compat: str = setting(
        "none",
        "google: the released schedule, clipping and averaging over replicas.",
        choices=COMPAT,
    )

    def __post_init__(self):
        validate(self)
        require(
            self.do_train or self.do_eval,
            "One of `do_train` and `do_eval` must be set. Received: none",
        )


def check_records(config: AlbertConfig, metadata: records.Metadata) -> None:
    """Refuse records that do not fit the model."""
    limits = {
        "max_seq_length": "max_position_embeddings",
        "vocab_size": "vocab_size",
    }
    for record_key, config_key in limits.items():
        value, limit = (
            getattr(metadata, record_key),
            getattr(config, config_key),
        )
        require(
            value <= limit,
            f"`{record_key}` of the records must be at most the model's "
            f"`{config_key}`, {limit}.",
            **{record_key: value},
        )
    if 0 < metadata.vocab_size < config.vocab_size:
        print(
            f"Note: the records use {metadata.vocab_size} of the model's "
            f"{config.vocab_size} word embeddings"
        )


def tokenizer_of(run: PretrainingConfig) -> Tokenizer | None:
    """Return the tokenizer of the records.

    Records of the released code have none beside them: it is then that of
    `init_checkpoint`, or else unknown.
    """
    if records.is_described(run.data_dir):
        return load_tokenizer(run.data_dir)
    for folder in filter(None, (run.data_dir, run.init_checkpoint)):
        if files.exists(files.join(folder, TOKENIZER_FILE)):
            return load_tokenizer(folder)
    print(
        "Note: no tokenizer is known; a model directory without its files "
        "exports the signature `ids` alone"
    )
    return None


def check_weights(run: PretrainingConfig) -> None:
    """Refuse to evaluate where there are no weights, or no examples."""
    source = run.init_checkpoint or checkpoints.latest(run.output_dir)
    require(
        run.do_train or source,
        "Without `do_train`, `output_dir` must hold a checkpoint, or "
        "`init_checkpoint` name one.",
        output_dir=run.output_dir,
        init_checkpoint=None,
    )


def prepare(
    run: PretrainingConfig,
) -> tuple[AlbertConfig, records.Metadata, Tokenizer | None]:
    """Check everything that can be wrong before any device is used."""
    config = AlbertConfig.from_json_file(run.albert_config_file)
    metadata = find.read_metadata(run.data_dir)
    checks.check(run.data_dir, metadata)
    check_records(config, metadata)
    require(
        metadata.count(records.EVAL) or not run.do_eval,
        "`do_eval` needs held-out records.",
        data_dir=f"{run.data_dir} with none",
    )
    tokenizer = tokenizer_of(run)
    if run.init_checkpoint:
        warm_start.check(run.init_checkpoint, config, tokenizer)
    checkpoints.check_claim(run.output_dir, config)
    check_weights(run)
    return config, metadata, tokenizer


def describe_run(trainer: Trainer, metadata: records.Metadata) -> None:
    """Print what is about to be trained."""
    optimizer = trainer.optimizer
    size = sum(v.shape.num_elements() for v in trainer.weights.values())
    excluded = optimizer.excluded()
    replicas = trainer.strategy.num_replicas_in_sync
    print(
        f"{size:,} parameters, {replicas} replicas, batches of "
        f"{trainer.training.train_batch_size} x {metadata.max_seq_length} "
        f"tokens, {optimizer.config.optimizer} at "
        f"{optimizer.config.learning_rate:g}\n"
        f"Without weight decay and trust ratio: {len(excluded)} of "
        f"{len(trainer.trained)} variables: {', '.join(excluded)}"
    )


def make_trainer(
    config: AlbertConfig,
    compat: str,
    optimizer: OptimizerConfig,
    training: TrainingConfig,
    strategy: tf.distribute.Strategy,
) -> Trainer:
    """Return the model with its optimizer and its steps, on a strategy."""
    return Trainer(
        strategy,
        lambda: AlbertForPretraining(config, training.dtype_policy),
        PretrainingObjective(),
        with_compat(with_rate(optimizer, training), compat),
        with_compat(training, compat),
    )


def start_frequencies(run: PretrainingConfig, model) -> str:
    """Let a new model begin at the pieces' frequencies; say so.

    It need not learn them first: Meister et al., arXiv 2212.09686.
    """
    counts = read_piece_counts(run.data_dir, model.config.vocab_size)
    if counts is None or run.compat == "google":
        return "Random weights"
    model.mlm.output_bias.assign(log_frequencies(counts))
    return "Random weights, and the MLM bias at the pieces' log frequencies"


def start(run: PretrainingConfig, trainer: Trainer) -> None:
    """Give a new run its first state, as the flags say."""
    source, config = run.init_checkpoint, trainer.model.config
    if not source:
        lines = [start_frequencies(run, trainer.model)]
    elif run.init_state == "run":
        lines = warm_start.start_run(source, config, trainer.state())
    else:
        lines = warm_start.start_weights(trainer.model, source, config)
    print("\n  ".join(lines))


def make_monitor(
    trainer: Trainer, metadata: records.Metadata, devices: DistributionConfig
) -> Monitor:
    """Return what the run measures beyond its losses."""
    flops = training_flops(
        trainer.model.config,
        metadata.max_seq_length,
        metadata.max_predictions_per_seq,
    )
    return Monitor(
        metadata.max_seq_length,
        flops,
        trainer.training.train_batch_size,
        trainer.optimizer.config.num_warmup_steps,
        distribution.peak_flops(devices, trainer.strategy),
        metadata.statistics.get("masked_share"),
    )


def run_job(
    config: PretrainingConfig,
    trainer: Trainer,
    metadata: records.Metadata,
    monitor: Monitor,
    hooks: Sequence[Hook],
) -> dict[str, float]:
    """Train and evaluate as asked; return the last held-out metrics."""
    training = trainer.training

    def evaluate():
        return trainer.evaluator.evaluate(
            lambda: input_pipeline.eval_batches(
                config.data_dir, metadata, batch_size=training.eval_batch_size
            )
        )

    facts = {"train_records": Fact(metadata.fingerprint(), "other data")}
    run = Run(trainer, config.output_dir, facts)
    if not run.last_good:
        start(config, trainer)
    explained = checks.errors_explained(config.data_dir, metadata)
    with last_good_named(run), explained:
        if config.do_train:
            batches = functools.partial(
                input_pipeline.train_batches,
                config.data_dir,
                metadata,
                seed=training.random_seed,
            )
            warn = Warn(training.eval_steps, monitor)
            held_out = evaluate if metadata.count(records.EVAL) else None
            usual = standard(training, held_out, warn, *hooks)
            train(run, batches, [Measure(monitor), *usual])
        return evaluate() if config.do_eval else run.metrics


def pretrain(
    run: PretrainingConfig,
    optimizer: OptimizerConfig,
    training: TrainingConfig,
    devices: DistributionConfig,
    hooks: Sequence[Hook] = (),
) -> dict[str, float]:
    """Pretrain into a model directory; return the last held-out metrics.

    Args:
      run: what is read and written.
      optimizer: the rule and its schedule.
      training: batch, steps and cadence.
      devices: where to run.
      hooks: to act between the steps, beside the usual ones; they come behind
        an evaluation and before a checkpoint.
    """
    prepared = distribution.prepare_devices(devices)
    with distribution.agreed(prepared):
        config, metadata, tokenizer = prepare(run)
    strategy = prepared or distribution.make_strategy(devices)

    def claim():
        checkpoints.claim(run.output_dir, config)
        if tokenizer:
            tokenizer.save(run.output_dir)
        replay = settings.flagfile(run, optimizer, training, devices)
        files.write_text(files.join(run.output_dir, settings.FLAG_FILE), replay)

    with contextlib.ExitStack() as stack:
        if run.do_train:
            stack.enter_context(claimed(strategy, run.output_dir, claim))
        keras.utils.set_random_seed(training.random_seed)
        tokens = training.train_batch_size * metadata.max_seq_length
        memory = with_half_life(optimizer, run.beta_2_half_life, tokens)
        trainer = make_trainer(config, run.compat, memory, training, strategy)
        describe_run(trainer, metadata)
        monitor = make_monitor(trainer, metadata, devices)
        metrics = run_job(run, trainer, metadata, monitor, hooks)
        if run.do_train and distribution.is_chief(strategy):
            write_card(run.output_dir, run.output_dir)
        return metrics
