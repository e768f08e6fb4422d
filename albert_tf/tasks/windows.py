"""Windows over sequences that are longer than the model's input."""

import numpy as np


def make_windows(number: int, size: int, stride: int) -> list[tuple[int, int]]:
    """Return (start, length) of the windows over a number of tokens.

    Source: `convert_examples_to_features` of the released `squad_utils.py`.
    """
    windows = []
    start = 0
    while start < number:
        length = min(number - start, size)
        windows.append((start, length))
        if start + length == number:
            break
        start += min(length, stride)
    return windows


def best_windows(number: int, windows: list[tuple[int, int]]) -> np.ndarray:
    """Return the window [number] in which each token has most context.

    That is the smaller of what stands left and right of it in the window; of
    equal ones the first, unless a later one is longer.
    """
    position = np.arange(number)
    scores = np.full([len(windows), number], -np.inf)
    for row, (start, length) in zip(scores, windows, strict=True):
        inside = position[start : start + length]
        context = np.minimum(inside - start, start + length - 1 - inside)
        row[start : start + length] = context + 0.01 * length
    return scores.argmax(axis=0)
