"""Text in the graph by its characters: tables, capital sigma, marks.

What the tokenizers do to text goes by single characters, but for the lower
form of a capital sigma and for the order of a few marks. So it is a table from
code point to code points, made by the Python functions themselves: what Python
knows of Unicode, the graph does too, and ICU, which may be older, is not asked.

B batch, C characters of a text.
"""

import functools
import unicodedata
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from albert_tf.text.normalization import TextConfig

ITSELF = -1  # in a table of characters: the character stays
SIGMA, SMALL_SIGMA, FINAL_SIGMA = ord("Σ"), ord("σ"), ord("ς")

# What a character is to a capital sigma beside it.
OTHER, CASED, IGNORED = 0, 1, 2


def characters() -> list[str]:
    """Return all characters that Unicode may assign, in order.

    Surrogates are left out, because UTF-8 cannot hold them, and the planes 4
    to 13, 15 and 16, which are kept free or private.
    """
    codes = [*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xF0000)]
    return list(map(chr, codes))


# To ask Python about every character takes seconds: the answers are kept.
Rule = Callable[[str, TextConfig], str | bool]


@functools.lru_cache(maxsize=4)
def replacements(rule: Rule, config: TextConfig) -> tuple[np.ndarray, list]:
    """Return the number of each character's row, and the rows.

    A row holds the code points that replace a character; the first one says
    that it stays, as do all characters beyond the table.
    """
    index, rows = {}, {(ITSELF,): 0}
    for character in characters():
        new = rule(character, config)
        if new != character:
            row = tuple(ITSELF if c == character else ord(c) for c in new)
            index[ord(character)] = rows.setdefault(row, len(rows))
    numbers = np.zeros(max(index, default=-1) + 2, np.uint16)
    numbers[list(index)] = list(index.values())
    return numbers, list(rows)


@functools.lru_cache(maxsize=8)
def runs(rule: Rule, config: TextConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return where runs of characters with one value begin, and the values."""
    every = characters()
    values = np.array([int(rule(c, config)) for c in every])
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    codes = np.array([ord(every[i]) for i in starts], np.int32)
    return codes, values[starts].astype(np.int32)


class CharacterClass(tf.Module):
    """Says what a Python function returns for characters, a bool or number."""

    def __init__(self, rule: Rule, config: TextConfig):
        super().__init__()
        self._starts, self._values = map(tf.constant, runs(rule, config))

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        """Return int32 [...] for code points [...]."""
        run = tf.searchsorted(self._starts, codes, side="right") - 1
        return tf.gather(self._values, run)


def is_space(character: str, config: TextConfig) -> bool:
    """Return whether a character is white space, for Python."""
    return character.isspace()


class CharacterTable(tf.Module):
    """Replaces each character by what a Python function returns for it."""

    def __init__(self, rule: Rule, config: TextConfig):
        super().__init__()
        numbers, rows = replacements(rule, config)
        self._last = len(numbers) - 1
        self._index = tf.constant(numbers)
        self._rows = tf.ragged.constant(rows, dtype=tf.int32)

    def _row(self, text: tf.RaggedTensor) -> tf.Tensor:
        index = tf.gather(self._index, tf.minimum(text.flat_values, self._last))
        return tf.cast(index, tf.int32)

    def counts(self, text: tf.RaggedTensor) -> tf.Tensor:
        """Return how many characters each of texts [B, C] becomes, flat."""
        lengths = tf.cast(self._rows.row_lengths(), tf.int32)
        return tf.gather(lengths, self._row(text))

    def __call__(self, text: tf.RaggedTensor) -> tf.RaggedTensor:
        """Return the code points of texts [B, C] after replacement [B, C']."""
        new = tf.gather(self._rows, self._row(text))  # [B * C, 1+]
        itself = tf.repeat(text.flat_values, new.row_lengths())
        values = tf.where(new.values == ITSELF, itself, new.values)
        rows = new.with_values(values)
        return text.with_values(rows).merge_dims(1, 2)


def sigma_kind(character: str, config: TextConfig) -> int:
    """Return what a character is to a sigma beside it, for `str.lower`."""
    if (character + "Σ").lower()[-1] == "ς":
        return CASED
    return IGNORED if ("A" + character + "Σ").lower()[-1] == "ς" else OTHER


class LowerSigma(tf.Module):
    """Lowers capital sigma, which has another form at the end of a word.

    The end is where a cased character comes before and none comes after, the
    ignored ones aside (Unicode's Final_Sigma, as in `str.lower`).
    """

    def __init__(self, config: TextConfig, kind: Rule = sigma_kind):
        super().__init__()
        self._kinds = CharacterClass(kind, config)

    def __call__(self, text: tf.RaggedTensor) -> tf.RaggedTensor:
        """Return code points [B, C] without capital sigma."""
        return tf.cond(
            tf.reduce_any(text.flat_values == SIGMA),
            lambda: self._lower(text),
            lambda: text,
        )

    def _lower(self, text: tf.RaggedTensor) -> tf.RaggedTensor:
        line_end = tf.fill([text.nrows(), 1], ord("\n"))
        ended = tf.concat([text, line_end], axis=1)  # [B, C + 1]
        codes = ended.values
        kinds = self._kinds(codes)
        solid = kinds != IGNORED
        # The n-th solid character stands at n; nothing stands at 0.
        solid_kinds = tf.pad(kinds[solid], [[1, 1]])
        seen = tf.cumsum(tf.cast(solid, tf.int32))
        before = tf.gather(solid_kinds, seen - tf.cast(solid, tf.int32))
        after = tf.gather(solid_kinds, seen + 1)
        final = (before == CASED) & (after != CASED)
        small = tf.where(final, FINAL_SIGMA, SMALL_SIGMA)
        codes = tf.where(codes == SIGMA, small, codes)
        return ended.with_values(codes)[:, :-1]


class OrderMarks(tf.Module):
    """Puts marks that follow each other into Unicode's canonical order.

    Dropping accents leaves only a few spacing marks that have an order.
    """

    def __init__(self):
        super().__init__()
        marks = {
            ord(c): unicodedata.combining(c)
            for c in characters()
            if unicodedata.combining(c) and unicodedata.category(c) != "Mn"
        }
        self._marks = tf.constant(list(marks), tf.int32)
        self._classes = tf.constant(list(marks.values()), tf.int32)

    def __call__(self, text: tf.RaggedTensor) -> tf.RaggedTensor:
        """Return code points [B, C] with marks in order."""
        codes = text.values
        place = tf.searchsorted(self._marks, codes)
        place = tf.minimum(place, tf.size(self._marks) - 1)
        is_mark = tf.gather(self._marks, place) == codes
        return tf.cond(
            tf.reduce_any(is_mark),
            lambda: self._order(text, is_mark, place),
            lambda: text,
        )

    def _order(
        self, text: tf.RaggedTensor, is_mark: tf.Tensor, place: tf.Tensor
    ) -> tf.RaggedTensor:
        classes = tf.where(is_mark, tf.gather(self._classes, place), 0)
        run = tf.cumsum(tf.cast(classes == 0, tf.int32))
        run += tf.cast(text.value_rowids(), tf.int32)
        order = tf.argsort(run * 256 + classes, stable=True)
        return text.with_values(tf.gather(text.values, order))


def decode(strings: tf.Tensor) -> tf.RaggedTensor:
    """Return the code points [B, C] of strings; bad UTF-8 becomes U+FFFD."""
    return tf.strings.unicode_decode(
        strings, "UTF-8", errors="replace", replacement_char=0xFFFD
    )


def encode(text: tf.RaggedTensor) -> tf.Tensor:
    return tf.strings.unicode_encode(text, "UTF-8")
