"""Piece vectors equal vectors computed from counts in a loop."""

import collections
import math

import numpy as np
import pytest
from tiny_corpus import make_records, unmasked_pairs

from albert_tf.data.records import piece_vectors
from albert_tf.data.records.metadata import read_metadata

GAP = piece_vectors.NO_PIECE


@pytest.fixture
def tokens():
    """Return 30,000 tokens of 12 pieces; pieces 2 and 3 are interchangeable."""
    rng = np.random.default_rng(0)
    follows = rng.dirichlet(np.full(12, 0.1), size=12)
    follows[:, 2] = follows[:, 3] = follows[:, 2:4].mean(axis=1)
    follows[3] = follows[2]
    text = [0]
    for _ in range(30_000):
        text.append(rng.choice(12, p=follows[text[-1]]))
    text = np.array(text)
    text[rng.random(len(text)) < 0.05] = GAP
    return text


def test_neighbors_are_counted_at_each_place(tokens):
    """Neighbor counts equal those of a loop; no pair crosses segments.

    An id outside the vocabulary also has no neighbors.
    """
    tokens = tokens[:500]
    counted = collections.Counter()
    for position in range(len(tokens)):
        for block, offset in enumerate((1, -1, 2, -2)):
            other = position + offset
            if (
                0 <= other < len(tokens)
                and GAP not in tokens[[position, other]]
            ):
                counted[tokens[position], block * 12 + tokens[other]] += 1
    expected = np.zeros([12, 48])
    for cell, number in counted.items():
        expected[cell] = number
    outside = tokens.copy()
    outside[np.flatnonzero(tokens == GAP)[::2]] = 12
    for text in (tokens, outside):
        counts = piece_vectors.neighbor_counts(text, 12).toarray()
        np.testing.assert_array_equal(counts, expected)


def test_mutual_information_is_the_smoothed_one(tokens):
    """Smoothed mutual information equals that of a loop, and is at least 0."""
    counts = piece_vectors.neighbor_counts(tokens, 12)
    table = counts.toarray()
    chance = table.sum(axis=0) ** 0.75
    expected = np.zeros_like(table)
    for (i, j), number in np.ndenumerate(table):
        if number:
            share = number / table[i].sum()
            information = math.log(share / (chance[j] / chance.sum()))
            expected[i, j] = max(information, 0.0)
    information = piece_vectors.mutual_information(counts).toarray()
    np.testing.assert_allclose(information, expected, rtol=1e-5, atol=1e-6)
    assert (expected == 0).any() and (expected > 0.5).any()


def test_vectors_are_the_singular_ones_times_root_values(tokens):
    """Vectors equal those of a dense decomposition; rare pieces get zeros."""
    often, rare = [2, 3, 16, 2, 3] * 3, [2, 3, 17, 2, 3] * 2 + [2, 3, 17, 2]
    rest = [15, 2, 15, GAP, *often, GAP, *rare, GAP]
    tokens = np.concatenate([tokens, rest])
    counts = piece_vectors.neighbor_counts(tokens, 20)
    dense = piece_vectors.mutual_information(counts).toarray()
    left, values, _ = np.linalg.svd(dense)
    rows = (left[:, :6] * np.sqrt(values[:6]))[:12]
    rows /= np.sqrt(np.mean(rows**2, axis=1, keepdims=True))
    vectors = piece_vectors.piece_vectors(tokens, vocab_size=20, width=6)
    products = vectors[:12] @ vectors[:12].T
    np.testing.assert_allclose(products, rows @ rows.T, rtol=1e-3, atol=1e-3)
    assert dense[15].any() and not vectors[15].any()
    # With neighbors at all four positions, a piece must occur three times.
    assert vectors[16].any() and dense[17].any() and not vectors[17].any()
    sizes = np.mean(vectors[[*range(12), 16]] ** 2, axis=1)
    np.testing.assert_allclose(sizes, 1, rtol=1e-5)


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_records_give_back_their_text(masking, corpus, tmp_path):
    """Text read from static or dynamic records lacks masks, [CLS] and [SEP]."""
    chosen = {"dupe_factor": 1, "num_shards": 1}
    static = tmp_path / "static"
    make_records(corpus, static, **chosen)
    (path,) = static.glob("train-*")
    expected = [s for a, b, _ in unmasked_pairs(path) for s in (a, b)]
    folder = tmp_path / masking
    if masking == "dynamic":
        make_records(corpus, folder, masking=masking, **chosen)
    metadata = read_metadata(str(folder))
    tokens = piece_vectors.read_tokens(str(folder), metadata)
    ends = np.flatnonzero(tokens == GAP)
    segments = np.split(tokens, ends)
    assert [s[s != GAP].tolist() for s in segments if len(s) > 1] == expected


def test_only_so_much_text_is_read(whole, monkeypatch):
    """Reading stops after the record that reaches the token limit."""
    output, metadata = whole
    monkeypatch.setattr(piece_vectors, "MAX_TOKENS", 100)
    tokens = piece_vectors.read_tokens(str(output), metadata)
    assert 100 <= len(tokens) < 132
