"""The first bytes of a file, then its name, determine its format."""

import bz2
import codecs
import dataclasses
import gzip
import io
import os
import pickle
import re
import sqlite3
import sys
import tarfile
import tempfile
import threading
import zipfile

import h5py
import numpy as np
import pytest
from tiny_files import (
    DOCUMENTS,
    PACKERS,
    ROWS,
    TEXT,
    comma_separated,
    json_lines,
    read,
    refusal,
    write,
)

from albert_tf.base.errors import InputError
from albert_tf.base.remote_files import RemoteError
from albert_tf.data import file_kinds
from albert_tf.data.builder import text_blocks, text_formats
from albert_tf.data.builder.text_formats import ReadingConfig


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("name", ["x", "x.txt", "x.{}", "X.TXT.{}"])
def test_compressed_text(tmp_path, packer, name):
    """Compressed text is recognized by its first bytes, under any name."""
    path = tmp_path / name.format(packer.upper())
    write(path, PACKERS[packer](TEXT.encode()))
    assert read(path)[0] == DOCUMENTS
    write(path, PACKERS[packer](TEXT.encode()) * 2)  # concatenated
    assert read(path)[0] == [
        *DOCUMENTS[:1],
        ["ein Dokument", *DOCUMENTS[0]],
    ] + [DOCUMENTS[1]]
    write(path, gzip.compress(PACKERS[packer](TEXT.encode())))
    assert read(path)[0] == DOCUMENTS


def test_a_compressed_name_of_plain_text(tmp_path):
    """Plain text is read even if the file's name suggests compression."""
    assert read(write(tmp_path / "x.gz", TEXT))[0] == DOCUMENTS
    # A character spans the end of the bytes that are read first.
    line = "a" + "é" * file_kinds.HEAD_BYTES
    assert read(write(tmp_path / "x.gz", line))[0] == [[line]]


@pytest.mark.parametrize("packer", ["gz", "bz2", "xz", "zst"])
def test_damaged_files(tmp_path, packer):
    """An error names a damaged file; `skip` reads text before the damage."""
    lines = [f"line {i} of many lines" for i in range(60_000)]
    data = PACKERS[packer]("\n".join(lines).encode())
    path = write(tmp_path / f"x.{packer}", data[: len(data) * 4 // 5])
    for choice in ("fail", "replace"):
        with pytest.raises(InputError, match=f"damaged .{packer} .*skip.*x[.]"):
            read(path, on_bad_text=choice)
    found, counts = read(path, on_bad_text="skip")
    assert counts["bad_files"] == 1
    assert "damaged" in text_formats.first_bad_item(counts)
    assert found == [lines[: len(found[0])]] and len(found[0]) > 20_000
    write(path, data[:10] + b"\xff" * 500 + data[510:])
    with pytest.raises(InputError, match=f"damaged .{packer} .*skip.*x[.]"):
        read(path)


@pytest.mark.parametrize("mark", [0x50, 0x5F])
def test_frames_that_zstd_skips(tmp_path, mark):
    """A file may begin with a skippable Zstandard frame."""
    data = PACKERS["zst"](TEXT.encode())
    frame = bytes([mark]) + b"*M\x18\3\0\0\0abc"
    assert read(write(tmp_path / "x", frame + data))[0] == DOCUMENTS


@pytest.mark.slow_after(len(PACKERS) + 2)
@pytest.mark.parametrize(
    "packer, number", [("gz", 500), *((packer, 8_000) for packer in PACKERS)]
)
@pytest.mark.parametrize("name", ["x.txt", "x.csv"])
def test_what_comes_before_damage_is_read(
    tmp_path, monkeypatch, packer, number, name
):
    """`skip` reads all text before the damage, even in a file of one block.

    In a small file, the damage is among the bytes that are read first.
    """
    rows = [os.urandom(40).hex() for _ in range(number)]
    text = "\n".join(rows).encode()
    data = PACKERS[packer](comma_separated(rows) if name == "x.csv" else text)
    path = write(tmp_path / f"{name}.{packer}", data[: len(data) * 4 // 5])
    for size in (1 << 20, 1 << 16):
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", size)
        documents, counts = read(path, on_bad_text="skip")
        found = [line for document in documents for line in document]
        assert counts["bad_files"] == 1 and len(found) > number // 2
        assert found == rows[: len(found)]
    if number == 500:
        with pytest.raises(InputError, match="damaged .gz file .*skip"):
            text_blocks.check_files([str(path)], ReadingConfig())


@pytest.mark.parametrize("end", [b"\n", b"\r"])
def test_carriage_returns_before_damage_are_read(tmp_path, end):
    """Text up to damage is read, even if it ends with a carriage return."""
    path = tmp_path / "text.gz"
    packed = gzip.compress(b"a" + end * 2, 0)
    path.write_bytes(packed[:-9])  # without the last byte and the checksum
    with file_kinds.opened(str(path)) as source:
        found, damage = file_kinds.until_damage(source.file, 9)
    assert found == b"a\n" and damage


@pytest.mark.parametrize("layout", [None, "lines"])
@pytest.mark.parametrize("fault", ["row", "damage"])
def test_blocks_before_a_fault(tmp_path, monkeypatch, layout, fault):
    """The blocks before a fault are the same whether or not it is skipped."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 200)
    monkeypatch.setattr(file_kinds, "HEAD_BYTES", 100)
    rows = ["" if i % 4 == 3 else f"{i} " + "word " * 13 for i in range(40)]
    for number in range(20, 30):
        lines = comma_separated(rows).splitlines(keepends=True)
        if fault == "row":
            lines.insert(number, b"1,2,3\n")
        data = gzip.compress(b"".join(lines), 0)
        data = data[: number * 60] if fault == "damage" else data
        path = str(write(tmp_path / "x.csv.gz", data))
        found, config = [], ReadingConfig(input_format=layout)
        with pytest.raises(InputError, match="on_bad_text=skip"):
            found.extend(text_blocks.blocks(path, 1, config))
        config = dataclasses.replace(config, on_bad_text="skip")
        wanted = list(text_blocks.blocks(path, 1, config))
        assert 2 < len(found) < len(wanted)
        assert found == wanted[: len(found)]


def zipped(data, name="x.txt"):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(name, data)
    return content.getvalue()


def tarred(data, form=tarfile.PAX_FORMAT):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=form) as archive:
        entry = tarfile.TarInfo("x.txt")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def database():
    """Return the bytes of a SQLite database in which most lines are UTF-8."""
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
    "Word": (
        zipped(TEXT, "[Content_Types].xml"),
        "office document; save .* as text. R",
    ),
    "OpenDocument": (
        b"PK\3\4" + b"\n" * 26 + b"mimetypeapplication/vnd.oasis.text",
        "office document; save .* as text. R",
    ),
    "old Excel": (
        bytes.fromhex("d0cf11e0a1b11ae1") + bytes(504),
        "office document; save .* as text. R",
    ),
    "pickle": (pickle.dumps([TEXT]), "binary format"),
    "old pickle": (pickle.dumps([TEXT], protocol=2), "binary format"),
    "tar": (tarred(TEXT.encode()), "tar archive.*`tar -xf"),
    "GNU tar": (tarred(TEXT.encode(), tarfile.GNU_FORMAT), "a tar archive"),
    "UTF-16-BE": (codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), "is UTF-16;"),
    "UTF-32-BE": (codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be"), "is UTF-32;"),
    "rar": (b"Rar!\x1a\x07\1\0" + b"a" * 99, "rar archive.*`unrar x"),
    "lzip": (b"LZIP\1" + b"a" * 99, "compressed by lzip.*`lzip -d"),
    "compress": (b"\x1f\x9d\x90" + b"a" * 99, "by compress; .*`gzip -dc"),
    "RTF": (b"{\\rtf1 a}", "RTF document.*`unrtf"),
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
    """The error for a foreign format names it and explains the conversion.

    `on_bad_text` has no effect on this error.
    """
    data, message = FOREIGN[kind]
    data = data.encode() if isinstance(data, str) else data
    path = write(tmp_path / "x", PACKERS[packer](data) if packer else data)
    for choice in ("fail", "replace", "skip"):
        found = refusal(path, on_bad_text=choice)
        assert re.search(message, found), found


def test_a_tenth_of_the_bytes_may_be_zero():
    """A file is binary if more than a tenth of its bytes are zero."""
    file_kinds._require_native(b"\0" + b"a" * 9, "x")
    file_kinds._require_native(b"", "x")
    with pytest.raises(InputError, match="a binary format"):
        file_kinds._require_native(b"a\0\0" + b"a" * 16, "x")


def test_part_of_a_character_is_utf8_where_data_are_cut():
    """Only data that were cut may end inside a UTF-8 character."""
    cut = "é".encode()[:1]
    assert file_kinds.is_utf8(cut, False) and not file_kinds.is_utf8(cut)
    assert not file_kinds.is_utf8(b"\xff", False)


def test_first_lines():
    """`_first_lines` returns at most 20 lines, and no blank or partial ones."""
    first = file_kinds._first_lines
    assert first(b"a\nb") == [b"a", b"b"]
    full = b"\xef\xbb\xbfa \n \n\n".ljust(file_kinds.HEAD_BYTES, b"b")
    assert first(full) == [b"a"]
    for number in (19, 20, 21, 50):
        lines = [b"a"] * number
        assert first(b"\n".join(lines)) == lines[:20]


def test_fields_of_the_first_objects():
    """Each field of the first JSON objects in a file is listed once.

    If the file is longer than the bytes that are read first, the last object
    may be partial and is ignored.
    """
    head = b'{"b": 1}\n{"a": 1, "b": 2}\n\n{"c": 3}'
    assert file_kinds.Source(None, "jsonl", head).fields() == ["b", "a", "c"]
    full = head.ljust(file_kinds.HEAD_BYTES)
    assert file_kinds.Source(None, "jsonl", full).fields() == ["b", "a"]
    assert file_kinds.Source(None, "jsonl", full[:-1]).fields()[2:] == ["c"]


@pytest.mark.parametrize(
    "head, kind",
    [
        (b'{"a": 1}\nb', "jsonl"),
        (b'{"a": 1}\nb\nc', None),
        (b'{"a": 1}', "jsonl"),
        (b'{"a": b', "jsonl"),
        (b'{"a": b\nc', None),
        (b'{"a": [\n1]}', "json"),
        (b'{"a": 1,\n"b": 2}', "json"),
        (b"{\n}", "json"),
        (b'{"a": 1}\n{\n}\n{\n', None),
        (b'[{"a": 1}]', "json"),
        (b"b", None),
    ],
)
def test_kinds_of_json(head, kind):
    """A file is JSON lines if at least half of its first lines are objects.

    A file whose only line begins an object is also JSON lines. Other JSON is an
    array, or an object over several lines.
    """
    assert file_kinds._json_kind(head) == kind


def test_text_in_another_encoding(tmp_path):
    """For another encoding, the error has a command with a placeholder."""
    path = str(write(tmp_path / "x", "سيارة\n".encode("cp1256")))
    with pytest.raises(InputError, match="The data file.*iconv -f ENCODING"):
        file_kinds.read_text(path, "The data file")
    assert "iconv -f ENCODING" in refusal(path)


def test_missing_library_for_zstd(tmp_path, monkeypatch):
    """Without zstandard, the error states two ways to read the file.

    One is the extra that installs the library, and the other is the command
    `zstd -d`.
    """
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = write(tmp_path / "x", b"\x28\xb5\x2f\xfd" + b"\0" * 20)
    for choice in ("fail", "skip"):
        found = refusal(path, on_bad_text=choice)
        assert "albert-tf[zstd]" in found and "`zstd -d FILE`" in found
        assert found.endswith(str(path))


def test_a_pipe_is_read_once(tmp_path):
    """The first bytes of a pipe determine its format and are not lost."""
    os.mkfifo(tmp_path / "pipe")
    for data in (TEXT.encode(), gzip.compress(json_lines(ROWS))):
        args = (tmp_path / "pipe", data)
        writer = threading.Thread(target=write, args=args)
        writer.start()
        assert read(tmp_path / "pipe")[0] == DOCUMENTS
        writer.join()


@pytest.mark.parametrize("name", ["x.csv", "X.Csv", "x.csv.gz"])
def test_a_copied_pipe_has_its_kind(tmp_path, name):
    """The copy of a pipe has the format that the name of the pipe implies."""
    os.mkfifo(tmp_path / name)
    args = (tmp_path / name, comma_separated(ROWS))
    writer = threading.Thread(target=write, args=args)
    writer.start()
    copied = text_blocks.with_pipes_copied(f"{tmp_path / name}", str(tmp_path))
    writer.join()
    assert read(copied)[0] == DOCUMENTS


def test_standard_input(monkeypatch):
    """The path `-` denotes standard input, in any format."""
    packed = io.TextIOWrapper(io.BytesIO(bz2.compress(comma_separated(ROWS))))
    monkeypatch.setattr(sys, "stdin", packed)
    assert text_blocks.input_paths("-", None) == ["-"]
    text = io.TextIOWrapper(io.BytesIO(json_lines(ROWS)))
    monkeypatch.setattr(sys, "stdin", text)
    assert read("-")[0] == DOCUMENTS


def test_an_error_names_an_empty_pipe(monkeypatch, tmp_path):
    """The error for an empty pipe names the pipe, not its copy."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(InputError, match="not empty. Received: file=-$"):
        text_blocks.with_pipes_copied("-", str(tmp_path))
    (tmp_path / "a").write_text("text")
    paths = text_blocks.with_pipes_copied(f"-,{tmp_path}/a", str(tmp_path))
    assert text_blocks.input_paths(paths, None) == [f"{tmp_path}/a"]


def test_empty_files_are_left_out(tmp_path, capsys):
    """Empty files cause a warning, or an error if there are no other files."""
    for name in "abcd":
        write(tmp_path / name, "text" * (name in "ad"))
    found = text_blocks.input_paths(f"{tmp_path}/*", None)
    assert found == [f"{tmp_path}/{name}" for name in "ad"]
    printed = capsys.readouterr().out
    assert "2 empty files" in printed and f"first {tmp_path}/b" in printed
    text_blocks.input_paths(f"{tmp_path}/[ab]", None)
    assert "skipped 1 empty file, first" in capsys.readouterr().out
    with pytest.raises(InputError, match="that are not empty.*/b"):
        text_blocks.input_paths(f"{tmp_path}/b,{tmp_path}/c", None)


def test_a_file_of_two_names_is_read_once(tmp_path, monkeypatch, capsys):
    """Links and other spellings of a path are one file; copies are separate."""
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
    """A glob skips the files that a build makes; a literal path does not."""
    folder = tmp_path / output
    for name in ("scratch-0123456789abcdef", "input"):
        (folder / f"{name}-0123456789abcdef").mkdir(parents=True)
    before = [write(tmp_path / name, "text") for name in ("a.txt", "train-x")]
    for name in (
        "train-00000-of-00002.tfrecord",
        "metadata.json",
        "manifest.json",
        "vocab.txt",
        "tokenizer.json",
        "piece_counts.json",
        "scratch-0123456789abcdef-0123456789abcdef/shard-00000",
        "input-0123456789abcdef/table.jsonl",
    ):
        write(folder / name, "made")
    for pattern in ("*", "**", "**/*"):
        found = text_blocks.input_paths(f"{tmp_path}/{pattern}", str(folder))
        assert found == [str(path) for path in before]
    named = text_blocks.input_paths(f"{folder}/vocab.txt", str(folder))
    assert named == [f"{folder}/vocab.txt"]


def test_scratch_is_no_text(tmp_path):
    """A glob also skips a scratch folder outside the output folder."""
    scratch = tmp_path / "fast" / "scratch-0123456789abcdef-0123456789abcdef"
    scratch.mkdir(parents=True)
    write(scratch / "shard-00000", "made")
    text = write(tmp_path / "a.txt", "text")
    made = f"{tmp_path}/out", f"{tmp_path}/fast"
    found = text_blocks.input_paths(f"{tmp_path}/**", *made)
    assert found == [str(text)]


def test_kinds_without_reading_a_pipe(tmp_path):
    """A pipe's name determines its format before any byte is read."""
    os.mkfifo(tmp_path / "x.parquet")
    assert file_kinds.kind_of(str(tmp_path / "x.parquet")) == "parquet"


def test_a_folder_and_a_file_in_it(tmp_path, capsys):
    """A file is read once if its folder, a saved data set, is also listed."""
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": ROWS}).save_to_disk(tmp_path / "d")
    names = f"{tmp_path}/d,{tmp_path}/d/data-00000-of-00001.arrow"
    assert len(text_blocks.input_paths(names, None)) == 1


def test_a_broken_connection_is_no_damaged_file(tmp_path, monkeypatch):
    """`skip` tolerates damaged files, but a broken connection is an error."""
    packed = write(tmp_path / "x.gz", gzip.compress(TEXT.encode()))

    def broken(self, size):
        raise RemoteError("connection lost")

    monkeypatch.setattr(gzip.GzipFile, "read1", broken)
    with pytest.raises(RemoteError, match="connection lost"):
        read(packed, on_bad_text="skip")
