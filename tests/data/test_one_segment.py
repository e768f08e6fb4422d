"""`--single_segment_policy=keep` makes examples of one segment."""

import numpy as np
import pytest
from tiny_corpus import make_records, write_corpus

from albert_tf.base.errors import InputError
from albert_tf.data.builder import next_sentence_pairs, pairs
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.shards import Documents

CONFIG = PairsConfig(max_seq_length=32, single_segment_policy="keep")
ROOM = CONFIG.room


def documents(rng, sizes=(2, 3, 9, 14, 40, 95), count=500):
    """Return random documents of short words; a token's id is its position."""
    parts = rng.integers(1, 9, count).astype(np.int32)
    lines = rng.choice(sizes, parts.sum()).astype(np.int32)
    ids = np.arange(lines.sum(), dtype=np.int32)
    starts = (rng.random(len(ids)) < 0.4) | (ids % 5 == 0)
    starts[np.cumsum(lines) - lines] = True
    names = rng.permutation(count).astype(np.uint64)
    return Documents(ids, starts, lines, parts, names, names)


def make(docs, policy, rule=pairs, seed=1):
    """Return pairs and counts; every 17th token ends a sentence."""
    config = PairsConfig(
        max_seq_length=32,
        single_segment_policy=policy,
        random_next_sentence=rule is next_sentence_pairs,
    )
    ends = np.arange(17, len(docs.ids), 17)
    return rule.make_pairs(docs, ends, config, np.random.default_rng(seed))


def rows(made):
    """Return the sorted rows of pairs as tuples of numbers."""
    return sorted(zip(*(x.tolist() for x in vars(made).values()), strict=True))


def test_no_token_is_lost_and_pairs_stay_as_they_were():
    """Pairs are as by default; one-segment examples have all other text."""
    docs = documents(np.random.default_rng(1))
    made, counts = make(docs, "keep")
    assert made.tokens() == len(docs.ids) and counts["dropped_chunks"] == 0
    alone = ~made.paired()
    assert 100 < alone.sum() < len(made) - 100
    assert not made.swapped[alone].any()
    assert rows(made.take(~alone)) == rows(make(docs, "split")[0])
    kinds = np.flatnonzero(alone)
    assert np.median(kinds) == pytest.approx(len(made) / 2, rel=0.2)  # mixed


def test_long_lines_are_cut_evenly_before_words():
    """A long line is split between words into segments of similar length."""
    docs = documents(np.random.default_rng(2), sizes=(95,))
    made, _ = pairs.make_pairs(
        docs, np.zeros(0, np.int64), CONFIG, np.random.default_rng(3)
    )
    size = made.a_end - made.a_start
    assert docs.starts[made.a_start].all() and not made.paired().any()
    assert ROOM // 3 < size.min() and size.max() <= ROOM


def test_a_word_longer_than_an_example_is_cut():
    """A word that is longer than an example is split into several examples."""
    made = pairs.without_b(*np.array([[0], [95]]), np.array([0]), ROOM)
    assert rows(made) == [
        (at, end, end, end, False)
        for at, end in [(0, 24), (24, 48), (48, 72), (72, 95)]
    ]


def test_next_sentences_are_exchanged_among_pairs_alone():
    """An example without a B never gets a random B or label 1."""
    docs = documents(np.random.default_rng(4))
    made, _ = make(docs, "keep", next_sentence_pairs)
    plain, counts = make(docs, "split", next_sentence_pairs)
    alone = ~made.paired()
    assert not made.swapped[alone].any()
    assert abs(made.swapped[~alone].mean() - 0.5) < 0.1
    ordered = make(docs, "keep")[0]
    assert rows(made.take(alone)) == rows(ordered.take(~ordered.paired()))
    assert abs((~alone).sum() - len(plain)) < 0.05 * len(plain)
    assert counts["dropped_chunks"] > 0
    ids, one = np.arange(9), np.ones(1, np.int32)
    one = Documents(ids, ids >= 0, 9 * one, one, one, one)
    assert len(make(one, "keep", next_sentence_pairs)[0]) == 1


@pytest.fixture
def posts(tmp_path):
    """Return a folder of text files with documents of a single line."""
    write_corpus(tmp_path)
    for path in tmp_path.glob("[ab].txt"):
        lines = path.read_text().split("\n")
        path.write_text("\n\n".join(line for line in lines if line))
    return tmp_path


def test_posts_are_learned_from(posts, tmp_path):
    """With `keep`, each one-line document yields an example."""
    with pytest.raises(InputError, match="--single_segment_policy=keep"):
        make_records(posts, tmp_path / "split", dupe_factor=1)
    changes = {"dupe_factor": 1, "short_seq_prob": 0.0}
    changes["single_segment_policy"] = "keep"
    found = make_records(posts, tmp_path / "keep", **changes).statistics
    held_out = found["eval"]["records"]
    assert found["records"] + held_out == found["sentences"] > 300
    assert found["unpaired_share"] == found["eval"]["unpaired_share"] == 1


def test_labels_of_pairs_alone_are_counted(corpus, tmp_path):
    """One-segment examples do not affect the share of swapped pairs."""
    folders = {}
    for policy in ("split", "keep"):
        changes = {"single_segment_policy": policy, "dupe_factor": 1}
        output = tmp_path / policy
        folders[policy] = make_records(corpus, output, **changes)
    split, keep = (folders[x].statistics for x in ("split", "keep"))
    assert 0.3 < keep["unpaired_share"] < 0.6
    assert keep["records"] > split["records"]
    assert keep["swapped_share"] == split["swapped_share"]
