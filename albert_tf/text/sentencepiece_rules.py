"""ALBERT's rules for SentencePiece pieces: numbers and word starts."""

import itertools
from collections.abc import Sequence

import numpy as np
import sentencepiece

WORD_MARK = "▁"

# A piece that consists of the characters in ENGLISH continues a word, unless
# the piece is a single symbol.
SYMBOLS = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
ENGLISH = frozenset("abcdefghijklmnopqrstuvwxyz") | SYMBOLS

# An id, and its start and end in the text.
Span = tuple[int, int, int]


def is_word_start(piece: str) -> bool:
    """Return whether a piece begins a word, by the released English rule.

    A piece begins a word if it is a single symbol, or contains a character that
    is not in ENGLISH, such as a word-boundary marker (▁), a digit, an
    apostrophe or an accented letter. Source: google-research/albert
    `_is_start_piece_sp`.
    """
    return piece in SYMBOLS or not ENGLISH.issuperset(piece.lower())


def _encode_number(
    model: sentencepiece.SentencePieceProcessor, number: str
) -> list[Span]:
    proto = model.encode(number, out_type="immutable_proto")
    return [(piece.id, piece.begin, piece.end) for piece in proto.pieces]


def _drop_word_mark(
    model: sentencepiece.SentencePieceProcessor, spans: list[Span]
) -> list[Span]:
    """Remove the first piece's ▁; the rest may be an unknown piece."""
    id, begin, end = spans[0]
    first = model.id_to_piece(id)
    if not first.startswith(WORD_MARK):
        return spans
    if first == WORD_MARK:
        return spans[1:]
    return [(model.piece_to_id(first[1:]), begin, end), *spans[1:]]


def digit_comma_splits(
    model: sentencepiece.SentencePieceProcessor,
    pieces: Sequence[str],
    variant: str,
) -> dict[int, list[Span]]:
    """Split each piece that ends in a digit and a comma.

    Args:
      model: the SentencePiece model.
      pieces: the model's pieces.
      variant: one of `normalization.DIGIT_COMMA`.

    Returns:
      {id of such a piece: the ids that replace it, with their spans in the
      piece's text without its ▁}. Source: google-research/albert
      `encode_pieces`.
    """
    splits: dict[int, list[Span]] = {}
    if variant == "none":
        return splits
    comma = model.piece_to_id(",")
    for i, piece in enumerate(pieces):
        if piece[-1:] != "," or not piece[-2:-1].isdigit():
            continue
        number = piece[:-1].replace(WORD_MARK, "")
        spans = _encode_number(model, number)
        if variant == "strip" and not piece.startswith(WORD_MARK):
            spans = _drop_word_mark(model, spans)
        splits[i] = [*spans, (comma, len(number), len(number) + 1)]
    return splits


def expansion_table(
    splits: dict[int, list[Span]], vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return splits as values, int32, and row splits, int64 [V + 1].

    Row i contains the ids that replace id i, usually i itself.
    """
    rows = [
        [id for id, _, _ in splits[i]] if i in splits else [i]
        for i in range(vocab_size)
    ]
    lengths = [len(row) for row in rows]
    values = np.array([id for row in rows for id in row], np.int32)
    return values, np.concatenate([[0], np.cumsum(lengths)])


def concatenated(
    rows: Sequence[Sequence[int]],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated ids of rows, int32, and the end of each row."""
    ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
    return ids, np.cumsum([len(row) for row in rows], dtype=np.int64)


def expand(
    ids: Sequence[Sequence[int]], values: np.ndarray, splits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Replace each id in each row with its row of an expansion table.

    Returns:
      The concatenated new ids of all rows, and the end of each row.
    """
    flat, ends = concatenated(ids)
    lengths = np.diff(splits)[flat]
    new_ends = np.append(0, np.cumsum(lengths))
    shift = np.repeat(splits[flat] - new_ends[:-1], lengths)
    return values[shift + np.arange(new_ends[-1])], new_ends[ends]


def piece_shares(model: sentencepiece.SentencePieceProcessor) -> np.ndarray:
    """Return each piece's share of the training text, [V].

    Scores are logarithms of shares, except in BPE models, for which all pieces
    receive the same share.
    """
    scores = np.array(model.get_score(list(range(len(model)))))
    ranks = np.array_equal(scores, np.round(scores))
    # Predefined symbols have no score.
    weights = (scores < 0) * (1.0 if ranks else np.exp(scores))
    return weights / max(weights.sum(), np.finfo(float).tiny)
