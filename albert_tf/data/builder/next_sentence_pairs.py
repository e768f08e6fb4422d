"""Segment pairs for the next-sentence task: does B follow A?

Unlike the prediction of masked words or of sentence order, the task teaches a
small model to compare two texts. In half of the pairs, B is exchanged for the B
of another pair, usually of another document. Only the text may reveal the
label. Therefore:

- the new B has the length of the old B and, like the old B, ends a chunk;
- before the exchange, some Bs are replaced with an excerpt of their A, which
  need not end a chunk. If an excerpt remains in its pair, the words that it
  shares with A reveal the label, and the neighbors of these words reveal the
  masked words. If an excerpt is exchanged, the new B is an excerpt of a
  different A.

Glossary: n pairs.
"""

import dataclasses
from collections import Counter

import numpy as np

from albert_tf.data.builder import pairs
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.shards import Documents
from albert_tf.data.layout import Pairs

# Share of the pairs whose B is replaced with an excerpt of their A, where
# possible.
REPEATED = 0.4
SHORTEST_PIECE = 4  # number of tokens in the shortest excerpt


def partners(kinds: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return, for each item, the index [n] of another item of the same kind.

    The partner comes from a different document, unless one document contains
    more than half of the items of the kind. If a kind has only one item, this
    item is its own partner.

    Args:
      kinds: [n], the kind of each item, as a number.
      documents: [n], the document of each item.
    """
    order = np.lexsort((documents, kinds))
    kinds, documents = kinds[order], documents[order]
    _, begins, group, sizes = np.unique(
        kinds, return_index=True, return_inverse=True, return_counts=True
    )
    new = np.diff(kinds, prepend=-1) != 0
    new[1:] |= documents[1:] != documents[:-1]
    runs = np.flatnonzero(new)
    longest = np.maximum.reduceat(
        np.diff(runs, append=len(kinds)), np.searchsorted(runs, begins)
    )
    # A step as long as the longest run always leads to a different document. No
    # step is longer than half the number of items of its kind.
    step = np.where(2 * longest <= sizes, longest, sizes // 2)
    rank = np.arange(len(kinds)) - begins[group]
    drawn = np.zeros_like(order)
    drawn[order] = order[begins[group] + (rank + step[group]) % sizes[group]]
    return drawn


def repeat(made: Pairs, room: int, rng: np.random.Generator) -> np.ndarray:
    """Replace some Bs with excerpts of their A, in place.

    Returns:
      Bool [n], true for the replaced Bs.
    """
    size = made.a_end - made.a_start
    length = np.minimum(size, room - size)
    begin = rng.integers(made.a_start, made.a_end - length + 1)
    repeated = (rng.random(len(made)) < REPEATED) & (length >= SHORTEST_PIECE)
    repeated &= made.paired()
    made.b_start[repeated] = begin[repeated]
    made.b_end[repeated] = (begin + length)[repeated]
    return repeated


def make_pairs(
    documents: Documents,
    breaks: np.ndarray,
    config: PairsConfig,
    rng: np.random.Generator,
) -> tuple[Pairs, Counter]:
    """Create next-sentence pairs; for the arguments, see `pairs.make_pairs`.

    A fair coin decides whether to exchange B for the B of another pair; label 1
    marks the exchanged pairs. A pair is dropped if no other B has the same
    length and origin (excerpt or not); examples without a B are unchanged.
    """
    made, counts = pairs.make_pairs(documents, breaks, config, rng)
    if not len(made):
        return made, counts
    made = made.swap(made.swapped, np.zeros_like(made.swapped))
    repeated = repeat(made, config.room, rng)
    kinds = 2 * (made.b_end - made.b_start) + repeated
    part = np.searchsorted(documents.part_ends(), made.a_start, side="right")
    partner = partners(kinds, documents.hashes[part])
    paired = made.paired()
    inserted = (rng.random(len(made)) < 0.5) & paired
    source = np.where(inserted, partner, np.arange(len(made)))
    usable = np.flatnonzero((partner != np.arange(len(made))) | ~paired)
    candidates = dataclasses.replace(
        made,
        b_start=made.b_start[source],
        b_end=made.b_end[source],
        swapped=inserted,
    )
    made = candidates.take(usable)
    counts.update(
        dropped_chunks=len(partner) - len(usable),
        dropped_tokens=candidates.tokens() - made.tokens(),
        random_documents=int(np.sum(inserted[usable])),
        repeated_segments=int(np.sum((repeated & ~inserted)[usable])),
    )
    return made, counts
