"""Attention on TPUs equals attention on other devices."""

import numpy as np
import tensorflow as tf

from albert_tf.model.ops import FlatProducts, HeadProducts


def attended(form, scores, value, weights):
    """Return the context, the probabilities and the gradients with dropout."""

    def drop(x):
        return tf.nn.experimental.stateless_dropout(x, 0.4, [1, 2])

    with tf.GradientTape() as tape:
        tape.watch([scores, value])
        context, probs = form.attended(scores, value, drop)
        loss = tf.reduce_sum(context * weights) + tf.reduce_sum(probs**2)
    return context, probs, *tape.gradient(loss, [scores, value])


def test_gradients_are_those_of_softmax_with_dropout():
    """`FlatProducts` and `HeadProducts` return equal outputs and gradients."""
    scores, value, weights = (
        tf.random.stateless_normal(shape, [3, i])
        for i, shape in enumerate([(2, 3, 4, 5), (2, 5, 3, 6), (2, 4, 3, 6)])
    )
    forms = [
        attended(form, scores, value, weights)
        for form in (FlatProducts, HeadProducts)
    ]
    for flat, heads in zip(*forms, strict=True):
        np.testing.assert_allclose(heads, flat, rtol=1e-5, atol=1e-6)
