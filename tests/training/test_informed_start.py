"""With informed weights, new heads attend to neighbors or to equal words."""

import dataclasses

import keras
import numpy as np
import pytest
import tiny

from albert_tf.model.albert import AlbertModel
from albert_tf.training.pretraining import informed_start

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


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_heads_begin_at_the_neighbors(shape):
    """In each layer, three of four heads attend to offsets -1, 1 and -2."""
    config = dataclasses.replace(WIDE, **shape)
    keras.utils.set_random_seed(2)
    model = AlbertModel(config)
    model.build()
    radians = informed_start.start_positions(model.embeddings, 0.03, seed=5)
    informed_start.look_at_neighbors(model, 3, radians, scale=0.03)
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


SEP = 3


def texts(rng, count):
    """Return ids [n, T] of A [SEP] B [SEP], and a mask [n, T, T] of repeats.

    Half of the words of A also occur in B, in a different order; no other word
    occurs twice.
    """
    ids = np.stack([rng.permutation(np.arange(5, 500)) for _ in range(count)])
    ids = ids[:, :LENGTH].astype(np.int32)
    middle = LENGTH // 2
    ids[:, middle + 2 : -1 : 2] = rng.permuted(
        ids[:, 1 : middle - 2 : 2], axis=1
    )
    ids[:, [middle, -1]] = SEP
    same = (ids[:, :, None] == ids[:, None]) & (ids != SEP)[:, None]
    same &= ~np.eye(LENGTH, dtype=bool)
    assert same.any(axis=2).sum() == count * 2 * (middle // 2 - 1)
    return ids, same


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"hidden_size": 128, "num_attention_heads": 2},
        {"num_hidden_groups": 2},
    ],
    ids=["projection", "no projection", "two groups"],
)
def test_a_head_begins_at_the_same_word_elsewhere(shape):
    """One head attends to a word's other occurrence, or else to [SEP]."""
    config = dataclasses.replace(WIDE, **({"hidden_size": 256} | shape))
    keras.utils.set_random_seed(2)
    model = AlbertModel(config)
    model.build()
    tables, head = model.embeddings, config.num_attention_heads - 1
    assert informed_start.has_room_for_repeats(model)
    for table in (tables.word_embeddings, tables.token_type_embeddings):
        table.assign(5 * table.numpy())
    radians = informed_start.start_positions(tables, 0.1)
    informed_start.reserve_dimensions(tables, config.head_size)
    informed_start.look_at_neighbors(model, head, radians, 0.1)
    before = {v.path: v.numpy() for v in model.weights}
    informed_start.look_at_repeats(model, head, SEP, 0.1)
    ids, same = texts(np.random.default_rng(3), 6)
    segments = np.repeat([[0, 1]], LENGTH // 2, axis=1) + 0 * ids
    found = model.compute(ids, np.ones_like(ids), segments, return_all=True)
    repeated, word = same.any(axis=2), ids != SEP
    assert len(found["attention_probs"]) == config.num_hidden_layers
    for probs in np.array(found["attention_probs"])[:, :, head]:
        at_repeat = np.sum(probs * same, axis=2)
        at_separator = np.sum(probs * (ids == SEP)[:, None], axis=2)
        itself = np.diagonal(probs, axis1=1, axis2=2)
        assert at_repeat[repeated].mean() > 0.6
        assert at_separator[word & ~repeated].mean() > 0.3
        assert itself[word].mean() < 0.01
    columns = head * config.head_size + np.arange(config.head_size)
    for variable in model.weights:
        changed = variable.numpy() != before[variable.path]
        where = [np.unique(x) for x in np.nonzero(changed)]
        if where and where[0].size:  # this head's weights
            assert "attention" in variable.path
            parts = where[0 if "output" in variable.path else -1]
            assert np.isin(parts, columns).all()


def test_dimensions_kept_apart_are_of_places_or_of_words():
    """Positions and words have separate dimensions, even for odd head sizes."""
    position_dims, word_dims = informed_start.reserved_indices(128, 27)
    assert len(position_dims) == 12 and len(word_dims) == 12
    assert position_dims.max() < 64 < word_dims.min()
    keras.utils.set_random_seed(4)
    model = AlbertModel(dataclasses.replace(WIDE, num_attention_heads=8))
    model.build()
    tables, size = model.embeddings, model.config.head_size
    before = tables.word_embeddings.numpy()
    informed_start.reserve_dimensions(tables, size)
    position_dims, word_dims = informed_start.reserved_indices(128, size)
    rows = tables.word_embeddings.numpy()
    np.testing.assert_array_equal(rows[:, position_dims], 0)
    assert np.std(np.linalg.norm(rows[:, word_dims], axis=1)) < 1e-6
    assert np.mean(rows**2) == pytest.approx(np.mean(before**2), rel=1e-5)
    assert not tables.position_embeddings.numpy()[:, word_dims].any()
    types = tables.token_type_embeddings.numpy()
    assert (
        not types[:, np.union1d(position_dims, word_dims)].any() and types.any()
    )


@pytest.mark.parametrize(
    "changes",
    [{"embedding_size": 32}, SHAPES["norm behind the projection"]],
    ids=["narrow", "norm behind the projection"],
)
def test_embeddings_without_room_for_repeats(changes):
    """Some embeddings lack room for a head that attends to repeated words.

    They are too narrow, or are normalized after the projection.
    """
    model = AlbertModel(dataclasses.replace(WIDE, **changes))
    model.build()
    assert not informed_start.has_room_for_repeats(model)


def test_the_score_is_that_of_waves_moved_by_the_offset():
    """Query i's score for key j is the mean of 6 cos(w (i + offset - j)).

    The mean is over the frequencies w of the head, in radians per position.
    """
    radians = informed_start.frequencies(64, seed=1)
    table = informed_start.waves(40, radians)
    query, key = informed_start.head_kernels(radians, 32, offset=-2)
    scores = table @ query @ (table @ key).T / np.sqrt(32)
    chosen = radians[np.linspace(0, 31, 16).round().astype(int)]
    for i, j in ((7, 5), (7, 6), (7, 9), (30, 1)):
        mean = np.mean([np.cos(w * (i - 2 - j)) for w in chosen])
        assert scores[i, j] == pytest.approx(6 * mean)
    assert scores[7, 5] == pytest.approx(6)


def test_waves_have_no_distance_twice():
    """Of 512 positions, no two have waves with a similarity above 0.7."""
    radians = informed_start.frequencies(64, seed=3)[:32]
    alike = np.cos(np.arange(1, 512)[:, None] * radians).mean(axis=1)
    assert alike.max() < 0.7


def test_half_of_the_heads_are_the_nearest_places():
    """Offsets alternate between left and right, from near to far."""
    assert informed_start.offsets(5) == [-1, 1, -2, 2, -3]


def test_a_head_too_narrow_for_a_wave_stays_random():
    """`head_kernels` returns zeros for a head that is too narrow for a wave.

    The head therefore keeps its random weights.
    """
    radians = informed_start.frequencies(4, seed=1)
    for kernel in informed_start.head_kernels(radians, 1, offset=1):
        np.testing.assert_array_equal(kernel, np.zeros((8, 1)))
