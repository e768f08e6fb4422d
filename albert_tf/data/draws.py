"""Random numbers for examples: hashes of a seed and of positions.

The numbers depend neither on an example's batch nor on the machine, so a
resumed run masks in the same way as an uninterrupted run.

Glossary: B examples.
"""

import numpy as np

# SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
# generators, 2014).
INCREMENT = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIERS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)


def splitmix64(x: np.ndarray) -> np.ndarray:
    """Return the outputs of SplitMix64 for uint64 states."""
    x = (x ^ (x >> 30)) * MULTIPLIERS[0]
    x = (x ^ (x >> 27)) * MULTIPLIERS[1]
    return x ^ (x >> 31)


class Draws:
    """Random numbers for a batch of examples; each call returns new ones.

    Args:
      seed: the seed that all examples share.
      positions: [B], the position of each example in the stream of examples.
    """

    def __init__(self, seed: int, positions: np.ndarray):
        start = splitmix64(np.array([seed % 2**64], np.uint64) + INCREMENT)
        positions = np.asarray(positions).astype(np.uint64)
        self.keys = splitmix64(start + positions * INCREMENT)  # [B]
        self.sequences = 0

    def bits(self, count: int) -> np.ndarray:
        """Return integers of 63 random bits for each example, [B, count]."""
        places = np.arange(1, count + 1, dtype=np.uint64)
        places += np.uint64(self.sequences << 32)
        self.sequences += 1
        bits = splitmix64(self.keys[:, None] + places * INCREMENT)
        return (bits >> np.uint64(1)).astype(np.int64)

    def uniform(self, count: int) -> np.ndarray:
        """Return uniform random numbers in [0, 1), float32 [B, count]."""
        return (self.bits(count) >> 39).astype(np.float32) * np.float32(2**-24)
