"""A batch in equal micro-batches, one after the other, to save memory."""

from collections.abc import Callable

import tensorflow as tf

from albert_tf.model.ops import fold_in
from albert_tf.training.step.evaluator import Batch


def add(left: list[tf.Tensor], right: list[tf.Tensor]) -> list[tf.Tensor]:
    """Add two lists of tensors element by element."""
    return [a + b for a, b in zip(left, right, strict=True)]


def cut(batch: Batch, pieces: int, index: tf.Tensor) -> Batch:
    """Return one of the equal micro-batches of a batch."""

    def piece(x):
        size = x.shape[0] // pieces
        rest = [n or tf.shape(x)[i] for i, n in enumerate(x.shape)][1:]
        return tf.reshape(x, [pieces, size, *rest])[index]

    return {key: piece(x) for key, x in batch.items()}


def accumulated(
    differentiate: Callable, batch: Batch, seed, pieces: int, zeros: tuple
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return the gradients and the report of a batch, added up.

    Args:
      differentiate: (micro-batch, seed) -> gradients, report.
      batch: the whole batch.
      seed: of its dropout; each micro-batch has its own.
      pieces: how many micro-batches.
      zeros: gradients and a report to begin with.
    """
    if pieces == 1:
        return differentiate(batch, seed)

    def body(i, gradients, report):
        more, part = differentiate(cut(batch, pieces, i), fold_in(seed, i))
        return i + 1, add(gradients, more), report + part

    # No part of a micro-batch but the sum needs the one before: TensorFlow
    # would begin ten of them at once, and hold what they keep.
    _, gradients, report = tf.while_loop(
        lambda i, *_: i < pieces, body, (0, *zeros), parallel_iterations=1
    )
    return gradients, report
