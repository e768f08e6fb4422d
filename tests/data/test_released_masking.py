"""Masks with `--compat=google` are distributed as in the released code.

The oracle, `reference.released_recipe`, reimplements that code with lists.
"""

import random
from pathlib import Path

import numpy as np
import pytest
from reference import released_recipe
from scipy import stats

from albert_tf.data import masking
from albert_tf.data.builder import released
from albert_tf.data.masking import Draws, MaskingConfig

RECORDED = Path(__file__).parents[1] / "testdata" / "released_masks.npz"


def layout(lengths, first_b, tokens):
    """Return [B, T] bool, true except at [CLS], [SEP] and padding."""
    position = np.arange(tokens)
    maskable = (position > 0) & (position < lengths[:, None] - 1)
    return maskable & (position != first_b[:, None] - 1)


def examples(rng, batch, tokens=40):
    """Return word starts, maskable positions and lengths of random examples."""
    lengths = rng.integers(12, tokens + 1, batch)
    first_b = rng.integers(4, lengths - 3)
    maskable = layout(lengths, first_b, tokens)
    starts = (rng.random((batch, tokens)) < 0.6) | ~maskable
    return starts & (np.arange(tokens) < lengths[:, None]), maskable, lengths


def choose(rng, starts, maskable, budget, **settings):
    """Return the covered tokens, the n-grams drawn and the n-grams used."""
    config = MaskingConfig(**settings)
    draws = Draws(int(rng.integers(2**60)), np.arange(len(starts)))
    return released.choose_masked(
        starts, maskable, maskable, budget, config, draws
    )


def runs(covered):
    """Return the lengths of runs of masked positions."""
    padded = np.pad(covered, ((0, 0), (1, 1)))
    begins = np.nonzero(padded[:, 1:-1] & ~padded[:, :-2])[1]
    ends = np.nonzero(padded[:, 1:-1] & ~padded[:, 2:])[1]
    return ends - begins + 1


def counted(values, classes):
    """Count each value below `classes`, then all larger values together."""
    return np.bincount(np.minimum(values, classes), minlength=classes + 1)


def same(first, second):
    """Return the p-value for the equality of two distributions of counts."""
    both = np.stack([first, second])
    return stats.chi2_contingency(both[:, both.sum(axis=0) > 10]).pvalue


def test_masks_are_distributed_as_those_of_lists():
    """The distributions of masks, runs and totals equal those of the oracle."""
    rng, copies = np.random.default_rng(1), 300
    starts, maskable, lengths = examples(rng, 8)
    budget = np.maximum(1, lengths // 4)
    oracle = random.Random(2)
    theirs = np.zeros((8, copies, 40), bool)
    for row in range(8):
        n = lengths[row]
        for copy in range(copies):
            found = released_recipe.masks_of(
                starts[row, :n], ~maskable[row, :n], budget[row], 3, oracle
            )
            theirs[row, copy, found] = True
    repeated = [np.repeat(x, copies, 0) for x in (starts, maskable, budget)]
    ours, _, _ = choose(rng, *repeated)
    theirs = theirs.reshape(ours.shape)
    rows = np.repeat(np.arange(8), copies)
    for row in range(8):
        a, b = ours[rows == row], theirs[rows == row]
        assert same(a.sum(axis=0), b.sum(axis=0)) > 1e-4
        assert same(counted(a.sum(1), 12), counted(b.sum(1), 12)) > 1e-4
    assert same(counted(runs(ours), 12), counted(runs(theirs), 12)) > 1e-4


def crossing(starts, covered):
    """Return the number of lone unmasked positions between masked positions."""
    return np.sum(covered[:, :-2] & ~covered[:, 1:-1] & covered[:, 2:])


def test_words_reach_across_the_separator():
    """If B begins inside a word, both parts of the word are masked together."""
    maskable = layout(np.array([9]), np.array([5]), 9).repeat(500, 0)
    starts = np.zeros_like(maskable)
    starts[:, [0, 1, 3, 4, 6, 8]] = True  # words: 1 2, 3 and 5, 6 7
    covered, _, _ = choose(
        np.random.default_rng(3), starts, maskable, np.full(500, 2), ngram=1
    )
    found = {tuple(np.flatnonzero(row)) for row in covered}
    assert found == {(1, 2), (3, 5), (6, 7)}


def test_lengths_are_drawn_also_at_masked_words():
    """Drawn lengths follow p(n) ~ 1/n if draws at masked words are included."""
    starts, maskable, lengths = examples(np.random.default_rng(4), 3000)
    _, drawn, used = choose(
        np.random.default_rng(5), starts, maskable, lengths // 2
    )
    expected = np.array([6, 3, 2]) / 11 * drawn.sum()
    assert stats.chisquare(drawn[1:], expected).pvalue > 1e-4
    assert drawn.sum() > 1.2 * used.sum()


def test_ngrams_at_the_end_count_with_their_drawn_lengths():
    """An n-gram that the end of a record shortens counts as drawn.

    An n-gram that the budget shortens counts with its final length.
    """
    maskable = layout(np.array([4]), np.array([3]), 6).repeat(500, 0)
    assert maskable.sum(axis=1).tolist() == [1] * 500
    starts = maskable.copy()
    rng = np.random.default_rng(9)
    _, drawn, used = choose(rng, starts, maskable, np.full(500, 3))
    assert used.tolist() == drawn.tolist() and drawn[1:].all()
    maskable = layout(np.array([9]), np.array([5]), 9).repeat(500, 0)
    covered, drawn, used = choose(rng, maskable, maskable, np.full(500, 1))
    at_end = covered[:, 7].sum()  # the others are shortened to one word
    assert 0 < used[2:].sum() < at_end < drawn[2:].sum()
    assert used.sum() == 500


@pytest.mark.parametrize("whole", [True, False])
def test_budget(whole):
    """Masks never exceed the budget; masks of single tokens exhaust it."""
    starts, maskable, lengths = examples(np.random.default_rng(6), 2000)
    budget = lengths // 3
    covered, _, _ = choose(
        np.random.default_rng(7),
        starts,
        maskable,
        budget,
        do_whole_word_mask=whole,
    )
    assert not (covered & ~maskable).any()
    assert (covered.sum(axis=1) <= budget).all()
    assert (covered.sum(axis=1) == budget).all() == (not whole)


def test_recorded_masks():
    """Under our masking, the released code's masks are as probable as ours.

    Each of 200 recorded examples is masked many times to compare the
    probabilities of the recorded positions, the lengths of their runs and the
    pairs around [SEP].
    """
    recorded = np.load(RECORDED)
    lengths = recorded["lengths"].astype(int)
    maskable = layout(lengths, recorded["first_b"].astype(int), 128)
    starts = np.unpackbits(recorded["token_boundary"], axis=1).view(bool)
    theirs = np.zeros_like(maskable)
    for row, n in enumerate(recorded["n_masked"]):
        theirs[row, recorded["masked_lm_positions"][row, :n]] = True
    due = masking.budgets(lengths, MaskingConfig(), 20)
    np.testing.assert_array_equal(theirs.sum(axis=1), due)
    assert not (theirs & ~maskable).any()
    copies, rng = 40, np.random.default_rng(8)
    ours = choose(
        rng,
        *(np.repeat(x, copies, 0) for x in (starts, maskable)),
        np.repeat(due, copies),
    )[0]
    assert same(counted(runs(ours), 12), counted(runs(theirs), 12)) > 1e-3
    ratio = crossing(starts, theirs) / crossing(starts, ours) * copies
    assert 0.6 < ratio < 1.6
    likely = ours.reshape(200, copies, 128).mean(axis=1)
    # The square of an estimate is too large by its variance.
    expected = np.sum(likely**2 - likely * (1 - likely) / (copies - 1))
    spread = np.sqrt(np.sum(likely**3 * (1 - likely)))
    assert abs(np.sum(likely[theirs]) - expected) < 5 * spread
