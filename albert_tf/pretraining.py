"""A pretraining run: records in, a model directory out."""

import dataclasses

import keras

from albert_tf import checkpoints, files, records, settings
from albert_tf.config import AlbertConfig
from albert_tf.distribution import (
    DistributionConfig,
    make_strategy,
    prepare_devices,
)
from albert_tf.errors import InputError
from albert_tf.loop import Run
from albert_tf.model import AlbertForPretraining
from albert_tf.objectives import PretrainingObjective
from albert_tf.optimization import OptimizerConfig
from albert_tf.settings import setting, validate
from albert_tf.tokenization import load_tokenizer
from albert_tf.training import Trainer, TrainingConfig

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
        "", "Folder made by create_pretraining_data.py.", required=True
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
    do_train: bool = setting(True, "Train.")
    do_eval: bool = setting(
        False, "Evaluate the newest checkpoint after, or without, training."
    )
    compat: str = setting(
        "none",
        "google: the released schedule, clipping and averaging over replicas.",
        choices=COMPAT,
    )

    def __post_init__(self):
        validate(self)


def check_records(config: AlbertConfig, metadata: records.Metadata) -> None:
    """Refuse records that do not fit the model."""
    limits = {
        "max_seq_length": "max_position_embeddings",
        "vocab_size": "vocab_size",
    }
    for record_key, config_key in limits.items():
        found, limit = (
            getattr(metadata, record_key),
            getattr(config, config_key),
        )
        if found > limit:
            raise InputError(
                f"`{record_key}` of the records must be at most the model's "
                f"`{config_key}`. Received: {record_key}={found}, "
                f"{config_key}={limit}"
            )
    if metadata.vocab_size < config.vocab_size:
        print(
            f"Note: the records use {metadata.vocab_size} of the model's "
            f"{config.vocab_size} word embeddings"
        )


def prepare(run: PretrainingConfig) -> tuple[AlbertConfig, records.Metadata]:
    """Check everything that can be wrong before any device is used."""
    config = AlbertConfig.from_json_file(run.albert_config_file)
    metadata = records.read_metadata(run.data_dir)
    records.check(run.data_dir, metadata)
    check_records(config, metadata)
    checkpoints.claim(run.output_dir, config)
    load_tokenizer(run.data_dir).save(run.output_dir)
    return config, metadata


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


def warm_start(model: AlbertForPretraining, model_dir: str) -> None:
    """Restore the encoder and those heads that the model directory has."""
    stored = checkpoints.read_table(checkpoints.for_inference(model_dir))
    parts = ("albert/",)
    for head in ("mlm/", "sop/"):
        if any(name.startswith(head) for name in stored):
            parts += (head,)
        else:
            print(f"Note: {model_dir} has no {head[:-1]} head; it starts anew")
    checkpoints.restore_weights(model, model_dir, only=parts)


def pretrain(
    run: PretrainingConfig,
    optimizer: OptimizerConfig,
    training: TrainingConfig,
    devices: DistributionConfig,
) -> dict[str, float]:
    """Pretrain into a model directory; return the last held-out metrics."""
    prepare_devices(devices)
    config, metadata = prepare(run)
    replay = settings.flagfile(run, optimizer, training, devices)
    files.write_text(files.join(run.output_dir, settings.FLAG_FILE), replay)
    strategy = make_strategy(devices)
    keras.utils.set_random_seed(training.random_seed)
    trainer = Trainer(
        strategy,
        lambda: AlbertForPretraining(config, training.dtype_policy),
        PretrainingObjective(),
        with_compat(optimizer, run.compat),
        with_compat(training, run.compat),
    )
    if run.init_checkpoint and not checkpoints.latest(run.output_dir):
        warm_start(trainer.model, run.init_checkpoint)

    def batches(start, num_shards, shard, batch_size):
        return records.train_batches(
            run.data_dir,
            metadata,
            seed=training.random_seed,
            start=start,
            num_shards=num_shards,
            shard=shard,
            batch_size=batch_size,
        )

    def evaluate():
        return trainer.evaluate(
            records.eval_batches(
                run.data_dir, metadata, batch_size=training.eval_batch_size
            )
        )

    describe_run(trainer, metadata)
    with records.errors_explained(run.data_dir):
        job = Run(trainer, run.output_dir, batches, evaluate)
        metrics = job.train() if run.do_train else {}
        return evaluate() if run.do_eval else metrics
