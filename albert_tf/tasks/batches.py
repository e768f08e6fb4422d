"""Batches of features for training and evaluation.

Shapes: B batch, C rows per example (choices or texts), T tokens. T is either
`max_seq_length` or the length of the batch's longest row, rounded up; the
latter is unknown while a graph is traced.
"""

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from albert_tf.tasks.features import Features

MAX_LENGTHS = 16  # maximum number of batch lengths to compile for
POOL_BATCHES = 64  # number of batches whose examples are sorted together


def length_step(max_seq_length: int) -> int:
    """Return the step for rounding up lengths, a multiple of 8.

    Rounding to multiples of the step leaves at most `MAX_LENGTHS` different
    lengths.
    """
    return 8 * math.ceil(max_seq_length / (8 * MAX_LENGTHS))


def example_lengths(features: Features) -> np.ndarray:
    """Return the number of tokens in each example's longest row."""
    return features.lengths.reshape(-1, features.rows_per_example).max(axis=1)


def rows_of(features: Features, indices: tf.Tensor) -> tf.Tensor:
    """Return the indices of the examples' rows: [B], or [B, C] if C exceeds 1.

    An index of -1 yields the rows of example 0.
    """
    rows = tf.maximum(indices, 0)
    if features.rows_per_example == 1:
        return rows
    row_offsets = tf.range(features.rows_per_example, dtype=rows.dtype)
    return rows[:, None] * features.rows_per_example + row_offsets


def padded(
    values: tf.Tensor, fill: float, offsets: tf.Tensor, inside: tf.Tensor
) -> tf.Tensor:
    """Return the values at offsets [B, (C,) T], or `fill` outside rows.

    Args:
      values: [tokens, ...].
      fill: the value at padding.
      offsets: the index in `values` of each token.
      inside: bool, with the shape of `offsets`: whether a row has this token.
    """
    axes = [1] * (values.shape.rank - 1)  # axes after the token axis
    mask = tf.reshape(inside, tf.concat([tf.shape(inside), axes], 0))
    fill = tf.cast(fill, values.dtype)
    dense = tf.where(mask, tf.gather(values, offsets), fill)
    return tf.ensure_shape(dense, [*inside.shape, *values.shape[1:]])


def batcher(
    features: Features, step: int = 0
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """Return a function that converts int64 indices [B] to a batch [B, (C,) T].

    An index of -1 means padding: example 0 with weight 0. If `step` is 0, T is
    `max_seq_length`; otherwise, T is the longest row's length, rounded up to a
    multiple of `step`, but at most `max_seq_length`.
    """
    limit = features.max_seq_length
    # Graphs refer to tensors, but would copy NumPy arrays.
    with tf.device("CPU"):
        row_starts = tf.constant(features.row_splits[:-1])
        lengths = tf.constant(features.lengths)
        second_starts = tf.constant(features.second_starts)
        tables = {"input_ids": (tf.constant(features.tokens), features.pad_id)}
        for name, values in features.token_arrays.items():
            tables[name] = (tf.constant(values), features.fills[name])
        arrays = {k: tf.constant(v) for k, v in features.arrays.items()}

    def width(row_lengths):
        longest = tf.reduce_max(row_lengths)
        return tf.minimum(-(-longest // step) * step, limit) if step else limit

    @tf.autograph.experimental.do_not_convert
    def batch(indices):
        rows = rows_of(features, indices)  # [B] or [B, C]
        row_lengths = tf.gather(lengths, rows)
        position = tf.range(width(row_lengths))  # [T]
        inside = position < row_lengths[..., None]
        second = position >= tf.gather(second_starts, rows)[..., None]
        offsets = tf.gather(row_starts, rows)[..., None] + tf.cast(
            position, tf.int64
        )
        offsets = tf.where(inside, offsets, 0)  # in `features.tokens`
        examples = tf.maximum(indices, 0)
        return {
            **{k: padded(*x, offsets, inside) for k, x in tables.items()},
            "input_mask": tf.cast(inside, tf.int32),
            "segment_ids": tf.cast(inside & second, tf.int32),
            "example_weights": tf.cast(indices >= 0, tf.float32),
            **{k: tf.gather(x, examples) for k, x in arrays.items()},
        }

    return batch


def training_order(number: int, seed: int, start: int) -> tf.data.Dataset:
    """Return an endless stream of training indices from a given position.

    Every epoch contains all indices below `number`, in an order that depends
    only on the seed and the epoch.
    """
    epoch, skipped = divmod(start, number)

    @tf.autograph.experimental.do_not_convert
    def permutation(epoch):
        return tf.random.experimental.stateless_shuffle(
            tf.range(number, dtype=tf.int64), [seed, epoch], alg="philox"
        )

    epochs = tf.data.Dataset.range(epoch, np.iinfo(np.int64).max)
    return epochs.map(permutation).unbatch().skip(skipped)


def bucketed_order(
    lengths: np.ndarray, group: int, seed: int, start: int
) -> tf.data.Dataset:
    """Return a `training_order` whose batches have examples of similar length.

    The stream is divided into pools of `POOL_BATCHES` batches, or of about one
    epoch if an epoch is smaller. Each pool is sorted by length, with a stable
    sort, and its batches are then shuffled. For given examples, the order
    depends only on the seed, `group` and the position in the stream.

    Args:
      lengths: the length of each example.
      group: the number of examples in one batch over all replicas and hosts.
      seed: the seed for the order.
      start: the position in the stream at which to start.
    """
    groups = max(1, min(POOL_BATCHES, len(lengths) // group))
    pool = group * groups
    number, skipped = divmod(start, pool)
    with tf.device("CPU"):
        lengths = tf.constant(lengths)

    @tf.autograph.experimental.do_not_convert
    def arrange(number, indices):
        order = tf.argsort(tf.gather(lengths, indices), stable=True)
        sorted_groups = tf.reshape(tf.gather(indices, order), [groups, group])
        shuffled = tf.random.experimental.stateless_shuffle(
            sorted_groups, [seed, number], alg="philox"
        )
        return tf.reshape(shuffled, [pool])

    order = training_order(len(lengths), seed, number * pool)
    pools = order.batch(pool, drop_remainder=True).enumerate(number)
    return pools.map(arrange).unbatch().skip(skipped)


def training_batches(
    features: Features,
    *,
    batch_size: int,
    seed: int,
    start: int = 0,
    num_shards: int = 1,
    shard: int = 0,
    group: int = 0,
    step: int = 0,
) -> tf.data.Dataset:
    """Return endless shuffled batches, which depend only on the arguments.

    Args:
      features: the features to draw from.
      batch_size: the number of examples in a batch, B.
      seed: the seed for the order.
      start: the number of examples that all shards together have already drawn.
      num_shards: the number of shards, which receive examples in turn.
      shard: the index of the shard to return, from 0.
      group: the number of examples in one step over all shards if batches are
        bucketed by length, otherwise 0.
      step: see `batcher`.
    """
    if group:
        lengths = example_lengths(features)
        indices = bucketed_order(lengths, group, seed, start)
    else:
        indices = training_order(len(features), seed, start)
    indices = indices.shard(num_shards, shard)
    indices = indices.batch(batch_size, drop_remainder=True)
    make = batcher(features, step)
    return indices.map(make, num_parallel_calls=2).prefetch(tf.data.AUTOTUNE)


def evaluation_batches(
    features: Features, batch_size: int, bucketed: bool = False
) -> tf.data.Dataset:
    """Return batches that contain each example once; pad the last batch.

    Args:
      features: the features of the examples.
      batch_size: the number of examples in a batch, B.
      bucketed: whether to sort examples by length, longest first, and to cut
        each batch to the length of its longest row. To restore the original
        order, use the `example_numbers` in the batches.
    """
    order = np.arange(len(features))
    if bucketed:
        order = np.argsort(-example_lengths(features), kind="stable")
    padding = np.full(-len(features) % batch_size, -1, np.int64)
    indices = tf.data.Dataset.from_tensor_slices(
        np.concatenate([order, padding])
    )
    make = batcher(features, step=int(bucketed))

    @tf.autograph.experimental.do_not_convert
    def numbered(indices):
        return make(indices) | {"example_numbers": tf.cast(indices, tf.int32)}

    batches = indices.batch(batch_size, drop_remainder=True)
    return batches.map(numbered, num_parallel_calls=2)
