"""Records to batches: shuffled without end for training, once for evaluation.

Glossary: B batch, T tokens, P predictions.
"""

import tensorflow as tf

from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records.dynamic import masker
from albert_tf.data.records.metadata import (
    EVAL,
    TRAIN,
    Metadata,
    paths_of,
    static_sizes,
)
from albert_tf.data.records.parsing import parse_examples

# Records that are shuffled together while reading.
SHUFFLE_BLOCK = 1 << 14


def _features(metadata: Metadata) -> dict[str, tf.io.FixedLenFeature]:
    return {
        name: tf.io.FixedLenFeature(
            [size], tf.float32 if name == "masked_lm_weights" else tf.int64
        )
        for name, size in static_sizes(metadata).items()
    }


def parse(
    names: tf.Tensor, serialized: tf.Tensor, metadata: Metadata
) -> dict[str, tf.Tensor]:
    """Parse a batch of static examples: int32, and float32 for the weights.

    Args:
      names, serialized: [B] string, see `parse_examples`.
      metadata: gives T and P; a record of another length is an error.

    Returns:
      input_ids, input_mask, segment_ids [B, T]; masked_lm_positions,
      masked_lm_ids, masked_lm_weights [B, P]; sentence_order_labels [B].
    """
    batch = parse_examples(names, serialized, _features(metadata))
    batch = {
        name: value if value.dtype == tf.float32 else tf.cast(value, tf.int32)
        for name, value in batch.items()
    }
    labels = batch.pop("next_sentence_labels")  # [B, 1]
    return batch | {"sentence_order_labels": tf.squeeze(labels, 1)}


def _fail(path: tf.Tensor) -> tf.Tensor:
    wrong = tf.strings.join([path, " ended before its last record"])
    with tf.control_dependencies([tf.debugging.Assert(False, [wrong])]):
        return tf.identity(path)


def _file_records(
    path: tf.Tensor, count: tf.Tensor, skip: tf.Tensor
) -> tf.data.Dataset:
    """Return the records of a file from `skip` on; fewer than `count` fail.

    TensorFlow names a file that it cannot open, but not one that is damaged.
    So the file is first opened by itself; then its records end at the damage,
    or where it is cut off, and what is missing is an error with its name.
    """
    openable = tf.data.FixedLengthRecordDataset(path, 1).take(1).skip(1)
    sound = tf.data.TFRecordDataset(path).skip(skip)
    sound = sound.ignore_errors(log_warning=True)
    missing = tf.data.Dataset.from_tensors(path).map(_fail)
    whole = openable.concatenate(sound).concatenate(missing)
    return whole.take(count - skip)


def _records(
    paths: tf.Tensor, counts: tf.Tensor, skip: tf.Tensor | int
) -> tf.data.Dataset:
    """Return the records of files in a row, from the `skip`th on."""
    skips = tf.clip_by_value(
        skip - tf.cumsum(counts, exclusive=True), 0, counts
    )
    row = tf.data.Dataset.from_tensor_slices((paths, counts, skips))
    return row.flat_map(_file_records)


def _names(paths: tf.Tensor, counts: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Return what to call the records at places [n] in a row of files."""
    starts = tf.cumsum(counts, exclusive=True)
    index = tf.searchsorted(starts + counts, places, side="right")
    number = tf.strings.as_string(places - tf.gather(starts, index))
    return tf.strings.join([tf.gather(paths, index), ", record ", number])


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
    """Return names and records of an epoch from `skip`, a block's first, on.

    Files come in a random order, and each block of consecutive records in a
    random order: the stream can begin at any block and reads no whole file
    before it.
    """
    fold_in = tf.random.experimental.stateless_fold_in
    key = tf.stack([tf.constant(seed, tf.int64), epoch])
    order = _permutation(tf.size(counts), fold_in(key, 0))
    paths, counts = tf.gather(paths, order), tf.gather(counts, order)
    blocks = _records(paths, counts, skip).batch(SHUFFLE_BLOCK)

    def shuffle(block, records):
        index = _permutation(tf.size(records), fold_in(key, block + 1))
        places = block * SHUFFLE_BLOCK + tf.cast(index, tf.int64)
        return _names(paths, counts, places), tf.gather(records, index)

    return blocks.enumerate(skip // SHUFFLE_BLOCK).map(shuffle).unbatch()


def _files(
    data_dir: str, metadata: Metadata, split: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the paths of a split's files, and the records in each, int64."""
    paths = tf.constant(paths_of(data_dir, metadata, split))
    return paths, tf.constant(
        [entry.records for entry in metadata.splits[split]], tf.int64
    )


def train_stream(
    data_dir: str, metadata: Metadata, *, seed: int, start: int = 0
) -> tf.data.Dataset:
    """Return the endless stream of names and serialised training examples.

    The example at a position depends on the seed and the position alone, so
    that a run can resume anywhere. Each epoch shuffles anew.

    Args:
      data_dir: where the records are.
      metadata: of the same folder.
      seed: of the shuffling.
      start: the position of the first example to return.
    """
    paths, counts = _files(data_dir, metadata, TRAIN)
    first, offset = divmod(start, metadata.count(TRAIN))
    skip = offset - offset % SHUFFLE_BLOCK

    def epoch_records(epoch):
        here = tf.where(epoch == first, tf.constant(skip, tf.int64), 0)
        return _epoch(epoch, here, paths, counts, seed)

    epochs = tf.data.Dataset.range(first, tf.int64.max)
    return epochs.flat_map(epoch_records).skip(offset - skip)


def _with_weights(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    labels = batch["sentence_order_labels"]
    return batch | {"example_weights": tf.ones_like(labels, tf.float32)}


def batch_spec(
    batch_size: int, tokens: int, predictions: int
) -> dict[str, tf.TensorSpec]:
    """Return the specs of batches of T tokens and P predictions."""
    metadata = Metadata(tokens, predictions, 0, "", {})

    @tf.function
    def read(names, serialized):
        return _with_weights(parse(names, serialized, metadata))

    records = tf.TensorSpec([batch_size], tf.string)
    batch = read.get_concrete_function(records, records).structured_outputs
    return {k: tf.TensorSpec(x.shape, x.dtype) for k, x in batch.items()}


def _reader(data_dir: str, metadata: Metadata, seed: int):
    """Return how a batch is made of positions, names and examples, all [B]."""
    if metadata.masking(TRAIN) == DYNAMIC:
        return masker(data_dir, metadata, seed)
    return lambda _, names, serialized: parse(names, serialized, metadata)


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
    Dynamic records are masked here; the masks of an example depend on the
    seed and on its position in the stream alone.

    Args:
      data_dir: where the records are.
      metadata: of the same folder.
      batch_size: B of this reader.
      seed: of the shuffling and the masks.
      start: examples that were read before, by all readers together.
      num_shards: the number of readers.
      shard: which of them this is.
    """
    stream = train_stream(data_dir, metadata, seed=seed, start=start)
    batches = (
        stream.enumerate(start)
        .shard(num_shards, shard)
        .batch(batch_size, drop_remainder=True)
    )
    read = _reader(data_dir, metadata, seed)
    return batches.map(
        lambda positions, record: _with_weights(read(positions, *record)),
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
        missing = batch_size - tf.shape(batch["sentence_order_labels"])[0]
        return {
            name: tf.ensure_shape(
                tf.pad(value, [[0, missing]] + [[0, 0]] * (value.ndim - 1)),
                [batch_size, *value.shape[1:]],
            )
            for name, value in batch.items()
        }

    def read(places, serialized):
        names = _names(paths, counts, places)
        return pad(_with_weights(parse(names, serialized, metadata)))

    paths, counts = _files(data_dir, metadata, EVAL)
    return (
        _records(paths, counts, 0)
        .enumerate()
        .batch(batch_size)
        .map(read)
        .prefetch(tf.data.AUTOTUNE)
    )
