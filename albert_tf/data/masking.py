"""Masking: settings, random n-grams of words, and masked examples.

The random numbers are hashes of a seed and of an example's position. They
depend neither on the example's batch nor on the machine, so a resumed run draws
the same masks as an uninterrupted run.

The builder calls `mask` for static records; `layout.Masker` calls it for
dynamic records as they are read. `phoneme_masking.py` masks phonemes.

Source: ALBERT paper, Section 4.1.

Shapes: B instances, T tokens, N longest n-gram, P prediction slots.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from albert_tf.base.errors import require
from albert_tf.base.settings import MASKING, Validated, setting

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
    """Random numbers for a batch of examples; each call returns new numbers.

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
        """Return int64 [B, count], with 63 random bits in each integer."""
        counters = np.arange(1, count + 1, dtype=np.uint64)
        counters += np.uint64(self.sequences << 32)
        self.sequences += 1
        bits = splitmix64(self.keys[:, None] + counters * INCREMENT)
        return (bits >> np.uint64(1)).astype(np.int64)

    def uniform(self, count: int) -> np.ndarray:
        """Return uniform random numbers in [0, 1), float32 [B, count]."""
        return (self.bits(count) >> 39).astype(np.float32) * np.float32(2**-24)


def word_starts(starts: np.ndarray, maskable: np.ndarray) -> np.ndarray:
    """Return bool [B, T], true where a token begins a word.

    The first token of a segment always begins a word, even if its piece
    continues a word, so that no word crosses [SEP].
    """
    after_special = np.zeros_like(maskable)
    after_special[:, 1:] = ~maskable[:, :-1]
    return maskable & (starts | after_special)


def word_ends(starts: np.ndarray, maskable: np.ndarray) -> np.ndarray:
    """Return the exclusive end [B, T + 1] of the word at each position 0..T."""
    batch, tokens = starts.shape
    boundary = np.where(
        starts | ~maskable, np.arange(tokens, dtype=np.int32), np.int32(tokens)
    )
    ends = np.full((batch, tokens + 1), tokens, np.int32)
    ends[:, :-2] = np.minimum.accumulate(boundary[:, :0:-1], axis=1)[:, ::-1]
    return ends


def random_order(starts: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Return the positions of word starts in random order, as int64 [B, T].

    Rows are padded with T. Sorting integers that combine a random number and a
    position is several times faster than an argsort.

    Args:
      starts: [B, T] bool.
      bits: [B, T] int64, random and not negative.
    """
    tokens = starts.shape[1]
    low = (1 << tokens.bit_length()) - 1
    keys = bits & ~low | np.arange(tokens)
    keys = np.where(starts, keys, np.iinfo(np.int64).max)
    keys.sort(axis=1)
    return np.where(keys == np.iinfo(np.int64).max, tokens, keys & low)


def visits(
    order: np.ndarray, ngrams: np.ndarray, remaining: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield unfinished rows, their next word starts, and the n-gram lengths.

    Args:
      order: [B, T] word starts in the order to visit, padded with T.
      ngrams: [B, T], the n of the n-gram drawn at each visit, 1..N.
      remaining: [B], the number of tokens still to cover, which the caller
        reduces; a row is finished when its number is 0 or no word start is
        left.
    """
    tokens = order.shape[1]
    rows = np.arange(len(order))
    for visit in range(tokens):
        start = order[rows, visit]
        active = (remaining[rows] > 0) & (start < tokens)
        if not active.all():
            rows, start = rows[active], start[active]
        if not rows.size:
            return
        yield rows, start, ngrams[rows, visit]


def _follow(
    ends: np.ndarray,
    blocked: np.ndarray,
    rows: np.ndarray,
    start: np.ndarray,
    num_words: np.ndarray,
    room: np.ndarray,
    longest: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Collect up to `num_words` words; stop at `room` or at a blocked word.

    Returns:
      For n rows: the starts of the words, [n, N], padded with the first start;
      the end of the last word, [n]; and the number of words, [n].
    """
    end, taken, heads = start, np.zeros_like(num_words), []
    for n in range(longest):
        next_end = ends[rows, end]
        fits = (taken == n) & (n < num_words) & ~blocked[rows, end]
        fits &= next_end - start <= room
        heads.append(np.where(fits, end, start))
        end = np.where(fits, next_end, end)
        taken += fits
    return np.stack(heads, axis=1), end, taken


# Shares of the masked tokens that become [MASK], stay unchanged, or become
# random pieces (BERT paper, Section 3.1).
RELEASED_SHARES = [0.8, 0.1, 0.1]

# Whether records are masked when they are written or when they are read.
STATIC, DYNAMIC = "static", "dynamic"


@dataclasses.dataclass(frozen=True)
class MaskingConfig(Validated):
    """Settings for the number of predicted tokens and for their masking."""

    help_group = MASKING

    masking: str = setting(
        STATIC,
        "When to mask: static writes masked records; dynamic writes compact, "
        "unmasked records, which pretrain.py masks differently each time it "
        "reads them.",
        choices=(STATIC, DYNAMIC),
    )
    masked_lm_prob: float = setting(
        0.15, "Share of the tokens to predict.", minimum=0.001, maximum=0.9
    )
    max_predictions_per_seq: int | None = setting(
        None,
        "Maximum number of predictions per example.",
        means="masked_lm_prob times max_seq_length",
        minimum=1,
        maximum=65536,
    )
    ngram: int = setting(
        3, "Longest masked n-gram, in words.", minimum=1, maximum=100
    )
    favor_shorter_ngram: bool = setting(
        True, "Draw n-grams with p(n) ~ 1/n; false reverses the probabilities."
    )
    do_whole_word_mask: bool = setting(
        True, "Mask whole words; false masks single pieces."
    )
    mask_same_random: tuple = setting(
        ("0.8", "0.1", "0.1"),
        "Shares of the predicted tokens that become [MASK], stay unchanged, "
        "and become random pieces; 0.9,0,0.1 leaves none unchanged.",
    )
    do_permutation: bool = setting(
        False,
        "Also predict an equal number of unmasked tokens, which are permuted; "
        "doubles the number of prediction slots.",
    )

    def __post_init__(self):
        super().__post_init__()
        try:
            shares = self.shares
        except ValueError:
            shares = ()
        require(
            len(shares) == 3
            and min(shares) >= 0
            and abs(sum(shares) - 1) < 1e-6,
            "`mask_same_random` must be three shares that add up to 1.",
            mask_same_random=",".join(map(str, self.mask_same_random)),
        )

    @property
    def shares(self) -> list[float]:
        """The shares in `mask_same_random`, as numbers."""
        return list(map(float, self.mask_same_random))

    def written(self) -> dict:
        """Return the settings for `metadata.json`, with shares as numbers.

        Released shares are omitted, because the metadata of records made before
        the setting existed contain no shares.
        """
        values = dataclasses.asdict(self) | {"mask_same_random": self.shares}
        if self.shares == RELEASED_SHARES:
            del values["mask_same_random"]
        return values

    def max_masked(self, max_seq_length: int) -> int:
        """Return the largest number of masked tokens in an example."""
        requested = max(1, round(max_seq_length * self.masked_lm_prob))
        return self.max_predictions_per_seq or requested

    def predictions(self, max_seq_length: int) -> int:
        """Return P, the number of prediction slots of an example."""
        max_masked = self.max_masked(max_seq_length)
        return 2 * max_masked if self.do_permutation else max_masked

    def ngram_probabilities(self) -> np.ndarray:
        """Return p(n) for n = 1..N; for N = 3, these are 6/11, 3/11, 2/11."""
        weights = 1.0 / np.arange(1, self.ngram + 1)
        if not self.favor_shorter_ngram:
            weights = weights[::-1]
        return weights / weights.sum()


@dataclasses.dataclass(frozen=True)
class Words:
    """The ids that masking needs from a vocabulary."""

    mask_id: int
    replacements: np.ndarray  # ids from which random pieces are drawn

    @classmethod
    def of(cls, tokenizer, released: bool = False) -> "Words":
        """Return the ids that masking needs from a tokenizer.

        Random replacements include special tokens only if `released` is true.
        """
        all_ids = np.arange(tokenizer.vocab_size, dtype=np.int32)
        words = np.setdiff1d(all_ids, tokenizer.not_words)
        return cls(tokenizer.mask_id, all_ids if released else words)


@dataclasses.dataclass(frozen=True)
class Instances:
    """A batch of unmasked examples."""

    input_ids: np.ndarray  # [B, T] int32
    segment_ids: np.ndarray  # [B, T] bool, true in segment B and its [SEP]
    maskable: np.ndarray  # [B, T] bool, true at the tokens of the segments
    starts: np.ndarray  # [B, T] bool, word starts, [CLS] and [SEP]
    lengths: np.ndarray  # [B] int64, including special tokens
    swapped: np.ndarray  # [B] bool


@dataclasses.dataclass(frozen=True)
class Masked:
    """Masked instances, with counts of masked tokens."""

    input_ids: np.ndarray  # [B, T] int32, masks applied
    positions: np.ndarray  # [B, P] int32, ascending, padded with 0
    labels: np.ndarray  # [B, P] int32, the ids before masking
    weights: np.ndarray  # [B, P] float32, 1 for predictions and 0 for padding
    budget: np.ndarray  # [B] int64, the requested number of predictions
    drawn: np.ndarray  # [N + 1] int64, n-grams by drawn length
    used: np.ndarray  # [N + 1] int64, n-grams by length after shortening
    kinds: np.ndarray  # [3] int64, tokens by outcome: [MASK], same, random


def budgets(lengths: np.ndarray, config: MaskingConfig, slots: int):
    """Return the number of predictions per example, int64 [B] in 1..`slots`.

    As in the released code, [CLS] and [SEP] count as tokens, and halves are
    rounded to even.
    """
    requested = np.rint(lengths * config.masked_lm_prob).astype(np.int64)
    return np.clip(requested, 1, slots)


def draw_ngrams(
    shape: tuple[int, int], config: MaskingConfig, draws: Draws
) -> np.ndarray:
    """Draw the n-gram lengths for visited words, int8 [B, T] in 1..N."""
    uniform = draws.uniform(shape[1])
    ngrams = np.ones(shape, np.int8)
    # A draw at or above n - 1 of these bounds selects n.
    bounds = np.cumsum(config.ngram_probabilities())[:-1].astype(np.float32)
    for bound in bounds:
        ngrams += uniform >= bound
    return ngrams


def choose_spans(
    begins: np.ndarray,
    words: np.ndarray,
    free: np.ndarray,
    budget: np.ndarray,
    config: MaskingConfig,
    draws: Draws,
    released: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose n-grams to mask: words in random order, each with a random length.

    Args:
      begins: [B, T] bool, true where a word begins.
      words: [B, T] bool, true at the tokens of words.
      free: [B, T] bool, true where nothing is masked yet.
      budget: [B], the number of tokens to cover.
      config: the masking settings.
      draws: the source of randomness.
      released: whether to skip an n-gram that reaches a masked word, instead of
        shortening it, and to count the lengths that are drawn at masked words.

    Returns:
      The covered tokens, [B, T] bool, and the counts of n-grams by drawn length
      and by used length, each [N + 1].
    """
    order = random_order(begins, draws.bits(begins.shape[1]))
    ngrams = draw_ngrams(begins.shape, config, draws)
    ends, longest = word_ends(begins, words), config.ngram
    closed = np.pad(~free, ((0, 0), (0, 1)), constant_values=True)
    blocked = closed
    if released:
        blocked = np.pad(~words, ((0, 0), (0, 1)), constant_values=True)
    steps = np.zeros(closed.shape, np.int8)  # +1 starts a span, -1 ends it
    drawn, used = np.zeros((2, longest + 1), np.int64)
    remaining = budget.copy()
    for rows, start, num_words in visits(order, ngrams, remaining):
        counted = num_words if released else num_words[~closed[rows, start]]
        drawn += np.bincount(counted, minlength=longest + 1)
        heads, end, taken = _follow(
            ends, blocked, rows, start, num_words, remaining[rows], longest
        )
        clear = (taken > 0) & ~closed[rows[:, None], heads].any(axis=1)
        closed[rows[clear, None], heads[clear]] = True
        steps[rows, start] += clear
        steps[rows, end] -= clear
        remaining[rows] -= np.where(clear, end - start, 0)
        if released:  # at the end of a record, count the length drawn
            taken = np.where(blocked[rows, end], num_words, taken)
        used += np.bincount(taken[clear], minlength=longest + 1)
    return np.cumsum(steps[:, :-1], axis=1, dtype=np.int8) > 0, drawn, used


def replace(
    originals: np.ndarray,
    uniform: np.ndarray,
    picks: np.ndarray,
    words: Words,
    shares: Sequence[float],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the replacements [n] for masked tokens, and `Masked.kinds`.

    Args:
      originals: [n] ids.
      uniform, picks: [n], random floats in [0, 1) and random integers.
      words: the ids of the vocabulary.
      shares: see `MaskingConfig.shares`.
    """
    mask_share, keep_share, _ = shares
    masks = uniform < mask_share
    randoms = uniform >= mask_share + keep_share
    random = words.replacements[picks % len(words.replacements)]
    result = np.where(randoms, random, originals)
    result = np.where(masks, np.int32(words.mask_id), result)
    unchanged = originals.size - masks.sum() - randoms.sum()
    return result, np.array([masks.sum(), unchanged, randoms.sum()], np.int64)


def choose_masked(
    starts: np.ndarray,
    maskable: np.ndarray,
    free: np.ndarray,
    budget: np.ndarray,
    config: MaskingConfig,
    draws: Draws,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose spans in a random order of words, with random n-gram lengths.

    For the result and the other arguments, see `choose_spans`.

    Args:
      starts: [B, T] bool, true where a piece begins a word.
      maskable: [B, T] bool, false at [CLS], [SEP] and padding.
      free: [B, T] bool, like `maskable` but also false in spans chosen earlier.
    """
    begins = maskable
    if config.do_whole_word_mask:
        begins = word_starts(starts, maskable)
    return choose_spans(begins, maskable, free, budget, config, draws)


def permute(ids: np.ndarray, moved: np.ndarray, draws: Draws) -> np.ndarray:
    """Return ids [B, T] with the `moved` tokens in each row permuted."""
    rows, columns = np.nonzero(moved)
    keys = draws.bits(ids.shape[1])[rows, columns]
    source = columns[np.lexsort((keys, rows))]
    result = ids.copy()
    result[rows, columns] = ids[rows, source]
    return result


def _cells(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows, columns and prediction slots of chosen tokens."""
    rows, columns = np.nonzero(chosen)
    counts = np.bincount(rows, minlength=len(chosen))
    slot = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, columns, slot


def _predictions(
    input_ids: np.ndarray, predicted: np.ndarray, slots: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return positions, labels and weights [B, P] of predicted tokens."""
    rows, columns, slot = _cells(predicted)
    positions = np.zeros((len(input_ids), slots), np.int32)
    labels = np.zeros_like(positions)
    weights = np.zeros(positions.shape, np.float32)
    positions[rows, slot] = columns
    labels[rows, slot] = input_ids[rows, columns]
    weights[rows, slot] = 1.0
    return positions, labels, weights


def mask(
    instances: Instances,
    max_masked: int,
    config: MaskingConfig,
    words: Words,
    draws: Draws,
    cover: Callable = choose_masked,
) -> Masked:
    """Mask a batch of instances.

    Args:
      instances: the batch.
      max_masked: see `MaskingConfig.max_masked`.
      config: the masking settings.
      words: the ids of the vocabulary.
      draws: the source of randomness.
      cover: the function that chooses tokens, with the arguments and the result
        of `choose_masked`.
    """
    ids, starts = instances.input_ids, instances.starts
    maskable = free = instances.maskable
    budget = budgets(instances.lengths, config, max_masked)
    covered, drawn, used = cover(starts, maskable, free, budget, config, draws)
    masked_ids, (rows, columns, slot) = ids.copy(), _cells(covered)
    uniform, picks = draws.uniform(max_masked), draws.bits(max_masked)
    masked_ids[rows, columns], kinds = replace(
        ids[rows, columns],
        uniform[rows, slot],
        picks[rows, slot],
        words,
        config.shares,
    )
    predicted, slots, total = covered, max_masked, budget
    if config.do_permutation:
        free = maskable & ~covered
        moved, *counts = cover(starts, maskable, free, budget, config, draws)
        masked_ids = permute(masked_ids, moved, draws)
        drawn, used = drawn + counts[0], used + counts[1]
        predicted, slots, total = covered | moved, 2 * max_masked, 2 * budget
    predictions = _predictions(ids, predicted, slots)
    return Masked(masked_ids, *predictions, total, drawn, used, kinds)
