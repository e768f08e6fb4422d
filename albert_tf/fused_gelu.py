"""GELU for training: one pass over memory each way, and only x is kept.

TensorFlow's own is ten operations, whose results all wait for the backward
pass; in the feed-forward network they are the largest tensors of the model.
"""

import math

import tensorflow as tf

_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


def _tanh(x):
    return tf.tanh(_SCALE * (x + _CUBIC * x * x * x))


@tf.function(jit_compile=True)
def _forward(x):
    return 0.5 * x * (1.0 + _tanh(x))


@tf.function(jit_compile=True)
def _backward(x, upstream):
    t = _tanh(x)
    slope = _SCALE * (1.0 + 3.0 * _CUBIC * x * x)
    return upstream * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)


@tf.custom_gradient
def fused_gelu(x: tf.Tensor):
    """Return the tanh form of GELU of a tensor of any shape."""
    return _forward(x), lambda upstream: _backward(x, upstream)
