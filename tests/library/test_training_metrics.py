"""Metrics of `compile` equal values computed from logits."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_tasks
from sklearn import metrics as sklearn_metrics
from tiny_fits import LABELS, compiled

from albert_tf.base.errors import InputError
from albert_tf.library.models import (
    Classifier,
    QuestionAnswerer,
    Regressor,
    Tagger,
)
from albert_tf.library.training_metrics import (
    Adapted,
    adapted,
    keras_metrics,
    label_form,
    official_names,
    takes_probabilities,
    weight_rows,
)
from albert_tf.tasks.losses import TagObjective
from albert_tf.tasks.registry import find
from albert_tf.training.keras_optimizers import AdamW

TEXTS, NAMES = map(list, zip(*tiny_tasks.opinions(24, 1), strict=True))
NUMBERS = np.array([LABELS.index(name) for name in NAMES])
losses, measures = keras.losses, keras.metrics


def test_weights_of_unknown_rank_are_rows():
    """Weights [B], then [B, 1], are rows in one graph for both shapes.

    Keras traces a step for an unknown rank if the rank of weights changes.
    """
    rows = tf.function(weight_rows, [tf.TensorSpec(None)])
    for weights in ([1.0, 3.0], [[1.0], [3.0]]):
        assert rows(weights).numpy().tolist() == [1.0, 3.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="32 values"):
        rows(np.ones([2, 16], "f4"))


class UsersLoss(losses.Loss):
    """A user's loss, which may have an attribute `from_logits`."""

    def __init__(self, **settings):
        super().__init__()
        vars(self).update(settings)


@pytest.mark.parametrize(
    ("thing", "wrong"),
    [
        (UsersLoss(), False),
        (UsersLoss(from_logits=True), False),
        (UsersLoss(from_logits=False), True),
        (UsersLoss(_from_logits=False), True),
        (losses.sparse_categorical_crossentropy, True),
        (losses.binary_focal_crossentropy, True),
        (losses.BinaryCrossentropy(), True),
        (losses.BinaryCrossentropy(from_logits=True), False),
        (
            functools.partial(losses.binary_crossentropy, from_logits=True),
            False,
        ),
        (functools.partial(losses.binary_crossentropy, axis=-1), True),
        (losses.KLDivergence(), True),
        (losses.kl_divergence, True),
        (losses.Dice(), True),
        (losses.Poisson(), True),
        (losses.Tversky(), True),
        (losses.mean_squared_error, False),
        (losses.CategoricalHinge(), False),
        (measures.AUC(), True),
        (measures.AUC(from_logits=True), False),
        (measures.Precision(), True),
        (measures.Recall(thresholds=[0.2, 0.5]), True),
        (measures.BinaryAccuracy(), True),
        (measures.BinaryAccuracy(threshold=0.0), False),
        (measures.binary_accuracy, True),
        (measures.F1Score(threshold=0.5), True),
        (measures.F1Score(), False),
        (measures.SparseCategoricalAccuracy(), False),
        (measures.SparseCategoricalCrossentropy(), True),
        (lambda y, y_pred: y_pred, False),
    ],
)
def test_what_takes_probabilities_is_told_apart(thing, wrong):
    """Losses and metrics that require probabilities are recognized."""
    assert takes_probabilities(thing) == wrong


@pytest.mark.parametrize(
    ("thing", "form"),
    [
        (losses.CategoricalCrossentropy(), "rows"),
        (losses.SparseCategoricalCrossentropy(), "numbers"),
        (losses.sparse_categorical_crossentropy, "numbers"),
        (losses.MeanSquaredError(), "rows"),
        (losses.BinaryCrossentropy(), "binary"),
        (losses.Hinge(), "rows"),
        (measures.CategoricalAccuracy(), "rows"),
        (measures.SparseTopKCategoricalAccuracy(), "numbers"),
        (measures.F1Score(threshold=0.5), "rows"),
        (measures.Precision(), "binary"),
        (measures.Precision(class_id=0), "rows"),
        (measures.BinaryAccuracy(), "binary"),
        (measures.AUC(), "binary"),
        (measures.AUC(multi_label=True), "rows"),
        (measures.BinaryIoU(), "binary"),
        (measures.MeanIoU(3), "numbers"),
        (measures.OneHotMeanIoU(3), "rows"),
        (measures.CosineSimilarity(), "rows"),
    ],
)
def test_each_metric_expects_a_form_of_labels(thing, form):
    """A loss or metric expects one-hot rows, binary labels or class indices."""
    assert label_form(thing) == form


def measured(model, metrics, y=NUMBERS, **compiled):
    """Return {name: value} for Keras metrics."""
    model.compile(AdamW(0.0), metrics=metrics, run_eagerly=True, **compiled)
    return model.evaluate(TEXTS, y, verbose=0, return_dict=True)


def threshold(model, classes=1):
    """Return a probability that clearly separates two halves of the texts.

    The head receives random weights under which the texts' scores differ.

    Args:
      model: the model.
      classes: the number of classes that share a softmax.
    """
    head = model.network.classifier
    rng = np.random.default_rng(0)
    head.kernel.assign(rng.normal(size=head.kernel.shape))
    scores = model.predict(TEXTS, verbose=0)
    scores = np.log(scores / (1 - scores))
    scale = 0.5 / scores.std(axis=0)
    head.kernel.assign(head.kernel * scale)
    head.bias.assign(-np.median(scores, axis=0) * scale / classes)
    shares = np.sort(model.predict(TEXTS, verbose=0)[:, -1])
    gaps = np.diff(shares[6:-6])
    return float(shares[6 + gaps.argmax()] + gaps.max() / 2)


def test_metrics_with_and_without_weights(shallow):
    """`weighted_metrics` use the examples' weights; `metrics` do not.

    Metrics keep the names that `compile` received, even if a model is compiled
    from a config, as in a file.
    """
    model = compiled(Classifier, shallow, LABELS)
    texts, names = TEXTS[:9], NAMES[:9]
    head = model.network.classifier
    head.kernel.assign(np.random.default_rng(0).normal(size=head.kernel.shape))
    odds = np.subtract(*np.log(model.predict(texts, verbose=0)).T)
    half, scale = np.median(odds), 1 / odds.std()
    head.kernel.assign(head.kernel * scale)
    head.bias.assign([1e-3 - half * scale, 0])
    found = np.where(odds >= half, *LABELS)
    model.compile(
        AdamW(0.0),
        metrics=["acc", "Matthews"],
        weighted_metrics=["accuracy", "sparse_categorical_accuracy", "f1"],
        run_eagerly=True,
    )
    model.compile_from_config(model.get_compile_config())
    right = found == names
    weights = np.where(right, 1.0, 5.0) * np.linspace(1, 2, 9)
    share = np.average(right, weights=weights)
    wanted = {
        "acc": right.mean(),
        "accuracy": share,
        "sparse_categorical_accuracy": share,
        "matthews": sklearn_metrics.matthews_corrcoef(names, found),
        "f1": sklearn_metrics.f1_score(names, found, pos_label="good"),
    }
    assert len({round(x, 3) for x in wanted.values()}) == 4
    how = {"sample_weight": weights, "verbose": 0, "return_dict": True}
    logs = model.evaluate(texts, names, batch_size=5, **how)
    assert {*logs} == {"loss", *wanted}
    assert {k: logs[k] for k in wanted} == pytest.approx(wanted, abs=1e-6)


def test_a_metric_starts_anew():
    """A reset metric forgets earlier batches; it keeps its direction."""
    task = dataclasses.replace(find("classification"), labels=LABELS)
    (metric,) = keras_metrics(
        [measures.BinaryCrossentropy()], task, task.objective
    )
    assert metric._direction == "down"
    logits = tf.constant([[0.0, 2.0], [1.0, 0.0]])
    metric.update_state(tf.constant([0, 0]), logits)
    metric.reset_state()
    metric.update_state(tf.constant([1, 1]), logits)
    shares = np.exp([2.0, 0.0]) / (np.exp([2.0, 0.0]) + np.exp([0.0, 1.0]))
    wanted = -np.log(shares).mean()
    assert float(metric.result()) == pytest.approx(wanted, rel=1e-5)


def test_metrics_of_one_decision_are_about_class_1(classifier):
    """For two classes, binary metrics use the second class's probability."""
    half = threshold(classifier, classes=2)
    shares = classifier.predict(TEXTS, verbose=0)[:, 1]
    found = measured(
        classifier,
        [
            measures.Precision(name="precision", thresholds=half),
            measures.Recall(name="recall", thresholds=half),
            measures.BinaryAccuracy(name="right", threshold=half),
            measures.BinaryIoU([1], name="overlap", threshold=half),
            measures.BinaryCrossentropy(name="entropy"),
            measures.F1Score(name="f1_score"),
            measures.AUC(name="area", num_thresholds=5000),
            "auc",
        ],
    )
    chosen = shares > half
    how = NUMBERS, chosen
    wanted = {
        "precision": sklearn_metrics.precision_score(*how),
        "recall": sklearn_metrics.recall_score(*how),
        "right": np.mean(NUMBERS == chosen),
        "overlap": sklearn_metrics.jaccard_score(*how),
        "entropy": sklearn_metrics.log_loss(NUMBERS, shares),
        "area": sklearn_metrics.roc_auc_score(NUMBERS, shares),
        "loss": sklearn_metrics.log_loss(NUMBERS, shares),
    }
    assert {k: found[k] for k in wanted} == pytest.approx(wanted, abs=1e-5)
    best = [LABELS.index(x) for x in classifier.classify(TEXTS)]
    each = sklearn_metrics.f1_score(NUMBERS, best, average=None)
    np.testing.assert_allclose(found["f1_score"], each, atol=1e-6)


def test_metrics_of_a_set_of_classes(shallow):
    """For sets of classes, Keras metrics receive probabilities, not logits."""
    keras.utils.set_random_seed(3)
    model = Classifier.load(shallow, LABELS, multilabel=True)
    flags, half = np.eye(2)[NUMBERS], threshold(model)
    shares = model.predict(TEXTS, verbose=0)
    metrics = [
        measures.BinaryAccuracy(name="right", threshold=half),
        measures.AUC(name="auc", multi_label=True, num_thresholds=2000),
        measures.Precision(name="precision", thresholds=half),
    ]
    found = measured(model, metrics, flags)
    assert found["right"] == pytest.approx(np.mean(flags == (shares > half)))
    wanted = sklearn_metrics.precision_score(
        flags.ravel(), shares.ravel() > half
    )
    assert found["precision"] == pytest.approx(wanted)
    area = sklearn_metrics.roc_auc_score(flags, shares)
    assert found["auc"] == pytest.approx(area, abs=1e-3)


@pytest.mark.slow
def test_official_metrics_are_those_of_score(classifier):
    """Official metrics are computed over all examples, not per batch."""
    names = ["accuracy", "macro_f1", "matthews", "f1"]
    classifier.compile(AdamW(0.01), metrics=names, run_eagerly=True)
    how = {"batch_size": 5, "epochs": 2, "verbose": 0}
    history = classifier.fit(TEXTS, NAMES, validation_split=0.5, **how).history
    assert "f1" not in history and "matthews" not in history
    found = classifier.evaluate(
        TEXTS[12:], NAMES[12:], batch_size=5, verbose=0, return_dict=True
    )
    predicted = classifier.classify(TEXTS[12:])
    wanted = {
        "accuracy": sklearn_metrics.accuracy_score(NAMES[12:], predicted),
        "macro_f1": sklearn_metrics.f1_score(
            NAMES[12:], predicted, average="macro"
        ),
        "matthews": sklearn_metrics.matthews_corrcoef(NAMES[12:], predicted),
        "f1": sklearn_metrics.f1_score(NAMES[12:], predicted, pos_label="good"),
    }
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, abs=1e-6)
        assert history[f"val_{name}"][-1] == pytest.approx(value, abs=1e-6)
    classifier.compile(AdamW(0.01), run_eagerly=True)
    assert classifier.evaluate(
        TEXTS, NAMES, verbose=0, return_dict=True
    ).keys() == {"loss"}


def test_a_file_keeps_the_metrics(classifier, tmp_path):
    """A file restores official metrics as well as Keras's metrics."""
    metrics = ["accuracy", "f1", measures.AUC(name="auc")]
    classifier.compile(
        AdamW(0.0), metrics=metrics, label_smoothing=0.2, run_eagerly=True
    )
    wanted = classifier.evaluate(TEXTS, NAMES, verbose=0, return_dict=True)
    classifier.save(tmp_path / "film.keras")
    again = keras.models.load_model(tmp_path / "film.keras")
    found = again.evaluate(TEXTS, NAMES, verbose=0, return_dict=True)
    assert found == pytest.approx(wanted, abs=1e-6)
    assert set(found) == {"loss", "accuracy", "f1", "auc"}
    assert again.label_smoothing == 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        ("array", "uint8"),
        ("array", "float64"),
        ("stream", "int64"),
        ("stream", bool),
    ],
)
def test_labels_beside_ids_are_those_beside_texts(shallow, form, dtype):
    """With labels of any type and shape, ids and texts have equal results."""
    flags = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], dtype)
    row = np.array([1, 0, 1, 1], dtype)
    cases = [
        (Classifier, {"num_labels": 2}, [row, row[:, None]]),
        (Regressor, {}, [row, row[:, None]]),
        (Regressor, {"num_labels": 2}, [flags]),
        (Classifier, {"num_labels": 2, "multilabel": True}, [flags]),
    ]
    for cls, how, labels in cases:
        keras.utils.set_random_seed(1)
        model = cls.load(shallow, classifier_dropout=0.0, **how)
        metrics = model.task.objective.metrics
        model.compile(AdamW(0.0), metrics=[*metrics], run_eagerly=True)
        texts = TEXTS[: len(row)]
        ids = model.tokenizer(texts, max_length=16)
        for y in labels:
            wanted = model.evaluate(texts, y.astype(int).tolist(), verbose=0)
            data = ids, y
            if form == "stream":
                data = tf.data.Dataset.from_tensor_slices(data).batch(4), None
            found = model.evaluate(*data, verbose=0)
            assert found == pytest.approx(wanted, rel=1e-5)


def test_official_metrics_need_texts(classifier):
    """Requesting official metrics for ids instead of texts is an error."""
    classifier.compile(AdamW(0.0), metrics=["f1"], run_eagerly=True)
    ids = classifier.tokenizer(TEXTS)
    for how in ({"validation_data": (ids, NUMBERS)}, {"validation_split": 0.5}):
        with pytest.raises(InputError, match="need texts and labels"):
            classifier.fit(ids, NUMBERS, **how)
    with pytest.raises(InputError, match="need texts and labels"):
        classifier.evaluate(ids, NUMBERS)


def test_tokens_without_a_tag_count_in_no_metric(shallow):
    """Keras's losses and metrics of tags equal the task's own, word by word.

    Tokens without a tag are ignored.
    """
    keras.utils.set_random_seed(1)
    model = Tagger.load(shallow, ["O", "B-X"])
    words, tags = [["a", "good", "film"], ["so", "bad"]], [[0, 1, 0], [1, 1]]
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    how = {"verbose": 0, "return_dict": True}
    model.compile(AdamW(0.0), metrics=["accuracy", "f1"], run_eagerly=True)
    wanted = model.evaluate(words, tags, **how)
    names = ["sparse_categorical_accuracy"]
    model.compile(AdamW(0.0), loss=loss, metrics=names, run_eagerly=True)
    found = model.evaluate(words, tags, **how)
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
    assert found[names[0]] == pytest.approx(wanted["accuracy"])


def test_xla_leaves_out_tokens_without_a_tag():
    """Compiled with XLA, losses and metrics ignore tokens without a tag."""
    rng = np.random.default_rng(2)
    tags = np.array([[-1, 0, 2, -1], [1, -1, -1, -1]], np.int32)
    logits = rng.normal(size=[2, 4, 3]).astype("f4")
    weights, words = np.array([1.0, 3.0], "f4"), tags >= 0
    task = find("token_classification")
    task = dataclasses.replace(task, labels=("a", "b", "c"))
    objective = TagObjective(task)
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    auc = measures.AUC(num_thresholds=500)
    metric = Adapted(auc, objective)

    @tf.function(jit_compile=True, autograph=False)
    def compiled(tags, logits, weights):
        metric.update_state(tags, logits, weights)
        return loss(*adapted(loss, objective, tags, logits, weights))

    found = compiled(*map(tf.constant, (tags, logits, weights)))
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    rows, _ = np.nonzero(words)
    right = chances[words][np.arange(len(rows)), tags[words]]
    wanted = np.mean(-np.log(right) * weights[rows])
    assert float(found) == pytest.approx(wanted, rel=1e-5)
    area = sklearn_metrics.roc_auc_score(
        np.eye(3)[tags[words]].ravel(),
        chances[words].ravel(),
        sample_weight=np.repeat(weights[rows], 3),
    )
    assert float(metric.result()) == pytest.approx(area, abs=0.01)


@pytest.mark.parametrize(("labels", "more"), [("ab", {"f1"}), ("abc", set())])
def test_names_of_official_metrics(labels, more):
    """A task has its own and its kind's metrics and, for two classes, F1."""
    task = dataclasses.replace(find("classification"), labels=(*labels,))
    task = dataclasses.replace(task, scores=("micro_f1", "accuracy"))
    wanted = {"micro_f1", "accuracy", "macro_f1", "matthews"}
    assert official_names(task) == wanted | more


@pytest.mark.parametrize(
    ("cls", "labels", "metric", "rule"),
    [
        (Classifier, "abc", "f1", "accuracy, .*, and Keras's metrics"),
        (Classifier, "abc", "accurcy", "accuracy, .*, and Keras's metrics"),
        (Classifier, "abc", 7, "accuracy, .*, and Keras's metrics"),
        (Regressor, "", "accuracy", ".*, spearman, and Keras's metrics"),
        (Regressor, "", "acc", ".*, spearman, and Keras's metrics"),
        (QuestionAnswerer, "", "mse", "f1"),
    ],
)
def test_a_metric_that_a_task_lacks_is_refused(
    shallow, cls, labels, metric, rule
):
    """The error for an unsuitable metric lists the metrics of the task."""
    model = cls.load(shallow, *[[*labels]] * bool(labels))
    message = f"may be {rule}. Received: metrics={metric}$"
    with pytest.raises(InputError, match=message):
        model.compile(metrics=[metric])
