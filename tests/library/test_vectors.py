"""Cosines and search results equal those of NumPy and of scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from sklearn.metrics.pairwise import cosine_similarity

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.library import vectors

RNG = np.random.default_rng(0)
QUERIES, CANDIDATES = RNG.normal(size=(5, 4)), RNG.normal(size=(17, 4))


def test_a_lone_vector_has_a_lone_answer():
    """The result for a single vector is a row of the result for several."""
    wanted = albert_tf.search(QUERIES, CANDIDATES, np.int64(2))
    assert [len(row) for row in albert_tf.search(QUERIES, CANDIDATES)] == [
        10
    ] * 5
    assert albert_tf.search(QUERIES[1], CANDIDATES, np.array(2)) == wanted[1]
    cosines = cosine_similarity(QUERIES, CANDIDATES)
    for first, second, index in (
        (QUERIES[1], CANDIDATES, 1),
        (QUERIES, CANDIDATES[2], (slice(None), 2)),
        (QUERIES[1], CANDIDATES[2], (1, 2)),
    ):
        scores = albert_tf.similarity(first, second)
        np.testing.assert_allclose(scores, cosines[index], atol=1e-6)


@pytest.mark.parametrize("dtype", ["f2", "f8", "i1", "i8", "u1", "u8"])
def test_vectors_may_be_of_any_numbers(dtype):
    """Whole numbers, signed or not, have the cosines of equal real numbers."""
    values = np.array([[3, 0, 120, 5], [7, 101, 0, 90], [0, 0, 0, 1]], dtype)
    found = albert_tf.similarity(values, CANDIDATES)
    wanted = cosine_similarity(values.astype("f8"), CANDIDATES)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    for row, scores in zip(
        albert_tf.search(values, CANDIDATES, 3), wanted, strict=True
    ):
        assert [x.index for x in row] == np.argsort(-scores)[:3].tolist()


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


@pytest.mark.parametrize("number", [3, 20, 30])
def test_equal_cosines_are_in_order(number):
    """Results with equal cosines are in the order of the vectors."""
    candidates = np.tile(np.eye(2)[0], [50, 1])
    candidates[::3] = np.eye(2)[1]
    found = albert_tf.search(np.eye(2)[0], candidates, number)
    indices = [x.index for x in found]
    assert [x.score for x in found] == [1.0] * number
    assert indices == sorted({*indices})


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (
            lambda: albert_tf.similarity([QUERIES], CANDIDATES),
            "`first` must be",
        ),
        (lambda: albert_tf.similarity(1.0, CANDIDATES), "`first` must be"),
        (lambda: albert_tf.search(QUERIES, CANDIDATES[0]), "must be .M, H."),
        (lambda: albert_tf.search(QUERIES, CANDIDATES, 2.5), "a whole number"),
        (lambda: albert_tf.search(QUERIES, CANDIDATES, "2"), "a whole number"),
        (
            lambda: albert_tf.similarity(["a"], CANDIDATES),
            "`first` must be fin",
        ),
        (
            lambda: albert_tf.similarity(QUERIES, CANDIDATES > 0),
            "`second` .*Received: second=bool .17, 4.",
        ),
        (lambda: albert_tf.similarity(QUERIES, [[np.nan] * 4]), "`second`"),
        (
            lambda: albert_tf.search(QUERIES, CANDIDATES[:, :3]),
            "the same width. Rec",
        ),
        (lambda: albert_tf.search(QUERIES, CANDIDATES[:0]), "at least one"),
        (
            lambda: albert_tf.search(QUERIES, CANDIDATES, 0),
            "`top_k` must be at",
        ),
    ],
)
def test_refuses_what_are_no_vectors(action, message):
    """The error names the argument that is not an array of vectors."""
    with pytest.raises(InputError, match=message):
        action()


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
