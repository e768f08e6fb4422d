"""Choose masked words as the released code does, including its faults.

The words of A and B form one row without the special tokens, so that words and
n-grams may span [SEP]. An n-gram is shortened only to fit the budget, and
dropped if it then overlaps a masked word; its length is drawn even if its first
word is masked. Source: google-research/albert `create_masked_lm_predictions`.

Glossary: B instances, T tokens.
"""

import numpy as np

from albert_tf.data.draws import Draws
from albert_tf.data.masking import MaskingConfig, draw_ngrams
from albert_tf.data.masking_spans import choose_spans, random_order, word_ends


def cover(
    starts: np.ndarray,
    maskable: np.ndarray,
    free: np.ndarray,
    budget: np.ndarray,
    config: MaskingConfig,
    draws: Draws,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose spans as the released code does; arguments as `masking.cover`."""
    # The positions of the tokens of A and B in order, then all others.
    places = np.argsort(~maskable, axis=1, kind="stable")
    words = np.take_along_axis(maskable, places, axis=1)
    begins = words.copy()
    if config.do_whole_word_mask:
        begins &= np.take_along_axis(starts, places, axis=1)
        begins[:, 0] = words[:, 0]
    packed, drawn, used = choose_spans(
        random_order(begins, draws.bits(starts.shape[1])),
        word_ends(begins, words),
        words,
        np.take_along_axis(free, places, axis=1),
        budget,
        draw_ngrams(starts.shape, config, draws),
        config.ngram,
        released=True,
    )
    covered = np.zeros_like(maskable)
    np.put_along_axis(covered, places, packed, axis=1)
    return covered, drawn, used
