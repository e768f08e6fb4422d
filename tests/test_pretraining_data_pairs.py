"""Segment pairs against what they promise, on random documents."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.masking import Masked
from albert_tf.pretraining_data import pairs as pairs_module
from albert_tf.pretraining_data import wire
from albert_tf.pretraining_data.documents import Documents, concatenate
from albert_tf.pretraining_data.instances import Instances, lay_out
from albert_tf.pretraining_data.pairs import (
    PairsConfig,
    make_pairs,
)

V, STOP = 1000, 7


@dataclasses.dataclass(frozen=True)
class Pieces:
    """What a tokenizer says: even ids begin words."""

    pad_id: int = 0
    cls_id: int = 2
    sep_id: int = 3
    word_starts: np.ndarray = dataclasses.field(
        default_factory=lambda: np.arange(V) % 2 == 0
    )


STARTS = Pieces().word_starts
STOPS = np.arange(V) == STOP


def of_ids(ids, sentences, parts, hashes):
    """Return documents whose words begin at even ids."""
    return Documents(ids, STARTS[ids], sentences, parts, hashes, hashes)


def documents(rng, sizes, count=200):
    """Make `count` documents of sentences, each of two words or more."""
    parts = rng.integers(1, 12, count).astype(np.int32)
    sentences = rng.choice(sizes, parts.sum()).astype(np.int32)
    ids = rng.integers(10, V, sentences.sum()).astype(np.uint16)
    ids[np.cumsum(sentences) - sentences + 1] = 100  # begins a word
    return of_ids(ids, sentences, parts, np.arange(count, dtype=np.uint64))


def make(rng, sizes=(3, 9, 14, 30), count=200, **settings):
    """Return documents, config, pairs and counts."""
    docs = documents(rng, sizes, count)
    config = PairsConfig(**({"max_seq_length": 64} | settings))
    made, counts = make_pairs(docs, STOPS, config, rng)
    return docs, config, made, counts


def chunks(made):
    """Return the range of tokens of every pair: start, middle, end."""
    start = np.where(made.swapped, made.b_start, made.a_start)
    end = np.where(made.swapped, made.a_end, made.b_end)
    first = np.where(made.swapped, made.b_end, made.a_end)
    second = np.where(made.swapped, made.a_start, made.b_start)
    np.testing.assert_array_equal(first, second)
    return start, first, end


def test_segments_are_adjacent_and_nothing_is_lost():
    """A and B are neighbours, and the pairs tile the text of each document."""
    docs, config, made, counts = make(np.random.default_rng(1))
    start, middle, end = chunks(made)
    assert (start < middle).all() and (middle < end).all()
    assert (end - start <= config.max_seq_length - 3).all()
    order = np.argsort(start)
    assert start[order][0] == 0 and end[order][-1] == len(docs.ids)
    np.testing.assert_array_equal(start[order][1:], end[order][:-1])
    ends = np.cumsum(docs.sentences)
    document_ends = ends[np.cumsum(docs.parts) - 1]
    assert np.isin(document_ends, end).all()
    assert counts["dropped_chunks"] == 0


def test_segments_are_whole_sentences():
    """Chunks of several sentences are cut at sentence ends only."""
    docs, _, made, counts = make(np.random.default_rng(2))
    start, middle, end = chunks(made)
    bounds = np.concatenate([[0], np.cumsum(docs.sentences)])
    assert np.isin(start, bounds).all() and np.isin(end, bounds).all()
    inside = ~np.isin(middle, bounds)
    assert inside.sum() == counts["one_segment_chunks"] > 0


def test_labels_are_fair_for_every_kind_of_chunk():
    """Half of the pairs are swapped, of one sentence or of several."""
    docs, _, made, _ = make(np.random.default_rng(3), count=6000)
    _, middle, _ = chunks(made)
    single = ~np.isin(middle, np.cumsum(docs.sentences))
    for group in (single, ~single):
        share = made.swapped[group].mean()
        assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(group.sum())


def test_cut_falls_evenly_on_sentence_boundaries():
    """Among the boundaries inside a chunk every one is as likely."""
    docs, _, made, _ = make(
        np.random.default_rng(4), sizes=(10,), count=4000, short_seq_prob=0.0
    )
    start, middle, end = chunks(made)
    full = end - start == 60
    place = (middle - start)[full] // 10
    counts = np.bincount(place, minlength=6)[1:]
    assert counts.sum() > 1000
    assert abs(counts / counts.sum() - 0.2).max() < 0.04


def test_short_targets_are_drawn_per_chunk():
    """With probability p a chunk stops at a uniform target length."""
    rng = np.random.default_rng(5)
    docs = of_ids(
        rng.integers(10, V, 400000).astype(np.uint16),
        np.ones(400000, np.int32),
        np.array([400000], np.int32),
        np.zeros(1, np.uint64),
    )
    config = PairsConfig(max_seq_length=64, short_seq_prob=0.3)
    made, _ = make_pairs(docs, STOPS, config, rng)
    start, _, end = chunks(made)
    lengths = (end - start)[end < len(docs.ids)]
    short = lengths[lengths < 61]
    share = 0.3 * 59 / 60  # targets of 2..61, the last of them full
    assert abs(len(short) / len(lengths) - share) < 0.02
    assert short.min() == 2 and abs(short.mean() - 31) < 1
    # Another chunk of the same document is short as often after a short one.
    order = np.argsort(start)
    is_short = (end - start)[order] < 61
    assert abs(is_short[1:][is_short[:-1]].mean() - share) < 0.03


def test_single_segments_are_cut_at_a_sentence_end_first():
    """Inside one sentence the cut falls after a full stop, else at a word."""
    rng = np.random.default_rng(6)
    docs = documents(rng, (40,))
    docs.ids[20::40], docs.ids[21::40] = STOP, 100
    plain = np.arange(0, len(docs.sentences), 2) * 40 + 20
    docs.ids[plain] = 11
    docs.starts[:] = STARTS[docs.ids]
    made, counts = make_pairs(docs, STOPS, PairsConfig(max_seq_length=64), rng)
    start, middle, end = chunks(made)
    assert counts["one_segment_chunks"] == len(made) == len(docs.sentences)
    assert docs.starts[middle].all()
    place = middle - start
    stopped = docs.ids[start + 20] == STOP
    assert (place[stopped] == 21).all() and stopped.sum() > 100
    others = place[~stopped]
    assert others.min() >= 10 and others.max() <= 30
    assert len(np.unique(others)) > 15


def test_drop_policy():
    """`drop` leaves out exactly the chunks of one sentence."""
    docs, _, made, counts = make(
        np.random.default_rng(7), single_segment_policy="drop"
    )
    _, middle, _ = chunks(made)
    assert np.isin(middle, np.cumsum(docs.sentences)).all()
    assert counts["dropped_chunks"] == counts["one_segment_chunks"] > 0


def test_google_policy():
    """`google` pairs one sentence with random text, labelled swapped."""
    docs, config, made, counts = make(
        np.random.default_rng(8),
        sizes=(3, 9, 30, 60),
        single_segment_policy="google",
    )
    odd = (made.a_end != made.b_start) & (made.b_end != made.a_start)
    assert odd.sum() > 0.9 * counts["one_segment_chunks"] > 0
    assert made.swapped[odd].all()
    size = made.a_end - made.a_start + made.b_end - made.b_start
    assert (size <= config.room).all()
    assert (made.a_end > made.a_start).all()
    assert (made.b_end > made.b_start).all()


@pytest.mark.parametrize("stops", [True, False])
def test_long_sentences_are_cut_not_lost(stops):
    """A sentence over the length is used whole, in pieces cut at words."""
    rng = np.random.default_rng(9)
    docs = documents(rng, (5, 200, 700), count=50)
    if stops:
        docs.ids[::25], docs.ids[1::25] = STOP, 100
        docs.starts[:] = STARTS[docs.ids]
    config = PairsConfig(max_seq_length=64)
    made, counts = make_pairs(docs, STOPS, config, rng)
    start, middle, end = chunks(made)
    order = np.argsort(start)
    np.testing.assert_array_equal(start[order][1:], end[order][:-1])
    assert end.max() == len(docs.ids)
    bounds = np.concatenate([[0], np.cumsum(docs.sentences)])
    cut = start[~np.isin(start, bounds)]
    assert len(cut) > 100 and docs.starts[cut].all()
    if stops:
        assert np.mean(docs.ids[cut - 1] == STOP) > 0.9


def long_sentence(stops=(), word_every=1):
    """Return where pieces of a sentence of 200 tokens begin."""
    ids = np.full(200, 11, np.uint16)
    ids[::word_every] = 10
    ids[list(stops)] = STOP
    offsets = np.array([0, 200])
    none = np.zeros(1, np.uint64)
    docs = of_ids(ids, np.array([200]), np.array([1]), none)
    return pairs_module.cut_long(offsets, docs, STOPS, 60).tolist()


def test_long_sentence_by_hand():
    """A piece ends at a late full stop, else at a word, else where it must."""
    assert long_sentence(stops=(10, 40, 50)) == [51, 111, 171]
    assert long_sentence(stops=(10,)) == [60, 120, 180]
    assert long_sentence(word_every=50) == [50, 100, 150]
    assert long_sentence(word_every=200) == [60, 120, 180]


def test_one_word_is_dropped():
    """A chunk without a place to cut is counted, not made up."""
    docs = of_ids(
        np.array([10, 11, 13], np.uint16),
        np.array([3], np.int32),
        np.array([1], np.int32),
        np.zeros(1, np.uint64),
    )
    made, counts = make_pairs(
        docs, STOPS, PairsConfig(), np.random.default_rng(0)
    )
    assert len(made) == 0 and counts["dropped_chunks"] == 1


def test_lay_out_equals_lists():
    """[CLS] A [SEP] B [SEP] is what joining lists by hand gives."""
    docs, config, made, _ = make(np.random.default_rng(10))
    pieces, tokens = Pieces(), config.max_seq_length
    got = lay_out(made, docs, tokens, pieces)
    for row in range(len(made)):
        a = docs.ids[made.a_start[row] : made.a_end[row]].tolist()
        b = docs.ids[made.b_start[row] : made.b_end[row]].tolist()
        ids = [2, *a, 3, *b, 3]
        pad = [0] * (tokens - len(ids))
        starts = [1, *(x % 2 == 0 for x in a), 1, *(x % 2 == 0 for x in b), 1]
        inside = [0] + [1] * len(a) + [0] + [1] * len(b) + [0]
        segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert got.lengths[row] == len(ids)
        assert got.input_ids[row].tolist() == ids + pad
        assert got.segment_ids[row].tolist() == segments + pad
        assert got.starts[row].tolist() == starts + pad
        assert got.maskable[row].tolist() == inside + pad
    np.testing.assert_array_equal(got.swapped, made.swapped)


def test_wire_equals_protobuf():
    """Encoded records are parsed by protobuf to the values that went in."""
    rng = np.random.default_rng(11)
    batch, tokens, slots = 20, 300, 40
    big = rng.integers(0, 250000, (batch, tokens)).astype(np.int32)
    big[rng.random(big.shape) < 0.5] %= 129
    lengths = rng.integers(5, tokens, batch)
    flags = rng.random((3, batch, tokens)) < 0.5
    instances = Instances(big, *flags, lengths, rng.random(batch) < 0.5)
    positions = np.sort(rng.integers(0, tokens, (batch, slots)), axis=1)
    weights = rng.random((batch, slots)).astype(np.float32)
    masked = Masked(big, positions, big[:, :slots], weights, *[None] * 4)
    for row, data in enumerate(wire.encode(instances, masked)):
        parsed = tf.train.Example.FromString(data).features.feature
        values = {
            name: list(f.int64_list.value or f.float_list.value)
            for name, f in parsed.items()
        }
        assert values == {
            "input_ids": big[row].tolist(),
            "input_mask": (np.arange(tokens) < lengths[row]).tolist(),
            "segment_ids": flags[0, row].tolist(),
            "token_boundary": flags[2, row].tolist(),
            "masked_lm_positions": positions[row].tolist(),
            "masked_lm_ids": big[row, :slots].tolist(),
            "masked_lm_weights": weights[row].tolist(),
            "next_sentence_labels": [int(instances.swapped[row])],
        }


def test_select_and_concatenate():
    """Parts taken apart and put together again are the same documents."""
    docs = documents(np.random.default_rng(12), (1, 5), count=30)
    wanted = np.arange(30) < 13
    joined = concatenate([docs.select(wanted), docs.select(~wanted)])
    for field in dataclasses.fields(Documents):
        np.testing.assert_array_equal(
            getattr(joined, field.name), getattr(docs, field.name)
        )


def test_batches_of_single_segments(monkeypatch):
    """One-sentence chunks are all cut, also over several batches."""
    monkeypatch.setattr(pairs_module, "BATCH", 7)
    _, _, made, counts = make(np.random.default_rng(13), sizes=(40,))
    assert len(made) == counts["one_segment_chunks"] > 100
    chunks(made)
