"""Additional pieces for a tokenizer's vocabulary."""

from collections.abc import Iterable

from sentencepiece import sentencepiece_model_pb2

from albert_tf.base.errors import require
from albert_tf.text.normalization import normalize
from albert_tf.text.sentencepiece_models import WORD_MARK
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.text.wordpiece import (
    clean_character,
    lowercase_and_strip,
    split_punctuation,
    vocabulary_lines,
)

# Types of pieces in a SentencePiece model.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def text_of_piece(tokenizer: Tokenizer, piece: str) -> str | None:
    """Return an added piece in normalised form, or None if never found.

    The piece `[E1]` is found in `[E1]` and, if the tokenizer lower-cases, in
    `[e1]`. WordPiece finds only single words, so the result is None for a piece
    that contains a space or punctuation.
    """
    if tokenizer.kind == "sentencepiece":
        return normalize(piece, tokenizer.config).replace(" ", WORD_MARK)
    words = "".join(map(clean_character, piece)).split()
    if len(words) != 1 or len(split_punctuation(words[0])) != 1:
        return None
    return lowercase_and_strip(words[0], tokenizer.config)


def with_pieces(
    tokenizer: Tokenizer, pieces: Iterable[str], control: bool = False
) -> Tokenizer:
    """Return a tokenizer with pieces appended to its vocabulary, in order.

    Args:
      tokenizer: the original tokenizer; its ids do not change.
      pieces: texts, each of which becomes one piece wherever the text occurs;
        with WordPiece, only where the text is a whole word.
      control: whether the pieces are never found in text, like `[CLS]`.

    Raises:
      InputError: if a piece exists, or WordPiece would never find it.
    """
    taken = set(tokenizer.pieces(range(tokenizer.vocab_size)))
    names = []
    for piece in pieces:
        name = piece if control else text_of_piece(tokenizer, piece)
        rule = "A piece to add must be one word without punctuation: "
        rule += "WordPiece splits any other text."
        require(name, rule, piece=repr(piece))
        rule = "A piece to add must not be in the vocabulary."
        require(name not in taken, rule, piece=repr(piece))
        taken.add(name)
        names.append(name)
    if tokenizer.kind == "wordpiece":
        lines = [*vocabulary_lines(tokenizer.content), *names]
        return type(tokenizer)("\n".join(lines).encode(), tokenizer.config)
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.content)
    for name in names:
        kind = CONTROL if control else USER_DEFINED
        proto.pieces.add(piece=name, score=0.0, type=kind)
    return type(tokenizer)(proto.SerializeToString(), tokenizer.config)
