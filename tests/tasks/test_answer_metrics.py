"""Scores of answers equal values computed by hand from official rules."""

import pytest

from albert_tf.tasks.metrics import (
    cmrc,
    decision_threshold,
    normalize_answer,
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
    """Comparison ignores case, ASCII punctuation, articles and white space."""
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("answers", "odds", "expected"),
    [
        (["x", "x", ""], [-4.0, -3.0, 1.0], -1.0),
        (["x", "x", ""], [2.0, 3.0, 5.0], 4.0),
        (["x", "", "", ""], [-3.0, -3.0, 1.0, 2.0], -1.0),  # a tie
        (["x y", ""], [-4.0, 1.0], -1.5),  # not exact, but F1 is 2 / 3
        (["x", "x"], [-9.0, -8.0], 0.0),
        (["x", "x"], [5.0, 6.0], 7.0),
        (["", "b"], [3.0, 4.0], 0.0),
        # One of 49 questions has no answer; 1 / 49 * 49 is not 1.
        (["", *"b" * 48], [-5.0] * 49, -6.0),
    ],
)
def test_the_threshold_keeps_its_distance(answers, odds, expected):
    """A threshold is halfway between two odds, or at least 1 from all odds."""
    answers = [[text] if text else [] for text in answers]
    predictions = ["x"] * len(answers)
    assert decision_threshold(answers, predictions, odds) == expected


def test_cmrc():
    """CMRC compares single ideographs, and other text word by word."""
    pytest.importorskip("nltk")
    found = cmrc(
        [["1990年，北京"], ["他在Windows 7上"], ["好"]],
        ["1990年 北京", "windows 7上", "坏"],
    )
    # Exact matches ignore punctuation, but not spaces. The longest common run
    # is ["1990", "年", "北", "京"].
    assert found["exact_match"] == 0.0
    # 3 of 3 predicted and 3 of 5 expected tokens: 他 在 windows 7 上.
    assert found["f1"] == pytest.approx((1.0 + 2 * 0.6 / 1.6 + 0) / 3)
    assert found["average"] == pytest.approx(found["f1"] / 2)
    exact = cmrc([["《书》，A-b"]], ["书ab"])
    assert exact["exact_match"] == 1.0
