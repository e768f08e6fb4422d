"""Properties of next-sentence pairs made from random documents."""

import numpy as np
import pytest
from tiny_corpus import make_records

from albert_tf.data.builder import next_sentence_pairs, pairs
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.shards import Documents

NONE = np.zeros(0, np.int64)
CONFIG = PairsConfig(max_seq_length=64, random_next_sentence=True)
ROOM = CONFIG.room


def documents(rng, count):
    """Return `count` random documents; a token's id is its position."""
    parts = rng.integers(1, 30, count).astype(np.int32)
    sizes = rng.choice([2, 3, 9, 14, 30], parts.sum()).astype(np.int32)
    ids = np.arange(sizes.sum(), dtype=np.int32)
    hashes = rng.permutation(count).astype(np.uint64)
    return Documents(ids, ids >= 0, sizes, parts, hashes, hashes)


def make(rng, count=2000):
    """Return documents, pairs, counts, and how each B relates to its A.

    The relation is bool [n, 2]: whether B is an excerpt of A, and whether B
    follows A.
    """
    docs = documents(rng, count)
    made, counts = next_sentence_pairs.make_pairs(docs, NONE, CONFIG, rng)
    inside = (made.b_start >= made.a_start) & (made.b_end <= made.a_end)
    follows = made.b_start == made.a_end
    return docs, made, counts, np.stack([inside, follows], axis=1)


def test_labels_are_a_coins_and_say_whether_b_belongs():
    """The label is 0 if and only if B is an excerpt of A or follows A.

    Half of the labels are 1.
    """
    _, made, counts, belongs = make(np.random.default_rng(1))
    np.testing.assert_array_equal(~made.swapped, belongs.any(axis=1))
    assert abs(made.swapped.mean() - 0.5) < 2 / np.sqrt(len(made))
    assert counts["random_documents"] == made.swapped.sum()
    assert counts["repeated_segments"] == belongs[:, 0].sum()
    possible = ROOM - (made.a_end - made.a_start) >= 4
    share = belongs[possible & ~made.swapped, 0].mean()
    assert 0.33 < share < 0.42  # an A of 3 tokens has no piece of 4
    assert (made.b_end - made.b_start)[belongs[:, 0]].min() == 4


def test_strange_segments_are_of_other_documents():
    """With label 1, A and B come from different documents."""
    docs, made, _, _ = make(np.random.default_rng(2))
    ends = docs.offsets()[np.cumsum(docs.parts)]
    a, b = (
        np.searchsorted(ends, start, side="right")
        for start in (made.a_start, made.b_start)
    )
    np.testing.assert_array_equal(a != b, made.swapped)
    last = np.searchsorted(ends, made.b_end, side="left")
    np.testing.assert_array_equal(b, last)


def test_neither_lengths_nor_ends_tell_the_label():
    """The label depends neither on the lengths nor on the ends of A and B."""
    docs, made, _, _ = make(np.random.default_rng(3), 6000)
    a, b = made.a_end - made.a_start, made.b_end - made.b_start
    assert (a + b <= ROOM).all() and a.min() > 0 and b.min() > 0
    ends = np.isin(made.b_end, docs.offsets())
    begins = np.isin(made.b_start, docs.offsets())
    for what in (a > b, a == b, b > 20, ends, begins, a + b == ROOM):
        shares = [what[made.swapped == label].mean() for label in (0, 1)]
        assert 0.01 < min(shares) < 0.99
        noise = np.sqrt(what.var() / len(made))
        assert abs(shares[1] - shares[0]) < 4 * 2 * noise


def test_pairs_are_used_once_and_in_random_order():
    """No two pairs share text in A, and the order of pairs is random.

    Pairs that need a different B but find none are counted as dropped chunks.
    """
    _, made, counts, _ = make(np.random.default_rng(4))
    order = np.argsort(made.a_start)
    assert (made.a_start[order][1:] >= made.a_end[order][:-1]).all()
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.1
    assert counts["dropped_chunks"] >= counts["one_segment_chunks"] > 0
    _, made, counts, _ = make(np.random.default_rng(4), 50)
    rng = np.random.default_rng(4)
    before, lost = pairs.make_pairs(documents(rng, 50), NONE, CONFIG, rng)
    dropped = counts["dropped_chunks"] - lost["dropped_chunks"]
    assert dropped == len(before) - len(made) > 0
    # Excerpts are shorter than the segments that they replace.
    tokens = counts["dropped_tokens"] - lost["dropped_tokens"]
    assert 0 < tokens <= before.tokens() - made.tokens()


@pytest.mark.parametrize("most", [1, 3, 5])
def test_partners_are_of_the_kind_and_of_another_document(most):
    """An item's partner is of the same kind, but from another document.

    Such partners exist because no document has more than half of the items of
    a kind. The last document of each kind is also the first of the next kind.
    """
    rng = np.random.default_rng(most)
    kinds = np.repeat(np.arange(40), 10)
    owners = rng.permuted(
        np.repeat([0, *range(1, 11 - most)], [most] + [1] * (10 - most))
        + (10 - most) * np.arange(40)[:, np.newaxis],
        axis=1,
    ).ravel()
    mixed = rng.permutation(len(kinds))
    kinds, owners = kinds[mixed], owners[mixed]
    other = next_sentence_pairs.partners(kinds, owners)
    np.testing.assert_array_equal(kinds[other], kinds)
    assert (owners[other] != owners).all()
    assert len(np.unique(other)) == len(other)


def test_partners_of_one_document_differ_and_a_lone_item_has_none():
    """No item is its own partner, except the only item of a kind.

    One document has three of the five items of kind 2, and kind 8 has a single
    item.
    """
    kinds = np.array([2, 2, 8, 2, 2, 2])
    other = next_sentence_pairs.partners(kinds, np.array([6, 6, 6, 6, 7, 9]))
    assert other[2] == 2
    assert (np.delete(other - np.arange(6), 2) != 0).all()
    assert sorted(other) == [0, 1, 2, 3, 4, 5]


def test_no_text_gives_no_pairs():
    """Documents of a single line yield no pairs."""
    sizes, ones = np.full(3, 7, np.int32), np.ones(3, np.int32)
    hashes = np.arange(3, dtype=np.uint64)
    docs = Documents(
        np.arange(21), np.arange(21) > 0, sizes, ones, hashes, hashes
    )
    made, counts = next_sentence_pairs.make_pairs(
        docs, NONE, CONFIG, np.random.default_rng(0)
    )
    assert len(made) == 0 and counts["dropped_chunks"] == 3


def test_build(corpus, tmp_path):
    """A build makes and counts next-sentence pairs, and truncates none."""
    changes = {"random_next_sentence": True}
    statistics = make_records(corpus, tmp_path / "out", **changes).statistics
    share = statistics["random_document_share"]
    assert share == statistics["swapped_share"] and abs(share - 0.5) < 0.1
    assert 0.05 < statistics["repeated_segment_share"] < 0.3
    assert statistics["truncated_tokens"] == 0
