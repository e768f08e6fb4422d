"""Pack one or two segments of ids into a row of model inputs."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from albert_tf.base.errors import require
from albert_tf.base.settings import as_type, plain

# Names of the model's inputs.
INPUTS = ("input_ids", "input_mask", "segment_ids")
MASK_TEXT = "[MASK]"


class SpecialIds(Protocol):
    """A tokenizer's ids for [PAD], [CLS] and [SEP]."""

    pad_id: int
    cls_id: int
    sep_id: int


def check_masks(text: str, remaining: int) -> None:
    """Raise an error if a text has no mask, or if truncation removed a mask.

    Args:
      text: the text.
      remaining: the number of masks in the packed row.
    """
    number = text.count(MASK_TEXT)
    rule = f"A text to fill must contain {MASK_TEXT}."
    require(number, rule, text=repr(text[:60]))
    require(
        remaining == number,
        f"Every {MASK_TEXT} must be within the model's maximum length; shorten "
        f"the text. Received: {number - remaining} of {number} beyond it",
    )


def is_column(values: Any) -> bool:
    """Return whether an object is iterable and has one value per example.

    Tables are excluded, because iterating over a table may yield its column
    names.
    """
    return (
        isinstance(values, Iterable)
        and not isinstance(values, str | bytes | Mapping | set)
        and not hasattr(values, "columns")
        and not hasattr(values, "column_names")
    )


def checked_texts(values: Any, name: str) -> list[str]:
    """Return strings as a list; decode bytes, and reject other values.

    Args:
      values: a list, array, tensor or column; an array or tensor may have the
        shape [N, 1].
      name: the name of the argument, for error messages.
    """
    if is_column(values) and list(getattr(values, "shape", ())[1:]) == [1]:
        values = values[:, 0]
    values = plain(values)
    rule = f"`{name}` must be a list of strings."
    require(is_column(values), rule, **{name: repr(values)[:60]})
    if not isinstance(values, list):  # a lazy column may yield tensors
        values = map(plain, values)
    texts = []
    for x in values:
        text = x.decode("utf-8", "replace") if isinstance(x, bytes) else x
        received = {f"{name}[{len(texts)}]": repr(text)[:60]}
        require(isinstance(text, str), rule, **received)
        texts.append(text)
    return texts


def checked_text(text: Any) -> str:
    """Return a string; decode bytes, and reject other values."""
    rule = "`text` must be a string; for a list, call the tokenizer itself."
    require(isinstance(text, str | bytes), rule, text=repr(text)[:60])
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def checked_ids(ids: Any, vocab_size: int) -> list[int]:
    """Return a row of ids as a list of integers; reject other values."""
    values = plain(ids)
    rule = f"`ids` must be one row of ids from 0 to {vocab_size - 1}."
    require(is_column(values), rule, ids=repr(values)[:60])
    checked = []
    for x in values:
        id = operator.index(x) if hasattr(x, "__index__") else -1
        received = {f"ids[{len(checked)}]": x}
        require(0 <= id < vocab_size, rule, **received)
        checked.append(id)
    return checked


def row_length(max_length: int | None) -> int | None:
    """Return `max_length` as an integer, or None if it is not set."""
    if max_length is None:
        return None
    length = as_type("max_length", max_length, int)
    rule = "`max_length` must be at least 3, for [CLS] and two [SEP]."
    require(length >= 3, rule, max_length=length)
    return length


def truncate_pair(
    length_a: int, length_b: int, max_tokens: int
) -> tuple[int, int]:
    """Return the number of leading tokens to keep in each of two segments.

    While the segments have more than `max_tokens` tokens in total, the longer
    one (b if they are equally long) loses its last token. Source:
    google-research/albert `_truncate_seq_pair`.
    """
    keep_b = min(length_b, max(max_tokens // 2, max_tokens - length_a))
    return min(length_a, max_tokens - keep_b), keep_b


def two_part_row(
    tokenizer: SpecialIds, a: Sequence[int], b: Sequence[int]
) -> tuple[np.ndarray, int]:
    """Return `[CLS] a [SEP] b [SEP]`, untruncated; b may be empty.

    Returns:
      The int32 tokens of the row, and the index at which segment 1 begins.
    """
    sep = [tokenizer.sep_id]
    row = np.concatenate([[tokenizer.cls_id], a, sep, b, sep])
    return row.astype(np.int32), len(a) + 2


def packed_row(
    tokenizer: SpecialIds, a: Sequence[int], b: Sequence[int], length: int
) -> tuple[np.ndarray, int]:
    """Return a row of two segments, truncated to `length` tokens.

    The row is `[CLS] a [SEP] b [SEP]`, or `[CLS] a [SEP]` if b is empty.

    Returns:
      See `two_part_row`.
    """
    extra = 3 if len(b) else 2
    keep_a, keep_b = truncate_pair(len(a), len(b), length - extra)
    row, second = two_part_row(tokenizer, a[:keep_a], b[:keep_b])
    return row[: keep_a + keep_b + extra], second


def pack(
    tokenizer: SpecialIds,
    a: Sequence[int],
    b: Sequence[int],
    max_seq_length: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a padded `packed_row`, with its mask and segment ids.

    Returns:
      input_ids, input_mask and segment_ids, int32 [max_seq_length].
    """
    row, second = packed_row(tokenizer, a, b, max_seq_length)
    inputs = np.zeros([3, max_seq_length], np.int32)
    inputs[0] = tokenizer.pad_id
    inputs[0, : len(row)] = row
    inputs[1, : len(row)] = 1
    inputs[2, second : len(row)] = 1
    return tuple(inputs)


def packed_inputs(
    tokenizer: SpecialIds,
    first: Sequence[Sequence[int]],
    second: Sequence[Sequence[int]],
    max_length: int | None,
) -> dict[str, np.ndarray]:
    """Return the inputs of a batch, {name: int32 [B, T]}.

    Args:
      tokenizer: the special ids.
      first: the ids of each row's first text.
      second: the ids of each row's second text, empty if there is none.
      max_length: T, or None for the length of the longest row.
    """
    rule = "`text_pairs` and `texts` must have the same length."
    sizes = {"texts": len(first), "text_pairs": len(second)}
    require(len(first) == len(second), rule, **sizes)
    both = list(zip(first, second, strict=True))
    lengths = [len(a) + len(b) + 2 + bool(len(b)) for a, b in both]
    length = max_length or max(lengths, default=3)
    rows = [pack(tokenizer, a, b, length) for a, b in both]
    columns = np.array(rows, np.int32).reshape(-1, 3, length)
    return {name: columns[:, i] for i, name in enumerate(INPUTS)}
