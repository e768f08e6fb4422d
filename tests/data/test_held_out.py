"""The share of held-out text and its separation from training text."""

import numpy as np
import pytest

from albert_tf.data.builder import held_out
from albert_tf.data.builder.build_settings import BuildConfig, BuildSpec
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.shards import PART_TOKENS, Documents, read_shard
from albert_tf.data.builder.text_formats import ReadingConfig
from albert_tf.data.masking import MaskingConfig
from albert_tf.data.records.metadata import EVAL, TRAIN

SHARDS = 3

# (sentences per document, tokens per sentence)
CORPORA = {
    "one of 90 %": ([30] * 50 + [15_000] + [30] * 50, 12),
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
    """Return the choice of held-out text for some shards."""
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

    No text is in both splits or adjacent to text of the other split. All other
    text is in one split, whose list contains the text's shard.
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
    held, trained = split == 1, split == 2
    assert held.mean() == pytest.approx(fraction, rel=1 / 3)
    together = document[1:] == document[:-1]
    assert not np.any(together & (split[1:] + split[:-1] == 3))
    assert held.sum() + trained.sum() > len(split) - 0.15 * held.sum() - 60


def test_whole_documents_stay_whole_where_they_fit(tmp_path):
    """Documents are divided only if whole documents miss the share."""
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
