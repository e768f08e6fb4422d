"""Floating-point operations are those of the graph."""

import dataclasses
import math

import goldens
import pytest
import tensorflow as tf

from albert_tf.model import flops
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig


def graph_flops(config, tokens, predictions):
    """Return twice the multiply-adds of all products in the model's graph."""
    model = AlbertForPretraining(config)
    shapes = [(1, tokens)] * 3 + [(1, predictions)]
    specs = [tf.TensorSpec(shape, tf.int32) for shape in shapes]
    graph = tf.function(model).get_concrete_function(*specs).graph
    total = 0
    for op in graph.get_operations():
        left = op.inputs[0].shape if op.inputs else None
        if op.type == "MatMul":
            inner = left[0 if op.get_attr("transpose_a") else 1]
        elif op.type == "BatchMatMulV2":
            inner = left[-2 if op.get_attr("adj_x") else -1]
        elif op.type == "Einsum":
            inner = left[-1]
        else:
            continue
        total += 2 * inner * math.prod(op.outputs[0].shape)
    return total


@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_flops_are_those_of_the_graph(variant):
    """The formula counts exactly the matrix products of the traced model."""
    config = dataclasses.replace(goldens.CONFIG, **goldens.VARIANTS[variant])
    found = flops.forward_flops(config, tokens=11, predictions=3)
    assert sum(found.values()) == graph_flops(config, 11, 3)


def test_a_training_step_of_base_costs_255_gflop():
    """Batch 4 of 128 tokens and 20 predictions, worked out by hand.

    A layer has 4 H^2 + 2 H I weights and T^2 products of width H twice; the
    last one computes 21 outputs, of all keys and values.
    """
    h, i, e, v, t, p = 768, 3072, 128, 30000, 128, 20
    layer = t * (4 * h * h + 2 * h * i) + 2 * t * t * h
    last = 2 * t * h * h + 21 * (2 * h * h + 2 * h * i + 2 * t * h)
    rest = t * e * h + h * h + p * (h * e + e * v) + 2 * h
    expected = 4 * 3 * 2 * (11 * layer + last + rest)
    found = 4 * flops.training_flops(AlbertConfig(), t, p)
    assert found == expected
    assert round(found / 1e9) == 255
