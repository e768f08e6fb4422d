"""Properties of segment pairs made from random documents."""

import numpy as np
import pytest

from albert_tf.data.builder.pairs import (
    PairsConfig,
    make_pairs,
    sentences,
)
from albert_tf.data.builder.shards import Documents

V, STOP = 1000, 7


NONE = np.zeros(0, np.int64)


def of_ids(ids, sentences, parts):
    """Return documents whose words begin at even ids."""
    ids, names = np.asarray(ids), np.arange(len(parts), dtype=np.uint64)
    sizes, counts = np.asarray(sentences), np.asarray(parts)
    return Documents(ids, ids % 2 == 0, sizes, counts, names, names)


def breaks(docs):
    """Return the positions that follow full stops."""
    return 1 + np.flatnonzero(docs.ids[:-1] == STOP)


def documents(rng, sizes, count=200):
    """Return `count` documents of lines without a full stop."""
    parts = rng.integers(1, 12, count).astype(np.int32)
    sentences = rng.choice(sizes, parts.sum()).astype(np.int32)
    ids = rng.integers(10, V, sentences.sum()).astype(np.uint16)
    return of_ids(ids, sentences, parts)


def make(rng, sizes=(3, 9, 14, 30), count=200, **settings):
    """Return documents, config, pairs and counts."""
    docs = documents(rng, sizes, count)
    config = PairsConfig(**({"max_seq_length": 64} | settings))
    made, counts = make_pairs(docs, breaks(docs), config, rng)
    return docs, config, made, counts


def chunks(made):
    """Return each pair's token range: its start, middle and end."""
    start = np.where(made.swapped, made.b_start, made.a_start)
    end = np.where(made.swapped, made.a_end, made.b_end)
    first = np.where(made.swapped, made.b_end, made.a_end)
    second = np.where(made.swapped, made.a_start, made.b_start)
    np.testing.assert_array_equal(first, second)
    return start, first, end


def test_labels_are_fair_for_every_kind_of_chunk():
    """Half of the pairs are swapped, for chunks of one line or of several."""
    rng = np.random.default_rng(3)
    docs = documents(rng, (3, 9, 14, 30), count=6000)
    docs.ids[rng.random(len(docs.ids)) < 0.1] = STOP
    config = PairsConfig(max_seq_length=64)
    made, _ = make_pairs(docs, breaks(docs), config, rng)
    _, middle, _ = chunks(made)
    single = ~np.isin(middle, np.cumsum(docs.sentences))
    for group in (single, ~single):
        share = made.swapped[group].mean()
        assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(group.sum())


@pytest.mark.parametrize("policy", ["split", "drop"])
@pytest.mark.parametrize("length", [32, 64, 128])
def test_neither_ends_nor_lengths_tell_the_order(policy, length):
    """In half of the pairs, the longer segment comes first in the text.

    Every segment ends with a full stop. The lines of the text have very
    different lengths, and many are longer than a pair. All lines end with a
    full stop, and half of them contain another one.
    """
    rng = np.random.default_rng(14)
    parts = rng.integers(1, 40, 3000).astype(np.int32)
    sizes = 3 + rng.lognormal(3, 0.7, parts.sum()).astype(np.int32)
    ids = rng.integers(10, V, sizes.sum()).astype(np.uint16)
    ends = np.cumsum(sizes)
    ids[ends - 1] = STOP
    inside = ends - 1 - (rng.random(len(ends)) * sizes).astype(int)
    ids[inside[::2]] = STOP
    docs = of_ids(ids, sizes, parts)
    config = PairsConfig(max_seq_length=length, single_segment_policy=policy)
    made, _ = make_pairs(docs, breaks(docs), config, rng)
    assert len(made) > 4000
    a, b = made.a_end - made.a_start, made.b_end - made.b_start
    longer_first = ((a > b) != made.swapped)[a != b]
    assert abs(longer_first.mean() - 0.5) < 2 / np.sqrt(len(longer_first))
    for end in (made.a_end, made.b_end):
        assert (docs.ids[end - 1] == STOP).all()


@pytest.mark.parametrize("policy", ["split", "drop", "keep"])
def test_pairs_are_in_random_order(policy):
    """The order of pairs does not depend on their positions in the text.

    It does not depend on their labels either, or on whether they have a B.
    """
    rng = np.random.default_rng(16)
    sizes = (3, 9, 14, 80)
    _, _, made, _ = make(rng, sizes, 2000, single_segment_policy=policy)
    start, _, _ = chunks(made)
    alone = ~made.paired()
    for values in (start, made.swapped, *([alone] if alone.any() else [])):
        correlation = np.corrcoef(values, np.arange(len(made)))[0, 1]
        assert abs(correlation) < 4 / np.sqrt(len(made))
    assert len(made) > 1000 and alone.any() == (policy == "keep")


def test_cut_falls_evenly_on_sentence_boundaries():
    """A chunk is equally likely to be split at any boundary inside it."""
    docs, _, made, _ = make(
        np.random.default_rng(4), sizes=(10,), count=4000, short_seq_prob=0.0
    )
    start, middle, end = chunks(made)
    full = end - start == 60
    boundary = (middle - start)[full] // 10
    counts = np.bincount(boundary, minlength=6)[1:]
    assert counts.sum() > 1000
    assert abs(counts / counts.sum() - 0.2).max() < 0.04


def test_short_targets_are_drawn_per_chunk():
    """With probability `short_seq_prob`, a target length is drawn uniformly."""
    rng = np.random.default_rng(5)
    ids = rng.integers(10, V, 400000).astype(np.uint16)
    docs = of_ids(ids, np.ones(400000, np.int32), [400000])
    config = PairsConfig(max_seq_length=64, short_seq_prob=0.3)
    made, _ = make_pairs(docs, NONE, config, rng)
    start, _, end = chunks(made)
    lengths = (end - start)[(start > 0) & (end < len(docs.ids))]
    short = lengths[lengths < 61]
    share = 0.3 * 59 / 60  # targets of 2 to 61 tokens, where 61 is the maximum
    assert abs(len(short) / len(lengths) - share) < 0.02
    assert short.min() == 2 and abs(short.mean() - 31) < 1
    # A document's short chunks are independent of each other.
    order = np.argsort(start)
    is_short = (end - start)[order] < 61
    assert abs(is_short[1:][is_short[:-1]].mean() - share) < 0.03


def test_lone_lines_are_cut_where_a_sentence_ends():
    """The only line of a chunk is split after a full stop, or is omitted."""
    rng = np.random.default_rng(6)
    docs = documents(rng, (40,))
    docs.ids[20::40] = STOP
    plain = np.arange(0, len(docs.sentences), 2) * 40 + 20
    docs.ids[plain] = 11
    config = PairsConfig(max_seq_length=64)
    made, counts = make_pairs(docs, breaks(docs), config, rng)
    start, middle, _ = chunks(made)
    lines = len(docs.sentences)
    assert counts["one_segment_chunks"] == lines
    assert len(made) == lines - counts["dropped_chunks"] == lines // 2
    assert (middle - start == 21).all()


def test_every_sentence_end_of_a_lone_line_is_as_likely():
    """A line of four sentences is split equally often at its three breaks."""
    docs = of_ids(
        np.tile([10, 11, STOP, 12, STOP, 13, 14, STOP, 15, STOP], 3000),
        np.full(3000, 10),
        np.ones(3000, int),
    )
    rng = np.random.default_rng(15)
    made, _ = make_pairs(docs, breaks(docs), PairsConfig(), rng)
    start, middle, _ = chunks(made)
    counts = np.bincount(middle - start, minlength=10)
    assert counts.sum() == counts[[3, 5, 8]].sum() == 3000
    assert abs(counts[[3, 5, 8]] - 1000).max() < 4 * np.sqrt(3000 * 2 / 9)


def test_long_lines_by_hand():
    """Only lines that are too long for a pair are split, at all breaks."""
    docs = of_ids(np.zeros(300, np.uint16), [50, 200, 50], [2, 1])
    where = np.array([20, 50, 60, 130, 249, 270])
    offsets, part_ends = sentences(docs, where, 61)
    assert offsets.tolist() == [0, 50, 60, 130, 249, 250, 300]
    assert part_ends.tolist() == [5, 5, 5, 5, 5, 6]
