"""With informed weights, new heads attend to neighbors or to equal words."""

import dataclasses
import types

import keras
import numpy as np
import pytest
import tiny

from albert_tf.data.records import piece_vectors
from albert_tf.model.albert import AlbertModel
from albert_tf.training.pretraining import informed_start
from albert_tf.training.pretraining.informed_start import start_heads

LENGTH = 32
SMALL = dataclasses.replace(
    tiny.CONFIG,
    vocab_size=60,
    embedding_size=64,
    hidden_size=96,
    num_attention_heads=4,
)
FLAT = {"hidden_size": 64}  # no projection
HIDDEN = {"embedding_norm": "hidden"}
SEP = 3
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


def build(config=SMALL, **changes):
    """Return a new model; its initial weights are always the same."""
    keras.utils.set_random_seed(2)
    model = AlbertModel(dataclasses.replace(config, **changes))
    model.build()
    return model


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_heads_begin_at_the_neighbors(shape):
    """In each layer, three of four heads attend to offsets -1, 1 and -2."""
    model = build(WIDE, **shape)
    radians = informed_start.start_positions(model.embeddings, 0.03, seed=5)
    informed_start.look_at_neighbors(model, 3, radians, scale=0.03)
    ids = np.random.default_rng(0).integers(5, 500, (2, LENGTH), np.int32)
    segments = np.repeat([[0, 1]], LENGTH // 2, axis=1) + 0 * ids
    attention = model.compute(
        ids, np.ones_like(ids), segments, return_all=True
    )["attention_probs"]
    assert len(attention) == model.config.num_hidden_layers
    for probs in np.array(attention):
        share = {
            offset: np.diagonal(probs, offset, 2, 3).mean(axis=(0, 2))
            for offset in range(-4, 5)
        }
        for head, neighbor in enumerate((-1, 1, -2)):
            at_head = {offset: heads[head] for offset, heads in share.items()}
            assert at_head.pop(neighbor) > 0.3
            assert max(at_head.values()) < 0.1
        assert max(heads[3] for heads in share.values()) < 0.1


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
    model = build(WIDE, **({"hidden_size": 256} | shape))
    config, tables = model.config, model.embeddings
    head = config.num_attention_heads - 1
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


def test_words_get_vectors_whose_main_components_come_last(monkeypatch):
    """Rows with a vector get it in reverse order, at a scale of 0.1.

    The main components thus lie in the dimensions for words. Rows without a
    vector stay random; they and the segments are scaled from 0.02 to 0.1.
    """
    vectors = np.random.default_rng(0).normal(size=(60, 64))
    vectors[[0, 7]] = 0.0
    monkeypatch.setattr(piece_vectors, "read_tokens", lambda *names: names)

    def made(tokens, rows, width):
        assert tokens == ("records", "metadata") and (rows, width) == (60, 64)
        return vectors

    monkeypatch.setattr(piece_vectors, "piece_vectors", made)
    albert = build()
    tables = albert.embeddings
    words, segments = tables.word_embeddings, tables.token_type_embeddings
    expected, before = 5 * words.numpy(), segments.numpy()
    rest = np.setdiff1d(np.arange(60), [0, 7])
    expected[rest] = 0.1 * np.fliplr(vectors)[rest]
    model = types.SimpleNamespace(albert=albert, config=SMALL)
    assert informed_start.start_words(model, "records", "metadata") == 58
    np.testing.assert_allclose(words.numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(segments.numpy(), 5 * before, rtol=1e-5)


@pytest.mark.parametrize(
    "has_tokenizer, changes, repeats",
    [
        (True, {}, True),
        (True, {"num_attention_heads": 3}, True),
        (False, {}, False),
        (True, {"embedding_size": 40}, False),
        (True, {"hidden_size": 32, "num_attention_heads": 1}, False),
    ],
    ids=["as built", "three", "no tokenizer", "too narrow", "one head"],
)
def test_the_head_at_repeats_needs_a_tokenizer_room_and_a_head(
    has_tokenizer,
    changes,
    repeats,
    tokenizer,
    tokenizer_dir,
    tmp_path,
    monkeypatch,
):
    """One head attends to other occurrences of a word, if possible.

    Such a head requires a tokenizer, wide enough embeddings and at least two
    heads. If a word has no other occurrence, the head attends to [SEP]. No
    other head has a query bias. Heads are scaled for the final embeddings.
    """
    model, separators = build(**changes), []
    look_at_repeats = informed_start.look_at_repeats

    def look(albert, head, sep_id, scale):
        separators.append(sep_id)
        look_at_repeats(albert, head, sep_id, scale)

    monkeypatch.setattr(informed_start, "look_at_repeats", look)
    gains, look_at_neighbors = [], informed_start.look_at_neighbors

    def measured(albert, *others):
        gains.append(informed_start.position_gain(albert.embeddings))
        look_at_neighbors(albert, *others)

    monkeypatch.setattr(informed_start, "look_at_neighbors", measured)
    description = start_heads(
        model, str(tokenizer_dir if has_tokenizer else tmp_path)
    )
    more = ", one to the same word elsewhere" if repeats else ""
    heads = {4: 2, 3: 2, 1: 1}[model.config.num_attention_heads]
    who = "1 head that attends" if heads == 1 else f"{heads} heads that attend"
    assert description == f"{who} to a word's neighbors{more}"
    assert separators == [tokenizer.sep_id] * repeats
    assert gains == [informed_start.position_gain(model.embeddings)]
    (attention,) = model.encoder.attentions.values()
    size = model.config.head_size
    marked = attention.query.bias.numpy().nonzero()[0].tolist()
    assert marked == ([3 * size - 1] if repeats else [])
    table = model.embeddings.position_embeddings.numpy()
    size = 1 - (size / 2 - 1) / 64 if repeats else 1  # words' dimensions are 0
    assert np.mean(table**2) == pytest.approx(0.01 * size, rel=0.05)


@pytest.mark.parametrize(
    "width, size, first, wide",
    [
        (64, 32, True, True),
        (63, 32, True, False),
        (16, 8, True, True),
        (16, 7, True, False),
        (64, 32, False, False),
    ],
)
def test_room_for_repeats_is_two_heads_of_eight(width, size, first, wide):
    """Embeddings must be at least twice as wide as a head that finds repeats.

    Heads must be at least 8 wide, and normalization must precede projection.
    """
    config = types.SimpleNamespace(embedding_size=width, head_size=size)
    embeddings = types.SimpleNamespace(norm_first=first)
    albert = types.SimpleNamespace(config=config, embeddings=embeddings)
    assert informed_start.has_room_for_repeats(albert) is wide


def test_frequencies_are_one_in_each_interval_and_long_waves():
    """Half of the frequencies are random, one per equal interval up to pi.

    The other half are always the same: a geometric sequence of long waves.
    """
    found = informed_start.frequencies(9, seed=0)
    short, long = found[:4], found[4:]
    intervals = short[::-1] * 4 / np.pi
    np.testing.assert_array_equal(np.floor(intervals), [0, 1, 2, 3])
    drawn = np.random.default_rng(0).uniform(size=4)
    np.testing.assert_allclose(intervals - np.arange(4), drawn)
    assert (long[0], long[-1]) == pytest.approx((0.5, 2 * np.pi / 1024))
    np.testing.assert_allclose(long[1:] / long[:-1], long[1] / long[0])
    other = informed_start.frequencies(9, seed=1)
    assert (other[:4] != short).all() and (other[4:] == long).all()


def test_a_table_of_waves_has_a_mean_square_of_one():
    """A row has the cosines and sines of a position; its mean square is 1."""
    table = informed_start.waves(5, np.array([0.3, 2.0]))
    angles = 0.3 * np.arange(5), 2.0 * np.arange(5)
    columns = [f(x) for x in angles for f in (np.cos, np.sin)]
    np.testing.assert_allclose(table, 2**0.5 * np.stack(columns, axis=1))
    np.testing.assert_allclose(np.mean(table**2, axis=1), 1)


@pytest.mark.parametrize("changes", [{}, HIDDEN])
def test_positions_are_waves_in_tables_of_known_sizes(changes):
    """Position embeddings become waves of the given size.

    An odd last column stays unchanged. If normalization precedes projection,
    the projection is scaled so that it preserves norms.
    """
    model = build(embedding_size=63, **changes)
    tables = model.embeddings
    before = tables.position_embeddings.numpy()
    width = before.shape[1]
    kernel = tables.projection.kernel.numpy()
    radians = informed_start.start_positions(tables, 0.3)
    assert len(radians) == width // 2
    expected = informed_start.frequencies(width // 2, seed=0)
    np.testing.assert_array_equal(radians, expected)
    table = tables.position_embeddings.numpy()
    even = width // 2 * 2
    waves = 0.3 * informed_start.waves(len(table), radians)
    np.testing.assert_allclose(table[:, :even], waves, atol=1e-6)
    np.testing.assert_array_equal(table[:, even:], before[:, even:])
    scaled = tables.projection.kernel.numpy()
    read = informed_start.readout(tables)
    squares = np.var(tables.word_embeddings.numpy())
    if tables.norm_first:
        assert width * np.var(scaled) == pytest.approx(1, rel=1e-5)
        np.testing.assert_allclose(scaled @ read, np.eye(63), atol=1e-4)
    else:
        np.testing.assert_array_equal(scaled, kernel)
        np.testing.assert_array_equal(read, np.eye(width))
        squares *= 63 * np.var(kernel)
    squares += np.var(tables.token_type_embeddings.numpy())
    gain = informed_start.position_gain(tables)
    assert gain == pytest.approx((squares + np.mean(table**2)) ** -0.5)


def kernels_of(attention):
    return attention.query.kernel.numpy(), attention.key.kernel.numpy()


def scores_of(attention, before, states, columns):
    """Return the attention scores [n, n] due to changes in a head's kernels."""
    query, key = (
        states @ (kernel - old)[:, columns]
        for kernel, old in zip(kernels_of(attention), before, strict=True)
    )
    return query @ key.T / 4  # the square root of the head's size


def test_scores_are_those_of_the_constants():
    """The new weights add fixed amounts to attention scores.

    The amounts are 6 for a neighbor, 9 for the same word, -14 for the token
    itself, and 7 for [SEP].
    """
    model = build(**FLAT)
    (attention,) = model.encoder.attentions.values()
    tables, size = model.embeddings, model.config.head_size
    assert tables.projection is None and size == 16
    radians = informed_start.start_positions(tables, 0.2)
    informed_start.reserve_dimensions(tables, size)
    before = kernels_of(attention)
    informed_start.look_at_neighbors(model, 3, radians, 0.2)
    gain = informed_start.position_gain(tables)
    waves = 0.2 * gain * informed_start.waves(16, radians)
    for head, offset in enumerate((-1, 1, -2)):
        columns = np.s_[16 * head : 16 * head + 16]
        scores = scores_of(attention, before, waves, columns)
        np.testing.assert_allclose(np.diagonal(scores, offset), 6, rtol=1e-4)
    last = np.s_[48:64]
    assert not scores_of(attention, before, waves, last).any()
    before = kernels_of(attention)
    value, output = attention.value.kernel, attention.output_projection.kernel
    old_value, old_output = value.numpy(), output.numpy()
    informed_start.look_at_repeats(model, 3, SEP, 0.2)
    words = gain * tables.word_embeddings.numpy()
    positions = gain * tables.position_embeddings.numpy()
    for states, score in ((words, 9), (positions, -14)):
        scores = np.diagonal(scores_of(attention, before, states, last))
        np.testing.assert_allclose(scores, score, rtol=1e-3)
    bias = attention.query.bias.numpy()
    keys = words @ (attention.key.kernel.numpy() - before[1])
    assert bias[-1] * keys[SEP, -1] / 4 == pytest.approx(7, rel=1e-4)
    assert not bias[:-1].any()
    value, output = value.numpy() - old_value, output.numpy() - old_output
    assert words[SEP] @ value[:, 48] == pytest.approx(1, rel=1e-4)
    assert not np.delete(value, 48, axis=1).any()
    mark = np.random.default_rng(0).normal(size=64)
    mark *= 4 / np.linalg.norm(mark)
    np.testing.assert_allclose(output[48], mark, atol=1e-5)
    assert not np.delete(output, 48, axis=0).any()


def test_reserved_dimensions_leave_the_sizes_of_the_others():
    """`reserve_dimensions` gives words equal norms in the dimensions for words.

    Words also get equal norms in the shared dimensions, and zeros in the
    dimensions for positions. The ratio of the two norms and the table's mean
    square do not change. A row of zeros stays 0. Positions get zeros in the
    dimensions for words, and segments get zeros in both.
    """
    position_dims, word_dims = informed_start.reserved_indices(20, 8)
    assert (position_dims.tolist(), word_dims.tolist()) == (
        [0, 1, 4, 5],
        [17, 18, 19],
    )
    position_dims, word_dims = informed_start.reserved_indices(128, 27)
    assert len(position_dims) == 12 and len(word_dims) == 12
    assert position_dims.max() < 64 < word_dims.min()
    model = build(**FLAT)
    tables = model.embeddings
    rows = tables.word_embeddings.numpy()
    rows[7] = 0.0
    rows[:, 60:] *= 3
    tables.word_embeddings.assign(rows)
    informed_start.reserve_dimensions(tables, 16)
    position_dims, word_dims = informed_start.reserved_indices(64, 16)
    shared_dims = np.setdiff1d(np.arange(64), [*position_dims, *word_dims])
    found = tables.word_embeddings.numpy()
    assert not found[7].any() and not found[:, position_dims].any()
    assert not tables.position_embeddings.numpy()[:, word_dims].any()
    segments = tables.token_type_embeddings.numpy()
    assert not segments[:, [*position_dims, *word_dims]].any()
    assert segments.any()
    assert np.mean(found**2) == pytest.approx(np.mean(rows**2), rel=1e-5)
    nonzero = np.arange(60) != 7
    found, parts = found[nonzero], (word_dims, shared_dims)
    norms = [np.linalg.norm(found[:, x], axis=1) for x in parts]
    for norm in norms:
        np.testing.assert_allclose(norm, norm[0], rtol=1e-4)
    squares = [np.sum(rows[:, x] ** 2) for x in parts]
    ratio = (squares[0] / squares[1]) ** 0.5
    assert norms[0][0] / norms[1][0] == pytest.approx(ratio, rel=1e-4)
