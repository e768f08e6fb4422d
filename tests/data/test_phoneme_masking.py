"""Masks of phonemes follow their documented rules."""

import dataclasses

import numpy as np
import tensorflow as tf

from albert_tf.data.masking import Draws, MaskingConfig
from albert_tf.data.phoneme_masking import mask_words
from albert_tf.data.records import parsing, tfrecord
from albert_tf.data.records.metadata import TRAIN, paths_of
from albert_tf.text.symbols import vocabulary_in

MASK = 99
CONFIG = MaskingConfig(masked_lm_prob=0.3)


def batch(rows, positions=40, seed=0):
    """Return ids and labels of random words, [rows, positions].

    The label is 0 at separators and padding.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(1, 9, (rows, positions)).astype(np.int32)
    labels[rng.random(labels.shape) < 0.2] = 0
    ids = rng.integers(1, 11, labels.shape).astype(np.int32)
    lengths = rng.integers(positions // 2, positions, (rows, 1))
    labels[np.arange(positions) >= lengths] = 0
    return ids, labels


def masked(ids, labels, first=0, config=CONFIG):
    draws = Draws(5, first + np.arange(len(ids)))
    return mask_words(ids, labels, config, MASK, draws)


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


def test_a_reader_masks_by_its_seed_its_settings_and_positions(built):
    """Batches have the masks of the reader's seed at the stream's positions.

    They keep the symbols before masking, the words and the mask of padding.
    """
    folder, metadata, _ = built
    rules = {"masked_lm_prob": 0.6, "mask_same_random": ("0.5", "0.1", "0.4")}
    settings = metadata.settings | rules
    metadata = dataclasses.replace(metadata, settings=settings)
    path = paths_of(str(folder), metadata, TRAIN)[0]
    records = list(tfrecord.read(path))[:6]
    positions = np.array([3, 90, 7, 8, 2, 41])
    read = parsing.phoneme_reader(str(folder), metadata, seed=4)
    found = read(
        tf.constant(positions), tf.constant(["x"] * 6), tf.constant(records)
    )
    table = vocabulary_in(str(folder))
    stored = [tfrecord.parse(record) for record in records]
    symbols, words = (
        np.array([features[name] for features in stored])
        for name in ("symbol_ids", "word_ids")
    )
    ids, chosen = mask_words(
        symbols,
        words,
        MaskingConfig(**rules),
        table.symbols[table.mask],
        Draws(4, positions),
    )
    padding = symbols == table.symbols[table.pad]
    assert padding.any() and (ids != symbols).any()
    for name, wanted in {
        "input_ids": ids,
        "input_mask": ~padding,
        "symbol_ids": symbols,
        "word_ids": words,
        "symbol_weights": chosen,
    }.items():
        np.testing.assert_array_equal(found[name], wanted, name)


def test_shares_are_settings():
    """With a share of 1 for kept words, words are chosen but not changed."""
    ids, labels = batch(rows=200)
    stay = MaskingConfig(masked_lm_prob=0.9, mask_same_random=("0", "1", "0"))
    after, chosen = masked(ids, labels, config=stay)
    np.testing.assert_array_equal(after, ids)
    assert chosen.any()


def test_the_only_symbol_is_its_own_replacement():
    """Separators and padding never replace a symbol."""
    ids, labels = batch(rows=200)
    labels[:, np.arange(40) != 3] = 0
    labels[:, 3] = 4
    change = MaskingConfig(masked_lm_prob=0.9, mask_same_random=("0", "0", "1"))
    after, chosen = masked(ids, labels, config=change)
    np.testing.assert_array_equal(after, ids)
    assert chosen[:, 3].sum() == chosen.sum() > 100
