"""Settings of `load` follow the same rules as flags, and are checked early."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_fits import LABELS

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.library import pretrained_model, task_model
from albert_tf.library.models import (
    Classifier,
    MultipleChoice,
    PairClassifier,
    Regressor,
    Tagger,
)
from albert_tf.library.preprocessor import Preprocessor
from albert_tf.library.pretrained_model import load
from albert_tf.model.task_heads import AlbertForBeamSpans
from albert_tf.training.keras_optimizers import AdamW, WarmupDecay


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("label_column", "stars", ("stars",)),
        ("label_column", ["stars"], ("stars",)),
        ("label_column", np.array(["stars"]), ("stars",)),
        ("text_column", np.str_("review"), "review"),
        ("header", np.False_, False),
    ],
)
def test_columns_are_read_as_flags(shallow, setting, value, wanted):
    """Settings that name columns may be lists or NumPy values."""
    model = Classifier.load(shallow, LABELS, **{setting: value})
    field = setting.removesuffix("_column")
    assert getattr(model.task.columns, field) == wanted


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": "16"}, "`max_length` must be a whole number"),
        ({"max_length": 16.0}, "`max_length` must be a whole number"),
        ({"header": "false"}, "`header` must be True or False"),
        ({"new_head": "no"}, "`new_head` must be True or False"),
        ({"multilabel": "false"}, "`multilabel` must be True or False"),
        ({"pairs": 1}, "`pairs` must be True or False"),
        ({"classifier_dropout": "0.1"}, "must be a number"),
        ({"hidden_dropout_prob": "0.1"}, "must be a number"),
        ({"label_column": "a,b"}, "must be one column"),
        ({"maxlength": 8}, "did you mean `max_length`"),
        ({"num_classes": 2}, "did you mean `num_labels`"),
        ({"num_labels": 3}, "Received: num_labels=3, labels=bad, good"),
    ],
)
def test_a_setting_of_another_type_is_refused(shallow, settings, message):
    """The error for a wrong setting names it or suggests a similar name."""
    with pytest.raises(InputError, match=message):
        Classifier.load(shallow, LABELS, **settings)


def test_classes_without_names_are_counted(shallow, finished):
    """New classes are named by indices; fine-tuned models keep their names."""
    for cls in (Classifier, Tagger):
        assert cls.load(shallow, num_labels=2).task.labels == ("0", "1")
    assert Classifier.load(finished[0], num_labels=2).task.labels == LABELS
    with pytest.raises(InputError, match="num_labels=3, labels=bad, good"):
        Classifier.load(finished[0], num_labels=3)
    with pytest.raises(InputError, match="at least 2"):
        Classifier.load(shallow, num_labels=1)
    assert Regressor.load(shallow, num_labels=1).task.labels == ()
    with pytest.raises(InputError, match="at least 1"):
        Regressor.load(shallow, num_labels=0)
    with pytest.raises(InputError, match="num_labels=1, labels=a, b"):
        Regressor.load(shallow, labels=["a", "b"], num_labels=1)


@pytest.mark.parametrize(
    ("kind", "x"),
    [
        (Regressor, ["a film", "the plot was good"]),
        (MultipleChoice, (["a film"], ["a plot"], [["good", "bad"]])),
    ],
)
def test_a_released_head_with_one_output_is_read(kind, x, shallow, tmp_path):
    """The model's class determines the task of a TF1 head with one output.

    A model that omits the head, and a tokenizer, do not depend on it.
    """
    model, old = kind.load(shallow), str(tmp_path / "tf1")
    model.save(tmp_path / "model")
    albert_tf.convert_checkpoint(
        input=str(tmp_path / "model"), output=old, to="tf1"
    )
    wanted = model.predict(x, verbose=0)
    found = kind.load(old).predict(x, verbose=0)
    np.testing.assert_array_equal(found, wanted)
    assert Classifier.load(old, LABELS, new_head=True).task.labels == LABELS
    for same in (load(old).tokenizer, albert_tf.load_tokenizer(old)):
        assert same.checksum() == model.tokenizer.checksum()
    with pytest.raises(InputError, match="path=.*tf1, fine-tuned for regr"):
        Classifier.load(old)
    with pytest.raises(InputError, match="has one output.*Set `task`"):
        albert_tf.convert_checkpoint(
            input=old, output=str(tmp_path / "new"), to="model_dir"
        )


def test_files_are_read_as_the_arguments_say(monkeypatch):
    """`load` passes on `pairs`, `encoder_only` and `added_pieces`."""
    calls = []

    def open_model(path, how, added_pieces, *single):
        calls.append((path, how.pairs, how.encoder_only, added_pieces))
        raise InputError("stop")

    monkeypatch.setattr(task_model, "open_model", open_model)
    monkeypatch.setattr(pretrained_model, "open_model", open_model)
    for call in (
        lambda: Classifier.load("a"),
        lambda: Classifier.load("a", added_pieces=["x"], pairs=True),
        lambda: PairClassifier.load("a"),
        lambda: load("a"),
        lambda: load("a", encoder_only=True),
    ):
        with pytest.raises(InputError, match="stop"):
            call()
    assert calls == [
        ("a", False, False, None),
        ("a", True, False, ["x"]),
        ("a", True, False, None),
        ("a", False, False, None),
        ("a", False, True, None),
    ]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("number", [np.int64, np.int32, np.array, tf.constant])
def test_numbers_of_numpy_are_numbers(shallow, tmp_path, number):
    """A model that is created with NumPy numbers can be saved and loaded."""
    half, eighth = np.float32(0.25), np.float32(0.125)
    model = Classifier.load(
        shallow,
        LABELS,
        max_length=number(8),
        classifier_dropout=half,
        hidden_dropout_prob=half,
        attention_probs_dropout_prob=eighth,
        name="film",
    )
    assert model.max_length == model.preprocessor.max_length == 8
    assert model.task.config.classifier_dropout == 0.25
    assert model.config.hidden_dropout_prob == 0.25
    assert model.config.attention_probs_dropout_prob == 0.125
    assert Classifier.from_config(model.get_config()).name == "film"
    model.save(tmp_path / "model")
    again = Classifier.load(tmp_path / "model", max_length=number(8))
    assert again.task == model.task and again.config == model.config
    assert type(model.max_length) is int
    json.dumps(model.get_config())
    albert = load(shallow, max_length=number(8), lora_rank=number(1))
    json.dumps(albert.get_config())
    texts = ["a film", "a plot of film"]
    wanted = albert.embed(texts, layer=1, max_length=6, batch_size=1)
    found = albert.embed(
        texts, layer=number(1), max_length=number(6), batch_size=number(1)
    )
    np.testing.assert_array_equal(found, wanted)
    layer = Preprocessor(albert.tokenizer, number(8))
    json.dumps(layer.get_config())
    assert len(albert.fill_mask("a [MASK]", top_k=number(3))[0]) == 3
    assert albert.tokenizer(texts, max_length=number(5))["input_ids"].shape == (
        2,
        5,
    )
    beam = AlbertForBeamSpans(albert.config, number(2), number(3))
    json.dumps(beam.get_config())


def test_optimizers_and_schedules_take_numbers_of_numpy():
    """Optimizers and schedules convert NumPy numbers for JSON configs."""
    schedule = WarmupDecay(
        np.float32(0.5), np.int64(10), num_warmup_steps=np.int32(2)
    )
    values = schedule.get_config()
    assert json.loads(json.dumps(values)) == values
    assert values["learning_rate"] == 0.5 and values["num_train_steps"] == 10
    with pytest.raises(InputError, match="`num_train_steps` must be a whole"):
        WarmupDecay(0.1, "10")
    for rate in (np.float32(0.5), np.float64(0.5), tf.constant(0.5)):
        optimizer = AdamW(rate, weight_decay=np.float32(0.5))
        found = json.loads(json.dumps(optimizer.get_config()))
        assert found["weight_decay"] == found["learning_rate"] == 0.5
    assert AdamW(1).get_config()["learning_rate"] == 1.0


@pytest.mark.slow
def test_weights_of_classes_may_be_of_numpy(classifier):
    """Class weights and other numbers for `fit` may be NumPy numbers."""
    texts, labels = ["a good film", "a bad plot"], np.array(["good", "bad"])
    classifier.compile(AdamW(0.0), run_eagerly=True)
    weights = np.array([0.0, 2.0], np.float32)
    losses = [
        classifier.fit(
            texts,
            labels,
            class_weight=dict(zip(keys, weights, strict=True)),
            verbose=0,
        ).history["loss"][0]
        for keys in (np.unique(labels), np.arange(2), ["bad", "good"])
    ]
    assert np.isfinite(losses).all() and losses[0] > 0
    share, size = np.float32(0.5), np.int64(1)
    how = {"validation_split": share, "batch_size": size, "verbose": 0}
    how |= {"epochs": np.int64(1), "validation_freq": np.int64(1)}
    assert "val_loss" in classifier.fit(texts, labels, **how).history


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Classifier.from_pretrained("x"), "no `from_.*; use `load`"),
        (lambda: albert_tf.Albert.from_preset, "use `load`"),
        (lambda: albert_tf.Preprocessor.from_preset, "use `load`"),
        (lambda: Classifier.backbone, "use `albert`"),
        (lambda: Classifier.enable_lora, "use `load.path, lora_rank=8.`"),
        (lambda: albert_tf.from_pretrained, "use `load`"),
        (lambda: albert_tf.AutoTokenizer, "use `load_tokenizer`"),
        (lambda: albert_tf.AlbertBackbone, "use `load`"),
        (lambda: albert_tf.TFAlbertForMaskedLM, "use `load`"),
        (lambda: albert_tf.AlbertForSequenceClassification, "`Classifier`"),
        (lambda: albert_tf.AlbertForTokenClassification, "use `Tagger`"),
        (lambda: albert_tf.AlbertTextClassifier, "mean `Classifier`"),
        (lambda: albert_tf.AlbertMaskedLMPreprocessor, "use `Preprocessor`"),
        (
            lambda: albert_tf.AlbertTextClassifierPreprocessor,
            "use `Preprocessor`",
        ),
        (lambda: albert_tf.Classifer, "did you mean `Classifier`"),
    ],
)
def test_names_of_other_libraries_lead_to_ours(call, message):
    """The error for another library's name suggests this package's name."""
    with pytest.raises(AttributeError, match=message):
        call()
    assert not hasattr(keras.Model, "from_pretrained")
