"""Task heads compute the expected results from the encoder's outputs."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tiny
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from albert_tf.model.ops import dropout, fold_in
from albert_tf.model.task_heads import (
    POOLINGS,
    AlbertChooser,
    AlbertClassifier,
    AlbertEmbedder,
    AlbertForBeamSpans,
    AlbertForSpans,
    AlbertTokenClassifier,
    answer_mask,
    pooled,
)
from albert_tf.training.checkpoints import named_variables

DATA = tiny.make_data()
INPUTS = [DATA[k][:4] for k in ("input_ids", "input_mask", "segment_ids")]


def test_names_of_variables():
    """Heads do not affect the names of the encoder's variables."""
    names = named_variables(AlbertClassifier(tiny.CONFIG, 2))
    assert names["classifier/kernel"].shape == (16, 2)
    assert names["classifier/bias"].shape == (2,)
    others = {n.split("/")[0] for n in names if "classifier" not in n}
    assert others == {"albert"}


def test_the_kernel_is_drawn_as_released():
    """The kernel is truncated normal; `initializer_range` sets the scale."""
    config = dataclasses.replace(tiny.CONFIG, initializer_range=0.07)
    kernel = AlbertClassifier(config, 500).classifier.kernel.numpy()
    assert np.abs(kernel).max() <= 2.01 * 0.07
    assert kernel.std() == pytest.approx(0.88 * 0.07, rel=0.05)


def test_what_heads_do_by_default():
    """By default, the dropout rate is 0.1, and vectors are normalized means."""
    model = AlbertClassifier(tiny.SHALLOW, 2)
    x, seed = tf.ones([9, 16]), tf.constant([1, 2])
    dropped = dropout(x, 0.1, fold_in(seed, 2))
    np.testing.assert_array_equal(model.drop(x, seed), dropped)
    assert (dropped.numpy() == 0).any()
    embedder = AlbertEmbedder(tiny.SHALLOW, albert=model.albert)
    tokens = model.albert(*INPUTS)["sequence_output"].numpy()
    weights = INPUTS[1][..., None]
    means = (tokens * weights).sum(1) / weights.sum(1)
    wanted = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(embedder(*INPUTS), wanted, atol=1e-6)
    found = pooled(tf.constant(tokens), tf.constant(INPUTS[1]))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_what_heads_do_on_request():
    """The dropout rate, the pooling and the length of vectors can be set."""
    model = AlbertClassifier(tiny.SHALLOW, 2, classifier_dropout=0.4)
    x, seed = tf.ones([9, 16]), tf.constant([1, 2])
    dropped = dropout(x, 0.4, fold_in(seed, 2))
    np.testing.assert_array_equal(model.drop(x, seed), dropped)
    how = {"pooling": "max", "unit_length": False}
    embedder = AlbertEmbedder(tiny.SHALLOW, albert=model.albert, **how)
    tokens = model.albert(*INPUTS)["sequence_output"].numpy()
    real = np.where(INPUTS[1][..., None] > 0, tokens, -np.inf)
    np.testing.assert_allclose(embedder(*INPUTS), real.max(1), atol=1e-6)
    assert how.items() <= embedder.get_config().items()


def bfloat16_head(cls, *args):
    """Return a head with realistic weights, and the encoder's outputs."""
    config = dataclasses.replace(tiny.CONFIG, initializer_range=0.4)
    model = cls(config, *args, dtype="mixed_bfloat16")
    encoded = model.albert(*INPUTS)
    return model, {k: np.float32(encoded[k]) for k in encoded}


@pytest.mark.parametrize(
    "cls, outputs, key",
    [
        (AlbertClassifier, (3,), "pooled_output"),
        (AlbertTokenClassifier, (3,), "sequence_output"),
        (AlbertForSpans, (), "sequence_output"),
    ],
)
def test_logits_are_a_dense_layer_in_float32(cls, outputs, key):
    """Logits match a float32 layer; answers exclude padding."""
    model, encoded = bfloat16_head(cls, *outputs)
    assert {v.dtype for v in model.weights} == {"float32"}
    kernel, bias = model.classifier.weights
    bias.assign(np.arange(bias.shape[0]) + 1.0)
    expected = encoded[key] @ kernel.numpy() + bias.numpy()
    found = model(*INPUTS)
    if cls is AlbertForSpans:
        found = np.stack([found["start_logits"], found["end_logits"]], -1)
        real = INPUTS[1] > 0
        assert not real.all() and (found[~real] < -1e29).all()
        found, expected = found[real], expected[real]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_beams_logits_are_not_rounded_to_bfloat16():
    """The beam head computes starts, ends and the answer class in float32."""
    model, encoded = bfloat16_head(AlbertForBeamSpans, 3, 2)
    sequence = encoded["sequence_output"]  # [B, T, H]
    legal = answer_mask(*INPUTS[1:]).numpy() > 0
    labels = np.zeros((len(sequence), 2), np.int32)
    seen = {}
    for name in ("end", "answer"):
        layer = getattr(model, name)

        kernel = layer.kernel.numpy()

        def recorded(x, layer=layer, name=name, kernel=kernel):
            # The first ends belong to the labeled starts; all other ends
            # belong to the beam.
            seen.setdefault(name, np.float32(x) @ kernel)
            return layer(x)

        setattr(model, name, recorded)
    found = model(*INPUTS, labels=labels)
    kernel, bias = (v.numpy() for v in model.start.weights)
    logits = {
        "start_log_probs": (sequence @ kernel + bias)[..., 0],
        "end_log_probs": seen["end"].reshape(legal.shape),
    }
    for name, values in logits.items():
        expected = softmax(np.where(legal, values, -np.inf))
        np.testing.assert_allclose(
            np.exp(found[name])[legal], expected[legal], atol=1e-5
        )
    np.testing.assert_allclose(
        found["answer_logits"], seen["answer"][:, 0], atol=1e-5
    )


def test_choices_are_scored_one_by_one():
    """The logit of a choice equals a classifier's logit for the same row."""
    model = AlbertChooser(tiny.CONFIG)
    rows = [np.stack([x[:2], x[2:]]) for x in INPUTS]  # [2, 2, T]
    logits = model(*rows).numpy()
    pooled = model.albert(*INPUTS)["pooled_output"].numpy()
    expected = pooled @ model.classifier.kernel.numpy()
    np.testing.assert_allclose(logits, expected.reshape(2, 2), atol=1e-6)


def test_an_encoder_can_be_shared():
    """Two heads can share an encoder."""
    first = AlbertClassifier(tiny.CONFIG, 2)
    second = AlbertForSpans(tiny.CONFIG, albert=first.albert)
    assert second.albert is first.albert


MASK = np.array([[1, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1, 1]], np.int32)
SEGMENTS = np.array([[0, 0, 0, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1, 1, 1]], "i4")


def test_where_answers_can_be():
    """Answers may be at [CLS] or in the context, but nowhere else."""
    expected = [[1, 0, 0, 1, 1, 1, 0, 0], [1, 0, 1, 1, 1, 1, 1, 0]]
    assert answer_mask(MASK, SEGMENTS).numpy().tolist() == expected


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def released_beam(weights, x, legal, k, m):
    """Return the outputs of the released SQuAD 2.0 head for a row [T, H]."""

    def dense(name, value):
        bias = weights.get(f"{name}/bias", 0.0)
        return value @ weights[f"{name}/kernel"] + bias

    def distribution(logits):
        logits = logits * legal - 1e30 * (1 - legal)
        return softmax(logits)

    start = distribution(dense("start", x)[:, 0])
    starts = np.argsort(-start, kind="stable")[:k]
    ends, indices = [], []
    for s in starts:
        both = np.concatenate([x, np.broadcast_to(x[s], x.shape)], axis=1)
        y = np.tanh(dense("end_transform", both))
        y = (y - y.mean(1, keepdims=True)) / np.sqrt(
            y.var(1, keepdims=True) + 1e-12
        )
        end = distribution(dense("end", y)[:, 0])
        indices.append(np.argsort(-end, kind="stable")[:m])
        ends.append(np.log(end[indices[-1]]))
    answer = np.concatenate([start @ x, x[0]])
    answer = dense("answer", np.tanh(dense("answer_transform", answer)))[0]
    return np.log(start[starts]), starts, ends, indices, answer


def test_the_released_head_of_squad_2():
    """The beam and the answer class equal the results of `create_v2_model`."""
    config = dataclasses.replace(tiny.CONFIG, initializer_range=0.4)
    model = AlbertForBeamSpans(config, 3, 2)
    weights = {n: v.numpy() for n, v in named_variables(model).items()}
    ids = DATA["input_ids"][:2]
    found = {k: v.numpy() for k, v in model(ids, MASK, SEGMENTS).items()}
    sequence = model.albert(ids, MASK, SEGMENTS)["sequence_output"].numpy()
    legal = answer_mask(MASK, SEGMENTS).numpy()
    names = (
        "start_top_log_probs start_top_index end_top_log_probs end_top_index "
        "answer_logits"
    ).split()
    assert set(found) == set(names)
    for row in range(2):
        expected = released_beam(weights, sequence[row], legal[row], 3, 2)
        for name, value in zip(names, expected, strict=True):
            np.testing.assert_allclose(
                found[name][row], value, atol=1e-4, err_msg=name
            )


def test_the_released_head_learns_from_the_labeled_start():
    """In training, ends depend on the labeled start instead of the beam."""
    config = dataclasses.replace(tiny.CONFIG, initializer_range=0.4)
    model = AlbertForBeamSpans(config, 8, 8)
    inputs = DATA["input_ids"][:2], MASK, SEGMENTS
    labels = np.array([[4, 5], [0, 0]], np.int32)
    both = {k: v.numpy() for k, v in model(*inputs, labels=labels).items()}
    for row, (start, _) in enumerate(labels):
        k = both["start_top_index"][row].tolist().index(start)
        order = np.argsort(both["end_top_index"][row, k])
        np.testing.assert_allclose(
            both["end_log_probs"][row],
            both["end_top_log_probs"][row, k, order],
            rtol=1e-5,
        )
        assert both["start_log_probs"][row, start] == pytest.approx(
            both["start_top_log_probs"][row, k]
        )
    trained = model(*inputs, labels=labels, seed=tf.constant([1, 2]))
    assert set(trained) == {"answer_logits", "start_log_probs", "end_log_probs"}


ROWS = {
    "mean": lambda x: x.mean(0),
    "cls": lambda x: x[0],
    "max": lambda x: x.max(0),
}


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("unit", [False, True])
@examples(10)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 1e4]),
    seed=st.integers(0, 2**32),
)
def test_pooling_is_that_of_numpy(name, unit, lengths, padding, scale, seed):
    """Each text is pooled over its own tokens, whatever padding contains."""
    rng = np.random.default_rng(seed)
    shape = len(lengths), max(lengths) + padding, 3
    x = (scale * rng.normal(size=shape)).astype(np.float32)
    mask = np.arange(shape[1]) < np.array(lengths)[:, None]
    x[~mask] = 1e6
    rows = zip(x, lengths, strict=True)
    wanted = np.stack([ROWS[name](row[:n].astype("f8")) for row, n in rows])
    if unit:
        norms = np.linalg.norm(wanted, axis=1, keepdims=True)
        wanted = wanted / np.where(norms > 1e-6, norms, 1e30)
    found = pooled(tf.constant(x), tf.constant(mask, tf.int32), name, unit)
    tolerance = 1e-5 * (1.0 if unit else max(scale, 1e-6) * 10)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize("name", POOLINGS)
def test_a_row_of_padding_has_a_finite_vector(name):
    """Rows that only fill a batch have finite vectors.

    Their mean and their maximum are 0.
    """
    x, mask = tf.ones([2, 3, 4]), tf.constant([[1, 1, 0], [0, 0, 0]])
    for unit in (False, True):
        found = pooled(x, mask, name, unit).numpy()
        assert np.isfinite(found).all()
        assert name == "cls" or not found[1].any()
