"""Formats of text files: documents, blocks, records of JSON, long lines."""

import gzip
import json
from collections import Counter

import pytest

from albert_tf.base.errors import InputError
from albert_tf.data.builder import text_blocks, text_files
from albert_tf.data.builder.text_files import FORMATS, ReadingConfig


def write(path, content):
    """Write text or bytes, packed if the name says so; return the path."""
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def read(path, **settings):
    """Return the lines of every document of a file, and its blocks."""
    config, counts, found = ReadingConfig(**settings), Counter(), []
    blocks = list(text_blocks.blocks(path, 0, config))
    for block in blocks:
        documents = text_blocks.read_documents(block, config, counts)
        if block.document is not None:
            found[-1].extend(documents.pop(0))
        found += [lines for lines in documents if lines]
    return found, blocks


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
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_json_lines(tmp_path, monkeypatch, block_bytes, name):
    """Each object is a document, its text as json reads it, blocks aside."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    lines = [
        json.dumps(record, ensure_ascii=i % 2 == 0)
        for i, (record, _) in enumerate(RECORDS * 3)
    ]
    expected = [document for _, document in RECORDS * 3 if document]
    for content in ("\n".join(lines), "\n \n".join(lines) + "\n"):
        path = write(tmp_path / name, content)
        found, blocks = read(path, input_format="jsonl")
        assert found == expected
        assert all(block.document is None for block in blocks)
        assert len(blocks) > 3 or block_bytes > 30


def test_field_of_json(tmp_path):
    """Another field can be named."""
    path = write(tmp_path / "x", '{"body": "a", "text": "b"}')
    found, _ = read(path, input_format="jsonl", text_field="body")
    assert found == [["a"]]


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"text": "a"', "JSON object on every line.*delimiter"),
        ("plain text", "JSON object on every line"),
        ('["text"]', "`text_field`.*text_field=text, with fields no object"),
        ('{"body": "a", "id": 1}', "`text_field`.*with fields body, id"),
        ('{"text": null}', "`text_field`.*with fields text"),
        ("{}", "`text_field`.*with fields none"),
        ("[" * 100_000, "JSON object on every line.*too deep"),
    ],
)
@pytest.mark.parametrize("block_bytes", [20, 1 << 20])
def test_bad_json_is_located(tmp_path, monkeypatch, line, message, block_bytes):
    """The file and the line of a bad object are named, whatever the blocks."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    good = '{"text": "a b c"}\n\n{"text": "d"}\n'
    path = write(tmp_path / "x.jsonl", good + line + "\n" + good)
    with pytest.raises(InputError, match=f"{message}.*x.jsonl, line 4$"):
        read(path, input_format="jsonl")


def test_skipped_lines_count_for_the_place(tmp_path):
    """A line left out for bad bytes still counts in a later error."""
    content = b'{"text": "a"}\n{"text": "\xff"}\n{}\n'
    path = write(tmp_path / "x.jsonl", content)
    with pytest.raises(InputError, match="x.jsonl, line 3$"):
        read(path, input_format="jsonl", on_bad_text="skip")


def test_half_of_a_pair_is_replaced(tmp_path):
    r"""A lone \\ud800, which JSON allows, becomes U+FFFD."""
    path = write(tmp_path / "x", r'{"text": "a \ud800 b \ud83d\ude00"}')
    found, _ = read(path, input_format="jsonl")
    assert found == [["a \ufffd b \U0001f600"]]


def test_longest_json(tmp_path, monkeypatch):
    """An object over the limit is an error that names its line."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 16)
    short = FORMATS["jsonl"].__class__(
        FORMATS["jsonl"].cut, FORMATS["jsonl"].parse, 100
    )
    monkeypatch.setitem(text_files.FORMATS, "jsonl", short)
    line = '{"text": "' + "a" * 70 + '"}\n'
    path = write(tmp_path / "x", line * 3)
    assert len(read(path, input_format="jsonl")[0]) == 3
    path = write(tmp_path / "y", line + line.replace("a", "aaa") + line)
    with pytest.raises(InputError, match="at most 100 bytes.*y, line 2"):
        read(path, input_format="jsonl")


@pytest.mark.parametrize("block_bytes", [50, 1 << 20])
def test_one_document_per_file(tmp_path, monkeypatch, block_bytes):
    """Blank lines part nothing; a file cut into blocks is one document."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    lines = [f"line {i}" for i in range(40)]
    path = write(tmp_path / "x.txt", "\ufeff\n" + "\n\n \n".join(lines))
    found, blocks = read(path, input_format="files")
    assert found == [lines]
    assert [block.piece for block in blocks] == list(range(len(blocks)))
    assert len({block.document for block in blocks[1:]}) <= 1
    assert (len(blocks) > 3) == (block_bytes == 50)


@pytest.mark.parametrize("text_of", ["word ", "字"])
@pytest.mark.parametrize("before", ["before", "a document\n\nbefore"])
def test_long_line(tmp_path, text_of, before):
    """A line of 10 MB is read in pieces: bounded, whole, between words."""
    size = 10_000_000 // len(text_of.encode())
    line = text_of * size
    path = write(tmp_path / "x.txt", f"{before}\n{line}\nafter\n\nlast\n")
    found, blocks = read(path)
    *others, found, last = found
    assert last == ["last"] and len(others) == before.count("\n\n")
    assert (found[0], found[-1]) == ("before", "after")
    assert max(len(block.data) for block in blocks) <= 6 << 20
    pieces = found[1:-1]
    assert len(pieces) > 1
    joined = " ".join(pieces) if " " in text_of else "".join(pieces)
    assert joined == line.strip()
    assert blocks[-1].first_line + blocks[-1].data.count(b"\n") == (
        6 + before.count("\n")
    )


def test_a_long_line_that_fits_stays_whole(tmp_path):
    """A line of 4 MB is one sentence."""
    line = "word " * 800_000
    path = write(tmp_path / "x.txt", f"{line}\nafter\n")
    assert read(path)[0] == [[line.strip(), "after"]]


def test_sentences_are_split():
    """A paragraph becomes its sentences, by the language's abbreviations."""
    pytest.importorskip("sentencex")
    paragraphs = ["Dr. Ann came at 5 p.m. to see it. Was it big?  Yes!", "No."]
    found = list(text_files.split_sentences(paragraphs, "en"))
    assert found == [
        "Dr. Ann came at 5 p.m. to see it.",
        "Was it big?",
        "Yes!",
        "No.",
    ]
    assert list(text_files.split_sentences(paragraphs, None)) == paragraphs


def test_missing_splitter_is_named(monkeypatch):
    """Without the library the error says what to install."""
    monkeypatch.setattr(
        text_files.importlib.util, "find_spec", lambda name: None
    )
    with pytest.raises(InputError, match="albert-tf.sentences.*=en"):
        ReadingConfig(split_sentences="en")
