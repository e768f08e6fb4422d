"""Masks of phonemes follow their documented rules."""

import numpy as np
import pytest

from albert_tf.data.masking import Draws, MaskingConfig
from albert_tf.data.records.parsing import mask_words

MASK = 99
CONFIG = MaskingConfig(masked_lm_prob=0.3)


def batch(rows=2000, positions=40, seed=0):
    """Return ids and labels of random words, [rows, positions].

    Ids are 1 to 10 in the first half of the rows and 11 to 20 in the second
    half. The label is 0 at separators and padding.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(1, 9, (rows, positions)).astype(np.int32)
    labels[rng.random(labels.shape) < 0.2] = 0
    ids = rng.integers(1, 11, labels.shape).astype(np.int32)
    ids[rows // 2 :] += 10
    lengths = rng.integers(positions // 2, positions, (rows, 1))
    labels[np.arange(positions) >= lengths] = 0
    return ids, labels


def masked(ids, labels, first=0, config=CONFIG):
    draws = Draws(5, first + np.arange(len(ids)))
    return mask_words(ids, labels, config, MASK, draws)


@pytest.fixture(scope="module")
def outcomes():
    """Return a list with an array [symbols, 4] for each word.

    The columns are the ids, the labels, the ids after masking, and whether a
    symbol is chosen.
    """
    ids, labels = batch()
    after, chosen = masked(ids, labels)
    words = []
    for row in zip(ids, labels, after, chosen, strict=True):
        ends = np.flatnonzero(row[1] == 0)
        words += np.split(np.stack(row), ends, axis=1)
    return [np.stack([x for x in w.T if x[1]]) for w in words if w[1].any()]


def test_whole_words_are_chosen(outcomes):
    """30% of the words are chosen, each as a whole; no separator is chosen."""
    shares = [word[:, 3].mean() for word in outcomes]
    assert {*shares} == {0.0, 1.0}
    assert abs(np.mean(shares) - 0.3) < 4 * (0.21 / len(shares)) ** 0.5
    ids, labels = batch()
    after, chosen = masked(ids, labels)
    assert not chosen[labels == 0].any()
    np.testing.assert_array_equal(after[~chosen], ids[~chosen])


def test_outcomes_have_their_shares(outcomes):
    """Of the chosen words, 80% are masked, 10% become random, and 10% stay."""
    chosen = [word for word in outcomes if word[0, 3] and len(word) > 2]
    masks = [(word[:, 2] == MASK).mean() for word in chosen]
    assert {*masks} == {0.0, 1.0}
    stay = [(word[:, 2] == word[:, 0]).all() for word in chosen]
    error = 4 * (0.25 / len(chosen)) ** 0.5
    assert abs(np.mean(masks) - 0.8) < error
    assert abs(np.mean(stay) - 0.1) < error


def test_random_symbols_come_from_the_same_example(outcomes):
    """Random symbols come from the example's words, with equal probability."""
    ids, labels = batch()
    after, chosen = masked(ids, labels)
    changed = chosen & (after != ids) & (after != MASK)
    upper = np.repeat(np.arange(len(ids)) >= len(ids) // 2, ids.shape[1])
    assert ((after > 10) == upper.reshape(ids.shape))[changed].all()
    only = np.full([500, 8], 3, np.int32)
    names = np.tile([1, 1, 0, 2, 2, 2, 0, 0], (500, 1)).astype(np.int32)
    only[names == 0] = 7
    after, chosen = masked(only, names)
    assert {*after[chosen].tolist()} == {3, MASK}  # never a separator


def test_masks_equal_those_of_a_loop():
    """Masks equal those of a loop over symbols with three random numbers.

    The first number of a word decides whether the word is chosen, and the
    second determines the outcome. The third number, one for each position,
    selects one of the example's symbols.
    """
    ids, labels = batch(rows=60)
    labels[7] = 0  # an example without symbols
    after, chosen = masked(ids, labels)
    draws = Draws(5, np.arange(60))
    first, second = draws.uniform(40), draws.uniform(40)
    picks = draws.bits(40)
    expected, outcomes = ids.copy(), np.zeros(4, int)
    for row, position in np.argwhere(labels != 0).tolist():
        word = np.sum(labels[row, :position] == 0)
        symbols = ids[row, labels[row] != 0]
        kind = 3
        if first[row, word] < 0.3:
            kind = np.searchsorted([0.8, 0.9], second[row, word], side="right")
        other = symbols[picks[row, position] % len(symbols)]
        now = ids[row, position]
        expected[row, position] = [MASK, now, other, now][kind]
        outcomes[kind] += 1
        assert chosen[row, position] == (kind < 3)
    np.testing.assert_array_equal(after, expected)
    assert outcomes.min() > 20 and chosen.sum() == outcomes[:3].sum()


def test_masks_depend_on_the_position_alone():
    """Masks depend on an example's stream position, not on the batch."""
    ids, labels = batch(rows=9)
    whole, _ = masked(ids, labels)
    part, _ = masked(ids[4:], labels[4:], first=4)
    np.testing.assert_array_equal(whole[4:], part)
    assert (whole != masked(ids, labels, first=1)[0]).any()


def test_shares_are_settings():
    """With a share of 1 for kept words, words are chosen but not changed."""
    ids, labels = batch(rows=200)
    stay = MaskingConfig(masked_lm_prob=0.9, mask_same_random=("0", "1", "0"))
    after, chosen = masked(ids, labels, config=stay)
    np.testing.assert_array_equal(after, ids)
    assert chosen.any()
