"""Reading of text: documents, blocks, bad input."""

import gzip
from collections import Counter

import pytest

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.data.builder import text_blocks
from albert_tf.data.builder.text_files import FORMATS, ReadingConfig

SEED = 5


def write(path, content):
    """Write text or bytes; return the path as a string."""
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(data)
    return str(path)


def read(path, **settings):
    """Return [(hash, lines)] of a file's documents, and what was counted."""
    counts, found = Counter(), []
    reading = ReadingConfig(**settings)
    for block in text_blocks.blocks(path, SEED, reading):
        documents = text_blocks.read_documents(block, reading, counts)
        for index, lines in enumerate(documents):
            if index == 0 and block.document is not None:
                assert found[-1][0] == block.document
                found[-1][1].extend(lines)
            elif lines:
                found.append(
                    (text_blocks.document_hash(lines, SEED), list(lines))
                )
    return found, counts


def lines_of(path, **kwargs):
    """Return only the lines of each document."""
    return [lines for _, lines in read(path, **kwargs)[0]]


def test_documents(tmp_path):
    """Blank lines part documents; runs of them, CRLF, a BOM, tabs do too."""
    content = "\ufeff\r\n a b \nc\r\n\r\n\n \t\n\u00a0\nd\n\u3000\ne"
    path = write(tmp_path / "x.txt", content)
    assert lines_of(path) == [["a b", "c"], ["d"], ["e"]]


@pytest.mark.parametrize("blank", ["", "\u00a0"])
@pytest.mark.parametrize("block_bytes", [16, 64, 300, 1000, 1 << 20])
def test_blocks_change_nothing(tmp_path, monkeypatch, block_bytes, blank):
    """However a file is cut into blocks, its documents are the same."""
    documents = [
        [f"line {i} of {d}" + " x" * (i * d % 15) for i in range(n)]
        for d, n in enumerate([1, 3, 60, 1, 1, 15, 2, 40])
    ]
    joined = f"\n{blank}\n".join("\n".join(lines) for lines in documents)
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    for ending in ("", "\n", "\n\n", "\n \n\n"):
        path = write(tmp_path / "x.txt", joined + ending)
        assert lines_of(path) == documents
        read_bytes = b"".join(
            b.data for b in text_blocks.blocks(path, 0, ReadingConfig())
        )
        assert read_bytes == (joined + ending).encode()
    if block_bytes == 64:
        blocks = list(text_blocks.blocks(path, 0, ReadingConfig()))
        assert max(b.piece for b in blocks) > 3
        assert [b.offset for b in blocks][1] == len(blocks[0].data)


def test_gzip(tmp_path):
    """A .gz file reads as its content; a damaged one is named."""
    packed = gzip.compress(b"a\n\nb\n\n" * 5000)
    assert len(lines_of(write(tmp_path / "x.gz", packed))) == 10000
    with pytest.raises(InputError, match="damaged .gz.*y.gz"):
        lines_of(write(tmp_path / "y.gz", packed[:-20]))
    with pytest.raises(InputError, match="damaged .gz.*z.gz"):
        lines_of(write(tmp_path / "z.gz", "plain text\n"))


@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
def test_bad_bytes_are_located(tmp_path, monkeypatch, block_bytes):
    """Bytes that are not UTF-8 are named by file, line and byte."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block_bytes)
    content = b"good line\n\nsecond document\nbad \xff\xfe\nlast\n"
    path = write(tmp_path / "x.txt", content)
    byte = content.index(b"\xff")
    message = f"x.txt, line 4, byte {byte} of the file"
    with pytest.raises(InputError, match=message):
        read(path)
    found, counts = read(path, on_bad_text="skip")
    assert [n for _, n in found][1] == ["second document", "last"]
    assert counts["bad_lines"] == 1
    found, counts = read(path, on_bad_text="replace")
    assert found[1][1][1] == "bad \ufffd\ufffd"
    assert counts["bad_lines"] == 1


def test_hash_depends_on_text_and_seed():
    """Equal documents have equal hashes; text and seed change them."""
    base = text_blocks.document_hash(["a", "b"], 1)
    assert base == text_blocks.document_hash(["a", "b"], 1)
    assert base != text_blocks.document_hash(["a", "c"], 1)
    assert base != text_blocks.document_hash(["a", "b"], 2)


def test_input_errors(tmp_path):
    """No file, an empty file and a directory are named."""
    empty = write(tmp_path / "empty.txt", "")
    with pytest.raises(InputError, match="empty.txt"):
        text_blocks.check_not_empty([empty])
    with pytest.raises(InputError, match="at least one file.*nothing"):
        files.glob(str(tmp_path / "nothing*"), "`input_file`")
    with pytest.raises(InputError, match="directory"):
        files.glob(str(tmp_path), "`input_file`")


def test_document_that_ends_with_a_block():
    """A blank line that begins a block ends the document before it."""
    cut = FORMATS["lines"].cut
    assert cut(b"\nab\n") == 1
    assert cut(b"ab\n") == 0
    assert cut(b"ab\n\t\ncd\nef\n") == 5
    block = text_blocks.Block("x", 2, 9, b"\nab\n", document=1, piece=1)
    assert text_blocks.read_documents(block, ReadingConfig(), Counter()) == [
        [],
        ["ab"],
    ]
