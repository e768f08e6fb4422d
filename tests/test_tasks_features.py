"""Packed rows, and batches that follow from seed and position alone."""

import itertools

import numpy as np
import pytest
import tiny_tasks

from albert_tf.tasks.features import (
    Features,
    evaluation_batches,
    packed_row,
    training_batches,
)
from albert_tf.tokenization import pack

LENGTH = 12
EXAMPLES = 23


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny_tasks.make_tokenizer(tmp_path_factory.mktemp("words"))


def make_rows():
    rng = np.random.default_rng(0)
    return [
        (rng.integers(5, 40, a), rng.integers(5, 40, b) if b else [])
        for a, b in itertools.product(range(15), range(15))
    ]


@pytest.fixture(scope="module")
def features(tokenizer):
    rows = [packed_row(tokenizer, a, b, LENGTH) for a, b in make_rows()]
    rows = rows[:: len(rows) // EXAMPLES][:EXAMPLES]
    arrays = {"labels": np.arange(EXAMPLES, dtype=np.int32)}
    return Features.from_rows(rows, arrays, tokenizer.pad_id, LENGTH)


def labels(dataset, batches):
    taken = dataset.take(batches).as_numpy_iterator()
    return [batch["labels"].tolist() for batch in taken]


def test_batches_are_the_packed_rows(tokenizer):
    """Ids, mask and segments equal those of `pack`, for all lengths."""
    rows = [packed_row(tokenizer, a, b, LENGTH) for a, b in make_rows()]
    features = Features.from_rows(rows, {}, tokenizer.pad_id, LENGTH)
    batch = features.batcher()(np.arange(len(rows)))
    packed = [pack(tokenizer, a, b, LENGTH) for a, b in make_rows()]
    names = ("input_ids", "input_mask", "segment_ids")
    for name, expected in zip(names, zip(*packed, strict=True), strict=True):
        np.testing.assert_array_equal(batch[name], np.stack(expected))
        assert batch[name].dtype == "int32"


def test_static_shapes(features):
    """Every batch has the same shape, as a TPU needs."""
    for dataset in (
        training_batches(features, batch_size=4, seed=0),
        evaluation_batches(features, 4),
    ):
        shapes = {k: s.shape for k, s in dataset.element_spec.items()}
        assert shapes["input_ids"] == (4, LENGTH)
        assert shapes["labels"] == (4,)
        assert all(shape.is_fully_defined() for shape in shapes.values())


def test_an_epoch_has_every_example_once(features):
    """Each epoch is another permutation of all examples."""
    dataset = training_batches(features, batch_size=EXAMPLES, seed=3)
    first, second = labels(dataset, 2)
    assert sorted(first) == sorted(second) == list(range(EXAMPLES))
    assert first != second != sorted(second)


@pytest.mark.parametrize("start", [0, 8, 20, 24, 100])
def test_training_can_start_anywhere(features, start):
    """The stream from a position is the tail of the stream from 0."""
    whole = training_batches(features, batch_size=1, seed=5)
    tail = training_batches(features, batch_size=1, seed=5, start=start)
    assert labels(whole, start + 30)[start:] == labels(tail, 30)


def test_shards_deal_out_the_same_examples(features):
    """Two hosts together see, step by step, what one host sees."""
    whole = labels(training_batches(features, batch_size=8, seed=1), 5)
    parts = [
        labels(
            training_batches(
                features, batch_size=4, seed=1, num_shards=2, shard=shard
            ),
            5,
        )
        for shard in (0, 1)
    ]
    for step, expected in enumerate(whole):
        found = parts[0][step] + parts[1][step]
        assert sorted(found) == sorted(expected)


def test_the_seed_decides_the_order(features):
    """Same seed, same order; another seed, another order."""
    one, two, three = (
        labels(training_batches(features, batch_size=8, seed=seed), 2)
        for seed in (1, 1, 2)
    )
    assert one == two != three


@pytest.mark.parametrize("size", [1, 5, 23, 64])
def test_evaluation_counts_every_example_once(features, size):
    """Batches are full; the padding of the last one has weight 0."""
    batches = list(evaluation_batches(features, size).as_numpy_iterator())
    weights = np.concatenate([b["example_weights"] for b in batches])
    found = np.concatenate([b["labels"] for b in batches])
    assert len(weights) % size == 0
    assert found[weights > 0].tolist() == list(range(EXAMPLES))
    assert weights.sum() == EXAMPLES


def test_rows_that_may_have_been_cut(tokenizer):
    """Rows that leave no room are counted."""
    rows = [packed_row(tokenizer, np.arange(5, 5 + n), [], 8) for n in (5, 6)]
    assert Features.from_rows(rows, {}, 0, 8).full_rows() == 1
