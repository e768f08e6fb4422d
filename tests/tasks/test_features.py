"""Packed rows, windows of long texts, and features."""

import itertools
import tracemalloc

import numpy as np
import pytest
import vocabularies

from albert_tf.tasks.batches import batcher
from albert_tf.tasks.features import Features, best_windows, make_windows
from albert_tf.text.packing import pack, packed_row

LENGTH = 12


def make_rows():
    rng = np.random.default_rng(0)
    return [
        (rng.integers(5, 40, a), rng.integers(5, 40, b) if b else [])
        for a, b in itertools.product(range(15), range(15))
    ]


def test_batches_are_the_packed_rows(words):
    """For all lengths, ids, mask and segments match `pack`.

    Arrays that are created without TensorFlow equal the tensors.
    """
    rows = [packed_row(words, a, b, LENGTH) for a, b in make_rows()]
    features = Features.from_rows(rows, {}, words.pad_id, LENGTH)
    batch = batcher(features)(np.arange(len(rows)))
    packed = [pack(words, a, b, LENGTH) for a, b in make_rows()]
    names = ("input_ids", "input_mask", "segment_ids")
    for name, expected in zip(names, zip(*packed, strict=True), strict=True):
        np.testing.assert_array_equal(batch[name], np.stack(expected))
        np.testing.assert_array_equal(features.dense()[name], batch[name])
        assert batch[name].dtype == "int32"


def test_padding_is_the_tokenizers():
    """Batches are padded with the tokenizer's padding id, which is masked."""
    row = (np.array([2, 8, 3], np.int32), 3)
    features = Features.from_rows([row], {}, 9, 5)
    batch = batcher(features)(np.arange(1))
    assert batch["input_ids"].numpy().tolist() == [[2, 8, 3, 9, 9]]
    assert batch["input_mask"].numpy().tolist() == [[1, 1, 1, 0, 0]]


def test_rows_that_may_have_been_cut(words):
    """Full-length rows, which may have been truncated, are counted."""
    rows = [packed_row(words, np.arange(5, 5 + n), [], 8) for n in (5, 6)]
    assert Features.from_rows(rows, {}, 0, 8).full_rows() == 1


def test_windows_of_the_release():
    """Windows begin at multiples of the stride, until one reaches the end."""
    assert make_windows(10, 6, 3) == [(0, 6), (3, 6), (6, 4)]
    assert make_windows(6, 6, 3) == [(0, 6)]
    assert make_windows(7, 6, 6) == [(0, 6), (6, 1)]
    assert make_windows(0, 6, 3) == []


@pytest.mark.parametrize(
    ("number", "size", "stride"),
    [(10, 6, 3), (23, 7, 2), (40, 9, 9), (5, 9, 1), (1000, 381, 127)],
)
def test_the_window_with_most_context(number, size, stride):
    """For each token, the first window with the largest score is chosen.

    A token's score is min(left context, right context) + length / 100.
    """
    windows = make_windows(number, size, stride)
    expected = []
    for token in range(number):
        scores = []
        for start, length in windows:
            inside = start <= token < start + length
            left, right = token - start, start + length - 1 - token
            scores.append(min(left, right) + 0.01 * length if inside else -1)
        expected.append(scores.index(max(scores)))
    assert best_windows(number, windows).tolist() == expected


def test_windows_of_a_book_fit_into_memory():
    """For 200,000 tokens, `best_windows` needs less than 10 MB of memory.

    If memory grew with the square of the length, it would need 2.5 GB.
    """
    number = 200_000
    windows = make_windows(number, 381, 128)
    tracemalloc.start()
    assert len(best_windows(number, windows)) == number
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e7


def test_long_texts_are_cut():
    """Texts that are too long are truncated at the end."""
    tokenizer = vocabularies.chinese()
    features = Features.from_texts(tokenizer, ["the " * 9, "un"], 6)
    the, un = tokenizer.encode("the un")
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    rows = [cls, the, the, the, the, sep, cls, un, sep]
    assert features.tokens.tolist() == rows
    assert features.lengths.tolist() == [6, 3]


def test_pairs_have_two_segments():
    """A row has the segments of a text and its pair, unless the pair is ""."""
    tokenizer = vocabularies.chinese()
    texts, pairs = ["un", "the"], ["the the", ""]
    features = Features.from_texts(tokenizer, texts, 9, pairs=pairs)
    the, un = tokenizer.encode("the un")
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    rows = [cls, un, sep, the, the, sep, cls, the, sep]
    assert features.tokens.tolist() == rows
    assert features.second_starts.tolist() == [3, 3]


def whole_features(**changes):
    """Return features in which every field has content."""
    values = {
        "tokens": np.arange(9, dtype=np.int32),
        "row_splits": np.array([0, 2, 5, 7, 9]),
        "second_starts": np.array([1, 1, 2, 2], np.int32),
        "arrays": {"labels": np.array([0, 1])},
        "pad_id": 3,
        "max_seq_length": 12,
        "token_arrays": {"tags": np.arange(9, dtype=np.int32)},
        "fills": {"tags": -1e30},
        "notes": {"words": np.array(["a", "bcd"])},
        "rows_per_example": 2,
    }
    return Features(**values | changes)


def test_a_checksum_is_of_tokens_and_labels():
    """The checksum depends on the tokens of each row and on the labels.

    The checksum does not depend on label weights or on a teacher's outputs.
    """
    changes = {
        "tokens": np.arange(1, 10, dtype=np.int32),
        "row_splits": np.array([0, 3, 5, 7, 9]),
        "second_starts": np.array([1, 2, 2, 2], np.int32),
        "arrays": {"labels": np.array([1, 1])},
        "token_arrays": {"labels": np.zeros(9, np.int32)},
    }
    checksums = {
        whole_features(**{k: x}).checksum() for k, x in changes.items()
    }
    expected = whole_features().checksum()
    assert len(checksums - {expected}) == len(changes)
    other = {"labels": np.array([0, 1]), "label_weights": np.ones(2)}
    assert whole_features(arrays=other).checksum() == expected
    assert expected == 3745219779  # checkpoints of earlier runs contain it
