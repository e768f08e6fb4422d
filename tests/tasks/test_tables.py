"""Rows of TSV, CSV and JSON Lines files; errors state the line number."""

import bz2
import gzip
import lzma

import pytest
import tiny_tasks

from albert_tf.base.errors import InputError
from albert_tf.data.row_files import Row
from albert_tf.tasks import tables
from albert_tf.tasks.registry import find
from albert_tf.tasks.tables import Columns, json_cell, read_rows, text_cell
from albert_tf.tasks.task import read_splits, with_settings
from albert_tf.tasks.task_config import DataConfig


def rows(tmp_path, name, text, **columns):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    found = list(read_rows(str(path), Columns(**columns)))
    return [r.where.removeprefix(f"{tmp_path}/") for r in found], [
        r.values for r in found
    ]


def refusal(tmp_path, name, text, **columns):
    with pytest.raises(InputError) as error:
        rows(tmp_path, name, text, **columns)
    return str(error.value)


def test_tsv_knows_no_quotes(tmp_path):
    """In TSV, quotes, Unicode line separators and spaces are plain text."""
    text = '\ufeffa\tb\r\n"x\t y" \r\nu\u2028v\t\n\n'
    where, values = rows(tmp_path, "t.tsv", text)
    assert values == [{"a": '"x', "b": ' y" '}, {"a": "u\u2028v", "b": ""}]
    assert where == ["t.tsv:2", "t.tsv:3"]


def test_csv_has_quotes_and_counts_lines(tmp_path):
    """Quoted cells may contain commas and line breaks; lines are counted."""
    text = 'a,b\n"x, ""y""\nz",1\nu,2\n'
    where, values = rows(tmp_path, "t.csv", text)
    assert values == [{"a": 'x, "y"\nz', "b": "1"}, {"a": "u", "b": "2"}]
    assert where == ["t.csv:2", "t.csv:4"]


def test_a_long_csv_cell(tmp_path):
    """Cells may be longer than the limit of Python's csv module."""
    _, values = rows(tmp_path, "t.csv", "a\n" + "x" * 200_000 + "\n")
    assert len(values[0]["a"]) == 200_000


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("t.tsv", "a\tb\nx\ty\nx\n", ["t.tsv:3", "2 columns (a, b)", "1 col"]),
        ("t.tsv", "a\tb\n\nx\ty\n", ["t.tsv:2"]),
        ("t.csv", "a,b\nx,y,z\n", ["t.csv:2", "3 columns"]),
        ("t.csv", 'a,b\n"x,y\n', ["t.csv:2", "cells. Received: une"]),
        ("t.jsonl", '{"a": 1}\n{"a": }\n', ["t.jsonl:2", "JSON object"]),
        ("t.jsonl", "[1]\n", ["t.jsonl:1", "JSON object"]),
        ("t.jsonl", "[" * 100_000, ["t.jsonl:1", "JSON object"]),
        ("t.jsonl", '{"a": ' + "1" * 5_000, ["t.jsonl:1", "JSON object"]),
        ("t.tsv", "a\ta\nx\ty\n", ["t.tsv:1", "twice=a"]),
        ("t.tsv", " \n", ["empty", "t.tsv"]),
        ("t.tsv", b"a\nx\xff\n", ["t.tsv:2", "-f ENCODING", "byte 0xff at 1"]),
        ("t.xls", "a\n", [".tsv", ".csv", ".jsonl", "t.xls"]),
    ],
)
def test_malformed_files(tmp_path, name, text, parts):
    """The error for a malformed table names the file and usually the line."""
    message = refusal(tmp_path, name, text)
    assert all(part in message for part in parts), message


def test_a_missing_file(tmp_path):
    """If a table does not exist, the error names the file."""
    with pytest.raises(InputError, match="nothing.tsv"):
        list(read_rows(str(tmp_path / "nothing.tsv"), Columns()))


def test_known_broken_lines_are_passed_over(tmp_path, capsys):
    """With `skip_broken`, broken lines are skipped and counted.

    A line that is not UTF-8 is an error, because all its cells may be present.
    """
    text = "a\tb\nx\ny\tz\n"
    _, values = rows(tmp_path, "t.tsv", text, skip_broken=True)
    assert values == [{"a": "y", "b": "z"}]
    assert "skipped 1 broken lines" in capsys.readouterr().out
    message = refusal(
        tmp_path, "t.tsv", text.encode() + b"\xff\tz\n", skip_broken=True
    )
    assert "t.tsv:4: the text must be UTF-8" in message


DOUBLED = '"he said ""no"" twice"'


@pytest.mark.parametrize(
    ("rows", "noted"),
    [
        (
            [("a", "x"), ("b", "y"), (DOUBLED, '"x"'), ('"c"', "y")],
            f"t.tsv:4, column 1: the quotes around {DOUBLED}",
        ),
        ([("a", "x"), ("b", '"y"')], "t.tsv:3, column 2: the quotes"),
        (
            [(f'"{"v" * 60}"', "x"), ("b", "y")],
            f't.tsv:2, column 1: the quotes around "{"v" * 39} are kept',
        ),
        ([('"No," she said.', "x"), ('"', "y"), ('"a" and "b"', "x")], ""),
    ],
)
def test_quotes_of_an_own_table_are_noted_once(tmp_path, capsys, rows, noted):
    """A note names the first cell that is in quotes; the quotes are kept.

    Another program may have added these quotes. Quotes inside a text cause no
    note.
    """
    path = tiny_tasks.write_tsv(tmp_path / "t.tsv", ("text", "label"), *rows)
    data = DataConfig(train_file=path, text_column="text")
    task = with_settings(find("classification"), data)
    examples = read_splits(task, data, "train")[""]
    assert [(e.text, e.label) for e in examples] == rows
    out = capsys.readouterr().out
    assert noted in out and out.count("Note") == out.count("\n") == bool(noted)


def test_quotes_of_official_files_are_text(tmp_path, capsys):
    """Quotation marks around GLUE's sentences are kept."""
    (tmp_path / "RTE").mkdir()
    header = "index", "sentence1", "sentence2", "label"
    row = 0, '"So it is."', "b", "entailment"
    tiny_tasks.write_tsv(tmp_path / "RTE" / "train.tsv", header, row)
    data = DataConfig(data_dir=str(tmp_path))
    (example,) = read_splits(find("rte"), data, "train")[""]
    assert example.text == '"So it is."'
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "name, pack",
    [
        ("t.TSV", bytes),
        ("t.tsv.gz", gzip.compress),
        ("t.tsv", bz2.compress),
        ("t.CSV.XZ", lzma.compress),
        ("t.txt", bytes),
        ("t", bytes),
        ("t.tsv", bytes),
        ("t.csv", gzip.compress),
    ],
)
def test_what_a_table_is(tmp_path, name, pack):
    """Compression and JSON are detected by content; other formats, by name."""
    cells = {
        "T": b"a\tb\nx\ty\n",
        "C": b"a,b\nx,y\n",
        "J": b'{"a": "x", "b": "y"}\n',
    }
    letter = name[2:3].upper() if name != "t" else "J"
    for text in (cells["J"], cells[letter]):
        assert rows(tmp_path, name, pack(text))[1] == [{"a": "x", "b": "y"}]


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("t.tsv", "a\tb\nx\ty\n".encode("utf-16"), "iconv -f UTF-16"),
        ("t.csv", b"PK\x03\x04" + b"\0" * 99, "zip archive"),
        ("t.json", b'[{"a": 1},\n{"a": 2}]\n', "jq -c '.[]'"),
        (
            "t.tsv.gz",
            gzip.compress(b"a\tb\n" * 999, mtime=0)[:-9],
            "damaged .gz file",
        ),
    ],
)
def test_files_that_are_no_table(tmp_path, name, text, message):
    """If a file is not a table, the error names its format or the damage."""
    assert message in refusal(tmp_path, name, text)


@pytest.mark.parametrize("value", [["a", 1], ["a", None], [["a"]], 5, None])
def test_a_text_cell_contains_text(value):
    """Only a text, or a list of texts, can be the text of an example."""
    row = Row("f.jsonl:3", {"text": value})
    with pytest.raises(InputError, match="f.jsonl:3: column text must contain"):
        text_cell(row, "text", "text_column")
    listed = Row("f", {"text": ["a", "b c"]})
    assert text_cell(listed, "text", "text_column") == "a b c"


def test_a_plain_cell_is_not_parsed(monkeypatch):
    """Only cells that begin with a bracket are read as lists or objects."""
    cells = [' ["a", 1]\n', '\t{"a": []}', "[x", "{", None, 1.5, ["a"]]
    parsed = [["a", 1], {"a": []}, "[x", "{", None, 1.5, ["a"]]
    assert [json_cell(cell, list, dict) for cell in cells] == parsed
    assert json_cell("[1]", dict) == "[1]"
    monkeypatch.delattr(tables.files, "json_value")
    for cell in ("", " ", "B-x I-x", "1", "null", '"a"', "a [b]", ["["]):
        assert json_cell(cell, list, dict) is cell
