"""The input pipeline: endless shuffled batches, and one pass for evaluation.

Before a run, `check_files` compares the files with their metadata.

Glossary: B batch, T tokens, P predictions.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError, require
from albert_tf.data.records import tfrecord
from albert_tf.data.records.metadata import (
    EVAL,
    METADATA_FILE,
    TRAIN,
    Metadata,
    RecordFile,
    entry_path,
    paths_of,
)
from albert_tf.data.records.parsing import READERS, parse_static
from albert_tf.data.records.record_checks import check_record
from albert_tf.data.records.record_stream import SHUFFLE_BLOCK

# Remote storage has a high latency, so each request reads many bytes.
READ_BYTES = 8 << 20
MAX_FILES, BYTES_AHEAD = 16, 256 << 20


def _fail(path: tf.Tensor) -> tf.Tensor:
    wrong = tf.strings.join([path, " ended before its last record"])
    with tf.control_dependencies([tf.debugging.Assert(False, [wrong])]):
        return tf.identity(path)


@tf.autograph.experimental.do_not_convert
def _file_records(
    path: tf.Tensor, first: tf.Tensor, last: tf.Tensor
) -> tf.data.Dataset:
    """Return the records of a file from `first` up to `last`, exclusive.

    TensorFlow's errors name a file that cannot be opened, but not a damaged
    file. Therefore, a separate step opens the file first. Reading then stops at
    damage or truncation, and missing records raise an error that names the
    file.
    """
    openable = tf.data.FixedLengthRecordDataset(path, 1).take(1).skip(1)
    intact = tf.data.TFRecordDataset(path, buffer_size=READ_BYTES).skip(first)
    intact = intact.ignore_errors(log_warning=True)
    missing = tf.data.Dataset.from_tensors(path).map(_fail)
    records = openable.concatenate(intact).concatenate(missing)
    return records.take(last - first)


def _files_at_once(entries: Sequence[RecordFile]) -> int:
    """Return the number of files to read in parallel.

    These files, and twice as many files that are read ahead, should fit in
    `BYTES_AHEAD` of memory.
    """
    largest = max(entry.bytes for entry in entries)
    fitting = max(1, BYTES_AHEAD // 3 // max(1, largest))
    return min(MAX_FILES, len(entries), fitting)


class _Row(NamedTuple):
    """Files whose records are read as one sequence."""

    paths: tf.Tensor  # [files] string
    counts: tf.Tensor  # [files] int64, the number of records in each file
    at_once: int


def _row(data_dir: str, metadata: Metadata, split: str) -> _Row:
    paths = tf.constant(paths_of(data_dir, metadata, split))
    entries = metadata.splits[split]
    counts = tf.constant([entry.records for entry in entries], tf.int64)
    return _Row(paths, counts, _files_at_once(entries))


def _records(row: _Row, first, last) -> tf.data.Dataset:
    """Return the records of a `_Row` from one index to another, in order."""
    starts = tf.cumsum(row.counts, exclusive=True)
    first, last = (
        tf.clip_by_value(bound - starts, 0, row.counts)
        for bound in (first, last)
    )
    files = tf.data.Dataset.from_tensor_slices((row.paths, first, last))
    return files.interleave(
        _file_records,
        cycle_length=row.at_once,
        # Larger than the number of records in any file, so files are read in
        # order.
        block_length=tf.reduce_max(row.counts) + 1,
        num_parallel_calls=row.at_once if row.at_once > 1 else None,
    )


def _names(row: _Row, indices: tf.Tensor) -> tf.Tensor:
    """Return the names [n] of a `_Row`'s records, for error messages."""
    starts = tf.cumsum(row.counts, exclusive=True)
    index = tf.searchsorted(starts + row.counts, indices, side="right")
    number = tf.strings.as_string(indices - tf.gather(starts, index))
    return tf.strings.join([tf.gather(row.paths, index), ", record ", number])


def _permutation(size: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Return a permutation that depends only on its size and the key [2]."""
    draws = tf.random.stateless_uniform(
        [size], key, minval=None, maxval=None, dtype=tf.int64, alg="philox"
    )
    return tf.argsort(draws, stable=True)


def _epoch(
    epoch: tf.Tensor, row: _Row, first, last, seed: int
) -> tf.data.Dataset:
    """Return the names and records of an epoch from one index to another.

    Files are in random order, and so are the records within each block of
    consecutive records. The stream can start at any block without reading the
    files before it.
    """
    fold_in = tf.random.experimental.stateless_fold_in
    key = tf.stack([tf.constant(seed, tf.int64), epoch])
    order = _permutation(tf.size(row.counts), fold_in(key, 0))
    row = _Row(*(tf.gather(x, order) for x in row[:2]), row.at_once)
    blocks = _records(row, first, last).batch(SHUFFLE_BLOCK)

    def shuffle(number, records):
        start = first + number * SHUFFLE_BLOCK
        block_key = fold_in(key, start // SHUFFLE_BLOCK + 1)
        index = _permutation(tf.size(records), block_key)
        names = _names(row, start + tf.cast(index, tf.int64))
        return names, tf.gather(records, index)

    # Read one block while the previous one is used.
    return blocks.enumerate().map(shuffle).prefetch(1).unbatch()


def _share(
    row: _Row, total: int, seed: int, start: int, num_shards: int, shard: int
) -> tf.data.Dataset:
    """Return the endless stream of names and examples of one reader.

    Each epoch orders the files differently and assigns each reader an equal
    share of the records; a reader reads only the files that contain its share,
    and shuffles the records. Therefore, a reader's example at a position
    depends only on the seed, the position and the number of readers. A run can
    resume at any position.
    """
    rule = "`data_dir` must contain a training record for each host."
    require(total >= num_shards, rule, records=total, hosts=num_shards)
    begin, end = (total * n // num_shards for n in (shard, shard + 1))
    first_epoch, offset = divmod(start, end - begin)
    skip = offset - offset % SHUFFLE_BLOCK

    @tf.autograph.experimental.do_not_convert
    def epoch_records(epoch):
        skipped = tf.where(epoch == first_epoch, tf.constant(skip, tf.int64), 0)
        return _epoch(epoch, row, begin + skipped, end, seed)

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
    return epochs.flat_map(epoch_records).skip(offset - skip)


def _with_weights(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    first = batch["input_ids"][:, 0]
    return batch | {"example_weights": tf.ones_like(first, tf.float32)}


def batch_spec(
    batch_size: int, tokens: int, predictions: int
) -> dict[str, tf.TensorSpec]:
    """Return the specs of a batch with T tokens and P predictions per row."""
    metadata = Metadata(tokens, predictions, 0, "", {})

    @tf.function(autograph=False)
    def read(names, serialized):
        return _with_weights(parse_static(names, serialized, metadata))

    records = tf.TensorSpec([batch_size], tf.string)
    batch = read.get_concrete_function(records, records).structured_outputs
    return {k: tf.TensorSpec(x.shape, x.dtype) for k, x in batch.items()}


def train_batches(
    data_dir: str,
    metadata: Metadata,
    *,
    batch_size: int,
    seed: int,
    start: int = 0,
    num_shards: int = 1,
    shard: int = 0,
) -> tf.data.Dataset:
    """Return endless batches of training examples; see `parsing`.

    Readers with the same seed and start, each with its own shard, together read
    every record once per epoch. `example_weights` [B] is 1. Dynamic records are
    masked here; the masks of an example depend only on the seed and on the
    example's position in the combined stream of all readers.

    Args:
      data_dir: the folder of records.
      metadata: the folder's metadata.
      batch_size: B, for this reader.
      seed: the seed for shuffling and masking.
      start: number of examples already read, by all readers together.
      num_shards: the number of readers.
      shard: the index of this reader.
    """
    first = start // num_shards
    row, total = _row(data_dir, metadata, TRAIN), metadata.count(TRAIN)
    stream = _share(row, total, seed, first, num_shards, shard)
    batches = stream.enumerate(first).batch(batch_size, drop_remainder=True)
    read = READERS[metadata.form(TRAIN)](data_dir, metadata, seed)

    @tf.autograph.experimental.do_not_convert
    def make(positions, record):
        return _with_weights(read(positions * num_shards + shard, *record))

    return batches.map(
        make, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    ).prefetch(tf.data.AUTOTUNE)


def eval_batches(
    data_dir: str, metadata: Metadata, *, batch_size: int
) -> tf.data.Dataset:
    """Return the held-out examples once, in order; see `parsing`.

    Phonemes are masked here, in the same way each time. Zeros pad the last
    batch; `example_weights` [B] is 1 for examples and 0 for padding.
    """

    def pad(batch):
        missing = batch_size - tf.shape(batch["example_weights"])[0]
        return {
            name: tf.ensure_shape(
                tf.pad(value, [[0, missing]] + [[0, 0]] * (value.ndim - 1)),
                [batch_size, *value.shape[1:]],
            )
            for name, value in batch.items()
        }

    @tf.autograph.experimental.do_not_convert
    def read(positions, serialized):
        names = _names(row, positions)
        return pad(_with_weights(reader(positions, names, serialized)))

    row = _row(data_dir, metadata, EVAL)
    seed = metadata.settings.get("random_seed", 0)
    reader = READERS[metadata.form(EVAL)](data_dir, metadata, seed)
    return (
        _records(row, 0, metadata.count(EVAL))
        .enumerate()
        .batch(batch_size)
        .map(read)
        .prefetch(tf.data.AUTOTUNE)
    )


# Remote storage has a high latency but handles many calls at once.
CALLS_AT_ONCE = 64
# Number of records to check in each split before a run. With fewer records, a
# larger vocabulary might remain undetected because all ids happen to be small.
FIRST = 16
# TensorFlow's message about a record whose contents are invalid.
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
            check_record(tfrecord.parse(record), metadata, form)
        except ValueError as error:
            return f"{path}, record {number}: {error}"
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


def _records_error(fault: str) -> InputError:
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
            raise _records_error(fault)
        if paths and (fault := _first_fault(paths[0], metadata, split, FIRST)):
            raise _records_error(fault)


def _explained(
    message: str, folders: Mapping[str, Metadata]
) -> InputError | None:
    """Return the error for the file that a message names, or None if unknown.

    TensorFlow's parser does not name the file if it cannot parse the contents
    of a record's `features`. In this case, all files are searched.
    """
    paths = {
        entry_path(folder, entry): (metadata, split, entry)
        for folder, metadata in folders.items()
        for split, entry in metadata.entries()
    }

    def fault_in(path: str) -> str:
        metadata, split, entry = paths[path]
        wrong = _file_fault(path, entry)
        return wrong or _first_fault(path, metadata, split)

    path = max((p for p in paths if p in message), key=len, default=None)
    if path is not None:
        excerpt = message[message.index(path) :].splitlines()[0].rstrip("]")
        return _records_error(fault_in(path) or excerpt)
    faults = map(fault_in, paths) if UNPARSED in message else ()
    fault = next(filter(None, faults), "")
    return _records_error(fault) if fault else None


@contextlib.contextmanager
def errors_explained(folders: Mapping[str, Metadata]) -> Iterator[None]:
    """Convert TensorFlow errors about damaged records to `InputError`.

    This module ensures that almost all of these errors name the file. Other
    errors, such as compiler errors, are raised unchanged, and no record is
    read.

    Args:
      folders: {folder or globs of records: metadata}.
    """
    try:
        yield
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        # A message that quotes bytes becomes a UnicodeDecodeError.
        is_text = isinstance(error, tf.errors.OpError)
        message = error.message if is_text else error.object.decode("latin-1")
        if fault := _explained(message, folders):
            raise fault from error
        raise
