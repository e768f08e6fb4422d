"""Held-out text has the requested share and is not used for training."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from albert_tf.data.builder import held_out
from albert_tf.data.builder.build_settings import BuildConfig, BuildSpec
from albert_tf.data.builder.held_out import Border, HeldOut, PartsOfShard
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.shards import PART_TOKENS, Documents, read_shard
from albert_tf.data.builder.text_formats import ReadingConfig
from albert_tf.data.masking import MaskingConfig
from albert_tf.data.records.metadata import EVAL, TRAIN

SHARDS = 3

# (sentences per document, tokens per sentence)
CORPORA = {
    "one of 90%": ([30] * 50 + [15_000] + [30] * 50, 12),
    "six": ([800, 1_500, 2_500, 4_000, 8_000, 11_600], 20),
    "one": ([5_000], 12),
    "one line": ([1], 40_000),
    "two": ([3_000, 2_000], 15),
    "lines without an end": ([1] * 10, 4_000),
    "halves": ([40] * 99, 10),
    "small": ([60, 60, 60, 400], 8),
}


def recipe(**reading):
    """Return the settings for long texts in which no two tokens share an id."""
    return BuildSpec(
        BuildConfig(input_file="x", output_dir="y", num_shards=SHARDS),
        PairsConfig(max_seq_length=128),
        MaskingConfig(),
        ReadingConfig(**reading),
        "",
        1 << 20,
    )


def deal(folder, documents, size, seed):
    """Write shards; return their paths and the document of each token."""
    rng = np.random.default_rng(seed)
    frames = [[] for _ in range(SHARDS)]
    first, numbers = 0, []
    for number, count in enumerate(documents):
        hash, key = rng.integers(1 << 63, size=2, dtype=np.uint64) * 2
        sizes = np.full(count, size, np.int32)
        parts = np.bincount((np.cumsum(sizes) - sizes) // PART_TOKENS)
        for index, part in enumerate(parts[parts > 0]):
            tokens = part * size
            made = Documents(
                np.arange(first, first + tokens, dtype=np.int32),
                np.arange(tokens) % 2 == 0,
                np.full(part, size, np.int32),
                np.array([part], np.int32),
                np.array([hash]),
                np.array([key + np.uint64(index)]),
            )
            frames[rng.integers(SHARDS)].append(made.tobytes())
            numbers.append(np.full(tokens, number))
            first += tokens
    paths = [str(folder / f"{shard}") for shard in range(SHARDS)]
    for path, parts in zip(paths, frames, strict=True):
        with open(path, "wb") as file:
            file.writelines(parts)
    return paths, np.concatenate(numbers)


def choose(how, paths, fraction):
    """Return the `HeldOut` that describes the held-out text of some shards."""
    items = list(enumerate(paths))
    measured = held_out.add_up(held_out.measure(how, item) for item in items)
    found = held_out.hold_out(fraction, measured)
    # Workers may finish in any order.
    parts = [held_out.measure_parts(how, item, found) for item in items[::-1]]
    return held_out.divide(how, parts, found)


def read(how, path, found, split):
    """Return a split's text in a shard, or None if the shard is empty."""
    documents = read_shard(path, how.id_type)
    if documents is None:
        return None
    return held_out.split_documents(how, documents, found.border, split)


SEEDS = [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4, 5))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("name", CORPORA)
def test_the_share_is_met(tmp_path, name, fraction, seed):
    """The held-out share is within a third of the requested share.

    No text is in both splits or adjacent to text of the other split. Only short
    gaps are in neither split. The shards listed for a split are those that
    contain its text.
    """
    how = recipe()
    paths, document = deal(tmp_path, *CORPORA[name], seed)
    found = choose(how, paths, fraction)
    split = np.zeros(len(document), int)
    for number, (mark, shards) in enumerate(sorted(found.shards.items()), 1):
        for shard, path in enumerate(paths):
            text = read(how, path, found, mark)
            size = len(text.ids) if text else 0
            assert (size > 0) == (shard in shards)
            if size:
                assert not split[text.ids].any()
                split[text.ids] = number
                assert text.sentences.sum() == size
                assert text.parts.sum() == len(text.sentences)
    in_eval, in_train = split == 1, split == 2
    assert in_eval.mean() == pytest.approx(fraction, rel=1 / 3)
    together = document[1:] == document[:-1]
    assert not np.any(together & (split[1:] + split[:-1] == 3))
    gaps = len(split) - in_eval.sum() - in_train.sum()
    assert gaps < 0.15 * in_eval.sum() + 60


def test_whole_documents_stay_whole_where_they_fit(tmp_path):
    """Documents are divided only if necessary.

    Division is necessary if whole documents miss the requested share.
    """
    how = recipe()
    paths, document = deal(tmp_path, [25] * 400, 10, 1)
    found = choose(how, paths, 0.02)
    assert found.border.key == -1 and not found.counts
    texts = [read(how, path, found, EVAL) for path in paths]
    ids = np.concatenate([text.ids for text in texts])
    assert len(ids) == 250 * len(np.unique(document[ids])) == 0.02 * 1e5


def copy_documents(paths):
    """Add a second copy of each part to its shard."""
    for path in paths:
        with open(path, "rb") as file:
            content = file.read()
        with open(path, "ab") as file:
            file.write(content)


def test_copies_that_are_dropped_count_nothing(tmp_path):
    """With `drop_duplicates`, copies have no effect on the split."""
    how = recipe(drop_duplicates=True)
    paths, _ = deal(tmp_path, [900, 700], 10, 1)
    wanted = choose(how, paths, 0.1)
    assert wanted.border.tokens > 0
    copy_documents(paths)
    found = choose(how, paths, 0.1)
    assert (found.border, found.shards) == (wanted.border, wanted.shards)
    divided = "divided_document_tokens"
    assert found.counts[divided] == wanted.counts[divided] > 0


def test_copies_of_parts_are_counted(tmp_path):
    """A copy of a document of several parts is counted as one document."""
    sizes, parts = np.array([3, 4, 5, 3, 4, 5]), np.array([1, 2, 1, 2])
    made = Documents(
        np.tile(np.arange(12, dtype=np.int32), 2),
        np.ones(24, bool),
        sizes.astype(np.int32),
        parts.astype(np.int32),
        np.array([7, 7, 7, 7], np.uint64),
        np.array([7, 8, 7, 8], np.uint64),
    )
    path = tmp_path / "shard"
    path.write_bytes(made.tobytes())
    how = recipe(drop_duplicates=True)
    found = held_out.measure(how, (0, str(path)))
    counts = {"duplicate_documents": 1, "duplicate_tokens": 12}
    assert found.counts == counts
    assert found.tokens.sum() == found.pieces.sum() == 12
    assert not held_out.measure(recipe(), (0, str(path))).counts


def test_copies_stay_together(tmp_path):
    """All copies of a document are divided at the same points."""
    how = recipe()
    paths, _ = deal(tmp_path, [900, 700], 10, 1)
    copy_documents(paths)
    found = choose(how, paths, 0.1)
    ids = {
        split: np.concatenate(
            [
                text.ids
                for path in paths
                if (text := read(how, path, found, split))
            ]
        )
        for split in (EVAL, TRAIN)
    }
    assert not set(ids[EVAL]) & set(ids[TRAIN])
    assert len(ids[EVAL]) == 2 * len(np.unique(ids[EVAL]))
    assert len(ids[EVAL]) == pytest.approx(0.1 * 32_000, rel=0.1)


def test_buckets_are_the_first_bits():
    """A bucket is the first 16 bits of a hash."""
    hashes = np.array([0, (1 << 48) - 1, 1 << 48, (1 << 64) - 1], np.uint64)
    assert held_out.buckets(hashes).tolist() == [0, 0, 1, 65535]


@pytest.mark.parametrize(
    "tokens, fraction, border",
    [
        ([0, 80, 0, 120], 0.3, (Border(2), 0)),  # 60 of 200: a third more
        ([0, 81, 0, 119], 0.3, (Border(1), 60)),
        ([0, 41, 0, 159], 0.3, (Border(3), 0)),  # a third less
        ([0, 39, 0, 161], 0.3, (Border(3), 21)),
        ([0, 50, 0, 150], 0.25, (Border(2), 0)),
        ([10, 20, 0, 170], 0.25, (Border(3), 20)),
        ([0, 0, 500], 0.9, (Border(2), 450)),  # the only document
        ([0, 0, 500], 0.0001, (Border(2), 1)),
        ([0, 80, 120], 0, (Border(1), 0)),
        ([0, 0, 0], 0.3, (Border(0), 0)),
    ],
)
def test_borders_between_documents(tokens, fraction, border):
    """A document is divided if the requested share makes this necessary.

    Division is necessary if whole documents miss the share by more than a
    third.
    """
    assert held_out._border(np.array(tokens), fraction) == border


def test_gaps_are_a_twentieth():
    """A gap is a twentieth of a part, but at most an example's length.

    The number of tokens in a gap is rounded up.
    """
    sizes = np.array([0, 1, 100, 101, 2560, 2561, 9999])
    assert held_out._gap(sizes, 128).tolist() == [0, 1, 5, 6, 128, 128, 128]


def parts_of(sizes, words):
    """Return `Documents` with one part for each list of sentence sizes.

    `words` contains the number of words in each part.
    """
    tokens = [sum(part) for part in sizes]
    starts = [np.arange(n) < w for n, w in zip(tokens, words, strict=True)]
    names = np.arange(len(sizes), dtype=np.uint64)
    return Documents(
        np.zeros(sum(tokens), np.int32),
        np.concatenate(starts),
        np.concatenate(sizes).astype(np.int32),
        np.array([len(part) for part in sizes], np.int32),
        names,
        names,
    )


def test_parts_that_may_be_divided():
    """A part may be divided if it has at least 64 words or five sentences."""
    sizes = [[40, 40], [40, 40], [2] * 4, [2] * 5]
    found = held_out._divisible(parts_of(sizes, [63, 64, 8, 5]))
    assert found.tolist() == [False, True, False, True]


def test_places_of_parts():
    """Parts in the buckets below the border are held out as a whole.

    In the border's bucket, the parts with keys up to the border's key are
    divided.
    """
    hashes = np.array([1, 2, 2, 2, 3], np.uint64) << np.uint64(48)
    documents = dataclasses.replace(
        parts_of([[1]] * 5, [1] * 5),
        hashes=hashes,
        keys=np.array([0, 0, 1, 2, 0], np.uint64),
    )
    assert Border(2) == (2, -1, 0)
    for key, number in ((-1, 0), (0, 1), (1, 2), (9, 3)):
        whole, divided = Border(2, key).masks(documents)
        assert whole.tolist() == [True] + [False] * 4
        assert np.flatnonzero(divided).tolist() == [1, 2, 3][:number]


def test_parts_up_to_the_border_are_held_out():
    """Parts with keys below the border's key are held out except their gaps.

    A part that is too short to divide is held out as a whole. Only a range of
    the part with the border's key is held out.
    """
    sizes = [[10] * 3, [10] * 20, [10] * 20, [10] * 20]
    documents = dataclasses.replace(
        parts_of(sizes, [15, 200, 200, 200]),
        ids=np.arange(630),
        hashes=np.array([2] * 4, np.uint64) << np.uint64(48),
    )
    for split, tokens in (
        (EVAL, [30, 170, 60, 0]),
        (TRAIN, [0, 0, 120, 200]),
    ):
        found = held_out.split_documents(
            recipe(), documents, Border(2, 2, 60), split
        )
        part = np.searchsorted([30, 230, 430], found.ids, side="right")
        assert np.bincount(part, minlength=4).tolist() == tokens


def test_shards_of_the_splits():
    """A shard has text of a split if it has a bucket on that split's side.

    The border separates the buckets into two sides, one for each split.
    """
    tokens = np.zeros(held_out.BUCKETS, int)
    tokens[:4] = 10, 20, 100, 70
    measured = held_out.ShardTotals(
        tokens,
        np.array([5, 6]),
        {3: (3, 3), 0: (0, 1), 1: (2, 2), 2: (0, 2)},
        Counter(a=1),
    )
    found = held_out.hold_out(0.15, measured)
    assert (found.border, found.wanted) == (Border(2), 0)
    assert found.shards == {EVAL: [0, 2], TRAIN: [1, 2, 3]}
    assert (found.counts, found.pieces) == ({"a": 1}, [5, 6])
    twice = held_out.add_up([measured, measured])
    assert twice.pieces.tolist() == [10, 12] and twice.counts == {"a": 2}
    np.testing.assert_array_equal(twice.tokens, 2 * tokens)


def divide(wanted, *parts):
    """Divide parts of 1000 tokens each; return the resulting `HeldOut`.

    Each of `parts` describes a shard: whether it contains other training text,
    then (key, divisible) for each part.
    """
    measured = [
        PartsOfShard(shard, [k for k, _ in own], [1000] * len(own), flags, more)
        for shard, (more, *own) in enumerate(parts)
        for flags in [[flag for _, flag in own]]
    ]
    shards = {EVAL: [], TRAIN: [*range(len(parts))]}
    begun = HeldOut(Border(7), wanted, shards, {"a": 3}, [])
    return held_out.divide(recipe(), [None, *measured[::-1]], begun)


def test_parts_are_divided_in_the_order_of_their_keys():
    """Parts are held out in the order of their keys, the last one partially.

    The gaps of parts are in neither split. A shard has no training text if it
    has no other text and nothing is left of its parts.
    """
    shards = [
        (False, (4, True)),
        (False, (2, True), (6, True)),
        (True, (2, False)),
        (False, (5, True)),
    ]
    # The gaps leave 900 tokens of each part; two parts have the key 2.
    found = divide(1801, *shards)
    assert found.border == Border(7, 4, 1)
    assert found.shards == {EVAL: [0, 1, 2], TRAIN: [0, 1, 2, 3]}
    assert found.counts == {"a": 3, "divided_document_tokens": 5000}
    assert found.wanted == 0
    found = divide(1800, *shards)
    assert found.border == Border(7, 2, 900)
    assert found.shards == {EVAL: [1, 2], TRAIN: [0, 1, 2, 3]}
    assert divide(101, *shards).border == Border(7, 2, 51)
    assert divide(9999, *shards).border == Border(7, 6, 9999 - 3600)
    shards = [(False, (2, False)), (True, (1, True)), (False, (1, True))]
    found = divide(1850, *shards)
    assert found.border == Border(7, 2, 50)
    assert found.shards == {EVAL: [0, 1, 2], TRAIN: [1]}


def test_places_to_cut_by_hand():
    """A part may be cut between sentences and inside long sentences.

    If there are too few such positions, the part may be cut before any word.
    """
    starts = np.arange(300) % 2 == 0
    sizes = np.array([33, 32, 200, 35])
    inside = [*range(2, 33, 2), 33, 65, *range(66, 265, 2), 265]
    inside += range(266, 300, 2)
    assert held_out._cuts(sizes, starts, 100, 4).tolist() == inside
    long = [33, 65, *range(66, 265, 2), 265]  # more than 400 // 4 tokens
    assert held_out._cuts(sizes, starts, 403, 4).tolist() == long
    most = [33, 65, 265]  # not more than 800 // 4 tokens
    assert held_out._cuts(sizes, starts, 800, 3).tolist() == most
    words = [*range(2, 300, 2)]
    assert held_out._cuts(sizes, starts, 800, 4).tolist() == words


@pytest.mark.parametrize(
    "number, tokens, found",
    [
        (100, 100, (880, 890, 990)),
        (100, 101, (880, 890, 990)),
        (100, 106, (870, 880, 990)),
        (100, 160, (820, 830, 990)),
        (100, None, (0, 50, 950)),
        (5, 10, (10, 20, 40)),
        (5, None, (0, 20, 40)),
    ],
)
def test_held_out_ranges_by_hand(number, tokens, found):
    """The held-out range is near the end of a divisible part.

    At least one sentence of the part lies on either side of the range.
    """
    sizes, starts = np.full(number, 10), np.ones(10 * number, bool)
    assert held_out._held_out_range(sizes, starts, tokens, 128) == found
