"""Probabilities of logits, as float arrays of NumPy."""

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities along the last axis."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the probability of each yes."""
    return np.exp(-np.logaddexp(0.0, -logits))
