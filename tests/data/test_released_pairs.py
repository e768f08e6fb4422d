"""Pairs with `--compat=google` are distributed as in the released code.

The oracle, `reference.released_recipe`, reimplements that code with lists.
"""

import random

import numpy as np
import pytest
from reference import released_recipe
from scipy import stats
from tiny_corpus import make_records, unmasked_pairs

from albert_tf.base.errors import InputError
from albert_tf.data.builder import released
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.shards import Documents
from albert_tf.data.layout import Pairs

LENGTH = 35
ROOM = LENGTH - 3


def corpus(rng, count=60):
    """Return documents of 1 to 12 sentences, and the same text as lists.

    The id of a token is its position in the text.
    """
    parts = rng.integers(1, 13, count).astype(np.int32)
    sentences = rng.choice([2, 5, 9, 14, 40], parts.sum()).astype(np.int32)
    ids = np.arange(sentences.sum(), dtype=np.int32)
    hashes = np.arange(count, dtype=np.uint64)
    lists, ends = [], np.cumsum(sentences)
    pieces = [piece.tolist() for piece in np.split(ids, ends[:-1])]
    for size in parts:
        lists.append(pieces[:size])
        pieces = pieces[size:]
    starts = np.ones(len(ids), bool)
    return Documents(ids, starts, sentences, parts, hashes, hashes), lists


def described(a_start, a_size, b_start, b_size, label):
    """Return the arguments as the columns of an int64 array [pairs, 5]."""
    columns = (a_start, a_size, b_start, b_size, label)
    return np.array(columns, np.int64).T


def ours(documents, passes, rng, **changes):
    """Return the pairs of several passes, as `described`, and the counts."""
    config = PairsConfig(
        max_seq_length=LENGTH,
        compat="google",
        **({"short_seq_prob": 0.3} | changes),
    )
    found, total = [], None
    for _ in range(passes):
        made, counts = released.make_pairs(documents, None, config, rng)
        total = counts if total is None else total + counts
        sizes = made.a_end - made.a_start, made.b_end - made.b_start
        found.append(
            described(
                made.a_start, sizes[0], made.b_start, sizes[1], made.swapped
            )
        )
    return np.concatenate(found), total


def theirs(lists, passes, next_sentence=False):
    """Return the oracle's pairs of several passes, as `described`."""
    rng, found = random.Random(3), []
    for _ in range(passes):
        for own in range(len(lists)):
            for a, b, label in released_recipe.pairs_of(
                lists, own, ROOM, 0.3, next_sentence, rng
            ):
                assert a == list(range(a[0], a[-1] + 1))
                assert b == list(range(b[0], b[-1] + 1))
                found.append((a[0], len(a), b[0], len(b), label))
    return np.array(found)


def same(first, second, classes):
    """Return the p-value of the hypothesis that two distributions are equal."""
    both = np.stack(
        [np.bincount(x, minlength=classes) for x in (first, second)]
    )
    return stats.chi2_contingency(both[:, both.sum(axis=0) > 20]).pvalue


@pytest.mark.parametrize("next_sentence", [False, True])
def test_pairs_are_distributed_as_those_of_lists(next_sentence):
    """Sizes, positions and labels of pairs are distributed as in the oracle.

    Only the first pairs of documents are independent of each other.
    """
    documents, lists = corpus(np.random.default_rng(1))
    passes = 150
    a, counts = ours(
        documents,
        passes,
        np.random.default_rng(2),
        random_next_sentence=next_sentence,
    )
    b = theirs(lists, passes, next_sentence)
    assert abs(len(a) / len(b) - 1) < 0.02
    ends = np.cumsum([sum(map(len, document)) for document in lists])
    for column, classes in ((1, ROOM), (3, ROOM), (4, 2)):
        x, y = a[:, column], b[:, column]
        assert abs(x.mean() / y.mean() - 1) < 0.02
        shares = [
            np.bincount(z, minlength=classes + 1) / len(z) for z in (x, y)
        ]
        assert np.abs(shares[0] - shares[1]).max() < 0.015
    for column in (0, 2):
        where = [np.searchsorted(ends, z[:, column], "right") for z in (a, b)]
        first = np.isin(a[:, column], ends), np.isin(b[:, column], ends)
        assert abs(first[0].mean() - first[1].mean()) < 0.01
        assert abs(where[0].mean() / where[1].mean() - 1) < 0.03
    assert counts["random_documents"] > 0 < counts["truncated_tokens"]


def test_one_sentence_gets_a_random_document_and_label_one():
    """A document of one sentence gets a B from another document and label 1."""
    sentences = np.full(50, 20, np.int32)
    ids = np.arange(1000, dtype=np.int32)
    hashes = np.arange(50, dtype=np.uint64)
    documents = Documents(
        ids, ids >= 0, sentences, np.ones(50, np.int32), hashes, hashes
    )
    rows, counts = ours(documents, 20, np.random.default_rng(4))
    assert (rows[:, 4] == 1).all() and len(rows) == 1000
    assert counts["one_segment_chunks"] == counts["random_documents"] == 1000
    assert counts["truncated_tokens"] == 1000 * (2 * 20 - ROOM)
    assert (rows[:, 0] // 20 != rows[:, 2] // 20).all()
    kinds = np.bincount(rows[:, 2] // 20, minlength=50)
    assert stats.chisquare(kinds).pvalue > 1e-4


def test_truncation_by_hand():
    """The longer segment loses tokens, each at a randomly chosen end."""
    count = 4000
    zeros, ones = np.zeros(count, np.int64), np.ones(count, np.int64)
    pairs = Pairs(zeros, zeros + 30, 100 * ones, 110 * ones, zeros > 0)
    made = released.truncate_pairs(pairs, 24, np.random.default_rng(5))
    assert (made.a_end - made.a_start == 14).all()
    assert (made.b_start == 100).all() and (made.b_end == 110).all()
    expected = stats.binom.pmf(np.arange(17), 16, 0.5) * count
    found = np.bincount(made.a_start, minlength=17)
    keep = expected > 5
    assert (
        stats.chisquare(
            found[keep],
            expected[keep] * found[keep].sum() / expected[keep].sum(),
        ).pvalue
        > 1e-4
    )
    equal = Pairs(zeros, zeros + 30, 100 * ones, 130 * ones, zeros > 0)
    made = released.truncate_pairs(equal, 25, np.random.default_rng(6))
    assert (made.a_end - made.a_start == 13).all()
    assert (made.b_end - made.b_start == 12).all()


def test_policy_of_released_pairs():
    """`single_segment_policy` is rejected with released pairs."""
    with pytest.raises(InputError, match="`single_segment_policy`.*drop"):
        PairsConfig(single_segment_policy="drop", compat="google")


@pytest.mark.parametrize("nsp", [False, True])
def test_build(corpus, tmp_path, nsp):
    """A build writes and counts released pairs."""
    output = tmp_path / "out"
    changes = {"compat": "google", "random_next_sentence": nsp}
    metadata = make_records(corpus, output, **changes)
    statistics = metadata.statistics
    assert statistics["swapped_share"] > 0.5
    assert statistics["truncated_tokens"] > 0
    share = statistics["random_document_share"]
    assert share > 0
    # Next-sentence pairs are never swapped.
    assert (share == statistics["swapped_share"]) == nsp
    lengths = [
        len(a) + len(b)
        for entry in metadata.splits["train"]
        for a, b, _ in unmasked_pairs(output / entry.file)
    ]
    assert max(lengths) == 29 and lengths.count(29) > len(lengths) / 2
