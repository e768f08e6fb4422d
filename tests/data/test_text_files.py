"""Text files are divided into blocks and documents; faults are located."""

import hashlib
import itertools
import json
from collections import Counter

import pytest
from tiny_files import read, read_blocks, write

from albert_tf import create_pretraining_data, train_tokenizer
from albert_tf.base.errors import InputError
from albert_tf.data import file_kinds
from albert_tf.data.builder import text_blocks, text_formats
from albert_tf.data.builder.text_formats import FORMATS, Block, ReadingConfig
from albert_tf.data.file_kinds import Source


def test_documents(tmp_path):
    """Blank lines separate documents, even with CRLF, a BOM or tabs.

    Characters without width, such as a zero-width space, leave a line blank.
    """
    content = "\ufeff\r\n a b \nc\r\n\r\n\n \t\n\u00a0\nd\n\u200b\u200e\ne"
    path = write(tmp_path / "x.txt", content)
    found, counts = read(path)
    assert found == [["a b", "c"], ["d"], ["e"]]
    assert not counts["empty_documents"]


@pytest.mark.parametrize("blank", ["", "\u00a0", "\u200b\ufeff"])
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
        found, blocks, _ = read_blocks(path)
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
    with file_kinds.opened(str(path)) as source:
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
    path = str(write(tmp_path / "x.csv", "text,n\na b,1\n"))
    text = str(write(tmp_path / "x.txt", "a b\n"))
    reading = ReadingConfig(input_format=layout)
    message = f"must be jsonl or lines, .* for tables.*={layout} with .*x.csv"
    with pytest.raises(InputError, match=message):
        text_blocks.check_files([path], reading)
    text_blocks.check_files([path, text], reading)
    assert read(path, input_format=layout)[0] == [["a b"]]
    for program in (create_pretraining_data, train_tokenizer):
        message = f"for tables.*={layout} with input"
        with pytest.raises(InputError, match=message):
            program(
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
    found, counts = read(path, on_bad_text="skip")
    assert found[1] == ["second document", "last"]
    assert counts["bad_lines"] == 1
    found, counts = read(path, on_bad_text="replace")
    assert found[1][1] == "bad \ufffd\ufffd"
    assert counts["bad_lines"] == 1


@pytest.mark.parametrize("line", [b"\xff", b" \xff\xfe "])
@pytest.mark.parametrize("choice, kept", [("skip", 0), ("replace", 1)])
def test_bad_bytes_are_no_blank_line(tmp_path, monkeypatch, line, choice, kept):
    """A line that is not UTF-8 never ends a document, in blocks of any size."""
    path = write(tmp_path / "x.txt", b"a b\n" + line + b"\nc d\n\ne f\n")
    text = line.decode("utf-8", "replace").strip()
    document = ["a b", *[text] * kept, "c d"]
    for size in (*range(1, 20), 1 << 20):
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", size)
        found, _ = read(path, on_bad_text=choice)
        assert found == [document, ["e f"]], size


def test_hash_of_a_document():
    """The hash of a document is a keyed hash of its lines; the seed is the key.

    The bytes of the hash are read as a little-endian number.
    """
    digest = hashlib.blake2b(b"a\nb", digest_size=8, key=b"1").digest()
    expected = int.from_bytes(digest, "little")
    assert text_blocks.document_hash(["a", "b"], 1) == expected


def test_bad_items_are_listed(capsys):
    """Each kind of bad item is counted; without any, the result is empty."""
    listed = text_formats.bad_items
    assert listed({}) == "" and listed({"bad_rows": 0}) == ""
    assert listed({"bad_lines": 1}) == "1 line was not UTF-8"
    both = {"bad_rows": 1234, "bad_files": 2}
    text = "1,234 rows were without readable text, 2 files were damaged"
    assert listed(both) == text
    counts = Counter(both)
    text_formats.warn_of_bad_items(Counter(), "skip")
    counts[f"{text_formats.FIRST}a fault"] = 1
    text_formats.merge(counts, Counter({f"{text_formats.FIRST}another": 1}))
    text_formats.warn_of_bad_items(counts, "skip")
    assert capsys.readouterr().out == (
        f"Warning: --on_bad_text=skip: {text}. The first: a fault\n"
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
    found, counts = read(path, on_bad_text="skip")
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
    found, counts = read(path, on_bad_text="skip", **form)
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


@pytest.mark.parametrize("block_bytes", [50, 1 << 20])
def test_one_document_per_file(tmp_path, monkeypatch, block_bytes):
    """With `files`, a file is one document, with any lines and blocks."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    lines = [f"line {i}" for i in range(40)]
    path = write(tmp_path / "x.txt", "\ufeff\n" + "\n\n \n".join(lines))
    found, blocks, _ = read_blocks(path, input_format="files")
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
    found, blocks, _ = read_blocks(path)
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
    blocks = list(text_blocks.blocks(str(path), 1, ReadingConfig()))
    *sizes, last = (len(block.data) for block in blocks)
    assert sum(sizes) + last == 4_900_000 and len(sizes) > 1
    assert all(1 << 20 <= size < 1 << 21 for size in sizes)


def test_a_long_line_that_fits_stays_whole(tmp_path):
    """A line of 4 MB is read as one sentence."""
    line = "word " * 800_000
    path = write(tmp_path / "x.txt", f"{line}\nafter\n")
    assert read(path)[0] == [[line.strip(), "after"]]


def test_sentences_are_split():
    """Paragraphs are split after sentences, but not after abbreviations.

    The case of the language code has no effect.
    """
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
    german = ["Das ist z. B. Dr. Maier. Am 3. Mai kam er."]
    assert len([*text_formats.split_sentences(german, "de")]) == 2
    assert len([*text_formats.split_sentences(german, "DE")]) == 2


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
