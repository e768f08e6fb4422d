"""The masking of `masking`, as TensorFlow operations of an input pipeline.

The choice of spans is exactly that of `masking_spans.choose_spans`, given its
order and n-grams. The random numbers of an example are a hash of the seed and
of the example's position in the stream: they depend neither on the batch nor
on the machine, so that a resumed run masks as an unbroken one.

Glossary: B instances, T tokens, P predictions, N longest n-gram.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from albert_tf.data.masking import Instances, MaskingConfig, Words

# What the numbers of an example are for; each has its own sequence.
ORDER, NGRAMS, KINDS, PICKS = range(4)

# SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
# generators, 2014).
INCREMENT = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)


def _mix(x: tf.Tensor) -> tf.Tensor:
    """Return the output of SplitMix64 for uint64 states."""

    def fold(x, shift):
        shifted = tf.bitwise.right_shift(x, tf.constant(shift, tf.uint64))
        return tf.bitwise.bitwise_xor(x, shifted)

    for shift, multiplier in zip(SHIFTS[:2], MULTIPLIERS, strict=True):
        x = fold(x, shift) * tf.constant(multiplier, tf.uint64)
    return fold(x, SHIFTS[2])


def draws(
    seed: int, positions: tf.Tensor, purpose: int, count: int
) -> tf.Tensor:
    """Return 63 random bits for each example and place, int64 [B, count].

    Args:
      seed: of the run.
      positions: [B] int64, where each example stands in the stream.
      purpose: one of `ORDER`, `NGRAMS`, `KINDS`, `PICKS`.
      count: the numbers that each example needs.
    """
    increment = tf.constant(INCREMENT, tf.uint64)
    start = _mix(tf.constant(seed % 2**64, tf.uint64) + increment)
    key = _mix(start + tf.cast(positions, tf.uint64) * increment)  # [B]
    place = np.arange(1, count + 1, dtype=np.uint64) + (purpose << 32)
    steps = tf.constant(place * np.uint64(INCREMENT))
    bits = _mix(key[:, None] + steps)
    return tf.cast(
        tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), "int64"
    )


def uniform(bits: tf.Tensor) -> tf.Tensor:
    """Return float32 in [0, 1) of 63 random bits."""
    return tf.cast(tf.bitwise.right_shift(bits, 39), tf.float32) * 2.0**-24


def budgets(lengths: tf.Tensor, config: MaskingConfig, slots: int):
    """Return the predictions due in each instance, int32 [B]."""
    due = tf.round(tf.cast(lengths, tf.float64) * config.masked_lm_prob)
    return tf.clip_by_value(tf.cast(due, tf.int32), 1, slots)


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Where words begin and end in a batch.

    Attributes:
      begins: [B, T] bool, true at a word's first token.
      first: [B, T] int32, the last word start, special token or padding at
        or before t.
      ends: [B, T + 1] int32, the next one after t, T where there is none.
    """

    begins: tf.Tensor
    first: tf.Tensor
    ends: tf.Tensor


def word_bounds(
    starts: tf.Tensor, maskable: tf.Tensor, whole_words: bool
) -> Bounds:
    """Find the words; see `word_starts` and `word_ends` of `masking_spans`."""
    batch, tokens = tf.shape(maskable)[0], maskable.shape[1]
    after_special = tf.pad(~maskable[:, :-1], [[0, 0], [1, 0]])
    begins = maskable
    if whole_words:
        begins = maskable & (starts | after_special)
    bounds = begins | ~maskable
    number = tf.cumsum(tf.cast(bounds, tf.int32), axis=1)  # [B, T], from 1
    places = tf.cast(tf.where(bounds), tf.int32)  # [bounds, 2]
    cells = tf.stack([places[:, 0], tf.boolean_mask(number, bounds)], axis=1)
    table = tokens + tf.scatter_nd(
        cells, places[:, 1] - tokens, [batch, tokens + 2]
    )  # [B, T + 2], the place of bound k, from 1
    first = tf.gather(table, number, batch_dims=1)
    ends = tf.gather(table, number + 1, batch_dims=1)
    return Bounds(
        begins, first, tf.pad(ends, [[0, 0], [0, 1]], "CONSTANT", tokens)
    )


def random_order(begins: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """Return the word starts in random order, padded with T, int32 [B, T]."""
    tokens = begins.shape[1]
    low = (1 << tokens.bit_length()) - 1
    place = tf.range(tokens, dtype=tf.int64)
    keys = tf.bitwise.bitwise_or(bits & ~low, place)
    keys = tf.sort(tf.where(begins, keys, tf.int64.max), axis=1)
    order = tf.where(
        keys == tf.int64.max, tf.constant(tokens, tf.int64), keys & low
    )
    return tf.cast(order, tf.int32)


def draw_ngrams(bits: tf.Tensor, config: MaskingConfig) -> tf.Tensor:
    """Return the n-gram length of every visit, int32 1..N."""
    value = uniform(bits)
    ngrams = tf.ones_like(value, tf.int32)
    for step in config.ngram_steps():
        ngrams += tf.cast(value >= step, tf.int32)
    return ngrams


def _paths(ends: tf.Tensor, longest: int) -> tf.Tensor:
    """Return where a word and the N after it begin, [B * (T + 1), N + 1]."""
    hops = [tf.zeros_like(ends) + tf.range(ends.shape[1])]
    for _ in range(longest):
        hops.append(tf.gather(ends, hops[-1], batch_dims=1))
    return tf.reshape(tf.stack(hops, axis=-1), [-1, longest + 1])


def choose_spans(
    order: tf.Tensor,
    bounds: Bounds,
    maskable: tf.Tensor,
    budget: tf.Tensor,
    ngrams: tf.Tensor,
    longest: int,
) -> tf.Tensor:
    """Return the covered tokens, [B, T] bool; no randomness here.

    Arguments are those of `masking_spans.choose_spans`, `bounds` the words.
    """
    batch, tokens = tf.shape(order)[0], order.shape[1]
    row = tf.range(batch)[:, None] * (tokens + 1)  # [B, 1]
    paths = _paths(bounds.ends, longest)
    closed = tf.pad(~maskable, [[0, 0], [0, 1]], constant_values=True)
    closed = tf.cast(tf.reshape(closed, [-1]), tf.int32)
    number = tf.range(longest)
    visits = tf.reduce_sum(tf.cast(bounds.begins, tf.int32), axis=1)

    def unfinished(visit, left, closed):
        return tf.reduce_any((left > 0) & (visit < visits))

    def visit_words(visit, left, closed):
        start = order[:, visit]  # [B]
        path = tf.gather(paths, row[:, 0] + start)  # [B, N + 1]
        cells = row + path[:, :-1]  # [B, N]
        taken = tf.gather(closed, cells)
        sizes = path[:, 1:] - start[:, None]
        fits = (number < ngrams[:, visit, None]) & (sizes <= left[:, None])
        fits = tf.cast(fits, tf.int32) * (1 - taken)
        fits = tf.math.cumprod(fits, axis=1)
        closed = tf.tensor_scatter_nd_update(
            closed,
            tf.reshape(cells, [-1, 1]),
            tf.reshape(taken + fits, [-1]),
        )
        left -= tf.reduce_max(sizes * fits, axis=1)
        return visit + 1, left, closed

    _, _, closed = tf.while_loop(
        unfinished, visit_words, (0, budget, closed), parallel_iterations=1
    )
    closed = tf.reshape(closed, [batch, tokens + 1])
    return maskable & (tf.gather(closed, bounds.first, batch_dims=1) > 0)


def replace(
    originals: tf.Tensor,
    kinds: tf.Tensor,
    picks: tf.Tensor,
    words: Words,
    shares: Sequence[float],
) -> tf.Tensor:
    """Return what masked tokens become, given float32 and integer draws."""
    mask_share, keep_share, _ = shares
    replacements = tf.constant(words.replacements)
    count = tf.cast(len(words.replacements), picks.dtype)
    random = tf.gather(replacements, picks % count)
    result = tf.where(kinds >= mask_share + keep_share, random, originals)
    return tf.where(kinds < mask_share, words.mask_id, result)


def cover(
    input_ids: tf.Tensor,
    covered: tf.Tensor,
    slots: int,
    words: Words,
    shares: Sequence[float],
    kinds: tf.Tensor,
    picks: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Mask the covered tokens; return ids, positions, labels and weights.

    Args:
      input_ids: [B, T] int32.
      covered: [B, T] bool, at most P in a row.
      slots: P.
      words: the ids of the vocabulary.
      shares: see `MaskingConfig.shares`.
      kinds, picks: [B, P], the draws of `replace`.
    """
    cells = tf.cast(tf.where(covered), tf.int32)  # [covered, 2]
    slot = tf.cumsum(tf.cast(covered, tf.int32), axis=1, exclusive=True)
    target = tf.stack([cells[:, 0], tf.boolean_mask(slot, covered)], axis=1)
    shape = [tf.shape(input_ids)[0], slots]
    weights = tf.scatter_nd(target, tf.ones_like(cells[:, 0]), shape)
    positions = tf.scatter_nd(target, cells[:, 1], shape)
    labels = tf.gather(input_ids, positions, batch_dims=1) * weights
    changed = replace(labels, kinds, picks, words, shares)
    changed = tf.gather_nd(changed, target)
    input_ids = tf.tensor_scatter_nd_update(input_ids, cells, changed)
    return input_ids, positions, labels, tf.cast(weights, tf.float32)


def mask(
    instances: Instances,
    slots: int,
    config: MaskingConfig,
    words: Words,
    seed: int,
    positions: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Mask a batch; return ids, masked positions, labels and weights.

    Args:
      instances: the batch, of tensors.
      slots: P, see `MaskingConfig.predictions`.
      config: what to mask.
      words: the ids of the vocabulary.
      seed: of the run.
      positions: [B] int64, where each instance stands in the stream.
    """
    maskable, tokens = instances.maskable, instances.maskable.shape[1]
    bounds = word_bounds(instances.starts, maskable, config.do_whole_word_mask)
    covered = choose_spans(
        random_order(bounds.begins, draws(seed, positions, ORDER, tokens)),
        bounds,
        maskable,
        budgets(instances.lengths, config, slots),
        draw_ngrams(draws(seed, positions, NGRAMS, tokens), config),
        config.ngram,
    )
    kinds = uniform(draws(seed, positions, KINDS, slots))
    picks = draws(seed, positions, PICKS, slots)
    return cover(
        instances.input_ids, covered, slots, words, config.shares, kinds, picks
    )
