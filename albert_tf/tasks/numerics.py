"""Probabilities and the most probable spans from a model's outputs.

Arrays are NumPy arrays or, in a served graph, TensorFlow tensors. Shapes: R
rows, T tokens, K starts and M ends of a beam, S spans per row.
"""

from typing import Any, NamedTuple

import numpy as np

from albert_tf.text.tokenizers import Tokenizer

Array = Any
IMPOSSIBLE = np.float32(-np.inf)  # the score of spans that cannot be answers
NO_ANSWER = -1e6  # the scores of start and end if there is no answer


def library(values: Array) -> Any:
    """Return the module that operates on an array: NumPy or TensorFlow."""
    if isinstance(values, np.ndarray):
        return np
    import tensorflow as tf

    return tf


def softmax(logits: Array) -> Array:
    """Return probabilities along the last axis."""
    xp = library(logits)
    if xp is not np:
        return xp.nn.softmax(logits)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def sigmoid(logits: Array) -> Array:
    """Return the sigmoid of each logit."""
    xp = library(logits)
    if xp is not np:
        return xp.sigmoid(logits)
    return np.exp(-np.logaddexp(0.0, -logits))


def top(values: Array, number: int) -> tuple[Array, Array]:
    """Return each row's `number` largest values, and their positions.

    The values are in descending order; a shorter row yields all its values.
    """
    xp = library(values)
    if xp is not np:
        return xp.math.top_k(values, xp.minimum(number, xp.shape(values)[1]))
    indices = np.argsort(-values, axis=1, kind="stable")[:, :number]
    return np.take_along_axis(values, indices, axis=1), indices


def values_at(values: Array, positions: Array) -> Array:
    """Return the values of rows [R, T] at positions [R, K, M] in each row."""
    xp = library(values)
    if xp is not np:
        return xp.gather(values, positions, batch_dims=1)
    return values[np.arange(len(values))[:, None, None], positions]


class Spans(NamedTuple):
    """Spans in rows: first and last tokens, and their scores.

    The shape of each field is [R, S] or, in the results of the functions in
    `SPANS`, broadcasts to [R, K, M]. The start score is `IMPOSSIBLE` for spans
    that cannot be answers.
    """

    first: Array
    last: Array
    start_score: Array
    end_score: Array


def simple_spans(
    outputs: dict, begins: Array, inside: Array, number: int
) -> Spans:
    """Return spans from the `number` best starts to the `number` best ends."""
    where = library(begins).where
    start = where(begins, outputs["start_logits"], IMPOSSIBLE)
    end = where(inside, outputs["end_logits"], IMPOSSIBLE)
    start, first = (x[:, :, None] for x in top(start, number))
    end, last = (x[:, None, :] for x in top(end, number))
    return Spans(first, last, start, end)


def beam_spans(
    outputs: dict, begins: Array, inside: Array, number: int
) -> Spans:
    """Return a beam's spans: starts [R, K], each with its ends [R, K, M]."""
    first = outputs["start_top_index"][..., None]
    last = outputs["end_top_index"]
    start = outputs["start_top_log_probs"][..., None]
    is_valid = values_at(begins, first) & values_at(inside, last)
    start = library(begins).where(is_valid, start, IMPOSSIBLE)
    return Spans(first, last, start, outputs["end_top_log_probs"])


SPANS = {"simple": simple_spans, "beam": beam_spans}


def candidates(
    head: str,
    outputs: dict,
    begins: Array,
    inside: Array,
    number: int,
    max_length: int,
) -> Spans:
    """Return candidate spans; the start score of non-answers is `IMPOSSIBLE`.

    Args:
      head: a key of `SPANS`.
      outputs: the head's outputs for rows [R].
      begins: bool [R, T], whether an answer may begin at a token.
      inside: bool [R, T], whether an answer may end at a token.
      number: the number of starts and of ends to try; ignored for `beam`, whose
        outputs already contain the candidates.
      max_length: the maximum number of tokens in an answer.
    """
    xp = library(begins)
    first, last, start, end = SPANS[head](outputs, begins, inside, number)
    is_valid = (last >= first) & (last < first + max_length)  # [R, K, M]
    start = xp.where(is_valid, start, IMPOSSIBLE)
    shape = xp.shape(is_valid)
    return Spans(
        *(
            xp.reshape(xp.broadcast_to(x, shape), [shape[0], -1])
            for x in (first, last, start, end)
        )
    )


def likeliest(
    tokenizer: Tokenizer, logits: np.ndarray, number: int
) -> list[tuple[str, float]]:
    """Return the most probable (piece, probability) pairs for a position.

    The result contains only pieces of the vocabulary. The embedding table may
    have additional rows, whose logits are ignored.
    """
    probabilities = softmax(logits)[: tokenizer.vocab_size]
    best = np.argsort(-probabilities, kind="stable")[:number]
    pieces = tokenizer.pieces(best)
    return list(zip(pieces, probabilities[best].tolist(), strict=True))
