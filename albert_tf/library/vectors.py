"""Cosines between text vectors, and the search for the closest vectors.

Shapes: N and M vectors of width H.
"""

from typing import Any, NamedTuple

import numpy as np

from albert_tf.base.errors import require
from albert_tf.base.settings import positive

BLOCK = 1 << 24  # number of cosines to compute at once


class Found(NamedTuple):
    """The index of a vector, and the vector's cosine with the query."""

    index: int
    score: float


def unit_vectors(values: Any, name: str) -> np.ndarray:
    """Return float32 vectors [..., H] of length 1; zero vectors stay zero."""
    values = np.asarray(values)
    rule = f"`{name}` must be finite vectors [N, H], or one vector [H]."
    legal = values.ndim in (1, 2) and values.dtype.kind in "fiu"
    require(legal, rule, **{name: f"{values.dtype} {values.shape}"})
    values = values.astype(np.float32)
    require(np.isfinite(values).all(), rule, **{name: "NaN or infinite"})
    # Divide by the largest number first: the squares of large numbers overflow.
    largest = np.abs(values).max(axis=-1, keepdims=True, initial=0.0)
    values = values / np.where(largest > 0, largest, 1.0)
    norms = np.linalg.norm(values, axis=-1, keepdims=True)
    return values / np.where(norms > 0, norms, 1.0)


def unit_pair(
    first: Any, second: Any, names: tuple[str, str]
) -> list[np.ndarray]:
    """Return two arrays of unit vectors, which must have the same width."""
    pair = [unit_vectors(*x) for x in zip((first, second), names, strict=True)]
    widths = {n: x.shape[-1] for n, x in zip(names, pair, strict=True)}
    rule = f"`{names[0]}` and `{names[1]}` must have the same width."
    require(len(set(widths.values())) == 1, rule, **widths)
    return pair


def similarity(first: Any, second: Any) -> np.ndarray:
    """Return the float32 cosines [N, M] between N vectors and M vectors.

    Args:
      first: [N, H], as returned by `embed`, `encode` or `predict`. For a single
        vector [H], the result has no axis N.
      second: [M, H]. For a single vector [H], the result has no axis M.
    """
    first, second = unit_pair(first, second, ("first", "second"))
    return np.clip(first @ second.T, -1.0, 1.0)


def search(queries: Any, vectors: Any, top_k: int = 10) -> list:
    """Return the vectors with the largest cosines for each query.

    Args:
      queries: [N, H], as returned by `embed`, `encode` or `predict`.
      vectors: [M, H], the vectors to search.
      top_k: maximum number of results for each query.

    Returns:
      A list of `Found` for each query, closest first; for a single query [H],
      one list.
    """
    top_k = positive("top_k", top_k)
    queries, vectors = unit_pair(queries, vectors, ("queries", "vectors"))
    rule = "`vectors` must be [M, H], with at least one vector."
    require(vectors.ndim == 2 and len(vectors), rule, vectors=vectors.shape)
    if queries.ndim == 1:
        return search(queries[None], vectors, top_k)[0]
    count, results = min(top_k, len(vectors)), []
    rows = max(1, BLOCK // len(vectors))
    for begin in range(0, len(queries), rows):
        scores = np.clip(queries[begin : begin + rows] @ vectors.T, -1.0, 1.0)
        best = np.argpartition(-scores, count - 1)[:, :count]
        for row, indices in zip(scores, best, strict=True):
            order = indices[np.lexsort((indices, -row[indices]))]
            results.append([Found(int(i), float(row[i])) for i in order])
    return results
