"""Rows of a table are documents in every file format."""

import gzip
import lzma

import numpy as np
import pytest
from tiny_files import (
    DOCUMENTS,
    ROWS,
    comma_separated,
    feather,
    json_lines,
    parquet,
    read,
    refusal,
    write,
)

from albert_tf.base.errors import InputError
from albert_tf.data import file_kinds, row_files, table_sources
from albert_tf.data.builder import text_blocks, text_formats
from albert_tf.data.builder.text_formats import ReadingConfig


@pytest.mark.parametrize(
    "name, make",
    [
        ("wiki_00", json_lines),
        ("x.txt", json_lines),
        ("x.csv", json_lines),
        ("X.JSONL", json_lines),
        ("x.csv", comma_separated),
        ("X.CSV", comma_separated),
        ("part-00000", parquet),
        ("x.PARQUET", parquet),
        ("x", feather),
    ],
)
def test_tables(tmp_path, monkeypatch, name, make):
    """The `text_field` of each row is a document, even with small blocks."""
    path = write(tmp_path / name, make(ROWS, "body"))
    assert read(path, text_field="body")[0] == DOCUMENTS
    with pytest.raises(InputError, match="`text_field`.* body"):
        read(path)
    if make not in (parquet, feather):
        packed = write(tmp_path / f"{name}.xz", lzma.compress(make(ROWS)))
        assert read(packed)[0] == DOCUMENTS
    many = write(tmp_path / name, make(ROWS * 50))
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 200)
    assert read(many)[0] == DOCUMENTS * 50


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["int16", "int64"])
def test_a_table_of_small_numbers(tmp_path, kind):
    """An Arrow file is read even if many of its first bytes are zero."""
    numbers = np.arange(30_000, dtype=kind) % 200
    rows = feather(["a b"] * len(numbers), n=numbers)
    found, _ = read(write(tmp_path / "x", rows))
    assert found == [["a b"]] * len(numbers)


def test_tabs(tmp_path):
    """TSV files are split at tabs and have no quoting."""
    data = 'id\ttext\n1\t"a" b\n2\tc, d\n\n\n'
    path = write(tmp_path / "x.TSV.gz", gzip.compress(data.encode()))
    assert read(path)[0] == [['"a" b'], ["c, d"]]


def rows_of(path):
    """Return the line numbers and the values of a file's rows."""
    rows = table_sources.rows_of(str(path))
    return [
        (int(row.where.rpartition(":")[2]), *row.values.values())
        for row in rows
    ]


def test_blank_lines_and_marks_of_a_table(tmp_path):
    """In CSV and TSV, blank lines are rows, except at the end of a file.

    Only the first line may begin with a byte-order mark; elsewhere, the mark is
    part of the text.
    """
    for name in ("x.csv", "x.tsv"):
        text = "\ufefftext\na\n\n\ufeffb\r\nc\n\n\n"
        path = write(tmp_path / name, text)
        rows = [(2, "a"), (3, ""), (4, "\ufeffb"), (5, "c")]
        assert rows_of(path) == rows
    path = write(tmp_path / "x.csv", 'a,b\n"c\n\nd",e\nf,g\n')
    assert rows_of(path) == [(2, "c\n\nd", "e"), (5, "f", "g")]


def test_blank_lines_between_objects(tmp_path):
    """Blank lines in JSON lines are not rows, but count in line numbers."""
    path = write(tmp_path / "x.jsonl", '{"a": 1}\n\n \n{"a": 2}\n')
    assert rows_of(path) == [(1, 1), (4, 2)]


def test_the_position_of_a_label():
    """A label has the position of its row unless another position is passed."""
    assert row_files.Row("x[3]", {}).label_where == "x[3]"
    assert row_files.Row("x[3]", {}, "y[3]").label_where == "y[3]"


def test_names_of_columns(tmp_path):
    """Column names must be unique; without a header, they are numbers.

    Spaces around a name are removed. Columns without a name are omitted.
    """
    for head, twice in (("a, b ,a,c,c", "a, c"), ("a,,b,a, ", "a")):
        path = write(tmp_path / "x.csv", f"{head}\n")
        rule = f"x.csv:1: .*unique.*twice={twice}$"
        with pytest.raises(InputError, match=rule):
            rows_of(path)
    path = write(tmp_path / "x.csv", ", ,\na,b,c\n")
    rule = "x.csv:1: the first line must name the columns. .*names="
    with pytest.raises(InputError, match=rule):
        rows_of(path)
    for text in " a, b \n1,2\n", ",a,b,, \n0,1,2,,\n":
        path = write(tmp_path / "x.csv", text)
        (row,) = table_sources.rows_of(str(path))
        assert row.values == {"a": "1", "b": "2"}
    path = write(tmp_path / "x.csv", " a, b \n1,2\n")
    with file_kinds.opened(str(path)) as source:
        rows = row_files.read(source, "x", "csv", header=False)
        assert [row.values for row in rows] == [
            {"1": " a", "2": " b "},
            {"1": "1", "2": "2"},
        ]


@pytest.mark.parametrize(
    "name, content",
    [
        ("x.csv", "text;label\nHello;1\n"),
        ("x.csv", "text;label\nHello, world;1\n"),
        ("x.csv", "text\tlabel\nHello\t1\n"),
        ("x.tsv", "text,label\nHello,1\n"),
    ],
)
def test_another_delimiter(tmp_path, name, content):
    """The error for a wrong delimiter states the correct delimiter."""
    with pytest.raises(InputError, match="delimiter must be a comma in .csv"):
        read(write(tmp_path / name, content))
    good = write(tmp_path / "good.csv", "text,label\nHello\n")
    with pytest.raises(InputError) as error:
        read(good)
    assert "must be a comma" not in str(error.value)
    several = write(tmp_path / "several.csv", "text|more,label\nHello\n")
    with pytest.raises(InputError, match="2 columns .text.more, label.\\. Rec"):
        rows_of(several)


@pytest.mark.parametrize(
    "content",
    [
        'text\tlabel\n"two\nlines"\t1\n',
        'text\tlabel\na\t"a\ttab"\n',
        '"text"\t"label"\n"a"\t"1"\n',
    ],
)
def test_quotes_between_tabs(tmp_path, content):
    """Errors say that .tsv files have no quoting if quotes break a table."""
    with pytest.raises(InputError, match="save a table with quotes as .csv"):
        read(write(tmp_path / "x.tsv", content))


def test_long_fields_of_several_files(tmp_path):
    """A long field is read even after another CSV file has been closed."""
    long = "x " * 70_000
    paths = [
        write(tmp_path / f"{i}.csv", comma_separated([*ROWS[:i], long]))
        for i in range(2)
    ]
    first, second = (table_sources.rows_of(str(path)) for path in paths)
    assert next(second).values["text"] == ROWS[0]
    assert [row.values["text"] for row in first] == [long]
    assert [row.values["text"] for row in second] == [long]


@pytest.mark.parametrize(
    "text",
    [
        "{a} is a set.\nanother line\n",
        '{"a": 1} is JSON.\nand this is none\nnor this\n',
        "[1] a footnote\n",
        "{\n\nint x;\n}\n",
        "a line\n" * 30 + '{"text": "b"}\n',
        '"quoted",\n',
    ],
)
def test_text_with_braces(tmp_path, text):
    """Text with braces that is not JSON is read as text."""
    found = [
        line for lines in read(write(tmp_path / "x", text))[0] for line in lines
    ]
    assert found == [line for line in text.split("\n") if line]


@pytest.mark.parametrize("make", [comma_separated, parquet, json_lines])
@pytest.mark.parametrize("block_bytes", [30, 1 << 20])
def test_rows_that_are_lines(tmp_path, monkeypatch, make, block_bytes):
    """With `lines`, rows are read like the lines of a text file."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    rows = [
        "",
        " = Title = \n",
        "a b",
        "c",
        "",
        " ",
        "d e f",
        "g" * 50,
        "",
        "h",
    ]
    path = write(tmp_path / "x.csv", make(rows))
    wanted = [["= Title =", "a b", "c"], ["d e f", "g" * 50], ["h"]]
    assert read(path, input_format="lines")[0] == wanted
    assert len(read(path)[0]) == 6  # each row is a document


@pytest.mark.parametrize(
    "make, bad, locations",
    [
        (parquet, [None], ["row 2: column text must contain text"]),
        (json_lines, [None, 3], ["line 3", "line 4"]),
        (lambda rows: comma_separated(rows) + b"5\r\n", [], ["x.csv:5: every"]),
        (lambda rows: comma_separated(rows) + b'5,"a"b\r\n', [], [":5: "]),
        (lambda rows: comma_separated(rows) + b"5,\xff\r\n", [], [":5: "]),
    ],
)
def test_bad_rows(tmp_path, make, bad, locations):
    """`skip` counts rows without readable text; `fail` names the first one."""
    path = write(tmp_path / "x.csv", make(ROWS + bad))
    if make not in (parquet, json_lines):
        path.write_bytes(path.read_bytes() + b"6,last\r\n")
    with pytest.raises(
        InputError, match=f"{locations[0]}.*skip|skip.*{locations[0]}"
    ):
        read(path)
    found, counts = read(path, on_bad_text="skip")
    assert found[:2] == DOCUMENTS
    assert found[2:] == ([] if make in (parquet, json_lines) else [["last"]])
    assert counts["bad_rows"] + counts["bad_lines"] == max(len(bad), 1)
    assert locations[0] in text_formats.first_bad_item(counts)


def test_a_wrong_field_is_no_bad_row(tmp_path):
    """A wrong `text_field` raises an error, even with `skip`."""
    path = write(tmp_path / "x", json_lines(ROWS, "body"))
    for choice in ("fail", "skip"):
        found = refusal(path, on_bad_text=choice)
        assert "one of the fields id, body." in found
    mixed = write(tmp_path / "x", json_lines(["a"], "body") + json_lines(ROWS))
    assert read(mixed, on_bad_text="skip")[0] == DOCUMENTS


@pytest.mark.parametrize("cut", [5, 60, -9])
def test_damaged_parquet(tmp_path, cut):
    """A damaged Parquet file raises an error or, with `skip`, is skipped."""
    path = write(tmp_path / "x", parquet(ROWS)[:cut])
    with pytest.raises(InputError, match="must not be damaged.*skip.*/x$"):
        read(path)
    assert read(path, on_bad_text="skip")[1]["bad_files"] == 1


@pytest.mark.parametrize("make", [comma_separated, parquet, json_lines])
def test_a_wrong_column_is_found_first(tmp_path, make):
    """In any file, a wrong column raises an error before text is read."""
    good = write(tmp_path / "a.csv", make(ROWS, "body"))
    other = write(tmp_path / "b.csv", make(ROWS, "content"))
    paths, reading = [str(good), str(other)], ReadingConfig(text_field="body")
    text_blocks.check_files(paths[:1], reading)
    with pytest.raises(InputError, match="b.csv.*content.*text_field=body"):
        text_blocks.check_files(paths, reading)


def test_long_names_and_values_are_shortened_in_errors(tmp_path):
    """An error quotes up to 200 characters of names and 60 of a value."""
    name = "n" * 300
    names = f" {'n' * 200}"
    csv = write(tmp_path / "x.csv", f"{name}\n1\n")
    assert f" columns{names}. Received: text_field=text" in refusal(csv)
    objects = json_lines(["a"], name).replace(b'"id": 0, ', b"")
    path = write(tmp_path / "x.jsonl", objects)
    assert f" fields{names}. Received: text_field=text" in refusal(path)
    path = write(tmp_path / "y.jsonl", json_lines(["a"]) + objects)
    with pytest.raises(InputError, match=f" with fields{names} in "):
        read(path)
    path = write(tmp_path / "z.jsonl", f'{{"text": 1}}\n{name}\n')
    first, received = table_sources.rows_of(str(path)), "Received: "
    assert next(first).values == {"text": 1}
    with pytest.raises(InputError, match=f"{received}{'n' * 60}$"):
        next(first)
    with pytest.raises(InputError, match=f"{received}data=int {'1' * 60}$"):
        table_sources.as_source("data", int("1" * 99))
    with pytest.raises(InputError, match=f"{received}data='a,{'n' * 57}$"):
        table_sources.as_sources("data", [f"a,{name}", "b"])
