"""Rows of questions and windows, and the places of answers in them."""

import numpy as np
import pytest
from tiny_questions import CONTEXT, EXAMPLES, asked, make_task

from albert_tf.tasks.question_features import label, question_windows
from albert_tf.tasks.squad_files import Question


def test_labels_are_the_words_of_the_answer(words):
    """The pieces between the labels are those of the answer, or none."""
    features = make_task().features(EXAMPLES, words)
    found = {}
    rows = np.split(features.tokens, features.row_splits[1:-1])
    names = np.repeat([q.id for q in EXAMPLES], features.notes["rows"])
    for name, row, (start, end) in zip(
        names, rows, features.arrays["labels"], strict=True
    ):
        if start:
            answer = " ".join(words.pieces(row[start : end + 1]))
            found.setdefault(name, set()).add(answer)
        else:
            assert end == 0
    expected = {
        "a": {"plot of this"},
        "b": {"good film"},
        "d": {"one"},
        "e": {"poor in it"},
    }
    assert found == expected


@pytest.mark.parametrize(
    ("window", "expected"),
    [((0, 5), (7, 8)), ((3, 9), (4, 5)), ((0, 4), (0, 0)), ((4, 9), (0, 0))],
)
def test_a_window_has_all_of_an_answer_or_none(window, expected):
    """Tokens 3 and 4 of tokens of a letter each; windows begin at place 4."""
    context = np.stack([np.arange(12), np.arange(12), np.arange(1, 13)])
    question = Question("a", "", "abcdefghijkl", ("de",), (3, 5))
    assert label(question, context, slice(*window), 4) == expected


def test_rows_are_question_and_window(words):
    """A row is [CLS] question [SEP] window [SEP], the window segment 1."""
    task = make_task()
    features = task.features(EXAMPLES, words)
    row = features.tokens[: features.row_splits[1]]
    cls, sep = words.cls_id, words.sep_id
    query = words.encode("is it good")
    context = words.encode(CONTEXT)
    assert row.tolist() == [cls, *query, sep, *context[: 16 - 6], sep]
    assert features.second_starts[0] == 5
    # Of a question that is too long the beginning is kept.
    long = task.features([asked("x", "is it so very good", "one")], words)
    assert long.tokens[:6].tolist()[1:5] == words.encode("is it so very")
    assert long.second_starts[0] == 6


def test_windows_know_their_place_in_the_text(words):
    """Offsets of every row give back the words that stand in it."""
    features = make_task().features(EXAMPLES, words)
    questions = question_windows(features)
    assert [len(rows) for rows in questions] == features.notes["rows"].tolist()
    for question, rows in zip(EXAMPLES, questions, strict=True):
        best = 0
        for row, window in rows:
            ids = features.tokens[slice(*features.row_splits[row : row + 2])]
            for i, piece in enumerate(words.pieces(ids[window.position : -1])):
                text = question.context[window.starts[i] : window.ends[i]]
                assert piece in (text.lower(), "[UNK]")
            best += window.is_best.sum()
        assert best == len(words.encode(question.context))
