"""How pairs and masks are made: right, or as the released code did."""

import dataclasses
from collections.abc import Callable

from albert_tf.data import masking
from albert_tf.data.builder import (
    next_sentence,
    pairs,
    released_masking,
    released_pairs,
)
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.masking import Words


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The functions that make pairs and masks.

    Attributes:
      make_pairs: as `pairs.make_pairs`.
      cover: as `masking.cover`.
      words: from a tokenizer to what random words are drawn from.
    """

    make_pairs: Callable
    cover: Callable = masking.cover
    words: Callable = Words.of


SENTENCE_ORDER = Recipe(pairs.make_pairs)
NEXT_SENTENCE = Recipe(next_sentence.make_pairs)
RELEASED = Recipe(
    released_pairs.make_pairs, released_masking.cover, released_masking.words_of
)


def recipe(config: PairsConfig) -> Recipe:
    """Return how the settings want pairs and masks to be made."""
    if config.compat == "google":
        return RELEASED
    return NEXT_SENTENCE if config.random_next_sentence else SENTENCE_ORDER
