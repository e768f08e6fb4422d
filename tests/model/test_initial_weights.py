"""Heads of a new model that begin at a word's neighbours."""

import dataclasses

import keras
import numpy as np
import pytest
import tiny

from albert_tf.model import initial_weights
from albert_tf.model.albert import AlbertModel

LENGTH = 32
WIDE = dataclasses.replace(
    tiny.CONFIG,
    vocab_size=500,
    embedding_size=128,
    hidden_size=128,
    num_attention_heads=4,
    max_position_embeddings=48,
)
SHAPES = {
    "no projection": {},
    "projection": {"hidden_size": 256},
    "norm behind the projection": {
        "embedding_norm": "hidden",
        "embedding_size": 64,
    },
    "two groups": {"num_hidden_groups": 2},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_heads_begin_at_the_neighbours(shape):
    """Three of four heads look at -1, 1 and -2, in every layer."""
    config = dataclasses.replace(WIDE, **shape)
    keras.utils.set_random_seed(2)
    model = AlbertModel(config)
    model.build()
    initial_weights.look_at_neighbours(model, heads=3, scale=0.03, seed=5)
    ids = np.random.default_rng(0).integers(5, 500, (2, LENGTH), np.int32)
    segments = np.repeat([[0, 1]], LENGTH // 2, axis=1) + 0 * ids
    attention = model.compute(
        ids, np.ones_like(ids), segments, return_all=True
    )["attention_probs"]
    assert len(attention) == config.num_hidden_layers
    for probs in np.array(attention):
        share = {
            offset: np.diagonal(probs, offset, 2, 3).mean(axis=(0, 2))
            for offset in range(-4, 5)
        }
        for head, place in enumerate((-1, 1, -2)):
            at_head = {offset: heads[head] for offset, heads in share.items()}
            assert at_head.pop(place) > 0.3
            assert max(at_head.values()) < 0.1
        assert max(heads[3] for heads in share.values()) < 0.1


def test_the_score_is_that_of_waves_moved_by_the_offset():
    """From place i it is the mean of cos(w (i + offset - j)), times 6."""
    radians = initial_weights.frequencies(64, seed=1)
    table = initial_weights.waves(40, radians)
    query, key = initial_weights.head_kernels(radians, 32, offset=-2)
    scores = table @ query @ (table @ key).T / np.sqrt(32)
    chosen = radians[np.linspace(0, 31, 16).round().astype(int)]
    for i, j in ((7, 5), (7, 6), (7, 9), (30, 1)):
        mean = np.mean([np.cos(w * (i - 2 - j)) for w in chosen])
        assert scores[i, j] == pytest.approx(6 * mean)
    assert scores[7, 5] == pytest.approx(6)


def test_waves_have_no_distance_twice():
    """Within 512 places no other distance looks like a neighbour's."""
    radians = initial_weights.frequencies(64, seed=3)[:32]
    alike = np.cos(np.arange(1, 512)[:, None] * radians).mean(axis=1)
    assert alike.max() < 0.7


def test_half_of_the_heads_are_the_nearest_places():
    """They come in turn from before and behind."""
    assert initial_weights.offsets(5) == [-1, 1, -2, 2, -3]


def test_a_head_too_narrow_for_a_wave_stays_random():
    """Nothing is added to it, and nothing breaks."""
    radians = initial_weights.frequencies(4, seed=1)
    for kernel in initial_weights.head_kernels(radians, 1, offset=1):
        np.testing.assert_array_equal(kernel, np.zeros((8, 1)))
