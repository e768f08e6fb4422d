"""What `metadata.json` says, and the names of the records' features.

The features have the released names; in code `next_sentence_labels` is
`sentence_order_labels`. Training records are written in one of two forms:

static: masked, every list padded to T or P, as released.
dynamic: unmasked and compact. `token_ids` are bytes, the little-endian ids of
  segment A and then of B without special tokens, 2 bytes each or 4 for a
  vocabulary over 65,536; `word_starts` one bit per token, the first in the
  highest bit of the first byte; `segment_lengths` the tokens of A and B.
  `next_sentence_labels` is that of static records.

Held-out records are always static, so that their masks stay the same.

Glossary: T tokens, P predictions.
"""

import dataclasses
import os
import posixpath
import zlib
from collections.abc import Iterator

import numpy as np

from albert_tf.base import files
from albert_tf.base.errors import InputError, require
from albert_tf.data.masking import STATIC, MaskingConfig
from albert_tf.data.records import tfrecord

METADATA_FILE = "metadata.json"
VERSION = 1
TRAIN, EVAL = "train", "eval"


@dataclasses.dataclass(frozen=True)
class RecordFile:
    """One file of records, named relative to the data directory or in full."""

    file: str
    records: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Metadata:
    """What `metadata.json` says about the records beside it."""

    max_seq_length: int
    max_predictions_per_seq: int
    vocab_size: int  # 0 if unknown
    tokenizer_fingerprint: str  # empty if unknown
    splits: dict[str, tuple[RecordFile, ...]]  # keys TRAIN and EVAL
    settings: dict = dataclasses.field(default_factory=dict)
    statistics: dict = dataclasses.field(default_factory=dict)

    def entries(self) -> Iterator[tuple[str, RecordFile]]:
        """Yield the split of every file, and the file."""
        for split, entries in self.splits.items():
            yield from ((split, entry) for entry in entries)

    def count(self, split: str) -> int:
        """Return the number of records of a split."""
        return sum(entry.records for entry in self.splits.get(split, ()))

    def fingerprint(self) -> str:
        """Return what tells the training records from others."""
        sizes = [(e.records, e.bytes) for e in self.splits.get(TRAIN, ())]
        return (
            f"{self.count(TRAIN)} records of {self.max_seq_length} tokens, "
            f"sizes {zlib.crc32(repr(sizes).encode()):08x}"
        )

    def masking(self, split: str) -> str:
        """Return `DYNAMIC` if a split's records are masked while reading."""
        written = self.settings.get("masking", STATIC)
        return written if split == TRAIN else STATIC

    def masked_at(self, rate: float) -> "Metadata":
        """Return the description of dynamic records read at another rate."""
        values = {"masked_lm_prob": rate, "max_predictions_per_seq": None}
        other = dataclasses.replace(self, settings=self.settings | values)
        slots = other.masking_config().predictions(self.max_seq_length)
        return dataclasses.replace(other, max_predictions_per_seq=slots)

    def masking_config(self) -> MaskingConfig:
        """Return how the records were, or are to be, masked."""
        names = [field.name for field in dataclasses.fields(MaskingConfig)]
        values = {n: self.settings[n] for n in names if n in self.settings}
        return MaskingConfig(**values)

    def write(self, data_dir: str) -> None:
        """Write `metadata.json`."""
        values = {"version": VERSION} | dataclasses.asdict(self)
        files.write_json(files.join(data_dir, METADATA_FILE), values)


def load_metadata(data_dir: str) -> Metadata:
    """Read `metadata.json`, which must be there."""
    path = files.join(data_dir, METADATA_FILE)
    values = files.read_json(path, "`metadata.json`")
    require(
        isinstance(values, dict) and values.pop("version", None) == VERSION,
        f"`metadata.json` must have version {VERSION}; make the records again "
        "with this create_pretraining_data.py.",
        file=path,
    )
    try:
        values["splits"] = {
            split: tuple(RecordFile(**entry) for entry in entries)
            for split, entries in values["splits"].items()
        }
        return Metadata(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"`metadata.json` is damaged ({error}); make the records again. "
            f"Received: {path}"
        ) from None


def static_sizes(metadata: Metadata) -> dict[str, int]:
    """Return the number of values of every feature of a static record."""
    tokens = ("input_ids", "input_mask", "segment_ids")
    predictions = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    return (
        dict.fromkeys(tokens, metadata.max_seq_length)
        | dict.fromkeys(predictions, metadata.max_predictions_per_seq)
        | {"next_sentence_labels": 1}
    )


def id_type(vocab_size: int) -> np.dtype:
    """Return the type of the ids in dynamic records of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


def paths_of(data_dir: str, metadata: Metadata, split: str) -> list[str]:
    """Return the files of a split; none is an error."""
    require(
        metadata.count(split),
        f"`data_dir` must hold {split} records.",
        data_dir=f"{data_dir} with none",
    )
    return [entry_path(data_dir, e) for e in metadata.splits[split]]


def entry_path(data_dir: str, entry: RecordFile) -> str:
    """Return the path of a file of records."""
    if files.is_remote(entry.file):
        return entry.file
    return files.join(data_dir, entry.file)


def is_described(data_dir: str) -> bool:
    """Return whether a folder describes its records."""
    return files.exists(files.join(data_dir, METADATA_FILE))


# What files of records are called, in a folder without metadata.json.
PATTERN = "*.tfrecord*"


def _lengths(path: str) -> tuple[int, int]:
    """Return T and P of the first record of a file without metadata."""
    record = next(tfrecord.read(path), None)
    require(
        record is not None,
        "A file of records must not be empty; remove it.",
        file=path,
    )
    try:
        feature = tfrecord.parse(record)
    except ValueError:
        feature = {}
    require(
        "token_ids" not in feature,
        "Unmasked records (--masking=dynamic) must have their metadata.json "
        "and tokenizer beside them.",
        file=path,
    )
    missing = sorted(static_sizes(Metadata(0, 0, 0, "", {})).keys() - feature)
    require(
        not missing,
        "Records for pretraining must be examples with the features of the "
        "released code.",
        file=f"{path}, record 0 without {', '.join(missing)}",
    )
    return len(feature["input_ids"]), len(feature["masked_lm_positions"])


def _name(path: str, folder: str) -> str:
    """Return a path relative to a folder, or absolute without a folder."""
    if folder:
        return path.removeprefix(folder.rstrip("/") + "/")
    return path if files.is_remote(path) else os.path.abspath(path)


def describe(paths: list[str], folder: str) -> Metadata:
    """Return what `metadata.json` would say of files of released records.

    Files whose names begin with `eval` are held out. The vocabulary is not
    known.
    """
    print(f"Counting the records of {len(paths)} files without metadata.json")
    lengths = _lengths(paths[0])
    splits: dict[str, list[RecordFile]] = {TRAIN: [], EVAL: []}
    for path in paths:
        held_out = posixpath.basename(path).startswith(EVAL)
        count = sum(1 for _ in tfrecord.read(path))
        require(
            not count or _lengths(path) == lengths,
            "Records that are read together must have the same lengths, here "
            "those of {} tokens and {} predictions.".format(*lengths),
            file=path,
        )
        splits[EVAL if held_out else TRAIN].append(
            RecordFile(_name(path, folder), count, files.size(path))
        )
    return Metadata(
        max_seq_length=lengths[0],
        max_predictions_per_seq=lengths[1],
        vocab_size=0,
        tokenizer_fingerprint="",
        splits={split: tuple(entries) for split, entries in splits.items()},
    )


def read_metadata(data_dir: str) -> Metadata:
    """Return what the records of a folder, or behind a glob, are.

    Args:
      data_dir: a folder of the builder's; a folder of released records; or
        a comma-separated list of globs of released records.
    """
    if is_described(data_dir):
        return load_metadata(data_dir)
    if files.exists(files.join(data_dir, "manifest.json")):
        paths = []  # of a build that is not finished
    elif files.is_folder(data_dir):
        folder, paths = data_dir, files.matches(PATTERN, data_dir)
    elif files.exists(data_dir) or any(mark in data_dir for mark in "*?[,"):
        folder, paths = "", files.glob(data_dir, "`data_dir`")
    else:
        paths = []
    require(
        paths,
        "`data_dir` must be a finished folder of create_pretraining_data.py, "
        "with a metadata.json, a folder of released records, *.tfrecord*, or "
        "a glob of such files.",
        data_dir=data_dir,
    )
    return describe(paths, folder)
