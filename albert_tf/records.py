"""Pretraining records: their description, their checks and their reading.

A data directory holds `metadata.json`, which describes the records, the
records themselves and the tokenizer's files. The features have the released
names; in code `next_sentence_labels` is `sentence_order_labels`.

Glossary: B batch, T tokens, P predictions.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import InputError

METADATA_FILE = "metadata.json"
VERSION = 1
TRAIN, EVAL = "train", "eval"

INPUT_IDS = "input_ids"
INPUT_MASK = "input_mask"
SEGMENT_IDS = "segment_ids"
TOKEN_BOUNDARY = "token_boundary"
MASKED_LM_POSITIONS = "masked_lm_positions"
MASKED_LM_IDS = "masked_lm_ids"
MASKED_LM_WEIGHTS = "masked_lm_weights"
NEXT_SENTENCE_LABELS = "next_sentence_labels"
SENTENCE_ORDER_LABELS = "sentence_order_labels"

# Records that are shuffled together while reading.
SHUFFLE_BLOCK = 1 << 14


@dataclasses.dataclass(frozen=True)
class RecordFile:
    """One file of records, named relative to the data directory."""

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

    def count(self, split: str) -> int:
        """Return the number of records of a split."""
        return sum(entry.records for entry in self.splits.get(split, ()))

    def write(self, data_dir: str) -> None:
        """Write `metadata.json`."""
        values = {"version": VERSION} | dataclasses.asdict(self)
        files.write_json(files.join(data_dir, METADATA_FILE), values)


def read_metadata(data_dir: str) -> Metadata:
    """Read `metadata.json` of a data directory."""
    path = files.join(data_dir, METADATA_FILE)
    if not tf.io.gfile.exists(path):
        raise InputError(
            "`data_dir` must be a finished folder of "
            "create_pretraining_data.py, with a metadata.json. "
            f"Received: data_dir={data_dir}"
        )
    values = files.read_json(path, "`metadata.json`")
    if not isinstance(values, dict) or values.pop("version", None) != VERSION:
        raise InputError(
            f"`metadata.json` must have version {VERSION}; make the records "
            f"again with this create_pretraining_data.py. Received: {path}"
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


def _shapes(metadata: Metadata) -> dict[str, int]:
    """Return the number of values of every feature that is read."""
    tokens = (INPUT_IDS, INPUT_MASK, SEGMENT_IDS)
    predictions = (MASKED_LM_POSITIONS, MASKED_LM_IDS, MASKED_LM_WEIGHTS)
    return (
        dict.fromkeys(tokens, metadata.max_seq_length)
        | dict.fromkeys(predictions, metadata.max_predictions_per_seq)
        | {NEXT_SENTENCE_LABELS: 1}
    )


def _features(metadata: Metadata) -> dict[str, tf.io.FixedLenFeature]:
    return {
        name: tf.io.FixedLenFeature(
            [size], tf.float32 if name == MASKED_LM_WEIGHTS else tf.int64
        )
        for name, size in _shapes(metadata).items()
    }


def parse(serialized: tf.Tensor, metadata: Metadata) -> dict[str, tf.Tensor]:
    """Parse a batch of examples: int32, and float32 for the weights.

    Args:
      serialized: [B] string.
      metadata: gives T and P; a record of another length is an error.

    Returns:
      input_ids, input_mask, segment_ids [B, T]; masked_lm_positions,
      masked_lm_ids, masked_lm_weights [B, P]; sentence_order_labels [B].
    """
    batch = tf.io.parse_example(serialized, _features(metadata))
    batch = {
        name: value if value.dtype == tf.float32 else tf.cast(value, tf.int32)
        for name, value in batch.items()
    }
    labels = batch.pop(NEXT_SENTENCE_LABELS)  # [B, 1]
    return batch | {SENTENCE_ORDER_LABELS: tf.squeeze(labels, 1)}


def _paths(data_dir: str, metadata: Metadata, split: str) -> list[str]:
    if not metadata.count(split):
        raise InputError(
            f"`data_dir` must hold {split} records. Received: {data_dir} "
            f"with none"
        )
    return [files.join(data_dir, e.file) for e in metadata.splits[split]]


def _permutation(size: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Return a permutation that depends on the key [2] alone."""
    draws = tf.random.stateless_uniform(
        [size], key, minval=None, maxval=None, dtype=tf.int64, alg="philox"
    )
    return tf.argsort(draws, stable=True)


def _epoch(
    epoch: tf.Tensor,
    skip: tf.Tensor,
    paths: tf.Tensor,
    counts: tf.Tensor,
    seed: int,
) -> tf.data.Dataset:
    """Return the records of one epoch from `skip` on, a block's first record.

    Files come in a random order, and each block of consecutive records in a
    random order: the stream can begin at any block and reads no whole file
    before it.
    """
    fold_in = tf.random.experimental.stateless_fold_in
    key = tf.stack([tf.constant(seed, tf.int64), epoch])
    order = _permutation(tf.size(counts), fold_in(key, 0))
    counts = tf.gather(counts, order)
    ends = tf.cumsum(counts)
    done = tf.reduce_sum(tf.cast(ends <= skip, tf.int32))
    before = ends[done] - counts[done]
    dataset = tf.data.TFRecordDataset(tf.gather(paths, order)[done:])
    blocks = dataset.skip(skip - before).batch(SHUFFLE_BLOCK)

    def shuffle(block, records):
        index = _permutation(tf.size(records), fold_in(key, block + 1))
        return tf.gather(records, index)

    return blocks.enumerate(skip // SHUFFLE_BLOCK).map(shuffle).unbatch()


def train_stream(
    data_dir: str, metadata: Metadata, *, seed: int, start: int = 0
) -> tf.data.Dataset:
    """Return the endless stream of serialised training examples.

    The example at a position depends on the seed and the position alone, so
    that a run can resume anywhere. Each epoch shuffles anew.

    Args:
      data_dir: where the records are.
      metadata: of the same folder.
      seed: of the shuffling.
      start: the position of the first example to return.
    """
    paths = tf.constant(_paths(data_dir, metadata, TRAIN))
    counts = tf.constant([e.records for e in metadata.splits[TRAIN]], tf.int64)
    first, offset = divmod(start, metadata.count(TRAIN))
    skip = offset - offset % SHUFFLE_BLOCK

    def epoch_records(epoch):
        here = tf.where(epoch == first, tf.constant(skip, tf.int64), 0)
        return _epoch(epoch, here, paths, counts, seed)

    epochs = tf.data.Dataset.range(first, tf.int64.max)
    return epochs.flat_map(epoch_records).skip(offset - skip)


def _with_weights(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    labels = batch[SENTENCE_ORDER_LABELS]
    return batch | {"example_weights": tf.ones_like(labels, tf.float32)}


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
    """Return endless batches of training examples, see `parse`.

    Several readers with the same seed and start, each with its own shard,
    read together exactly what one reader reads. `example_weights` [B] is 1.

    Args:
      data_dir: where the records are.
      metadata: of the same folder.
      batch_size: B of this reader.
      seed: of the shuffling.
      start: examples that were read before, by all readers together.
      num_shards: the number of readers.
      shard: which of them this is.
    """
    stream = train_stream(data_dir, metadata, seed=seed, start=start)
    batches = stream.shard(num_shards, shard).batch(
        batch_size, drop_remainder=True
    )
    return batches.map(
        lambda serialized: _with_weights(parse(serialized, metadata)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    ).prefetch(tf.data.AUTOTUNE)


def eval_batches(
    data_dir: str, metadata: Metadata, *, batch_size: int
) -> tf.data.Dataset:
    """Return the held-out examples once, in order, see `parse`.

    The last batch is filled with zeros; `example_weights` [B] is 1 for an
    example and 0 for filling.
    """

    def pad(batch):
        missing = batch_size - tf.shape(batch[SENTENCE_ORDER_LABELS])[0]
        return {
            name: tf.ensure_shape(
                tf.pad(value, [[0, missing]] + [[0, 0]] * (value.ndim - 1)),
                [batch_size, *value.shape[1:]],
            )
            for name, value in batch.items()
        }

    records = tf.data.TFRecordDataset(_paths(data_dir, metadata, EVAL))
    return (
        records.batch(batch_size)
        .map(lambda serialized: _with_weights(parse(serialized, metadata)))
        .map(pad)
        .prefetch(tf.data.AUTOTUNE)
    )


def _wrong_lengths(serialized: bytes, metadata: Metadata) -> str:
    """Return what is wrong with a record, or an empty string."""
    feature = tf.train.Example.FromString(serialized).features.feature
    wrong = []
    for name, size in _shapes(metadata).items():
        kind = feature[name].WhichOneof("kind")
        found = len(getattr(feature[name], kind).value) if kind else 0
        if found != size:
            wrong.append(f"`{name}` holds {found} values instead of {size}")
    return "; ".join(wrong)


def _first_fault(path: str, metadata: Metadata, limit: int) -> str:
    """Return what is wrong with the first records of a file, or nothing."""
    number = -1
    try:
        for number, record in enumerate(
            tf.data.TFRecordDataset(path).take(limit).as_numpy_iterator()
        ):
            if wrong := _wrong_lengths(record, metadata):
                return f"{path}, record {number}: {wrong}"
    except tf.errors.DataLossError:
        return f"{path} is damaged or truncated after record {number}"
    except ValueError:  # google.protobuf.message.DecodeError
        return f"{path}, record {number} is no tf.train.Example"
    return ""


def check(data_dir: str, metadata: Metadata) -> None:
    """Raise `InputError` unless every file is whole and holds such records.

    Cheap: compares sizes, and reads the first record of each file.
    """
    for entry in (e for entries in metadata.splits.values() for e in entries):
        path = files.join(data_dir, entry.file)
        fault = ""
        if not tf.io.gfile.exists(path):
            fault = f"{path} is missing"
        elif (size := tf.io.gfile.stat(path).length) != entry.bytes:
            fault = f"{path} has {size} bytes instead of {entry.bytes}"
        if fault := fault or _first_fault(path, metadata, 1):
            raise InputError(
                f"The records must be as `{METADATA_FILE}` says; make or copy "
                f"them again. Received: {fault}"
            )


def find_fault(data_dir: str) -> InputError | None:
    """Read all records and return what is wrong with them, if anything."""
    metadata = read_metadata(data_dir)
    for entry in (e for entries in metadata.splits.values() for e in entries):
        path = files.join(data_dir, entry.file)
        if fault := _first_fault(path, metadata, -1):
            return InputError(
                "The records must be whole and as long as "
                f"`{METADATA_FILE}` says; make or copy them again. "
                f"Received: {fault}"
            )
    return None


@contextlib.contextmanager
def errors_explained(data_dir: str) -> Iterator[None]:
    """Turn errors of reading damaged records into an `InputError`."""
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        if fault := find_fault(data_dir):
            raise fault from error
        raise
