"""The folders of records that a run reads, checked before it starts."""

import contextlib
import dataclasses
from collections.abc import Iterator

from albert_tf.base.errors import require
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records import checks
from albert_tf.data.records.metadata import (
    TRAIN,
    Metadata,
    is_described,
    paths_of,
    read_metadata,
)
from albert_tf.data.records.record_stream import tokenizer_beside
from albert_tf.model.config import AlbertConfig
from albert_tf.text.tokenizers import Tokenizer, load_tokenizer, tokenizer_in
from albert_tf.training import distribution, phases
from albert_tf.training.distribution import DistributionConfig
from albert_tf.training.training_config import TrainingConfig

# {folder or globs: metadata}, in the order of the run.
Folders = dict[str, Metadata]


def check_records(config: AlbertConfig, metadata: Metadata) -> None:
    """Raise an error if records do not fit the model."""
    config.check_length("max_seq_length", metadata.max_seq_length)
    size, most = metadata.vocab_size, config.vocab_size
    rule = "`vocab_size` of the records must be at most the model's "
    require(size <= most, f"{rule}`vocab_size`, {most}.", vocab_size=size)
    require(
        config.type_vocab_size >= 2,
        "`type_vocab_size` must be at least 2: records have two segments.",
        type_vocab_size=config.type_vocab_size,
    )
    if 0 < size < most:
        print(f"Note: the records use {size} of {most} word embeddings")


def tokenizer_of(data_dir: str, source: str | None) -> Tokenizer | None:
    """Return the tokenizer of a folder's records, None if unknown.

    Records of the released code come without one. It is then taken from the
    source of weights, if that has one.
    """
    if is_described(data_dir):
        return load_tokenizer(data_dir)
    for folder in filter(None, (data_dir, source)):
        if tokenizer := tokenizer_in(folder):
            return tokenizer
    print(
        "Note: no tokenizer is known; a model directory without its files "
        "exports only the signature `ids`"
    )
    return None


def are_dynamic(folders: Folders) -> bool:
    """Return whether all records are masked while they are read."""
    return all(m.masking(TRAIN) == DYNAMIC for m in folders.values())


def check_alike(folders: Folders) -> None:
    """Raise unless folders share tokenizer, vocabulary and kind of masking."""
    kinds = {
        folder: (m.tokenizer_fingerprint, m.vocab_size, m.masking(TRAIN))
        for folder, m in folders.items()
    }
    first, *_ = kinds.values()
    others = [folder for folder, kind in kinds.items() if kind != first]
    require(
        not others,
        "The folders of `data_dir` must have one tokenizer, one vocabulary "
        "and one kind of masking.",
        data_dir=f"{', '.join(others)} unlike {next(iter(kinds))}",
    )


def check_readers(folders: Folders, devices: DistributionConfig) -> None:
    """Raise an error if hosts without Python would mask dynamic records."""
    dynamic_ones = [f for f in folders if folders[f].masking(TRAIN) == DYNAMIC]
    require(
        not (dynamic_ones and distribution.reads_remotely(devices)),
        "Records of --masking=dynamic are masked in Python, which the hosts "
        "of a remote TPU do not run: train on the TPU VM with tpu_name=local, "
        "or make the records with --masking=static.",
        tpu_name=devices.tpu_name,
        data_dir=", ".join(dynamic_ones),
    )


def read(data_dir: str, config: AlbertConfig, trains: bool) -> Folders:
    """Read and check the metadata of a run's records.

    Args:
      data_dir: see `PretrainingConfig`.
      config: the model, which the records must fit.
      trains: whether each folder must have training records.
    """
    folders = {f: read_metadata(f) for f in phases.folders(data_dir)}
    for folder, metadata in folders.items():
        # Released records do not name a vocabulary; it must be the model's.
        size = metadata.vocab_size or config.vocab_size
        checks.check_files(
            folder, dataclasses.replace(metadata, vocab_size=size)
        )
        check_records(config, metadata)
        if metadata.masking(TRAIN) == DYNAMIC:
            tokenizer_beside(folder, metadata)
        if trains and len(folders) > 1:
            paths_of(folder, metadata, TRAIN)
    check_alike(folders)
    return folders


def phases_of(
    run,
    config: AlbertConfig,
    folders: Folders,
    replicas: int,
    training: TrainingConfig,
) -> tuple[phases.Phase, ...]:
    """Return the phases of a run; raise an error if its schedules are wrong.

    Args:
      run: a `PretrainingConfig` with the schedules.
      config: the architecture.
      folders: the folders of records.
      replicas: number of replicas that share a batch.
      training: steps and batch.
    """
    # An evaluation uses all layers, and the masks in the records.
    depth = run.depth_schedule if run.do_train else None
    masks = run.mask_schedule if run.do_train else None
    schedules = phases.read_schedules(run.data_dir, depth, masks, config)
    if masks:
        phases.check_mask_schedule(masks, folders)
    return phases.make_phases(
        schedules,
        folders,
        training.num_train_steps,
        batch_size=training.train_batch_size,
        unit=replicas * training.gradient_accumulation_steps,
    )


def fingerprint(folders: Folders) -> str:
    """Return a fingerprint of the training records."""
    return ", then ".join(m.fingerprint() for m in folders.values())


@contextlib.contextmanager
def errors_explained(folders: Folders) -> Iterator[None]:
    """Turn errors that name a file of records into an `InputError`."""
    with contextlib.ExitStack() as stack:
        for folder, metadata in folders.items():
            stack.enter_context(checks.errors_explained(folder, metadata))
        yield
