"""Segment pairs for the sentence-order task, cut from documents.

Consecutive whole sentences of one document are added to a chunk until it
reaches a target length. The chunk is cut into A and B at a random sentence
boundary, and a fair coin decides whether to swap the two segments. Only the
text may reveal which segment came first. Therefore:

- no sentence is cut, inside a pair or at its outer ends, because the positions
  of incomplete sentences would reveal whether the segments are swapped;
- a fair coin decides whether to pack chunks from the front or the back of a
  document, or of each part of a long document. A sentence that does not fit
  begins the next chunk and tends to be long.

Glossary: N tokens, S sentences, n pairs; T tokens per example.
"""

import dataclasses
from collections import Counter

import numpy as np

from albert_tf.base.errors import require
from albert_tf.base.settings import (
    COMPAT_FLAG,
    EXAMPLES,
    Validated,
    setting,
    variant,
)
from albert_tf.data.builder.shards import Documents
from albert_tf.data.layout import Pairs

# [CLS] A [SEP] B [SEP]
SPECIAL_TOKENS = 3

SINGLE_SEGMENT_POLICIES = ("split", "drop", "keep")


@dataclasses.dataclass(frozen=True)
class PairsConfig(Validated):
    """Settings for cutting documents into segment pairs."""

    help_group = EXAMPLES

    max_seq_length: int = setting(
        512,
        "Number of tokens in an example, including special tokens.",
        minimum=8,
        maximum=65536,
    )
    short_seq_prob: float = setting(
        0.1,
        "Share of the chunks with a random, shorter target length.",
        minimum=0.0,
        maximum=1.0,
    )
    single_segment_policy: str | None = setting(
        None,
        "What to do with a chunk of a single line. split: split it where a "
        "sentence ends inside it, or else drop it; drop: drop it; keep: split "
        "it if possible, or else keep it as an example of one segment, with "
        "masked words but without a sentence order.",
        means="split",
        choices=SINGLE_SEGMENT_POLICIES,
    )
    random_next_sentence: bool = setting(
        False,
        "Instead of swapping segments, replace segment B in half of the pairs "
        "with text from another document, and set the label to 1 (BERT's "
        "next-sentence task). Without --compat=google, the new segment is as "
        "long as the old one, and in some pairs, B is an excerpt of A.",
    )
    compat: str = variant(
        COMPAT_FLAG,
        help="google reproduces the pairs and masks of the released code, "
        "including its bugs.",
    )

    def __post_init__(self):
        super().__post_init__()
        require(
            not (self.compat == "google" and self.single_segment_policy),
            "`single_segment_policy` must not be set with --compat=google, "
            "which has its own policy.",
            single_segment_policy=self.single_segment_policy,
        )

    @property
    def room(self) -> int:
        """The maximum number of tokens in A and B together."""
        return self.max_seq_length - SPECIAL_TOKENS


def sentences(
    documents: Documents, breaks: np.ndarray, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return sentence offsets [S + 1], and each sentence's part end [S].

    A line is a sentence, but a line longer than `room` is cut at all its
    breaks. A sentence's part end is the end of the part that contains the
    sentence, as an index into the offsets.
    """
    lines, part_ends = documents.offsets(), documents.part_ends()
    line = np.searchsorted(lines, breaks, side="right") - 1
    long = np.diff(lines) > room
    inside = breaks[long[line] & (breaks > lines[line])]
    offsets = np.sort(np.concatenate([lines, inside]), kind="stable")
    ends = np.searchsorted(part_ends, offsets[:-1], side="right")
    return offsets, np.searchsorted(offsets, part_ends[ends])


def targets(count: int, config: PairsConfig, rng: np.random.Generator):
    """Draw the target lengths of `count` chunks, in tokens."""
    short = rng.random(count) < config.short_seq_prob
    lengths = rng.integers(2, config.room, count, endpoint=True)
    return np.where(short, lengths, config.room)


def chunk_ends(
    offsets: np.ndarray,
    part_ends: np.ndarray,
    targets: np.ndarray,
    room: int,
) -> np.ndarray:
    """Return, for each sentence, the end [S] of a chunk that begins with it.

    Sentences are added to a chunk until it reaches its target. If the chunk
    then exceeds `room`, its last sentence is dropped, unless it is the only
    one.
    """
    begins = offsets[:-1]
    stop = np.searchsorted(offsets, begins + targets)
    stop = np.minimum(stop, part_ends)
    too_long = offsets[stop] - begins > room
    stop -= too_long & (stop > np.arange(len(begins)) + 1)
    return stop


def chain(following: np.ndarray) -> np.ndarray:
    """Return the index of each chunk's first sentence, in order.

    For a chunk that begins at sentence i, `following[i]` is the first sentence
    of the next chunk.
    """
    steps = following.tolist()
    first, begins = 0, []
    while first < len(steps):
        begins.append(first)
        first = steps[first]
    return np.array(begins, np.int64)


def pack(
    offsets: np.ndarray,
    part_ends: np.ndarray,
    config: PairsConfig,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of each chunk's first sentence, and its end index.

    The end is the index of the sentence after the chunk's last sentence. A
    fair coin decides whether to pack a part from its front or its back.
    """
    index = np.arange(len(part_ends))
    part_begins = np.searchsorted(part_ends, part_ends)
    mirror = part_begins + part_ends
    from_back = (rng.random(len(index)) < 0.5)[part_begins]
    order = np.where(from_back, mirror - 1 - index, index)
    packed = np.zeros(len(offsets), np.int64)
    np.cumsum(np.diff(offsets)[order], out=packed[1:])
    lengths = targets(len(index), config, rng)
    following = chunk_ends(packed, part_ends, lengths, config.room)
    firsts = chain(following)
    lasts = following[firsts]
    from_back, mirror = from_back[firsts], mirror[firsts]
    return (
        np.where(from_back, mirror - lasts, firsts),
        np.where(from_back, mirror - firsts, lasts),
    )


def ordered(
    starts: np.ndarray,
    middles: np.ndarray,
    ends: np.ndarray,
    rng: np.random.Generator,
) -> Pairs:
    """Cut ranges in two, and swap A and B with probability one half."""
    swapped = rng.random(len(starts)) < 0.5
    pairs = Pairs(starts, middles, middles, ends, np.zeros_like(swapped))
    return pairs.swap(swapped, swapped)


def split(
    starts: np.ndarray,
    ends: np.ndarray,
    breaks: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw a break in each range; use the start of a range without breaks."""
    first = np.searchsorted(breaks, starts, side="right")
    number = np.searchsorted(breaks, ends) - first
    drawn = first + (rng.random(len(starts)) * number).astype(np.int64)
    return np.where(number > 0, np.append(breaks, 0)[drawn], starts)


def without_b(
    starts: np.ndarray, ends: np.ndarray, words: np.ndarray, room: int
) -> Pairs:
    """Return examples without B; cut long segments evenly and between words.

    Args:
      starts, ends: ranges of tokens.
      words: indices of tokens that begin a word, in order.
      room: the maximum number of tokens in a segment; longer words are cut too.
    """
    cut = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        while end - start > room:
            pieces = -(-(end - start) // room)
            max_end = start + -(-(end - start) // pieces)
            word = int(words[np.searchsorted(words, max_end, "right") - 1])
            cut.append((start, word if word > start else max_end))
            start = cut[-1][1]
        cut.append((start, end))
    starts, ends = np.array(cut, np.int64).reshape(-1, 2).T
    return Pairs(starts, ends, ends, ends, np.zeros(len(cut), bool))


def make_pairs(
    documents: Documents,
    breaks: np.ndarray,
    config: PairsConfig,
    rng: np.random.Generator,
) -> tuple[Pairs, Counter]:
    """Return the segment pairs of documents, in random order, and counts.

    Args:
      documents: the tokenized text of one shard.
      breaks: offsets of tokens that begin a new sentence inside a line.
      config: lengths and policies.
      rng: the source of randomness.
    """
    if config.single_segment_policy == "drop":
        breaks = breaks[:0]
    offsets, part_ends = sentences(documents, breaks, config.room)
    firsts, lasts = pack(offsets, part_ends, config, rng)
    size = lasts - firsts
    middles = firsts + 1 + (rng.random(len(size)) * (size - 1)).astype(np.int64)
    starts, ends = offsets[firsts], offsets[lasts]
    alone = size == 1
    cuts = np.where(alone, split(starts, ends, breaks, rng), offsets[middles])
    uncut = cuts == starts
    order = rng.permutation(np.flatnonzero(~uncut))
    made = ordered(starts[order], cuts[order], ends[order], rng)
    counts = Counter(one_segment_chunks=int(alone.sum()))
    if config.single_segment_policy == "keep":
        words = np.flatnonzero(documents.starts)
        singles = without_b(starts[uncut], ends[uncut], words, config.room)
        made = made.followed_by(singles)
        return made.take(rng.permutation(len(made))), counts
    dropped = int(np.sum((ends - starts)[uncut]))
    counts.update(dropped_chunks=int(uncut.sum()), dropped_tokens=dropped)
    return made, counts
