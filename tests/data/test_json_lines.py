"""JSON lines are read as documents; bad lines are located."""

import dataclasses
import gzip
import json

import pytest
from tiny_files import read, read_blocks, write

from albert_tf.base.errors import InputError
from albert_tf.data.builder import text_blocks, text_formats
from albert_tf.data.builder.text_formats import FORMATS

RECORDS = [
    ({"text": "one line", "id": 1}, ["one line"]),
    ({"id": 2, "text": " two \n\n lines\r\n"}, ["two", "lines"]),
    ({"text": "\n \n"}, None),
    (
        {"text": "naïve \U0001f600 文", "more": {"text": 3}},
        ["naïve \U0001f600 文"],
    ),
    ({"text": "x " * 60}, [("x " * 60).strip()]),
]


@pytest.mark.parametrize("block_bytes", [30, 200, 1 << 20])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_json_lines(tmp_path, monkeypatch, block_bytes, pack):
    """Each JSON object is a document, for any block size."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    lines = [
        json.dumps(record, ensure_ascii=i % 2 == 0)
        for i, (record, _) in enumerate(RECORDS * 3)
    ]
    expected = [document for _, document in RECORDS * 3 if document]
    for content in ("\n".join(lines), "\n \n".join(lines) + "\n"):
        path = write(tmp_path / "x.jsonl", pack(content.encode()))
        found, blocks, _ = read_blocks(path, input_format="jsonl")
        assert found == expected
        assert all(block.document is None for block in blocks)
        assert len(blocks) > 3 or block_bytes > 30


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"text": "a"', "JSON object on every line.*delimiter"),
        ("plain text", "JSON object on every line"),
        ('["text"]', "`text_field`.*text_field=text, with no object"),
        ('{"body": "a", "id": 1}', "`text_field`.*with fields body, id"),
        ('{"text": null}', "`text_field`.*with text=null"),
        ("{}", "`text_field`.*with fields none"),
        ("[" * 100_000, "JSON object on every line.*too many levels"),
    ],
)
@pytest.mark.parametrize("block_bytes", [20, 1 << 20])
def test_bad_json_is_located(tmp_path, monkeypatch, line, message, block_bytes):
    """For any block size, the error for a bad object names file and line."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    good = '{"text": "a b c"}\n\n{"text": "d"}\n'
    path = write(tmp_path / "x.jsonl", good + line + "\n" + good)
    with pytest.raises(InputError, match=f"{message}.*x.jsonl, line 4$"):
        read(path, input_format="jsonl")


@pytest.mark.parametrize(
    "line, first",
    [
        (b'{"text": null}', "with text=null in"),
        (b'{"body": "a"}', "with fields body in"),
        (b'{"text": 3.5}', "with text=3.5 in"),
        (b'{"text": "cut o', "JSON object on every line"),
        (b'["text"]', "no object in"),
    ],
)
@pytest.mark.parametrize("block_bytes", [20, 1 << 20])
def test_records_without_a_text(
    tmp_path, monkeypatch, line, first, block_bytes
):
    """`skip` counts objects without text, and `fail` names the first one.

    A line that is not UTF-8 is counted separately, and is named if it precedes
    these objects.
    """
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    good = b'{"text": "a b c"}\n'
    content = good * 3 + line + b"\n" + good * 2 + line + b"\n" + good
    path = write(tmp_path / "x.jsonl", content)
    found, counts = read(path, on_bad_text="skip")
    assert found == [["a b c"]] * 6
    assert (counts["bad_rows"], counts["bad_lines"]) == (2, 0)
    error = text_formats.first_bad_item(counts)
    assert first in error and error.endswith("x.jsonl, line 4")
    for choice in "fail", "replace":  # only bytes can be replaced
        with pytest.raises(InputError, match="--on_bad_text=skip.*, line 4$"):
            read(path, on_bad_text=choice)
    path = write(tmp_path / "y.jsonl", b'{"text": "\xff"}\n' + content)
    found, counts = read(path, on_bad_text="skip")
    assert (counts["bad_rows"], counts["bad_lines"]) == (2, 1)
    assert "line 1, byte 10 of" in text_formats.first_bad_item(counts)


def test_half_of_a_pair_is_replaced(tmp_path):
    r"""A lone `\ud800`, which JSON allows, becomes U+FFFD."""
    path = write(tmp_path / "x", r'{"text": "a \ud800 b \ud83d\ude00"}')
    found, _ = read(path, input_format="jsonl")
    assert found == [["a \ufffd b \U0001f600"]]
    assert text_formats.encoded("a\ud800é") == "a\ufffdé".encode()
    line = text_formats.json_record("x", "a\ud800é")
    assert line == '{"x": "a\ufffdé"}\n'.encode()


@pytest.mark.parametrize("layout", FORMATS)
def test_an_overlong_line_is_named(layout, tmp_path, monkeypatch):
    """If a format needs whole lines, an overlong line raises an error.

    The error names the format and the line.
    """
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 16)
    short = dataclasses.replace(FORMATS[layout], longest_line=20)
    monkeypatch.setitem(text_formats.FORMATS, layout, short)
    path = write(tmp_path / "x", f"short\n{'a' * 30}\n")
    rule = f"`input_format={layout}`, a line must have at most 20 bytes"
    with pytest.raises(InputError, match=f"{rule}.*x, line [12]"):
        read(path, input_format=layout)


def test_longest_json(tmp_path, monkeypatch):
    """An error names the line of an overlong object; `skip` omits it."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 16)
    short = dataclasses.replace(FORMATS["jsonl"], longest_line=100)
    monkeypatch.setitem(text_formats.FORMATS, "jsonl", short)
    line = '{"text": "' + "a" * 70 + '"}\n'
    path = write(tmp_path / "x", line * 3)
    assert len(read(path, input_format="jsonl")[0]) == 3
    for times in (2, 9):
        content = line + line.replace("a", "a" * times) + line * 2
        path = write(tmp_path / "y", content)
        with pytest.raises(InputError, match="at most 100 bytes.*y, line 2"):
            read(path, input_format="jsonl")
        found, blocks, counts = read_blocks(
            path, input_format="jsonl", on_bad_text="skip"
        )
        assert found == [["a" * 70]] * 3 and counts["bad_rows"] == 1
        last = blocks[-1]
        assert last.first_line == 5 - last.data.count(b"\n")
        assert last.offset + len(last.data) == len(content)
