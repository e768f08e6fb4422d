"""Vectors of pieces, computed from counts of their neighbors in the text.

A masked language model first learns which pieces can replace one another. It
stores this knowledge in the embedding table, which contains most of the weights
of a small ALBERT model. The text reveals interchangeable pieces before
training, because they have the same neighbors. The vectors are the left
singular vectors of the positive pointwise mutual information of pieces and
neighbors. They are scaled by the square roots of the singular values, as Levy,
Goldberg and Dagan recommend (https://aclanthology.org/Q15-1016). Each position
around a piece is counted separately.

Shapes: n tokens, V vocabulary, E embedding width.
"""

import itertools

import numpy as np
from scipy import sparse
from sklearn.utils.extmath import randomized_svd

from albert_tf.data.records.metadata import TRAIN, Metadata, paths_of
from albert_tf.data.records.tfrecord import decoded

# Processing this many tokens takes about 20 seconds; more tokens are not worth
# the time.
MAX_TOKENS = 10_000_000
DISTANCE = 2  # neighbors are at most this many positions away
# Pieces that occur less often have the vector 0.
FEWEST = 3
# Neighbor counts are raised to this power, because rare neighbors would
# otherwise have too much weight.
SMOOTHING = 0.75
NO_PIECE = -1


def read_tokens(data_dir: str, metadata: Metadata) -> np.ndarray:
    """Return the tokens of the training records, in order.

    Returns:
      int64 [n], with n at most about `MAX_TOKENS`, and `NO_PIECE` where a
      segment begins or ends.
    """
    texts, total = [], 0
    paths = paths_of(data_dir, metadata, TRAIN)
    for example in itertools.chain.from_iterable(map(decoded, paths)):
        ids = example.originals()
        first_of_b = np.argmax(example.segment_ids)
        ids[[0, first_of_b - 1, -1]] = NO_PIECE
        texts.append(ids)
        total += len(ids)
        if total >= MAX_TOKENS:
            break
    return np.concatenate(texts)


def neighbor_counts(tokens: np.ndarray, vocab_size: int) -> sparse.csr_array:
    """Count the neighbors of each piece at each distance.

    Args:
      tokens: as returned by `read_tokens`.
      vocab_size: V; ids of V or more are ignored.

    Returns:
      [V, 2 DISTANCE V]: blocks of V columns for neighbors one position after
      the piece, one before, two after, and so on.
    """
    pieces = (tokens >= 0) & (tokens < vocab_size)
    blocks = []
    for distance in range(1, DISTANCE + 1):
        both = pieces[:-distance] & pieces[distance:]
        pairs = tokens[:-distance][both], tokens[distance:][both]
        ones = np.ones(both.sum(), np.float32)
        shape = (vocab_size, vocab_size)
        counts = sparse.coo_array((ones, pairs), shape).tocsr()
        blocks += [counts, counts.T]
    return sparse.hstack(blocks, format="csr")


def mutual_information(counts: sparse.csr_array) -> sparse.csr_array:
    """Return log ratios of counts to expected counts, or 0 where negative."""
    of_piece, of_neighbor = counts.sum(axis=1), counts.sum(axis=0)
    chance = of_neighbor**SMOOTHING
    chance /= chance.sum()
    table = counts.tocoo()
    row, column = table.coords
    information = np.log(table.data / (of_piece[row] * chance[column]))
    positive = np.maximum(information, 0.0)
    return sparse.csr_array((positive, (row, column)), table.shape)


def piece_vectors(
    tokens: np.ndarray, vocab_size: int, width: int
) -> np.ndarray:
    """Return piece vectors, float32 [V, E], each with a mean square of 1.

    The vectors of pieces that are too rare are 0.

    Args:
      tokens: as returned by `read_tokens`.
      vocab_size: V.
      width: E.
    """
    counts = neighbor_counts(tokens, vocab_size)
    left, values, _ = randomized_svd(
        mutual_information(counts), width, n_iter=4, random_state=0
    )
    vectors = np.zeros([vocab_size, width], np.float32)
    vectors[:, : len(values)] = left * np.sqrt(values)
    size = np.sqrt(np.mean(vectors**2, axis=1, keepdims=True))
    # An occurrence in the middle of a text has 2 * DISTANCE neighbors.
    seen = counts.sum(axis=1) >= 2 * DISTANCE * FEWEST
    usable = seen[:, None] & (size > 1e-6)
    return np.divide(vectors, size, np.zeros_like(vectors), where=usable)
