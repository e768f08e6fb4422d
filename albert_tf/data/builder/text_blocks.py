"""Text files as blocks of whole lines, and blocks as documents of lines."""

import contextlib
import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator

from albert_tf.base import files
from albert_tf.base.errors import InputError, require
from albert_tf.data.builder.text_files import (
    FORMATS,
    RECORD_BYTES,
    Block,
    TextFilesConfig,
    json_record,
)
from albert_tf.data.table_sources import (
    data_files,
    is_table,
    is_table_file,
    texts_of,
)

# The unit of work of one process. A document is cut over blocks only if it is
# larger than this, so its first block holds at least this much of it.
BLOCK_BYTES = 1 << 20

# A longer line is read as several, so that memory stays bounded.
LINE_BYTES = 1 << 22

JSON_ENDINGS = (".json", ".jsonl", ".ndjson")


def document_hash(lines: list[str], seed: int) -> int:
    """Return 64 bits that depend on the seed and on a document's text."""
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8, key=str(seed).encode())
    return int.from_bytes(digest.digest(), "little")


def _inside_line(data: bytes) -> int:
    """Return where to cut a line: after a space, else before a character."""
    end = data.rfind(b" ") + 1
    if end:
        return end
    for end in range(len(data) - 1, len(data) - 4, -1):
        if data[end] & 0xC0 != 0x80:
            return end
    return len(data)


def _pieces(path: str, longest: int) -> Iterator[bytes]:
    """Yield runs of whole lines of at least `BLOCK_BYTES`, then the rest.

    A run ends inside a line only if that is longer than `longest` bytes.
    """
    with files.opened(path, "rb") as raw:
        file = gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw
        rest = b""
        while data := file.read(BLOCK_BYTES):
            rest += data
            if len(rest) < BLOCK_BYTES:
                continue
            end = rest.rfind(b"\n") + 1
            if not end and len(rest) > longest:
                end = _inside_line(rest)
            if end:
                yield rest[:end]
                rest = rest[end:]
        yield rest


def _raw_blocks(path: str, reading: TextFilesConfig) -> Iterator:
    """Yield blocks and whether the block's last document goes on after it."""
    layout = FORMATS[reading.input_format]
    buffer, longest = b"", layout.longest_line or LINE_BYTES
    for piece in _pieces(path, longest):
        buffer += piece
        if len(buffer) < BLOCK_BYTES:
            continue
        end = layout.cut(buffer)
        if not end and len(buffer) <= (layout.longest_line or 0):
            continue
        yield buffer[: end or None], not end
        buffer = buffer[end:] if end else b""
        if len(buffer) > longest:  # part of a line
            yield buffer, True
            buffer = b""
    if buffer:
        yield buffer, False


def _table_blocks(path: str, field: str) -> Iterator[Block]:
    """Yield the blocks of a table, whose rows become lines of JSON."""
    first = offset = size = 0
    lines: list[bytes] = []
    for row, text in enumerate(texts_of(path, field)):
        lines.append(json_record(field, text))
        size += len(lines[-1])
        rule = f"A text must have at most {RECORD_BYTES:,} bytes."
        place = f"{path}, row {row}"
        require(len(lines[-1]) <= RECORD_BYTES, rule, file=place)
        if size >= BLOCK_BYTES:
            yield Block(path, first, offset, b"".join(lines))
            first, offset, size, lines = row + 1, offset + size, 0, []
    if lines:
        yield Block(path, first, offset, b"".join(lines))


def blocks(path: str, seed: int, reading: TextFilesConfig) -> Iterator[Block]:
    """Yield the blocks of a text file, plain or `.gz`, or a table, in order."""
    if is_table_file(path):
        yield from _table_blocks(path, reading.text_field)
        return
    longest = FORMATS[reading.input_format].longest_line
    line, offset, document, piece = 1, 0, None, 0
    try:
        for data, open_end in _raw_blocks(path, reading):
            require(
                not (open_end and longest),
                f"A JSON object must have at most {longest or 0:,} bytes.",
                file=f"{path}, line {line}",
            )
            block = Block(path, line, offset, data, document, piece)
            yield block
            line += data.count(b"\n")
            offset += len(data)
            if not open_end:
                document, piece = None, 0
                continue
            if document is None:
                (lines,) = read_documents(block, reading, Counter())
                document = document_hash(lines, seed)
            piece += 1
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"`input_file` holds a damaged .gz file ({error}). Received: {path}"
        ) from None


def _decode(
    block: Block, on_bad_text: str, counts: Counter
) -> list[str | None]:
    """Return the lines of a block; None stands for a line to skip."""
    with contextlib.suppress(UnicodeDecodeError):
        return block.data.decode("utf-8").split("\n")
    lines, offset = [], block.offset
    for number, raw in enumerate(block.data.split(b"\n"), block.first_line):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            require(
                on_bad_text != "fail",
                "`input_file` must be UTF-8 text, plain or .gz; convert it, "
                "or give --on_bad_text=replace or skip.",
                bad_bytes=f"{block.path}, line {number}, byte "
                f"{offset + error.start} of the file",
            )
            skipped = on_bad_text == "skip"
            line = None if skipped else raw.decode("utf-8", "replace")
            counts["bad_lines"] += 1
        lines.append(line)
        offset += len(raw) + 1
    return lines


def read_documents(
    block: Block, reading: TextFilesConfig, counts: Counter
) -> list[list[str]]:
    """Split a block into documents of stripped, non-blank lines.

    The first document may be empty where the block goes on with a document
    of the block before: it holds the lines that still belong to that one.
    There is always a first document, empty if the block has no text.
    """
    lines = _decode(block, reading.on_bad_text, counts)
    if block.offset == 0 and lines[0]:
        lines[0] = lines[0].removeprefix("\ufeff")
    layout = "jsonl" if is_table_file(block.path) else reading.input_format
    parse = FORMATS[layout].parse
    return parse(block, lines, reading.text_field) or [[]]


def input_paths(
    patterns: str, input_format: str, output_dir: str | None
) -> list[str]:
    """Return the files that `input_file` names.

    A pattern for a folder above `output_dir` does not mean what is made there.

    Raises:
      InputError: there are none, or one without a byte, or of another format.
    """
    above = output_dir is not None and not any(
        files.is_inside(pattern, output_dir)
        for pattern in files.listed(patterns)
    )

    def is_made(path: str) -> bool:
        return above and files.is_inside(path, output_dir)

    named = files.glob(
        patterns, "`input_file`", lambda path: is_made(path) or is_table(path)
    )
    named = [path for path in named if not is_made(path)]
    rule = "`input_file` must name more than what is made in `output_dir`."
    require(named, rule, input_file=patterns, output_dir=output_dir)
    paths = [path for name in named for path in data_files(name)]
    for path in paths:
        require(
            files.size(path),
            "`input_file` must not hold empty files; remove it from the list.",
            file=path,
        )
        require(
            input_format == "jsonl"
            or not path.removesuffix(".gz").endswith(JSON_ENDINGS),
            "`input_format` must be jsonl for files of JSON lines.",
            input_format=f"{input_format} with {path}",
        )
    return paths
