"""The fused GELU is TensorFlow's, forward and backward."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.fused_gelu import fused_gelu


@pytest.mark.parametrize(
    "dtype, error", [(tf.float32, 2e-5), (tf.bfloat16, 0.04)]
)
def test_values_and_gradients_are_tensorflows(dtype, error):
    """Over the whole range and on any shape.

    Where 1 + tanh cancels, either form is off by 4e-6 from the exact value.
    """
    exact = tf.reshape(tf.linspace(-12.0, 12.0, 4800), [2, 30, 80])
    x = tf.cast(exact, dtype)
    weights = tf.random.stateless_normal(x.shape, [1, 2])
    found = []
    for function in (fused_gelu, lambda x: tf.nn.gelu(x, approximate=True)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            loss = tf.reduce_sum(tf.cast(y, tf.float32) * weights)
        assert y.dtype == dtype
        found.append((y, tape.gradient(loss, x)))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(
            tf.cast(ours, tf.float32),
            tf.cast(theirs, tf.float32),
            rtol=error,
            atol=error,
        )
