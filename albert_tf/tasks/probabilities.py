"""Probabilities of logits, as float arrays of NumPy."""

import numpy as np

from albert_tf.text.tokenizers import Tokenizer


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities along the last axis."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the probability of each yes."""
    return np.exp(-np.logaddexp(0.0, -logits))


def likeliest(
    tokenizer: Tokenizer, logits: np.ndarray, number: int
) -> list[tuple[str, float]]:
    """Return the likeliest (piece, probability)s for logits of all rows.

    The word table may have more rows than there are pieces.
    """
    shares = softmax(logits)[: tokenizer.vocab_size]
    best = np.argsort(-shares, kind="stable")[:number]
    pieces = tokenizer.pieces(best)
    return list(zip(pieces, shares[best].tolist(), strict=True))
