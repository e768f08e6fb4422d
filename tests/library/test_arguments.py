"""Models pass arguments on correctly; no neural network is run."""

import dataclasses
import inspect
import itertools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.library.base_model import check_keywords
from albert_tf.library.models import Classifier, Tagger
from albert_tf.library.network_model import NetworkModel
from albert_tf.library.pretrained_model import Albert
from albert_tf.library.task_model import TaskModel, checked_batch_size
from albert_tf.tasks.registry import find

IDS = {"input_ids": np.ones([2, 4], np.int32)}


def test_classes_have_names_in_keras_files():
    """Keras files store the public name of each layer class, not its module."""
    for name in albert_tf.PUBLIC:
        thing = getattr(albert_tf, name)
        if isinstance(thing, type) and issubclass(thing, keras.Layer):
            wanted = f"albert_tf>{name}"
            assert keras.saving.get_registered_name(thing) == wanted


def test_fit_has_the_defaults_of_keras():
    """The arguments that `fit` shares with Keras have the same defaults."""
    ours, theirs = (
        {
            name: parameter.default
            for name, parameter in inspect.signature(cls.fit).parameters.items()
        }
        for cls in (TaskModel, keras.Model)
    )
    same = ours.keys() & theirs.keys() - {"self", "kwargs"}
    assert {"batch_size", "epochs", "shuffle", "validation_split"} <= same
    assert {n: ours[n] for n in same} == {n: theirs[n] for n in same}


def test_batches_have_32_examples_by_default():
    """A batch has at least one example, and 32 by default."""
    assert [checked_batch_size(x) for x in (None, 1, 33)] == [32, 1, 33]
    with pytest.raises(InputError, match="at least 1. Received: batch_size=0"):
        checked_batch_size(0)


def fake(**values):
    """Return a stand-in for a model or a task, with the given attributes."""
    return types.SimpleNamespace(**values)


@pytest.mark.parametrize(
    ("unlabeled", "x", "found"),
    [
        (False, (["a"], [1]), (["a"], [1], 5)),
        (False, (["a"],), (["a"], None, 5)),
        (False, (["a"], [1], [0.5]), (["a"], [1], [0.5])),
        (False, ["a"], (["a"], None, 5)),
        (True, (["a"], ["b"]), ((["a"], ["b"]), None, 5)),
        (True, ((["a"], ["b"]), [1]), ((["a"], ["b"]), [1], 5)),
        (True, ({"text": ["a"]}, [1]), ({"text": ["a"]}, [1], 5)),
        (True, (), ((), None, 5)),
    ],
)
def test_a_tuple_has_labels_and_weights(unlabeled, x, found):
    """A tuple contains texts, labels and weights.

    If labels are separate or not needed, a tuple may contain columns of texts.
    """
    model = fake(task=fake(unlabeled=unlabeled))
    unpacked = TaskModel.unpacked(model, x, None, 5)
    assert unpacked[:2] == found[:2] and unpacked[2] == found[2]
    assert TaskModel.unpacked(model, x, [9], 5) == (x, [9], 5)


def test_metrics_that_examples_lack_are_named():
    """Requesting a metric that the examples do not allow is an error.

    Examples are predicted and scored with the settings that they imply.
    """
    fitted = fake(score=lambda examples, predictions: {"mrr": predictions})

    def predictor(size, task, verbose):
        assert verbose == 0 and task is fitted
        return fake(predictions=lambda examples: size)

    model = fake(task=fake(fitted=lambda _: fitted), predictor=predictor)
    assert TaskModel._scores(model, ["a"], 3) == {"mrr": 3}
    assert TaskModel._scores(model, ["a"], 3, ["mrr"]) == {"mrr": 3}
    with pytest.raises(InputError, match="only the metrics mrr. .*=pearson$"):
        TaskModel._scores(model, ["a"], 3, ["mrr", "pearson"])


@pytest.mark.parametrize("weights", [None, [1, 2, 3, 4, 5, 6, 7, 8]])
def test_the_last_examples_are_held_out(weights):
    """The last examples, with their weights, are held out in order.

    If one of the parts would have no examples, an error is raised.
    """
    model = fake(
        weighted_examples=lambda x, y, weights, part: (x, weights),
        _in_memory=lambda *data: data,
    )
    numbers = list(range(8))
    train, others, held_out = TaskModel._divided(
        model, numbers, None, weights, 4, "shuffle", 0.3
    )
    # As in Keras, the size of the first part is rounded down.
    first, last = (weights[:5], weights[5:]) if weights else (None, None)
    assert train == (numbers[:5], first, 4, "shuffle")
    assert others == (numbers[5:], last, 4)
    assert held_out == numbers[5:]
    for share in (0.0, 0.99):
        with pytest.raises(InputError, match="examples in both parts"):
            TaskModel._divided(model, numbers, None, weights, 4, True, share)


def test_only_training_shuffles_texts():
    """Texts are shuffled in training if requested, but not in evaluation."""
    model = fake(
        weighted_examples=lambda x, y, weights, part: ([x, y, part], weights),
        _in_memory=lambda *data: data,
    )
    how = ["a"], [1], [0.5], 4
    train = TaskModel._arguments(model, *how, "train", "shuffle")
    assert train == {"x": ([["a"], [1], "train"], [0.5], 4, "shuffle")}
    others = TaskModel._arguments(model, *how, "eval")
    assert others == {"x": ([["a"], [1], "eval"], [0.5], 4, False)}


class Recorder:
    """A stand-in for a model; its methods return their arguments."""

    def __init__(self, official):
        self.official = official

    def _check_official(self, of_ids):
        assert not (of_ids and self.official), "refused"

    def _divided(self, *data):
        return "train", "others", data

    def _arguments(self, *data):
        return {"x": data}

    def _labeled(self, data):
        return ["labeled", data]


@pytest.mark.parametrize("official", [[], ["f1"]])
def test_data_of_fit_are_divided_or_given(official):
    """With `validation_split`, the model divides texts, and Keras divides ids.

    Explicit validation data take precedence. Official metrics cannot be
    computed for ids.
    """
    model = Recorder(official)

    def converted(x, share, validation=None):
        data = x, "y", None, 4
        return TaskModel._fit_data(model, data, share, validation, 2, "mix")

    texts = ["a"]
    assert converted(texts, 0.25) == (
        {"x": "train", "validation_data": "others"},
        (texts, "y", None, 4, "mix", 0.25),
    )
    training = {"x": (texts, "y", None, 4, "train", "mix")}
    assert converted(texts, 0.0) == (training | {"validation_split": 0.0}, None)
    found, held_out = converted(texts, 0.0, (["b"], [1]))
    others = (["b"], [1]), None, None, 2, "eval"
    others = (others, None, None)  # no separate labels or weights
    assert found == training | {
        "validation_data": others,
        "validation_split": 0.0,
    }
    wanted = ["labeled", (["b"], [1])] if official else None
    assert held_out == wanted
    training = {"x": (IDS, "y", None, 4, "train", "mix")}
    assert converted(IDS, 0.0) == (training | {"validation_split": 0.0}, None)
    for share, validation in ((0.25, None), (0.0, (IDS, [1, 0]))):
        if official:
            with pytest.raises(AssertionError, match="refused"):
                converted(IDS, share, validation)
        else:
            assert converted(IDS, share, validation)[0]["validation_split"] == (
                share
            )


@pytest.fixture(scope="module")
def models(words):
    """Return models whose networks are never run."""
    made = []
    for cls in (Classifier, Tagger):
        task = find(cls.kinds[0]).updated(max_seq_length=16)
        task = dataclasses.replace(task, labels=("bad", "good"))
        made.append(cls(tiny.SHALLOW, task, words))
    return made


def test_xla_must_be_requested(shallow, monkeypatch):
    """On a GPU too, models use XLA only after `compile(jit_compile=True)`."""
    devices = [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda: devices)
    model = Classifier.load(shallow, ["a", "b"])
    assert keras.Model().jit_compile
    assert not model.jit_compile and model.bucketed
    model.compile()
    assert not model.jit_compile


def test_the_last_call_of_compile_counts(models):
    """`compile` passes Keras's own settings on, and keeps no earlier metric."""
    model = models[0]
    model.compile(metrics=["accuracy", "matthews"], steps_per_execution=3)
    assert model.steps_per_execution == 3
    assert [metric.name for metric in model.official] == ["matthews"]
    model.compile()
    assert model.steps_per_execution == 1
    assert model.official == []
    assert {*model.get_metrics_result()} == {"loss"}


def test_how_fit_sizes_batches(models, monkeypatch):
    """Validation batches have their own size or the size of training batches.

    Validation data take precedence over a share of the training data.
    """
    model, calls = models[0], []
    model.compile()
    assert model.bucketed

    def fit_data(data, share, validation_data, size, shuffle):
        calls.append((data[3], share, validation_data, size, shuffle))
        raise InputError("stop")

    monkeypatch.setattr(model, "_fit_data", fit_data)
    for how in (
        {},
        {"batch_size": 4},
        {"batch_size": 4, "validation_batch_size": 2, "shuffle": False},
        {"validation_split": 0.25},
        {"validation_split": 0.25, "validation_data": ("c", "d")},
    ):
        with pytest.raises(InputError, match="stop"):
            model.fit(["a"], ["bad"], **how)
    assert calls == [
        (None, 0.0, None, None, True),
        (4, 0.0, None, 4, True),
        (4, 0.0, None, 2, False),
        (None, 0.25, None, None, True),
        (None, 0.0, ("c", "d"), None, True),
    ]
    model.compile(jit_compile=True)
    assert not model.bucketed


def test_how_fit_calls_keras(models, monkeypatch):
    """Keras shuffles ids if requested, but never the batches of texts.

    Ids are in a dict or a `PyDataset`. The model forgets the held-out examples
    at the end, even after an error.
    """
    model, calls = models[0], []

    def fit(model, shuffle, **how):
        calls.append((shuffle, model._held_out))
        raise InputError("stop")

    monkeypatch.setattr(NetworkModel, "fit", fit)
    batches = keras.utils.PyDataset()
    for x, held_out in ((IDS, None), (batches, None), ("batches", ["a"])):
        data = {"x": x}, held_out
        monkeypatch.setattr(model, "_fit_data", lambda *_, data=data: data)
        for shuffle in (True, False):
            model.compile()
            with pytest.raises(InputError, match="stop"):
                model.fit(["a"], ["bad"], shuffle=shuffle)
            assert model._held_out is None
    wanted = [(True, None), (False, None)] * 2 + [(False, ["a"])] * 2
    assert calls == wanted


@pytest.mark.parametrize(
    "call",
    [
        lambda model, **how: model.predictor(**how),
        lambda model, **how: model.predict([], **how),
        lambda model, **how: model.predictions([], **how),
        lambda model, **how: model.predict({"input_ids": [[1]]}, **how),
        lambda model, **how: model.evaluate([], [], **how),
        lambda model, **how: model.fit([], [], **how),
    ],
)
def test_unknown_keywords_are_rejected_at_once(models, call):
    """The error lists the legal keywords before any data are read."""
    models[0].compile()
    rule = "must be among .*verbose.*; did you mean `verbose`.* verboze=2$"
    with pytest.raises(InputError, match=rule):
        call(models[0], verboze=2)


def test_names_that_begin_with_an_underscore(shallow):
    """Only methods that Keras calls accept such keywords; `load` does not."""
    check_keywords({"_cached": 1}, keras.Model.evaluate)
    for load in (Albert.load, Classifier.load):
        with pytest.raises(InputError, match="among .* Received: _foo=1$"):
            load(shallow, _foo=1)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InputError("no row 7"), InputError),
        (ValueError("no row 7"), tf.errors.InvalidArgumentError),
    ],
)
def test_errors_in_data_sets_are_raised(models, error, kind):
    """An `InputError` in a function of a data set keeps its type.

    TensorFlow raises other errors of Python as its own.
    """

    def fail(ids):
        raise error

    def function(ids):
        read = tf.numpy_function(fail, [ids], ids.dtype)
        return {"input_ids": tf.ensure_shape(read, ids.shape)}

    model = models[0]
    model.compile()
    data = tf.data.Dataset.from_tensors(IDS["input_ids"]).map(function)
    with pytest.raises(kind, match="no row 7"):
        model.predict(data, verbose=0)


def test_the_first_unknown_keyword_is_reported():
    """If several keywords are unknown, the error names the first one passed."""
    for names in itertools.permutations("bcdefg", 5):
        with pytest.raises(InputError, match=f"Received: {names[0]}=0$"):
            check_keywords({"a": 0} | dict.fromkeys(names, 0), ["a"])


def test_a_lone_text_has_one_prediction(models, monkeypatch):
    """A single text yields one prediction; a list of one text yields a list."""
    model, calls = models[0], []

    def predictor(size, **how):
        calls.append((size, how))
        return fake(predictions=lambda examples: [e.text for e in examples])

    monkeypatch.setattr(model, "predictor", predictor)
    assert model.predictions("a film") == "a film"
    assert model.predictions(["a film"], batch_size=3) == ["a film"]
    stream = tf.data.Dataset.from_tensor_slices(["a", "b"])
    assert model.predictions(stream, verbose=1) == ["a", "b"]
    wanted = [
        (None, {"verbose": 0}),
        (3, {"verbose": 0}),
        (None, {"verbose": 1}),
    ]
    assert calls == wanted


def test_a_predictor_may_have_another_task(models):
    """A predictor has the model's task, unless another task is passed."""
    model, other = models[0], find("classification")
    assert model.predictor().task is model.task
    assert model.predictor(task=other).task is other


def test_shares_belong_to_their_examples(models):
    """Rows of probabilities become the shares of the examples, in order."""
    shares = [[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]]
    for part in ("train", "eval"):
        found = models[0].examples(["a", "b", "c"], shares, part)
        assert [list(example.shares) for example in found] == shares
    found = models[0].examples(["a", "b"], ["bad", "good"], "eval")
    assert [example.shares for example in found] == [None, None]


def test_words_come_with_their_tags(models, monkeypatch):
    """One text yields a list of (word, tag) pairs; several, a list of lists."""
    tagger = models[1]
    monkeypatch.setattr(tagger, "predictions", lambda words, **how: words)
    monkeypatch.setattr(tagger, "values", lambda found: found)
    wanted = [("a", "a"), ("film", "film")]
    assert tagger.words_and_tags("a film") == wanted
    assert tagger.words_and_tags(["a film", ""]) == [wanted, []]
