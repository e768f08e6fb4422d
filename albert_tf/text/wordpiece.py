"""WordPiece, which splits words into the longest pieces in the vocabulary.

Source: google-research/albert `BasicTokenizer` and `WordpieceTokenizer`. These
classes normalize text before they split it. For offsets and for the graph, this
normalization is compiled into the character map of a SentencePiece model.
"""

import bisect
import functools
import re
import string
import unicodedata
from collections.abc import Callable, Iterator

import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from albert_tf.base.errors import InputError, input_errors
from albert_tf.text.normalization import (
    REPLACEMENT,
    TextConfig,
    changing_characters,
    characters,
    of_each,
)
from albert_tf.text.sentencepiece_models import NORMAL, UNKNOWN, charsmap_of

# A word with more characters becomes one unknown piece.
MAX_WORD_CHARACTERS = 200

# The cache is cleared when it contains this many words.
MAX_CACHED_WORDS = 200_000

# This character replaces NUL, which no map can contain; cleaning drops both.
DROPPED = "\1"

# This character replaces ideographs that no piece contains. No piece contains
# this character.
OTHER_IDEOGRAPH = "\ufffe"

# Ideographs, each of which is a separate word.
IDEOGRAPH = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    "\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\uf900-\ufaff"
    "\U0002f800-\U0002fa1f]"
)


def vocabulary_lines(content: bytes) -> list[str]:
    """Return the pieces of a WordPiece vocabulary, which has one per line."""
    rule = "A WordPiece vocabulary must be UTF-8 text"
    with input_errors(UnicodeDecodeError, rule, bytes=len(content)):
        lines = content.decode("utf-8-sig").split("\n")
    if not lines[-1].strip():
        lines.pop()
    pieces: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        # Google's Chinese vocabulary contains a line separator as a piece.
        piece = line.split()[0] if line.split() else line.rstrip("\r")
        if piece in pieces:
            raise InputError(
                "A WordPiece vocabulary must contain each piece once. "
                f"Received: {piece!r} in lines {pieces[piece]} and {number}"
            )
        pieces[piece] = number
    return list(pieces)


def clean_character(character: str) -> str:
    """Return the replacement for a character in cleaned text.

    Tabs, line ends and Unicode separators become spaces, and ideographs are
    surrounded by spaces. Other control characters, format characters,
    surrogates and U+FFFD are dropped. All other characters stay the same.
    """
    category = unicodedata.category(character)
    if character in "\t\n\r" or category in ("Zs", "Zl", "Zp"):
        return " "
    if category in ("Cc", "Cf", "Cs") or character == REPLACEMENT:
        return ""
    if IDEOGRAPH.match(character):
        return f" {character} "
    return character


def lowercase_and_strip(word: str, config: TextConfig) -> str:
    """Lower-case a word and strip its accents, if so configured.

    Accents are stripped only from words that are lower-cased.
    """
    if not config.do_lower_case:
        return word
    word = word.lower()
    if config.strip_accents and not word.isascii():
        word = "".join([unicodedata.normalize("NFD", c) for c in word])
        word = "".join([c for c in word if unicodedata.category(c) != "Mn"])
    return word


def has_marks(text: str) -> bool:
    """Return whether `lowercase_and_strip` would drop a character of a text."""
    return not text.isascii() and any(
        unicodedata.category(character) == "Mn"
        for character in unicodedata.normalize("NFD", text)
    )


def is_punctuation(character: str) -> bool:
    """Return whether a character is punctuation or an ASCII symbol."""
    if character.isascii():
        return character in string.punctuation
    return unicodedata.category(character).startswith("P")


def split_punctuation(
    word: str, is_part: Callable[[str], bool] = is_punctuation
) -> list[tuple[int, int]]:
    """Split a word at punctuation; return the spans of its parts.

    Args:
      word: a word without white space.
      is_part: a function that returns whether a character is a separate part.
    """
    spans: list[tuple[int, int]] = []
    inside = False
    for i, character in enumerate(word):
        is_separate = is_part(character)
        if inside and not is_separate:
            spans[-1] = (spans[-1][0], i + 1)
        else:
            spans.append((i, i + 1))
        inside = not is_separate
    return spans


class _Cleaned(dict):
    """A map from code points to cleaned text, for `str.translate`."""

    def __missing__(self, code: int) -> str:
        self[code] = clean_character(chr(code))
        return self[code]


def normalize(text: str, config: TextConfig) -> str:
    """Clean a text; if so configured, lower-case it and strip its accents."""
    return lowercase_and_strip(text.translate(_Cleaned()), config)


def separated(text: str, config: TextConfig) -> str:
    """Normalize a text, and put spaces around punctuation."""
    folded = normalize(text, config)
    return "".join([f" {c} " if is_punctuation(c) else c for c in folded])


@functools.lru_cache(maxsize=8)
def rules_model(pieces: tuple[str, ...], config: TextConfig) -> bytes:
    """Return a SentencePiece character model that separates words.

    The model's pieces are a space and the characters of a vocabulary. The
    joined pieces of a text equal the result of `separated`, except that
    `OTHER_IDEOGRAPH` replaces ideographs that are not in the vocabulary.
    """
    alphabet = {" ", *"".join(pieces)}
    candidates = changing_characters()
    results = of_each(lambda text: separated(text, config), candidates)
    table = dict(zip(candidates, results, strict=True))
    for character in IDEOGRAPH.findall(characters()):
        new = table.get(character, f" {character} ")
        unknown = new.strip() not in alphabet
        table[character] = f" {OTHER_IDEOGRAPH} " if unknown else new
    proto = ModelProto()
    proto.trainer_spec.model_type = proto.trainer_spec.CHAR
    proto.pieces.add(piece="<unk>", score=0.0, type=UNKNOWN)
    for character in sorted(alphabet):
        proto.pieces.add(piece=character, score=0.0, type=NORMAL)
    spec = proto.normalizer_spec
    spec.add_dummy_prefix = spec.escape_whitespaces = False
    spec.remove_extra_whitespaces = False
    spec.precompiled_charsmap = charsmap_of(
        {old: new for old, new in table.items() if old != new}
    )
    return proto.SerializeToString()


class WordPiece:
    """A WordPiece model, which splits text into pieces (`##` inside words).

    Args:
      ids: {piece: id}.
      unk_id: the id of a word that the pieces cannot spell.
      config: settings for normalization.
    """

    def __init__(self, ids: dict[str, int], unk_id: int, config: TextConfig):
        self._ids = ids
        self._unk_id = unk_id
        self._config = config
        self._longest = max(map(len, ids))
        self._cleaned = _Cleaned()
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        words = text.translate(self._cleaned).split()
        return [i for word in words for i in self._word(word)]

    def encode_with_offsets(
        self, text: str, normalizer: sentencepiece.SentencePieceNormalizer
    ) -> tuple[list[int], list[int], list[int]]:
        """Return the ids of a text, and each id's start and end in characters.

        Args:
          text: a text without NUL, in which each final sigma is already
            lower-cased.
          normalizer: the normalizer of a `rules_model`.
        """
        separated, sources = normalizer.normalize(text, with_offsets=True)
        ids, starts, ends = [], [], []
        for word in re.finditer("[^ ]+", separated):
            for id, begin, end in self._greedy(word[0]):
                ids.append(id)
                starts.append(sources[word.start() + begin])
                # The end is the start of the next character of the text.
                last = sources[word.start() + end - 1]
                after = bisect.bisect(sources, last, hi=len(sources) - 1)
                ends.append(sources[after])
        return ids, starts, ends

    def _word(self, word: str) -> list[int]:
        ids = self._cache.get(word)
        if ids is None:
            if len(self._cache) >= MAX_CACHED_WORDS:
                self._cache.clear()
            pieces = self._pieces(lowercase_and_strip(word, self._config))
            ids = self._cache[word] = [id for id, _, _ in pieces]
        return ids

    def _pieces(self, word: str) -> Iterator[tuple[int, int, int]]:
        """Yield the id, start and end of each piece of a normalized word."""
        for begin, end in split_punctuation(word):
            for id, first, last in self._greedy(word[begin:end]):
                yield id, begin + first, begin + last

    def _greedy(self, word: str) -> list[tuple[int, int, int]]:
        """Return the ids, starts and ends of a word's longest pieces.

        The function goes from left to right and always takes the longest
        matching piece. A word that is too long, or that the pieces cannot
        spell, becomes one unknown piece.
        """
        unknown = [(self._unk_id, 0, len(word))]
        if len(word) > MAX_WORD_CHARACTERS:
            return unknown
        pieces, begin = [], 0
        while begin < len(word):
            mark = "##" if begin else ""
            end = min(len(word), begin + self._longest)
            while end > begin and mark + word[begin:end] not in self._ids:
                end -= 1
            if end == begin:
                return unknown
            pieces.append((self._ids[mark + word[begin:end]], begin, end))
            begin = end
        return pieces
