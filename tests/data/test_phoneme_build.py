"""Records of phonemes contain the words of the rows, and nothing else."""

import dataclasses
import json
import shutil
from collections import Counter

import numpy as np
import pytest
import tiny_phonemes
from tiny_corpus import contents
from tiny_phonemes import build, examples, make_rows, words_of, write_rows

from albert_tf.base.errors import InputError
from albert_tf.data.builder import phoneme_build
from albert_tf.data.builder.text_blocks import document_hash
from albert_tf.data.records import tfrecord
from albert_tf.data.records.inspect_records import show
from albert_tf.data.records.metadata import RecordFile, load_metadata
from albert_tf.text.symbols import made_of, read_table

ROWS = make_rows()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the folder of the rows' records, their metadata and summary."""
    folder = tmp_path_factory.mktemp("phonemes")
    path = write_rows(folder / "rows.jsonl", ROWS)
    return folder / "out", *build(folder / "out", path)


def test_words_are_those_of_the_rows(built):
    """Records contain all words once, in order, with phonemes and labels."""
    folder, metadata, _ = built
    table = read_table(str(folder))
    found = [words_of(e, table) for e in examples(folder)]
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


def test_examples_are_laid_out_as_described(built):
    """A separator with label 0 ends each word; padding ends the example."""
    folder, metadata, _ = built
    table = read_table(str(folder))
    separator, pad = table.symbols[" "], table.symbols["$"]
    found = examples(folder)
    assert len(found) == metadata.count("train") + metadata.count("eval")
    for ids, labels in found:
        assert len(ids) == len(labels) == 32
        real = ids != pad
        assert real[: real.sum()].all() and ids[real][-1] == separator
        np.testing.assert_array_equal(labels == 0, ~real | (ids == separator))


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


def test_documents_are_packed_and_not_mixed(built):
    """Each example contains words of one document.

    The number of examples is below 1.4 times the smallest possible number.
    """
    folder, *_ = built
    table = read_table(str(folder))
    texts = [
        " ".join(p for r in ROWS if r["document"] == d for p in r["phonemes"])
        for d in range(30)
    ]
    found = examples(folder)
    for example in found:
        text = " ".join(p for p, _ in words_of(example, table))
        assert any(text in whole for whole in texts)
    least = sum(-(-len(text) // 32) for text in texts)
    assert len(found) < 1.4 * least


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
    """Two processes write the same bytes; a finished build is left alone."""
    folder, metadata, _ = built
    path = folder.parent / "rows.jsonl"
    again, _ = build(tmp_path / "out", path, num_processes=2)
    assert again == metadata
    assert contents(tmp_path / "out") == contents(folder)
    times = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    build(folder, path)
    assert times == {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    with pytest.raises(InputError, match="num_words: 40 then, 41 now"):
        build(folder, path, num_words=41)


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
    read, begun = phoneme_build.read_parts, []
    function = getattr(target, name)

    def interrupted(*args):
        if len(begun) == calls:
            raise KeyboardInterrupt
        begun.append(args)
        return function(*args)

    with monkeypatch.context() as patch:
        patch.setattr(target, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path / "out", *paths)
    begun.clear()
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


def test_rows_beside_the_records(tmp_path):
    """A repeated build does not read its own files, such as symbol tables."""
    write_rows(tmp_path / "rows.jsonl", ROWS)
    first, _ = build(tmp_path, f"{tmp_path}/*")
    assert build(tmp_path, f"{tmp_path}/*")[0] == first


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


def test_unknown_symbols_are_counted_and_named(tmp_path):
    """Unknown symbols, and words of only such symbols, are omitted.

    The statistics count each unknown symbol, and a warning states their total
    share.
    """
    rows = [
        {"words": ["a", "b", "c"], "phonemes": ["ɑ☃M", "☃", f"{'b' * 40}"]}
        for _ in range(4)
    ]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    metadata, shown = build(tmp_path / "out", path, eval_fraction=0)
    assert metadata.settings["builder_version"] == 2
    assert "of the words" not in shown
    assert metadata.statistics["unknown_symbols"] == {
        **{"☃ U+2603": 8, "M U+004D": 4}
    }
    assert "☃ U+2603" in shown and "Warning: 6.82% of the symbols" in shown
    table = read_table(str(tmp_path / "out"))
    found = [words_of(e, table) for e in examples(tmp_path / "out")]
    assert found == 4 * [[("ɑ", "a")], [("b" * 31, "c")]]
    metadata, _ = build(
        tmp_path / "auto", path, eval_fraction=0, symbols="auto"
    )
    assert metadata.statistics["unknown_symbols"] == {}


def test_the_layout_of_public_data_is_read(tmp_path):
    """Word numbers in Parquet files become labels in order of frequency."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "phonemes": [["hɑ", "ti", "."], ["ti"]],
        "input_ids": [[41, 7, 0], [7]],
    }
    path = tmp_path / "data.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    made, _ = build(tmp_path / "out", path, eval_fraction=0, num_words=2)
    assert made.statistics["other_words_share"] == 0.25
    table = read_table(str(tmp_path / "out"))
    assert table.words == (" ", "<other>", "7", "0")
    found = [words_of(e, table) for e in examples(tmp_path / "out")]
    assert found == [
        [("hɑ", "<other>"), ("ti", "7"), (".", "0")],
        [("ti", "7")],
    ]


def test_parts_of_documents(tmp_path):
    """Rows of a document are joined until they have at least 1024 words.

    A row without the field `document` is a document of its own, and an empty
    row yields no part.
    """
    names = [1, 1, 1, 1, 2, 2, None, None]
    sizes = [1000, 24, 1500, 1, 1023, 1, 1, 0]
    rows = [
        {"document": name, "words": ["w"] * size, "phonemes": ["p"] * size}
        for name, size in zip(names, sizes, strict=True)
    ]
    for row in rows[-2:]:
        del row["document"]
    parts = phoneme_build.read_parts(
        str(write_rows(tmp_path / "rows.jsonl", rows))
    )
    assert [(p.count("p"), w.count("w")) for p, w in parts] == [
        (n, n) for n in (1024, 1500, 1, 1024, 1)
    ]


def test_equivalent_words_are_one_word(tmp_path):
    """Words are converted to NFC; in phonemes, only `ç` is composed."""
    rows = [
        {"words": ["Küche", "a"], "phonemes": ["kˈyçə", "ã"]},
        {"words": ["Ku\u0308che", "a"], "phonemes": ["kˈyc\u0327ə", "a\u0303"]},
    ]
    path = str(write_rows(tmp_path / "rows.jsonl", rows))
    assert [*phoneme_build.read_parts(path)] == [
        (["kˈyçə", tilde], ["Küche", "a"]) for tilde in ("ã", "a\u0303")
    ]


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


def test_what_is_held_out_depends_on_the_phonemes():
    """The key of a part is the hash of its phonemes and the seed."""
    key = document_hash(["a", "b"], 5)
    assert phoneme_build.key_of((["a", "b"], ["c", "d"]), 5) == key


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

    def warnings(eval_records=100, asked=0.1, **shares):
        splits = {
            split: (RecordFile("x", number, 10**9),)
            for split, number in (("eval", eval_records), ("train", 950))
        }
        changes = {"statistics": made.statistics | shares, "splits": splits}
        changes["settings"] = made.settings | {"eval_fraction": asked}
        text = phoneme_build.summary(dataclasses.replace(made, **changes))
        assert f"  eval: {eval_records} records of 32 symbols" in text
        return [x for x in text.split("\n") if x.startswith("Warning: ")]

    usual = {"unknown_share": 0.001, "other_words_share": 0.3}
    assert not warnings(**usual)
    first, second = warnings(unknown_share=0.0011, other_words_share=0.301)
    assert "0.11% of the symbols" in first and "30.10% of the words" in second
    (other,) = warnings(asked=0.02, **usual)
    assert "9.52% of the records are held out instead of 2.00%" in other
    (few,) = warnings(50, asked=0.05, **usual)
    assert "only 50 examples" in few and "--eval_fraction=0.1 holds" in few


@pytest.mark.parametrize(
    "row",
    [
        {"words": ["a"], "phonemes": ["a", "b"]},
        {"words": ["a"], "phonemes": "a"},
        {"words": ["a", 1], "phonemes": ["a", "b"]},
        {"input_ids": [3, -1], "phonemes": ["a", "b"]},
        {"phonemes": ["a", "b"]},
        {"words": ["a", ["b"]], "phonemes": ["a", "b"]},
        {"words": {"a": 1}, "phonemes": ["a"]},
        {"input_ids": [1.5], "phonemes": ["a"]},
        {"input_ids": [True], "phonemes": ["a"]},
        {"words": ["a"], "phonemes": [None]},
        {},
    ],
)
def test_a_malformed_row_is_named(tmp_path, row):
    """The error for a malformed row states the file and line.

    No file is left in the output folder.
    """
    path = write_rows(tmp_path / "rows.jsonl", [*ROWS[:2], row])
    with pytest.raises(InputError, match=r"rows.jsonl:3: a row must have"):
        build(tmp_path / "out", path)
    assert [p.name for p in (tmp_path / "out").iterdir()] == []


def test_text_is_not_rows(built, tmp_path):
    """The error for a text file names `phonemize`, which makes rows from text.

    The error for a manifest of `phonemize` names the pattern of row files.
    """
    (tmp_path / "manifest.json").write_text('{"language": "de"}')
    with pytest.raises(InputError, match=r"such as phonemes-\*"):
        build(tmp_path / "out", tmp_path / "*")
    write_rows(tmp_path / "phonemes-00000.jsonl", ROWS)
    assert build(tmp_path / "out", tmp_path / "*.json*")[0] == built[1]
    (tmp_path / "english.txt").write_text("The first line.\nThe next one.\n")
    message = "`python -m albert_tf.phonemize` makes .*=.*english.txt"
    with pytest.raises(InputError, match=message):
        build(tmp_path / "text", tmp_path / "english.txt")


def test_useless_rows_are_an_error(tmp_path):
    """An error is raised for rows of one distinct word and for too few rows."""
    alike = [{"words": ["a", "a"], "phonemes": ["ɑ", "i"]}] * 3
    path = write_rows(tmp_path / "alike.jsonl", alike)
    with pytest.raises(InputError, match="two different words"):
        build(tmp_path / "out", path)
    path = write_rows(tmp_path / "one.jsonl", ROWS[:1])
    message = "must suffice for train records.*eval_fraction=0 holds out no"
    with pytest.raises(InputError, match=message):
        build(tmp_path / "out", path, eval_fraction=0.001)


@pytest.mark.parametrize(
    ("phonemes", "found"), [(["", ""], "none"), (["☃", "☂☃"], "☂☃")]
)
def test_rows_without_known_symbols_are_an_error(tmp_path, phonemes, found):
    """If the phonemes have no known symbols, an error lists the symbols."""
    rows = [{"words": ["a", "b"], "phonemes": phonemes}] * 3
    path = write_rows(tmp_path / "rows.jsonl", rows)
    message = f"must contain symbols of the table.*: symbols={found}"
    with pytest.raises(InputError, match=message):
        build(tmp_path / "out", path)


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


def test_frequencies_are_those_of_the_records(built):
    """Losses and accuracies by frequency follow from the records.

    These are the values of a model that knows only the frequencies of symbols
    and words.
    """
    folder, metadata, _ = built
    found = examples(folder)
    ids = np.concatenate([x[y != 0] for x, y in found])
    labels = np.concatenate([y[x != 0] for x, y in found])

    def entropy(values):
        shares = np.unique(values, return_counts=True)[1] / len(values)
        return -np.sum(shares * np.log(shares)), shares.max()

    (symbols, best), (words, most) = entropy(ids), entropy(labels)
    known = metadata.statistics["by_frequency"]
    np.testing.assert_allclose(known["symbols_loss"], symbols)
    np.testing.assert_allclose(known["words_loss"], words)
    np.testing.assert_allclose(known["masked_symbol_accuracy"], best)
    np.testing.assert_allclose(known["word_accuracy"], most)
    table = read_table(str(folder))
    places = np.concatenate([x for x, _ in found])
    _, counts = np.unique(
        places[places != table.symbols[table.pad]], return_counts=True
    )
    share = counts.max() / counts.sum()
    np.testing.assert_allclose(known["symbol_accuracy"], share)


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
    assert found["symbol_accuracy"] == 0.5
    assert found["word_accuracy"] == 0.5


def test_metadata_at_their_limits(built, tmp_path):
    """Metadata with the smallest or the largest legal values can be read."""
    values = json.loads((built[0] / "metadata.json").read_text())
    for seed, labels in ((0, 2), (2**63 - 1, 3)):
        values["settings"]["random_seed"] = seed
        values["statistics"]["word_labels"] = labels
        (tmp_path / "metadata.json").write_text(json.dumps(values))
        assert load_metadata(str(tmp_path)).settings["random_seed"] == seed


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        *(("statistics", "word_labels", x) for x in (None, "42", 1, -1, 2.0)),
        *(("statistics", "by_frequency", x) for x in (None, [], {}, {"a": 1})),
        ("statistics", "by_frequency", {"masked_symbol_accuracy": "0.1"}),
        ("statistics", "by_frequency", {"masked_symbol_accuracy": None}),
        *(("settings", "task", x) for x in ("words ", ["phonemes"])),
        *(("settings", "masking", x) for x in ("static", None, "x", ["x"])),
        *(("settings", "random_seed", x) for x in ("1", -1, 2**63, 10**30)),
        *(("settings", "masked_lm_prob", x) for x in ("x", 0, 10**400)),
        *(("settings", "mask_same_random", x) for x in ("x", 1, [10**400])),
    ],
)
def test_damaged_metadata_is_an_error(built, tmp_path, part, name, value):
    """The error for damaged metadata names the value that is wrong."""
    values = json.loads((built[0] / "metadata.json").read_text())
    values[part][name] = value
    if value is None:
        del values[part][name]
    (tmp_path / "metadata.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=f"damaged .*{name}.* Received: "):
        load_metadata(str(tmp_path))
