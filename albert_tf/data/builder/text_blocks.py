"""Split text files into blocks of whole lines, and blocks into documents."""

import concurrent.futures
import contextlib
import hashlib
import itertools
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.data import file_kinds
from albert_tf.data.builder.text_formats import (
    FORMATS,
    RECORD_BYTES,
    BadItems,
    Block,
    TextFilesConfig,
    check_table_layout,
    encoded,
    json_record,
    layout_of,
    merge,
)
from albert_tf.data.file_kinds import JSONL, TEXT, BadData, Refused, Source
from albert_tf.data.table_sources import (
    data_files,
    is_saved_dataset,
    rows_in,
    texts_in,
)

# The size in bytes of a unit of work for one process. Only a larger document
# spans several blocks, so the first block of such a document contains at least
# this many bytes of it.
BLOCK_BYTES = 1 << 20

# A longer line is read as several lines, to limit memory use.
LINE_BYTES = 1 << 22


def document_hash(lines: list[str], seed: int) -> int:
    """Return a 64-bit hash of the seed and the document's text."""
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8, key=str(seed).encode())
    return int.from_bytes(digest.digest(), "little")


def _inside_line(data: bytes) -> int:
    """Return the position at which to cut a line that is too long.

    The cut is after the last space or, if there is none, before the last
    character.
    """
    end = data.rfind(b" ") + 1
    if end:
        return end
    for end in range(len(data) - 1, len(data) - 4, -1):
        if data[end] & 0xC0 != 0x80:
            return end
    return len(data)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of a file, `BLOCK_BYTES` at a time.

    If the file is damaged, yield the bytes before the damage, then raise an
    error.
    """
    while True:
        chunk, damage = file_kinds.until_damage(file, BLOCK_BYTES)
        if chunk:
            yield chunk
        if damage:
            raise damage
        if not chunk:
            return


def _line_feeds(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield chunks, with lone carriage returns replaced by line feeds."""
    rest = b""
    for chunk in chunks:
        data = rest + chunk
        end = len(data.rstrip(b"\r"))
        rest = data[end:]  # the next chunk may begin with a line feed
        yield file_kinds.with_line_feeds(data[:end])
    yield b"\n" * len(rest)


def _pieces(file: BinaryIO, longest: int) -> Iterator[bytes]:
    """Yield runs of whole lines.

    A run ends at the last line end in at least `BLOCK_BYTES` of text. It ends
    inside a line only if the line is longer than `longest` bytes.
    """
    rest = b""
    try:
        for data in _line_feeds(_chunks(file)):
            rest += data
            if len(rest) < BLOCK_BYTES:
                continue
            end = rest.rfind(b"\n") + 1
            if not end and len(rest) > longest:
                end = _inside_line(rest)
            if end:
                yield rest[:end]
                rest = rest[end:]
    except BadData as error:  # whole lines before the damage are usable
        yield rest[: rest.rfind(b"\n") + 1]
        raise error
    yield rest


def _row_pieces(
    texts: Iterable[tuple[str, str]], layout: str, field: str, bad: BadItems
) -> Iterator[bytes]:
    """Yield the texts of rows, joined into pieces of whole lines.

    If `layout` is "lines", the pieces contain plain text; otherwise, each line
    is a JSON record.
    """
    lines: list[bytes] = []
    size = 0
    try:
        for location, text in texts:
            if layout == "lines":
                line = encoded(f"{file_kinds.with_line_feeds(text.strip())}\n")
            else:
                line = json_record(field, text)
            if len(line) > RECORD_BYTES:
                rule = f"A text must have at most {RECORD_BYTES:,} bytes."
                bad(BadData(f"{rule} Received: file={location}"))
                continue
            lines.append(line)
            size += len(line)
            if size >= BLOCK_BYTES:
                yield b"".join(lines)
                lines, size = [], 0
    except Refused:  # a run that skips the row adds more rows to this block
        raise
    except BadData as error:  # rows before the damage are usable
        yield b"".join(lines)
        raise error
    yield b"".join(lines)


def _until_damage(pieces: Iterator[bytes], bad: BadItems) -> Iterator[bytes]:
    """Yield the pieces of a file up to any damage, which `bad` handles."""
    try:
        yield from pieces
    except BadData as error:
        bad(error, name="bad_files")


def _pieces_of(
    source: Source, path: str, layout: str, field: str, bad: BadItems
) -> Iterator[bytes]:
    """Check the first row of an open file; return the pieces of the file."""
    if source.kind == JSONL:
        fields = source.fields()
        require(
            not fields or field in fields,
            f"{path}: `text_field` must name one of the fields "
            f"{', '.join(fields)[:200]}.",
            text_field=field,
        )
    if source.kind in (TEXT, layout):
        return _pieces(source.file, FORMATS[layout].longest_line or LINE_BYTES)
    texts = texts_in(rows_in(source, path, field, bad), field, bad)
    first = list(itertools.islice(texts, 1))
    return _row_pieces(itertools.chain(first, texts), layout, field, bad)


@contextlib.contextmanager
def _opened(
    path: str, reading: TextFilesConfig, bad: BadItems
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Open a file; yield its layout and its pieces."""
    with contextlib.ExitStack() as stack:
        try:
            source = stack.enter_context(file_kinds.opened(path))
            if source.damage and reading.on_bad_text != "skip":
                raise source.damage
            layout = layout_of(source, reading.input_format, path)
            pieces = _pieces_of(source, path, layout, reading.text_field, bad)
        except BadData as error:
            bad(error, name="bad_files")
            layout, pieces = "lines", iter(())
        yield layout, _until_damage(pieces, bad)


def check_files(paths: list[str], reading: TextFilesConfig) -> None:
    """Check the beginning of each file; raise an error if it has a fault.

    Faults that `on_bad_text` skips do not raise an error. Pipes can be read
    only once, so they are not checked.
    """

    def layout(path: str) -> str:
        bad = BadItems(reading.on_bad_text, Counter())
        with _opened(path, reading, bad) as (detected, _):
            return detected

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        regular = [path for path in paths if not files.is_stream(path)]
        layouts = {*pool.map(layout, regular)}
    # The setting may apply only to text files or to pipes.
    if layouts and reading.input_format not in layouts and regular == paths:
        check_table_layout("tables", reading.input_format, regular[0])


def _raw_blocks(layout: str, pieces: Iterator[bytes]) -> Iterator:
    """Yield each block as bytes, and whether it ends inside a document."""
    text_format = FORMATS[layout]
    buffer, longest = b"", text_format.longest_line or LINE_BYTES
    for piece in pieces:
        buffer += piece
        if len(buffer) < BLOCK_BYTES:
            continue
        end = text_format.cut(buffer)
        if not end and len(buffer) <= (text_format.longest_line or 0):
            continue
        yield buffer[: end or None], not end
        buffer = buffer[end:] if end else b""
        if len(buffer) > longest:  # part of a line
            yield buffer, True
            buffer = b""
    if buffer:
        yield buffer, False


def _lines_not_utf8(data: bytes) -> tuple[int, int]:
    """Return the number of lines that are not UTF-8, and of all lines.

    If any line is not UTF-8, blank lines are not counted.
    """
    if file_kinds.is_utf8(data):
        return 0, data.count(b"\n") + (not data.endswith(b"\n"))
    lines = [line for line in data.split(b"\n") if line.strip()]
    return sum(not file_kinds.is_utf8(line) for line in lines), len(lines)


def _require_utf8(bad: int, lines: int, path: str) -> None:
    """Raise `InputError` if most lines in a file are not UTF-8."""
    require(
        2 * bad <= lines,
        "`input_file` must be UTF-8 text, but most lines are not; leave it "
        f"out, or {file_kinds.TO_UTF_8}.",
        file=f"{path}, {bad} of {lines} lines",
    )


class _Cursor:
    """The position in a file, and the number of lines that are not UTF-8."""

    def __init__(self, path: str):
        self.path, self.line, self.offset = path, 1, 0
        self.inside = False  # whether an oversized line is being skipped
        self.bad = self.lines = 0

    def count_lines(self, data: bytes) -> None:
        bad, lines = _lines_not_utf8(data)
        self.bad += bad
        self.lines += lines

    def advance(self, data: bytes) -> None:
        self.line += data.count(b"\n")
        self.offset += len(data)

    def skip_line(self, data: bytes) -> bytes:
        """If a line is being skipped, return only the data after its end."""
        if not self.inside:
            return data
        end = data.find(b"\n") + 1
        self.inside = not end
        end = end or len(data)
        self.advance(data[:end])
        return data[end:]

    def begin_line(self, data: bytes, layout: str, bad: BadItems) -> None:
        """Skip a line that is too long, unless `bad` raises an error."""
        limit = f"at most {FORMATS[layout].longest_line:,} bytes"
        rule = f"With `input_format={layout}`, a line must have {limit}."
        where = f"{self.path}, line {self.line}"
        bad(BadData(f"{rule} Received: file={where}"))
        self.inside = True
        self.advance(data)


def blocks(path: str, seed: int, reading: TextFilesConfig) -> Iterator[Block]:
    """Yield the blocks of a text file or table file, in order.

    `seed` seeds the hashes of documents that span several blocks.
    """
    skipped: Counter = Counter()
    bad, cursor = BadItems(reading.on_bad_text, skipped), _Cursor(path)
    document, piece = None, 0
    with _opened(path, reading, bad) as (layout, pieces):
        whole_lines = FORMATS[layout].longest_line is not None
        for data, open_end in _raw_blocks(layout, pieces):
            if whole_lines and open_end and not cursor.inside:
                cursor.begin_line(data, layout, bad)
                continue
            data = cursor.skip_line(data)
            if not data:
                continue
            if reading.on_bad_text != "fail":
                cursor.count_lines(data)
            fields = path, cursor.line, cursor.offset, data, document, piece
            block = Block(*fields, layout, Counter(skipped))
            skipped.clear()
            yield block
            cursor.advance(data)
            if not open_end:
                document, piece = None, 0
                continue
            if document is None:
                (lines,) = read_documents(block, reading, Counter())
                document = document_hash(lines, seed)
            piece += 1
    _require_utf8(cursor.bad + bad.lines, cursor.lines + bad.lines, path)
    if skipped:
        yield Block(path, cursor.line, cursor.offset, b"", skipped=skipped)


def _decode(
    block: Block, reading: TextFilesConfig, bad: BadItems
) -> list[str | None]:
    """Return the lines of a block; None marks a line to skip."""
    with contextlib.suppress(UnicodeDecodeError):
        return block.data.decode("utf-8").split("\n")
    if reading.on_bad_text == "fail":
        _require_utf8(*_lines_not_utf8(block.data), block.path)
    lines, offset = [], block.offset
    for number, raw in enumerate(block.data.split(b"\n"), block.first_line):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            rule = "`input_file` must be UTF-8 text, plain or compressed."
            where = (
                f"{block.path}, line {number}, byte {offset + error.start} of "
                "the file"
            )
            line = bad(BadData(f"{rule} Received: bad_bytes={where}"), raw)
        lines.append(line)
        offset += len(raw) + 1
    return lines


def read_documents(
    block: Block, reading: TextFilesConfig, counts: Counter
) -> list[list[str]]:
    """Split a block into documents of stripped, non-blank lines.

    If the block continues the last document of the previous block, the first
    document contains the rest of that document, and may be empty. If the block
    has no text, the only document is empty.
    """
    merge(counts, block.skipped)
    bad = BadItems(reading.on_bad_text, counts)
    lines = _decode(block, reading, bad)
    if block.offset == 0 and lines[0]:
        lines[0] = lines[0].removeprefix("\ufeff")
    parse = FORMATS[block.layout].parse
    documents = parse(block, lines, reading.text_field, bad)
    if block.document is None:
        number = len(documents)
        documents = [document for document in documents if document]
        counts["empty_documents"] += number - len(documents)
    return documents or [[]]


# Estimated ratio of text size to file size for compressed formats.
PACKED, PACKED_RATIO = (*file_kinds.PACKED_ENDINGS, ".parquet"), 3


def estimated_bytes(paths: list[str]) -> int:
    """Return the estimated size of the text in files."""
    return sum(
        files.size(path)
        * (PACKED_RATIO if path.lower().endswith(PACKED) else 1)
        for path in paths
    )


NOT_EMPTY = "`input_file` must name files that are not empty."


def has_pipes(patterns: str) -> bool:
    """Return whether any file in `input_file` can be read only once."""
    return any(map(files.is_stream, files.split_paths(patterns)))


def with_pipes_copied(patterns: str, folder: str) -> str:
    """Copy pipes to files in a folder; return `input_file` with their paths.

    Raises:
      InputError: if the only input is an empty pipe.
    """
    entries = files.split_paths(patterns)
    for number, entry in enumerate(entries):
        if files.is_stream(entry):
            # The extension may determine the kind of the file.
            name = f"pipe-{number}-{os.path.basename(entry)}"
            entries[number] = files.join(folder, name)
            with (
                file_kinds.raw(entry) as pipe,
                files.opened(entries[number], "wb") as file,
            ):
                shutil.copyfileobj(pipe, file, 1 << 20)
            has_text = len(entries) > 1 or files.size(entries[number])
            require(has_text, NOT_EMPTY, file=entry)
    return ",".join(entries)


# Files and folders that programs write to `output_dir`.
OUTPUT_NAMES = re.compile(
    r"(train|eval)-\d+-of-\d+\.tfrecord|(metadata|manifest|piece_counts)\.json"
    r"|(tokenizer|symbols|words)\.json|spiece\.(model|vocab)|vocab\.txt"
    r"|compiled_rules\.bin"
    r"|(scratch|input)-[0-9a-f]{16}(-[0-9a-f]{16})?"
)


def _is_output(pattern: str, path: str, folder: str) -> bool:
    """Return whether a path that a pattern matches is program output.

    If the pattern starts above the output folder, all files in that folder are
    program output. If the pattern starts inside the folder, only files that
    programs write to the folder are program output. A file that is named
    without a pattern is never program output.
    """
    if pattern == path or not files.is_inside(path, folder):
        return False
    names = path.split("/")
    return not files.is_inside(pattern, folder) or any(
        OUTPUT_NAMES.fullmatch(name) for name in names[-2:]
    )


def input_paths(
    patterns: str, output_dir: str | None, scratch_dir: str | None = None
) -> list[str]:
    """Return the files that `input_file` names, including `-` (standard input).

    Empty files are skipped with a warning. Program output in `output_dir` and
    `scratch_dir` is skipped too.

    Raises:
      InputError: if no files are left.
    """
    folders = [folder for folder in (output_dir, scratch_dir) if folder]

    def is_output(pattern: str, path: str) -> bool:
        return any(_is_output(pattern, path, folder) for folder in folders)

    names = files.glob(patterns, "`input_file`", is_saved_dataset, is_output)
    rule = "`input_file` must name files other than output in `output_dir`."
    require(names, rule, input_file=patterns, output_dir=output_dir)
    paths = files.distinct(path for name in names for path in data_files(name))
    empty = [
        path
        for path in paths
        if not files.is_stream(path) and not files.size(path)
    ]
    require(len(empty) < len(paths), NOT_EMPTY, file=", ".join(empty[:1]))
    if empty:
        number = f"{len(empty):,} empty file{'s' * (len(empty) > 1)}"
        print(f"Warning: skipped {number}, first {empty[0]}", flush=True)
    return [path for path in paths if path not in {*empty}]
