"""Records of phonemes contain the words of the rows, and nothing else."""

import dataclasses
import shutil
from collections import Counter

import numpy as np
import pytest
import tiny_phonemes
from tiny_corpus import change_times, contents, interrupted
from tiny_phonemes import build, examples, make_rows, words_of, write_rows

from albert_tf.base.errors import InputError
from albert_tf.data.builder import phoneme_build
from albert_tf.data.builder.text_blocks import document_hash
from albert_tf.data.records import tfrecord
from albert_tf.data.records.inspect_records import show
from albert_tf.data.records.metadata import RecordFile, read_piece_counts
from albert_tf.text.symbols import made_of, read_table

ROWS = make_rows()


def test_words_are_those_of_the_rows(built):
    """Records contain all words once, in order, with phonemes and labels."""
    folder, metadata, _ = built
    table = read_table(str(folder))
    found = [words_of(e, table) for e in examples(folder)]
    assert len(found) == metadata.count("train") + metadata.count("eval")
    counts = Counter(word for words in found for word in words)
    pairs = [
        (p, w if w in table.labels else "<other>")
        for row in ROWS
        for p, w in zip(row["phonemes"], row["words"], strict=True)
    ]
    assert counts == Counter(pairs)
    text = " ".join(p for p, _ in pairs)
    for words in found:
        assert " ".join(p for p, _ in words) in text
    ranked = Counter(w for row in ROWS for w in row["words"]).most_common()
    assert len(table.words) == 42 == metadata.statistics["word_labels"]
    least = ranked[39][1]
    assert {w for w, n in ranked if n > least} <= {*table.labels}


@pytest.mark.parametrize("ids", [[5, 6, 16], [5, 6, 16, 7]])
def test_a_record_without_its_last_separator_is_shown(ids):
    """Records are shown even without a last separator or with extra labels."""
    rows = {"symbol_ids": [ids], "word_ids": [[2, 2, 0, 3]]}
    rows = {name: np.array(values) for name, values in rows.items()}
    (record,) = tfrecord.encode_ints(rows)
    shown = show(tfrecord.decode(record), None)
    assert shown.split("\n")[1].split() == list(map(str, ids))


def test_records_are_shown_as_words(built):
    """A shown record has the symbols and the name of each of its words."""
    folder, _, _ = built
    table = read_table(str(folder))
    path = str(min(folder.glob("train*.tfrecord")))
    record = next(tfrecord.read(path))
    words = words_of(examples(folder, "train*")[0], table)
    shown = show(tfrecord.decode(record), table).split("\n")
    assert shown[1] == " ".join(f"{p} [{w}]" for p, w in words)
    size = sum(len(p) + 1 for p, _ in words)  # a separator follows each word
    assert shown[0].startswith(f"{size} symbols; masked during training")
    assert shown[0].endswith(f", {len(words)} words")


def test_held_out_documents_are_others(built):
    """No document is in both splits; about the requested share is held out."""
    folder, metadata, _ = built
    table = read_table(str(folder))
    sides = [
        {" ".join(map(str, words_of(e, table))) for e in examples(folder, s)}
        for s in ("train*", "eval*")
    ]
    assert not sides[0] & sides[1]
    share = metadata.count("eval") / (len(sides[0]) + len(sides[1]))
    assert 0.05 < share < 0.4


def test_records_do_not_depend_on_processes(built, tmp_path):
    """Two processes write the same bytes; a finished build is not changed."""
    folder, metadata, _ = built
    path = folder.parent / "rows.jsonl"
    again, _ = build(tmp_path / "out", path, num_processes=2)
    assert again == metadata
    assert contents(tmp_path / "out") == contents(folder)
    before = change_times(folder.iterdir())
    build(folder, path)
    assert change_times(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_words", 41),
        ("symbols", "kokoro"),
        ("random_seed", 7),
        ("eval_fraction", 0.3),
        ("max_seq_length", 40),
        ("masked_lm_prob", 0.2),
        ("mask_same_random", ("0.9", "0", "0.1")),
    ],
)
def test_other_settings_need_another_folder(built, name, value):
    """The error names the setting that differs from the earlier build's."""
    path = built[0].parent / "rows.jsonl"
    with pytest.raises(InputError, match=f"{name}: .+ then, .+ now"):
        build(built[0], path, **{name: value})


@pytest.mark.parametrize(
    ("target", "name", "calls", "left"),
    [
        (phoneme_build, "count", 1, 5),
        (phoneme_build, "make_file", 0, 4),
        (phoneme_build, "make_file", 3, 1),
        (phoneme_build.Metadata, "write", 0, 0),
    ],
)
def test_an_interrupted_build_resumes(
    tmp_path, monkeypatch, target, name, calls, left
):
    """A resumed build reads rows only for missing counts and files.

    The files of the resumed build equal those of an uninterrupted build.
    """
    number = range(2)
    paths = [write_rows(tmp_path / f"{i}", make_rows(20, i)) for i in number]
    whole, _ = build(tmp_path / "whole", *paths)
    with interrupted(target, name, calls):
        build(tmp_path / "out", *paths)
    read, begun = phoneme_build.read_parts, []
    monkeypatch.setattr(
        phoneme_build,
        "read_parts",
        lambda path: begun.append(path) or read(path),
    )
    assert build(tmp_path / "out", *paths)[0] == whole
    assert len(begun) == left
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", ["symbols.json", "words.json"])
def test_a_missing_table_is_made_again(built, tmp_path, name):
    """A repeated command restores a missing file of the symbol table."""
    output = shutil.copytree(built[0], tmp_path / "out")
    (output / name).unlink()
    build(output, built[0].parent / "rows.jsonl")
    assert contents(output) == contents(built[0])


def test_other_symbols_in_a_folder_need_another_folder(built, tmp_path):
    """The symbols, not the name of their folder, identify a build."""
    path, table = built[0].parent / "rows.jsonl", tmp_path / "table"
    made_of("abɑ.").save(str(table))
    settings = {"symbols": str(table)}
    metadata, _ = build(tmp_path / "out", path, **settings)
    shutil.move(table, tmp_path / "moved")
    again, _ = build(tmp_path / "out", path, symbols=str(tmp_path / "moved"))
    assert again == metadata
    made_of("abɑ").save(str(table))
    with pytest.raises(InputError, match="symbols: symbols .* then, "):
        build(tmp_path / "out", path, **settings)


def counts_of(**counts):
    """Return `Counts` with the given counters; other counters are empty."""
    names = phoneme_build.Counts._fields
    return phoneme_build.Counts(*(Counter(counts.get(n)) for n in names))


def test_the_words_of_the_table_are_the_most_frequent():
    """The table's words are the most frequent ones; one word is too few.

    Equally frequent words are in alphabetical order.
    """
    config = phoneme_build.PhonemesConfig(num_words=2)
    counts = counts_of(words={"b": 1, "c": 1, "a": 1, "d": 2})
    table = phoneme_build.table_of(config, counts)
    assert table.words == (" ", "<other>", "d", "a")
    two = counts_of(words={"b": 1, "c": 1})
    assert len(phoneme_build.table_of(config, two).words) == 4
    for words in ({}, {"b": 2}):
        with pytest.raises(InputError, match="two different words"):
            phoneme_build.table_of(config, counts_of(words=words))


def test_what_is_held_out_depends_on_the_phonemes(tmp_path):
    """The key of a part is the hash of its phonemes and the seed."""
    row = {"words": ["c", "d"], "phonemes": ["a", "b"]}
    path = write_rows(tmp_path / "rows.jsonl", [row])
    counts = phoneme_build.count(5, (str(path), str(tmp_path / "counts")))
    assert counts.first == {str(document_hash(["a", "b"], 5)): 1}


def test_words_are_packed_by_hand():
    """A word that does not fit with its separator begins the next example."""
    table = made_of("abcd").with_words(("x", "y"))
    part = ["ab", "c☃", "☃", "abcdabcd"], ["x", "y", "x", "z"]
    other, space, pad = 1, table.symbols[" "], table.symbols[table.pad]
    a, b, c, d = (table.ids[s] for s in "abcd")
    x, y = table.labels["x"], table.labels["y"]
    ids, labels = phoneme_build.lay_out(part, table, 5)
    assert ids.tolist() == [[a, b, space, c, space], [a, b, c, d, space]]
    assert labels.tolist() == [[x, x, 0, y, 0], [other] * 4 + [0]]
    ids, labels = phoneme_build.lay_out((part[0][:2], part[1][:2]), table, 4)
    assert ids.tolist() == [[a, b, space, pad], [c, space, pad, pad]]
    assert labels.tolist() == [[x, x, 0, 0], [y, 0, 0, 0]]


def test_at_least_one_part_is_held_out():
    """The border of a positive share lies above the lowest key.

    Parts with keys below the border are held out. For a share of 0, the border
    is 0, and no part is held out.
    """
    counts = counts_of(first={"50": 1, "9": 2})
    assert phoneme_build.border_of(0, counts) == 0
    assert phoneme_build.border_of(1e-30, counts) == 10
    assert phoneme_build.border_of(0.25, counts) == 2**62


def test_at_most_twenty_unknown_symbols_are_named():
    """Statistics list the 20 most frequent unknown symbols, but count all."""
    symbols = {chr(0x2603 + i): 1 + i for i in range(25)}
    counts = counts_of(symbols=symbols | {"a": 100}, words={"x": 3, "y": 1})
    table = made_of("a").with_words(("x",))
    found = phoneme_build.statistics_of(table, counts)
    assert len(found["unknown_symbols"]) == 20
    assert found["unknown_symbols"]["☛ U+261B"] == 25
    assert found["unknown_share"] == 325 / 425
    assert found["other_words_share"] == 0.25


def test_warnings_at_their_limits(built):
    """Shares at a limit cause no warning, but few held-out records do.

    A held-out share that differs much from the requested one causes a warning.
    """
    made = built[1]

    def warnings(eval_records=100, requested=0.1, **shares):
        splits = {
            split: (RecordFile("x", number, 10**9),)
            for split, number in (("eval", eval_records), ("train", 950))
        }
        changes = {"statistics": made.statistics | shares, "splits": splits}
        changes["settings"] = made.settings | {"eval_fraction": requested}
        text = phoneme_build.summary(dataclasses.replace(made, **changes))
        assert f"  eval: {eval_records} records of 32 symbols" in text
        return [x for x in text.split("\n") if x.startswith("Warning: ")]

    usual = {"unknown_share": 0.001, "other_words_share": 0.3}
    usual |= {"padding_share": 0.4}
    assert not warnings(**usual)
    shares = dict(unknown_share=0.0011, other_words_share=0.301)
    first, second, third = warnings(**shares, padding_share=0.402)
    assert "0.11% of the symbols" in first and "30.10% of the words" in second
    assert "40.20% of the positions are padding" in third
    (other,) = warnings(requested=0.02, **usual)
    assert "9.52% of the records are held out instead of 2.00%" in other
    (few,) = warnings(50, requested=0.05, **usual)
    assert "only 50 examples" in few and "--eval_fraction=0.1 holds" in few
    (few,) = warnings(50, requested=0.07, **usual)  # 4.8% are held out
    assert "--eval_fraction=0.14 holds" in few


def test_little_text_has_a_held_out_document(tmp_path):
    """One document is held out, with a warning, if the share is too small."""
    rows = [row for row in ROWS if row["document"] < 20]
    paths = [write_rows(tmp_path / f"{i}", rows[i::2]) for i in range(2)]
    metadata, shown = build(tmp_path / "out", *paths, eval_fraction=1e-9)
    number = metadata.count("eval")
    assert 0 < number < 8 < metadata.count("train")
    assert f"Warning: only {number} examples are held out" in shown


def test_settings_of_another_task_are_refused(tmp_path):
    """A setting that has no effect on the task of a build raises an error."""
    with pytest.raises(InputError, match="Received: settings=ngram"):
        build(tmp_path, tmp_path, ngram=2)
    with pytest.raises(InputError, match="settings=num_words"):
        tiny_phonemes.create_pretraining_data(
            input_file="x", output_dir=str(tmp_path), num_words=3
        )


@pytest.mark.parametrize("inside", ["", " "])
def test_frequencies_are_those_of_the_records(tmp_path, inside):
    """Losses and accuracies by frequency follow from the records.

    A model that predicts only from the frequencies of symbols and words has
    these values. Words, such as spoken numbers, may contain spaces.
    """
    rows = make_rows()
    for row in rows:
        row["phonemes"] = [inside.join(word) for word in row["phonemes"]]
    folder = tmp_path / "out"
    metadata, _ = build(folder, write_rows(tmp_path / "rows.jsonl", rows))
    found = examples(folder)
    ids = np.concatenate([x[y != 0] for x, y in found])
    labels = np.concatenate([y[x != 0] for x, y in found])

    def entropy(values):
        shares = np.unique(values, return_counts=True)[1] / len(values)
        return -np.sum(shares * np.log(shares)), shares.max()

    (symbols, best), (words, most) = entropy(ids), entropy(labels)
    metrics = metadata.statistics["by_frequency"]
    np.testing.assert_allclose(metrics["symbols_loss"], symbols)
    np.testing.assert_allclose(metrics["words_loss"], words)
    np.testing.assert_allclose(metrics["masked_symbol_accuracy"], best)
    np.testing.assert_allclose(metrics["word_accuracy"], most)
    table = read_table(str(folder))
    counted = read_piece_counts(str(folder), table.vocab_size)
    assert counted.tolist() == np.bincount(ids, minlength=178).tolist()
    all_ids = np.concatenate([x for x, _ in found])
    _, counts = np.unique(
        all_ids[all_ids != table.symbols[table.pad]], return_counts=True
    )
    share = counts.max() / counts.sum()
    np.testing.assert_allclose(metrics["symbol_accuracy"], share)


def test_the_share_of_padding_is_that_of_the_records(built, tmp_path):
    """The share of padding equals the share of pads in the records.

    It is larger if each row is a document, because it begins a new record.
    """
    separate = [{k: v for k, v in r.items() if k != "document"} for r in ROWS]
    path = write_rows(tmp_path / "rows.jsonl", separate)
    made = tmp_path / "out", *build(tmp_path / "out", path)
    shares = []
    for folder, metadata, _ in (built, made):
        table = read_table(str(folder))
        pads = [x == table.symbols[table.pad] for x, _ in examples(folder)]
        shares.append(metadata.statistics["padding_share"])
        assert shares[-1] == pytest.approx(np.mean(np.concatenate(pads)))
    assert 0 < shares[0] < shares[1] - 0.1


def test_a_build_without_a_share_of_padding_is_summarized(built):
    """The statistics of earlier versions have no share of padding."""
    made, kept = built[1], dict(built[1].statistics)
    del kept["padding_share"]
    text = phoneme_build.summary(dataclasses.replace(made, statistics=kept))
    assert "train: " in text and "padding" not in text


def test_frequencies_by_hand():
    """Losses and accuracies by frequency equal results computed by hand."""
    found = phoneme_build.by_frequency([1, 0, 3], [2, 0, 4])
    entropies = {
        "symbols_loss": -0.25 * np.log(0.25) - 0.75 * np.log(0.75),
        "words_loss": -np.log(1 / 3) / 3 - np.log(2 / 3) * 2 / 3,
    }
    assert found == pytest.approx(
        entropies
        | {"symbol_accuracy": 0.5, "masked_symbol_accuracy": 0.75}
        | {"word_accuracy": 2 / 3}
    )
    found = phoneme_build.by_frequency([3, 2], [5, 1, 4])
    assert found["symbol_accuracy"] == 0.8
    assert found["word_accuracy"] == 0.5
