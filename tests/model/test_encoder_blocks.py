"""TensorFlow fuses the operations in the encoder's blocks."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tiny
from tensorflow.python.eager import context

from albert_tf.model.albert import FeedForward
from albert_tf.model.config import ACTIVATIONS


def fused_operations(graph, *inputs) -> set[tuple]:
    """Return the operations in a graph that are fused with matrix products."""
    context.enable_run_metadata()
    graph(*inputs)
    metadata = context.export_run_metadata()
    context.disable_run_metadata()
    return {
        tuple(node.attr["fused_ops"].list.s)
        for functions in metadata.function_graphs
        for partition in functions.partition_graphs
        for node in partition.node
        if "fused_ops" in node.attr
    }


@pytest.fixture
def improved_graphs():
    """Enable the graph optimizer, which is off in quick tests."""
    name = "disable_meta_optimizer"
    before = tf.config.optimizer.get_experimental_options().get(name, False)
    tf.config.optimizer.set_experimental_options({name: False})
    yield
    tf.config.optimizer.set_experimental_options({name: before})


@pytest.mark.usefixtures("improved_graphs")
def test_gelu_is_computed_with_its_product():
    """oneDNN fuses a matrix product with the bias and GELU that follow it."""
    layer = FeedForward(tiny.CONFIG, name="ffn_0_0")
    layer.build()
    x = tf.ones([2, 3, tiny.CONFIG.hidden_size])
    graph = tf.function(lambda x: layer(x), autograph=False)
    fused = fused_operations(graph, x)
    assert (b"BiasAdd", b"GeluApproximate") in fused


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_only_the_released_gelu_has_a_fused_form(name):
    """With fused training ops, the config still determines the activation."""
    config = dataclasses.replace(
        tiny.CONFIG, hidden_act=name, initializer_range=0.4
    )
    layer = FeedForward(config, name="ffn_0_0")
    layer.build()
    x = tf.random.stateless_normal([2, 3, config.hidden_size], [1, 2])
    np.testing.assert_allclose(layer(x, compiled=True), layer(x), atol=1e-5)
