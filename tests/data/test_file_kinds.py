"""Files of all kinds are recognised by their bytes, then by their name."""

import bz2
import csv
import dataclasses
import gzip
import io
import json
import lzma
import os
import re
import sqlite3
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections import Counter

import h5py
import numpy as np
import pytest

from albert_tf.base.errors import InputError
from albert_tf.base.remote_files import RemoteError
from albert_tf.data import file_kinds, table_sources
from albert_tf.data.builder import text_blocks, text_files
from albert_tf.data.builder.text_files import ReadingConfig

TEXT = "Ein Satz über Öl.\nnoch einer\n\nein Dokument\n"
DOCUMENTS = [["Ein Satz über Öl.", "noch einer"], ["ein Dokument"]]
ROWS = ["Ein Satz über Öl.\nnoch einer", "ein Dokument"]


def zstd(data):
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


PACKERS = {
    "gz": gzip.compress,
    "bz2": lambda data: bz2.compress(data, 1),
    "xz": lambda data: lzma.compress(data, preset=0),
    "lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
    "zst": zstd,
}


def read(path, **settings):
    """Return the documents of a file, and the counts."""
    config, counts, found = ReadingConfig(**settings), Counter(), []
    for block in text_blocks.blocks(str(path), 1, config):
        documents = text_blocks.read_documents(block, config, counts)
        if block.document is not None:
            found[-1].extend(documents.pop(0))
        found += filter(None, documents)
    return found, counts


def write(path, data):
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def refusal(path, **settings):
    with pytest.raises(InputError) as error:
        read(path, **settings)
    assert "--on_bad_text" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("name", ["x", "x.txt", "x.{}", "X.TXT.{}"])
def test_compressed_text(tmp_path, packer, name):
    """It is read by its first bytes, whatever it is called."""
    path = tmp_path / name.format(packer.upper())
    write(path, PACKERS[packer](TEXT.encode()))
    assert read(path)[0] == DOCUMENTS
    write(path, PACKERS[packer](TEXT.encode()) * 2)  # end to end
    assert read(path)[0] == [
        *DOCUMENTS[:1],
        ["ein Dokument", *DOCUMENTS[0]],
    ] + [DOCUMENTS[1]]
    write(path, gzip.compress(PACKERS[packer](TEXT.encode())))
    assert read(path)[0] == DOCUMENTS


def test_a_compressed_name_of_plain_text(tmp_path):
    """Text that a browser has decompressed is text."""
    assert read(write(tmp_path / "x.gz", TEXT))[0] == DOCUMENTS


@pytest.mark.parametrize("packer", ["gz", "bz2", "xz", "zst"])
def test_damaged_files(tmp_path, packer):
    """They are named; `skip` reads up to the damage and counts the file."""
    lines = [f"line {i} of many lines" for i in range(160_000)]
    data = PACKERS[packer]("\n".join(lines).encode())
    path = write(tmp_path / f"x.{packer}", data[: len(data) * 4 // 5])
    for choice in ("fail", "replace"):
        with pytest.raises(InputError, match=f"damaged .{packer} .*skip.*x[.]"):
            read(path, on_bad_text=choice)
    found, counts = read(path, on_bad_text="skip")
    assert counts["bad_files"] == 1
    assert "damaged" in text_files.first_bad_item(counts)
    assert found == [lines[: len(found[0])]] and len(found[0]) > 20_000


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("name", ["x.txt", "x.csv"])
def test_what_comes_before_damage_is_read(tmp_path, monkeypatch, packer, name):
    """`skip` reads it, both lines and rows, also in files of one block."""
    rows = [os.urandom(40).hex() for _ in range(8_000)]
    text = "\n".join(rows).encode()
    data = PACKERS[packer](comma_separated(rows) if name == "x.csv" else text)
    path = write(tmp_path / f"{name}.{packer}", data[: len(data) * 4 // 5])
    for size in (1 << 20, 1 << 16):
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", size)
        documents, counts = read(path, on_bad_text="skip")
        found = [line for document in documents for line in document]
        assert counts["bad_files"] == 1 and len(found) > 4_000
        assert found == rows[: len(found)]


@pytest.mark.parametrize("layout", [None, "lines"])
@pytest.mark.parametrize("fault", ["row", "damage"])
def test_blocks_before_a_fault(tmp_path, monkeypatch, layout, fault):
    """A run that skips the fault has the same, so it can continue."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 200)
    monkeypatch.setattr(file_kinds, "HEAD_BYTES", 100)
    rows = ["" if i % 4 == 3 else f"{i} " + "word " * 13 for i in range(40)]
    for place in range(20, 30):
        lines = comma_separated(rows).splitlines(keepends=True)
        if fault == "row":
            lines.insert(place, b"1,2,3\n")
        data = gzip.compress(b"".join(lines), 0)
        data = data[: place * 60] if fault == "damage" else data
        path = str(write(tmp_path / "x.csv.gz", data))
        found, config = [], ReadingConfig(input_format=layout)
        with pytest.raises(InputError, match="on_bad_text=skip"):
            found.extend(text_blocks.blocks(path, 1, config))
        config = dataclasses.replace(config, on_bad_text="skip")
        wanted = list(text_blocks.blocks(path, 1, config))
        assert 2 < len(found) < len(wanted)
        assert found == wanted[: len(found)]


def zipped(data):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("x.txt", data)
    return content.getvalue()


def tarred(data):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        entry = tarfile.TarInfo("x.txt")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def database():
    """Return a database, most lines of which are UTF-8."""
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(f"{folder}/x.db")
        connection.execute("CREATE TABLE t (text TEXT)")
        connection.execute("INSERT INTO t VALUES (?)", (TEXT * 20,))
        connection.commit()
        connection.close()
        with open(f"{folder}/x.db", "rb") as file:
            return file.read()


def hdf5():
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file["text"] = [TEXT] * 20
    return content.getvalue()


def integers():
    content = io.BytesIO()
    np.save(content, np.arange(999))
    return content.getvalue()


FOREIGN = {
    "UTF-16 by mark": (TEXT.encode("utf-16"), "UTF-16; .*`iconv -f UTF-16"),
    "UTF-16 without": (TEXT.encode("utf-16-be"), "UTF-16; .*`iconv"),
    "UTF-16 reversed": (TEXT.encode("utf-16-le"), "UTF-16; .*`iconv"),
    "UTF-32": (TEXT.encode("utf-32"), "UTF-32; .*`iconv -f UTF-32"),
    "Latin-1": ("Öl\nGänse\nRübe\nMus\n".encode("latin-1"), "3 of 4 lines"),
    "one line": ("Öl".encode("latin-1"), "most lines.*`iconv"),
    "noise": (bytes(range(128, 256)) * 9, "most lines"),
    "SQLite": (database(), "SQLite database.*`sqlite3 -csv"),
    "zip": (zipped(TEXT), "zip archive.*`unzip"),
    "tar": (tarred(TEXT.encode()), "tar archive.*`tar -xf"),
    "7z": (b"7z\xbc\xaf\x27\x1c" + b"\0\4" * 99, "7z archive"),
    "lz4": (b"\x04\x22\x4d\x18" + b"\x80" * 99, "lz4 -d"),
    "HDF5": (hdf5(), "binary format"),
    "NumPy": (integers(), "binary format"),
    "PDF": (b"%PDF-1.7\n", "pdftotext"),
    "JSON array": ('[{"text": "a"},\n {"text": "b"}]\n', "jq -c"),
    "JSON over lines": ('{\n  "text": "a"\n}\n', "jq -c"),
}


@pytest.mark.parametrize("packer", [None, "gz", "xz"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_formats(tmp_path, kind, packer):
    """Errors name them, for any `on_bad_text`, and how to convert them."""
    data, message = FOREIGN[kind]
    data = data.encode() if isinstance(data, str) else data
    path = write(tmp_path / "x", PACKERS[packer](data) if packer else data)
    for choice in ("fail", "replace", "skip"):
        found = refusal(path, on_bad_text=choice)
        assert re.search(message, found), found


def test_text_with_some_zero_bytes(tmp_path):
    """A few of them do not make a text a binary file."""
    rows = ["one\0", "two words", "three more words"]
    assert read(write(tmp_path / "x", "\n".join(rows)))[0] == [rows]


def test_some_lines_that_are_not_utf8(tmp_path):
    """They are an error only if they are most of a file, in any order."""
    bad, good = b"\xc4\xd6\n" * 400, b"good line\n" * 500
    for data in (bad + good, good + bad):
        path = write(tmp_path / "x", data)
        found, counts = read(path, on_bad_text="skip")
        assert found == [["good line"] * 500] and counts["bad_lines"] == 400
    for data in (bad + good + bad, good + bad * 2):
        assert "800 of 1300" in refusal(
            write(tmp_path / "x", data), on_bad_text="replace"
        )


def test_missing_library_for_zstd(tmp_path, monkeypatch):
    """The message names the extra, and a command that works without it."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = write(tmp_path / "x", b"\x28\xb5\x2f\xfd" + b"\0" * 20)
    for choice in ("fail", "skip"):
        found = refusal(path, on_bad_text=choice)
        assert "albert-tf[zstd]" in found and "`zstd -d FILE`" in found
        assert found.endswith(str(path))


def json_lines(rows, field="text"):
    return "".join(
        json.dumps({"id": i, field: row}, ensure_ascii=False) + "\n"
        for i, row in enumerate(rows)
    ).encode()


def comma_separated(rows, field="text"):
    table = io.StringIO(newline="")
    csv.writer(table).writerows([("id", field), *enumerate(rows)])
    return b"\xef\xbb\xbf" + table.getvalue().encode()


def parquet(rows, field="text"):
    pyarrow = pytest.importorskip("pyarrow")
    library, content = pytest.importorskip("pyarrow.parquet"), io.BytesIO()
    library.write_table(pyarrow.table({field: list(rows)}), content)
    return content.getvalue()


def feather(rows, field="text", **columns):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({**columns, field: list(rows)})
    content = io.BytesIO()
    with pyarrow.ipc.new_file(content, table.schema) as file:
        file.write_table(table)
    return content.getvalue()


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
    """Rows are documents, by `text_field`; with small blocks too."""
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


@pytest.mark.parametrize("kind", ["int16", "int64"])
def test_a_table_of_small_numbers(tmp_path, kind):
    """Its text is read, though many of its first bytes are zero."""
    numbers = np.arange(30_000, dtype=kind) % 200
    rows = feather(["a b"] * len(numbers), n=numbers)
    found, _ = read(write(tmp_path / "x", rows))
    assert found == [["a b"]] * len(numbers)


def test_tabs(tmp_path):
    """A TSV is split at tabs and has no quoting."""
    data = 'id\ttext\n1\t"a" b\n2\tc, d\n\n\n'
    path = write(tmp_path / "x.TSV.gz", gzip.compress(data.encode()))
    assert read(path)[0] == [['"a" b'], ["c, d"]]


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
    """The error names the right one, whichever line shows the mistake."""
    with pytest.raises(InputError, match="delimiter must be a comma in .csv"):
        read(write(tmp_path / name, content))
    good = write(tmp_path / "good.csv", "text,label\nHello\n")
    with pytest.raises(InputError) as error:
        read(good)
    assert "must be a comma" not in str(error.value)


def test_long_fields_of_several_files(tmp_path):
    """The end of one CSV file does not limit another that is being read."""
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
    """It stays text."""
    found = [
        line for lines in read(write(tmp_path / "x", text))[0] for line in lines
    ]
    assert found == [line for line in text.split("\n") if line]


@pytest.mark.parametrize("make", [comma_separated, parquet, json_lines])
@pytest.mark.parametrize("block_bytes", [30, 1 << 20])
def test_rows_that_are_lines(tmp_path, monkeypatch, make, block_bytes):
    """With `lines`, a table is read like a text file of the same lines."""
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
    assert len(read(path)[0]) == 6  # without it, documents


@pytest.mark.parametrize(
    "make, bad, places",
    [
        (parquet, [None], ["row 2: column text must hold text"]),
        (json_lines, [None, 3], ["line 3", "line 4"]),
        (lambda rows: comma_separated(rows) + b"5\r\n", [], ["x.csv:5: every"]),
        (lambda rows: comma_separated(rows) + b'5,"a"b\r\n', [], [":5: "]),
        (lambda rows: comma_separated(rows) + b"5,\xff\r\n", [], [":5: "]),
    ],
)
def test_bad_rows(tmp_path, make, bad, places):
    """`skip` counts rows without a text; `fail` names the first."""
    path = write(tmp_path / "x.csv", make(ROWS + bad))
    if make not in (parquet, json_lines):
        path.write_bytes(path.read_bytes() + b"6,last\r\n")
    with pytest.raises(
        InputError, match=f"{places[0]}.*skip|skip.*{places[0]}"
    ):
        read(path)
    found, counts = read(path, on_bad_text="skip")
    assert found[:2] == DOCUMENTS
    assert found[2:] == ([] if make in (parquet, json_lines) else [["last"]])
    assert counts["bad_rows"] + counts["bad_lines"] == max(len(bad), 1)
    assert places[0] in text_files.first_bad_item(counts)


def test_a_pipe_is_read_once(tmp_path):
    """Its first bytes determine its kind, and are not lost."""
    os.mkfifo(tmp_path / "pipe")
    for data in (TEXT.encode(), gzip.compress(json_lines(ROWS))):
        args = (tmp_path / "pipe", data)
        writer = threading.Thread(target=write, args=args)
        writer.start()
        assert read(tmp_path / "pipe")[0] == DOCUMENTS
        writer.join()


@pytest.mark.parametrize("name", ["x.csv", "X.Csv", "x.csv.gz"])
def test_a_copied_pipe_has_its_kind(tmp_path, name):
    """The name of a pipe counts for its copy too."""
    os.mkfifo(tmp_path / name)
    args = (tmp_path / name, comma_separated(ROWS))
    writer = threading.Thread(target=write, args=args)
    writer.start()
    copied = text_blocks.with_pipes_copied(f"{tmp_path / name}", str(tmp_path))
    writer.join()
    assert read(copied)[0] == DOCUMENTS


def test_standard_input(monkeypatch):
    """`-` is standard input, of any kind."""
    packed = io.TextIOWrapper(io.BytesIO(bz2.compress(comma_separated(ROWS))))
    monkeypatch.setattr(sys, "stdin", packed)
    assert text_blocks.input_paths("-", None) == ["-"]
    text = io.TextIOWrapper(io.BytesIO(json_lines(ROWS)))
    monkeypatch.setattr(sys, "stdin", text)
    assert read("-")[0] == DOCUMENTS


def test_empty_files_are_left_out(tmp_path, capsys):
    """A warning counts them and names the first; all empty is an error."""
    for name in "abcd":
        write(tmp_path / name, "text" * (name in "ad"))
    found = text_blocks.input_paths(f"{tmp_path}/*", None)
    assert found == [f"{tmp_path}/{name}" for name in "ad"]
    printed = capsys.readouterr().out
    assert "2 empty files" in printed and f"first {tmp_path}/b" in printed
    with pytest.raises(InputError, match="that are not empty.*/b"):
        text_blocks.input_paths(f"{tmp_path}/b,{tmp_path}/c", None)


def test_a_file_of_two_names_is_read_once(tmp_path, monkeypatch, capsys):
    """Links and other spellings of a path are the same file; copies are not."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", "text")
    write(tmp_path / "copy", "text")
    os.symlink("a", "soft")
    os.link("a", "hard")
    assert text_blocks.input_paths("a,copy", None) == ["a", "copy"]
    assert not capsys.readouterr().out
    for names in ("a,./a", "a,soft", f"a,{tmp_path}/a,hard", "*"):
        found = text_blocks.input_paths(names, None)
        assert len([x for x in found if x != "copy"]) == 1
        assert "read once" in capsys.readouterr().out


@pytest.mark.parametrize("output", ["", "out"])
def test_what_is_made_is_no_text(tmp_path, output):
    """A glob means the same before a build, in the middle and after it."""
    folder = tmp_path / output
    (folder / "scratch-0123456789abcdef-0123456789abcdef").mkdir(parents=True)
    before = [write(tmp_path / name, "text") for name in ("a.txt", "train-x")]
    for name in (
        "train-00000-of-00002.tfrecord",
        "metadata.json",
        "manifest.json",
        "vocab.txt",
        "tokenizer.json",
        "piece_counts.json",
        "scratch-0123456789abcdef-0123456789abcdef/shard-00000",
    ):
        write(folder / name, "made")
    for pattern in ("*", "**", "**/*"):
        found = text_blocks.input_paths(f"{tmp_path}/{pattern}", str(folder))
        assert found == [str(path) for path in before]
    named = text_blocks.input_paths(f"{folder}/vocab.txt", str(folder))
    assert named == [f"{folder}/vocab.txt"]


def test_scratch_is_no_text(tmp_path):
    """The files of a first pass in another folder are left out too."""
    scratch = tmp_path / "fast" / "scratch-0123456789abcdef-0123456789abcdef"
    scratch.mkdir(parents=True)
    write(scratch / "shard-00000", "made")
    text = write(tmp_path / "a.txt", "text")
    made = f"{tmp_path}/out", f"{tmp_path}/fast"
    found = text_blocks.input_paths(f"{tmp_path}/**", *made)
    assert found == [str(text)]


def test_kinds_without_reading_a_pipe(tmp_path):
    """The name of a pipe determines its kind: its bytes come only once."""
    os.mkfifo(tmp_path / "x.parquet")
    assert file_kinds.kind_of(str(tmp_path / "x.parquet")) == "parquet"


def test_a_wrong_field_is_no_bad_row(tmp_path):
    """`skip` would skip everything, so it is an error with any flag."""
    path = write(tmp_path / "x", json_lines(ROWS, "body"))
    for choice in ("fail", "skip"):
        found = refusal(path, on_bad_text=choice)
        assert "one of the fields id, body." in found
    mixed = write(tmp_path / "x", json_lines(["a"], "body") + json_lines(ROWS))
    assert read(mixed, on_bad_text="skip")[0] == DOCUMENTS


@pytest.mark.parametrize("cut", [4, 60, -9])
def test_damaged_parquet(tmp_path, cut):
    """It is named, and skipped like other damaged files."""
    path = write(tmp_path / "x", parquet(ROWS)[:cut])
    with pytest.raises(InputError, match="undamaged.*skip.*/x$"):
        read(path)
    assert read(path, on_bad_text="skip")[1]["bad_files"] == 1


@pytest.mark.parametrize("make", [comma_separated, parquet, json_lines])
def test_a_wrong_column_is_found_first(tmp_path, make):
    """It is raised before any text is read, whichever file has it."""
    good = write(tmp_path / "a.csv", make(ROWS, "body"))
    other = write(tmp_path / "b.csv", make(ROWS, "content"))
    paths, reading = [str(good), str(other)], ReadingConfig(text_field="body")
    text_blocks.check_files(paths[:1], reading)
    with pytest.raises(InputError, match="b.csv.*content.*text_field=body"):
        text_blocks.check_files(paths, reading)


def test_a_folder_and_a_file_in_it(tmp_path, capsys):
    """A file of a saved data set is read once."""
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": ROWS}).save_to_disk(tmp_path / "d")
    names = f"{tmp_path}/d,{tmp_path}/d/data-00000-of-00001.arrow"
    assert len(text_blocks.input_paths(names, None)) == 1


def test_a_broken_connection_is_no_damaged_file(tmp_path, monkeypatch):
    """`skip` skips the faults of a file, not those of its connection."""
    packed = write(tmp_path / "x.gz", gzip.compress(TEXT.encode()))

    def broken(self, size):
        raise RemoteError("connection lost")

    monkeypatch.setattr(gzip.GzipFile, "read1", broken)
    with pytest.raises(RemoteError, match="connection lost"):
        read(packed, on_bad_text="skip")
