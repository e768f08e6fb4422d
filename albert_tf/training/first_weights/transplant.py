"""A word table for another vocabulary, made of a trained model's.

Pieces of both kinds of vocabulary are compared as SentencePiece writes them,
with a mark where a word begins.

Shapes: V pieces of the new vocabulary, W of the old one, E embedding width.
"""

from collections.abc import Callable

import numpy as np

from albert_tf.data.records.piece_statistics import (
    log_frequencies,
    read_piece_counts,
)
from albert_tf.text.normalization import normalize
from albert_tf.text.sentencepiece_rules import WORD_MARK
from albert_tf.text.tokenizers import Tokenizer, load_tokenizer
from albert_tf.text.wordpiece import IDEOGRAPH, fold, is_punctuation

WORDS = "albert/embeddings/word_embeddings"
BIASES = "mlm/output_bias"

# Share of the new text in pieces that the old vocabulary has too, from which
# on both texts are taken to be of one language.
SAME_LANGUAGE = 0.5

NORMALIZE = {"sentencepiece": normalize, "wordpiece": fold}


def written(tokenizer: Tokenizer) -> list[str]:
    """Return all pieces as SentencePiece writes them."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    if tokenizer.kind == "sentencepiece":
        return pieces
    return [p[2:] if p.startswith("##") else WORD_MARK + p for p in pieces]


def turned(piece: str) -> str:
    """Return a piece without its word mark, or with one if it has none."""
    bare = piece.removeprefix(WORD_MARK)
    return WORD_MARK + piece if bare == piece else bare


def stands_apart(piece: str) -> bool:
    """Return whether WordPiece makes a word of what may be inside one."""
    text = piece.removeprefix(WORD_MARK)
    return len(text) == 1 and bool(
        IDEOGRAPH.match(text) or is_punctuation(text)
    )


def cut(text: str, ids: dict[str, int]) -> list[int]:
    """Return the longest pieces from the left; none where one is missing.

    Word marks decide only between pieces of one text.
    """
    chosen, begin = [], 0
    while begin < len(text):
        for end in range(len(text), begin, -1):
            piece = text[begin:end]
            id = ids.get(piece, ids.get(turned(piece)))
            if id is not None:
                chosen.append(id)
                begin = end
                break
        else:
            return []
    return chosen


def origins(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """Return for each new piece the old ones of which it is made.

    One if the old vocabulary has it, none if it has not all its characters.
    Special pieces have their roles; others that stand for no text their names.
    """
    silent = set(old.not_words.tolist())
    words = written(old)
    ids = {p: i for i, p in enumerate(words) if i not in silent}
    names = {words[i]: i for i in silent}
    roles = ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id")
    special = {getattr(new, r): getattr(old, r) for r in roles}

    def origin(i: int, piece: str) -> list[int]:
        if i in special:
            return [special[i]]
        if i in new.not_words:
            return [names[piece]] if piece in names else []
        if old.kind != new.kind and stands_apart(piece):
            piece = turned(piece)
        if piece in ids:
            return [ids[piece]]
        texts = piece.split(WORD_MARK)
        rule = NORMALIZE[old.kind]
        return cut(WORD_MARK.join(rule(t, old.config) for t in texts), ids)

    return [origin(i, piece) for i, piece in enumerate(written(new))]


class Transplant:
    """What becomes of the weights that belong to pieces.

    Args:
      origins: of each new piece the old ones, as `origins` returns them.
      counts: of the new pieces [V] in the new records, None if not known.
    """

    def __init__(self, origins: list[list[int]], counts: np.ndarray | None):
        self.origins, self.counts = origins, counts
        self.old_pieces = np.array([len(ids) for ids in origins])

    def means(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return rows that are means of old ones, or else new ones."""
        rows = np.array(new, np.float32)
        for i, ids in enumerate(self.origins):
            if ids:
                rows[i] = old[ids].mean(0)
        return rows

    def biases(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return new biases of masked words.

        Kept pieces keep theirs, which belong to their rows; others have log
        frequencies, as many above the kept ones' as these were on average. In
        another language the kept are too few, and what they say of their
        frequency is wrong.
        """
        biases = self.means(old, np.full_like(new, old.mean()))
        if self.counts is None:
            return biases
        frequencies = log_frequencies(self.counts)
        kept = self.old_pieces == 1
        weights = self.counts * kept
        if weights.sum() <= SAME_LANGUAGE * self.counts.sum():
            return frequencies
        shift = np.average(biases - frequencies, weights=weights)
        biases[~kept] = frequencies[~kept] + shift
        return biases

    def changes(self) -> dict[str, Callable]:
        """Return {variable: what makes its value of the old and new one's}."""
        return {WORDS: self.means, BIASES: self.biases}

    def describe(self) -> str:
        """Say what the rows are made of."""
        total, made_of = len(self.origins), self.old_pieces
        one, new = np.sum(made_of == 1), np.sum(made_of == 0)
        return (
            f"{total:,} pieces: {one:,} are the old vocabulary's, "
            f"{total - one - new:,} composed of its pieces, {new:,} new"
        )


def read_transplant(
    model_dir: str, tokenizer: Tokenizer, data_dir: str, size: int
) -> Transplant:
    """Return the transplant from a model directory to records.

    Args:
      model_dir: the source.
      tokenizer, data_dir: of the records.
      size: rows of the new table, V or more.
    """
    more = [[] for _ in range(size - tokenizer.vocab_size)]
    return Transplant(
        origins(load_tokenizer(model_dir), tokenizer) + more,
        read_piece_counts(data_dir, size),
    )
