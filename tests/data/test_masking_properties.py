"""Properties of masks for any words, settings and seeds."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from tiny_instances import MASK_ID, SEP, WORDS, V

from albert_tf.data import masking
from albert_tf.data.masking import Draws, Instances, MaskingConfig

CLS = 2

# The sizes of words, in pieces. The first piece of a word begins it, except
# perhaps in the first word of a segment.
SEGMENT = st.lists(st.integers(1, 4), min_size=1, max_size=12)
ROW = st.tuples(SEGMENT, st.just([]) | SEGMENT, st.booleans())
ROWS = st.lists(ROW, min_size=1, max_size=4)
SHARE = st.sampled_from(["0", "0.1", "0.5", "0.8", "1"])


@st.composite
def configs(draw):
    """Return a strategy for masking settings."""
    masks, keeps = draw(SHARE), draw(SHARE)
    if float(masks) + float(keeps) > 1:
        keeps = "0"
    rest = str(1 - float(masks) - float(keeps))
    return MaskingConfig(
        masked_lm_prob=draw(
            st.sampled_from([0.9, 0.15]) | st.floats(0.001, 0.9)
        ),
        max_predictions_per_seq=draw(st.none() | st.integers(1, 12)),
        ngram=draw(st.integers(1, 6)),
        favor_shorter_ngram=draw(st.booleans()),
        do_whole_word_mask=draw(st.booleans()),
        mask_same_random=(masks, keeps, rest),
        do_permutation=draw(st.booleans()),
    )


def row_of(a, b, begins):
    """Return kinds of positions, word starts, and words as lists of positions.

    The kind is 0 in segment A, 1 in segment B and 2 at special tokens.
    """
    kinds, starts, words = [2], [True], []
    for kind, segment in enumerate((a, b)):
        for number, size in enumerate(segment):
            words.append([*range(len(kinds), len(kinds) + size)])
            kinds += [kind] * size
            starts += [begins or number > 0] + [False] * (size - 1)
        kinds += [2] * bool(segment)
        starts += [True] * bool(segment)
    return kinds, starts, words


def instances_of(rows, seed):
    """Return a batch of examples, and the words of each example."""
    made = [row_of(*row) for row in rows]
    tokens = max(len(kinds) for kinds, _, _ in made) + 2
    shape = len(rows), tokens
    kinds, starts = np.full(shape, 3), np.zeros(shape, bool)
    for i, (row_kinds, row_starts, _) in enumerate(made):
        kinds[i, : len(row_kinds)] = row_kinds
        starts[i, : len(row_starts)] = row_starts
    ids = np.random.default_rng(seed).integers(5, V, shape).astype(np.int32)
    ids[kinds == 2], ids[kinds == 3], ids[:, 0] = SEP, 0, CLS
    lengths = np.count_nonzero(kinds < 3, axis=1)
    batch = Instances(
        ids, kinds == 1, kinds < 2, starts, lengths, np.zeros(len(rows), bool)
    )
    return batch, [words for _, _, words in made]


def mask(batch, config, seed, positions):
    """Return the masks of a batch at the given positions of the stream."""
    most = config.max_masked(batch.input_ids.shape[1])
    draws = Draws(seed, np.array(positions))
    return masking.mask(batch, most, config, WORDS, draws)


@examples(30)
@given(rows=ROWS, config=configs(), seed=st.integers(-(2**63), 2**63))
def test_masks(rows, config, seed):
    """Only words are predicted, within the budget, each token once.

    Labels restore the text, and words are masked as a whole. The budget is
    missed only if no free word fits into what remains.
    """
    batch, words = instances_of(rows, 0)
    masked = mask(batch, config, seed, range(len(rows)))
    slots = config.predictions(batch.input_ids.shape[1])
    assert masked.positions.shape == (len(rows), slots)
    restored = masked.input_ids.copy()
    for row, weights in enumerate(masked.weights):
        count = int(weights.sum())
        assert weights.tolist() == [1.0] * count + [0.0] * (slots - count)
        assert not masked.positions[row, count:].any()
        assert not masked.labels[row, count:].any()
        assert count <= masked.budget[row] <= slots
        places = masked.positions[row, :count]
        assert (np.diff(places) > 0).all() and batch.maskable[row, places].all()
        restored[row, places] = masked.labels[row, :count]
        if not config.do_whole_word_mask:
            words[row] = [[place] for word in words[row] for place in word]
        covered = {*places.tolist()}
        parts = [len(covered & {*word}) for word in words[row]]
        free = [len(w) for w, n in zip(words[row], parts, strict=True) if not n]
        assert all(
            n in (0, len(w)) for n, w in zip(parts, words[row], strict=True)
        )
        # Masks and permuted tokens have separate budgets.
        missed, parts = masked.budget[row] - count, 1 + config.do_permutation
        assert not missed or missed < parts * min(free, default=99)
    np.testing.assert_array_equal(restored, batch.input_ids)


@examples(30)
@given(rows=ROWS, config=configs(), seed=st.integers(0, 2**63))
def test_counts_of_masks(rows, config, seed):
    """The counts equal the tokens that became [MASK], stayed or changed.

    The lengths of n-grams add up to the predicted words. A share of 0
    selects nothing, and no special token replaces a word.
    """
    config = dataclasses.replace(config, do_permutation=False)
    batch, words = instances_of(rows, 1)
    masked = mask(batch, config, seed, range(len(rows)))
    predicted = masked.weights > 0
    row = np.nonzero(predicted)[0]
    new = masked.input_ids[row, masked.positions[predicted]]
    labels = masked.labels[predicted]
    masks, kept, random = masked.kinds
    assert masked.kinds.sum() == predicted.sum()
    assert (new == MASK_ID).sum() == masks
    assert kept <= (new == labels).sum() <= kept + random
    assert np.isin(new[new != MASK_ID], WORDS.replacements).all()
    shares = np.array(config.shares)
    assert not masked.kinds[shares == 0].any()
    lengths = np.arange(config.ngram + 1)
    assert masked.used.shape == masked.drawn.shape == lengths.shape
    assert masked.used[0] == masked.drawn[0] == 0
    starts = {(i, w[0]) for i, every in enumerate(words) for w in every}
    if not config.do_whole_word_mask:
        starts = {
            (i, p) for i, every in enumerate(words) for w in every for p in w
        }
    places = zip(
        row.tolist(), masked.positions[predicted].tolist(), strict=True
    )
    assert masked.used @ lengths == len(starts & {*places})
    assert masked.used.sum() <= masked.drawn.sum()
    assert masked.used @ lengths <= masked.drawn @ lengths


@examples(8)
@given(rows=ROWS, config=configs(), seed=st.integers(0, 2**63))
def test_masks_depend_on_seed_and_position_alone(rows, config, seed):
    """An example's masks are the same in any batch, and different later."""
    batch, _ = instances_of(rows, 2)
    places = [7 * i + 3 for i in range(len(rows))]
    whole = mask(batch, config, seed, places)
    for i, place in enumerate(places):
        one = Instances(*(x[i : i + 1] for x in vars(batch).values()))
        alone = mask(one, config, seed, [place])
        for name in ("input_ids", "positions", "labels", "weights"):
            np.testing.assert_array_equal(
                getattr(alone, name)[0], getattr(whole, name)[i]
            )


def test_other_seeds_and_positions_have_other_masks():
    """For a long text, two seeds or two positions produce different masks."""
    batch, _ = instances_of([([1] * 60, [1] * 60, True)], 3)
    found = {
        mask(batch, MaskingConfig(), seed, [position]).positions.tobytes()
        for seed in range(3)
        for position in range(3)
    }
    assert len(found) == 9
