"""Builds write correct records and metadata, or raise clear errors."""

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest
from tiny_corpus import (
    MASKING,
    PAIRS,
    ROOT,
    TOKENIZER_FILES,
    change_times,
    contents,
    make_records,
    records_of,
    settings,
    unmasked,
)

from albert_tf.base.errors import InputError
from albert_tf.data.builder import build
from albert_tf.data.records import input_pipeline, metadata
from albert_tf.data.records.metadata import (
    log_frequencies,
    read_metadata,
    read_piece_counts,
)
from albert_tf.text.tokenizers import tokenizer_from_files


def documents_of(corpus):
    """Return the ids of each line of each document, encoded line by line."""
    tokenizer = tokenizer_from_files(vocab_file=f"{corpus}/vocab.txt")
    texts = "".join(
        (corpus / name).read_text() + "\n" for name in ("a.txt", "b.txt")
    )
    return [
        [tokenizer.encode(line) for line in document.split("\n")]
        for document in texts.strip().split("\n\n")
    ]


def lines_of(chunk, document):
    """Return the range of lines that form a chunk of ids, or an empty range."""
    for first in range(len(document)):
        for last in range(first + 1, len(document) + 1):
            if tuple(sum(document[first:last], [])) == chunk:
                return range(first, last)
    return range(0)


def test_every_line_once_per_duplicate(corpus, whole):
    """Records contain every line in full unless it is the only one in a chunk.

    With two duplicates, training lines occur twice, but held-out lines only
    once.
    """
    output, metadata = whole
    documents = documents_of(corpus)
    dealt = {}
    for split, times in (("train", 2), ("eval", 1)):
        statistics = metadata.statistics | {"train": metadata.statistics}
        used = Counter()
        for entry in metadata.splits[split]:
            for chunk in unmasked(output / entry.file):
                (positions,) = [
                    [(number, line) for line in lines]
                    for number, document in enumerate(documents)
                    if (lines := lines_of(chunk, document))
                ]
                used.update(positions)
        assert max(used.values()) == times
        dealt[split] = {number for number, _ in used}
        due = times * sum(len(documents[number]) for number in dealt[split])
        alone = due - used.total()
        assert 0 < alone <= statistics[split]["dropped_chunks"] < due / 2
    assert not dealt["train"] & dealt["eval"]
    # A document of one line yields no pair.
    assert dealt["train"] | dealt["eval"] == {
        number for number, lines in enumerate(documents) if len(lines) > 1
    }
    sizes = [len(sum(document, [])) for document in documents]
    share = sum(sizes[number] for number in dealt["eval"]) / sum(sizes)
    assert share == pytest.approx(0.1, rel=1 / 3)
    found = metadata.statistics["eval"]
    assert found["held_out_share_asked"] == 0.1
    assert found["held_out_share"] == pytest.approx(share, abs=1e-5)


def test_files_and_metadata(whole):
    """File names, tokenizer, metadata and statistics are as documented."""
    output, metadata = whole
    assert metadata == read_metadata(str(output))
    names = {entry.file for e in metadata.splits.values() for entry in e}
    assert "train-00000-of-00006.tfrecord" in names
    others = {"metadata.json", "piece_counts.json"}
    assert set(contents(output)) == names | TOKENIZER_FILES | others
    input_pipeline.check_files(str(output), metadata)
    assert metadata.max_predictions_per_seq == 5
    statistics = metadata.statistics
    assert metadata.settings["builder_version"] == 11
    assert statistics["documents"] == 40
    assert statistics["records"] == metadata.count("train")
    assert statistics["unknown_share"] == 0
    assert abs(statistics["swapped_share"] - 0.5) < 0.15
    assert statistics["masked_share"] == pytest.approx(0.15, abs=0.02)


def test_pieces_are_counted(corpus, whole):
    """`piece_counts.json` states how often each piece occurs in the text."""
    size = whole[1].vocab_size + 2  # of a model with two unused ids
    counts = read_piece_counts(str(whole[0]), size)
    wanted = Counter(
        id for d in documents_of(corpus) for ids in d for id in ids
    )
    assert len(wanted) > 5 and len(set(wanted.values())) > 1
    assert counts.tolist() == [wanted[i] for i in range(size)]
    shares = np.exp(log_frequencies(np.array([0, 1, 4])))
    np.testing.assert_allclose(shares, [1 / 8, 2 / 8, 5 / 8], rtol=1e-6)


def test_the_number_of_shards_follows_from_the_size(tmp_path):
    """Each 32 MiB of text gets a shard; a compressed byte counts as three."""
    for name, size, number in (
        ("a.txt", 1 << 25, 1),
        ("b.txt", (1 << 25) + 1, 2),
        ("c.txt.GZ", (1 << 25) // 3, 1),
        ("d.parquet", (1 << 25) // 3 + 1, 2),
    ):
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)
        assert build.count_shards([str(tmp_path / name)]) == number
    paths = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    assert build.count_shards(paths) == 3


def recipe_of(corpus, **changes):
    """Return the `BuildSpec` of a build with some settings changed."""
    changes = {"dupe_factor": None, "num_shards": None} | changes
    configs = settings(corpus, "out", **changes)
    tokenizer = tokenizer_from_files(vocab_file=f"{corpus}/vocab.txt")
    paths = [f"{corpus}/a.txt"]
    return build.make_recipe(configs[0], tokenizer, *configs[2:], paths)


def test_defaults_depend_on_the_kind_of_masking(corpus):
    """By default, documents are used ten times, or once with dynamic masks.

    Released pairs and permuted tokens require static masks.
    """
    for kind, times in (("static", 10), ("dynamic", 1)):
        made = recipe_of(corpus, masking=kind).build
        assert (made.dupe_factor, made.num_shards) == (times, 1)
    made = recipe_of(corpus, dupe_factor=4, num_shards=5).build
    assert (made.dupe_factor, made.num_shards) == (4, 5)
    most = recipe_of(corpus, max_predictions_per_seq=32).masking
    assert most.max_predictions_per_seq == 32
    for change in ({"compat": "google"}, {"do_permutation": True}):
        recipe_of(corpus, **change)
        with pytest.raises(InputError, match="`masking` must be static with"):
            recipe_of(corpus, masking="dynamic", **change)


def test_the_summary_has_a_line_for_each_split(whole):
    """The summary states the number, size and files of each split's records.

    It ends with warnings.
    """
    made = whole[1]
    entry = metadata.RecordFile("x", 1234, 10**6)
    for number, files in ((1, "1 file"), (2, "2 files"), (6, "6 files")):
        splits = {"eval": (entry,) * number}
        changed = dataclasses.replace(made, splits=splits)
        text = build.summary(changed, PAIRS, MASKING)
        line = f"{1234 * number:,} records of 32 tokens and 5 predictions in"
        assert f"  eval: {line} {files}" in text.split("\n")
    few = dataclasses.replace(MASKING, max_predictions_per_seq=2)
    warning = "Warning: --max_predictions_per_seq=2 at length 32 predicts 6.2%"
    assert warning in build.summary(made, PAIRS, few)
    assert warning not in text


def test_both_splits_need_records():
    """A build without records in a split raises an error.

    Held-out records may be missing only if no text is held out.
    """
    some, none = (metadata.RecordFile("x", n, 999) for n in (3, 0))
    for train, held_out, fraction, lacking in (
        (some, some, 0.1, None),
        (some, none, 0.0, None),
        (some, none, 0.1, "eval"),
        (none, some, 0.1, "train"),
        (none, none, 0.0, "train"),
    ):
        splits = {"train": (train,), "eval": (held_out,)}
        made = metadata.Metadata(16, 2, 9, "", splits)
        if lacking is None:
            build._check_splits(made, fraction)
            continue
        message = f"must produce {lacking} records.*=16, no {lacking} records"
        with pytest.raises(InputError, match=message):
            build._check_splits(made, fraction)


def test_duplicates_differ(whole):
    """The duplicates of a shard contain different records."""
    output, metadata = whole
    first, second = (
        (output / f"train-{i:05d}-of-00006.tfrecord").read_bytes()
        for i in (0, 3)
    )
    assert first != second


RELEASED = {"compat": "google", "do_permutation": True}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"input_format": "files"},
        pytest.param(RELEASED, marks=pytest.mark.slow),
    ],
)
def test_processes_change_nothing(corpus, tmp_path, monkeypatch, changes):
    """Two processes write the same bytes as a single process.

    Some builds divide a document, or pair segments with segments of other
    documents.
    """
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for number in (1, 2):
        changes = changes | {"num_processes": number}
        make_records(corpus, tmp_path / f"{number}", **changes)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    statistics = metadata.read_metadata(str(tmp_path / "1")).statistics
    divided = "input_format" in changes
    assert (statistics["divided_document_tokens"] > 0) == divided


def test_seed_changes_records(corpus, whole, tmp_path):
    """Builds of the same text with different seeds write different records."""
    make_records(corpus, tmp_path / "out", random_seed=7)
    assert contents(tmp_path / "out") != contents(whole[0])


def test_complete_build_is_left_alone(corpus, whole, tmp_path):
    """Repeating a completed build changes no file."""
    output = whole[0]
    before = change_times(output.iterdir())
    metadata = make_records(corpus, output, num_processes=2)
    assert metadata == whole[1]
    assert change_times(output.iterdir()) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"max_seq_length": 16},
        {"ngram": 2},
        {"random_seed": 1},
        {"compat": "google"},
        {"random_next_sentence": True},
        {"do_permutation": True},
        {"single_segment_policy": "drop"},
        {"input_format": "files"},
        {"text_field": "body"},
        {"word_boundaries": "segmented"},
        {"on_bad_text": "skip"},
        {"min_document_tokens": 9},
        {"drop_duplicates": True},
        {"mask_same_random": ("0.9", "0", "0.1")},
    ],
)
def test_other_settings_are_refused(corpus, whole, changes):
    """The error names the setting that differs from the earlier build's."""
    (name,) = changes
    with pytest.raises(InputError, match=f"different settings.*{name}"):
        make_records(corpus, whole[0], **changes)


def test_shares_of_masks_are_kept_beside_the_records(corpus, tmp_path):
    """`metadata.json` and the statistics record `mask_same_random`.

    The same holds for dynamic records, some of which are masked to count the
    masks. `--compat=google` allows only the released shares.
    """
    shares = ("0.5", "0.2", "0.3")
    for kind in ("static", "dynamic"):
        changes = {"mask_same_random": shares, "masking": kind}
        metadata = make_records(corpus, tmp_path / kind, **changes)
        assert metadata.masking_config().shares == [0.5, 0.2, 0.3]
        held_out = metadata.statistics["eval"]
        assert held_out["mask_same_random_asked"] == [0.5, 0.2, 0.3]
        for found in held_out, metadata.statistics:
            assert found["masked_records"] == found["records"]
            assert 0.3 < found["mask_same_random"][0] < 0.7
    with pytest.raises(InputError, match="released shares.*compat=google"):
        make_records(corpus, tmp_path, mask_same_random=shares, compat="google")


def test_other_text_and_records_are_refused(corpus, whole, tmp_path):
    """Foreign records, or a build of different text, cause an error."""
    with pytest.raises(InputError, match="different settings.*corpus"):
        changes = {"input_file": f"{corpus}/a.txt"}
        make_records(corpus, whole[0], **changes)
    (tmp_path / "train-00000-of-00001.tfrecord").write_text("mine")
    with pytest.raises(InputError, match="must not contain other records"):
        make_records(corpus, tmp_path)


def test_a_refused_build_leaves_no_tokenizer(corpus, tmp_path):
    """After an `InputError`, the folder accepts a different tokenizer.

    A tokenizer that was in the folder before the build is kept.
    """
    with pytest.raises(InputError, match="in documents of at least"):
        make_records(corpus, tmp_path, min_document_tokens=10_000)
    assert not TOKENIZER_FILES & {path.name for path in tmp_path.iterdir()}
    tokenizer = tokenizer_from_files(vocab_file=f"{corpus}/vocab.txt")
    tokenizer.save(str(tmp_path))
    with pytest.raises(InputError, match="in documents of at least"):
        make_records(corpus, tmp_path, min_document_tokens=10_000)
    assert TOKENIZER_FILES <= {path.name for path in tmp_path.iterdir()}


def test_another_version_is_refused(corpus, whole, tmp_path):
    """If the builder's version differs, the error names only the version."""
    metadata = json.loads((whole[0] / "metadata.json").read_text())
    metadata["settings"] |= {"builder_version": 0, "corpus": "of old"}
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    message = r"a different version.* \(builder_version: 0 then, \d+ now\)"
    with pytest.raises(InputError, match=message):
        make_records(corpus, tmp_path)


def test_duplicates_are_dropped(corpus, whole, tmp_path):
    """With `drop_duplicates`, copies of documents change no record.

    The copies are counted.
    """
    copied = (corpus / "a.txt").read_text()
    (tmp_path / "copy.txt").write_text(copied + "\n" + copied)
    (tmp_path / "new.txt").write_text("w1 w2 w3 w4 .\nw5 w6 w7 w8 .\n")
    texts = [f"{corpus}/a.txt", f"{corpus}/b.txt"]
    copies = ",".join([*texts, str(tmp_path / "copy.txt")])
    for name, files in (("once", ",".join(texts)), ("twice", copies)):
        changes = {"input_file": files, "drop_duplicates": True}
        metadata = make_records(corpus, tmp_path / name, **changes)
        assert records_of(tmp_path / name) == records_of(whole[0])
    statistics = metadata.statistics
    assert statistics["duplicate_documents"] == 50
    tokens = sum(len(sum(lines, [])) for lines in documents_of(corpus))
    assert statistics["tokens"] - statistics["duplicate_tokens"] == tokens
    repeated = make_records(corpus, tmp_path / "all", input_file=copies)
    assert repeated.statistics["duplicate_documents"] == 0
    assert repeated.count("train") > 2 * metadata.count("train")


def test_short_documents_are_left_out(corpus, tmp_path):
    """`min_document_tokens` has the same effect as removing short documents."""
    texts = "".join(
        (corpus / name).read_text() + "\n" for name in ("a.txt", "b.txt")
    )
    documents = texts.strip().split("\n\n")
    sizes = [len(sum(lines, [])) for lines in documents_of(corpus)]
    least = sorted(sizes)[len(sizes) // 4]
    long = [d for d, n in zip(documents, sizes, strict=True) if n >= least]
    (tmp_path / "all.txt").write_text("\n\n".join(documents))
    (tmp_path / "long.txt").write_text("\n\n".join(long))
    made = {}
    for name, changes in (
        ("all", {"min_document_tokens": least}),
        ("long", {}),
    ):
        changes["input_file"] = tmp_path / f"{name}.txt"
        made[name] = make_records(corpus, tmp_path / name, **changes).statistics
    assert records_of(tmp_path / "all") == records_of(tmp_path / "long")
    short = len(documents) - len(long)
    assert made["all"]["short_documents"] == short > 0
    assert made["long"]["short_documents"] == 0


def test_other_formats_give_the_same_records(corpus, tmp_path):
    """The formats `files` and `lines` produce the same records from a text.

    Paragraphs that are split into sentences produce the same numbers of
    sentences and tokens.
    """
    pytest.importorskip("sentencex")
    texts = (corpus / "a.txt").read_text().strip().split("\n\n")
    texts = [text.replace("w", "W").replace(" .", ".") for text in texts]
    (tmp_path / "lines").write_text("\n\n".join(texts))
    for i, text in enumerate(texts):
        (tmp_path / f"x{i:03d}").write_text(text.replace("\n", " \n\n"))
    (tmp_path / "joined").write_text(
        "\n\n".join(text.replace("\n", " ") for text in texts)
    )
    made = {}
    for name, changes in {
        "lines": {},
        "x*": {"input_format": "files"},
        "joined": {"split_sentences": "en"},
    }.items():
        changes["input_file"] = tmp_path / name
        output = tmp_path / f"{name[0]}-out"
        made[name[0]] = make_records(corpus, output, **changes).statistics
    assert records_of(tmp_path / "x-out") == records_of(tmp_path / "l-out")
    for count in ("documents", "sentences", "tokens"):
        assert made["j"][count] == made["l"][count]
