"""Pieces added to the vocabulary of a tokenizer."""

from collections.abc import Iterable

from sentencepiece.sentencepiece_model_pb2 import ModelProto

from albert_tf.base.errors import require
from albert_tf.text.normalization import TextConfig, normalize
from albert_tf.text.sentencepiece_models import USER_DEFINED, WORD_MARK
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.text.wordpiece import (
    clean_character,
    lowercase_and_strip,
    split_punctuation,
    vocabulary_lines,
)


def text_of_piece(kind: str, config: TextConfig, piece: str) -> str | None:
    """Return an added piece's normalized form, or None if no text can match.

    The piece `[E1]` matches the text `[E1]` and, if the tokenizer lower-cases
    text, also `[e1]`. WordPiece matches only single words, so the result is
    None if WordPiece would split the piece, for example at a space.
    """
    if kind == "sentencepiece":
        return normalize(piece, config).replace(" ", WORD_MARK)
    words = "".join(map(clean_character, piece)).split()
    if len(words) != 1 or len(split_punctuation(words[0])) != 1:
        return None
    return lowercase_and_strip(words[0], config)


def with_pieces(tokenizer: Tokenizer, pieces: Iterable[str]) -> Tokenizer:
    """Return a tokenizer with pieces appended to its vocabulary, in order.

    Args:
      tokenizer: the original tokenizer; its ids do not change.
      pieces: the new pieces. An occurrence in a text becomes one token, unless
        it is part of a longer piece; with WordPiece, only whole words match.

    Raises:
      InputError: if a piece is blank or already in the vocabulary, or if
        WordPiece would never match it.
    """
    kind, config = tokenizer.kind, tokenizer.config
    taken = set(tokenizer.pieces(range(tokenizer.vocab_size)))
    names = []
    for piece in pieces:
        require(piece.strip(), "A piece to add must not be blank.", piece=piece)
        name = text_of_piece(kind, config, piece)
        rule = "A piece to add must be one word without punctuation: "
        rule += "WordPiece splits any other text."
        require(name, rule, piece=repr(piece))
        rule = "A piece to add must not be in the vocabulary."
        require(not {name, piece} & taken, rule, piece=repr(piece))
        taken.add(name)
        names.append(name)
    if kind == "wordpiece":
        lines = [*vocabulary_lines(tokenizer.content), *names]
        return type(tokenizer)("\n".join(lines).encode(), config)
    proto = ModelProto.FromString(tokenizer.content)
    for name in names:
        proto.pieces.add(piece=name, score=0.0, type=USER_DEFINED)
    return type(tokenizer)(proto.SerializeToString(), config)
