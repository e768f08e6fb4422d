"""Outputs of examples in their order, whatever the order of computing."""

import numpy as np
import pytest
import tensorflow as tf
import tiny

from albert_tf.distribution import DistributionConfig, make_strategy
from albert_tf.evaluation import Evaluator
from albert_tf.model import AlbertForPretraining
from albert_tf.objectives import PretrainingObjective
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.features import Features

LENGTHS = [3, 16, 9, 4, 12, 5, 2]


@pytest.fixture(scope="module")
def features():
    rows = [
        (np.full(n, 10 + i, np.int32), n // 2) for i, n in enumerate(LENGTHS)
    ]
    return Features.from_rows(rows, {}, 0, 16)


def outputs(model, batch):
    """Return an output with an axis of tokens, and one without."""
    ids = tf.cast(batch["input_ids"], tf.float32)
    encoded = model.albert(
        batch["input_ids"], batch["input_mask"], batch["segment_ids"]
    )
    return {"tokens": ids[..., None] * [1.0, 2.0], **encoded}


@pytest.mark.parametrize("replicas", [1, 2])
def test_sorted_batches_change_no_output(features, replicas):
    """Outputs stand in the examples' order; short ones end in zeros."""
    evaluator = Evaluator(
        make_strategy(DistributionConfig(num_cpu_replicas=replicas)),
        lambda: AlbertForPretraining(tiny.CONFIG),
        PretrainingObjective(),
        2,
    )
    plain, sorted_ = (
        evaluator.predict(evaluation_batches(features, 2, bucketed), outputs)
        for bucketed in (False, True)
    )
    pooled = "pooled_output"
    np.testing.assert_allclose(sorted_[pooled], plain[pooled], atol=1e-6)
    assert sorted_["tokens"].shape == (len(LENGTHS), 16, 2)
    for i, n in enumerate(LENGTHS):
        expected = np.zeros([16, 2])
        expected[:n] = [10 + i, 20 + 2 * i]
        np.testing.assert_array_equal(sorted_["tokens"][i], expected)
    for i, n in enumerate(LENGTHS):
        one, two = (x["sequence_output"][i, :n] for x in (plain, sorted_))
        np.testing.assert_allclose(one, two, atol=1e-5)
