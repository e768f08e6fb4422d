"""Classes of characters in the graph, as Python's functions know them.

What Python knows of Unicode, the graph does too, and ICU, which may be older,
is not asked.
"""

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from albert_tf.text.normalization import TextConfig

Rule = Callable[[str, TextConfig], str | bool]


def characters() -> list[str]:
    """Return all characters that Unicode may assign, in order.

    Surrogates are left out, because UTF-8 cannot hold them, and the planes 4
    to 13, 15 and 16, which are kept free or private.
    """
    codes = [*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xF0000)]
    return list(map(chr, codes))


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


def decode(strings: tf.Tensor) -> tf.RaggedTensor:
    """Return the code points [B, C] of strings; bad UTF-8 becomes U+FFFD."""
    return tf.strings.unicode_decode(
        strings, "UTF-8", errors="replace", replacement_char=0xFFFD
    )
