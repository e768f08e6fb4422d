"""Masking in the graph compared with NumPy and with probabilities."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats
from tiny_instances import MASK_ID, WORDS, V, instances, spans

from albert_tf.data import masking, masking_graph
from albert_tf.data.masking import Instances, MaskingConfig

DEFAULT = MaskingConfig()
SHARES = (0.5, 0.2, 0.3)


def splitmix64(state):
    """Return the next SplitMix64 number for a Python int, as in the paper."""
    state &= 2**64 - 1
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
    return state ^ (state >> 31)


class Draws:
    """A generator that returns given draws."""

    def __init__(self, uniform, picks):
        self.uniform, self.picks = uniform, picks

    def random(self, shape):
        """Return the given uniform numbers."""
        return self.uniform

    def integers(self, low, high, shape):
        """Return the given numbers, scaled to the range."""
        return self.picks % high


@pytest.mark.parametrize("whole_words", [True, False])
@pytest.mark.parametrize("budget", [1, 5, 12, 1000])
def test_spans_equal_numpy(budget, whole_words):
    """With equal order, n-grams and budget, the covered tokens are NumPy's."""
    batch, order, ngrams, (expected, _, _) = spans(
        np.random.default_rng(budget), budget, whole_words
    )
    maskable = tf.constant(batch.maskable)
    covered = masking_graph.choose_spans(
        tf.constant(order.astype(np.int32)),
        masking_graph.word_bounds(
            tf.constant(batch.starts), maskable, whole_words
        ),
        maskable,
        tf.fill([len(order)], budget),
        tf.constant(ngrams.astype(np.int32)),
        4,
    )
    np.testing.assert_array_equal(covered, expected)
    assert expected.any()


def test_cover_equals_numpy():
    """With equal draws per token, ids and labels are NumPy's."""
    rng = np.random.default_rng(1)
    batch = instances(rng)
    ids = batch.input_ids
    covered = batch.maskable & (rng.random(ids.shape) < 0.2)
    slots = 20
    kinds = rng.random((len(ids), slots)).astype(np.float32)
    picks = rng.integers(0, 2**40, (len(ids), slots))
    found, positions, labels, weights = (
        x.numpy()
        for x in masking_graph.cover(
            tf.constant(ids),
            tf.constant(covered),
            slots,
            WORDS,
            SHARES,
            kinds,
            picks,
        )
    )
    used = np.arange(slots) < covered.sum(axis=1)[:, None]
    changed, _ = masking.replace(
        ids[covered], WORDS, SHARES, Draws(kinds[used], picks[used])
    )
    expected = ids.copy()
    expected[covered] = changed
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(weights, used)
    np.testing.assert_array_equal(labels[used], ids[covered])
    np.testing.assert_array_equal(positions[used], np.nonzero(covered)[1])
    assert not labels[~used].any() and not positions[~used].any()


def test_draws_are_splitmix64():
    """The bits of an example are SplitMix64 from the seed and its position."""
    increment = 0x9E3779B97F4A7C15
    bits = masking_graph.draws(
        7, tf.constant([0, 5, 2**40]), masking_graph.KINDS, 3
    )
    for row, position in zip(bits.numpy().tolist(), (0, 5, 2**40), strict=True):
        key = splitmix64(splitmix64(7 + increment) + position * increment)
        purpose = masking_graph.KINDS << 32
        steps = [(purpose + i) * increment for i in (1, 2, 3)]
        assert row == [splitmix64(key + step) >> 1 for step in steps]


@functools.cache
def compiled(seed, config):
    """Return the masking with a seed as a graph, traced once per shape."""

    def mask(positions, *arrays):
        slots = config.predictions(arrays[0].shape[1])
        return masking_graph.mask(
            Instances(*arrays), slots, config, WORDS, seed, positions
        )

    return tf.function(mask)


def graph_mask(rng, seed=3, batch=64, config=DEFAULT):
    """Mask random instances in a graph."""
    found = instances(rng, batch)
    arrays = (np.arange(batch), *dataclasses.astuple(found))
    masked = compiled(seed, config)(*map(tf.constant, arrays))
    return found, [x.numpy() for x in masked]


def test_integers_are_not_transposed():
    """Integers are not transposed, for which oneDNN may print a warning."""
    batch = dataclasses.astuple(instances(np.random.default_rng(0)))
    arrays = map(tf.constant, (np.arange(len(batch[0])), *batch))
    graph = compiled(3, DEFAULT).get_concrete_function(*arrays).graph
    graph = graph.as_graph_def()
    bodies = [graph.node, *(f.node_def for f in graph.library.function)]
    assert "Transpose" not in {node.op for body in bodies for node in body}


def test_masks_follow_from_the_seed():
    """Another seed produces other masks of the same examples."""
    (_, left), (_, right) = (
        graph_mask(np.random.default_rng(2), seed=seed) for seed in (3, 4)
    )
    assert (left[1] != right[1]).any(axis=1).mean() > 0.9


def runs_of(positions, weights):
    """Count the lengths of runs of adjacent masked positions, 1 to 5."""
    counts = np.zeros(6)
    for row, used in zip(positions, weights > 0, strict=True):
        ends = np.flatnonzero(np.diff(row[used]) != 1)
        edges = np.concatenate([[-1], ends, [used.sum() - 1]])
        counts += np.bincount(np.minimum(np.diff(edges), 5), minlength=6)
    return counts[1:]


@pytest.mark.parametrize(
    ("rate", "asked"), [(0.15, (0.8, 0.1, 0.1)), (0.3, SHARES)]
)
def test_distribution_is_numpys(rate, asked):
    """Kinds, runs and positions of masks agree with NumPy's by chi-square."""
    batch, tokens = 3000, 48
    config = MaskingConfig(
        masked_lm_prob=rate, mask_same_random=tuple(map(str, asked))
    )
    found, (shown, where, labels, weights) = graph_mask(
        np.random.default_rng(5), batch=batch, config=config
    )
    numpy = masking.mask(
        found,
        config.predictions(tokens),
        config,
        WORDS,
        np.random.default_rng(6),
    )
    used = weights > 0
    assert abs(used.sum() / numpy.weights.sum() - 1) < 0.003
    at = np.take_along_axis(shown, where, 1)[used]
    kinds = np.bincount(
        np.where(at == MASK_ID, 0, np.where(at == labels[used], 1, 2)),
        minlength=3,
    )
    # A random word is the original word once in V - 5 times.
    itself = asked[2] / (V - 5)
    shares = np.array(asked) + [0, itself, -itself]
    assert stats.chisquare(kinds, shares * kinds.sum()).pvalue > 1e-3
    pairs = (
        (runs_of(where, weights), runs_of(numpy.positions, numpy.weights)),
        (
            np.bincount(where[used], minlength=tokens)[1:-1],
            np.bincount(numpy.positions[numpy.weights > 0], minlength=tokens)[
                1:-1
            ],
        ),
    )
    for ours, theirs in pairs:
        both = np.array([ours, theirs])
        test = stats.chi2_contingency(both[:, both.sum(axis=0) > 10])
        assert test.pvalue > 1e-3


def test_budgets_equal_numpy():
    """Budgets round halves to even, from 1 up to the number of slots."""
    lengths = np.arange(3, 520)
    due = masking_graph.budgets(tf.constant(lengths), MaskingConfig(), 20)
    np.testing.assert_array_equal(
        due, masking.budgets(lengths, MaskingConfig(), 20)
    )
