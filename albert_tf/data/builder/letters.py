"""Check whether settings for English fit the letters in a text."""

import functools
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from albert_tf.data.builder.boundaries import beyond_english
from albert_tf.text.normalization import drop_marks

# If a larger share of letters has a mark, marks distinguish words. The share is
# 0.04% in English (Wikipedia), and 0.7% in Italian, a language with few
# marks.
MANY_MARKS = 0.002

# The largest share of letters and marks that may begin a word only by the
# English rule; beyond this share, the rule does not fit the text.
MANY_BEYOND = 0.01

BUFFER = 1 << 20  # number of characters counted at a time


@functools.cache
def _kinds(
    character: str, has_marks: Callable[[str], bool], strip: bool
) -> tuple[bool, bool, bool]:
    """Return whether a character is a letter, is marked and is beyond English.

    Marks count as letters. With `strip`, marks are removed before the last
    check.
    """
    letter = unicodedata.category(character)[0] in "LM"
    marked = letter and has_marks(character)
    seen = drop_marks(character) if strip and marked else character
    return letter, marked, any(map(beyond_english, seen))


class Letters:
    """A counter of the letters in texts.

    Args:
      has_marks: a function that returns whether a text has accents that the
        tokenizer can strip.
      strip: whether the tokenizer strips accents.
    """

    def __init__(self, has_marks: Callable[[str], bool], strip: bool):
        self._how = has_marks, strip
        self._waiting: list[str] = []
        self._size = 0
        self._counts: Counter = Counter()

    def add(self, text: str) -> None:
        """Count the letters in a text."""
        self._waiting.append(text)
        self._size += len(text)
        if self._size >= BUFFER:
            self.counts()

    def counts(self) -> Counter:
        """Return the numbers of `letters`, `marked` and `beyond_english`.

        `beyond_english` counts letters that begin a word only by the English
        rule.
        """
        text = "".join(self._waiting).encode("utf-32-le", "surrogatepass")
        numbers = np.bincount(np.frombuffer(text, np.uint32))
        for code in np.flatnonzero(numbers).tolist():
            letter, marked, beyond = _kinds(chr(code), *self._how)
            number = int(numbers[code])
            self._counts["letters"] += letter * number
            self._counts["marked"] += marked * number
            self._counts["beyond_english"] += beyond * number
        self._waiting.clear()
        self._size = 0
        return self._counts


def shares(counts: Counter) -> tuple[float, float]:
    """Return the shares of `marked` and `beyond_english` letters."""
    letters = max(counts["letters"], 1)
    return counts["marked"] / letters, counts["beyond_english"] / letters


def has_many_marks(counts: Counter) -> bool:
    """Return whether a text has so many marks that they distinguish words."""
    return shares(counts)[0] > MANY_MARKS


def warnings(dropped: float, beyond: float) -> Iterator[str]:
    """Yield warnings if settings for English do not fit the text.

    Args:
      dropped: the share of letters that lose a mark.
      beyond: the share of letters that begin a word only by the English rule.
    """
    if dropped > MANY_MARKS:
        yield (
            f"{dropped:.1%} of the letters lose an accent or another mark, "
            "which distinguishes words in many languages; --nostrip_accents "
            "keeps marks, with a vocabulary trained with the same flag "
            "(--strip_accents=auto decides)"
        )
    if beyond > MANY_BEYOND:
        yield (
            f"{beyond:.1%} of the letters are not a to z; by the English rule "
            "each piece with one begins a word, so whole words are not "
            "masked; make records with --word_boundaries=unicode (auto "
            "decides)"
        )
