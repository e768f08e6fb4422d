"""Random numbers for examples follow the generator's definition."""

import numpy as np

from albert_tf.data.draws import Draws


def splitmix64(state):
    """Return SplitMix64's next number for a Python int, as published."""
    state &= 2**64 - 1
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
    return state ^ (state >> 31)


def test_draws_are_splitmix64():
    """An example's bits are SplitMix64's for the seed and its position."""
    increment, positions = 0x9E3779B97F4A7C15, (0, 5, 2**40)
    draws = Draws(7, np.array(positions))
    for sequence in range(3):
        for row, at in zip(draws.bits(3).tolist(), positions, strict=True):
            key = splitmix64(splitmix64(7 + increment) + at * increment)
            steps = [((sequence << 32) + i) * increment for i in (1, 2, 3)]
            assert row == [splitmix64(key + step) >> 1 for step in steps]
