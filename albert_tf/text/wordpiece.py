"""WordPiece: words between spaces and punctuation, cut into longest pieces.

Source: google-research/albert `BasicTokenizer` and `WordpieceTokenizer`. The
steps that look at single characters are functions of their own, because the
tokenizer in the graph is made of the same ones.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator

from albert_tf.base.errors import InputError
from albert_tf.text.normalization import REPLACEMENT, TextConfig

# Longer words become one unknown piece.
MAX_WORD_CHARACTERS = 200

# The cache of words is emptied when it has grown to this many.
MAX_CACHED_WORDS = 200_000

# Ideographs, each of which is a word of its own.
IDEOGRAPH = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    "\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\uf900-\ufaff"
    "\U0002f800-\U0002fa1f]"
)


def vocabulary_lines(content: bytes) -> list[str]:
    """Return the pieces of a WordPiece vocabulary, one per line."""
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(
            "A wordpiece vocabulary must be UTF-8 text. "
            f"Received: byte {error.start} is not"
        ) from None
    if not lines[-1].strip():
        lines.pop()
    pieces: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        # Google's Chinese vocabulary holds a line separator as a piece.
        piece = line.split()[0] if line.split() else line.rstrip("\r")
        if piece in pieces:
            raise InputError(
                "A wordpiece vocabulary must hold each piece once. "
                f"Received: {piece!r} in lines {pieces[piece]} and {number}"
            )
        pieces[piece] = number
    return list(pieces)


def clean_character(character: str) -> str:
    """Return a character cleaned: dropped, a space, or set off by spaces."""
    category = unicodedata.category(character)
    if character in "\t\n\r" or category in ("Zs", "Zl", "Zp"):
        return " "
    if category in ("Cc", "Cf", "Cs") or character == REPLACEMENT:
        return ""
    if IDEOGRAPH.match(character):
        return f" {character} "
    return character


def fold(word: str, config: TextConfig) -> str:
    """Return a word lowered and without accents, as the config says."""
    if not config.do_lower_case:
        return word
    word = word.lower()
    if config.strip_accents and not word.isascii():
        word = unicodedata.normalize("NFD", word)
        word = "".join(c for c in word if unicodedata.category(c) != "Mn")
    return word


def has_marks(text: str) -> bool:
    """Return whether `fold` would drop any character of a text."""
    return not text.isascii() and any(
        unicodedata.category(character) == "Mn"
        for character in unicodedata.normalize("NFD", text)
    )


def is_punctuation(character: str) -> bool:
    """Return whether a character is punctuation, or an ASCII symbol."""
    if character.isascii():
        return (
            character.isprintable()
            and not character.isalnum()
            and (character != " ")
        )
    return unicodedata.category(character).startswith("P")


def split_punctuation(
    word: str, is_part: Callable[[str], bool] = is_punctuation
) -> list[tuple[int, int]]:
    """Return the spans of a word's parts; a punctuation mark is a part.

    Args:
      word: without white space.
      is_part: whether a character is a part by itself.
    """
    spans: list[tuple[int, int]] = []
    inside = False
    for i, character in enumerate(word):
        alone = is_part(character)
        if inside and not alone:
            spans[-1] = (spans[-1][0], i + 1)
        else:
            spans.append((i, i + 1))
        inside = not alone
    return spans


class _Cleaned(dict):
    """Maps a code point to its cleaned text, for `str.translate`."""

    def __missing__(self, code: int) -> str:
        self[code] = clean_character(chr(code))
        return self[code]


class WordPiece:
    """Cuts text into pieces of a vocabulary, `##` marking inner pieces."""

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
        self, text: str
    ) -> tuple[list[int], list[int], list[int]]:
        """Return the ids of a text and where each begins and ends in it."""
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        for word, sources in self._words_with_sources(text):
            folded, sources = self._fold_with_sources(word, sources)
            for id, begin, end in self._pieces(folded):
                ids.append(id)
                starts.append(sources[begin][0])
                ends.append(sources[end - 1][1])
        return ids, starts, ends

    def _word(self, word: str) -> list[int]:
        ids = self._cache.get(word)
        if ids is None:
            if len(self._cache) >= MAX_CACHED_WORDS:
                self._cache.clear()
            pieces = self._pieces(fold(word, self._config))
            ids = self._cache[word] = [id for id, _, _ in pieces]
        return ids

    def _pieces(self, word: str) -> Iterator[tuple[int, int, int]]:
        """Yield id, begin and end of each piece of a folded word."""
        for begin, end in split_punctuation(word):
            for id, first, last in self._greedy(word[begin:end]):
                yield id, begin + first, begin + last

    def _greedy(self, word: str) -> list[tuple[int, int, int]]:
        """Return the longest pieces from the left, all or the unknown one."""
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

    def _words_with_sources(
        self, text: str
    ) -> Iterator[tuple[str, list[tuple[int, int]]]]:
        """Yield each cleaned word and the span of each of its characters."""
        word, sources = "", []
        for i, character in enumerate(text):
            for part in self._cleaned[ord(character)]:
                if part != " ":
                    word += part
                    sources.append((i, i + 1))
                elif word:
                    yield word, sources
                    word, sources = "", []
        if word:
            yield word, sources

    def _fold_with_sources(
        self, word: str, sources: list[tuple[int, int]]
    ) -> tuple[str, list[tuple[int, int]]]:
        """Fold a word; an accent that is dropped joins what is before it."""
        folded = fold(word, self._config)
        spans: list[tuple[int, int]] = []
        for character, source in zip(word, sources, strict=True):
            new = len(fold(character, self._config))
            spans += [source] * new
            if not new and spans:
                spans[-1] = (spans[-1][0], source[1])
        return folded, spans
