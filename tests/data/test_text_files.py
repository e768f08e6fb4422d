"""Text files are divided into blocks and documents; faults are located."""

import dataclasses
import gzip
import hashlib
import itertools
import json
from collections import Counter

import pytest

from albert_tf import create_pretraining_data
from albert_tf.base.errors import InputError
from albert_tf.data import file_kinds
from albert_tf.data.builder import text_blocks, text_formats
from albert_tf.data.builder.text_formats import FORMATS, Block, ReadingConfig
from albert_tf.data.file_kinds import Source

SEED = 5


def write(path, content):
    """Write text or bytes, compressed as the name implies; return the path."""
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def read(path, **settings):
    """Return a file's documents (lists of lines), blocks and counts."""
    config, counts, found = ReadingConfig(**settings), Counter(), []
    blocks, begun = list(text_blocks.blocks(path, SEED, config)), []
    for block in blocks:
        documents = text_blocks.read_documents(block, config, counts)
        if block.document is not None:
            assert block.document == text_blocks.document_hash(begun, SEED)
            found[-1].extend(documents.pop(0))
        for lines in filter(None, documents):
            begun = list(lines)
            found.append(lines)
    return found, blocks, counts


def test_documents(tmp_path):
    """Blank lines separate documents, even with CRLF, a BOM or tabs."""
    content = "\ufeff\r\n a b \nc\r\n\r\n\n \t\n\u00a0\nd\n\u3000\ne"
    path = write(tmp_path / "x.txt", content)
    assert read(path)[0] == [["a b", "c"], ["d"], ["e"]]


@pytest.mark.parametrize("blank", ["", "\u00a0"])
@pytest.mark.parametrize("block_bytes", [16, 64, 300, 1000, 1 << 20])
def test_blocks_change_nothing(tmp_path, monkeypatch, block_bytes, blank):
    """Documents do not depend on how the file is divided into blocks."""
    documents = [
        [f"line {i} of {d}" + " x" * (i * d % 15) for i in range(n)]
        for d, n in enumerate([1, 3, 60, 1, 1, 15, 2, 40])
    ]
    joined = f"\n{blank}\n".join("\n".join(lines) for lines in documents)
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    for ending in ("", "\n", "\n\n", "\n \n\n"):
        path = write(tmp_path / "x.txt", joined + ending)
        found, blocks, _ = read(path)
        assert found == documents
        whole = b"".join(block.data for block in blocks)
        assert whole == (joined + ending).encode()
    if block_bytes == 64:
        assert max(b.piece for b in blocks) > 3
        assert [b.offset for b in blocks][1] == len(blocks[0].data)


@pytest.mark.parametrize(
    "ends", [["\r"], ["\r\n"], ["\r\r\n"], ["\r\n", "\n", "\r"]]
)
@pytest.mark.parametrize("block_bytes", [7, 16, 64, 1 << 20])
def test_line_ends_change_nothing(tmp_path, monkeypatch, block_bytes, ends):
    """Documents do not depend on how lines end, even if ends are mixed.

    In JSON and tables, line ends inside a text separate its lines.
    """
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    lines = "a b|c||d e f|g||h".split("|")
    found = [["a b", "c"], ["d e f", "g"], ["h"]]
    kinds = itertools.cycle(ends)
    text = "".join(f"{line}{next(kinds)}" for line in lines)
    assert read(write(tmp_path / "x.txt", text))[0] == found
    documents = [ends[0].join(lines) for lines in found]
    rows = [json.dumps({"text": text}) for text in documents]
    text = "".join(f"{row}{next(kinds)}" for row in rows)
    assert read(write(tmp_path / "x.jsonl", text))[0] == found
    if ends != ["\r"]:  # which also ends lines outside of quotes
        table = "text" + "".join(f'\n"{text}"' for text in documents)
        path = write(tmp_path / "x.csv", table)
        assert read(path)[0] == found
        assert read(path, input_format="lines")[0] == [sum(found, [])]


@pytest.mark.parametrize("name", ["x.txt", "x.csv"])
@pytest.mark.parametrize("size", [65_534, 65_535, 65_536, 70_000])
def test_a_long_first_line_may_end_with_crlf(tmp_path, size, name):
    """The bytes that are read first may end inside a CRLF or the first line."""
    first = "text," + "a" * (size - 5)
    path = write(tmp_path / name, f"{first}\r\nb,c\r\n\r\nd,e\r\n")
    if name == "x.txt":
        assert read(path)[0] == [[first, "b,c"], ["d,e"]]
        return
    with file_kinds.opened(path) as source:
        assert source.file.read().count(b"\r\n") == 4


def test_many_carriage_returns_are_read_in_linear_time():
    """A run of carriage returns is replaced in one step."""
    run = "\r" * 10**6
    assert file_kinds.with_line_feeds(run) == "\n" * 10**6
    assert file_kinds.with_line_feeds(f"{run}\n") == f"{run}\n"
    both = file_kinds.with_line_feeds(b"a\rb\r\r\nc\r\r")
    assert both == b"a\nb\r\r\nc\n\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("block_bytes", [150, 300, 1 << 20])
def test_articles_of_wikiextractor(tmp_path, monkeypatch, block_bytes, end):
    """Each <doc> is a document; blank lines and the tags are left out."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    documents = [
        [f"Title {d}", *(f"line {i} of {d}" for i in range(n))]
        for d, n in enumerate([1, 3, 60, 1, 1, 15, 2])
    ]
    documents[1][2] = 'a line about <doc id="1" url="x"> and </doc>'
    lines = []
    for number, document in enumerate(documents):
        url = f"https://en.wikipedia.org/wiki?curid={number}"
        lines.append(f'<doc id="{number}" url="{url}" title="A &amp; B">')
        for line in document:
            lines += [line, ""]
        lines += ["</doc>", ""] if number % 2 else ["</doc>"]
    text = end.join(["", *lines, ""])
    path = write(tmp_path / "wiki_00", text)
    assert read(path)[0] == documents
    assert len(read(path, input_format="lines")[0]) > len(documents)
    rows = write(tmp_path / "x.jsonl", '{"text": "a"}\n')
    with pytest.raises(InputError, match="`input_format` must be jsonl"):
        read(rows, input_format="wikiextractor")


@pytest.mark.parametrize("layout", ["files", "wikiextractor"])
def test_layouts_that_tables_cannot_have(tmp_path, layout):
    """A format for text files raises an error if all inputs are tables."""
    path = write(tmp_path / "x.csv", "text,n\na b,1\n")
    text = write(tmp_path / "x.txt", "a b\n")
    reading = ReadingConfig(input_format=layout)
    message = f"must be jsonl or lines, .* for tables.*={layout} with .*x.csv"
    with pytest.raises(InputError, match=message):
        text_blocks.check_files([path], reading)
    text_blocks.check_files([path, text], reading)
    assert read(path, input_format=layout)[0] == [["a b"]]
    with pytest.raises(InputError, match=f"for tables.*={layout} with input"):
        create_pretraining_data(
            input_file={"text": ["a b"]},
            output_dir=tmp_path / "out",
            input_format=layout,
        )


@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
def test_bad_bytes_are_located(tmp_path, monkeypatch, block_bytes):
    """An error for bytes that are not UTF-8 states file, line and byte."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    content = b"good line\n\nsecond document\nbad \xff\xfe\nlast\n"
    path = write(tmp_path / "x.txt", content)
    byte = content.index(b"\xff")
    message = f"x.txt, line 4, byte {byte} of the file"
    with pytest.raises(InputError, match=message):
        read(path)
    found, _, counts = read(path, on_bad_text="skip")
    assert found[1] == ["second document", "last"]
    assert counts["bad_lines"] == 1
    found, _, counts = read(path, on_bad_text="replace")
    assert found[1][1] == "bad \ufffd\ufffd"
    assert counts["bad_lines"] == 1


def test_hash_depends_on_text_and_seed():
    """The hash of a document depends only on its text and the seed."""
    base = text_blocks.document_hash(["a", "b"], 1)
    assert base == text_blocks.document_hash(["a", "b"], 1)
    assert base != text_blocks.document_hash(["a", "c"], 1)
    assert base != text_blocks.document_hash(["a", "b"], 2)
    digest = hashlib.blake2b(b"a\nb", digest_size=8, key=b"1").digest()
    assert base == int.from_bytes(digest, "little")


def test_bad_items_are_listed(capsys):
    """Each kind of bad item is counted; without any, the result is empty."""
    listed = text_formats.bad_items
    assert listed({}) == "" and listed({"bad_rows": 0}) == ""
    assert listed({"bad_lines": 1}) == "1 line was not UTF-8"
    both = {"bad_rows": 1234, "bad_files": 2}
    said = "1,234 rows were without readable text, 2 files were damaged"
    assert listed(both) == said
    counts = Counter(both)
    text_formats.warn_of_bad_items(Counter(), "skip")
    counts[f"{text_formats.FIRST}a fault"] = 1
    text_formats.merge(counts, Counter({f"{text_formats.FIRST}another": 1}))
    text_formats.warn_of_bad_items(counts, "skip")
    assert capsys.readouterr().out == (
        f"Warning: --on_bad_text=skip: {said}. The first: a fault\n"
    )


@pytest.mark.parametrize(
    "line, end",
    [
        (b"ab cd", 3),
        ("a 字".encode(), 2),
        (b"abcd", 3),
        ("a\U0001f600".encode(), 5),
        ("a\U0001f600".encode()[:-1], 1),
        ("a字".encode(), 1),
        ("a字".encode()[:-1], 1),
    ],
)
def test_places_to_cut_a_long_line(line, end):
    """A line is cut after its last space, or else between two characters."""
    assert text_blocks._inside_line(line) == end


def test_lines_that_are_not_utf8_are_counted():
    """`_lines_not_utf8` returns the number of bad lines and of all lines.

    Blank lines are counted only in text that is UTF-8.
    """
    count = text_blocks._lines_not_utf8
    assert count(b"a\nb") == count(b"a\n\n") == (0, 2)
    assert count(b"\xff\n\na \n") == (1, 2)


@pytest.mark.parametrize("name, head", [("x.txt", ""), ("x.csv", "text\n")])
def test_half_of_the_lines_may_be_bad(tmp_path, name, head):
    """With `skip`, text is rejected if over half of its lines are not UTF-8."""
    path = write(tmp_path / name, head.encode() + b"\xff\ngood\n")
    found, _, counts = read(path, on_bad_text="skip")
    assert found == [["good"]] and counts["bad_lines"] == 1
    path = write(tmp_path / name, head.encode() + b"\xff\ngood\n\xfe\n")
    with pytest.raises(InputError, match=f"{name}, 2 of 3 lines"):
        read(path, on_bad_text="skip")


@pytest.mark.parametrize("layout, more", [("lines", 1), (None, 13)])
def test_rows_that_are_too_long(tmp_path, monkeypatch, layout, more):
    """A row with more bytes than the limit, as text or as JSON, is bad."""
    monkeypatch.setattr(text_blocks, "RECORD_BYTES", 40)
    longest = "x" * (40 - more)
    rows = f"text\nfirst\n{longest}\n{longest}x\nlast\n"
    path = write(tmp_path / "x.csv", rows)
    form = {"input_format": layout}
    found, _, counts = read(path, on_bad_text="skip", **form)
    texts = [line for document in found for line in document]
    assert texts == ["first", longest, "last"] and counts["bad_rows"] == 1
    with pytest.raises(InputError, match="most 40 bytes.*skip.*=.*x.csv:4"):
        read(path, **form)


@pytest.mark.parametrize(
    "kind, choice, layout",
    [
        ("text", None, "lines"),
        ("text", "files", "files"),
        ("text", "jsonl", "jsonl"),
        ("jsonl", None, "jsonl"),
        ("jsonl", "lines", "lines"),
        ("csv", None, "jsonl"),
        ("parquet", "lines", "lines"),
    ],
)
def test_layouts(kind, choice, layout):
    """Tables are read as JSON lines unless their rows are lines.

    For a file of JSON lines, the layout `files` raises an error.
    """
    source = Source(None, kind, b"<doc> is not an article")
    assert text_formats.layout_of(source, choice, "x") == layout
    with pytest.raises(InputError, match="must be jsonl or .*with x"):
        text_formats.layout_of(Source(None, "jsonl", b""), "files", "x")


def test_document_that_ends_with_a_block():
    """A blank line at the start of a block ends the previous document."""
    cut = FORMATS["lines"].cut
    assert cut(b"\nab\n") == 1
    assert cut(b"ab\n") == 0
    assert cut(b"ab\n\t\ncd\nef\n") == 5
    block = Block("x", 2, 9, b"\nab\n", document=1, piece=1)
    assert text_blocks.read_documents(block, ReadingConfig(), Counter()) == [
        [],
        ["ab"],
    ]


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
    """Each JSON object is a document, for any block size."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    lines = [
        json.dumps(record, ensure_ascii=i % 2 == 0)
        for i, (record, _) in enumerate(RECORDS * 3)
    ]
    expected = [document for _, document in RECORDS * 3 if document]
    for content in ("\n".join(lines), "\n \n".join(lines) + "\n"):
        path = write(tmp_path / name, content)
        found, blocks, _ = read(path, input_format="jsonl")
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
    found, _, counts = read(path, on_bad_text="skip")
    assert found == [["a b c"]] * 6
    assert (counts["bad_rows"], counts["bad_lines"]) == (2, 0)
    said = text_formats.first_bad_item(counts)
    assert first in said and said.endswith("x.jsonl, line 4")
    with pytest.raises(InputError, match="--on_bad_text=skip.*, line 4$"):
        read(path)
    path = write(tmp_path / "y.jsonl", b'{"text": "\xff"}\n' + content)
    found, _, counts = read(path, on_bad_text="skip")
    assert (counts["bad_rows"], counts["bad_lines"]) == (2, 1)
    assert (
        text_formats.first_bad_item(counts)
        .partition(" of")[0]
        .endswith("line 1, byte 10")
    )


def test_half_of_a_pair_is_replaced(tmp_path):
    r"""A lone `\ud800`, which JSON allows, becomes U+FFFD."""
    path = write(tmp_path / "x", r'{"text": "a \ud800 b \ud83d\ude00"}')
    found, *_ = read(path, input_format="jsonl")
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
        list(text_blocks.blocks(path, 1, ReadingConfig(input_format=layout)))


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
        found, blocks, counts = read(
            path, input_format="jsonl", on_bad_text="skip"
        )
        assert found == [["a" * 70]] * 3 and counts["bad_rows"] == 1
        last = blocks[-1]
        assert last.first_line == 5 - last.data.count(b"\n")
        assert last.offset + len(last.data) == len(content)


@pytest.mark.parametrize("block_bytes", [50, 1 << 20])
def test_one_document_per_file(tmp_path, monkeypatch, block_bytes):
    """With `files`, a file is one document, whatever its lines and blocks."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    lines = [f"line {i}" for i in range(40)]
    path = write(tmp_path / "x.txt", "\ufeff\n" + "\n\n \n".join(lines))
    found, blocks, _ = read(path, input_format="files")
    assert found == [lines]
    assert [block.piece for block in blocks] == list(range(len(blocks)))
    assert len({block.document for block in blocks[1:]}) <= 1
    assert (len(blocks) > 3) == (block_bytes == 50)


@pytest.mark.parametrize("text_of", ["word ", "字"])
@pytest.mark.parametrize("before", ["before", "a document\n\nbefore"])
def test_long_line(tmp_path, text_of, before):
    """A line of 10 MB is read in parts of limited size.

    The line is cut between words or, if it has no spaces, between characters.
    """
    size = 10_000_000 // len(text_of.encode())
    line = text_of * size
    path = write(tmp_path / "x.txt", f"{before}\n{line}\nafter\n\nlast\n")
    found, blocks, _ = read(path)
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


def test_blocks_have_a_megabyte(tmp_path):
    """Blocks of short documents are at least 1 MiB long, except the last."""
    path = write(tmp_path / "x.txt", "a b c\n\n" * 700_000)
    blocks = list(text_blocks.blocks(path, SEED, ReadingConfig()))
    *sizes, last = (len(block.data) for block in blocks)
    assert sum(sizes) + last == 4_900_000 and len(sizes) > 1
    assert all(1 << 20 <= size < 1 << 21 for size in sizes)


def test_a_long_line_that_fits_stays_whole(tmp_path):
    """A line of 4 MB is read as one sentence."""
    line = "word " * 800_000
    path = write(tmp_path / "x.txt", f"{line}\nafter\n")
    assert read(path)[0] == [[line.strip(), "after"]]


def test_sentences_are_split():
    """Paragraphs are split after sentences, but not after abbreviations."""
    pytest.importorskip("sentencex")
    paragraphs = ["Dr. Ann came at 5 p.m. to see it. Was it big?  Yes!", "No."]
    found = list(text_formats.split_sentences(paragraphs, "en"))
    assert found == [
        "Dr. Ann came at 5 p.m. to see it.",
        "Was it big?",
        "Yes!",
        "No.",
    ]
    assert list(text_formats.split_sentences(paragraphs, None)) == paragraphs


@pytest.mark.parametrize("name", ["en", "zh-hans", "pt-br", "gsw", "JA", "yue"])
def test_language_codes_are_taken(name):
    """Language codes may have two or three letters, and a region or script."""
    pytest.importorskip("sentencex")
    assert ReadingConfig(split_sentences=name).split_sentences == name


@pytest.mark.parametrize(
    "name",
    "klingon English e zh_CN xx jp cz-cz deu eng en- en_us".split(),
)
def test_what_is_no_language_code_is_refused(name):
    """An unsupported code is rejected; sentencex would assume English."""
    with pytest.raises(InputError, match=f"`split_sentences`.*{name}$"):
        ReadingConfig(split_sentences=name)
