"""Examples as arrays, and the batches of them for training and evaluation.

Shapes: N rows of tokens, B batch, T = max_seq_length tokens.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.tokenization import Tokenizer, truncate_pair


def packed_row(
    tokenizer: Tokenizer, a: np.ndarray, b: Sequence[int], length: int
) -> tuple[np.ndarray, int]:
    """Return what `tokenization.pack` gives, but without the padding.

    Returns:
      The int32 tokens of the row, and where its segment 1 begins.
    """
    extra = 3 if len(b) else 2
    keep_a, keep_b = truncate_pair(len(a), len(b), length - extra)
    cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
    parts = [cls, a[:keep_a], sep]
    if len(b):
        parts += [b[:keep_b], sep]
    return np.concatenate(parts).astype(np.int32), keep_a + 2


@dataclasses.dataclass(frozen=True)
class Features:
    """The examples of a split, tokens without their padding.

    Attributes:
      tokens: int32, the packed tokens of all rows, one after the other.
      row_splits: int64 [N + 1], where each row begins in `tokens`.
      second_starts: int32 [N], where segment 1 begins in a row.
      arrays: further features [N, ...], such as `labels`.
      pad_id: the token of padding.
      max_seq_length: T.
    """

    tokens: np.ndarray
    row_splits: np.ndarray
    second_starts: np.ndarray
    arrays: dict[str, np.ndarray]
    pad_id: int
    max_seq_length: int

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[tuple[np.ndarray, int]],
        arrays: dict[str, np.ndarray],
        pad_id: int,
        max_seq_length: int,
    ) -> "Features":
        """Build from what `packed_row` returned for each row."""
        lengths = [len(tokens) for tokens, _ in rows]
        return cls(
            tokens=np.concatenate([tokens for tokens, _ in rows]),
            row_splits=np.concatenate([[0], np.cumsum(lengths)]),
            second_starts=np.array([start for _, start in rows], np.int32),
            arrays=arrays,
            pad_id=pad_id,
            max_seq_length=max_seq_length,
        )

    def __len__(self) -> int:
        return len(self.second_starts)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each row, int32 [N]."""
        return np.diff(self.row_splits).astype(np.int32)

    def full_rows(self) -> int:
        """Return how many rows leave no room, and may have been cut."""
        return int(np.sum(self.lengths >= self.max_seq_length))

    def batcher(self) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
        """Return a function from int64 indices [B] to a batch of [B, T].

        An index of -1 is padding: row 0 with `example_weights` 0.
        """
        # Tensors made here are captured; arrays would be copied into graphs.
        with tf.device("CPU"):
            ragged = tf.RaggedTensor.from_row_splits(
                tf.constant(self.tokens), tf.constant(self.row_splits)
            )
            starts = tf.constant(self.second_starts)
            lengths = tf.constant(self.lengths)
            arrays = {k: tf.constant(v) for k, v in self.arrays.items()}
        position = np.arange(self.max_seq_length, dtype=np.int32)

        def batch(indices):
            shape = [indices.shape[0], self.max_seq_length]
            rows = tf.maximum(indices, 0)
            tokens = tf.gather(ragged, rows)
            inside = position < tf.gather(lengths, rows)[:, None]  # [B, T]
            second = position >= tf.gather(starts, rows)[:, None]
            mask = tf.cast(inside, tf.int32)
            segment = tf.cast(inside & second, tf.int32)
            return {
                "input_ids": tokens.to_tensor(self.pad_id, shape=shape),
                "input_mask": mask,
                "segment_ids": segment,
                "example_weights": tf.cast(indices >= 0, tf.float32),
                **{name: tf.gather(x, rows) for name, x in arrays.items()},
            }

        return batch


def training_order(number: int, seed: int, start: int) -> tf.data.Dataset:
    """Return the endless indices of training examples from a position on.

    Every epoch is a permutation that follows from (seed, epoch) alone.
    """
    epoch, skipped = divmod(start, number)

    def permutation(epoch):
        return tf.random.experimental.stateless_shuffle(
            tf.range(number, dtype=tf.int64), [seed, epoch], alg="philox"
        )

    epochs = tf.data.Dataset.range(epoch, np.iinfo(np.int64).max)
    return epochs.map(permutation).unbatch().skip(skipped)


def training_batches(
    features: Features,
    *,
    batch_size: int,
    seed: int,
    start: int = 0,
    num_shards: int = 1,
    shard: int = 0,
) -> tf.data.Dataset:
    """Return endless shuffled batches, a pure function of the arguments.

    Args:
      features: what to draw from.
      batch_size: examples in a batch, B.
      seed: of the order.
      start: the number of examples that all shards together had before.
      num_shards: parts that the examples are dealt to in turn.
      shard: which part to return.
    """
    indices = training_order(len(features), seed, start)
    indices = indices.shard(num_shards, shard)
    indices = indices.batch(batch_size, drop_remainder=True)
    batches = indices.map(features.batcher(), num_parallel_calls=2)
    return batches.prefetch(tf.data.AUTOTUNE)


def evaluation_batches(features: Features, batch_size: int) -> tf.data.Dataset:
    """Return each example once, in order; the last batch is padded."""
    padding = -len(features) % batch_size
    indices = np.concatenate(
        [np.arange(len(features)), np.full(padding, -1, np.int64)]
    )
    batches = tf.data.Dataset.from_tensor_slices(indices)
    batches = batches.batch(batch_size, drop_remainder=True)
    return batches.map(features.batcher(), num_parallel_calls=2)
