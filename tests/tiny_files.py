"""A text, and files that contain it in all formats."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections import Counter

import pytest

from albert_tf.base.errors import InputError
from albert_tf.data.builder import text_blocks
from albert_tf.data.builder.text_formats import ReadingConfig

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


def read_blocks(path, **settings):
    """Return a file's documents (lists of lines), blocks and counts.

    The hash of a document in several blocks is that of its first part.
    """
    config, counts, found = ReadingConfig(**settings), Counter(), []
    blocks, first_part = list(text_blocks.blocks(str(path), 1, config)), []
    for block in blocks:
        documents = text_blocks.read_documents(block, config, counts)
        if block.document is not None:
            assert block.document == text_blocks.document_hash(first_part, 1)
            found[-1] = found[-1] + documents.pop(0)
        if documents:
            first_part = documents[-1]
        found += documents
    return [lines for lines in found if lines], blocks, counts


def read(path, **settings):
    """Return a file's documents (lists of lines) and the reader's counts."""
    documents, _, counts = read_blocks(path, **settings)
    return documents, counts


def write(path, data):
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def refusal(path, **settings):
    with pytest.raises(InputError) as error:
        read(path, **settings)
    assert "--on_bad_text" not in str(error.value)
    return str(error.value)


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
