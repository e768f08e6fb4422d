"""Cosines equal those of scikit-learn; searches accept one or more vectors."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

import albert_tf
from albert_tf.base.errors import InputError

RNG = np.random.default_rng(0)
QUERIES, VECTORS = RNG.normal(size=(5, 4)), RNG.normal(size=(17, 4))


def test_a_lone_vector_has_a_lone_answer():
    """The result for a single vector is a row of the result for several."""
    wanted = albert_tf.search(QUERIES, VECTORS, np.int64(2))
    assert [len(row) for row in albert_tf.search(QUERIES, VECTORS)] == [10] * 5
    assert albert_tf.search(QUERIES[1], VECTORS, np.array(2)) == wanted[1]
    cosines = cosine_similarity(QUERIES, VECTORS)
    for first, second, index in (
        (QUERIES[1], VECTORS, 1),
        (QUERIES, VECTORS[2], (slice(None), 2)),
        (QUERIES[1], VECTORS[2], (1, 2)),
    ):
        scores = albert_tf.similarity(first, second)
        np.testing.assert_allclose(scores, cosines[index], atol=1e-6)


def test_no_cosine_exceeds_1():
    """Rounding errors of float32 do not lead to cosines beyond -1 or 1."""
    vectors = RNG.normal(size=(400, 5)).astype("f4")
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert (units @ units.T).max() > 1.0
    for other, extreme in ((vectors, 1.0), (-vectors, -1.0)):
        scores = albert_tf.similarity(vectors, other)
        assert np.abs(scores).max() == 1.0
        np.testing.assert_allclose(np.diag(scores), extreme, rtol=1e-6)
    found = albert_tf.search(vectors, vectors, 1)
    assert max(row[0].score for row in found) == 1.0
    found = albert_tf.search(vectors, -vectors, 400)
    assert min(row[-1].score for row in found) == -1.0


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
    """The error names the argument that is not an array of vectors."""
    with pytest.raises(InputError, match=message):
        action()
