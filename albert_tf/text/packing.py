"""How the pieces of one or two segments become a row of the model's inputs."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from albert_tf.base.errors import require

# What the model takes of every row.
INPUTS = ("input_ids", "input_mask", "segment_ids")


class Special(Protocol):
    """The ids, of a tokenizer, that rows begin, end and are padded with."""

    pad_id: int
    cls_id: int
    sep_id: int


def joined(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of rows end to end, int64, and where each row ends."""
    ids = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
    return ids, np.cumsum([len(row) for row in rows], dtype=np.int64)


def is_column(values: Any) -> bool:
    """Return whether values come one after the other, a value an example.

    Of a table, whose columns are named, the names would come.
    """
    return (
        isinstance(values, Iterable)
        and not isinstance(values, str | bytes | Mapping | set)
        and not hasattr(values, "columns")
    )


def checked_texts(values: Any, name: str) -> list[str]:
    """Return strings as a list, bytes decoded; refuse anything else.

    Args:
      values: a list, array or tensor.
      name: what the user calls it.
    """
    if hasattr(values, "numpy"):
        values = values.numpy()
    if hasattr(values, "tolist"):  # of a lone string, that string
        values = values.tolist()
    rule = f"`{name}` must be a list of strings."
    require(is_column(values), rule, **{name: repr(values)[:60]})
    texts = []
    for x in values:
        text = x.decode("utf-8", "replace") if isinstance(x, bytes) else x
        received = {f"{name}[{len(texts)}]": repr(text)[:60]}
        require(isinstance(text, str), rule, **received)
        texts.append(text)
    return texts


def truncate_pair(
    length_a: int, length_b: int, max_tokens: int
) -> tuple[int, int]:
    """Return how many first tokens of two segments to keep.

    The longer segment loses its last token until both fit, b if they are
    equally long. Source: google-research/albert `_truncate_seq_pair`.
    """
    if length_a + length_b <= max_tokens:
        return length_a, length_b
    keep_b = min(length_b, max(max_tokens // 2, max_tokens - length_a))
    return max_tokens - keep_b, keep_b


def pack(
    tokenizer: Special,
    a: Sequence[int],
    b: Sequence[int],
    max_seq_length: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `[CLS] a [SEP] b [SEP]`, or `[CLS] a [SEP]` if b is empty.

    Returns:
      input_ids, input_mask and segment_ids, int32 [max_seq_length].
    """
    extra = 3 if len(b) else 2
    keep_a, keep_b = truncate_pair(len(a), len(b), max_seq_length - extra)
    first = [tokenizer.cls_id, *a[:keep_a], tokenizer.sep_id]
    second = [*b[:keep_b], tokenizer.sep_id] if len(b) else []
    used = len(first) + len(second)
    inputs = np.zeros([3, max_seq_length], np.int32)
    inputs[0] = tokenizer.pad_id
    inputs[0, :used] = first + second
    inputs[1, :used] = 1
    inputs[2, len(first) : used] = 1
    return tuple(inputs)
