"""The choice of masked words as the released code made it, faults included.

The words of A and B are one row without the special tokens, so that words and
n-grams reach across [SEP]. An n-gram is shortened only to fit the budget, and
left out if it then meets a masked word; its length is drawn also where it
begins at one. Source: google-research/albert `create_masked_lm_predictions`.

Glossary: B instances, T tokens, N longest n-gram.
"""

import numpy as np

from albert_tf.data.masking import MaskingConfig, Words, draw_ngrams
from albert_tf.data.masking_spans import random_order, visits, word_ends


def words_of(tokenizer) -> Words:
    """Take every id for a word that may be drawn, special tokens too."""
    every = np.arange(tokenizer.vocab_size, dtype=np.int32)
    return Words(mask_id=tokenizer.mask_id, replacements=every)


def choose_spans(
    order: np.ndarray,
    ends: np.ndarray,
    words: np.ndarray,
    free: np.ndarray,
    budget: np.ndarray,
    ngrams: np.ndarray,
    longest: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what `masking_spans.choose_spans` does, chosen as released.

    Args:
      order: [B, T] word starts in the order to visit, padded with T.
      ends: [B, T + 1] from `word_ends`.
      words: [B, T] bool, true at the tokens of words.
      free: [B, T] bool, true where nothing is masked yet.
      budget: [B] tokens to cover.
      ngrams: [B, T] the n of the n-gram drawn at each visit, 1..N.
      longest: N.
    """
    batch, tokens = words.shape
    real = np.zeros((batch, tokens + 1), bool)
    real[:, :-1] = words
    closed = real.copy()
    closed[:, :-1] &= ~free
    steps = np.zeros((batch, tokens + 1), np.int8)
    drawn = np.zeros(longest + 1, np.int64)
    used = np.zeros(longest + 1, np.int64)
    left = budget.copy()
    for rows, start, wanted in visits(order, ngrams, left):
        room = left[rows]
        drawn += np.bincount(wanted, minlength=longest + 1)
        end, taken = start, np.zeros_like(wanted)
        clear, heads = np.ones(len(rows), bool), []
        for n in range(longest):
            further = ends[rows, end]
            fits = (taken == n) & (n < wanted) & real[rows, end]
            fits &= further - start <= room
            clear &= ~(fits & closed[rows, end])
            heads.append(np.where(fits, end, start))
            end = np.where(fits, further, end)
            taken += fits
        clear &= taken > 0
        for head in heads:
            closed[rows, head] |= clear
        steps[rows, start] += clear
        steps[rows, end] -= clear
        left[rows] = room - np.where(clear, end - start, 0)
        # After the last word of a record n counts on, as released.
        n = np.where(real[rows, end], taken, wanted)
        used += np.bincount(n[clear], minlength=longest + 1)
    covered = np.cumsum(steps[:, :-1], axis=1, dtype=np.int8) > 0
    return covered, drawn, used


def cover(
    starts: np.ndarray,
    maskable: np.ndarray,
    free: np.ndarray,
    budget: np.ndarray,
    config: MaskingConfig,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose spans as released; arguments as in `masking.cover`."""
    # Where the tokens of A and B stand, in order and first in each row.
    places = np.argsort(~maskable, axis=1, kind="stable")
    words = np.take_along_axis(maskable, places, axis=1)
    begins = words.copy()
    if config.do_whole_word_mask:
        begins &= np.take_along_axis(starts, places, axis=1)
        begins[:, 0] = words[:, 0]
    packed, drawn, used = choose_spans(
        random_order(begins, rng),
        word_ends(begins, words),
        words,
        np.take_along_axis(free, places, axis=1),
        budget,
        draw_ngrams(starts.shape, config, rng),
        config.ngram,
    )
    covered = np.zeros_like(maskable)
    np.put_along_axis(covered, places, packed, axis=1)
    return covered, drawn, used
