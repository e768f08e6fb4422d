"""Choose the text to hold out.

Documents are ordered by hash, and the first documents are held out. If whole
documents would miss the requested share by more than a third, the document at
the border is divided. Its parts are held out in the order of their keys, but
only a range of the last part is held out. Gaps separate the held-out text of a
part from the text before and after it.

Workers measure shards independently. The sums over shards determine the border
between documents. If a document must be divided, workers then measure its
parts.

Glossary: N tokens, D parts of documents, V vocabulary.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from albert_tf.data.builder.build_settings import BuildSpec
from albert_tf.data.builder.shards import Documents, read_shard
from albert_tf.data.records.metadata import EVAL, TRAIN

# A document's bucket consists of the first bits of its hash.
BUCKET_BITS = 16
BUCKETS = 1 << BUCKET_BITS

# A document is divided if whole documents would miss the requested share by a
# larger part of this share.
TOLERANCE = 1 / 3

# The length of the gap on either side of held-out text, as a share of that
# text, but at most `max_seq_length` tokens. A gap ends at the nearest position
# where a part may be cut.
GAP = 1 / 20

# A part with fewer than FEWEST_WORDS words is divided only if it has at least
# FEWEST_SENTENCES sentences; a sentence with at most SHORT_SENTENCE tokens is
# cut only as a last resort.
FEWEST_WORDS, FEWEST_SENTENCES, SHORT_SENTENCE = 64, 5, 32


def buckets(hashes: np.ndarray) -> np.ndarray:
    """Return the hash bucket of each part's document, as int64 [D]."""
    return (hashes >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class ShardTotals:
    """Totals over one or more shards.

    Attributes:
      tokens: [BUCKETS] int64, the tokens of the documents in each bucket.
      pieces: [V] int64, occurrences of each piece in text that is not dropped.
      ends: {shard: (lowest, highest bucket)} for each non-empty shard.
      counts: the counts of dropped duplicate documents and of dropped tokens.
    """

    tokens: np.ndarray
    pieces: np.ndarray
    ends: dict[int, tuple[int, int]]
    counts: Counter

    def __add__(self, other: "ShardTotals") -> "ShardTotals":
        return ShardTotals(
            self.tokens + other.tokens,
            self.pieces + other.pieces,
            self.ends | other.ends,
            self.counts + other.counts,
        )


NOTHING = ShardTotals(np.zeros(BUCKETS, np.int64), np.int64(0), {}, Counter())


def measure(recipe: BuildSpec, item: tuple[int, str]) -> ShardTotals:
    """Return the totals of a shard; `item` is its index and path."""
    number, path = item
    documents = read_shard(path, recipe.id_type)
    if documents is None:
        return NOTHING
    counts: Counter = Counter()
    sizes = np.diff(documents.part_ends(), prepend=0)
    if recipe.reading.drop_duplicates:
        first = documents.first_of_each()
        # The key of a document's first part is the document's hash.
        repeated = ~first & (documents.keys == documents.hashes)
        counts["duplicate_documents"] = int(np.sum(repeated))
        counts["duplicate_tokens"] = int(np.sum(sizes[~first]))
        documents, sizes = documents.select(first), sizes[first]
    bucket = buckets(documents.hashes)
    tokens = np.bincount(bucket, sizes, BUCKETS).astype(np.int64)
    pieces = np.bincount(documents.ids, minlength=recipe.vocab_size)
    ends = {number: (int(bucket.min()), int(bucket.max()))}
    return ShardTotals(tokens, pieces, ends, counts)


def add_up(items: Iterable[ShardTotals]) -> ShardTotals:
    """Add up the totals of several groups of shards."""
    return sum(items, NOTHING)


class Border(NamedTuple):
    """The end of the held-out text, in the order of hashes and keys.

    Attributes:
      below: documents in hash buckets below this bucket are held out.
      key: parts in bucket `below` with a lower key are held out too; -1 if no
        document is divided.
      tokens: the number of tokens to hold out from each part whose key is
        `key`.
    """

    below: int
    key: int = -1
    tokens: int = 0

    def masks(self, documents: Documents) -> tuple[np.ndarray, np.ndarray]:
        """Return two bool arrays [D]: held-out parts, and parts to divide."""
        bucket = buckets(documents.hashes)
        divided = (bucket == self.below) & (self.key >= 0)
        divided &= documents.keys <= np.uint64(max(self.key, 0))
        return bucket < self.below, divided


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The text that is held out, with counts.

    Attributes:
      border: the end of the held-out text.
      wanted: the number of tokens still to hold out from the bucket at the
        border; see `divide`.
      shards: {split: the shards that contain text of the split}.
      counts: the counts of dropped duplicates and of the tokens of a divided
        document.
      pieces: [V], occurrences of each piece in text that is not dropped.
    """

    border: Border
    wanted: int
    shards: dict[str, list[int]]
    counts: dict[str, int]
    pieces: list[int]


def _border(tokens: np.ndarray, fraction: float) -> tuple[Border, int]:
    """Return the border between whole documents, and `HeldOut.wanted`.

    `tokens` is `ShardTotals.tokens`; `fraction` is the share to hold out.
    """
    occupied = np.flatnonzero(tokens)
    if not len(occupied):
        return Border(0), 0
    reached = np.cumsum(tokens[occupied])
    target = fraction * reached[-1]
    at = int(np.argmax(reached >= target))
    before = int(reached[at - 1]) if at else 0
    if reached[at] <= (1 + TOLERANCE) * target and at < len(occupied) - 1:
        return Border(int(occupied[at]) + 1), 0
    if before >= (1 - TOLERANCE) * target:
        return Border(int(occupied[at])), 0
    return Border(int(occupied[at])), max(1, round(target - before))


def hold_out(fraction: float, measured: ShardTotals) -> HeldOut:
    """Hold out whole documents, in total at most about `fraction` of the text.

    If these documents have too few tokens, `HeldOut.wanted` is the number of
    tokens that `divide` must add. If there is no text, or `fraction` is 0, no
    document is held out, and `HeldOut.wanted` is 0.
    """
    border, wanted = _border(measured.tokens, fraction)
    ends = sorted(measured.ends.items())
    shards = {
        EVAL: [s for s, (low, _) in ends if low < border.below],
        TRAIN: [s for s, (_, high) in ends if high >= border.below],
    }
    pieces = measured.pieces.tolist()
    return HeldOut(border, wanted, shards, dict(measured.counts), pieces)


class PartsOfShard(NamedTuple):
    """The D parts of one shard that are in the hash bucket at the border."""

    shard: int
    keys: list[int]
    sizes: list[int]  # tokens
    divisible: list[bool]
    has_other_text: bool  # whether the shard contains other training text


def _divisible(documents: Documents) -> np.ndarray:
    """Return bool [D], true for parts that are long enough to divide."""
    words = np.cumsum(documents.starts)[documents.part_ends() - 1]
    many = np.diff(words, prepend=0) >= FEWEST_WORDS
    return many | (documents.parts >= FEWEST_SENTENCES)


def measure_parts(
    recipe: BuildSpec, item: tuple[int, str], held_out: HeldOut
) -> PartsOfShard | None:
    """Return the parts of a shard that are in the hash bucket at the border.

    The result is None if the shard is empty, or if `held_out.wanted` is 0.
    """
    number, path = item
    documents = read_shard(path, recipe.id_type) if held_out.wanted else None
    if documents is None:
        return None
    if recipe.reading.drop_duplicates:
        documents = documents.select(documents.first_of_each())
    bucket = buckets(documents.hashes)
    has_other_text = bool(np.any(bucket > held_out.border.below))
    documents = documents.select(bucket == held_out.border.below)
    return PartsOfShard(
        number,
        documents.keys.tolist(),
        np.diff(documents.part_ends(), prepend=0).tolist(),
        _divisible(documents).tolist(),
        has_other_text,
    )


def _gap(tokens: np.ndarray | int, length: int) -> np.ndarray:
    """Return the number of tokens in each gap beside `tokens` held-out tokens.

    A gap has at most `length` tokens.
    """
    return np.minimum(np.ceil(np.multiply(tokens, GAP)), length).astype(int)


def divide(
    recipe: BuildSpec,
    measured: Iterable[PartsOfShard | None],
    held_out: HeldOut,
) -> HeldOut:
    """Hold out the wanted number of tokens from the parts at the border.

    Parts are chosen in the order of their keys, so copies of a part stay
    together. If `held_out.wanted` is 0, `measured` is not read.
    """
    if not held_out.wanted:
        return held_out
    shard_parts = sorted(parts for parts in measured if parts)
    keys = np.concatenate([np.array(p.keys, np.uint64) for p in shard_parts])
    sizes = np.concatenate([np.array(p.sizes, np.int64) for p in shard_parts])
    room = sizes - 2 * _gap(sizes, recipe.pairs.max_seq_length)
    order, index, copies = np.unique(
        keys, return_inverse=True, return_counts=True
    )
    reached = np.cumsum(np.bincount(index, room))
    last = min(np.searchsorted(reached, held_out.wanted), len(order) - 1)
    rest = held_out.wanted - (reached[last - 1] if last else 0)
    key = int(order[last])
    border = Border(held_out.border.below, key, math.ceil(rest / copies[last]))
    shards = {name: set(numbers) for name, numbers in held_out.shards.items()}
    for parts in shard_parts:
        if any(k <= key for k in parts.keys):
            shards[EVAL].add(parts.shard)
        left = [
            k > key or (k == key and divisible)
            for k, divisible in zip(parts.keys, parts.divisible, strict=True)
        ]
        if not (parts.has_other_text or any(left)):
            shards[TRAIN].discard(parts.shard)
    counts = {"divided_document_tokens": int(sizes.sum())}
    return dataclasses.replace(
        held_out,
        border=border,
        wanted=0,
        counts=held_out.counts | counts,
        shards={name: sorted(numbers) for name, numbers in shards.items()},
    )


def _cuts(
    sizes: np.ndarray, starts: np.ndarray, tokens: int, fewest: int
) -> np.ndarray:
    """Return the positions at which a part may be cut.

    These positions are between sentences and inside long sentences.

    Args:
      sizes: tokens per sentence.
      starts: [N] bool, whether each of the part's tokens begins a word.
      tokens: the number of tokens to hold out; a sentence longer than a quarter
        of this number is long.
      fewest: the minimum number of positions; if there are fewer, the part may
        be cut before any word.
    """
    free = np.repeat(sizes > max(tokens // 4, SHORT_SENTENCE), sizes) & starts
    free[np.cumsum(sizes) - sizes] = True
    cuts = np.flatnonzero(free)[1:]
    return cuts if len(cuts) >= fewest else np.flatnonzero(starts[1:]) + 1


def _held_out_range(
    sizes: np.ndarray, starts: np.ndarray, tokens: int | None, length: int
) -> tuple[int, int, int]:
    """Choose the held-out range of a divisible part, near its end.

    Args:
      sizes, starts: see `_cuts`.
      tokens: the number of tokens to hold out; None holds out all except the
        gaps.
      length: `max_seq_length`.

    Returns:
      The end of the training text, and the start and end of the held-out text,
      as indices of tokens in the part.
    """
    size, hold_out_all = int(sizes.sum()), tokens is None
    gap = int(_gap(size if hold_out_all else tokens, length))
    tokens = size - 2 * gap if hold_out_all else tokens
    cuts = _cuts(sizes, starts, tokens, FEWEST_SENTENCES - 1)

    def nearest(position: int, low: int, high: int) -> int:
        closest = int(np.abs(cuts - position).argmin())
        return min(max(closest, low), high)

    # Leave at least two sentences for a pair, one for each gap, and one before
    # the first gap.
    end = nearest(size - gap, 3, len(cuts) - 1)
    begin = nearest(int(cuts[end]) - tokens, 1, end - 2)
    before = nearest(int(cuts[begin]) - gap, 0, begin - 1)
    return (
        0 if hold_out_all else int(cuts[before]),
        int(cuts[begin]),
        int(cuts[end]),
    )


def split_documents(
    recipe: BuildSpec, documents: Documents, border: Border, split: str
) -> Documents:
    """Return only the training text or the held-out text of `documents`."""
    held_out, divided = border.masks(documents)
    in_split = held_out == (split == EVAL)
    if not divided.any():
        return documents.select(in_split)
    mask = np.repeat(np.repeat(in_split, documents.parts), documents.sentences)
    sentence_ends = np.cumsum(documents.parts)
    ends, divisible = documents.part_ends(), _divisible(documents)
    for part in np.flatnonzero(divided):
        last = sentence_ends[part]
        sizes = documents.sentences[last - documents.parts[part] : last]
        first, end = int(ends[part] - sizes.sum()), int(ends[part])
        mask[first:end] = split == EVAL
        if not divisible[part]:
            continue
        at_border = int(documents.keys[part]) == border.key
        tokens = border.tokens if at_border else None
        cut, begin, stop = _held_out_range(
            sizes,
            documents.starts[first:end],
            tokens,
            recipe.pairs.max_seq_length,
        )
        mask[first:end] = False
        chosen = slice(begin, stop) if split == EVAL else slice(0, cut)
        mask[first:end][chosen] = True
    return documents.keep(mask)
