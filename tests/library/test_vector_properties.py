"""Cosines and search results equal those of NumPy for any vectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from albert_tf.library import vectors

NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e30]) | st.floats(
    -(2.0**100), 2.0**100, width=32
)
VECTORS = st.lists(
    st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=6
)


def cosines(first, second):
    """Return cosines in float64; every cosine of a zero vector is 0."""
    both = [np.array(x, np.float32).astype("f8") for x in (first, second)]
    norms = [np.linalg.norm(x, axis=1, keepdims=True) for x in both]
    units = [
        x / np.where(n > 0, n, 1) for x, n in zip(both, norms, strict=True)
    ]
    return units[0] @ units[1].T


@examples(20)
@given(first=VECTORS, second=VECTORS)
def test_similarity_is_the_cosine(first, second):
    """Vectors may be of any length, including zero."""
    found = vectors.similarity(np.float32(first), np.float32(second))
    np.testing.assert_allclose(found, cosines(first, second), atol=1e-6)


@examples(20)
@given(
    queries=VECTORS,
    candidates=VECTORS,
    number=st.integers(1, 8),
    block=st.sampled_from([1, 5, 1 << 20]),
)
def test_search_sorts_the_cosines(queries, candidates, number, block):
    """The closest vectors come first, each once, for blocks of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "BLOCK", block)
        found = vectors.search(queries, candidates, number)
    for row, wanted in zip(found, cosines(queries, candidates), strict=True):
        assert len(row) == len({x.index for x in row})
        assert len(row) == min(number, len(candidates))
        scores = [x.score for x in row]
        assert scores == sorted(scores, reverse=True)
        best = np.sort(wanted)[::-1][:number]
        np.testing.assert_allclose(scores, best, atol=1e-6)
        np.testing.assert_allclose(
            scores, [wanted[x.index] for x in row], atol=1e-6
        )
        ties = [(-x.score, x.index) for x in row]
        assert ties == sorted(ties)
