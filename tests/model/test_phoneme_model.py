"""The heads of a phoneme model compute the expected scores."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tiny

from albert_tf.model import ops, phonemes
from albert_tf.training.checkpoints import named_variables

B, T, C = 2, 6, 7


def scored(slices):
    """Return losses, hits and gradients, for positions in slices or at once."""
    rng = np.random.default_rng(0)
    shapes = [B, T, 4], [4, C], [C]
    inputs = [tf.constant(rng.normal(size=s), tf.float32) for s in shapes]
    labels = tf.constant(rng.integers(0, C, (B, T)), tf.int32)
    weights = tf.constant(rng.random((B, T)), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        states, kernel, bias = inputs
        if slices:
            losses, right = phonemes.sliced_scores(
                states, labels, kernel, bias, slices
            )
        else:
            logits = tf.einsum("bth,hc->btc", states, kernel) + bias
            losses = ops.cross_entropy(logits, labels)
            right = ops.hits(logits, labels)
        total = tf.reduce_sum(losses * weights)
    return losses, right, *tape.gradient(total, inputs)


@pytest.mark.parametrize("slices", [1, 4])
def test_slices_change_nothing(slices):
    """Slices do not change losses, hits or gradients."""
    for expected, found in zip(scored(None), scored(slices), strict=True):
        np.testing.assert_allclose(expected, found, atol=1e-6)


def test_slices_bound_the_logits():
    """For 192 x 512 positions, each slice of logits takes at most 64 MiB."""
    positions, classes = 192 * 512, 84827
    slices = phonemes.count_slices(positions, classes)
    assert positions % slices == 0
    assert positions // slices * classes * 4 <= 64 << 20
    assert phonemes.count_slices(8 * 32, 42) == 1
    most = 1 << 24
    assert phonemes.count_slices(1 << 12, 1 << 12) == 1
    assert phonemes.count_slices(1 << 12, (1 << 12) + 1) == 2
    # At least five slices are needed, and their number must divide 6.
    assert phonemes.count_slices(6, 4 * most // 6 + 1) == 6
    assert phonemes.count_slices(3, most) == 3


def test_heads_are_linear():
    """Logits of symbols and words are linear in the state of each position.

    In bfloat16, too, the logits are float32.
    """
    config = dataclasses.replace(tiny.SHALLOW, vocab_size=20)
    model = phonemes.AlbertForPhonemes(config, C)
    again = phonemes.AlbertForPhonemes.from_config(model.get_config())
    names = named_variables(model)
    assert {n: v.shape for n, v in names.items()} == {
        n: v.shape for n, v in named_variables(again).items()
    }
    assert {n for n in names if n.startswith(phonemes.HEADS)} == {
        *("symbols/kernel", "symbols/bias", "words/kernel", "words/bias")
    }
    ids = np.arange(B * T).reshape(B, T)
    outputs = model(ids)
    states = outputs["sequence_output"]
    kernel, bias = names["symbols/kernel"], names["symbols/bias"]
    expected = tf.einsum("bth,hv->btv", states, kernel) + bias
    np.testing.assert_allclose(outputs["symbol_logits"], expected, atol=1e-6)
    losses, _ = model.word_scores(states, tf.zeros([B, T], tf.int32))
    logits = tf.einsum("bth,hc->btc", states, names["words/kernel"])
    logits += names["words/bias"]
    expected = -tf.nn.log_softmax(logits)[..., 0]
    np.testing.assert_allclose(losses, expected, atol=1e-6)
    half = phonemes.AlbertForPhonemes(config, C, dtype="mixed_bfloat16")
    assert half(ids)["symbol_logits"].dtype == tf.float32
