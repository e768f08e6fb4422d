"""Batches that follow from seed and position alone, bucketed or not."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tiny_tasks

from albert_tf.tasks.batches import (
    batcher,
    evaluation_batches,
    example_lengths,
    length_step,
    training_batches,
)
from albert_tf.tasks.features import Features, packed_row

LENGTH = 12
EXAMPLES = 23


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny_tasks.make_tokenizer(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def features(tokenizer):
    rng = np.random.default_rng(0)
    texts = [rng.integers(5, 40, n) for n in rng.integers(1, 11, EXAMPLES)]
    rows = [packed_row(tokenizer, text, [], LENGTH) for text in texts]
    arrays = {"labels": np.arange(EXAMPLES, dtype=np.int32)}
    return Features.from_rows(rows, arrays, tokenizer.pad_id, LENGTH)


def labels(dataset, batches):
    taken = dataset.take(batches).as_numpy_iterator()
    return [batch["labels"].tolist() for batch in taken]


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


@pytest.fixture(scope="module")
def long_features():
    """Return 300 rows of 3 to 64 tokens, with tags beside the tokens."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(3, 65, 300)
    tokens = rng.integers(5, 40, lengths.sum(), dtype=np.int32)
    return Features(
        tokens=tokens,
        row_splits=np.concatenate([[0], np.cumsum(lengths)]),
        second_starts=(lengths // 2).astype(np.int32),
        arrays={"labels": np.arange(300, dtype=np.int32)},
        pad_id=0,
        max_seq_length=64,
        token_arrays={"tags": tokens * 2},
        fills={"tags": -3},
    )


def rows_of(batches):
    """Return {label: its row without padding} of each name in batches."""
    found = {}
    for batch in batches:
        for i in np.flatnonzero(batch["example_weights"]):
            real = batch["input_mask"][i] > 0
            assert not batch["input_ids"][i][~real].any()
            assert np.all(batch["tags"][i][~real] == -3)
            names = ("input_ids", "segment_ids", "tags")
            found[int(batch["labels"][i])] = [
                batch[name][i][real].tolist() for name in names
            ]
    return found


@pytest.mark.parametrize("size", [7, 16, 64])
def test_bucketed_evaluation_has_the_same_rows(long_features, size):
    """Every example once, with the tokens that unsorted batches have."""
    plain = evaluation_batches(long_features, size).as_numpy_iterator()
    sorted_ = list(
        evaluation_batches(long_features, size, True).as_numpy_iterator()
    )
    assert rows_of(sorted_) == rows_of(plain)
    for batch in sorted_:
        np.testing.assert_array_equal(
            batch["example_numbers"][batch["example_weights"] > 0],
            batch["labels"][batch["example_weights"] > 0],
        )


def test_bucketed_lengths_are_few_and_fit(long_features):
    """A batch is as long as its longest row, rounded up to a multiple."""
    lengths = set()
    for batch in evaluation_batches(long_features, 16, True):
        tokens = batch["input_ids"].shape[1]
        longest = int(tf.reduce_max(tf.reduce_sum(batch["input_mask"], 1)))
        assert longest <= tokens < longest + 8
        lengths.add(tokens)
    assert lengths <= set(range(8, 65, 8)) and len(lengths) > 4
    steps = {n: length_step(n) for n in (5, 128, 129, 384, 512)}
    assert steps == {5: 8, 128: 8, 129: 16, 384: 24, 512: 32}


def test_bucketed_rows_never_exceed_the_maximum():
    """Rounding up stops at `max_seq_length`, which need not be a multiple."""
    rows = [(np.arange(1, 13, dtype=np.int32), 12)]
    features = Features.from_rows(rows, {}, 0, 12)
    assert example_lengths(features).tolist() == [12]
    batch = batcher(features, bucketed=True)(np.zeros(2, np.int64))
    assert batch["input_ids"].shape == (2, 12)


def bucketed(features, number, start=0, **more):
    dataset = training_batches(
        features, batch_size=10, seed=3, start=start, group=10, **more
    )
    return list(dataset.take(number).as_numpy_iterator())


def test_bucketed_training_sees_every_example_once_an_epoch(long_features):
    """30 batches of 10 hold 300 examples once; the next hold them again."""
    found = bucketed(long_features, 60)
    for epoch in (found[:30], found[30:]):
        counted = collections.Counter(
            label for batch in epoch for label in batch["labels"].tolist()
        )
        assert counted == dict.fromkeys(range(300), 1)
    first, second = ([b["labels"].tolist() for b in e[:3]] for e in
                     (found[:30], found[30:]))  # fmt: skip
    assert first != second


def test_bucketed_training_saves_padding(long_features):
    """Batches are nearly as short as their rows, and not in order of length."""
    batches = bucketed(long_features, 30)
    tokens = [batch["input_ids"].size for batch in batches]
    real = sum(int(batch["input_mask"].sum()) for batch in batches)
    assert real / sum(tokens) > 0.85  # unsorted: about 0.5
    assert tokens != sorted(tokens) and tokens != sorted(tokens)[::-1]


@pytest.mark.parametrize("start", [10, 290, 300, 310, 640])
def test_bucketed_training_can_begin_anywhere(long_features, start):
    """Batches from a position are those that a whole run has there."""
    whole = bucketed(long_features, 70)
    tail = bucketed(long_features, 3, start)
    for one, two in zip(whole[start // 10 :], tail, strict=False):
        assert one["labels"].tolist() == two["labels"].tolist()


def test_bucketed_shards_are_parts_of_one_step(long_features):
    """Two hosts with half a batch each see what one host sees."""
    whole = [set(b["labels"].tolist()) for b in bucketed(long_features, 8)]
    halves = [
        training_batches(
            long_features,
            batch_size=5,
            seed=3,
            num_shards=2,
            shard=shard,
            group=10,
        ).take(8)
        for shard in (0, 1)
    ]
    for step, (one, two) in enumerate(zip(*halves, strict=True)):
        found = {*one["labels"].numpy(), *two["labels"].numpy()}
        assert found == whole[step]


def test_choices_are_bucketed_by_their_longest(tokenizer):
    """Rows of one example stay together; the longest decides its length."""
    lengths = [4, 9, 20, 3, 5, 6]
    rows = [(np.full(n, n, np.int32), n) for n in lengths]
    features = Features.from_rows(
        rows, {"labels": np.arange(3)}, 0, 24, rows_per_example=2
    )
    assert example_lengths(features).tolist() == [16, 24, 8]
    batches = evaluation_batches(features, 1, True).as_numpy_iterator()
    assert [
        (b["labels"].tolist(), b["input_ids"].shape, b["input_ids"][0, :, 0])
        for b in batches
    ] == [
        ([1], (1, 2, 24), pytest.approx([20, 3])),
        ([0], (1, 2, 16), pytest.approx([4, 9])),
        ([2], (1, 2, 8), pytest.approx([5, 6])),
    ]
