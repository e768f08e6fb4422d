"""Cosines and search, beside scikit-learn's."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.library import vectors

RNG = np.random.default_rng(0)
QUERIES, VECTORS = RNG.normal(size=(5, 4)), RNG.normal(size=(17, 4))


def test_similarity_is_the_cosine():
    """Of any lengths, also of vectors of zeros and of large numbers."""
    first = np.concatenate([3 * QUERIES, np.zeros([1, 4])])
    wanted = cosine_similarity(first, VECTORS)
    found = albert_tf.similarity(first.astype("f4"), VECTORS)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    large = albert_tf.similarity(first.astype("f4") * 1e30, VECTORS)
    np.testing.assert_allclose(large, wanted, atol=1e-6)


@pytest.mark.parametrize("block", [1, 40, 1 << 20])
@pytest.mark.parametrize("number", [1, 3, 99])
def test_search_sorts_the_cosines(monkeypatch, block, number):
    """In blocks of any size; all vectors where fewer than asked for."""
    monkeypatch.setattr(vectors, "BLOCK", block)
    found = albert_tf.search(QUERIES, VECTORS, number)
    scores = cosine_similarity(QUERIES, VECTORS)
    for row, wanted in zip(found, scores, strict=True):
        order = np.argsort(-wanted)[:number]
        assert [x.index for x in row] == order.tolist()
        shares = [x.score for x in row]
        np.testing.assert_allclose(shares, wanted[order], atol=1e-6)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: albert_tf.similarity(QUERIES[0], VECTORS), "`first` must be"),
        (lambda: albert_tf.similarity(["a"], VECTORS), "`first` must be vec"),
        (lambda: albert_tf.similarity(QUERIES, [[np.nan] * 4]), "`second`"),
        (lambda: albert_tf.search(QUERIES, VECTORS[:, :3]), "one width. Rec"),
        (lambda: albert_tf.search(QUERIES, VECTORS[:0]), "must have a vec"),
        (lambda: albert_tf.search(QUERIES, VECTORS, 0), "`top_k` must be at"),
    ],
)
def test_refuses_what_are_no_vectors(action, message):
    """With the name of the argument."""
    with pytest.raises(InputError, match=message):
        action()
