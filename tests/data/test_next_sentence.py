"""Pairs of the next-sentence task against what they promise."""

import dataclasses

import numpy as np

from albert_tf.data.builder.documents import Documents
from albert_tf.data.builder.next_sentence import make_pairs
from albert_tf.data.builder.pairs import PairsConfig

V, STOP = 1000, 7
CONFIG = PairsConfig(max_seq_length=64, random_next_sentence=True)


def documents(rng, sizes=(3, 9, 14, 30), count=3000):
    """Return documents of sentences of given sizes; every token a word."""
    parts = rng.integers(1, 12, count).astype(np.int32)
    sentences = rng.choice(sizes, parts.sum()).astype(np.int32)
    ids = rng.integers(10, V, sentences.sum()).astype(np.uint16)
    names = np.arange(count, dtype=np.uint64)
    return Documents(ids, ids > 0, sentences, parts, names, names)


def make(seed, sizes=(3, 9, 14, 30), stops=0.0, **changes):
    """Return documents, the bounds of lines, pairs and counts.

    Args:
      seed: of what is random.
      sizes: what lines may measure.
      stops: share of the tokens that are full stops.
      changes: of the settings.
    """
    rng = np.random.default_rng(seed)
    docs = documents(rng, sizes)
    config = dataclasses.replace(CONFIG, **changes)
    docs.ids[rng.random(len(docs.ids)) < stops] = STOP
    breaks = 1 + np.flatnonzero(docs.ids[:-1] == STOP)
    made, counts = make_pairs(docs, breaks, config, rng)
    bounds = np.concatenate([[0], np.cumsum(docs.sentences)])
    return docs, bounds, made, counts


def document_of(docs, places):
    """Return the document of each place of the text."""
    ends = np.cumsum(docs.sentences)[np.cumsum(docs.parts) - 1]
    return np.searchsorted(ends, places, side="right")


def test_labels_say_where_b_is_from():
    """Label 0: B follows A. Label 1: B is from another document."""
    docs, _, made, counts = make(1)
    true = ~made.swapped
    np.testing.assert_array_equal(made.a_end[true], made.b_start[true])
    other = document_of(docs, made.a_start) != document_of(docs, made.b_start)
    np.testing.assert_array_equal(other, made.swapped)
    share = made.swapped.mean()
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(len(made))
    assert counts["random_documents"] == made.swapped.sum()


def test_both_kinds_are_whole_sentences():
    """Where several sentences make a pair, no end gives the label away."""
    _, bounds, made, counts = make(2, stops=0.1)
    inside = ~np.isin(made.a_end, bounds)
    assert inside.sum() <= counts["one_segment_chunks"]
    for edge in (made.a_start, made.a_end, made.b_start):
        assert np.isin(edge[~inside], bounds).all()
    # Where A leaves hardly a token's room, B is cut.
    assert np.isin(made.b_end[~inside], bounds).mean() > 0.99


def test_single_sentences_look_alike_for_both_labels():
    """Halves of lines are paired with halves, whichever the label."""
    docs, bounds, made, counts = make(3, sizes=(40,), stops=0.1)
    assert len(made) > 0.9 * counts["one_segment_chunks"]
    assert not np.isin(made.a_end, bounds).any()
    assert not np.isin(made.b_start, bounds).any()
    assert np.isin(made.a_start, bounds).all()
    assert np.isin(made.b_end, bounds).mean() > 0.98
    other = document_of(docs, made.a_start) != document_of(docs, made.b_start)
    np.testing.assert_array_equal(other, made.swapped)


def test_lengths_do_not_give_the_label_away():
    """Pairs of both labels are as long, within a few tokens."""
    _, _, made, _ = make(4, sizes=(3, 5, 7))
    size = made.a_end - made.a_start + made.b_end - made.b_start
    assert size.max() <= CONFIG.room
    true, false = size[~made.swapped], size[made.swapped]
    assert abs(np.median(true) - np.median(false)) <= 3
    assert abs(true.mean() - false.mean()) < 5


def test_sentences_that_were_not_used_begin_the_next_chunk():
    """What B took the place of comes again: every sentence is in some A or B.

    Leaving out what random documents added, nothing is lost.
    """
    docs, bounds, made, counts = make(5, stops=1.0)
    true = ~made.swapped
    covered = np.zeros(len(docs.ids) + 1, np.int64)
    for start, end in (
        (made.a_start, made.a_end),
        (made.b_start[true], made.b_end[true]),
    ):
        np.add.at(covered, start, 1)
        np.add.at(covered, end, -1)
    lost = np.cumsum(covered)[:-1] == 0
    halves = ~np.isin(made.a_end, bounds) & made.swapped
    tails = made.a_end[halves]
    ends = bounds[np.searchsorted(bounds, tails)]
    assert lost.sum() == np.sum(ends - tails) == counts["truncated_tokens"]
    assert np.cumsum(covered).max() == 1


def test_drop_policy():
    """`drop` leaves out exactly the chunks of one line."""
    docs, bounds, made, counts = make(
        6, (3, 30, 40), 0.1, single_segment_policy="drop"
    )
    assert counts["dropped_chunks"] == counts["one_segment_chunks"] > 0
    for edge in (made.a_start, made.a_end, made.b_start):
        assert np.isin(edge, bounds).all()
    other = document_of(docs, made.a_start) != document_of(docs, made.b_start)
    np.testing.assert_array_equal(other, made.swapped)
