"""Windows over texts that are longer than the model's input, in a graph.

`tasks/features.py` has the same in Python. B texts, R rows, N tokens of a text,
W tokens of a row's window, T tokens of a row.
"""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.text.tokenizers import Tokenizer


class Windows(NamedTuple):
    """The windows over the tokens of a batch of texts.

    Attributes:
      counts: int64 [B], the number of rows of each text.
      texts: int64 [R], the text that a row belongs to.
      places: ragged [R, W], indices of a row's tokens among all texts' tokens.
      is_best: ragged bool [R, W], whether no other window has more context for
        a token.
    """

    counts: tf.Tensor
    texts: tf.Tensor
    places: tf.RaggedTensor
    is_best: tf.RaggedTensor


def make_windows(ids: tf.RaggedTensor, size: tf.Tensor, stride: int) -> Windows:
    """Return windows of at most `size` [B] tokens over ids [B, N]."""
    number = ids.row_lengths()
    more = tf.maximum(number - size, 0)
    counts = 1 + (more + stride - 1) // stride
    texts = tf.repeat(tf.range(ids.nrows()), counts)
    start = tf.ragged.range(counts).values * stride
    length = tf.minimum(
        tf.gather(number, texts) - start, tf.gather(size, texts)
    )
    first = tf.gather(ids.row_starts(), texts) + start
    places = tf.ragged.range(first, first + length)
    within = tf.ragged.range(length).values
    lengths = tf.repeat(length, length)
    context = tf.minimum(within, lengths - 1 - within)
    # Of windows with equal context, the longest wins, then the first.
    rows = tf.cast(places.value_rowids(), tf.int64)
    score = (context * 100 + lengths) * (1 << 32) - rows
    total = tf.cast(tf.size(ids.values), tf.int64)
    most = tf.math.unsorted_segment_max(score, places.values, total)
    best = score == tf.gather(most, places.values)
    return Windows(counts, texts, places, places.with_values(best))


def two_part_rows(
    tokenizer: Tokenizer,
    a: tf.RaggedTensor,
    b: tf.RaggedTensor,
    length: int | None,
) -> dict[str, tf.Tensor]:
    """Return rows `[CLS] a [SEP] b [SEP]` [R, T], even if b is empty."""
    rows = a.nrows()

    def column(id: int) -> tf.RaggedTensor:
        return tf.RaggedTensor.from_tensor(tf.fill([rows, 1], id))

    sep = column(tokenizer.sep_id)
    parts = [column(tokenizer.cls_id), a, sep, b, sep]
    ids = tf.concat(parts, axis=1).to_tensor(
        tokenizer.pad_id, shape=[None, length]
    )
    width = tf.maximum(tf.shape(ids)[1], 1)
    ids = tf.pad(ids, [[0, 0], [0, width - tf.shape(ids)[1]]])
    first = a.row_lengths() + 2
    mask = tf.sequence_mask(first + b.row_lengths() + 1, width, tf.int32)
    second = mask - tf.sequence_mask(first, width, tf.int32)
    return {"input_ids": ids, "input_mask": mask, "segment_ids": second}


def placed(flags: tf.RaggedTensor, position: tf.Tensor, width) -> tf.Tensor:
    """Return flags [R, W] as bool [R, T], shifted to a row's position [R]."""
    before = tf.RaggedTensor.from_row_lengths(
        tf.zeros([tf.reduce_sum(position)], tf.bool), position
    )
    dense = tf.concat([before, flags], axis=1).to_tensor(False)
    dense = dense[:, :width]
    return tf.pad(dense, [[0, 0], [0, width - tf.shape(dense)[1]]])


def byte_bounds(strings: tf.Tensor) -> tf.RaggedTensor:
    """Return the byte offset of each character in strings, and of the end."""
    _, starts = tf.strings.unicode_decode_with_offsets(
        strings, "UTF-8", errors="replace", replacement_char=0xFFFD
    )
    ends = tf.strings.length(strings)[:, None]
    return tf.concat([tf.cast(starts, tf.int32), ends], axis=1)


def cut(
    strings: tf.Tensor, bounds: tf.RaggedTensor, rows, starts, ends
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Cut parts out of strings by offsets in characters.

    Args:
      strings: [B].
      bounds: their `byte_bounds`.
      rows: [...], the string that each part belongs to.
      starts: [...], the first character.
      ends: [...], the character after the last one.

    Returns:
      The parts, and their first bytes and the bytes after the last ones.
    """
    base = tf.gather(tf.cast(bounds.row_starts(), tf.int32), rows)
    first = tf.gather(bounds.values, base + starts)
    last = tf.gather(bounds.values, base + ends)
    text = tf.strings.substr(tf.gather(strings, rows), first, last - first)
    return text, first, last
