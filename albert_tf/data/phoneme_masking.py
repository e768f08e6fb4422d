"""Masking of phonemes, word by word, as in PL-BERT.

Each word is a sequence of symbols, followed by a separator. There are no
special tokens. Source: https://arxiv.org/abs/2301.08810

Glossary: B batch, T positions.
"""

import numpy as np

from albert_tf.data.masking import Draws, MaskingConfig
from albert_tf.text.symbols import SEPARATOR_LABEL


def mask_words(
    ids: np.ndarray,
    labels: np.ndarray,
    config: MaskingConfig,
    mask_id: int,
    draws: Draws,
) -> tuple[np.ndarray, np.ndarray]:
    """Mask whole words; return the new ids, and which are predicted, [B, T].

    Random symbols are drawn from the words of the same example.

    Args:
      ids: [B, T] ids of symbols.
      labels: [B, T] labels of words; `SEPARATOR_LABEL` at separators and
        padding.
      config: the masking settings.
      mask_id: the id of the mask symbol.
      draws: the source of randomness.
    """
    positions, is_symbol = ids.shape[1], labels != SEPARATOR_LABEL
    word = np.cumsum(~is_symbol, axis=1) - ~is_symbol  # index of the word

    def of_word() -> np.ndarray:
        """Draw a number for each word; return it at the word's symbols."""
        return np.take_along_axis(draws.uniform(positions), word, 1)

    chosen = is_symbol & (of_word() < config.masked_lm_prob)
    kind, (mask_share, keep_share, _) = of_word(), config.shares
    symbols_first = np.argsort(~is_symbol, axis=1, kind="stable")
    count = np.maximum(is_symbol.sum(axis=1, keepdims=True), 1)
    picks = draws.bits(positions) % count
    source = np.take_along_axis(symbols_first, picks, 1)
    other = np.take_along_axis(ids, source, 1)
    other = np.where(kind < mask_share + keep_share, ids, other)
    other = np.where(kind < mask_share, np.int32(mask_id), other)
    return np.where(chosen, other, ids), chosen
