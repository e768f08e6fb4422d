"""Pooled vectors equal those of NumPy for any tokens and lengths."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from albert_tf.model.task_heads import POOLINGS, pooled

ROWS = {
    "mean": lambda x: x.mean(0),
    "cls": lambda x: x[0],
    "max": lambda x: x.max(0),
}


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("unit", [False, True])
@examples(10)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 1e4]),
    seed=st.integers(0, 2**32),
)
def test_pooling_is_that_of_numpy(name, unit, lengths, padding, scale, seed):
    """Each text is pooled over its own tokens, whatever padding contains."""
    rng = np.random.default_rng(seed)
    shape = len(lengths), max(lengths) + padding, 3
    x = (scale * rng.normal(size=shape)).astype(np.float32)
    mask = np.arange(shape[1]) < np.array(lengths)[:, None]
    x[~mask] = 1e6
    rows = zip(x, lengths, strict=True)
    wanted = np.stack([ROWS[name](row[:n].astype("f8")) for row, n in rows])
    if unit:
        norms = np.linalg.norm(wanted, axis=1, keepdims=True)
        wanted = wanted / np.where(norms > 1e-6, norms, 1e30)
    found = pooled(tf.constant(x), tf.constant(mask, tf.int32), name, unit)
    tolerance = 1e-5 * (1.0 if unit else max(scale, 1e-6) * 10)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=tolerance)
