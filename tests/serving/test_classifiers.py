"""Exported models for sentences agree with their Keras models."""

import numpy as np
import pytest
import tensorflow as tf
from exporting import TEXTS, close, finetuned, server_of, strings
from tiny_records import serialized

from albert_tf.library.models import Classifier, Regressor
from albert_tf.serving.questions import with_choice
from albert_tf.tasks import multiple_choice


def test_classification_names_its_labels(tmp_path, pretrained_dir):
    """`classify` returns the best label and all probabilities, as in Python."""
    labels = ("bad", "fair", "好")
    folder = tmp_path / "model"
    finetuned(folder, pretrained_dir, "classification", labels)
    wanted = Classifier.load(folder).predict(TEXTS, verbose=0)
    server = server_of(folder)
    assert server.default == "classify"
    found = server.call("classify", strings(TEXTS))
    assert set(found) == {"label", "labels", "probabilities", "logits"}
    close(found["probabilities"], wanted)
    best = [x.decode() for x in found["label"].numpy()]
    assert best == [labels[i] for i in wanted.argmax(-1)]
    all_labels = [tuple(x.decode() for x in r) for r in found["labels"].numpy()]
    assert all_labels == [labels] * len(TEXTS)
    found = server.call("text", strings(TEXTS))
    close(found["probabilities"], wanted)
    assert found["sequence_output"].shape == [len(TEXTS), 12, 16]


def test_a_graph_places_choices_as_python_does():
    """A choice fills each blank of a question, or else follows the question."""
    questions, choices = (
        ["a _ b _?", "why?", "_ c", "d _", "e ___ f __"],
        ["V", "W", "X", "Y", "Z"],
    )
    found = with_choice(tf.constant(questions), tf.constant(choices))
    expected = map(multiple_choice.with_choice, questions, choices)
    assert [x.decode() for x in found.numpy()] == list(expected)


def test_multilabel_says_what_is_chosen(tmp_path, pretrained_dir):
    """Probabilities equal the Keras model's; classes above 0.5 are chosen."""
    folder = tmp_path / "model"
    finetuned(folder, pretrained_dir, "multilabel", ("a", "b", "c"))
    wanted = Classifier.load(folder).predict(TEXTS, verbose=0)
    found = server_of(folder).call("classify", strings(TEXTS))
    close(found["probabilities"], wanted)
    np.testing.assert_array_equal(found["chosen"], wanted > 0.5)


def test_regression_gives_the_score(tmp_path, pretrained_dir):
    """`score` returns the number that the Keras model predicts.

    Serialized examples lead to the same numbers, and must have both texts.
    """
    folder = tmp_path / "model"
    finetuned(folder, pretrained_dir, "regression", pair="b")
    wanted = Regressor.load(folder).predict(TEXTS, TEXTS[::-1], verbose=0)
    both = strings(TEXTS), strings(TEXTS[::-1])
    server = server_of(folder)
    close(server.call("score", *both)["score"], wanted)
    examples = [
        serialized(text=[a], text_pair=[b])
        for a, b in zip(TEXTS, TEXTS[::-1], strict=True)
    ]
    found = server.call("tf_example", tf.constant(examples))
    close(found["score"], wanted)
    assert "labels" not in found
    with pytest.raises(tf.errors.InvalidArgumentError, match="text_pair"):
        server.call("tf_example", tf.constant([serialized(text=["a"])]))


def test_several_numbers_have_names(tmp_path, pretrained_dir):
    """A score of several numbers comes with the names of the numbers."""
    folder, names = tmp_path / "model", ("joy", "fear")
    finetuned(folder, pretrained_dir, "regression", names)
    wanted = Regressor.load(folder).predict(TEXTS, verbose=0)
    found = server_of(folder).call("score", strings(TEXTS))
    close(found["score"], wanted)
    labels = [tuple(x.decode() for x in row) for row in found["labels"].numpy()]
    assert labels == [names] * len(TEXTS)
