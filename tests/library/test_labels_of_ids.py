"""Labels and weights of ids, in all forms that a user may have."""

import keras
import numpy as np
import pandas
import pyarrow
import pytest
import tensorflow as tf
from tiny_fits import compiled

from albert_tf.base.errors import InputError
from albert_tf.library.models import (
    Classifier,
    MultipleChoice,
    PairClassifier,
    Regressor,
    Tagger,
)
from albert_tf.training.keras_optimizers import AdamW

TEXTS, WEIGHTS = ["the film was good", "a bad plot"], [1.0, 3.0]
Y = np.array([0, 1])


class Batches(keras.utils.PyDataset):
    """A `PyDataset` whose only batch is the given one."""

    def __init__(self, *batch):
        super().__init__()
        self.batch = batch

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.batch


@pytest.fixture(scope="module")
def classifier(shallow):
    """Return a classifier whose learning rate is 0."""
    return compiled(Classifier, shallow, ["bad", "good"])


@pytest.fixture(scope="module")
def wanted(classifier):
    """Return the weighted loss if the first text is good and the second bad."""
    ids, labels = classifier.tokenizer(TEXTS), np.array([1, 0])
    weights = np.array(WEIGHTS)
    found = classifier.evaluate(ids, labels, sample_weight=weights, verbose=0)
    assert found != classifier.evaluate(ids, labels, verbose=0)
    return found


@pytest.mark.parametrize(
    "labels",
    [
        [1, 0],
        ["good", "bad"],
        (True, False),
        np.array(["good", "bad"]),
        np.array(["good", 0], object),
        [b"good", b"bad"],
        [["good"], ["bad"]],
        np.array([1.0, 0.0]),
        pandas.Series(["good", "bad"]),
        pandas.Series(["good", "bad"], dtype="category"),
        pandas.Series([1, 0], dtype="Int64"),
        pandas.DataFrame({"target": ["good", "bad"]}),
        pandas.DataFrame({"good": [1.0, 0.0], "bad": [0.0, 1.0]}),
        pyarrow.array(["good", "bad"]),
    ],
)
def test_labels_of_ids_have_many_forms(classifier, wanted, labels):
    """Labels for ids may have the same forms as labels for texts.

    This is also true of labels in a tuple with the ids.
    """
    ids = classifier.tokenizer(TEXTS)
    how = {"sample_weight": WEIGHTS, "verbose": 0}
    assert classifier.evaluate(ids, labels, **how) == wanted
    assert classifier.evaluate((ids, labels, WEIGHTS), verbose=0) == wanted


def test_validation_labels_of_ids_have_many_forms(classifier, wanted):
    """Validation data of ids may contain labels in any form."""
    ids, labels = classifier.tokenizer(TEXTS), pandas.Series(["good", "bad"])
    data = ids, labels, WEIGHTS
    fitted = classifier.fit(ids, labels, validation_data=data, verbose=0)
    assert fitted.history["val_loss"] == [wanted]


def test_labels_of_ids_of_pairs_may_be_names(shallow):
    """For ids of pairs too, labels may be names."""
    model = compiled(PairClassifier, shallow, ["bad", "good"])
    ids = model.tokenizer(TEXTS, TEXTS[::-1])
    wanted = model.test_on_batch(ids, np.array([1, 0]))
    assert model.test_on_batch(ids, ["good", "bad"]) == wanted
    assert model.test_on_batch(ids, ["bad", "good"]) != wanted


def test_numbers_of_ids_are_never_names(shallow):
    """Next to ids, numbers are indices, even if names are numbers.

    Names are strings, and the error for a number out of range says so.
    """
    model = compiled(Classifier, shallow, [1, 2, 3])
    ids = model.tokenizer(TEXTS)
    wanted = model.evaluate(TEXTS, [3, 1], verbose=0)
    for labels in ([2, 0], ["3", "1"]):
        assert model.test_on_batch(ids, labels) == pytest.approx(wanted)
    with pytest.raises(InputError, match="0 to 2.*names must be strings"):
        model.test_on_batch(ids, [3, 1])


@pytest.mark.parametrize(
    ("labels", "weight"),
    [(["good", "bad"], []), ([["good"], ["bad"]], []), ([1.0, 0.0], [2.0])],
)
def test_labels_in_a_data_set_of_ids(classifier, labels, weight):
    """Labels in a data set and tensors have the same forms as in arrays."""
    model, ids = classifier, classifier.tokenizer(TEXTS)
    wanted = model.evaluate(ids, np.array([1, 0]), verbose=0)
    assert model.test_on_batch(ids, tf.constant(labels)) == wanted
    data = ids, labels, *[weight * 2] * bool(weight)
    data = tf.data.Dataset.from_tensor_slices(data).batch(2)
    assert model.evaluate(data, verbose=0) == pytest.approx(wanted)
    fitted = model.fit(data, validation_data=data, verbose=0)
    assert fitted.history["val_loss"] == [pytest.approx(wanted)]


@pytest.mark.parametrize(
    "labels", [["good", "bad"], [b"good", b"bad"], [1, 0], Y[::-1, None] > 0]
)
def test_labels_in_a_py_dataset(classifier, wanted, labels):
    """Labels and weights in a `PyDataset` have the same forms as in arrays."""
    data = Batches(classifier.tokenizer(TEXTS), labels, WEIGHTS)
    assert classifier.evaluate(data, verbose=0) == wanted
    fitted = classifier.fit(data, validation_data=data, verbose=0)
    assert fitted.history["val_loss"] == [wanted]


def test_weights_in_a_py_dataset_are_finite(classifier):
    """A weight of NaN in a `PyDataset` is an error."""
    data = Batches(classifier.tokenizer(TEXTS), Y, [1.0, np.nan])
    with pytest.raises(InputError, match="must have one finite number"):
        classifier.evaluate(data, verbose=0)


def test_shares_of_classes_may_follow_class_numbers(shallow):
    """Labels [B] and [B, C] may have the same dtype, as in float arrays."""
    model = Classifier.load(shallow, ["bad", "good"])
    ids, numbers = model.tokenizer(TEXTS), np.array([1.0, 0.0])
    model.compile()
    found = [
        model.evaluate(ids, y, verbose=0)
        for y in (numbers, numbers > 0, [[0.0, 1.0], [1.0, 0.0]])
    ]
    assert found == pytest.approx(found[:1] * 3)


CLASSES = {"labels": ["bad", "good"]}


@pytest.mark.parametrize(
    ("cls", "how", "y"),
    [
        (Classifier, CLASSES, [[0, 1], [0.75, 0.25]]),
        (Classifier, CLASSES | {"multilabel": True}, [[0, 1], [1, 1]]),
        (Tagger, CLASSES, [[0, 1, -1, 1] * 4] * 2),
        (MultipleChoice, {}, [0, 1]),
        (Regressor, {}, [0.5, 2]),
    ],
)
def test_labels_of_ids_may_be_bfloat16(shallow, cls, how, y):
    """Labels in bfloat16 have the same loss as labels of another type."""
    model = compiled(cls, shallow, **how)
    ids = model.tokenizer(TEXTS, max_length=16)
    if cls is MultipleChoice:
        ids = {name: np.stack([x, x], 1) for name, x in ids.items()}
    wanted, short = model.test_on_batch(ids, y), tf.cast(y, tf.bfloat16)
    assert model.test_on_batch(ids, short.numpy()) == wanted
    stream = tf.data.Dataset.from_tensors((ids, short))
    assert model.evaluate(stream, verbose=0) == pytest.approx(wanted)


NUMBERS = "For ids, labels must be numbers"


@pytest.mark.parametrize(
    ("cls", "how", "y", "message"),
    [
        (Classifier, CLASSES, ["good", "x"], "must be one of bad, good"),
        (Classifier, CLASSES, [0.0, 0.5], "from 0 to 1, without a fraction"),
        (Classifier, CLASSES, [1, 2], "from 0 to 1, without a fraction"),
        (Tagger, CLASSES, [[0.5] * 16] * 2, "whole numbers below 2"),
        (Tagger, CLASSES, [[2] * 16] * 2, "whole numbers below 2"),
        (Tagger, CLASSES, [["good"] * 16] * 2, NUMBERS),
        (MultipleChoice, {}, [0.5, 1.0], "whole numbers[.]"),
        (Regressor, {}, ["1", "two"], "must be a finite number|label='two'"),
    ],
)
def test_illegal_labels_of_ids(shallow, cls, how, y, message):
    """Fractions and texts that are no labels are errors, in any container."""
    model = compiled(cls, shallow, **how)
    ids = model.tokenizer(TEXTS, max_length=16)
    if cls is MultipleChoice:
        ids = {name: np.stack([x, x], 1) for name, x in ids.items()}
    stream = tf.data.Dataset.from_tensors((ids, y))
    batches = (ids, np.array(y)), (ids, tf.constant(y))
    for arguments in (*batches, (stream,), (Batches(ids, y),)):
        with pytest.raises(InputError, match=message):
            model.evaluate(*arguments, verbose=0)


def test_labels_of_none_are_no_labels(classifier):
    """A data set of (texts, None) or (ids, None) contains no labels."""
    model = classifier
    wanted = model.predict(TEXTS, verbose=0)
    for x, message in (
        (TEXTS, "`y` must be given"),
        (model.tokenizer(TEXTS), "Ids need labels"),
    ):
        data = tf.data.Dataset.from_tensors(x).map(lambda x: (x, None))
        found = model.predict(data, verbose=0)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        with pytest.raises(InputError, match=message):
            model.evaluate(data, verbose=0)


@pytest.mark.parametrize(
    ("cls", "how"), [(Classifier, {"multilabel": True}), (Regressor, {})]
)
def test_columns_of_labels_of_ids_are_named(shallow, cls, how):
    """For ids, a table's columns may be in any order, as for texts."""
    model = compiled(cls, shallow, ["bad", "good"], **how)
    ids, rows = model.tokenizer(TEXTS), np.array([[1, 0], [1, 1]])
    wanted = model.test_on_batch(ids, rows)
    assert wanted != pytest.approx(model.test_on_batch(ids, rows[:, ::-1]))
    table = {"good": rows[:, 1], "bad": rows[:, 0]}
    frame = pandas.DataFrame(table)
    for labels in (table, frame, frame.astype("Int64"), pyarrow.table(table)):
        assert model.test_on_batch(ids, labels) == pytest.approx(wanted)
    with pytest.raises(InputError, match="the columns bad, good"):
        model.test_on_batch(ids, frame.rename(columns={"bad": "dull"}))


def test_sets_of_classes_of_ids_may_be_names(shallow):
    """For ids, sets of classes may be lists of names of any length."""
    model = compiled(Classifier, shallow, ["bad", "good"], multilabel=True)
    ids = model.tokenizer(TEXTS)
    wanted = model.test_on_batch(ids, np.array([[0, 1], [0, 0]]))
    assert model.test_on_batch(ids, [["good"], []]) == pytest.approx(wanted)
    with pytest.raises(InputError, match=r"y\[1\]: the label must be one of"):
        model.test_on_batch(ids, [["good"], ["bad", "dull"]])


@pytest.mark.parametrize(
    ("labels", "rows"),
    [
        (["good", "bad,good"], [[0, 1], [1, 1]]),
        ([["good"], ["bad"]], [[0, 1], [1, 0]]),
    ],
)
def test_a_data_set_of_ids_may_name_sets_of_classes(shallow, labels, rows):
    """In a data set of ids, sets of classes may be names, as in arrays."""
    model = compiled(Classifier, shallow, ["bad", "good"], multilabel=True)
    ids = model.tokenizer(TEXTS)
    wanted = model.test_on_batch(ids, np.array(rows))
    data = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(2)
    assert model.evaluate(data, verbose=0) == pytest.approx(wanted)


def test_numbers_of_ids_may_be_missing_only_for_your_own_loss(shallow):
    """For ids, a missing number is an error, unless your loss handles it."""
    model = compiled(Regressor, shallow)
    ids = model.tokenizer(TEXTS)
    values = pandas.Series([2.0, 3.0])
    wanted = model.test_on_batch(ids, np.array(values))
    for labels in (values.astype("Float64"), values.astype(str)):
        assert model.test_on_batch(ids, labels) == pytest.approx(wanted)
    for missing in (values.where(values > 2), [None, 3.0]):
        with pytest.raises(InputError, match="must be finite numbers"):
            model.test_on_batch(ids, missing)
    with pytest.raises(InputError, match=r"y\[0\].*Received: label='2,5'"):
        model.test_on_batch(ids, ["2,5", "3"])

    def known(y, found):
        is_known = keras.ops.isfinite(y)
        return keras.ops.abs(keras.ops.where(is_known, y - found, 0.0))

    model.compile(AdamW(0.0), known, run_eagerly=True)
    error = abs(3.0 - model.predict(ids, verbose=0)[1])
    found = model.test_on_batch(ids, values.where(values > 2))
    assert found == pytest.approx(error / 2)


@pytest.mark.parametrize(
    ("cls", "names", "how", "shapes"),
    [
        (Regressor, (), {}, [(2, 2), (2, 3), (2, 1, 1)]),
        (Regressor, ("x", "y"), {}, [(2,), (2, 1), (2, 3), (2, 2, 2)]),
        (Classifier, ("x", "y", "z"), {}, [(2, 2), (2, 4), (2, 1, 1)]),
        (Classifier, ("x", "y"), {"multilabel": True}, [(2,), (2, 1), (2, 3)]),
    ],
)
def test_labels_of_ids_of_another_shape_are_an_error(
    shallow, cls, names, how, shapes
):
    """Labels next to ids are never broadcast to the shape of the outputs."""
    model = compiled(cls, shallow, *([names] if names else []), **how)
    ids = model.tokenizer(TEXTS, max_length=16)
    for shape in shapes:
        for labels in (np.zeros(shape), tf.zeros(shape)):
            with pytest.raises(
                InputError, match=r"Each example.*outputs=\(2, "
            ):
                model.test_on_batch(ids, labels)


def test_labels_for_a_binary_loss_may_be_probabilities(shallow):
    """For ids, a user's binary loss receives labels with fractions."""
    model = compiled(Classifier, shallow, ["bad", "good"])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(AdamW(0.0), loss, run_eagerly=True)
    x, y = model.tokenizer(TEXTS, max_length=16), np.array([0.2, 0.7])
    good = model.predict(x, verbose=0)[:, 1]
    wanted = -np.mean(y * np.log(good) + (1 - y) * np.log(1 - good))
    for labels in (y, [*y], y[:, None]):
        assert model.test_on_batch(x, labels) == pytest.approx(wanted)
        found = model.evaluate(x, labels, verbose=0)
        assert found == pytest.approx(wanted)


@pytest.mark.parametrize(
    "cls, labels, loss, metric",
    [
        (Regressor, [], None, "mae"),
        (Regressor, [], "mse", "mae"),
        (Classifier, [("bad", "good")], None, "accuracy"),
    ],
)
def test_weights_of_ids_may_be_a_column(shallow, cls, labels, loss, metric):
    """Weights [B, 1] and [B] lead to the same loss and metrics."""
    model = compiled(cls, shallow, *labels)
    how = {"weighted_metrics": [metric], "run_eagerly": True}
    model.compile(AdamW(0.0), loss, **how)
    x, weights = model.tokenizer(TEXTS, max_length=16), np.array([1.0, 3.0])
    wanted = model.test_on_batch(x, Y, weights)
    assert model.test_on_batch(x, Y) != pytest.approx(wanted, rel=1e-3)
    column = weights[:, None]
    assert model.test_on_batch(x, Y, column) == pytest.approx(wanted)
    data = tf.data.Dataset.from_tensors((x, Y, column))
    assert model.evaluate(data, verbose=0) == pytest.approx(wanted)
    with pytest.raises(InputError, match="one number for each example"):
        model.test_on_batch(x, Y, np.ones([2, 16]))
    frame = pandas.DataFrame({"weight": [1, 3]}, dtype="Int64")
    for table in (frame, frame["weight"], pyarrow.array([1, 3])):
        found = model.evaluate(x, Y, sample_weight=table, verbose=0)
        assert found == pytest.approx(wanted)
    for unusable in ([1.0, np.nan], frame["weight"].where([True, False])):
        with pytest.raises(InputError, match="one finite number for each"):
            model.evaluate(x, Y, sample_weight=unusable, verbose=0)
        with pytest.raises(InputError, match="one finite number for each"):
            model.test_on_batch(x, Y, unusable)


@pytest.mark.parametrize("y", [["bad", "good"], [0, 1], [[0.0], [1.0]]])
def test_a_batch_has_the_labels_and_weights_of_fit(shallow, y):
    """Labels may be a list or names; class weights may be named."""
    settings = {"classifier_dropout": 0.0, "seed": 2}
    model = compiled(Classifier, shallow, ["bad", "good"], **settings)
    x, labels = model.tokenizer(TEXTS, max_length=16), np.array([0, 1])
    wanted = model.test_on_batch(x, labels, np.array([1.0, 3.0]))
    assert model.test_on_batch(x, labels) != pytest.approx(wanted, rel=1e-3)
    assert model.test_on_batch(x, y, np.array([1, 3])) == pytest.approx(wanted)
    found = model.train_on_batch(x, y, class_weight={"good": 3.0})
    assert found == pytest.approx(wanted)
