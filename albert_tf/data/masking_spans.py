"""The words that are masked together, as arrays; no setting and no id.

Source: ALBERT paper, Section 3.1; `masking` says which words these are.

Glossary: B instances, T tokens, N longest n-gram.
"""

from collections.abc import Iterator

import numpy as np


def word_starts(starts: np.ndarray, maskable: np.ndarray) -> np.ndarray:
    """Return where words begin, [B, T] bool.

    The first token of a segment begins a word even where its piece does not,
    so that no word reaches across [SEP].
    """
    after_special = np.zeros_like(maskable)
    after_special[:, 1:] = ~maskable[:, :-1]
    return maskable & (starts | after_special)


def word_ends(starts: np.ndarray, maskable: np.ndarray) -> np.ndarray:
    """Return the position after the word that begins at t, [B, T + 1]."""
    batch, tokens = starts.shape
    boundary = np.where(
        starts | ~maskable, np.arange(tokens, dtype=np.int32), np.int32(tokens)
    )
    ends = np.full((batch, tokens + 1), tokens, np.int32)
    ends[:, :-2] = np.minimum.accumulate(boundary[:, :0:-1], axis=1)[:, ::-1]
    return ends


def random_order(starts: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Return the positions of word starts in random order, [B, T] int64.

    A row's other columns hold T. Sorting (random number, position) packed
    into one integer is several times faster than an argsort.

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
    order: np.ndarray, ngrams: np.ndarray, left: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the rows that go on, where each is, and the n drawn there.

    Args:
      order: [B, T] word starts in the order to visit, padded with T.
      ngrams: [B, T] the n of the n-gram drawn at each visit, 1..N.
      left: [B] tokens still to cover; the caller lowers it, to 0 at the end.
    """
    tokens = order.shape[1]
    rows = np.arange(len(order))
    for visit in range(tokens):
        start = order[rows, visit]
        alive = (left[rows] > 0) & (start < tokens)
        if not alive.all():
            rows, start = rows[alive], start[alive]
        if not rows.size:
            return
        yield rows, start, ngrams[rows, visit]


def _follow(
    ends: np.ndarray,
    barred: np.ndarray,
    rows: np.ndarray,
    start: np.ndarray,
    wanted: np.ndarray,
    room: np.ndarray,
    longest: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Go on from word to word, up to a barred one or to the end of the room.

    Returns:
      where the words begin [n, N], filled with the first; where the last of
      them ends, and how many they are, [n].
    """
    end, taken, heads = start, np.zeros_like(wanted), []
    for n in range(longest):
        further = ends[rows, end]
        fits = (taken == n) & (n < wanted) & ~barred[rows, end]
        fits &= further - start <= room
        heads.append(np.where(fits, end, start))
        end = np.where(fits, further, end)
        taken += fits
    return np.stack(heads, axis=1), end, taken


def choose_spans(
    order: np.ndarray,
    ends: np.ndarray,
    words: np.ndarray,
    free: np.ndarray,
    budget: np.ndarray,
    ngrams: np.ndarray,
    longest: int,
    released: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the covered tokens and the n-gram counts; no randomness here.

    Args:
      order: [B, T] word starts in the order to visit, padded with T.
      ends: [B, T + 1] from `word_ends`.
      words: [B, T] bool, true at the tokens of words.
      free: [B, T] bool, true where nothing is masked yet.
      budget: [B] tokens to cover.
      ngrams: [B, T] the n of the n-gram begun at each visit, 1..N.
      longest: N.
      released: an n-gram that meets a masked word is left out instead of
        shortened; its length is drawn also where it begins at one.

    Returns:
      covered [B, T] bool; n-grams by length drawn and by length used, each
      [N + 1].
    """
    closed = np.pad(~free, ((0, 0), (0, 1)), constant_values=True)
    barred = closed
    if released:
        barred = np.pad(~words, ((0, 0), (0, 1)), constant_values=True)
    steps = np.zeros(closed.shape, np.int8)  # +1 begins, -1 ends a span
    drawn, used = np.zeros((2, longest + 1), np.int64)
    left = budget.copy()
    for rows, start, wanted in visits(order, ngrams, left):
        counted = wanted if released else wanted[~closed[rows, start]]
        drawn += np.bincount(counted, minlength=longest + 1)
        heads, end, taken = _follow(
            ends, barred, rows, start, wanted, left[rows], longest
        )
        clear = (taken > 0) & ~closed[rows[:, None], heads].any(axis=1)
        closed[rows[clear, None], heads[clear]] = True
        steps[rows, start] += clear
        steps[rows, end] -= clear
        left[rows] -= np.where(clear, end - start, 0)
        if released:  # after the last word of a record n counts on
            taken = np.where(barred[rows, end], wanted, taken)
        used += np.bincount(taken[clear], minlength=longest + 1)
    covered = np.cumsum(steps[:, :-1], axis=1, dtype=np.int8) > 0
    return covered, drawn, used
