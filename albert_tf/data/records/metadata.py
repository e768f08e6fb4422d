"""The metadata of pretraining records, and the features of the records.

The features have their released names; in the code, `next_sentence_labels` are
called `sentence_order_labels`. Training records of text have one of two forms:

static: masked, with every list padded to T or P, as in the release.
dynamic: unmasked and compact. `token_ids` is a byte string with the
  little-endian ids of segment A and then B, without special tokens; each id has
  2 bytes, or 4 bytes if the vocabulary has more than 65,536 ids. `word_starts`
  has one bit per token; the first token is the highest bit of the first byte.
  `segment_lengths` contains the token counts of A and B. `next_sentence_labels`
  is the same as in static records.

Held-out records of text are always static, so that their masks stay the same.

Phoneme records, including held-out records, are padded and unmasked. They
contain `symbol_ids` and `word_ids`, the label of the word at each position. The
masks of a held-out record depend only on its position and the builder's seed.

Glossary: T tokens, P predictions.
"""

import dataclasses
import json
import math
import posixpath
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from albert_tf.base import files
from albert_tf.base.errors import brief, errors_in, require
from albert_tf.base.json_values import require_legal, typed
from albert_tf.data.masking import DYNAMIC, STATIC, MaskingConfig
from albert_tf.data.records import tfrecord
from albert_tf.text.symbols import OTHER_LABEL

METADATA_FILE = "metadata.json"
VERSION = 1
TRAIN, EVAL = "train", "eval"
# The tasks, named after the content of the records.
WORDS, PHONEMES = TASKS = ("words", "phonemes")
# The features of static records, besides `next_sentence_labels`.
MASKED_NAMES = (
    *("input_ids", "input_mask", "segment_ids"),
    *("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"),
)
# Statistics of phonemes: the number of labels, and the metrics of a model that
# predicts only from frequencies.
LABELS, BY_FREQUENCY = "word_labels", "by_frequency"
MASKED_ACCURACY = "masked_symbol_accuracy"  # warnings need its value


@dataclasses.dataclass(frozen=True)
class RecordFile:
    """A record file; its path is absolute or relative to the data directory."""

    file: str
    records: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Metadata:
    """The content of `metadata.json`, which describes a folder of records."""

    max_seq_length: int
    max_predictions_per_seq: int
    vocab_size: int  # 0 if unknown
    tokenizer_fingerprint: str  # empty if unknown
    splits: dict[str, tuple[RecordFile, ...]]  # keys TRAIN and EVAL
    settings: dict = dataclasses.field(default_factory=dict)
    statistics: dict = dataclasses.field(default_factory=dict)

    def entries(self) -> Iterator[tuple[str, RecordFile]]:
        """Yield the split and the entry of each file."""
        for split, entries in self.splits.items():
            yield from ((split, entry) for entry in entries)

    def count(self, split: str) -> int:
        """Return the number of records in a split."""
        return sum(entry.records for entry in self.splits.get(split, ()))

    def fingerprint(self) -> str:
        """Return a string that identifies the training records."""
        sizes = [(e.records, e.bytes) for e in self.splits.get(TRAIN, ())]
        return (
            f"{self.count(TRAIN)} records of {self.max_seq_length} tokens, "
            f"sizes {zlib.crc32(repr(sizes).encode()):08x}"
        )

    def masking(self, split: str) -> str:
        """Return the kind of masking of a split: `STATIC` or `DYNAMIC`."""
        written = self.settings.get("masking", STATIC)
        return written if split == TRAIN else STATIC

    @property
    def task(self) -> str:
        """The task of the records, one of `TASKS`."""
        return self.settings.get("task", WORDS)

    def form(self, split: str) -> str:
        """Return the form of a split: `PHONEMES`, `STATIC` or `DYNAMIC`."""
        return PHONEMES if self.task == PHONEMES else self.masking(split)

    def masked_at(self, rate: float) -> "Metadata":
        """Return the metadata of dynamic records masked at a different rate."""
        values = {"masked_lm_prob": rate, "max_predictions_per_seq": None}
        updated = dataclasses.replace(self, settings=self.settings | values)
        slots = updated.masking_config().predictions(self.max_seq_length)
        return dataclasses.replace(updated, max_predictions_per_seq=slots)

    def masking_config(self) -> MaskingConfig:
        """Return the masking settings of the records."""
        names = [field.name for field in dataclasses.fields(MaskingConfig)]
        values = {n: self.settings[n] for n in names if n in self.settings}
        return MaskingConfig(**values)

    def write(self, data_dir: str) -> None:
        """Write `metadata.json`."""
        values = {"version": VERSION} | dataclasses.asdict(self)
        files.write_json(files.join(data_dir, METADATA_FILE), values)


def value_limits(metadata: Metadata) -> dict[str, int]:
    """Return {integer feature: number of legal values, or 0 if unknown}.

    Legal values start at 0. The result covers the features of phoneme records
    or, for text, of both static and dynamic records.
    """
    ids, tokens = metadata.vocab_size, metadata.max_seq_length
    if metadata.task == PHONEMES:
        return {"symbol_ids": ids, "word_ids": metadata.statistics[LABELS]}
    limits = dict.fromkeys(("token_ids", "input_ids", "masked_lm_ids"), ids)
    flags = "input_mask", "segment_ids", "next_sentence_labels"
    return (
        limits
        | dict.fromkeys(flags, 2)
        | {"masked_lm_positions": tokens, "segment_lengths": tokens - 2}
    )


def are_legal(values: Any, limit: int) -> Any:
    """Return whether integers are legal, as a boolean array or tensor.

    Args:
      values: an array or a tensor.
      limit: the number of legal values, which start at 0; or 0 if the number is
        unknown, so that only negative values are illegal.
    """
    return (values >= 0) & ((values < limit) | (limit == 0))


def static_sizes(metadata: Metadata) -> dict[str, int]:
    """Return {feature: number of values} for a static or phoneme record."""
    if metadata.task == PHONEMES:
        return dict.fromkeys(value_limits(metadata), metadata.max_seq_length)
    return (
        dict.fromkeys(MASKED_NAMES[:3], metadata.max_seq_length)
        | dict.fromkeys(MASKED_NAMES[3:], metadata.max_predictions_per_seq)
        | {"next_sentence_labels": 1}
    )


def _legal(metadata: Metadata) -> Metadata:
    """Check the values that the package reads, and return the metadata."""

    def are_numbers(values: object) -> bool:
        return isinstance(values, dict) and all(
            type(x) is float and math.isfinite(x) for x in values.values()
        )

    settings, statistics = metadata.settings, metadata.statistics
    metadata.masking_config()
    counts = Counter(entry.file for _, entry in metadata.entries())
    for _, entry in metadata.entries():
        legal = files.is_name(entry.file) and counts[entry.file] == 1
        size = entry.records * tfrecord.LEAST_BYTES
        rule = "`splits` must list each `file` once, with its number of "
        rule += "`records` and `bytes`."
        require(legal and 0 <= size <= entry.bytes, rule, entry=brief(entry))
    seed, words = settings.get("random_seed", 0), metadata.task == WORDS
    labels, metrics = statistics.get(LABELS), statistics.get(BY_FREQUENCY, {})
    sizes = "max_seq_length", "max_predictions_per_seq", "vocab_size"
    require_legal(
        {
            **{name: getattr(metadata, name) >= 0 for name in sizes},
            "task": metadata.task in TASKS,
            "masking": words or metadata.masking(TRAIN) == DYNAMIC,
            "random_seed": type(seed) is int and 0 <= seed < 1 << 63,
            LABELS: words or type(labels) is int and labels > OTHER_LABEL,
            BY_FREQUENCY: are_numbers(metrics)
            and (words or MASKED_ACCURACY in metrics),
        },
        vars(metadata) | settings | statistics,
    )
    return metadata


def load_metadata(data_dir: str) -> Metadata:
    """Return the metadata in `metadata.json`, which must exist."""
    path = files.join(data_dir, METADATA_FILE)
    values = files.read_json(path, "`metadata.json`")
    require(
        isinstance(values, dict) and values.pop("version", None) == VERSION,
        f"`metadata.json` must have version {VERSION}; make the records again "
        "with this version of create_pretraining_data.py.",
        file=path,
    )
    with errors_in(f"{path} is damaged; make the records again"):
        return _legal(typed(Metadata, values, METADATA_FILE))


def paths_of(data_dir: str, metadata: Metadata, split: str) -> list[str]:
    """Return the paths of a split's files; the split must have records."""
    require(
        metadata.count(split),
        f"`data_dir` must contain {split} records.",
        data_dir=f"{data_dir} with none",
    )
    return [entry_path(data_dir, e) for e in metadata.splits[split]]


def entry_path(data_dir: str, entry: RecordFile) -> str:
    """Return the path of a record file."""
    if files.is_remote(entry.file):
        return entry.file
    return files.join(data_dir, entry.file)


def is_described(data_dir: str) -> bool:
    """Return whether a folder has a `metadata.json`."""
    return files.exists(files.join(data_dir, METADATA_FILE))


# File names of records in a folder without metadata.json; many users of the
# released code write `.tf_record`.
PATTERN = "*.tf*record*"


def _lengths(path: str) -> tuple[int, int]:
    """Return T and P from the first record of a file without metadata."""
    record = next(tfrecord.read(path), None)
    require(
        record is not None,
        "A record file must not be empty; remove it.",
        file=path,
    )
    try:
        feature = tfrecord.parse(record)
    except ValueError:
        feature = {}
    require(
        "token_ids" not in feature,
        "Unmasked records (--masking=dynamic) must be in a folder with their "
        "metadata.json and tokenizer.",
        file=path,
    )
    missing = sorted({*MASKED_NAMES, "next_sentence_labels"} - feature.keys())
    require(
        not missing,
        "Pretraining records must be examples with the features of the "
        "released code.",
        file=f"{path}, record 0 without {', '.join(missing)}",
    )
    return len(feature["input_ids"]), len(feature["masked_lm_positions"])


def _name(path: str, folder: str) -> str:
    """Return a path relative to a folder, or absolute if `folder` is empty."""
    if folder:
        return path.removeprefix(folder.rstrip("/") + "/")
    return files.absolute(path)


def infer_metadata(paths: list[str], folder: str) -> Metadata:
    """Return metadata for released records, which have no `metadata.json`.

    Files whose names start with `eval` contain held-out records. The size of
    the vocabulary is unknown.
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
            "{} tokens and {} predictions.".format(*lengths),
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
    """Return the metadata of records, given their folder or a glob.

    Args:
      data_dir: a folder written by the builder, a folder of released records,
        or a comma-separated list of globs of released records.
    """
    if is_described(data_dir):
        return load_metadata(data_dir)
    if files.exists(files.join(data_dir, "manifest.json")):
        paths = []  # an unfinished build
    elif files.is_folder(data_dir):
        folder, paths = data_dir, files.matches(PATTERN, data_dir)
    elif files.exists(data_dir) or any(mark in data_dir for mark in "*?[,"):
        entries = files.split_paths(data_dir)
        candidates = {x for e in entries for x in (e, posixpath.dirname(e))}
        require(
            len(entries) == 1 or sum(map(is_described, candidates)) < 2,
            "`data_dir` must be one folder with a metadata.json. To use "
            "several folders in turn, write FOLDER:SHARE,FOLDER, such as "
            "a:0.5,b; to mix texts, build records from all texts together.",
            data_dir=data_dir,
        )
        folder, paths = "", files.glob(data_dir, "`data_dir`")
    else:
        paths = []
    require(
        paths,
        "`data_dir` must be a folder finished by create_pretraining_data.py, "
        "with a metadata.json; a folder of released records, *.tfrecord* or "
        "*.tf_record*; or a glob of such files.",
        data_dir=data_dir,
    )
    return infer_metadata(paths, folder)


PIECE_COUNTS_FILE = "piece_counts.json"


def write_piece_counts(data_dir: str, counts: list[int]) -> None:
    """Write the count of each piece in the text, as a list of length V."""
    path = files.join(data_dir, PIECE_COUNTS_FILE)
    files.write_text(path, json.dumps(counts) + "\n")


def read_piece_counts(data_dir: str, vocab_size: int) -> np.ndarray | None:
    """Return the piece counts [V] of a model's vocabulary, or None if unknown.

    Records of the released code and of earlier builders have no counts.
    """
    path = files.join(data_dir, PIECE_COUNTS_FILE)
    if not files.exists(path):
        return None
    content = files.read_json(path, f"`{PIECE_COUNTS_FILE}`")
    with errors_in(path):
        counts = typed(list[int], content, "piece_counts")
    require(
        0 < len(counts) <= vocab_size
        and 0 <= min(counts)
        and max(counts) < 1 << 63,
        f"`{PIECE_COUNTS_FILE}` must list an integer for each piece of the "
        "model's vocabulary; make the records again.",
        file=path,
        vocab_size=vocab_size,
    )
    return np.pad(counts, (0, vocab_size - len(counts)))


def log_frequencies(counts: np.ndarray) -> np.ndarray:
    """Return float32 [V] log probabilities, with add-one smoothing."""
    smoothed = counts + 1.0
    return np.log(smoothed / smoothed.sum()).astype(np.float32)
