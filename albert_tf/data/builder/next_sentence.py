"""Segment pairs for BERT's next-sentence task, without its give-aways.

In half of the pairs B comes from another document; its sentences are whole,
and as many as would follow A in its own, so that only the topic and the
thread tell the two kinds apart. Sentences that B took the place of begin the
next chunk.

Glossary: S sentences, n pairs.
"""

import dataclasses
from collections import Counter

import numpy as np

from albert_tf.data.builder.documents import Documents
from albert_tf.data.builder.pairs import (
    Pairs,
    PairsConfig,
    chain,
    chunk_ends,
    join,
    sentences,
    split,
    targets,
)

# Segments that are looked at for one that fits.
TRIES = 10


def _choose(
    starts: np.ndarray,
    ends: np.ndarray,
    other: np.ndarray,
    space: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Take the first candidate that fits; else cut one to the space.

    Args:
      starts, ends: [n, TRIES] ranges of tokens.
      other: [n, TRIES] bool, whether they are from another document.
      space: [n] the most tokens.
    """
    rank = other * 2 + ((ends - starts <= space[:, None]) & other)
    index = np.arange(len(starts)), np.argmax(rank, axis=1)
    return starts[index], np.minimum(ends[index], starts[index] + space)


@dataclasses.dataclass(frozen=True)
class _Text:
    """The sentences of a shard, and the chunk that begins at each.

    Attributes:
      offsets: [S + 1] where they begin.
      part_ends: [S] the sentence after the last one of their part.
      hashes: [S] of their documents.
      aims: [S] the target lengths of the chunks.
      stop: [S] where the chunks end.
      room: the most tokens of A and B.
    """

    offsets: np.ndarray
    part_ends: np.ndarray
    hashes: np.ndarray
    aims: np.ndarray
    stop: np.ndarray
    room: int

    def foreign(
        self, rows: np.ndarray, a_ends: np.ndarray, rng: np.random.Generator
    ) -> Pairs:
        """Let whole sentences of other documents follow A.

        Args:
          rows: [n] the sentences that A begins with.
          a_ends: [n] where A ends.
          rng: the source of randomness.
        """
        offsets, starts = self.offsets, self.offsets[rows]
        a_sizes = a_ends - starts
        wanted = offsets[self.stop[rows]] - a_ends
        wanted = np.where(wanted > 0, wanted, self.aims[rows] - a_sizes)
        drawn = rng.integers(0, len(self.stop), (len(rows), TRIES))
        begin = offsets[drawn]
        reach = begin + np.maximum(wanted, 1)[:, None]
        stop = np.searchsorted(offsets, reach)
        stop = np.minimum(stop, self.part_ends[drawn])
        space = self.room - a_sizes
        too_long = offsets[stop] - begin > space[:, None]
        stop -= too_long & (stop > drawn + 1)
        other = self.hashes[drawn] != self.hashes[rows][:, None]
        b = _choose(begin, offsets[stop], other, space)
        return Pairs(starts, a_ends, *b, np.ones(len(rows), bool))

    def neighbours(self, rows: np.ndarray, middles: np.ndarray) -> Pairs:
        """Cut chunks in two, as they stand in their document."""
        cut = self.offsets[middles]
        ends = self.offsets[self.stop[rows]]
        zeros = np.zeros(len(rows), bool)
        return Pairs(self.offsets[rows], cut, cut, ends, zeros)


def _halves(
    starts: np.ndarray,
    cuts: np.ndarray,
    ends: np.ndarray,
    own: np.ndarray,
    room: int,
    rng: np.random.Generator,
) -> Pairs:
    """Pair first halves of lines with second ones, half of them foreign.

    The second half comes from another line that was cut, so that the cut
    gives nothing away.
    """
    count = len(starts)
    label = rng.random(count) < 0.5
    drawn = rng.integers(0, max(count, 1), (count, TRIES))
    other = own[drawn] != own[:, None]
    b_start, b_end = _choose(
        cuts[drawn], ends[drawn], other, room - cuts + starts
    )
    return Pairs(
        starts,
        cuts,
        np.where(label, b_start, cuts),
        np.where(label, b_end, ends),
        label,
    )


def _text_of(
    documents: Documents,
    breaks: np.ndarray,
    config: PairsConfig,
    rng: np.random.Generator,
) -> _Text:
    offsets, part_ends = sentences(documents, breaks, config.room)
    aims = targets(len(part_ends), config, rng)
    stop = chunk_ends(offsets, part_ends, aims, config.room)
    hashes = documents.hashes[np.unique(part_ends, return_inverse=True)[1]]
    return _Text(offsets, part_ends, hashes, aims, stop, config.room)


def _singles(
    text: _Text,
    rows: np.ndarray,
    breaks: np.ndarray,
    rng: np.random.Generator,
) -> Pairs:
    """Make pairs of chunks of one line, which begin at `rows`."""
    starts, ends = text.offsets[rows], text.offsets[text.stop[rows]]
    cuts = split(starts, ends, breaks, rng)
    kept = cuts > starts
    own = text.hashes[rows[kept]]
    return _halves(starts[kept], cuts[kept], ends[kept], own, text.room, rng)


def make_pairs(
    documents: Documents,
    breaks: np.ndarray,
    config: PairsConfig,
    rng: np.random.Generator,
) -> tuple[Pairs, Counter]:
    """Cut documents into pairs; arguments as in `pairs.make_pairs`."""
    if config.single_segment_policy == "drop":
        breaks = breaks[:0]
    text = _text_of(documents, breaks, config, rng)
    place = np.arange(len(text.stop))
    size = text.stop - place
    label = (rng.random(len(size)) < 0.5) & (size > 1)
    middle = place + 1 + (rng.random(len(size)) * (size - 1)).astype(np.int64)
    firsts = chain(np.where(label, middle, text.stop))
    many, single = firsts[size[firsts] > 1], firsts[size[firsts] == 1]
    true, false = many[~label[many]], many[label[many]]
    pairs = join(
        text.neighbours(true, middle[true]),
        text.foreign(false, text.offsets[middle[false]], rng),
    )
    singles = _singles(text, single, breaks, rng)
    whole = np.searchsorted(text.offsets[single], singles.a_start)
    ends = text.offsets[text.stop[single[whole]]]
    lost = (ends - singles.a_end)[singles.swapped]
    pairs = join(pairs, singles)
    counts = Counter(
        one_segment_chunks=len(single),
        dropped_chunks=len(firsts) - len(pairs),
        random_documents=int(pairs.swapped.sum()),
        truncated_tokens=int(lost.sum()),
    )
    return pairs.take(rng.permutation(len(pairs))), counts
