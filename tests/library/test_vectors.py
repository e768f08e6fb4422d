"""Cosines and search agree with scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.library import vectors

RNG = np.random.default_rng(0)
QUERIES, VECTORS = RNG.normal(size=(5, 4)), RNG.normal(size=(17, 4))


def test_similarity_is_the_cosine():
    """Vectors may have any length, be zero or have large numbers."""
    first = np.concatenate([3 * QUERIES, np.zeros([1, 4])])
    wanted = cosine_similarity(first, VECTORS)
    found = albert_tf.similarity(first.astype("f4"), VECTORS)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    large = albert_tf.similarity(first.astype("f4") * 1e30, VECTORS)
    np.testing.assert_allclose(large, wanted, atol=1e-6)


@pytest.mark.parametrize("block", [1, 40, 1 << 20])
@pytest.mark.parametrize("number", [1, 3, 99])
def test_search_sorts_the_cosines(monkeypatch, block, number):
    """Blocks of any size give sorted results; `top_k` may exceed M."""
    monkeypatch.setattr(vectors, "BLOCK", block)
    found = albert_tf.search(QUERIES, VECTORS, number)
    scores = cosine_similarity(QUERIES, VECTORS)
    for row, wanted in zip(found, scores, strict=True):
        order = np.argsort(-wanted)[:number]
        assert [x.index for x in row] == order.tolist()
        shares = [x.score for x in row]
        np.testing.assert_allclose(shares, wanted[order], atol=1e-6)


def test_a_lone_vector_has_a_lone_answer():
    """A single vector gets the answer of its row, without the axis."""
    wanted = albert_tf.search(QUERIES, VECTORS, np.int64(2))
    assert albert_tf.search(QUERIES[1], VECTORS, np.array(2)) == wanted[1]
    cosines = cosine_similarity(QUERIES, VECTORS)
    for first, second, index in (
        (QUERIES[1], VECTORS, 1),
        (QUERIES, VECTORS[2], (slice(None), 2)),
        (QUERIES[1], VECTORS[2], (1, 2)),
    ):
        scores = albert_tf.similarity(first, second)
        np.testing.assert_allclose(scores, cosines[index], atol=1e-6)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: albert_tf.similarity([QUERIES], VECTORS), "`first` must be"),
        (lambda: albert_tf.similarity(1.0, VECTORS), "`first` must be"),
        (lambda: albert_tf.search(QUERIES, VECTORS[0]), "must be .M, H."),
        (lambda: albert_tf.search(QUERIES, VECTORS, 2.5), "a whole number"),
        (lambda: albert_tf.search(QUERIES, VECTORS, "2"), "a whole number"),
        (lambda: albert_tf.similarity(["a"], VECTORS), "`first` must be fin"),
        (lambda: albert_tf.similarity(QUERIES, [[np.nan] * 4]), "`second`"),
        (
            lambda: albert_tf.search(QUERIES, VECTORS[:, :3]),
            "the same width. Rec",
        ),
        (lambda: albert_tf.search(QUERIES, VECTORS[:0]), "at least one"),
        (lambda: albert_tf.search(QUERIES, VECTORS, 0), "`top_k` must be at"),
    ],
)
def test_refuses_what_are_no_vectors(action, message):
    """The error names the argument."""
    with pytest.raises(InputError, match=message):
        action()
