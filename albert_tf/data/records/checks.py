"""Checks that records match their metadata."""

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.data.layout import id_type
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records import tfrecord
from albert_tf.data.records.metadata import (
    METADATA_FILE,
    Metadata,
    RecordFile,
    entry_path,
    legal,
    static_sizes,
    value_limits,
)

# Remote storage has a high latency but handles many calls at once.
CALLS_AT_ONCE = 64
# Number of records to check in each split before a run. With fewer records, the
# ids of a larger vocabulary might all be small by chance.
FIRST = 16
# TensorFlow's message about a record whose contents are not valid.
UNPARSED = "Could not parse example input"
# The number of values of each feature in a dynamic record.
DYNAMIC_SIZES = {
    "token_ids": 1,
    "word_starts": 1,
    "segment_lengths": 2,
    "next_sentence_labels": 1,
}


def _wrong_sizes(feature, sizes: dict[str, int]) -> str:
    """Describe features of a record that have the wrong number of values."""
    return "; ".join(
        f"`{name}` has {len(feature[name])} values instead of {size}"
        for name, size in sizes.items()
        if len(feature[name]) != size
    )


def _wrong_values(name: str, values: Sequence, metadata: Metadata) -> str:
    """Describe an illegal value of a feature; return "" if there is none."""
    limit = value_limits(metadata)[name]
    illegal = [x for x in (max(values), min(values)) if not legal(x, limit)]
    legal_values = f"from 0 to {limit - 1}" if limit else "0 or greater"
    return (
        f"`{name}` contains {illegal[0]}, but values must be {legal_values}"
        if illegal
        else ""
    )


def _wrong_predictions(feature) -> str:
    """Describe an illegal weight or a prediction at padding, if there is one.

    Args:
      feature: a static record whose integers are legal.
    """
    weights = np.array(feature["masked_lm_weights"])
    if not np.all((weights >= 0) & np.isfinite(weights)):
        return "`masked_lm_weights` contains an illegal weight"
    places = np.array(feature["masked_lm_positions"])[weights > 0]
    padded = places[np.array(feature["input_mask"])[places] == 0]
    return (
        f"position {padded[0]} is predicted but padded" if len(padded) else ""
    )


def _wrong_padded(feature, metadata: Metadata) -> str:
    """Describe the fault in a padded record; return "" if there is none."""
    sizes = static_sizes(metadata)
    if wrong := _wrong_sizes(feature, sizes):
        return wrong
    for name in value_limits(metadata):
        if name in sizes:
            if wrong := _wrong_values(name, feature[name], metadata):
                return wrong
    if "masked_lm_weights" in sizes:
        return _wrong_predictions(feature)
    return ""


def _wrong_dynamic(feature, metadata: Metadata) -> str:
    """Describe the fault in a dynamic record; return "" if there is none."""
    if wrong := _wrong_sizes(feature, DYNAMIC_SIZES):
        return wrong
    tokens, room = sum(feature["segment_lengths"]), metadata.max_seq_length - 3
    if not 0 < tokens <= room:
        return f"`segment_lengths` sum to {tokens} instead of 1 to {room}"
    dtype = id_type(metadata.vocab_size)
    bytes_due = {
        "token_ids": tokens * dtype.itemsize,
        "word_starts": -(-tokens // 8),
    }
    for name, due in bytes_due.items():
        if (size := len(feature[name][0])) != due:
            return f"`{name}` is {size} bytes long for {tokens} tokens"
    values = feature | {
        "token_ids": np.frombuffer(feature["token_ids"][0], dtype)
    }
    names = "segment_lengths", "token_ids", "next_sentence_labels"
    wrong = (_wrong_values(name, values[name], metadata) for name in names)
    return next(filter(None, wrong), "")


def _first_fault(
    path: str, metadata: Metadata, split: str, limit: int | None = None
) -> str:
    """Describe the first fault in a file, or in its first `limit` records."""
    dynamic = metadata.form(split) == DYNAMIC
    wrong_in = _wrong_dynamic if dynamic else _wrong_padded
    for number, record in enumerate(islice(tfrecord.read(path), limit)):
        try:
            feature = tfrecord.parse(record)
        except ValueError:
            return f"{path}, record {number} is not a tf.train.Example"
        if wrong := wrong_in(feature, metadata):
            return f"{path}, record {number}: {wrong}"
    return ""


def _file_fault(path: str, entry: RecordFile) -> str:
    """Describe damage to a file as a whole; return "" if it is intact."""
    try:
        size = files.size(path)
    except OSError:
        if files.exists(path):
            raise
        return f"{path} is missing"
    if size != entry.bytes:
        return f"{path} has {size} bytes instead of {entry.bytes}"
    return ""


def _refusal(fault: str) -> InputError:
    return InputError(
        f"The records must be complete and match `{METADATA_FILE}`, or, "
        "without that file, the first record; make or copy them again. "
        f"Received: {fault}"
    )


def check_files(data_dir: str, metadata: Metadata) -> None:
    """Raise `InputError` unless the files are complete and match the metadata.

    The check is cheap: it compares file sizes, many at a time, and reads the
    first records of each split. Errors in other records are reported when
    those records are read.
    """
    for split, entries in metadata.splits.items():
        paths = [entry_path(data_dir, entry) for entry in entries]
        with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
            faults = list(pool.map(_file_fault, paths, entries))
        if fault := next(filter(None, faults), ""):
            raise _refusal(fault)
        if paths and (fault := _first_fault(paths[0], metadata, split, FIRST)):
            raise _refusal(fault)


def _explained(
    message: str, data_dir: str, metadata: Metadata
) -> InputError | None:
    """Return the error for the file that a message names, or None if unknown.

    TensorFlow's parser names no file if the contents of a record's `features`
    cannot be parsed. The fault is then searched for in all files.
    """
    paths = {entry_path(data_dir, e): (s, e) for s, e in metadata.entries()}

    def fault_in(path: str) -> str:
        split, entry = paths[path]
        wrong = _file_fault(path, entry)
        return wrong or _first_fault(path, metadata, split)

    path = max((p for p in paths if p in message), key=len, default=None)
    if path is not None:
        said = message[message.index(path) :].splitlines()[0].rstrip("]")
        return _refusal(fault_in(path) or said)
    if UNPARSED in message:
        # If there is none, the record is in another folder of the run.
        fault = next(filter(None, map(fault_in, paths)), "")
        return _refusal(fault) if fault else None
    return None


@contextlib.contextmanager
def errors_explained(data_dir: str, metadata: Metadata) -> Iterator[None]:
    """Convert TensorFlow errors about damaged records to `InputError`.

    `input_pipeline` ensures that almost all of them name their file. Other
    errors, such as compiler errors, are raised unchanged, without reading any
    record.
    """
    try:
        yield
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        # A message that quotes bytes becomes a UnicodeDecodeError.
        is_text = isinstance(error, tf.errors.OpError)
        message = error.message if is_text else error.object.decode("latin-1")
        if fault := _explained(message, data_dir, metadata):
            raise fault from error
        raise
