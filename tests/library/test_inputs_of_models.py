"""Inputs of models: ids under all names, and texts in place of ids."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_fits import compiled

from albert_tf.base.errors import InputError
from albert_tf.library import feature_batches
from albert_tf.library.models import (
    Classifier,
    Embedder,
    MultipleChoice,
    PairClassifier,
    Regressor,
)
from albert_tf.library.pretrained_model import load
from albert_tf.model.layers import ALIASES

TEXTS, PAIRS = ["the film was good", "a bad plot"], ["so fine", "it is not"]
Y = np.array([0, 1])


@pytest.fixture(scope="module")
def model(shallow):
    """Return a compiled model for pairs of texts."""
    model = compiled(PairClassifier, shallow, ["bad", "good"], seed=2)
    return model


def of_others(batch):
    """Return a batch with the names that Hugging Face uses."""
    theirs = {ours: name for name, ours in ALIASES.items()}
    return {theirs.get(name, name): x for name, x in batch.items()}


class Encoding(collections.UserDict):
    """A mapping that is not a dict, such as a tokenizer's output."""


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "form",
    [
        of_others,
        lambda b: Encoding(of_others(b)),
        lambda b: {k: x.astype("int64") for k, x in of_others(b).items()},
        lambda b: {k: x.tolist() for k, x in of_others(b).items()},
    ],
)
def test_names_of_hugging_face_mean_what_they_say(model, form):
    """With Hugging Face's names, every method uses the mask and segments."""
    batch = model.tokenizer(TEXTS, PAIRS, max_length=16)
    wanted, x = model(batch).numpy(), form(batch)
    alone = model(batch["input_ids"]).numpy()
    assert np.abs(wanted - alone).max() > 1e-6
    np.testing.assert_allclose(model(x), wanted, atol=1e-6)
    shares, found = tf.nn.softmax(wanted), model.predict(x, verbose=0)
    np.testing.assert_allclose(found, shares, atol=1e-6)
    first = model.evaluate(batch, Y, verbose=0)
    assert model.evaluate(x, Y, verbose=0) == pytest.approx(first)
    assert model.fit(x, Y, verbose=0).history["loss"][0] > 0


@pytest.mark.parametrize("form", [dict, Encoding])
def test_a_tuple_with_any_mapping_of_ids_has_labels(shallow, form):
    """A tuple with any mapping of ids also contains labels and weights."""
    model = Embedder.load(shallow)
    data = form(model.tokenizer(TEXTS)), Y, [1.0, 3.0]
    found = model._arguments(data, None, None, 2, "eval")
    assert found["x"].keys() == {*data[0]} and found["y"] is Y
    assert found["sample_weight"].tolist() == data[2]


def test_validation_has_batches_of_its_own_size(model):
    """`validation_batch_size` applies to ids from any validation argument."""
    batch, numbers = model.tokenizer(TEXTS * 4, PAIRS * 4), np.tile(Y, 4)
    seen = []
    count = keras.callbacks.LambdaCallback()
    count.on_test_batch_end = lambda batch, logs=None: seen.append(batch)
    for held_out in (
        {"validation_data": (batch, numbers)},
        {"validation_split": 0.5},
    ):
        held_out |= {"validation_batch_size": 2, "callbacks": [count]}
        model.fit(batch, numbers, batch_size=8, verbose=0, **held_out)
    assert seen == [0, 1, 2, 3, 0, 1]


def test_a_column_of_labels_is_a_list_of_labels(model):
    """Labels [B, 1] are read as [B], in memory and in data sets."""
    batch = model.tokenizer(TEXTS, PAIRS, max_length=16)
    column = Y[:, None]
    for y in (column, column.tolist(), tf.constant(column)):
        got = model._arguments(batch, y, None, 2, "eval")["y"]
        np.testing.assert_array_equal(got, Y)
        got = model._arguments((batch, y), None, None, 2, "eval")["y"]
        np.testing.assert_array_equal(got, Y)
    dataset = tf.data.Dataset.from_tensor_slices((batch, column, Y)).batch(2)
    dataset = model._arguments(dataset, None, None, None, "eval")["x"]
    assert [x.shape.rank for x in dataset.element_spec[1:]] == [1, 1]
    rows = np.ones([2, 2])  # shares of two classes
    got = model._arguments(batch, rows, None, 2, "eval")["y"]
    np.testing.assert_array_equal(got, rows)


def test_names_of_hugging_face_are_keywords_too(model, shallow):
    """Models and encoders accept Hugging Face's names as keywords."""
    batch = model.tokenizer(TEXTS, PAIRS, max_length=16)
    ids, named = batch["input_ids"], of_others(batch)
    more = {name: named[name] for name in ALIASES}
    np.testing.assert_array_equal(model(ids, **more), model(batch))
    for part in (load(shallow), load(shallow).albert):
        wanted = part(batch)["pooled_output"]
        for found in (part(ids, **more), part(named)):
            np.testing.assert_array_equal(found["pooled_output"], wanted)


@pytest.mark.parametrize(
    "method", ["__call__", "predict", "evaluate", "fit", "fit_stream"]
)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("special_tokens_mask", "are input_ids, input_mask, segment_ids"),
        ("mask", "Received: names=input_ids, input_mask, mask"),
        ("attention_mask", "one of `input_mask` and `attention_mask`"),
    ],
)
def test_other_names_are_refused(model, method, name, message):
    """An unknown key raises an error instead of being ignored."""
    batch = model.tokenizer(TEXTS, PAIRS, max_length=16)
    x = batch | {name: batch["input_mask"]}
    if method == "fit_stream":
        method = "fit"
        x = tf.data.Dataset.from_tensor_slices((x, Y)).batch(2)
    with pytest.raises(InputError, match=f"^A batch.*{message}"):
        getattr(model, method)(x)


@pytest.mark.parametrize("form", [np.array, tf.constant, np.ndarray.tolist])
@pytest.mark.parametrize(
    "name", ["input_mask", "attention_mask", "segment_ids"]
)
@pytest.mark.parametrize("part", [np.s_[:, :5], np.s_[:1], np.s_[0]])
def test_masks_have_the_shape_of_the_ids(model, form, name, part):
    """Masks and segments must have the shape of the ids.

    Even a single row is not broadcast.
    """
    batch = model.tokenizer(TEXTS, PAIRS, max_length=16)
    x = form(batch[ALIASES.get(name, name)][part])
    ids = form(batch["input_ids"])
    rule = f"^`{ALIASES.get(name, name)}` must have the shape of `input_ids`"
    for call in (
        lambda: model(ids, **{name: x}),
        lambda: model({"input_ids": ids, name: x}),
    ):
        with pytest.raises(InputError, match=rule):
            call()


def test_ids_are_rows(model):
    """Ids with fewer than two axes are rejected; unknown shapes are not."""
    for ids in (3, np.int32(3), [2, 5, 3], np.ones([5], np.int32)):
        with pytest.raises(InputError, match=r"have the shape \[B, T\];"):
            model(ids)
    spec = {"input_ids": tf.TensorSpec(None, tf.int32)}
    assert model.named_inputs(spec, {}) == spec


@pytest.mark.parametrize("method", ["__call__", "predict", "evaluate", "fit"])
@pytest.mark.parametrize(
    ("name", "value"), [("input_ids", -1), ("input_ids", 1), ("segment_ids", 1)]
)
def test_ids_in_arrays_are_in_range(model, method, name, value):
    """In arrays and lists, ids below 0 or above the limit raise an error."""
    batch = model.tokenizer(TEXTS, PAIRS, max_length=16)
    field = {"input_ids": "vocab_size", "segment_ids": "type_vocab_size"}[name]
    size = getattr(model.config, field)
    batch[name][1, 2] = size - 1
    assert model.named_inputs(batch, {}) == batch
    batch[name][1, 2] = value if value < 0 else size
    rule = f"^`{name}` must be from 0 to {size - 1}, .* `{field}` is {size}"
    for x in (batch, {k: v.tolist() for k, v in batch.items()}):
        with pytest.raises(
            InputError, match=rf"{rule}\..*={batch[name][1, 2]}"
        ):
            getattr(model, method)(x)


def test_rows_have_a_token(model):
    """Rows without tokens raise an error; batches without rows do not."""
    with pytest.raises(InputError, match=r"one token\. Received: .*\(2, 0\)"):
        model(np.ones([2, 0], np.int32))
    assert model(np.ones([0, 2], np.int32)).shape == (0, 2)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_ids_without_rows_are_refused(model, shallow, method):
    """Arrays, lists, tensors and data sets of ids must have a row."""
    ids = np.ones([0, 5], np.int32)
    whole = tf.data.Dataset.from_tensors(({"input_ids": ids}, ids[:, 0]))
    forms = [{"input_ids": x} for x in (ids, [], tf.constant(ids))]
    for x in (*forms, whole.take(0), whole.take(0).map(lambda x, y: x)):
        for part in (model, load(shallow)):
            with pytest.raises(InputError, match="at least one example"):
                getattr(part, method)(x)


def test_a_list_of_all_inputs_is_not_ids(model, shallow):
    """Ids with the wrong number of axes raise an error.

    A list of all three inputs would be read as ids with three axes.
    """
    batch = model.tokenizer(TEXTS, PAIRS, max_length=16)
    three = [*batch.values()]
    rule = r"\[B, T\]; `input_mask` and `segment_ids` are separate arguments"
    albert = load(shallow)
    for call in (model, albert, albert.albert):
        with pytest.raises(InputError, match=rf"{rule}.*shape=\(3, 2, 16\)"):
            call(three)
    with pytest.raises(InputError, match=r"have the shape \[B, C, T\]"):
        MultipleChoice.load(shallow)(batch)
    with pytest.raises(InputError, match=r"\[B, T\] or \[B, C, T\]"):
        Embedder.load(shallow)(batch["input_ids"][0])


def test_an_input_comes_once(model):
    """An input that is passed twice raises an error, as do missing ids."""
    batch = model.tokenizer(TEXTS, PAIRS, max_length=16)
    ids, mask, _ = batch.values()
    for call, message in (
        (lambda: model(ids, mask, attention_mask=mask), "^A batch must have"),
        (lambda: model(batch, input_mask=mask), "twice: input_mask$"),
        (lambda: model(input_mask=mask), "must have `input_ids`"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    found = model(input_ids=ids.tolist(), input_mask=mask.tolist())
    np.testing.assert_array_equal(found, model(ids, mask))


def test_choices_have_a_mask_of_their_own(shallow):
    """Inputs of specific tasks, such as `choice_mask`, are accepted."""
    model = MultipleChoice.load(shallow)
    ids = np.ones([1, 3, 4], "int32")
    masked = model({"input_ids": ids, "choice_mask": np.array([[1.0, 1, 0]])})
    assert masked[0, 2] < -1e9
    assert model(ids)[0, 2] > -1e9


CALLS = [
    lambda m, a, x: m(x),
    lambda m, a, x: m({"input_ids": x}),
    lambda m, a, x: m(input_ids=x),
    lambda m, a, x: m.network(x),
    lambda m, a, x: a(x),
    lambda m, a, x: a.albert(x),
    lambda m, a, x: m.predict_on_batch(x),
    lambda m, a, x: m.train_on_batch(x, Y),
    lambda m, a, x: m.test_on_batch(x, Y),
    lambda m, a, x: a.predict(x),
    lambda m, a, x: a.fit(x, Y),
]


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("form", [list, np.array, tf.constant, lambda x: x[0]])
def test_texts_among_ids_are_told_where_to_go(model, shallow, call, form):
    """Texts in place of ids raise an error that names a method for texts."""
    with pytest.raises(InputError, match="^`.*(tokenizer|texts)") as error:
        call(model, load(shallow), form(TEXTS))
    assert "\n" not in str(error.value)


def test_rows_in_lists_are_ids(model):
    """Nested lists whose rows have equal lengths are read as arrays.

    Rows of unequal lengths raise an error.
    """
    ids = [[2, 5, 3], [2, 6, 3]]
    np.testing.assert_array_equal(model(ids), model(np.array(ids, "int32")))
    with pytest.raises(InputError, match="`input_ids` must be padded to rows"):
        model([[2, 5, 3], [2, 3]])


@pytest.mark.slow
def test_a_lone_text_has_one_answer(model, shallow):
    """The result for a single text has no batch axis.

    The values equal those for a list of one text.
    """
    one, other = TEXTS[0], PAIRS[0]
    both = model.predict([one], [other], verbose=0)
    np.testing.assert_array_equal(model.predict(one, other, verbose=0), both[0])
    assert model.classify(one, other) == model.classify([one], [other])[0]
    keras.utils.set_random_seed(2)
    single = Classifier.load(shallow, ["bad", "good"])
    wanted = single.predict([one], verbose=0)
    np.testing.assert_array_equal(single.predict(one, verbose=0), wanted[0])
    np.testing.assert_array_equal(single.predict_proba(one), wanted[0])
    albert = load(shallow)
    np.testing.assert_array_equal(albert.embed(one), albert.embed([one])[0])
    with pytest.raises(InputError, match="the path of an existing table"):
        single.predict("missing.tsv")
    assert single.predict("https://t.co/a so good", verbose=0).shape == (2,)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("cls", "how"),
    [
        (Classifier, {"labels": ["bad", "good"], "multilabel": True}),
        (Regressor, {}),
        (Classifier, {"labels": ["bad", "good"]}),
        (Regressor, {"num_labels": 2}),
        (Embedder, {"pooling": "cls", "unit_length": False}),
    ],
)
def test_predictions_for_ids_are_predictions_for_texts(shallow, cls, how):
    """The predictions for ids in any form equal those for the texts."""
    model = compiled(cls, shallow, **how)
    wanted, ids = model.predict(TEXTS, verbose=0), model.tokenizer(TEXTS)
    stream = tf.data.Dataset.from_tensor_slices(ids).batch(1)
    labeled = stream.map(lambda x: (x, 0))
    for x in (ids, stream, labeled):
        found = model.predict(x, verbose=0)
        assert type(found) is np.ndarray
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    found = model.predict_on_batch(ids)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_predictions_for_ids_of_several_texts(shallow):
    """Absent choices have probability 0; a pair has its first text's vector."""
    choices, embedder = MultipleChoice.load(shallow), Embedder.load(shallow)
    for model in (choices, embedder):
        model.compile(run_eagerly=True)
    x = ["a film"], ["is"], [["good", "bad", "fine"]]
    rows = choices.features(choices.examples(x, None, "predict"))
    batches = feature_batches.batches_in_memory(rows, 1, True)
    wanted = choices.predict(*x, verbose=0)
    (batch,) = batches.map(lambda x: x)
    found = choices.predict(batch, verbose=0)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    batch["choice_mask"] = np.float32([[1, 1, 0]])
    found = choices.predict(batch, verbose=0)
    two = wanted[:, :2] / wanted[:, :2].sum()
    np.testing.assert_allclose(found, [[*two[0], 0]], atol=1e-6)
    ids = embedder.tokenizer([*TEXTS, *PAIRS])
    both = {k: v.reshape(2, 2, -1).swapaxes(0, 1) for k, v in ids.items()}
    wanted = embedder.encode(TEXTS)
    np.testing.assert_allclose(embedder.encode(both), wanted, atol=1e-6)


def test_probabilities_have_a_name(model):
    """`predict_proba` returns equal probabilities for texts and their ids."""
    wanted = model.predict(TEXTS, PAIRS, verbose=0)
    found = model.predict_proba(TEXTS, PAIRS, verbose=0)
    np.testing.assert_array_equal(found, wanted)
    ids = model.tokenizer(TEXTS, PAIRS, max_length=16)
    np.testing.assert_allclose(model.predict_proba(ids), wanted, atol=1e-6)
