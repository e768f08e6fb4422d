"""Counts of FLOPs equal the counts in the graph."""

import goldens
import pytest
import tensorflow as tf
from exporting import product_flops

from albert_tf.model import config
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig, forward_flops


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_flops_are_those_of_the_graph(variant):
    """The formula counts the matrix products of the traced model."""
    config = goldens.variant(variant)
    shapes = [(1, 11)] * 3 + [(1, 3)]
    specs = [tf.TensorSpec(shape, tf.int32) for shape in shapes]
    traced = tf.function(AlbertForPretraining(config), autograph=False)
    found = forward_flops(config, tokens=11, predictions=3)
    graph = traced.get_concrete_function(*specs).graph
    assert sum(found.values()) == product_flops(graph)


def test_a_training_step_of_base_costs_255_gflop():
    """A step of base takes 255 GFLOP, with a batch of 4, T = 128 and P = 20.

    A layer has 4 H^2 + 2 H I weights and twice T^2 products of width H; the
    last layer computes 21 outputs from all keys and values.
    """
    h, i, e, v, t, p = 768, 3072, 128, 30000, 128, 20
    layer = t * (4 * h * h + 2 * h * i) + 2 * t * t * h
    last = 2 * t * h * h + 21 * (2 * h * h + 2 * h * i + 2 * t * h)
    rest = t * e * h + h * h + p * (h * e + e * v) + 2 * h
    expected = 4 * 3 * 2 * (11 * layer + last + rest)
    found = 4 * config.training_flops(AlbertConfig(), t, p)
    assert found == expected
    assert round(found / 1e9) == 255
