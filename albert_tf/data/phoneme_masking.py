"""Whole-word masking of phonemes.

Source: PL-BERT (https://arxiv.org/abs/2301.08810). Each word is a sequence of
symbols, followed by a separator, and there are no special tokens.

Shapes: B examples, T positions.
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
    """Mask whole words; random replacements are symbols of the same example.

    Args:
      ids: [B, T] ids of symbols.
      labels: [B, T] labels of words; `SEPARATOR_LABEL` at separators and
        padding.
      config: the masking settings.
      mask_id: the id of the mask symbol.
      draws: the source of randomness.

    Returns:
      The new ids [B, T], and bool [B, T], true at symbols to predict.
    """
    positions, is_symbol = ids.shape[1], labels != SEPARATOR_LABEL
    word = np.cumsum(~is_symbol, axis=1) - ~is_symbol  # index of the word

    def of_word() -> np.ndarray:
        """Return a random number for each word, repeated at its symbols."""
        return np.take_along_axis(draws.uniform(positions), word, 1)

    chosen = is_symbol & (of_word() < config.masked_lm_prob)
    kind, (mask_share, keep_share, _) = of_word(), config.shares
    symbols_first = np.argsort(~is_symbol, axis=1, kind="stable")
    count = np.maximum(is_symbol.sum(axis=1, keepdims=True), 1)
    picks = draws.bits(positions) % count
    source = np.take_along_axis(symbols_first, picks, 1)
    replacements = np.take_along_axis(ids, source, 1)
    replacements = np.where(kind < mask_share + keep_share, ids, replacements)
    replacements = np.where(kind < mask_share, np.int32(mask_id), replacements)
    return np.where(chosen, replacements, ids), chosen
