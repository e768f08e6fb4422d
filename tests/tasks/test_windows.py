"""Windows over long sequences, against their definitions written out."""

import pytest

from albert_tf.tasks.windows import best_windows, make_windows


def test_windows_of_the_release():
    """Windows begin every stride, until one reaches the end."""
    assert make_windows(10, 6, 3) == [(0, 6), (3, 6), (6, 4)]
    assert make_windows(6, 6, 3) == [(0, 6)]
    assert make_windows(7, 6, 6) == [(0, 6), (6, 1)]
    assert make_windows(0, 6, 3) == []


@pytest.mark.parametrize(
    ("number", "size", "stride"),
    [(10, 6, 3), (23, 7, 2), (40, 9, 9), (5, 9, 1)],
)
def test_the_window_with_most_context(number, size, stride):
    """It is the first with the largest of min(left, right) + length / 100."""
    windows = make_windows(number, size, stride)
    expected = []
    for token in range(number):
        scores = []
        for start, length in windows:
            inside = start <= token < start + length
            left, right = token - start, start + length - 1 - token
            scores.append(min(left, right) + 0.01 * length if inside else -1)
        expected.append(scores.index(max(scores)))
    assert best_windows(number, windows).tolist() == expected
