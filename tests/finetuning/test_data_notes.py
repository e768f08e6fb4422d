"""Before training, notes name labels and texts that look like mistakes."""

import dataclasses

import numpy as np
import pytest

from albert_tf.finetuning.data_notes import (
    label_counts,
    notes,
    overlap_notes,
    prediction_notes,
    similar_labels,
    word_notes,
)
from albert_tf.tasks.classification import Example
from albert_tf.tasks.embedding import Texts
from albert_tf.tasks.features import Features
from albert_tf.tasks.predictions import Prediction
from albert_tf.tasks.registry import find
from albert_tf.tasks.tagged_words import Sentence


def features(lengths, **arrays):
    """Return features of rows with the given lengths and ordinary pieces."""
    return Features(
        tokens=np.full(sum(lengths), 9, np.int32),
        row_splits=np.concatenate([[0], np.cumsum(lengths)]),
        second_starts=np.array(lengths, np.int32),
        arrays={name: np.array(values) for name, values in arrays.items()},
        pad_id=0,
        max_seq_length=16,
    )


def task_with(labels, kind="classification"):
    return dataclasses.replace(find(kind), labels=tuple(labels))


def test_classes_are_counted(words):
    """Classes are listed with their counts, from most to least frequent."""
    task = task_with(["bad", "good", "so so"])
    lines = notes(task, features([5, 4, 5, 6], labels=[1, 0, 1, 1]), words)
    assert lines == ["classes: 'good' 3, 'bad' 1, 'so so' 0"]
    sets = task_with(["a", "b"], "multilabel")
    rows = features([5, 4, 5], labels=[[1, 1], [0, 1], [0, 1]])
    assert label_counts(sets, rows) == {"a": 1, "b": 3}


def test_large_numbers_are_noted(words):
    """A note suggests scaling labels that no usual run reaches from 0."""
    task = find("regression")
    for labels in ([0.0, 5.0], [-1.0, 10.0], [[0.5, -7.0], [1.0, 3.0]]):
        assert notes(task, features([4, 5], labels=labels), words) == []
    for labels in ([-30.0, 5.0], [[0.0, 1.0], [20000.0, 3.0]]):
        (note,) = notes(task, features([4, 5], labels=labels), words)
        low, high = np.min(labels), np.max(labels)
        assert f"range from {low:g} to {high:g}" in note
    assert notes(task, features([4, 5]), words) == []


def test_ten_classes_are_listed(words):
    """At most ten classes are listed."""
    task = task_with(f"class{i}" for i in range(12))
    labels = [i for i in range(12) for _ in range(20 - i)]
    (line,) = notes(task, features([4] * len(labels), labels=labels), words)
    assert line.startswith("classes: 'class0' 20, 'class1' 19")
    assert line.endswith("'class9' 11 and 2 more classes")


@pytest.mark.parametrize(
    ("labels", "alike"),
    [
        (["Sehr gut", "sehr gut", "schlecht"], [["Sehr gut", "sehr gut"]]),
        (["a\u00a0b", "a b", "ab"], [["a\u00a0b", "a b"]]),
        (["1", "1.0", "2"], [["1", "1.0"]]),
        (["1,5", "1.50", "15"], [["1,5", "1.50"]]),
        (["B-PER", "I-PER", "O"], []),
        (["nan", "inf", "1", "10"], []),
    ],
)
def test_classes_that_look_alike(labels, alike):
    """Classes that differ in case, spaces or number format are grouped."""
    assert similar_labels(labels) == alike


@pytest.mark.parametrize(
    ("kind", "labels", "numbers", "note"),
    [
        ("classification", ["a", "A"], [0, 1], "may be the same: 'a', 'A'"),
        ("multilabel", ["a;b", "c"], [[1, 0], [0, 1]], "'a;b' is one class"),
        ("multilabel", ["a|b", "c"], [[1.0, 0], [0, 1]], "'a|b' is one class"),
        ("multilabel", ["a、b", "c"], [[1, 0], [0, 1]], "'a、b' is one class"),
        ("multilabel", ["a،b", "c"], [[1, 0], [0, 1]], "'a،b' is one class"),
        ("multilabel", ["a\nb", "c"], [[1, 0], [0, 1]], "'a\\nb' is one class"),
        (
            "multilabel",
            ["#a #b", "c"],
            [[1, 0], [0, 1]],
            "'#a #b' is one class",
        ),
        ("multilabel", ["{a", "b}"], [[1, 0], [0, 1]], "'{a' is one class"),
        ("multilabel", ["c", "b}"], [[1, 0], [0, 1]], "'b}' is one class"),
        ("multilabel", ["#a", "c#"], [[1, 0], [0, 1]], ""),
        ("multilabel", ["1 0", "0 1"], [[1, 0], [0, 1]], "'1 0' is one class"),
        ("multilabel", ["10 1", "1 a"], [[1, 0], [0, 1]], ""),
        ("classification", ["a;b", "c"], [0, 1], ""),
        (
            "classification",
            [f"row{i}" for i in range(12)],
            range(12),
            "12 classes for 12 examples",
        ),
    ],
)
def test_suspicious_classes(words, kind, labels, numbers, note):
    """A note is printed if classes look like mistakes.

    For example, two names may mean one class, one name may consist of several
    names, or each example may have a different class.
    """
    numbers = list(numbers)
    rows = features([4] * len(numbers), labels=numbers)
    _, *found = notes(task_with(labels, kind), rows, words)
    assert bool(found) == bool(note) and note in " ".join(found)


def test_suspicious_texts(words):
    """Notes count empty first texts and state the share of unknown tokens."""
    task = task_with([])
    rows = features([2, 2, 8])
    empty = ["Note: in 2 rows, the first text is empty"]
    assert notes(task, rows, words) == empty
    rows = features([6, 3, 8])  # pairs, of which the second has no texts
    rows.second_starts[:] = 2, 2, 5
    assert notes(task, rows, words) == empty
    texts = ["Note: 2 empty texts (in any column)"]
    assert notes(find("embedding"), rows, words) == texts
    rows = features([10, 10])
    rows.tokens[:1] = words.unk_id
    assert notes(task, rows, words) == []
    rows.tokens[:3] = words.unk_id
    (line,) = notes(task, rows, words)
    assert line.startswith("Note: 15% of the tokens are unknown")


def rows_of(*rows):
    """Return features of the given rows of pieces."""
    return Features.from_rows([(np.array(row), 9) for row in rows], {}, 0, 9)


def test_evaluation_examples_that_are_also_training_examples():
    """A note counts evaluation inputs that are also training inputs.

    There is none for up to 5% of the inputs, and none for embeddings.
    """
    task = find("regression")
    trained = [rows_of([2, 5, 3], [2, 5, 6, 3]), rows_of([2, 7, 3])]
    rows = rows_of([2, 7, 3], [2, 7, 3], [2, 5, 6, 3], [2, 8, 3])
    (note,) = overlap_notes(task, rows, trained)
    assert note.startswith("Note: 2 of 3 different inputs are also training")
    assert overlap_notes(find("embedding"), rows, trained) == []
    assert overlap_notes(task, rows, []) == []
    assert overlap_notes(task, rows_of([2, 5, 6], [2, 6, 3]), trained) == []
    many = rows_of(*([2, i, 3] for i in range(7, 27)))
    assert overlap_notes(task, many, trained) == []
    (note,) = overlap_notes(task, many, [rows_of([2, 7, 3], [2, 8, 3])])
    assert "2 of 20" in note


@pytest.mark.parametrize(
    ("kind", "labels", "predicted", "name"),
    [
        ("classification", "ab", "bb", "b"),
        ("classification", "bb", "bb", None),
        ("classification", "ab", "ab", None),
        ("classification", ["a", None], "bb", None),
        ("multilabel", [("a",), ()], [(), ()], "no class"),
        ("multilabel", [("a",), ()], [("a", "b")] * 2, "a,b"),
        ("regression", [1.0, 2.0], [3.0, 3.0], None),
    ],
)
def test_equal_predictions_are_noted(kind, labels, predicted, name):
    """A note names the class if a model predicts one class for all examples.

    There is none if the labels are unknown or are also all the same.
    """
    examples = [Example("", "so", "", label) for label in labels]
    predictions = [Prediction(label, np.zeros(2)) for label in predicted]
    found = prediction_notes(task_with("ab", kind), examples, predictions)
    start = f"Note: the prediction for all examples is {name};"
    assert [line.startswith(start) for line in found] == [True] * bool(name)


def test_words_are_counted_for_each_tag(words):
    """For each tag, the number of words is printed."""
    task = task_with(["O", "B-A", "b-a"], "token_classification")
    tags = ("O", "B-A", "O"), ("b-a",)
    texts = ("good", "bad", "fine"), ("good",)
    pairs = zip(texts, tags, strict=True)
    sentences = [Sentence(*pair, "file", 1) for pair in pairs]
    rows = task.features(sentences, words)
    first, note = notes(task, rows, words, sentences)
    assert first == "classes: 'O' 2, 'B-A' 1, 'b-a' 1"
    assert note == "Note: these classes may be the same: 'B-A', 'b-a'"


def test_other_labels_are_not_counted(words):
    """Numbers and missing labels are not counted as classes."""
    assert not notes(find("regression"), features([4], labels=[0.5]), words)
    assert not notes(task_with(["a", "b"]), features([4]), words)


def test_missing_labels_are_counted(words):
    """A note states that some labels are missing, but not that all are."""
    rows, task = features([4, 4, 4]), task_with(["a", "b"])
    for labels, number in (([1, None, 0], 1), ([None] * 3, 0), ([0, 1, 0], 0)):
        examples = [Example("", "text", "", label) for label in labels]
        found = notes(task, rows, words, examples)
        expected = (
            "Note: 1 of 3 labels are missing, so the predictions are not "
        )
        assert found == [f"{expected}scored"] * number
    tagged = [Sentence(("a",), tags, "file", 1) for tags in (("a",), None)]
    tagger = task_with(["a", "b"], "token_classification")
    (line,) = notes(tagger, features([4, 4]), words, tagged)
    assert line.startswith("Note: 1 of 2 labels")
    for scores, found in (((0.5, None), [line]), ((None, None), [])):
        pairs = [Texts("", ("a", "b"), score) for score in scores]
        assert notes(find("embedding"), features([4] * 4), words, pairs) == (
            found
        )


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["マ", "リ", "ア", "は", "東", "京"], "'マ' and 'リ'"),
        (["ไทย", "ดี", "OK"], "'ไทย' and 'ดี'"),
        (["", "ﾃﾚ", "", "ﾋﾞ"], "'ﾃﾚ' and 'ﾋﾞ'"),
        (["aマ", "リb"], "'aマ' and 'リb'"),
        (["マa", "リ"], ""),
        (["東", "京", "大", "学", "は"], ""),
        (["Maria", "lives", "in", "Rome", "."], ""),
        (["が", *"abcdefghijk", "は", "は"], ""),
    ],
)
def test_words_that_spaces_do_not_separate(words, note):
    """A note names words in scripts that do not put spaces between words.

    Ideographs, which BERT also treats as separate words, cause no note.
    """
    found = word_notes([words, words[:1]])
    assert bool(found) == bool(note)
    assert all(note in line for line in found)
