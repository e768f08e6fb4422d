"""Values computed in NumPy equal those computed by hand or by TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf
import vocabularies

from albert_tf.tasks.numerics import candidates, likeliest, sigmoid, softmax


def test_rows_beyond_the_pieces_are_never_the_likeliest():
    """Logits beyond the vocabulary get a share of the probability.

    No piece belongs to these logits, so they are never returned.
    """
    tokenizer = vocabularies.chinese()
    logits = np.full(tokenizer.vocab_size + 2, -np.inf)
    logits[[8, 6, -1]] = np.log([1, 2, 5])
    (first, p), (second, q) = likeliest(tokenizer, logits, 2)
    assert [first, second] == tokenizer.pieces([6, 8])
    assert (p, q) == pytest.approx((0.25, 0.125))


def span_outputs(head, rows=3, tokens=7):
    """Return outputs of a question-answering head; some values are equal."""
    rng = np.random.default_rng(5)
    logits = rng.integers(0, 4, [2, rows, tokens]).astype(np.float32)
    if head == "simple":
        return dict(zip(("start_logits", "end_logits"), logits, strict=True))
    positions = (
        rng.integers(0, tokens, [rows, 2]),
        rng.integers(0, 7, [rows, 2, 3]),
    )
    return {
        "start_top_index": positions[0].astype(np.int32),
        "end_top_index": positions[1].astype(np.int32),
        "start_top_log_probs": logits[0, :, :2],
        "end_top_log_probs": rng.normal(size=[rows, 2, 3]).astype(np.float32),
    }


@pytest.mark.parametrize("head", ["simple", "beam"])
@pytest.mark.parametrize("number", [2, 9])
def test_spans_are_alike_in_a_graph(head, number):
    """NumPy and TensorFlow return equal spans in the same order."""
    inside = np.array([[0, 0, 1, 1, 1, 1, 0]] * 3, bool)
    begins = inside & (np.arange(7) != 4)
    outputs = span_outputs(head)
    found = candidates(head, outputs, begins, inside, number, 2)
    tensors = {name: tf.constant(x) for name, x in outputs.items()}
    masks = tf.constant(begins), tf.constant(inside)
    graph = tf.function(
        lambda x: candidates(head, x, *masks, number, 2), autograph=False
    )
    for ours, theirs in zip(found, graph(tensors), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())
    legal = np.isfinite(found.start_score + found.end_score)
    assert legal.any() and not legal.all()
    for first, last in zip(found.first[legal], found.last[legal], strict=True):
        assert first in (2, 3, 5) and first <= last <= min(first + 1, 5)


def test_probabilities_are_alike_in_a_graph():
    """NumPy and TensorFlow compute equal probabilities, up to rounding."""
    logits = np.random.default_rng(0).normal(0, 9, [4, 5]).astype(np.float32)
    for function in (softmax, sigmoid):
        shares = function(tf.constant(logits)).numpy()
        np.testing.assert_allclose(function(logits), shares, 1e-5)
