"""Counts of FLOPs equal the counts in the graph."""

import goldens
import pytest
import tensorflow as tf
from exporting import product_flops

from albert_tf.model import config
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig, forward_flops
from albert_tf.model.phonemes import AlbertForPhonemes


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_flops_are_those_of_the_graph(variant):
    """The formula's FLOPs match the traced model's matrix products."""
    config = goldens.variant(variant)
    shapes = [(1, 11)] * 3 + [(1, 3)]
    specs = [tf.TensorSpec(shape, tf.int32) for shape in shapes]
    traced = tf.function(AlbertForPretraining(config), autograph=False)
    found = forward_flops(config, tokens=11, predictions=3)
    graph = traced.get_concrete_function(*specs).graph
    assert sum(found.values()) == product_flops(graph)


def test_a_training_step_of_base_costs_255_gflop():
    """A step of base on 4 x 128 tokens, with 20 predictions each, is 255 GFLOP.

    A layer has 4 H^2 + 2 H I weights, and each of two attention products takes
    T^2 products of width H. H is the hidden width, I the feed-forward width,
    and T the number of tokens. The last layer computes 21 outputs from all keys
    and values.
    """
    h, i, e, v, t, p = 768, 3072, 128, 30000, 128, 20
    layer = t * (4 * h * h + 2 * h * i) + 2 * t * t * h
    last = 2 * t * h * h + 21 * (2 * h * h + 2 * h * i + 2 * t * h)
    rest = t * e * h + h * h + p * (h * e + e * v) + 2 * h
    expected = 4 * 3 * 2 * (11 * layer + last + rest)
    found = 4 * config.training_flops(AlbertConfig(), t, p)
    assert found == expected
    assert round(found / 1e9) == 255


@pytest.mark.parametrize(
    ("variant", "projection", "head"),
    [
        ("shared", 11 * 6 * 12, 12 * 6 + 6 * 60),
        ("unfactorized", 0, 12 * 12 + 12 * 60),
        ("norm at H", 11 * 6 * 12, 12 * 12 + 12 * 6 + 6 * 60),
        ("norm at H, unfactorized", 11 * 12 * 12, 2 * 12 * 12 + 12 * 60),
    ],
)
def test_flops_at_the_embeddings(variant, projection, head):
    """FLOPs include the projections of embeddings and of predictions."""
    found = forward_flops(goldens.variant(variant), tokens=11, predictions=3)
    assert found["embedding projection"] == 2 * projection
    assert found["masked-LM head"] == 2 * 3 * head


def test_flops_of_several_blocks_with_fewer_heads():
    """Only the very last block computes fewer outputs than tokens."""
    config = goldens.variant("pruned heads", inner_group_num=2)
    found = forward_flops(config, tokens=11, predictions=3)
    h, a, i, outputs = 12, 8, 20, 7 * 11 + 4
    products = 2 * a * (8 * 11 * h) + 2 * a * outputs * (h + 11)
    assert found["attention"] == 2 * products
    assert found["feed-forward"] == 2 * outputs * 2 * h * i


def test_flops_of_a_phoneme_model():
    """Both linear heads of a phoneme model count, for every token.

    The graph omits the words, whose scores are computed in a loop.
    """
    c = goldens.variant("shared")
    model = AlbertForPhonemes(c, num_words=70)
    traced = tf.function(lambda ids: model(ids)["symbol_logits"])
    spec = tf.TensorSpec([1, 11], tf.int32)
    graph = traced.get_concrete_function(spec).graph
    forward = product_flops(graph) + 2 * 11 * c.hidden_size * 70
    assert config.training_flops(c, 11, 10, words=70) == 3 * forward
