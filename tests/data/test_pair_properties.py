"""Properties of segment pairs, and their layout, for any documents."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from albert_tf.data.builder import next_sentence_pairs
from albert_tf.data.builder.pairs import (
    SINGLE_SEGMENT_POLICIES,
    PairsConfig,
    make_pairs,
)
from albert_tf.data.builder.shards import Documents
from albert_tf.data.layout import Pairs, lay_out


class Pieces:
    """The special ids of a tokenizer."""

    pad_id, cls_id, sep_id = 0, 2, 3


@st.composite
def corpora(draw):
    """Return documents, offsets of sentence ends inside lines, and an rng."""
    line = st.integers(1, 20) | st.just(60)
    documents = draw(
        st.lists(st.lists(line, min_size=1, max_size=8), max_size=8)
    )
    sizes = np.array([n for lines in documents for n in lines], np.int32)
    parts = np.array([len(lines) for lines in documents], np.int32)
    total = int(sizes.sum())
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    names = np.arange(len(parts), dtype=np.uint64)
    starts = rng.random(total) < 0.6
    # Ids encode positions, so the tests notice lost or repeated tokens.
    ids = np.arange(10, 10 + total)
    breaks = np.flatnonzero(rng.random(total) < draw(st.sampled_from([0, 0.2])))
    breaks = breaks[breaks > 0]
    return Documents(ids, starts, sizes, parts, names, names), breaks, rng


@st.composite
def configs(draw, **fixed):
    """Return a strategy for settings of pairs."""
    values = {
        "max_seq_length": draw(st.integers(8, 70)),
        "short_seq_prob": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "single_segment_policy": draw(
            st.none() | st.sampled_from(SINGLE_SEGMENT_POLICIES)
        ),
    }
    return PairsConfig(**values | fixed)


def document_at(docs, token):
    """Return the index of each token's document."""
    lines = np.repeat(np.arange(len(docs.parts)), docs.parts)
    return np.repeat(lines, docs.sentences)[token]


@examples(40)
@given(corpus=corpora(), config=configs())
def test_pairs(corpus, config):
    """A pair is two adjacent runs of whole sentences of one document.

    A pair begins or ends inside a line only if the line does not fit. No token
    is in two pairs, and only chunks of one sentence are lost; with `keep`,
    none.
    """
    docs, breaks, rng = corpus
    made, counts = make_pairs(docs, breaks, config, rng)
    paired = made.paired()
    assert (made.a_end > made.a_start).all()
    assert paired.all() or config.single_segment_policy == "keep"
    assert (made.b_end >= made.b_start).all() and not made.swapped[
        ~paired
    ].any()
    first = np.where(made.swapped, made.b_start, made.a_start)
    last = np.where(
        made.swapped, made.a_end, np.maximum(made.a_end, made.b_end)
    )
    assert (last - first <= config.room).all()
    inner = np.where(made.swapped, made.b_end, made.a_end)
    assert (inner == np.where(made.swapped, made.a_start, made.b_start)).all()
    np.testing.assert_array_equal(
        document_at(docs, first), document_at(docs, last - 1)
    )
    lines = docs.offsets()
    legal = np.union1d(lines, breaks)
    if config.single_segment_policy == "drop":
        legal = lines
    for cuts in (first, inner, last):
        assert np.isin(cuts[paired], legal).all()
    outer = np.concatenate([first[paired], last[paired]])
    inside = outer[~np.isin(outer, lines)]
    line = np.searchsorted(lines, inside, side="right") - 1
    assert (np.diff(lines)[line] > config.room).all()
    used = np.concatenate(
        [np.arange(a, b) for a, b in zip(first, last, strict=True)] or [[]]
    )
    assert len(np.unique(used)) == len(used) == made.tokens()
    assert len(used) + counts["dropped_tokens"] == len(docs.ids)
    if config.single_segment_policy == "keep":
        assert len(used) == len(docs.ids) and not counts["dropped_chunks"]
    else:
        assert counts["dropped_chunks"] <= counts["one_segment_chunks"]
        complete = len(used) == len(docs.ids)
        assert complete == (not counts["dropped_chunks"])


@examples(25)
@given(corpus=corpora(), config=configs(random_next_sentence=True))
def test_next_sentence_pairs(corpus, config):
    """Each segment is from one document, not empty, and short enough.

    An inserted B is not the segment that follows this A.
    """
    docs, breaks, rng = corpus
    made, counts = next_sentence_pairs.make_pairs(docs, breaks, config, rng)
    paired = made.paired()
    sizes = made.a_end - made.a_start, made.b_end - made.b_start
    assert (sizes[0] > 0).all() and (sum(sizes) <= config.room).all()
    assert paired.all() or config.single_segment_policy == "keep"
    assert not made.swapped[~paired].any()
    for start, end in ((made.a_start, made.a_end), (made.b_start, made.b_end)):
        np.testing.assert_array_equal(
            document_at(docs, start[paired]), document_at(docs, end[paired] - 1)
        )
    follows = made.a_end == made.b_start
    assert not (follows & made.swapped & paired).any()
    assert counts["random_documents"] == made.swapped.sum()


SEGMENTS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 9), st.booleans()),
    min_size=1,
    max_size=6,
)


@examples(25)
@given(sizes=SEGMENTS, extra=st.integers(0, 4), seed=st.integers(0, 2**32))
def test_lay_out_equals_lists(sizes, extra, seed):
    """The layout [CLS] A [SEP] B [SEP] equals lists joined by hand."""
    rng = np.random.default_rng(seed)
    ids, starts = rng.integers(10, 999, 40), rng.random(40) < 0.5
    a_start, b_start = rng.integers(0, 30, [2, len(sizes)])
    a_size, b_size, swapped = map(np.array, zip(*sizes, strict=True))
    made = Pairs(a_start, a_start + a_size, b_start, b_start + b_size, swapped)
    tokens = int((a_size + b_size).max()) + 3 + extra
    got = lay_out(made, ids, starts, tokens, Pieces())
    for row in range(len(made)):
        a, b = (
            slice(first[row], end[row])
            for first, end in (
                (made.a_start, made.a_end),
                (made.b_start, made.b_end),
            )
        )
        second = [*ids[b], 3] if b_size[row] else []
        words = [2, *ids[a], 3, *second]
        pad = [0] * (tokens - len(words))
        inside = [0, *[1] * a_size[row], 0, *[1] * b_size[row]]
        inside += [0] * (tokens - len(inside))
        begins = [1, *starts[a], 1, *([*starts[b], 1] if second else [])]
        segments = [0] * (a_size[row] + 2) + [1] * len(second)
        assert got.input_ids[row].tolist() == words + pad
        assert got.lengths[row] == len(words)
        assert got.maskable[row].tolist() == inside
        assert got.starts[row].tolist() == begins + pad
        assert got.segment_ids[row].tolist() == segments + pad
    np.testing.assert_array_equal(got.swapped, swapped)
