"""Batches depend only on a seed and a position."""

import numpy as np
import pytest

from albert_tf.tasks.batches import (
    batcher,
    bucketed_order,
    evaluation_batches,
    example_lengths,
    length_step,
    training_batches,
    training_order,
)
from albert_tf.tasks.features import Features

NUMBER, LENGTH = 300, 60
GROUPS = pytest.mark.parametrize("group", [0, 10])  # 10 means buckets by length


@pytest.fixture(scope="module")
def features():
    """Return features of 300 rows of 3 to 60 tokens, with a tag per token."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(3, LENGTH + 1, NUMBER)
    tokens = rng.integers(5, 40, lengths.sum(), dtype=np.int32)
    return Features(
        tokens=tokens,
        row_splits=np.concatenate([[0], np.cumsum(lengths)]),
        second_starts=(lengths // 2).astype(np.int32),
        arrays={"labels": np.arange(NUMBER, dtype=np.int32)},
        pad_id=0,
        max_seq_length=LENGTH,
        token_arrays={"tags": tokens * 2},
        fills={"tags": -3},
    )


def train(features, number, group=0, start=0, batch_size=10, seed=3, **more):
    """Return `number` training batches, beginning at the position `start`."""
    dataset = training_batches(
        features,
        batch_size=batch_size,
        seed=seed,
        start=start,
        group=group,
        **more,
    )
    return list(dataset.take(number).as_numpy_iterator())


def labels(batches):
    return [batch["labels"].tolist() for batch in batches]


def test_static_shapes(features):
    """All batches have the same shape, as TPUs require."""
    for dataset in (
        training_batches(features, batch_size=4, seed=0),
        evaluation_batches(features, 4),
    ):
        shapes = {k: s.shape for k, s in dataset.element_spec.items()}
        assert shapes["input_ids"] == shapes["tags"] == (4, LENGTH)
        assert shapes["labels"] == (4,)
        assert all(shape.is_fully_defined() for shape in shapes.values())


@GROUPS
def test_an_epoch_has_every_example_once(features, group):
    """Each epoch has all examples in a new order, set by the seed."""
    batches = labels(train(features, 60, group))
    first, second = (np.concatenate(x) for x in (batches[:30], batches[30:]))
    everything = list(range(NUMBER))
    assert sorted(first) == sorted(second) == everything
    assert first.tolist() != second.tolist() and first.tolist() != everything
    assert labels(train(features, 3, group)) == batches[:3]
    if not group:  # by default
        plain = training_batches(features, batch_size=10, seed=3).take(3)
        assert labels(plain.as_numpy_iterator()) == batches[:3]
    assert labels(train(features, 3, group, seed=4)) != batches[:3]


@pytest.mark.slow_after(2)
@GROUPS
@pytest.mark.parametrize("start", [310, 290, 10, 300, 640])
def test_training_can_start_anywhere(features, start, group):
    """A stream from a position equals the rest of a stream from position 0."""
    first = start // 10
    whole = labels(train(features, first + 3, group))
    assert labels(train(features, 3, group, start)) == whole[first:]


def test_unsorted_batches_may_start_within_a_batch(features):
    """Without buckets, training can start at a position within a batch."""
    whole = np.concatenate(labels(train(features, 33)))
    tail = np.concatenate(labels(train(features, 2, start=307)))
    assert whole[307:327].tolist() == tail.tolist()


@GROUPS
def test_shards_deal_out_the_same_examples(features, group):
    """Two hosts, each with half a batch, together get a single host's batch.

    The hosts receive examples in turn, so both get examples of all lengths.
    """
    whole = labels(train(features, 8, group))
    halves = [
        train(features, 8, group, batch_size=5, num_shards=2, shard=shard)
        for shard in (0, 1)
    ]
    for step, one, two in zip(whole, *map(labels, halves), strict=True):
        assert (one, two) == (step[::2], step[1::2])


def rows_of(batches):
    """Return {label: [ids, segments, tags]} for all rows, without padding."""
    rows = {}
    for batch in batches:
        for i in np.flatnonzero(batch["example_weights"]):
            real = batch["input_mask"][i] > 0
            assert not batch["input_ids"][i][~real].any()
            assert np.all(batch["tags"][i][~real] == -3)
            names = ("input_ids", "segment_ids", "tags")
            rows[int(batch["labels"][i])] = [
                batch[name][i][real].tolist() for name in names
            ]
    return rows


@pytest.mark.parametrize("bucketed", [False, True])
@pytest.mark.parametrize("size", [1, 7, 512])
def test_evaluation_has_every_example_once(features, size, bucketed):
    """Each example occurs once; rows that pad the last batch have weight 0."""
    dataset = evaluation_batches(features, size, bucketed)
    batches = list(dataset.as_numpy_iterator())
    weights, numbers, found = (
        np.concatenate([batch[name] for batch in batches])
        for name in ("example_weights", "example_numbers", "labels")
    )
    assert len(weights) % size == 0 and weights.sum() == NUMBER
    assert numbers[weights > 0].tolist() == found[weights > 0].tolist()
    assert set(numbers[weights == 0]) <= {-1}
    assert set(found[weights == 0]) <= {0}  # padding repeats the first example
    begin, end = features.row_splits[:-1], features.row_splits[1:]
    assert rows_of(batches) == {
        i: [
            features.tokens[a:b].tolist(),
            [int(position >= (b - a) // 2) for position in range(b - a)],
            (features.tokens[a:b] * 2).tolist(),
        ]
        for i, (a, b) in enumerate(zip(begin, end, strict=True))
    }


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("group", [10, 0])
def test_batches_are_as_long_as_their_longest_row(features, group):
    """Shorter batches equal full batches without their last columns.

    The omitted columns contain only padding.
    """
    padded, cut = (train(features, 9, group, step=step) for step in (0, 1))
    for whole, short in zip(padded, cut, strict=True):
        tokens = short["input_ids"].shape[1]
        assert tokens == whole["input_mask"].sum(axis=1).max()
        for name in ("input_ids", "input_mask", "segment_ids", "tags"):
            np.testing.assert_array_equal(whole[name][:, :tokens], short[name])
        np.testing.assert_array_equal(whole["labels"], short["labels"])


def test_rounded_lengths_are_few_and_fit(features):
    """The length of the longest row is rounded up to a multiple of the step.

    Rounding stops at `max_seq_length`, which need not be a multiple.
    """
    lengths = set()
    for batch in train(features, 30, 10, step=8):
        tokens = batch["input_ids"].shape[1]
        longest = int(batch["input_mask"].sum(axis=1).max())
        assert longest <= tokens < longest + 8
        lengths.add(tokens)
    assert lengths <= {*range(8, 60, 8), 60} and len(lengths) > 4
    steps = {n: length_step(n) for n in (5, 128, 129, 384, 512)}
    assert steps == {5: 8, 128: 8, 129: 16, 384: 24, 512: 32}
    longest = features.lengths.argmax()
    batch = batcher(features, step=8)(np.full(2, longest, np.int64))
    assert batch["input_ids"].shape == (2, LENGTH)


@pytest.mark.parametrize(("number", "pool"), [(200, 64), (50, 50)])
def test_pools_are_parts_of_the_stream(number, pool):
    """Bucketing reorders examples within pools of 64 batches or one epoch.

    The batches of each pool are shuffled differently.
    """
    lengths = np.arange(number)[::-1]
    plain = training_order(number, 3, 0).take(2 * pool)
    plain, found = (
        np.array([*order.as_numpy_iterator()]).reshape(2, pool)
        for order in (plain, bucketed_order(lengths, 1, 3, 0).take(2 * pool))
    )
    np.testing.assert_array_equal(np.sort(plain), np.sort(found))
    assert np.any(plain != found)
    ranks = found.argsort(axis=1).argsort(axis=1)  # of lengths in the pool
    assert np.any(ranks[0] != ranks[1])


def test_a_batch_may_be_larger_than_the_data():
    """If a batch is larger than the data set, a pool is a single batch."""
    lengths = np.array([3, 1, 2])
    plain, found = (
        [*order.take(10).as_numpy_iterator()]
        for order in (training_order(3, 3, 0), bucketed_order(lengths, 5, 3, 0))
    )
    for i in (0, 5):
        batch = found[i : i + 5]
        assert sorted(batch) == sorted(plain[i : i + 5])
        assert lengths[batch].tolist() == sorted(lengths[batch])


def test_bucketed_training_saves_padding(features):
    """Bucketing reduces padding without sorting the batches by length."""
    batches = train(features, 30, 10, step=1)
    tokens = [batch["input_ids"].size for batch in batches]
    real = sum(int(batch["input_mask"].sum()) for batch in batches)
    assert real / sum(tokens) > 0.95  # about 0.5 without buckets
    assert tokens != sorted(tokens) and tokens != sorted(tokens)[::-1]


def test_choices_are_bucketed_by_their_longest():
    """An example's rows share the bucket of its longest row."""
    lengths = [4, 9, 20, 3, 5, 6]
    rows = [(np.full(n, n, np.int32), n) for n in lengths]
    features = Features.from_rows(
        rows, {"labels": np.arange(3)}, 0, 24, rows_per_example=2
    )
    assert example_lengths(features).tolist() == [9, 20, 6]
    assert sorted(labels(train(features, 3, 1, batch_size=1))) == [
        [0],
        [1],
        [2],
    ]
    batches = evaluation_batches(features, 1, True).as_numpy_iterator()
    assert [
        (b["labels"].tolist(), b["input_ids"].shape, b["input_ids"][0, :, 0])
        for b in batches
    ] == [
        ([1], (1, 2, 20), pytest.approx([20, 3])),
        ([0], (1, 2, 9), pytest.approx([4, 9])),
        ([2], (1, 2, 6), pytest.approx([5, 6])),
    ]
