"""Whether the records are as their description says."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records import tfrecord
from albert_tf.data.records.metadata import (
    METADATA_FILE,
    Metadata,
    RecordFile,
    entry_path,
    id_type,
    static_sizes,
)

# A store answers each call after a while, but many at a time.
CALLS_AT_ONCE = 64
# Records of each split that are looked at before a run; the ids of fewer may
# all be low by chance, where they are those of another vocabulary.
FIRST = 16
# The values of every feature of a dynamic record.
DYNAMIC_SIZES = {
    "token_ids": 1,
    "word_starts": 1,
    "segment_lengths": 2,
    "next_sentence_labels": 1,
}


def _wrong_sizes(feature, sizes: dict[str, int]) -> str:
    """Return which features of a record hold another number of values."""
    return "; ".join(
        f"`{name}` holds {len(feature[name])} values instead of {size}"
        for name, size in sizes.items()
        if len(feature[name]) != size
    )


def _wrong_static(feature, metadata: Metadata) -> str:
    """Return what is wrong with a static record, or an empty string."""
    if wrong := _wrong_sizes(feature, static_sizes(metadata)):
        return wrong
    highest, size = max(feature["input_ids"]), metadata.vocab_size
    if 0 < size <= highest:
        return f"`input_ids` holds {highest}, beyond a vocabulary of {size}"
    return ""


def _wrong_dynamic(feature, metadata: Metadata) -> str:
    """Return what is wrong with a dynamic record, or an empty string."""
    if wrong := _wrong_sizes(feature, DYNAMIC_SIZES):
        return wrong
    tokens, room = sum(feature["segment_lengths"]), metadata.max_seq_length - 3
    if not 0 < tokens <= room:
        return f"`segment_lengths` sum to {tokens} instead of 1 to {room}"
    bytes_due = {
        "token_ids": tokens * id_type(metadata.vocab_size).itemsize,
        "word_starts": -(-tokens // 8),
    }
    for name, due in bytes_due.items():
        if (size := len(feature[name][0])) != due:
            return f"`{name}` is {size} bytes long for {tokens} tokens"
    return ""


def _first_fault(
    path: str, metadata: Metadata, split: str, limit: int | None = None
) -> str:
    """Return what is wrong with the first, or all, records of a file."""
    dynamic = metadata.masking(split) == DYNAMIC
    wrong_in = _wrong_dynamic if dynamic else _wrong_static
    for number, record in enumerate(islice(tfrecord.read(path), limit)):
        try:
            feature = tfrecord.parse(record)
        except ValueError:
            return f"{path}, record {number} is no tf.train.Example"
        if wrong := wrong_in(feature, metadata):
            return f"{path}, record {number}: {wrong}"
    return ""


def _file_fault(path: str, entry: RecordFile) -> str:
    """Return what is wrong with a file as a whole, or nothing."""
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
        f"The records must be whole and as `{METADATA_FILE}` says, or as the "
        "first of them where there is none; make or copy them again. "
        f"Received: {fault}"
    )


def check(data_dir: str, metadata: Metadata) -> None:
    """Raise `InputError` unless every file is whole and holds such records.

    Cheap: asks for sizes, of many files at a time, and reads the first records
    of each split. What is wrong with another one is said where it is read.
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
    """Read the file of records that a message names; say what is wrong."""
    paths = {entry_path(data_dir, e): (s, e) for s, e in metadata.entries()}
    path = max((p for p in paths if p in message), key=len, default=None)
    if path is None:
        return None
    split, entry = paths[path]
    fault = _file_fault(path, entry) or _first_fault(path, metadata, split)
    said = message[message.index(path) :].splitlines()[0].rstrip("]")
    return _refusal(fault or said)


@contextlib.contextmanager
def errors_explained(data_dir: str, metadata: Metadata) -> Iterator[None]:
    """Turn errors that name a file of records into an `InputError`.

    `input_pipeline` sees to it that all errors of damaged records do. The
    others, such as those of a compiler, pass as they are, and no record is
    read.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if fault := _explained(error.message, data_dir, metadata):
            raise fault from error
        raise
