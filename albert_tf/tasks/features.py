"""Examples as arrays: rows of tokens, with windows over long texts.

Shapes: N rows of tokens, B batch, T = max_seq_length tokens, C rows per
example (choices or texts).
"""

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from albert_tf.text.packing import INPUTS, packed_row
from albert_tf.text.tokenizers import Tokenizer


def make_windows(number: int, size: int, stride: int) -> list[tuple[int, int]]:
    """Return a (start, length) pair for each window over `number` tokens.

    Windows have at most `size` tokens. Each window starts `stride` tokens after
    the start of the previous window; `stride` is at most `size`.

    Source: `convert_examples_to_features` of the released `squad_utils.py`.
    """
    starts = range(0, max(number - size, 0) + stride, stride) if number else ()
    return [(start, min(number - start, size)) for start in starts]


def best_windows(number: int, windows: list[tuple[int, int]]) -> np.ndarray:
    """Return the index of the window with the most context for each token.

    The result is int64 [number]. As in the released `squad_utils.py`, a token's
    context is the number of tokens to its left or right in the window,
    whichever is smaller, plus 0.01 times the window's length. If windows tie,
    the first window wins.
    """
    best, row_of = np.full(number, -np.inf), np.zeros(number, np.int64)
    for row, (start, length) in enumerate(windows):
        position, window = np.arange(length), slice(start, start + length)
        context = np.minimum(position, length - 1 - position) + 0.01 * length
        better = context > best[window]
        row_of[window][better] = row
        best[window][better] = context[better]
    return row_of


@dataclasses.dataclass(frozen=True)
class Features:
    """The examples of a split; tokens are stored without padding.

    Attributes:
      tokens: int32, the packed tokens of all rows, one after the other.
      row_splits: int64 [N + 1], the index in `tokens` at which each row begins,
        followed by the total number of tokens.
      second_starts: int32 [N], the position in each row at which segment 1
        begins.
      arrays: additional features [N, ...], such as `labels`.
      pad_id: the id of the padding token.
      max_seq_length: the maximum number of tokens in a row, T.
      token_arrays: additional features [tokens, ...], which are [B, T, ...] in
        a batch.
      fills: {name in `token_arrays`: padding value in a batch}.
      notes: arrays that describe the rows to `Task.predictions`. Batches do not
        contain these arrays.
      rows_per_example: the number of consecutive rows of each example, C. If C
        exceeds 1, a batch is [B, C, T], and `arrays` are [N / C, ...].
    """

    tokens: np.ndarray
    row_splits: np.ndarray
    second_starts: np.ndarray
    arrays: dict[str, np.ndarray]
    pad_id: int
    max_seq_length: int
    token_arrays: dict[str, np.ndarray] = dataclasses.field(
        default_factory=dict
    )
    fills: dict[str, float] = dataclasses.field(default_factory=dict)
    notes: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    rows_per_example: int = 1

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[tuple[np.ndarray, int]],
        arrays: dict[str, np.ndarray],
        pad_id: int,
        max_seq_length: int,
        **fields,
    ) -> "Features":
        """Build features from (tokens, position of segment 1) pairs.

        `packing.packed_row` and `two_part_row` create such pairs. `fields` is
        passed to the constructor.
        """
        lengths = [len(tokens) for tokens, _ in rows]
        return cls(
            tokens=np.concatenate([tokens for tokens, _ in rows]),
            row_splits=np.concatenate([[0], np.cumsum(lengths)]),
            second_starts=np.array([start for _, start in rows], np.int32),
            arrays=arrays,
            pad_id=pad_id,
            max_seq_length=max_seq_length,
            **fields,
        )

    @classmethod
    def from_texts(
        cls,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        max_seq_length: int,
        arrays: dict[str, np.ndarray] | None = None,
        pairs: Sequence[str] | None = None,
        **fields,
    ) -> "Features":
        """Build features with one truncated row `[CLS] text [SEP]` per text.

        If `pairs` contains the second texts, a row is a `packed_row` of two
        segments.
        """
        first, second = tokenizer.encode_batch(texts), [()] * len(texts)
        if pairs is not None:
            second = tokenizer.encode_batch(pairs)
        rows = [
            packed_row(tokenizer, a, b, max_seq_length)
            for a, b in zip(first, second, strict=True)
        ]
        arrays = arrays or {}
        return cls.from_rows(
            rows, arrays, tokenizer.pad_id, max_seq_length, **fields
        )

    def __len__(self) -> int:
        return len(self.second_starts) // self.rows_per_example

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens in each row, int32 [N]."""
        return np.diff(self.row_splits).astype(np.int32)

    def dense(self) -> dict[str, np.ndarray]:
        """Return the model's inputs for all rows, {name: int32 [N, T]}."""
        position = np.arange(self.max_seq_length)
        is_token = position < self.lengths[:, None]
        is_second = is_token & (position >= self.second_starts[:, None])
        ids = np.full(is_token.shape, self.pad_id, np.int32)
        ids[is_token] = self.tokens
        arrays = ids, is_token.astype(np.int32), is_second.astype(np.int32)
        return dict(zip(INPUTS, arrays, strict=True))

    def checksum(self) -> int:
        """Return a checksum of the tokens and labels."""
        arrays = [self.tokens, self.row_splits, self.second_starts]
        for table in self.arrays, self.token_arrays:
            arrays += [table["labels"]] if "labels" in table else []
        crc = 0
        for array in arrays:
            crc = zlib.crc32(np.ascontiguousarray(array).tobytes(), crc)
        return crc

    def full_rows(self) -> int:
        """Return the number of full rows, which may have been truncated."""
        return int(np.sum(self.lengths >= self.max_seq_length))
