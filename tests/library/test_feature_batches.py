"""The lifetime of batch generators, and batches without repeated texts."""

import gc
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tiny_tasks
from tensorflow.python.framework.func_graph import FuncGraph
from tiny_fits import LABELS

from albert_tf.base.errors import InputError
from albert_tf.library import feature_batches
from albert_tf.library.feature_batches import (
    batches_in_memory,
    batches_of_text,
    of_generator,
    without_repeats,
)
from albert_tf.library.models import Classifier, Embedder
from albert_tf.tasks.features import Features

PAIRS = [(f"question {i}", f"answer {i % 7}") for i in range(60)]


@pytest.mark.slow
def test_a_generator_goes_with_its_data_set():
    """A generator is freed with its data set, even if it is not exhausted."""
    data = np.arange(5)

    def generate():
        yield from data

    dataset = of_generator(generate, tf.TensorSpec([], tf.int64)).prefetch(1)
    alive = weakref.ref(generate)
    del generate
    gc.collect()
    assert [int(x) for x in dataset] == data.tolist()
    assert int(next(iter(dataset))) == 0
    del dataset
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("size", [1, 4, 7, 32])
@pytest.mark.parametrize("pairs", [PAIRS, [*PAIRS, *PAIRS], [("a", "b")] * 3])
def test_no_two_of_a_batch_share_a_text(pairs, size):
    """No text occurs twice in a batch, and each example is used once.

    Batches are full if there are enough different texts.
    """
    order = np.random.default_rng(0).permutation(len(pairs)).tolist()
    batches = list(without_repeats(order, pairs, size))
    assert sorted(i for batch in batches for i in batch) == sorted(order)
    for batch in batches:
        texts = [text for i in batch for text in pairs[i]]
        assert 0 < len(batch) <= size and len(set(texts)) == len(texts)
    if size <= 4 and pairs is PAIRS:
        assert {len(batch) for batch in batches[:10]} == {size}


def test_a_batch_looks_a_little_ahead(monkeypatch):
    """Skipped examples keep their order, and the search ahead is limited."""
    texts = [("a",), ("a",), ("a",), ("b",), ("c",), ("d",)]
    order = [0, 1, 2, 3, 4, 5]
    assert [*without_repeats(order, texts, 2)] == [[0, 3], [1, 4], [2, 5]]
    monkeypatch.setattr(feature_batches, "LOOK_AHEAD", 1)
    assert [*without_repeats(order, texts, 2)] == [[0], [1, 3], [2, 4], [5]]


def test_examples_are_reshuffled(tokenizer):
    """Each pass has a different order only if shuffling is requested.

    An example may come long before its place in the data.
    """
    texts = [" ".join(["river"] * i) for i in range(1, 21)]
    features = Features.from_texts(tokenizer, texts, 24)

    def passes(**how):
        batches = batches_in_memory(features, 2, True, **how)
        return [
            [
                int(x)
                for (inputs,) in batches
                for x in inputs["input_mask"].numpy().sum(1)
            ]
            for _ in range(2)
        ]

    first, second = passes()
    assert first == second == sorted(first) and len(first) == 20
    one, two = passes(shuffle=True)
    assert one != first and one != two and sorted(one) == sorted(two) == first
    places = [first.index(length) for length in one]
    assert max(place - i for i, place in enumerate(places)) > 2
    apart = [(text,) for text in texts]
    one, two = passes(shuffle=True, distinct_texts=apart)
    assert one != two and sorted(one) == first
    assert passes(distinct_texts=apart)[0] == first


@pytest.mark.parametrize("bucketed", [True, False])
def test_batches_of_a_data_set_are_as_long_as_their_texts(tokenizer, bucketed):
    """Each batch of texts is as long as its longest row, if `bucketed`.

    Otherwise, all batches have the maximum length. A data set may be read
    several times.
    """
    texts = [" ".join(["a"] * i) for i in (2, 9, 1, 4, 3)]

    def convert(batch):
        words = [text.decode() for text in batch.numpy()]
        return Features.from_texts(tokenizer, words, 24), None

    data = tf.data.Dataset.from_tensor_slices(texts).batch(2)
    batches = batches_of_text(data, convert, bucketed)
    assert len(batches) == 3
    for _ in range(2):
        found = [inputs["input_mask"].numpy() for (inputs,) in batches]
        lengths = [mask.sum(axis=1).tolist() for mask in found]
        assert lengths == [[4, 11], [3, 6], [5]]
        widths = [11, 6, 5] if bucketed else [24] * 3
        assert [mask.shape[1] for mask in found] == widths


@pytest.mark.parametrize("keep", [(), ("labels",)])
def test_labels_may_be_inputs_too(keep):
    """In memory and streamed, kept labels are inputs as well as labels.

    Each row has its own label and weight.
    """
    rows = [(np.array([2, i, 3], np.int32), 3) for i in (7, 8, 9)]
    labels = {"labels": np.array([4, 5, 6], np.int32)}
    features = Features.from_rows(rows, labels, 0, 16)
    weights = np.array([0.5, 2.0, 3.0], np.float32)
    data = tf.data.Dataset.from_tensors("read once")
    streamed = batches_of_text(data, lambda _: (features, weights), True, keep)
    for batches in (
        batches_in_memory(features, 2, True, weights, keep=keep),
        streamed,
    ):
        found = list(batches)
        for i, array in ((1, [4, 5, 6]), (2, weights)):
            parts = np.concatenate([batch[i] for batch in found])
            np.testing.assert_array_equal(parts, array)
        for inputs, y, _ in found:
            assert ("labels" in inputs) == bool(keep)
            assert not keep or np.array_equal(inputs["labels"], y)


def test_an_embedder_sees_no_partner_twice(shallow):
    """In training on pairs, no batch contains the same second text twice."""
    model = Embedder.load(shallow, max_length=8)
    words = "good great fine bad poor awful".split()
    first = [f"the film was {w}" for w in words * 4]
    second = words * 4
    examples = model.examples((first, second), None, "train")
    batches = list(model._in_memory(examples, None, 4, shuffle=True))
    rows = [batch[0]["input_ids"].numpy() for batch in batches]
    assert sum(map(len, rows)) == 24
    for row in rows:
        partners = {tuple(ids) for ids in row[:, 1]}
        assert len(partners) == len(row)


def test_a_text_needs_another_in_its_batch(shallow):
    """Training on batches of one text or pair raises an error."""
    model = Embedder.load(shallow, max_length=8)
    for x in (["bad", "good", "so"], (["bad", "good"], ["poor", "great"])):
        examples = model.examples(x, None, "train")
        with pytest.raises(InputError, match="at least 2, .*batch_size=1"):
            model._in_memory(examples, None, 1, shuffle=True)
        assert model._in_memory(examples, None, 1).cardinality() == len(
            examples
        )


def test_a_pair_needs_another_in_its_batch():
    """Pairs raise an error if no batch can contain two of them.

    Triplets do not, because each triplet has a negative.
    """
    pairs = [("a", "x"), ("b", "y"), ("a", "z")]
    for apart, size in ((pairs, 1), (pairs[::2], 4)):
        with pytest.raises(InputError, match="at least 2 pairs without a comm"):
            feature_batches.shuffled_apart(apart, size)
    triplets = [(*pair, "other") for pair in pairs]
    assert len(list(feature_batches.shuffled_apart(triplets, 1))) == 3
    assert len(list(feature_batches.shuffled_apart(pairs, 4))) == 2


def test_a_seed_determines_the_order_of_examples_apart():
    """The order of examples with texts depends on NumPy's global seed."""

    def order(seed):
        np.random.seed(seed)
        batches = feature_batches.shuffled_apart(PAIRS, 4)
        return [int(i) for batch in batches for i in batch]

    first = order(3)
    assert order(3) == first != order(4)


def test_a_row_has_the_weight_of_its_example():
    """If examples have several rows, each row has its example's weight."""
    features = types.SimpleNamespace(notes={"rows": np.array([2, 1, 3])})
    found = feature_batches.row_weights(features, [1, 0.5, 4])
    assert found.tolist() == [1, 1, 0.5, 4, 4, 4]
    assert found.dtype == np.float32
    features = types.SimpleNamespace(notes={})
    found = feature_batches.row_weights(features, [1, 0.5])
    assert found.tolist() == [1, 0.5]
    assert feature_batches.row_weights(features, None) is None


@pytest.mark.parametrize("weights", [None, [2.0, 3.0]])
@pytest.mark.parametrize("keep", [(), ("labels",)])
def test_what_keras_receives(weights, keep):
    """Labels and weights are not inputs, unless the model also reads them.

    Without weights or labels, the tuple is shorter.
    """
    batch = {"input_ids": 5, "labels": 6, "example_weights": 7}
    inputs = {"input_ids": 5} | ({"labels": 6} if keep else {})
    rest = () if weights is None else (weights,)
    found = feature_batches.for_keras(batch, weights, keep)
    assert found == (inputs, 6, *rest)
    del batch["labels"]
    found = feature_batches.for_keras(batch, weights, keep)
    assert found == ({"input_ids": 5}, *((None, *rest) if rest else ()))


@pytest.mark.slow
def test_models_that_are_dropped_leave_nothing(shallow):
    """After `fit`, a deleted model and its graphs are freed."""
    texts, labels = map(list, zip(*tiny_tasks.opinions(16, 1), strict=True))
    stream = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(8)
    graphs = []
    for data in [(texts, labels), (stream,), (texts, labels)]:
        model = Classifier.load(shallow, LABELS)
        model.compile()
        model.fit(*data, verbose=0)
        alive = weakref.ref(model)
        del model
        gc.collect()
        assert alive() is None
        graphs.append(sum(isinstance(o, FuncGraph) for o in gc.get_objects()))
    assert graphs[2] == graphs[0]
