"""Masks equal those of a word-by-word reference, with documented shares."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tiny_instances import MASK_ID, WORDS, V, instances, spans

from albert_tf.base.errors import InputError
from albert_tf.data import masking
from albert_tf.data.masking import Draws, Instances, MaskingConfig, Words

RECORDED = Path(__file__).parents[1] / "testdata" / "dynamic_masks.npz"


def mask(rng, config=None, **kwargs):
    """Return random examples with their masks."""
    config = config or MaskingConfig()
    batch = instances(rng, **kwargs)
    most = config.max_masked(batch.input_ids.shape[1])
    draws = Draws(int(rng.integers(2**60)), np.arange(len(batch.lengths)))
    return batch, masking.mask(batch, most, config, WORDS, draws)


def words_of(starts, maskable):
    """Return an example's words, in order, as lists of positions."""
    words, last = [], -9
    for t in np.flatnonzero(maskable).tolist():
        if starts[t] or last != t - 1:
            words.append([])
        words[-1].append(t)
        last = t
    return words


def reference_spans(order, starts, maskable, budget, ngrams):
    """Return the positions in spans that are chosen word by word.

    Also return the lengths of n-grams, as drawn and as used. The choice follows
    the documentation of the module `masking`.
    """
    words = {word[0]: word for word in words_of(starts, maskable)}
    covered: set[int] = set()
    drawn, used = [], []
    for start, n in zip(order, ngrams, strict=True):
        if len(covered) < budget and start in words and start not in covered:
            drawn.append(n)
        taken = []
        while len(taken) < n and start in words and start not in covered:
            if len(covered) + len(words[start]) > budget:
                break
            taken.append(start)
            covered.update(words[start])
            start = words[start][-1] + 1
        used += [len(taken)] if taken else []
    return covered, drawn, used


@pytest.mark.parametrize("budget", [1, 5, 12, 1000])
def test_spans_equal_reference(budget):
    """The vectorized choice of spans equals a word-by-word choice."""
    batch, order, ngrams, (covered, drawn, used) = spans(
        np.random.default_rng(1), budget
    )
    lengths = [], []
    for row in range(len(order)):
        expected, *row_lengths = reference_spans(
            order[row].tolist(),
            batch.starts[row],
            batch.maskable[row],
            budget,
            ngrams[row],
        )
        assert set(np.flatnonzero(covered[row])) == expected
        for known, new in zip(lengths, row_lengths, strict=True):
            known += new
    for known, counts in zip(lengths, (drawn, used), strict=True):
        assert known and np.bincount(known, minlength=5).tolist() == [*counts]


def test_order_visits_every_word_once():
    """The random order is a permutation of word starts; padding comes last."""
    rng = np.random.default_rng(2)
    starts = rng.random((50, 20)) < 0.4
    order = masking.random_order(starts, Draws(2, np.arange(50)).bits(20))
    for row, visited in zip(starts, order, strict=True):
        count = row.sum()
        assert sorted(visited[:count]) == np.flatnonzero(row).tolist()
        assert (visited[count:] == 20).all()
    bits = Draws(2, np.arange(8000)).bits(8)
    first = masking.random_order(np.ones((8000, 8), bool), bits)[:, 0]
    assert stats.chisquare(np.bincount(first, minlength=8)).pvalue > 1e-4


@pytest.mark.parametrize("favor_shorter", [True, False])
def test_ngram_lengths(favor_shorter):
    """N-gram lengths follow p(n) ~ 1/n (6/11, 3/11, 2/11) or the reverse."""
    config = MaskingConfig(favor_shorter_ngram=favor_shorter)
    _, masked = mask(np.random.default_rng(6), config, batch=4000)
    expected = np.array([6, 3, 2] if favor_shorter else [2, 3, 6]) / 11
    np.testing.assert_allclose(config.ngram_probabilities(), expected)
    drawn = masked.drawn[1:]
    assert stats.chisquare(drawn, expected * drawn.sum()).pvalue > 1e-4


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.5, 0.2, 0.3)])
def test_masked_tokens_become_mask_same_or_random(shares):
    """The requested shares of predicted tokens are masked, kept or changed."""
    config = MaskingConfig(mask_same_random=tuple(map(str, shares)))
    _, masked = mask(np.random.default_rng(7), config, batch=4000)
    predicted = masked.weights > 0
    rows = np.nonzero(predicted)[0]
    result = masked.input_ids[rows, masked.positions[predicted]]
    labels = masked.labels[predicted]
    kinds = np.array(
        [
            np.sum(result == MASK_ID),
            np.sum(result == labels),
            np.sum((result != MASK_ID) & (result != labels)),
        ]
    )
    assert abs(kinds - masked.kinds).max() <= masked.kinds[2] / 100
    expected = np.array(shares) * kinds.sum()
    assert stats.chisquare(masked.kinds, expected).pvalue > 1e-4
    words = result[(result != MASK_ID) & (result != labels)]
    assert words.min() == 5 and words.max() == V - 1
    assert stats.chisquare(np.bincount(words - 5)).pvalue > 1e-4


def test_written_shares():
    """Metadata store shares only if they differ from the released defaults."""
    assert MaskingConfig().shares == [0.8, 0.1, 0.1]
    assert "mask_same_random" not in MaskingConfig().written()
    for shares in ("0.9", "0", "0.1"), ("0.1", "0.8", "0.1"):
        config = MaskingConfig(mask_same_random=shares)
        assert config.written()["mask_same_random"] == [*map(float, shares)]


def test_rounding_errors_of_shares_are_legal():
    """Shares may add up to 1 as decimals but not as floats."""
    shares = MaskingConfig(mask_same_random=("0.7", "0.2", "0.1")).shares
    assert sum(shares) != 1.0 and shares == [0.7, 0.2, 0.1]


@pytest.mark.parametrize(
    "shares", ["1", "0.8,0.1", "0.9,0.1,0.1", "a,b,c", "0.7,0.1,0.1,0.1"]
)
def test_shares_that_do_not_add_up_are_refused(shares):
    """Shares must be three non-negative numbers that add up to 1."""
    with pytest.raises(InputError, match=f"add up to 1.*={shares}$"):
        MaskingConfig(mask_same_random=tuple(shares.split(",")))
    with pytest.raises(InputError, match="add up to 1"):
        MaskingConfig(mask_same_random=("1.1", "-0.1", "0"))


def test_random_words_are_words():
    """Random words include special tokens only in the released masking."""

    class Vocabulary:
        vocab_size, mask_id = 8, 4
        not_words = np.array([0, 2, 4, 7], np.int32)

    assert Words.of(Vocabulary()).replacements.tolist() == [1, 3, 5, 6]
    released = Words.of(Vocabulary(), released=True)
    assert released.replacements.tolist() == list(range(8))


def test_budget_rounds_as_released():
    """Budgets round halves to even, and range from 1 to the number of slots."""
    due = masking.budgets(np.array([3, 10, 30, 512]), MaskingConfig(), 20)
    assert due.tolist() == [1, 2, 4, 20]
    rare = MaskingConfig(masked_lm_prob=0.001)
    assert [rare.max_masked(n) for n in (8, 1500, 2500)] == [1, 2, 2]
    # The maximum also determines the number of slots of short examples.
    most = MaskingConfig(max_predictions_per_seq=7).max_masked
    assert (most(512), most(8)) == (7, 7)


def test_permutation():
    """The budget for permuted tokens equals the budget for masked tokens.

    Most of the predicted tokens change.
    """
    config = MaskingConfig(do_permutation=True)
    assert config.predictions(512) == 2 * MaskingConfig().predictions(512)
    batch, masked = mask(np.random.default_rng(10), config, batch=500)
    due = np.maximum(1, np.round(0.15 * batch.lengths))
    predicted = masked.weights > 0
    assert masked.positions.shape[1] == 2 * config.max_masked(48)
    assert (predicted.sum(axis=1) <= 2 * due).all()
    assert predicted.sum() > 1.9 * due.sum()
    rows = np.nonzero(predicted)[0]
    result = masked.input_ids[rows, masked.positions[predicted]]
    assert np.mean(result != masked.labels[predicted]) > 0.75


def test_counts_of_permuted_tokens_are_added():
    """Counts include n-grams and budgets of both masked and permuted tokens."""
    batch = instances(np.random.default_rng(0), batch=3)
    seen = []

    def cover(starts, maskable, free, budget, config, draws):
        seen.append(free)
        return free & False, *np.array([[0, 1], [0, 5]]) * 20 ** len(seen)

    config = MaskingConfig(do_permutation=True, ngram=1)
    args = 4, config, WORDS, Draws(1, np.arange(3)), cover
    masked = masking.mask(batch, *args)
    assert masked.drawn.tolist() == [0, 420]
    assert masked.used.tolist() == [0, 2100]
    due = masking.budgets(batch.lengths, config, 4)
    assert masked.budget.tolist() == (2 * due).tolist()
    assert masked.positions.shape == (3, 8) and not masked.weights.any()
    np.testing.assert_array_equal(seen, [batch.maskable] * 2)


def test_masks_stay_where_they_are_when_tokens_are_permuted():
    """Only the tokens that are chosen second are permuted; none is masked."""
    batch = instances(np.random.default_rng(0), batch=200, tokens=20)
    masked_at, moved_at = np.zeros((2, *batch.input_ids.shape), bool)
    masked_at[:, [3, 7]], moved_at[:, [4, 5, 8]] = True, True
    choices = iter([masked_at, moved_at])

    def cover(*_):
        return next(choices), *np.zeros((2, 4), int)

    shares = ("1", "0", "0")
    config = MaskingConfig(do_permutation=True, mask_same_random=shares)
    draws = Draws(1, np.arange(200))
    ids = masking.mask(batch, 6, config, WORDS, draws, cover).input_ids
    assert (ids[masked_at] == MASK_ID).all()
    before, after = (
        np.sort(x[moved_at].reshape(-1, 3)) for x in (batch.input_ids, ids)
    )
    np.testing.assert_array_equal(after, before)
    others = ~(masked_at | moved_at)
    np.testing.assert_array_equal(ids[others], batch.input_ids[others])


def test_permuted_tokens_stay_in_their_row():
    """The tokens at a row's chosen positions are shuffled uniformly."""
    ids = np.arange(30_000).reshape(3000, 10)
    moved = np.zeros(ids.shape, bool)
    moved[:, [2, 5, 6]] = True
    result = masking.permute(ids, moved, Draws(11, np.arange(3000)))
    np.testing.assert_array_equal(result[~moved], ids[~moved])
    np.testing.assert_array_equal(np.sort(result, axis=1), ids)
    orders = (result[:, [2, 5, 6]] % 10) @ np.array([100, 10, 1])
    _, counts = np.unique(orders, return_counts=True)
    assert len(counts) == 6 and stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(
    "name, seed, settings",
    [
        ("default", 3, {}),
        (
            "deep",
            2**40 + 7,
            {"masked_lm_prob": 0.3, "ngram": 5, "favor_shorter_ngram": False},
        ),
        (
            "pieces",
            -5,
            {
                "do_whole_word_mask": False,
                "mask_same_random": ("0.5", "0.2", "0.3"),
            },
        ),
    ],
)
def test_masks_are_the_recorded_ones(name, seed, settings):
    """Masks equal the masks of earlier versions, which used TensorFlow."""
    with np.load(RECORDED) as file:
        recorded = {k: file[k] for k in file if k.startswith(f"{name}/")}
    recorded = {k.partition("/")[2]: x for k, x in recorded.items()}
    ids = recorded["input_ids"].astype(np.int32)
    fields = (recorded[k] for k in ("maskable", "starts", "lengths"))
    unused = np.zeros(len(ids), bool)
    batch = Instances(ids, unused, *fields, unused)
    config = MaskingConfig(masking="dynamic", **settings)
    draws = Draws(seed, np.array([0, 1, 2, 63, 64, 1000, 2**33, 2**40 + 5]))
    slots = config.predictions(ids.shape[1])
    masked = masking.mask(batch, slots, config, WORDS, draws)
    assert recorded["weights"].sum() > 30
    np.testing.assert_array_equal(masked.input_ids, recorded["masked_ids"])
    for field in ("positions", "labels", "weights"):
        np.testing.assert_array_equal(getattr(masked, field), recorded[field])


def splitmix64(state):
    """Return SplitMix64's output for a state; callers add the increment."""
    state &= 2**64 - 1
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
    return state ^ (state >> 31)


def test_draws_are_splitmix64():
    """SplitMix64 computes an example's bits from the seed and the position."""
    increment, positions = 0x9E3779B97F4A7C15, (0, 5, 2**40)
    draws = Draws(7, np.array(positions))
    for sequence in range(3):
        for row, at in zip(draws.bits(3).tolist(), positions, strict=True):
            key = splitmix64(splitmix64(7 + increment) + at * increment)
            steps = [((sequence << 32) + i) * increment for i in (1, 2, 3)]
            assert row == [splitmix64(key + step) >> 1 for step in steps]
