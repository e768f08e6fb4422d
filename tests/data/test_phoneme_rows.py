"""Rows of words and phonemes are read; malformed rows raise errors."""

import gzip
import io
import json

import pytest
from tiny_corpus import records_of
from tiny_phonemes import build, examples, make_rows, words_of, write_rows

from albert_tf.base.errors import InputError
from albert_tf.data.builder import phoneme_build
from albert_tf.text.symbols import read_table

ROWS = make_rows()


def test_rows_beside_the_records(tmp_path):
    """A repeated build does not read its own files, such as symbol tables."""
    write_rows(tmp_path / "rows.jsonl", ROWS)
    first, _ = build(tmp_path, f"{tmp_path}/*")
    assert build(tmp_path, f"{tmp_path}/*")[0] == first


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

    A row in which the field `document` is missing or null is a separate
    document, and an empty row yields no part.
    """
    names = [1, 1, 1, 1, 2, 2, None, None, None, None]
    sizes = [1000, 24, 1500, 1, 1023, 1, 1, 2, 1, 0]
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
        (n, n) for n in (1024, 1500, 1, 1024, 1, 2, 1)
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


def test_rows_may_come_from_standard_input(built, tmp_path, monkeypatch):
    """Rows from standard input produce the same records as a file of rows.

    The copy of the rows is removed.
    """
    rows = io.BytesIO(
        gzip.compress((built[0].parent / "rows.jsonl").read_bytes())
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(rows))
    build(tmp_path, "-")
    assert records_of(tmp_path) == records_of(built[0])


def test_an_array_of_rows_is_not_lines_of_rows(tmp_path):
    """The error for a JSON array contains a command that converts it."""
    (tmp_path / "rows.json").write_text(json.dumps(ROWS, indent=1))
    with pytest.raises(InputError, match=r"jq -c '\.\[\]'.*file=.*rows.json"):
        build(tmp_path / "out", tmp_path / "rows.json")


def test_useless_rows_are_an_error(tmp_path):
    """An error is raised for rows of one distinct word and for too few rows."""
    alike = [{"words": ["a", "a"], "phonemes": ["ɑ", "i"]}] * 3
    path = write_rows(tmp_path / "alike.jsonl", alike)
    with pytest.raises(InputError, match="two different words"):
        build(tmp_path / "out", path)
    path = write_rows(tmp_path / "one.jsonl", ROWS[:1])
    message = "must yield train records.*eval_fraction=0 holds out no"
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
