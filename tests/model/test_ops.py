"""The model's operations match TensorFlow's on all devices.

Choices that depend on the device are made when a graph is traced.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.model import ops
from albert_tf.model.ops import (
    CompiledForTpu,
    FlatProducts,
    HeadProducts,
    XlaPolicy,
    choose_xla,
    dropout,
    gelu,
    is_tpu,
)


def assert_same(ours, theirs, x: tf.Tensor, error: float) -> None:
    """Assert that two functions have equal values and gradients at x."""
    found = []
    for function in (ours, theirs):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            weights = tf.random.stateless_normal(y.shape, [1, 2])
            loss = tf.reduce_sum(tf.cast(y, tf.float32) * weights)
        assert y.dtype == x.dtype
        found.append((y, tape.gradient(loss, x)))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(
            tf.cast(ours, tf.float32),
            tf.cast(theirs, tf.float32),
            rtol=error,
            atol=error,
        )


@pytest.mark.parametrize(
    "dtype, error", [(tf.float32, 2e-5), (tf.bfloat16, 0.04)]
)
def test_gelu_is_tensorflows(dtype, error):
    """GELU and its gradient match TensorFlow's op from -12 to 12.

    Where 1 + tanh cancels, both differ from the exact value by up to 4e-6.
    """
    exact = tf.reshape(tf.linspace(-12.0, 12.0, 4800), [2, 30, 80])
    x = tf.cast(exact, dtype)
    assert_same(ops.gelu, lambda x: tf.nn.gelu(x, approximate=True), x, error)


@pytest.mark.parametrize("shape", [(7, 12), (3, 5, 12), (None, 5, 12)])
def test_layer_norm_is_keras(shape):
    """Layer normalization and its gradients match Keras in float32.

    XLA compiles only static shapes.
    """
    norm = keras.layers.LayerNormalization(epsilon=1e-3)
    norm.build(shape)
    for number, variable in enumerate((norm.gamma, norm.beta)):
        variable.assign(tf.random.stateless_normal([12], [5, number]))
    weights = [norm.gamma.value, norm.beta.value]
    full = [n or 4 for n in shape]
    x, upstream = (
        3.0 + tf.random.stateless_normal(full, [6, n], stddev=2.0)
        for n in range(2)
    )
    found, compiled = [], []
    for function in (
        lambda x: ops.layer_norm(x, *weights, norm.epsilon),
        norm,
    ):

        @tf.function(input_signature=[tf.TensorSpec(shape)] * 2)
        def results(x, upstream, function=function):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return y, *tape.gradient(y, [x, *weights], upstream)

        found.append(results(x, upstream))
        graph = results.get_concrete_function().graph
        compiled.append("XlaMustCompile" in str(graph.as_graph_def().library))
    assert compiled == [None not in shape, False]
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(6, 2), (3, 4, 50)])
def test_cross_entropy_is_tensorflows(shape):
    """Cross entropy equals TensorFlow's op for large and small logits."""
    labels = tf.random.stateless_uniform(
        shape[:-1], [7, 8], maxval=shape[-1], dtype=tf.int32
    )

    def theirs(x):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=labels, logits=x
        )

    x = 50.0 + tf.random.stateless_normal(shape, [3, 4], stddev=10.0)
    x += tf.where(tf.range(shape[-1]) == 1, -10000.0, 0.0)
    assert_same(lambda x: ops.fused_cross_entropy(x, labels), theirs, x, 5e-6)


def test_measures_of_predictions():
    """Ties count as hits, and a mean whose weights are all 0 is 0."""
    logits = tf.constant([[[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]]])
    found = ops.hits(logits, tf.constant([[1, 2]]))
    assert found.numpy().tolist() == [[1.0, 0.0]]
    values = tf.constant([[1.0, 4.0], [1.0, 4.0]])
    means = ops.weighted_mean(values, tf.constant([[1.0, 2.0], [0.0, 0.0]]))
    assert means.numpy().tolist() == [3.0, 0.0]


def test_the_temperature_keeps_the_size_of_gradients():
    """The loss for soft targets is scaled by the square of the temperature."""
    logits, targets = np.array([[0.0, 2.0]]), np.array([[6.0, 0.0]])
    shares = np.exp(targets / 4) / np.exp(targets / 4).sum()
    logs = logits / 4 - np.log(np.exp(logits / 4).sum())
    found = ops.soft_cross_entropy(logits, targets, 4.0)
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, [-16 * np.sum(shares * logs)], 1e-6)


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


class ForTpu(CompiledForTpu, tf.distribute.OneDeviceStrategy):
    """A strategy that imitates a TPU strategy."""


def traced(strategy: tf.distribute.Strategy) -> tf.compat.v1.GraphDef:
    """Return a replica's graph, which applies dropout inside a loop."""

    def replica():
        with tf.GradientTape() as tape:
            x = tf.ones([4, 4])
            tape.watch(x)
            y = tf.while_loop(
                lambda y: True,
                lambda y: dropout(gelu(y), 0.5, tf.constant([1, 2])),
                [x],
                maximum_iterations=2,
            )
        return tape.gradient(y, x)

    run = tf.function(lambda: strategy.run(replica), autograph=False)
    return run.get_concrete_function().graph.as_graph_def()


def test_a_tpu_draws_bits_itself_and_has_nothing_nested():
    """On TPUs, dropout uses the TPU's generator; no XLA call is nested."""
    for strategy in ForTpu("CPU:0"), tf.distribute.OneDeviceStrategy("CPU:0"):
        functions = traced(strategy).library.function
        kinds = {node.op for f in functions for node in f.node_def}
        nested = any(f.attr["_XlaMustCompile"].b for f in functions)
        assert is_tpu(strategy) == isinstance(strategy, ForTpu)
        assert ("StatelessRandomGetKeyCounter" in kinds) == is_tpu(strategy)
        assert nested != is_tpu(strategy)


def test_no_setting_nests_on_a_tpu():
    """On TPUs, `jit_compile` never selects a separate compilation of a step.

    XLA compiles the whole program there. On other devices, the default compiles
    only `pieces`, not the whole step.
    """
    assert not any(choose_xla(x, True).whole for x in (None, False, True))
    assert choose_xla(True, False) == (True, True)
    assert choose_xla(False, False) == (False, False)
    assert choose_xla(None, False) == XlaPolicy() == (False, True)


def test_nothing_is_computed_for_a_rate_of_zero():
    """With no seed or a rate of 0, dropout returns its input."""
    x, seed = tf.ones([3]), tf.constant([1, 2])
    assert dropout(x, 0.0, seed) is dropout(x, 0.5, None) is x
    assert dropout(x, 0.5, seed) is not x
