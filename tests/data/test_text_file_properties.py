"""Files of every kind are read as written, with any text."""

import gzip
import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from properties import examples, texts
from tiny_files import comma_separated, feather, json_lines, parquet, read

from albert_tf.data.builder import text_blocks
from albert_tf.data.builder.text_formats import FORMATS
from albert_tf.text.normalization import SPACES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder for files."""
    return tmp_path_factory.mktemp("files")


# Words that could be mistaken for the mark of a file's kind.
HEADS = ["PAR1", "ARROW1", "LZIP", "ustar", "{", '{"a": 1}', '[{"', "BZh9", "#"]
TEXT = texts(*HEADS, without="\r\n")
LINE = TEXT.map(lambda text: text.strip(SPACES)).filter(bool)
DOCUMENTS = st.lists(st.lists(LINE, min_size=1, max_size=4), max_size=4)


def plain(documents):
    """Return documents as lines, with blank lines between documents."""
    return "\n\n".join(map("\n".join, documents))


def row_files(documents):
    """Return {name: bytes} for tables with one document per row."""
    rows = ["\n".join(lines) for lines in documents]
    escaped = "".join(json.dumps({"text": row}) + "\n" for row in rows)
    return {
        "x.jsonl": json_lines(rows),
        "y.jsonl": escaped.encode(),
        "x.csv": comma_separated(rows),
        "x.parquet": parquet(rows),
        "x.arrow": feather(rows),
    }


@examples(12)
@given(documents=DOCUMENTS, block=st.sampled_from([1, 30, 1 << 20]))
def test_documents_in_tables(folder, documents, block):
    """A row of JSON lines, CSV, Parquet or Arrow is a document."""
    assume(documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "BLOCK_BYTES", block)
        for name, data in row_files(documents).items():
            (folder / name).write_bytes(data)
            assert read(folder / name)[0] == documents, name


def is_json(text):
    """Return whether a text could be mistaken for JSON: if it contains {."""
    return "{" in text


@examples(25)
@given(
    documents=DOCUMENTS,
    block=st.integers(1, 40) | st.just(1 << 20),
    mark=st.booleans(),
    packed=st.booleans(),
    end=st.sampled_from(["", "\n", "\n\n \n", "\r\n"]),
)
@example([["aaa"], ["b"], ["c"]], 4, False, False, "")  # a break begins a block
@example([["PAR1 is a protein"]], 30, False, False, "\n")
@example([["ARROW1 is a name"]], 30, False, False, "\n")
@example([["LZIP is a program"]], 30, False, False, "\n")
def test_documents_in_text(folder, documents, block, mark, packed, end):
    """Lines between blank lines are a document, in blocks of any size."""
    content = "\ufeff" * mark + plain(documents) + end
    assume(mark or not content.startswith("\ufeff"))
    assume(not is_json(content) and content.count("\0") * 20 < len(content))
    data = gzip.compress(content.encode()) if packed else content.encode()
    (folder / "x.txt").write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "BLOCK_BYTES", block)
        assert read(folder / "x.txt")[0] == documents
        whole = [line for lines in documents for line in lines]
        found = read(folder / "x.txt", input_format="files")[0]
        assert found == [whole] * bool(whole)


def articles(documents):
    """Return documents as WikiExtractor writes them."""
    head, blank = '<doc id="1" url="u" title="t">\n', "\n\n"
    parts = (f"{head}{blank.join(lines)}\n</doc>\n" for lines in documents)
    return "\n".join(parts)


# {format: function from documents to a text in this format}
WRITERS = {
    "lines": plain,
    "files": plain,
    "jsonl": lambda documents: row_files(documents)["y.jsonl"].decode(),
    "wikiextractor": articles,
}


@pytest.mark.parametrize("layout", FORMATS)
@examples(25)
@given(documents=DOCUMENTS, block=st.integers(1, 60))
@example([["aa", "bb"], ["cc", "dd"]], 8)
@example([["aa"], ["bb"]], 1)  # a block begins with the end of an article
def test_no_format_depends_on_blocks(folder, layout, documents, block):
    """In every format, documents are the same for blocks of any size."""
    assume(documents)
    text = plain(documents)
    assume(not is_json(text) and text.count("\0") * 20 < len(text))
    assume("<doc" not in text and "</doc>" not in text and text[0] != "\ufeff")
    (folder / "x").write_bytes(WRITERS[layout](documents).encode())
    if layout == "files":
        documents = [[line for lines in documents for line in lines]]
    for size in (block, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_blocks, "BLOCK_BYTES", size)
            assert read(folder / "x", input_format=layout)[0] == documents
