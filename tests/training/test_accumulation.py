"""Only one micro-batch of a batch is computed at a time."""

import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.training.trainer import accumulated


@pytest.mark.parametrize("pieces", [1, 3])
def test_no_more_than_a_micro_batch_is_computed_at_once(pieces):
    """Every example is in one micro-batch, and the results are summed.

    The micro-batches have equal sizes. A micro-batch starts only when the
    previous micro-batch has ended, although it does not need the results of the
    previous micro-batch.
    """
    batch = {"x": tf.reshape(tf.range(12.0), [6, 2])}
    seen, begun, most = [], [], []

    def work(x):
        begun.append(x)
        time.sleep(0.05)  # time for other micro-batches to start
        most.append(len(begun))
        begun.pop()
        return x

    def differentiate(micro_batch, seed):
        seen.append(micro_batch["x"].shape[0])
        total = tf.reduce_sum(micro_batch["x"], axis=0)  # [2]
        total = tf.numpy_function(work, [total], tf.float32, stateful=False)
        total = tf.ensure_shape(total, [2])
        return [total], tf.stack([tf.reduce_sum(total), 1.0])

    gradients, report = tf.function(
        lambda: accumulated(
            differentiate,
            batch,
            tf.constant([1, 2]),
            pieces,
            ([tf.zeros([2])], tf.zeros([2])),
        )
    )()
    assert set(seen) == {6 // pieces}
    np.testing.assert_array_equal(gradients[0], [30.0, 36.0])
    np.testing.assert_array_equal(report, [66.0, pieces])
    assert most == [1] * pieces
