"""Our Muon computes the same updates as the Muon of Keras.

Our Muon updates only matrices that map hidden states.
"""

import inspect

import goldens
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

from albert_tf.training.optimizer import Optimizer, OptimizerConfig, RunRate
from albert_tf.training.update_rules import (
    MATRICES,
    RMS,
    orthogonalized,
    update_rule,
)

DTYPES = ("float32", "bfloat16")
MATRIX = "albert/encoder/ffn_0_0/output/kernel"
SHAPES = [(6, 4), (4, 6), (5, 5)]


@pytest.mark.parametrize("shape", SHAPES)
def test_matrices_are_orthogonalized_as_in_keras(shape):
    """Orthogonalized matrices match Keras's Muon.

    The singular values are between 0.6 and 1.3.
    """
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = orthogonalized(tf.constant(x)).numpy()
    expected = keras.optimizers.Muon().zeropower_via_newtonschulz5(x, 5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    values = np.linalg.svd(found, compute_uv=False)
    assert 0.6 < values.min() and values.max() < 1.3


@pytest.mark.parametrize("shape", [(64, 96), (96, 64)])
def test_bfloat16_turns_no_direction(shape):
    """Orthogonalized matrices are similar in bfloat16 and in float32.

    The singular values are between 0.6 and 1.3.
    """
    x = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    exact, found = (
        orthogonalized(tf.constant(x), dtype).numpy() for dtype in DTYPES
    )
    values = np.linalg.svd(found, compute_uv=False)
    assert 0.6 < values.min() and values.max() < 1.3
    assert 0 < np.linalg.norm(found - exact) < 0.1 * np.linalg.norm(exact)


@pytest.mark.skipif(
    "rms_rate" not in inspect.signature(keras.optimizers.Muon).parameters,
    reason="this Keras has no such scale",
)
@pytest.mark.parametrize("shape", SHAPES)
def test_three_steps_equal_keras(shape):
    """After three steps, weights match `keras.optimizers.Muon`.

    The steps include momentum, the scale of updates and weight decay.
    """
    rng = np.random.default_rng(1)
    config = OptimizerConfig(optimizer="muon", weight_decay_rate=0.1)
    theirs = keras.Variable(rng.normal(size=shape), dtype="float32")
    keras_muon = keras.optimizers.Muon(0.02, weight_decay=0.1, rms_rate=RMS)
    how = False, config, MATRIX
    w, m = tf.constant(theirs.numpy()), tf.zeros(shape)
    for t in range(1, 4):
        g = tf.constant(rng.normal(size=shape), tf.float32)
        keras_muon.apply([g], [theirs])
        w, m, _ = update_rule(w, g, m, None, 0.02, t, *how)
    np.testing.assert_allclose(w, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_the_size_of_an_update_does_not_depend_on_the_shape():
    """The root mean square of an update is about 0.4, whatever the shape."""
    for shape in ((64, 96), (96, 64)):
        g = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        config, zero = OptimizerConfig(optimizer="muon"), tf.zeros(shape)
        how = False, config, MATRIX
        w, _, _ = update_rule(zero, g, zero, None, 1.0, 1, *how)
        assert np.mean(w.numpy() ** 2) ** 0.5 == pytest.approx(0.4, rel=0.2)


def stepped(name, weights, dtype="float32"):
    """Return the weights after an optimizer step with random gradients."""
    rng = np.random.default_rng(2)
    config = OptimizerConfig(optimizer=name, num_warmup_steps=0)
    variables = {n: tf.Variable(w) for n, w in weights.items()}
    gradients = [rng.normal(size=w.shape) for w in weights.values()]
    gradients = [tf.constant(g, tf.float32) for g in gradients]
    optimizer = Optimizer(config, RunRate(config, 9))
    optimizer.build(list(variables.values()), list(variables))
    optimizer.products = dtype
    optimizer.apply(gradients)
    return {n: w.numpy() for n, w in variables.items()}


def test_only_products_of_matrices_are_rounded():
    """bfloat16 changes only the updates of matrices, which Muon computes.

    The optimizer of a run in bfloat16 computes Muon's products in bfloat16.
    """
    weights = goldens.random_weights(tiny.CONFIG)
    exact, rounded = (stepped("muon", weights, x) for x in DTYPES)
    changed = {n for n in exact if np.any(exact[n] != rounded[n])}
    assert changed == set(filter(MATRICES.match, exact))
    config = OptimizerConfig(optimizer="muon")
    trainers = (tiny.make_trainer(optimizer=config, dtype=x) for x in DTYPES)
    assert tuple(t.optimizer.products for t in trainers) == DTYPES


def test_only_matrices_between_states_are_muons():
    """Muon updates only matrices that map hidden states.

    AdamW updates all other variables.
    """
    weights = goldens.random_weights(tiny.CONFIG)
    muon, adamw = (stepped(name, weights) for name in ("muon", "adamw"))
    others = {name for name in muon if np.all(muon[name] == adamw[name])}
    matrices = set(muon) - others
    assert matrices == set(filter(MATRICES.match, muon))
    assert len(matrices) == 7
    assert all(muon[name].ndim == 2 for name in matrices)
    assert not any(name.startswith(("mlm/", "sop/")) for name in matrices)
