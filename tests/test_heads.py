"""The layers on the encoder."""

import numpy as np
import pytest
import tensorflow as tf
import tiny

from albert_tf.checkpoints import named_variables
from albert_tf.heads import AlbertClassifier

DATA = tiny.make_data()
INPUTS = [DATA[k][:4] for k in ("input_ids", "input_mask", "segment_ids")]


def test_logits_are_a_dense_layer_on_the_pooled_output():
    """Without a seed the logits are pooled times kernel plus bias."""
    model = AlbertClassifier(tiny.CONFIG, 3)
    model.classifier.bias.assign([1.0, 2.0, 3.0])
    pooled = model.albert(*INPUTS)["pooled_output"].numpy()
    kernel = model.classifier.kernel.numpy()
    expected = pooled @ kernel + [1.0, 2.0, 3.0]
    np.testing.assert_allclose(model(*INPUTS), expected, atol=1e-6)


def test_names_of_variables():
    """The head stands beside the encoder, which keeps its own names."""
    names = named_variables(AlbertClassifier(tiny.CONFIG, 2))
    assert names["classifier/kernel"].shape == (16, 2)
    assert names["classifier/bias"].shape == (2,)
    others = {n.split("/")[0] for n in names if "classifier" not in n}
    assert others == {"albert"}


def test_the_kernel_is_drawn_as_released():
    """The kernel is truncated normal with the config's deviation."""
    kernel = AlbertClassifier(tiny.CONFIG, 500).classifier.kernel.numpy()
    assert np.abs(kernel).max() <= 2.01 * 0.02
    assert kernel.std() == pytest.approx(0.88 * 0.02, rel=0.05)


def test_dropout_drops_the_pooled_output():
    """Units are zeroed with the given rate, and the seed decides which."""
    model = AlbertClassifier(tiny.CONFIG, 16, classifier_dropout=0.5)
    model.classifier.kernel.assign(tf.eye(16))
    first = model(*INPUTS, seed=tf.constant([1, 0])).numpy()
    again = model(*INPUTS, seed=tf.constant([1, 0])).numpy()
    other = model(*INPUTS, seed=tf.constant([2, 0])).numpy()
    assert (first == again).all() and (first != other).any()
    assert 0.25 < (first == 0).mean() < 0.75


def test_logits_are_float32_under_bfloat16():
    """The loss is computed in float32 whatever the encoder computes in."""
    model = AlbertClassifier(tiny.CONFIG, 2, dtype="mixed_bfloat16")
    assert model(*INPUTS).dtype == tf.float32
    assert model.classifier.kernel.dtype == "float32"
