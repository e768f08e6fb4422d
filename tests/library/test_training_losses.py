"""Losses of `compile` equal values computed from logits."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_tasks
from tiny_fits import LABELS, compiled

from albert_tf.base.errors import InputError
from albert_tf.library.models import (
    Classifier,
    QuestionAnswerer,
    Regressor,
    Tagger,
)
from albert_tf.library.training_metrics import check_loss, keras_metrics
from albert_tf.training.keras_optimizers import AdamW

TEXTS, NAMES = map(list, zip(*tiny_tasks.opinions(24, 1), strict=True))
NUMBERS = np.array([LABELS.index(name) for name in NAMES])
losses, measures = keras.losses, keras.metrics


@pytest.mark.parametrize(
    "loss",
    [
        losses.sparse_categorical_crossentropy,
        losses.SparseCategoricalCrossentropy,
        losses.KLDivergence(),
        "kld",
        "crossentropy",
        "CE",
        {"logits": losses.binary_crossentropy},
    ],
)
def test_a_loss_of_probabilities_is_refused(classifier, loss):
    """A loss for probabilities is rejected, because models output logits."""
    with pytest.raises(InputError, match="`loss` must accept logits"):
        classifier.compile(loss=loss)


def test_smoothed_labels_are_of_training_alone(shallow):
    """Training smooths labels y to (1 - s) y + s / C; `val_loss` uses y.

    The smoothing is s, and the number of classes is C.
    """
    keras.utils.set_random_seed(1)
    model = Classifier.load(shallow, LABELS, classifier_dropout=0.0)
    model.compile(AdamW(0.0), label_smoothing=0.2, run_eagerly=True)
    how = {"validation_data": (TEXTS, NAMES), "batch_size": 24, "verbose": 0}
    history = model.fit(TEXTS, NAMES, **how).history
    logs = np.log(model.predict(TEXTS, verbose=0).astype(float))
    plain = np.eye(2)[NUMBERS]
    for name, share in (("loss", 0.2), ("val_loss", 0.0)):
        target = (1 - share) * plain + share / 2
        wanted = -(target * logs).sum(axis=1).mean()
        assert history[name][0] == pytest.approx(wanted, rel=1e-5)
    one = {"y": tf.constant([1]), "y_pred": tf.constant([[0.0, 2.0]])}
    smooth, plain = (
        float(model.compute_loss({}, **one, **how))
        for how in ({}, {"training": False})
    )
    assert smooth == pytest.approx(plain + 0.2)
    for value in (1.0, -0.1, "0.1"):
        with pytest.raises(InputError, match="`label_smoothing` must"):
            model.compile(label_smoothing=value)
    rule = "the task's loss. .*label_smoothing=0.5, loss=mse"
    with pytest.raises(InputError, match=rule):
        model.compile(loss="mse", label_smoothing=0.5)
    model.compile(loss="mse", label_smoothing=0)
    with pytest.raises(InputError, match="needs a task with classes"):
        QuestionAnswerer.load(shallow).compile(label_smoothing=0.1)


def test_losses_that_want_one_hot_labels_get_them(classifier):
    """Losses that require one-hot labels receive such labels.

    The values of these losses equal the sparse loss.
    """

    def measured(metrics, **settings):
        how = {"metrics": metrics, "run_eagerly": True, **settings}
        classifier.compile(AdamW(0.0), **how)
        how = {"verbose": 0, "return_dict": True}
        return classifier.evaluate(TEXTS, NUMBERS, **how)

    wanted = measured(None)["loss"]
    for cls in (losses.CategoricalCrossentropy, losses.BinaryCrossentropy):
        loss = cls(from_logits=True)
        found = measured(["categorical_accuracy"], loss=loss)
        assert found["loss"] == pytest.approx(wanted, rel=1e-5)
    right = np.mean(np.array(classifier.classify(TEXTS)) == NAMES)
    assert found["categorical_accuracy"] == pytest.approx(right)


@pytest.mark.parametrize("weights", [None, [1.0, 0.0, 4.0]])
def test_an_evaluated_loss_does_not_depend_on_the_batches(shallow, weights):
    """For any batch size, the loss is the weighted mean over all words.

    Each word has the weight of its example.
    """
    model = compiled(Tagger, shallow, ["O", "B-X"])
    data = (
        [["a"], ["so", "bad", "so"], ["good", "film"]],
        [[0], [1, 1, 1], [0, 1]],
    )
    found = [
        model.evaluate(*data, size, weights, verbose=0) for size in (1, 2, 3)
    ]
    assert found == pytest.approx([found[-1]] * 3, rel=1e-5)


def test_a_word_has_the_weight_of_its_example(shallow):
    """The loss of tags is the weighted mean over words, not over examples.

    Labels may be among the inputs; without any labels, there is an error.
    """
    model = Tagger.load(shallow, ["a", "b"])
    model.compile()
    tags = np.array([[-1, 0, -1, -1], [1, 0, -1, 1]])
    logits = np.random.default_rng(0).normal(size=[2, 4, 2]).astype("f4")
    given, *others = map(tf.constant, (tags, logits, np.float32([5, 1])))
    found = float(model.compute_loss({}, given, *others, training=False))
    inputs = {"labels": given}, None
    again = model.compute_loss(*inputs, *others, training=False)
    assert float(again) == found
    with pytest.raises(InputError, match="Ids need labels"):
        model.compute_loss({}, None, *others)
    logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    rows, places = np.nonzero(tags >= 0)
    losses = -logs[rows, places, tags[rows, places]]
    wanted = np.average(losses, weights=[5, 1, 1, 1])
    assert found == pytest.approx(wanted, rel=1e-5)


def test_the_reduction_of_a_loss_is_respected(shallow):
    """A sum over words is a sum, and weights of variables are added.

    Tokens without a tag are ignored.
    """
    model = Tagger.load(shallow, ["a", "b"])
    entropy = losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="sum"
    )
    tags = np.array([[-1, 0, 1, -1], [1, -1, -1, -1]])
    logits = np.zeros([2, 4, 2], "f4")
    arguments = {}, tf.constant(tags), tf.constant(logits)
    for loss, wanted in ((entropy, 3 * np.log(2)), (None, np.log(2))):
        model.compile(loss=loss)
        found = float(model.compute_loss(*arguments))
        assert found == pytest.approx(wanted, rel=1e-5)
    kernel = model.named_weights()["classifier/kernel"]
    (variable,) = (v for v in model.weights if v.value is kernel)
    variable.regularizer = keras.regularizers.L2(0.25)
    penalty = 0.25 * np.square(kernel).sum()
    found = float(model.compute_loss(*arguments))
    assert found == pytest.approx(np.log(2) + penalty, rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        ("mse", lambda y, x: ((y - x) ** 2).mean()),
        (losses.MeanAbsoluteError(), lambda y, x: abs(y - x).mean()),
        ("hinge", lambda y, x: np.maximum(1 - (2 * y - 1) * x, 0).mean()),
    ],
)
def test_losses_of_every_output_get_a_label_of_each(shallow, loss, wanted):
    """A loss over all outputs compares each output with its own label."""
    model = Classifier.load(shallow, LABELS)
    model.compile(loss=loss, metrics=["mse"], run_eagerly=True)
    y, outputs = np.array([1, 1]), np.array([[0.5, 2.0], [0.25, -1.0]], "f4")
    found = model.compute_loss({}, tf.constant(y), tf.constant(outputs))
    rows = np.eye(2)[y]
    assert float(found) == pytest.approx(wanted(rows, outputs), rel=1e-5)
    (metric,) = keras_metrics(["mse"], model.task, model.task.objective)
    metric.update_state(tf.constant(y), tf.constant(outputs))
    mean = ((rows - outputs) ** 2).mean()
    assert float(metric.result()) == pytest.approx(mean, rel=1e-5)


class Distance(keras.losses.Loss):
    """A loss written by a user."""

    def call(self, y_true, y_pred):
        return tf.abs(y_true - y_pred)


def distance(y_true, y_pred):
    """Return the mean distance, as a user's metric."""
    return tf.reduce_mean(tf.abs(y_true - y_pred))


@pytest.mark.parametrize("loss", [Distance(), distance, "mae"])
@pytest.mark.parametrize("labels", [None, ["joy", "fear"]])
def test_numbers_are_compared_with_their_own_labels(shallow, loss, labels):
    """A user's loss or metric compares each number with its own label."""
    model = Regressor.load(shallow, labels)
    model.compile(loss=loss, metrics=[distance, "mae"], run_eagerly=True)
    outputs = np.array([[1.0, 5.0], [2.0, -4.0], [8.0, 0.5]], "f4")
    y = np.array([[2.0, 5.5], [2.5, 3.0], [4.0, 0.0]], "f4")
    if labels is None:
        outputs, y = outputs[:, :1], y[:, 0]
    wanted = np.abs(outputs - y.reshape(outputs.shape)).mean()
    arguments = {}, tf.constant(y), tf.constant(outputs)
    assert float(model.compute_loss(*arguments)) == pytest.approx(wanted)
    found = model.compute_metrics(*arguments)
    assert float(found["distance"]) == pytest.approx(wanted)
    assert float(found["mae"]) == pytest.approx(wanted)


def test_shares_of_classes_are_not_rounded(shallow):
    """The loss for a share of each class is the weighted cross entropy."""
    model = Classifier.load(shallow, ["a", "b", "c"])
    model.compile()
    shares = np.array([[0.7, 0.2, 0.1], [0.0, 0.4, 0.6]], "f4")
    logits = np.array([[0.5, 3, -1], [2, 0, 1.0]], "f4")
    weights = np.array([1.0, 4.0], "f4")
    arguments = map(tf.constant, (shares, logits, weights))
    found = model.compute_loss({}, *arguments, training=False)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    losses = -(shares * logs).sum(axis=1)
    assert float(found) == pytest.approx(np.average(losses, weights=weights))


def test_your_own_metrics_of_classes_get_numbers_and_logits(shallow):
    """A user's metric receives class indices and logits; Keras's gets rows.

    Each metric has the name of its function.
    """
    seen = []

    def seeing(y_true, y_pred):
        seen.append((y_true.numpy().tolist(), y_pred.numpy().tolist()))
        return tf.reduce_max(y_pred, axis=-1)

    model = Classifier.load(shallow, ["a", "b", "c"])
    metrics = [seeing, measures.mean_absolute_error]
    model.compile(metrics=metrics, run_eagerly=True)
    y, outputs = np.array([2, 0]), np.array([[0.5, 3, -1], [7, 2, 4.0]], "f4")
    found = model.compute_metrics({}, tf.constant(y), tf.constant(outputs))
    assert seen == [(y.tolist(), outputs.tolist())]
    assert {*found} == {"loss", "seeing", "mean_absolute_error"}
    assert float(found["seeing"]) == 5
    wanted = np.abs(np.eye(3)[y] - outputs).mean()
    assert float(found["mean_absolute_error"]) == pytest.approx(wanted)


def test_a_loss_that_nobody_has_is_refused(shallow):
    """`compile` raises an error for an unknown loss."""
    with pytest.raises(InputError, match="`loss` must be a Keras loss"):
        Classifier.load(shallow, LABELS).compile(loss="crossentropie")
    with pytest.raises(InputError, match="a function: .*Received: loss=7"):
        check_loss(7)


def test_a_thawed_encoder_has_no_layer_without_a_gradient(shallow):
    """Unfreezing the encoder leaves an unused pooler frozen."""
    for cls, reads in ((Tagger, False), (Classifier, True)):
        model = cls.load(shallow, LABELS)
        model.albert.trainable = False
        model.albert.trainable = True
        model.compile("adam")
        assert model.albert.pooler.trainable == reads
