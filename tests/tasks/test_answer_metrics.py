"""Answer scores against values computed by hand from the official scripts."""

import pytest

from albert_tf.tasks.squad_metrics import (
    cmrc,
    decision_threshold,
    normalize_answer,
    squad1,
    squad2,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat's, a hat!", "cats hat"),
        ("An apple-pie", "applepie"),
        ("another theme", "another theme"),
        ("$73 million", "73 million"),
        ("B—C", "b—c"),  # a non-ASCII dash is not punctuation
        ("the", ""),
    ],
)
def test_what_is_compared(text, expected):
    """Case, ASCII punctuation, articles and white space do not count."""
    assert normalize_answer(text) == expected


def test_squad1():
    """The best answer counts; F1 counts repeated words."""
    found = squad1(
        [["the red car", "a blue car car"], ["x"], ["the"]],
        ["blue car", "y", "an"],
    )
    # 2 of 2 and of 3 words in common: 0.8; in SQuAD 1.1, no words: F1 0.
    assert found["f1"] == pytest.approx((0.8 + 0 + 0) / 3)
    assert found["exact_match"] == pytest.approx(1 / 3)


ANSWERS = [["red car"], [], ["x y"], [], ["the"]]
PREDICTIONS = ["red", "blue", "x y", "green", ""]
ODDS = [-3.0, -1.0, -2.0, 5.0, -4.0]


def test_squad2_with_a_threshold():
    """Null odds above the threshold mean no answer."""
    found = squad2(ANSWERS, PREDICTIONS, ODDS, threshold=-1.5)
    # red: F1 2/3, exact 0; blue: none, right; x y: right; green: none, right;
    # "the" has no words, like the prediction.
    assert found["f1"] == pytest.approx((2 / 3 + 4) / 5)
    assert found["exact"] == pytest.approx(4 / 5)
    assert found["HasAns_exact"] == pytest.approx(2 / 3)
    assert found["NoAns_f1"] == 1.0


def test_the_search_for_a_threshold():
    """The best threshold is the odds of the last question answered."""
    found = squad2(ANSWERS, PREDICTIONS, ODDS)
    # From 2 right without any answer: +1 (the), +2/3 (red), +1 (x y), -1, -1.
    assert found["best_f1"] == pytest.approx((4 + 2 / 3) / 5)
    assert found["best_f1_thresh"] == -2.0
    assert found["best_exact"] == pytest.approx(4 / 5)
    assert found["f1"] == pytest.approx(found["best_f1"])


def test_answering_nothing_can_be_best():
    """If answering nothing is best, the official threshold is 0."""
    found = squad2([[], [], ["x"]], ["a", "b", "c"], [-9.0, -8.0, -7.0])
    assert found["best_f1"] == pytest.approx(2 / 3)
    assert found["best_f1_thresh"] == 0.0
    assert found["f1"] == pytest.approx(2 / 3)


def test_silence_of_the_model_costs_nothing():
    """An empty text is right for an unanswerable question."""
    found = squad2([["x"], [], ["y"]], ["x", "", "y"], [0.0, 1.0, 2.0])
    assert (found["best_f1"], found["best_f1_thresh"]) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("answers", "odds", "expected"),
    [
        (["a", "a", ""], [-4.0, -3.0, 1.0], -1.0),
        (["a", "a", ""], [2.0, 3.0, 5.0], 4.0),
        (["a", "", "", ""], [-3.0, -3.0, 1.0, 2.0], -1.0),  # a tie
        (["a", "a"], [-9.0, -8.0], 0.0),
        (["a", "a"], [5.0, 6.0], 7.0),
        (["", "b"], [3.0, 4.0], 0.0),
        # Only silence is right, 1 of 49: 1 / 49 * 49 is not 1.
        (["", *"b" * 48], [-5.0] * 49, -6.0),
    ],
)
def test_the_threshold_keeps_its_distance(answers, odds, expected):
    """The threshold is halfway between two odds, or well beyond all odds."""
    answers = [[text] if text else [] for text in answers]
    predictions = ["a"] * len(answers)
    assert decision_threshold(answers, predictions, odds) == expected


def test_cmrc():
    """Ideographs count singly, other text as words, in contiguous runs."""
    pytest.importorskip("nltk")
    found = cmrc(
        [["1990年，北京"], ["他在Windows 7上"], ["好"]],
        ["1990年 北京", "windows 7上", "坏"],
    )
    # Marks are ignored but a space is not: 北京 is in a run of 2 beside
    # 1990 年; the longest run is ["1990", "年", "北", "京"].
    assert found["exact_match"] == 0.0
    # 3 of 3 predicted and of 5 expected tokens: 他 在 windows 7 上.
    assert found["f1"] == pytest.approx((1.0 + 2 * 0.6 / 1.6 + 0) / 3)
    assert found["average"] == pytest.approx(found["f1"] / 2)
    exact = cmrc([["《书》，A-b"]], ["书ab"])
    assert exact["exact_match"] == 1.0
