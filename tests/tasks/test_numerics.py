"""Values computed in NumPy match values computed by hand or by TensorFlow."""

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
    positions[0][0] = 5, 3
    positions[1][0] = [[6, 5, 4], [4, 3, 5]]
    return {
        "start_top_index": positions[0].astype(np.int32),
        "end_top_index": positions[1].astype(np.int32),
        "start_top_log_probs": logits[0, :, :2],
        "end_top_log_probs": rng.normal(size=[rows, 2, 3]).astype(np.float32),
    }


def spans_by_hand(head, outputs, begins, inside, max_length):
    """Return {(row, first, last, start score, end score)} of legal spans."""
    if head == "simple":
        names = "start_logits", "end_logits"
        pairs = [
            (row, first, last, start, end)
            for row, logits in enumerate(
                zip(*map(outputs.get, names), strict=True)
            )
            for first, start in enumerate(logits[0])
            for last, end in enumerate(logits[1])
        ]
    else:
        pairs = [
            (
                *(row, outputs["start_top_index"][row, k], last),
                outputs["start_top_log_probs"][row, k],
                outputs["end_top_log_probs"][row, k, m],
            )
            for (row, k, m), last in np.ndenumerate(outputs["end_top_index"])
        ]
    return {
        (row, first, last, *scores)
        for row, first, last, *scores in pairs
        if begins[row, first] and inside[row, last]
        if 0 <= last - first < max_length
    }


@pytest.mark.parametrize("head", ["simple", "beam"])
@pytest.mark.parametrize("number", [2, 9])
def test_spans_are_alike_in_a_graph(head, number):
    """NumPy and TensorFlow return equal spans in the same order.

    Together, the spans are all legal pairs of a start and an end, with their
    scores; for a simple head, 9 is more than the number of tokens.
    """
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
    rows = np.broadcast_to(np.arange(3)[:, None], legal.shape)
    spans = {*zip(*(x[legal].tolist() for x in (rows, *found)), strict=True)}
    expected = spans_by_hand(head, outputs, begins, inside, 2)
    assert spans == expected or (head == "simple" and number == 2)
    assert spans <= expected
    assert {(3, 4), (5, 5)} <= {span[1:3] for span in expected}


def test_probabilities_are_alike_in_a_graph():
    """NumPy and TensorFlow compute equal probabilities, up to rounding."""
    logits = np.random.default_rng(0).normal(0, 9, [4, 5]).astype(np.float32)
    logits[1:3] += [[500], [-500]]  # the rows are far apart
    for function in (softmax, sigmoid):
        shares = function(tf.constant(logits)).numpy()
        np.testing.assert_allclose(function(logits), shares, 1e-5)
