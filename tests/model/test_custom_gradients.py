"""Gradients that a graph registers are freed with the graph."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

from albert_tf.model.ops import (
    cross_entropy,
    custom_gradient,
    freed_with_graph,
    gelu,
    layer_norm,
    rematerialized,
)
from albert_tf.training.keras_optimizers import AdamW
from albert_tf.training.update_rules import FUSED_SIZE

pytestmark = pytest.mark.usefixtures("quick_collections")

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)


def norm(x):
    return layer_norm(x, tf.ones([8]), tf.zeros([8]), 1e-12)


def recomputed(x):
    call = rematerialized(lambda x, number: tf.sin(x))
    return call(x, 0)


def looped(x):
    """Apply a custom gradient in a loop, where TensorFlow finds it by name."""
    again = custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * tf.cos(x)))
    steps = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, x: (i + 1, again(x)),
        (0, x),
        maximum_iterations=3,
    )
    return steps[1]


def others(x):
    """Register a gradient as other libraries do."""
    with freed_with_graph():
        return tf.nn.silu(x)


FUNCTIONS = [
    gelu,
    norm,
    lambda x: cross_entropy(x, tf.constant([1, 0, 7])),
    recomputed,
    looped,
    others,
]


def gradient(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def in_graph(function) -> tuple[np.ndarray, weakref.ref]:
    """Return a graph's gradient, and a weak reference to the graph."""
    step = tf.function(lambda x: gradient(function, x), autograph=False)
    concrete = step.get_concrete_function(tf.TensorSpec([3, 8]))
    return concrete(tf.constant(X)).numpy(), weakref.ref(concrete.graph)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_graph_is_freed_with_its_gradients(function):
    """Graph gradients equal eager gradients and are freed with the graph."""
    gc.collect()  # removes graphs of earlier tests
    registered = len(ops.gradient_registry.list())
    found, graph = in_graph(function)
    gc.collect()
    assert graph() is None
    assert len(ops.gradient_registry.list()) == registered
    wanted = gradient(function, tf.constant(X))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_optimizers_of_equal_settings_share_a_graph():
    """A second optimizer with equal settings reuses the traced update rule."""
    traces = []
    for _ in range(2):
        kernel = keras.Variable(tf.ones([FUSED_SIZE // 64, 64]))
        optimizer = AdamW(0.1)
        optimizer.build([kernel])
        step = tf.function(optimizer.apply, autograph=False)
        concrete = step.get_concrete_function([tf.TensorSpec(kernel.shape)])
        functions = concrete.graph.as_graph_def().library.function
        traces.append(
            [
                f.signature.name
                for f in functions
                if "adam_update" in f.signature.name
            ]
        )
        graph = weakref.ref(concrete.graph)
        del step, concrete, optimizer, kernel, functions
        gc.collect()
        assert graph() is None
    assert traces[0] == traces[1] != []
