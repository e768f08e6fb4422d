"""What shards hold, and which documents are held out.

These are those whose hash is in the lowest buckets.

Each shard is measured by itself, by any worker; sums of what was measured are
enough to draw the border between the buckets.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable

import numpy as np

from albert_tf.data.builder.documents import read_shard
from albert_tf.data.builder.recipe import Recipe
from albert_tf.data.records import EVAL, TRAIN

# A document's bucket is the first bits of its hash.
BUCKET_BITS = 16
BUCKETS = 1 << BUCKET_BITS


def buckets(hashes: np.ndarray) -> np.ndarray:
    """Return the bucket of each document, by which it is held out or not."""
    return (hashes >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class Measured:
    """What some shards hold.

    Attributes:
      tokens: [BUCKETS] int64 by the bucket of their document.
      pieces: [V] int64, how often each stands in the text that is kept.
      ends: the lowest and the highest bucket of each shard that holds any.
      counts: what is left out because it was there before.
    """

    tokens: np.ndarray
    pieces: np.ndarray
    ends: dict[int, tuple[int, int]]
    counts: Counter

    def __add__(self, other: "Measured") -> "Measured":
        return Measured(
            self.tokens + other.tokens,
            self.pieces + other.pieces,
            self.ends | other.ends,
            self.counts + other.counts,
        )


NOTHING = Measured(np.zeros(BUCKETS, np.int64), np.int64(0), {}, Counter())


def measure(recipe: Recipe, item: tuple[int, str]) -> Measured:
    """Measure a shard, given as its number and its file."""
    number, path = item
    documents = read_shard(path, recipe.id_type)
    if documents is None:
        return NOTHING
    counts: Counter = Counter()
    ends = documents.offsets()[np.cumsum(documents.parts)]
    sizes = np.diff(ends, prepend=0)
    if recipe.reading.drop_duplicates:
        first = documents.first_of_each()
        # The first part of a document has the document's hash for its key.
        again = ~first & (documents.keys == documents.hashes)
        counts["duplicate_documents"] = int(np.sum(again))
        counts["duplicate_tokens"] = int(np.sum(sizes[~first]))
        documents, sizes = documents.select(first), sizes[first]
    held = buckets(documents.hashes)
    tokens = np.bincount(held, sizes, BUCKETS).astype(np.int64)
    pieces = np.bincount(documents.ids, minlength=recipe.vocab_size)
    ends = {number: (int(held.min()), int(held.max()))}
    return Measured(tokens, pieces, ends, counts)


def add_up(items: Iterable[Measured]) -> Measured:
    """Return what several groups of shards hold together."""
    return sum(items, NOTHING)


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Which documents are held out.

    Attributes:
      below: the hash buckets that are held out are those below this one.
      shards: the shards that hold documents of each split.
      counts: what was left out because it was there before.
      pieces: [V] how often each stands in the text that is kept.
    """

    below: int
    shards: dict[str, list[int]]
    counts: dict[str, int]
    pieces: list[int]


def _border(tokens: np.ndarray, fraction: float) -> int:
    """Return the first bucket that is not held out; see `hold_out`."""
    occupied = np.flatnonzero(tokens)
    if fraction == 0 or len(occupied) < 2:
        return 0
    reached = np.cumsum(tokens) >= fraction * tokens.sum()
    return int(np.clip(np.argmax(reached), occupied[0], occupied[-2])) + 1


def hold_out(fraction: float, measured: Measured) -> HeldOut:
    """Hold out documents with at least a fraction of all tokens.

    At least one document stays on each side; `below` is 0 where that cannot
    be, or where `fraction` is 0.
    """
    below = _border(measured.tokens, fraction)
    ends = sorted(measured.ends.items())
    shards = {
        EVAL: [shard for shard, (low, _) in ends if low < below],
        TRAIN: [shard for shard, (_, high) in ends if high >= below],
    }
    pieces = measured.pieces.tolist()
    return HeldOut(below, shards, dict(measured.counts), pieces)
