"""Pieces and their probabilities, worked out by hand."""

import numpy as np
import pytest
import vocabularies

from albert_tf.tasks.probabilities import likeliest


def test_rows_beyond_the_pieces_are_never_the_likeliest():
    """They take their share of the probability, as in training."""
    tokenizer = vocabularies.chinese()
    logits = np.full(tokenizer.vocab_size + 2, -np.inf)
    logits[[8, 6, -1]] = np.log([1, 2, 5])
    (first, p), (second, q) = likeliest(tokenizer, logits, 2)
    assert [first, second] == tokenizer.pieces([6, 8])
    assert (p, q) == pytest.approx((0.25, 0.125))
