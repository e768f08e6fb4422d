"""Checks that records match their metadata."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.data.records import tfrecord
from albert_tf.data.records.metadata import (
    METADATA_FILE,
    Metadata,
    RecordFile,
    entry_path,
)
from albert_tf.data.records.record_rules import record_fault

# Remote storage has a high latency but handles many calls at once.
CALLS_AT_ONCE = 64
# Number of records to check in each split before a run. With fewer records, the
# ids of a larger vocabulary might all be small by chance.
FIRST = 16
# TensorFlow's message about a record whose contents are not valid.
UNPARSED = "Could not parse example input"


def _first_fault(
    path: str, metadata: Metadata, split: str, limit: int | None = None
) -> str:
    """Describe the first fault in a file, or in its first `limit` records.

    Return "" if there is none.
    """
    form = metadata.form(split)
    for number, record in enumerate(islice(tfrecord.read(path), limit)):
        try:
            feature = tfrecord.parse(record)
        except ValueError:
            return f"{path}, record {number} is not a tf.train.Example"
        if wrong := record_fault(feature, metadata, form):
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
