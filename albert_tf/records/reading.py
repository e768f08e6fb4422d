"""Records to batches: shuffled without end for training, once for evaluation.

Glossary: B batch, T tokens, P predictions.
"""

import tensorflow as tf

from albert_tf.masking import DYNAMIC
from albert_tf.records.dynamic import masker
from albert_tf.records.metadata import (
    EVAL,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABELS,
    SENTENCE_ORDER_LABELS,
    TRAIN,
    Metadata,
    paths_of,
    static_sizes,
)

# Records that are shuffled together while reading.
SHUFFLE_BLOCK = 1 << 14


def _features(metadata: Metadata) -> dict[str, tf.io.FixedLenFeature]:
    return {
        name: tf.io.FixedLenFeature(
            [size], tf.float32 if name == MASKED_LM_WEIGHTS else tf.int64
        )
        for name, size in static_sizes(metadata).items()
    }


def parse(serialized: tf.Tensor, metadata: Metadata) -> dict[str, tf.Tensor]:
    """Parse a batch of static examples: int32, and float32 for the weights.

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
    # A file cut between two records would shift all that follow.
    whole = tf.data.experimental.assert_cardinality(ends[-1] - skip)
    dataset = dataset.skip(skip - before).apply(whole)
    blocks = dataset.batch(SHUFFLE_BLOCK)

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
    paths = tf.constant(paths_of(data_dir, metadata, TRAIN))
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


def _reader(data_dir: str, metadata: Metadata, seed: int):
    """Return how a batch is made of positions [B] and serialised examples."""
    if metadata.masking(TRAIN) == DYNAMIC:
        return masker(data_dir, metadata, seed)
    return lambda positions, serialized: parse(serialized, metadata)


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
        lambda positions, serialized: _with_weights(
            read(positions, serialized)
        ),
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

    records = tf.data.TFRecordDataset(paths_of(data_dir, metadata, EVAL))
    return (
        records.batch(batch_size)
        .map(lambda serialized: _with_weights(parse(serialized, metadata)))
        .map(pad)
        .prefetch(tf.data.AUTOTUNE)
    )
