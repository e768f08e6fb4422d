"""Pairs and masked words as in the released code, including its bugs.

Each part of a document has one target length. Sentences are added to a chunk
until it reaches or exceeds that length. A chunk of one sentence receives
sentences of a random document as B, and label 1. Tokens are removed from random
ends of the longer segment until both segments fit. Source:
google-research/albert `create_instances_from_document` and `truncate_seq_pair`.

For masking, the words of A and B form one row without special tokens, so words
and n-grams may cross [SEP]. An n-gram is shortened only to fit the budget or at
the end of the row, and is skipped if the result contains a masked word; a
length is drawn even for an n-gram that begins at a masked word. Source:
`create_masked_lm_predictions`.

Glossary: S sentences, D parts of documents, n pairs; B instances, T tokens.
"""

from collections import Counter

import numpy as np

from albert_tf.data.builder.pairs import PairsConfig, chain, targets
from albert_tf.data.builder.shards import Documents
from albert_tf.data.layout import Pairs
from albert_tf.data.masking import Draws, MaskingConfig, choose_spans

# Number of attempts to draw a different document; the last one is accepted even
# if the document is the same.
TRIES = 10


def other_parts(
    parts: np.ndarray, hashes: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draw, for each part, the index [n] of a part of another document.

    If `TRIES` draws find no other document, the last draw is returned.
    """
    drawn = rng.integers(0, len(hashes), (len(parts), TRIES))
    differs = hashes[drawn] != hashes[parts][:, None]
    differs[:, -1] = True
    return drawn[np.arange(len(parts)), np.argmax(differs, axis=1)]


def _random_segments(
    parts: np.ndarray,
    lengths: np.ndarray,
    documents: Documents,
    offsets: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw segment B: whole sentences of a part drawn by `other_parts`.

    B ends when it has the target length, or at the end of its part.

    Args:
      parts: [n], the part that contains A.
      lengths: [n], the target number of tokens.
      documents: the text.
      offsets: [S + 1], the token offsets of the text's sentences.
      rng: the source of randomness.

    Returns:
      The first token [n] and the end [n] of each B.
    """
    part_ends = np.cumsum(documents.parts, dtype=np.int64)
    part = other_parts(parts, documents.hashes, rng)
    size = documents.parts[part]
    sentence = part_ends[part] - size + rng.integers(0, size)
    begin = offsets[sentence]
    stop = np.searchsorted(offsets, begin + np.maximum(lengths, 1))
    return begin, offsets[np.minimum(stop, part_ends[part])]


def _truncate(
    start: np.ndarray,
    end: np.ndarray,
    sizes: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Shorten ranges to `sizes` tokens; cut each token from a random end."""
    front = rng.binomial(end - start - sizes, 0.5)
    return start + front, start + front + sizes


def truncate_pairs(pairs: Pairs, room: int, rng: np.random.Generator) -> Pairs:
    """Shorten the longer segment, or B if neither is longer, until both fit."""
    a = pairs.a_end - pairs.a_start
    b = pairs.b_end - pairs.b_start
    size_b = np.minimum(b, np.maximum(room // 2, room - a))
    size_a = np.minimum(a, room - size_b)
    return Pairs(
        *_truncate(pairs.a_start, pairs.a_end, size_a, rng),
        *_truncate(pairs.b_start, pairs.b_end, size_b, rng),
        pairs.swapped,
    )


def make_pairs(
    documents: Documents,
    breaks: np.ndarray,
    config: PairsConfig,
    rng: np.random.Generator,
) -> tuple[Pairs, Counter]:
    """Create pairs as the released code does; see `pairs.make_pairs`.

    Coin flips and cut positions are drawn for every sentence, as if a chunk
    began there; only then are the chunks determined.
    """
    offsets = documents.offsets()
    part_of = np.repeat(np.arange(len(documents.parts)), documents.parts)
    part_ends = np.cumsum(documents.parts, dtype=np.int64)[part_of]
    target = targets(len(documents.parts), config, rng)[part_of]
    stop = np.searchsorted(offsets, offsets[:-1] + target)
    stop = np.minimum(stop, part_ends)
    size = stop - np.arange(len(stop))
    coin = rng.random(len(stop)) < 0.5
    a_size = 1 + (rng.random(len(stop)) * (size - 1)).astype(np.int64)
    middle = np.arange(len(stop)) + a_size
    is_random = (size == 1) | (coin & config.random_next_sentence)
    # Sentences that a random document replaces begin the next chunk.
    firsts = chain(np.where(is_random, middle, stop))
    is_random, target = is_random[firsts], target[firsts]
    cuts = offsets[middle[firsts]]
    pairs = Pairs(
        offsets[firsts], cuts, cuts.copy(), offsets[stop[firsts]], is_random
    )
    lengths = (target - pairs.a_end + pairs.a_start)[is_random]
    parts = part_of[firsts][is_random]
    pairs.b_start[is_random], pairs.b_end[is_random] = _random_segments(
        parts, lengths, documents, offsets, rng
    )
    swapped = coin[firsts] & ~is_random & (not config.random_next_sentence)
    pairs = pairs.swap(swapped, swapped | is_random)
    made = truncate_pairs(pairs, config.room, rng)
    counts = Counter(
        one_segment_chunks=int(np.sum(size[firsts] == 1)),
        random_documents=int(np.sum(is_random)),
        truncated_tokens=pairs.tokens() - made.tokens(),
    )
    return made.take(rng.permutation(len(made))), counts


def choose_masked(
    starts: np.ndarray,
    maskable: np.ndarray,
    free: np.ndarray,
    budget: np.ndarray,
    config: MaskingConfig,
    draws: Draws,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose spans as in the released code; see `masking.choose_masked`."""
    # The positions of the tokens of A and B in order, then all other positions.
    order = np.argsort(~maskable, axis=1, kind="stable")
    words = np.take_along_axis(maskable, order, axis=1)
    begins = words.copy()
    if config.do_whole_word_mask:
        begins &= np.take_along_axis(starts, order, axis=1)
        begins[:, 0] = words[:, 0]
    free = np.take_along_axis(free, order, axis=1)
    packed, drawn, used = choose_spans(
        begins, words, free, budget, config, draws, released=True
    )
    covered = np.zeros_like(maskable)
    np.put_along_axis(covered, order, packed, axis=1)
    return covered, drawn, used
