"""Whether the records are as their description says."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records import examples
from albert_tf.data.records.metadata import (
    METADATA_FILE,
    NEXT_SENTENCE_LABELS,
    SEGMENT_LENGTHS,
    TOKEN_IDS,
    WORD_STARTS,
    Metadata,
    RecordFile,
    entry_path,
    id_type,
    static_sizes,
)


def _wrong_static(feature, metadata: Metadata) -> str:
    """Return what is wrong with a static record, or an empty string."""
    wrong = []
    for name, size in static_sizes(metadata).items():
        found = len(feature[name])
        if found != size:
            wrong.append(f"`{name}` holds {found} values instead of {size}")
    return "; ".join(wrong)


def _wrong_dynamic(feature, metadata: Metadata) -> str:
    """Return what is wrong with a dynamic record, or an empty string."""
    sizes = {
        TOKEN_IDS: 1,
        WORD_STARTS: 1,
        SEGMENT_LENGTHS: 2,
        NEXT_SENTENCE_LABELS: 1,
    }
    for name, size in sizes.items():
        found = len(feature[name])
        if found != size:
            return f"`{name}` holds {found} values instead of {size}"
    tokens = sum(feature[SEGMENT_LENGTHS])
    room = metadata.max_seq_length - 3
    if not 0 < tokens <= room:
        return f"`{SEGMENT_LENGTHS}` sum to {tokens} instead of 1 to {room}"
    size = len(feature[TOKEN_IDS][0])
    if size != tokens * id_type(metadata.vocab_size).itemsize:
        return f"`{TOKEN_IDS}` is {size} bytes long for {tokens} tokens"
    size = len(feature[WORD_STARTS][0])
    if size != -(-tokens // 8):
        return f"`{WORD_STARTS}` is {size} bytes long for {tokens} tokens"
    return ""


def _first_fault(
    path: str, metadata: Metadata, split: str, limit: int = -1
) -> str:
    """Return what is wrong with the first, or all, records of a file."""
    dynamic = metadata.masking(split) == DYNAMIC
    wrong_with = _wrong_dynamic if dynamic else _wrong_static
    number = -1
    try:
        for number, record in enumerate(
            tf.data.TFRecordDataset(path).take(limit).as_numpy_iterator()
        ):
            if wrong := wrong_with(examples.parse(record), metadata):
                return f"{path}, record {number}: {wrong}"
    except tf.errors.DataLossError:
        return f"{path} is damaged or cut off in record {number + 1}"
    except ValueError:
        return f"{path}, record {number} is no tf.train.Example"
    return ""


def _entries(metadata: Metadata):
    for split, entries in metadata.splits.items():
        for entry in entries:
            yield split, entry


def _file_fault(path: str, entry: RecordFile) -> str:
    """Return what is wrong with a file as a whole, or nothing."""
    if not files.exists(path):
        return f"{path} is missing"
    if (size := files.size(path)) != entry.bytes:
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

    Cheap: compares sizes, and reads the first record of each file.
    """
    for split, entry in _entries(metadata):
        path = entry_path(data_dir, entry)
        fault = _file_fault(path, entry)
        if fault := fault or _first_fault(path, metadata, split, 1):
            raise _refusal(fault)


def _explained(
    message: str, data_dir: str, metadata: Metadata
) -> InputError | None:
    """Read the file of records that a message names; say what is wrong."""
    paths = {entry_path(data_dir, e): (s, e) for s, e in _entries(metadata)}
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

    `reading` sees to it that all errors of damaged records do. The others,
    such as those of a compiler, pass as they are, and no record is read.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if fault := _explained(error.message, data_dir, metadata):
            raise fault from error
        raise
