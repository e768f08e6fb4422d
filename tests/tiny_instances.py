"""Random unmasked examples, and constants of their vocabulary."""

import numpy as np

from albert_tf.data import masking
from albert_tf.data.masking import Draws, Instances, MaskingConfig, Words

V, MASK_ID, SEP = 500, 4, 3
WORDS = Words(MASK_ID, np.arange(5, V, dtype=np.int32))


def instances(rng, batch=64, tokens=48):
    """Return examples of two segments, with words of one or several pieces."""
    ids = rng.integers(5, V, (batch, tokens)).astype(np.int32)
    starts = rng.random((batch, tokens)) < 0.7
    lengths = rng.integers(8, tokens + 1, batch)
    separators = rng.integers(2, lengths - 2)[:, None]
    position = np.arange(tokens)
    real = position < lengths[:, None]
    special = (position == 0) | (position == separators)
    special |= position == lengths[:, None] - 1
    ids[special] = SEP
    ids[~real] = 0
    return Instances(
        input_ids=ids,
        segment_ids=real & (position > separators),
        maskable=real & ~special,
        starts=starts | special,
        lengths=lengths,
        swapped=np.zeros(batch, bool),
    )


def spans(rng, budget, whole_words=True):
    """Return random examples, orders, n-grams and chosen spans.

    In each example, the spans cover at most `budget` tokens.
    """
    batch = instances(rng)
    begins = maskable = batch.maskable
    if whole_words:
        begins = masking.word_starts(batch.starts, maskable)
    seed, config = int(rng.integers(2**60)), MaskingConfig(ngram=4)
    draws, again = (Draws(seed, np.arange(len(begins))) for _ in range(2))
    order = masking.random_order(begins, draws.bits(begins.shape[1]))
    ngrams = masking.draw_ngrams(begins.shape, config, draws)
    budgets = np.full(len(begins), budget)
    chosen = masking.choose_spans(
        begins, maskable, maskable, budgets, config, again
    )
    return batch, order, ngrams, chosen
