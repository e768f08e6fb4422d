"""Detect the kind of a file from its first bytes and its name.

Every program that reads text or tables opens its files through this module,
which decompresses them and detects their kind. An unsupported format raises an
error that names the format, if it is known.
"""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, AnyStr, BinaryIO, NamedTuple

from albert_tf.base import files
from albert_tf.base.errors import InputError, input_errors, require
from albert_tf.base.packages import need
from albert_tf.base.remote_files import is_of_storage

TEXT, CSV, TSV, PARQUET, ARROW = "text", "csv", "tsv", "parquet", "arrow"
JSONL = "jsonl"  # one object per line
JSON = "json"  # an array, or an object that spans several lines

HEAD_BYTES = 1 << 16  # number of bytes read to detect the kind of a file
BUFFER_BYTES = 1 << 20
MANY_ZEROS = 0.1  # a file with a larger share of zero bytes is not text
HEAD_LINES = 20  # number of lines examined to recognize JSON lines

ENDINGS = {
    ".json": JSONL,
    ".jsonl": JSONL,
    ".ndjson": JSONL,
    ".csv": CSV,
    ".tsv": TSV,
    ".parquet": PARQUET,
    ".arrow": ARROW,
}

# First bytes that identify a table, regardless of its name. Text may begin with
# PAR1, the name of a protein, but does not contain \x15. Arrow has a file and a
# stream format.
ARROW_FILE = b"ARROW1\0"
TABLES = {
    b"PAR1\x15": PARQUET,
    ARROW_FILE: ARROW,
    b"\xff\xff\xff\xff": ARROW,
}

# The encoding of text that is not UTF-8 cannot be detected reliably.
TO_UTF_8 = (
    "convert it with `iconv -f ENCODING -t UTF-8 FILE > NEW`, where ENCODING "
    "is often CP1252, CP1251, CP1254, CP1256, SHIFT_JIS, EUC-KR or GB18030"
)
FROM_UTF_32 = "UTF-32", "iconv -f UTF-32 -t UTF-8 FILE > NEW"
FROM_UTF_16 = "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > NEW"
ZIP = b"PK\x03\x04"
# (offset, bytes at the offset, format, command that converts the file)
FOREIGN = (
    (0, codecs.BOM_UTF32_LE, *FROM_UTF_32),
    (0, codecs.BOM_UTF32_BE, *FROM_UTF_32),
    (0, codecs.BOM_UTF16_LE, *FROM_UTF_16),  # a prefix of UTF-32's mark
    (0, codecs.BOM_UTF16_BE, *FROM_UTF_16),
    (0, ZIP, "a zip archive", "unzip FILE"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x FILE"),
    (0, b"Rar!\x1a\x07", "a rar archive", "unrar x FILE"),
    (0, b"\x04\x22\x4d\x18", "compressed by lz4", "lz4 -d FILE NEW"),
    (0, b"LZIP\1", "compressed by lzip", "lzip -d FILE"),
    (0, b"\x1f\x9d", "compressed by compress", "gzip -dc FILE > NEW"),
    (0, b"%PDF-", "a PDF document", "pdftotext FILE NEW"),
    (0, b"{\\rtf", "an RTF document", "unrtf --text FILE > NEW"),
    (
        0,
        b"SQLite format 3\0",
        "an SQLite database",
        "sqlite3 -csv -header FILE 'SELECT text FROM TABLE' > NEW.csv",
    ),
    (257, b"ustar\0", "a tar archive", "tar -xf FILE"),
    (257, b"ustar  \0", "a tar archive", "tar -xf FILE"),
)

# Names inside office documents, which are zip archives.
OFFICE = (
    *(b"[Content_Types].xml", b"docProps/app.xml"),
    b"mimetypeapplication/vnd.oasis",
)
OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # .xls and .doc
PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))

OBJECT = re.compile(rb'\{\s*("([^"\\]|\\.)*"\s*:|\}|$)')
ARRAY = re.compile(rb'\[\s*\{\s*"')


class BadData(InputError):
    """An error about one unusable item, such as a row or a damaged file."""


class Refused(BadData):
    """An error about a bad item that must not be skipped."""


# Errors of the decompressing libraries, except zstandard.
DAMAGE = EOFError, zlib.error, lzma.LZMAError, OSError


def _zstd_errors() -> tuple[type[Exception], ...]:
    library = sys.modules.get("zstandard")
    return (library.ZstdError,) if library else ()


class _Unpacked(io.RawIOBase):
    """A decompressed stream whose errors name the file.

    Args:
      file: the decompressing stream.
      path: the name of the file, for error messages.
      head: bytes already read from the stream.
      damage: the error to raise after `head`, or None.
    """

    def __init__(
        self,
        file: Any,
        path: str,
        head: bytes = b"",
        damage: BadData | None = None,
    ):
        self._file, self._path, self._head = file, path, head
        self._damage = damage

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        if self._damage and not self._head:
            raise self._damage
        try:
            # Unlike `read`, `read1` returns all bytes before the damage.
            data = self._head[: len(buffer)] or self._file.read1(len(buffer))
        except (*DAMAGE, *_zstd_errors()) as error:
            if is_of_storage(error):
                raise
            raise damaged(self._path, error) from None
        self._head = self._head[len(data) :]
        buffer[: len(data)] = data
        return len(data)


def damaged(path: str, error: object) -> BadData:
    """Return the error for a truncated or corrupt compressed file."""
    ending = os.path.splitext(path)[1].lower()
    kind = f"{ending} file" if ending in PACKED_ENDINGS else "compressed file"
    return BadData(
        f"A damaged {kind} cannot be read ({error}). Received: {path}"
    )


class _Zstd:
    """A reader of Zstandard files that reports truncated frames."""

    def __init__(self, file: BinaryIO):
        use = "Reading a file without decompressing it with `zstd -d FILE`"
        need(use, "zstandard", path=getattr(file, "name", file))
        import zstandard

        # Large enough for `zstd --long=31`.
        self._library = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._file, self._frame, self._ready = file, None, b""

    def read1(self, size: int) -> bytes:
        while not self._ready:
            packed = self._file.read(HEAD_BYTES)
            if not packed:
                if self._frame:
                    raise EOFError("it ends inside a frame")
                return b""
            self._unpack(packed)
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def _unpack(self, packed: bytes) -> None:
        parts = []
        while packed:
            self._frame = self._frame or self._library.decompressobj()
            parts.append(self._frame.decompress(packed))
            packed = b""
            if self._frame.eof:
                packed, self._frame = self._frame.unused_data, None
        self._ready = b"".join(parts)


class Packing(NamedTuple):
    """A compression format."""

    magic: tuple[bytes, ...]  # possible first bytes of a file
    endings: tuple[str, ...]
    open: Callable  # opens a compressed file as a decompressed one


PACKINGS = (
    Packing((b"\x1f\x8b",), (".gz",), lambda file: gzip.GzipFile(fileobj=file)),
    Packing(
        tuple(
            b"BZh%d%s" % (size, block)
            for size in range(1, 10)
            for block in (b"1AY&SY", b"\x17rE8P\x90")
        ),
        (".bz2",),
        bz2.BZ2File,
    ),
    Packing((b"\xfd7zXZ\0", b"]\0\0"), (".xz", ".lzma"), lzma.LZMAFile),
    Packing(
        (b"\x28\xb5\x2f\xfd", *(b"%c*M\x18" % i for i in range(0x50, 0x60))),
        (".zst", ".zstd"),
        _Zstd,
    ),
)
PACKED_ENDINGS = tuple(end for packing in PACKINGS for end in packing.endings)


class Source(NamedTuple):
    """An open file, decompressed, and its kind."""

    file: BinaryIO
    kind: str
    head: bytes  # the first bytes
    damage: BadData | None = None  # the error beyond `head`, if any

    def fields(self) -> list[str]:
        """Return the distinct field names in the first JSON objects."""
        objects = _objects(_first_lines(self.head))
        return list(dict.fromkeys(name for x in objects for name in x))


def ending_of(path: str) -> str:
    """Return a file's extension, in lower case: `.tsv` for `x.TSV.gz`."""
    name, ending = os.path.splitext(os.fspath(path).lower())
    return os.path.splitext(name)[1] if ending in PACKED_ENDINGS else ending


_RUNS = {bytes: re.compile(rb"\r+\n?"), str: re.compile(r"\r+\n?")}


def with_line_feeds(text: AnyStr) -> AnyStr:
    """Return text with lone carriage returns replaced by line feeds.

    Carriage returns before a line feed are kept, because CRCRLF is one line
    ending.
    """
    feed = b"\n" if isinstance(text, bytes) else "\n"

    def ends(run: re.Match) -> AnyStr:
        return run[0] if run[0].endswith(feed) else feed * len(run[0])

    return _RUNS[type(text)].sub(ends, text)


class _ClassicMac(io.RawIOBase):
    """A stream in which line feeds replace lone carriage returns."""

    def __init__(self, file: Any):
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        data, split = self._file.read1(len(buffer)), False
        if data.endswith(b"\r"):
            with contextlib.suppress(BadData):  # the next read raises it
                split = self._file.peek(1)[:1] == b"\n"
        end = len(data) - split  # a CRLF may be split
        data = with_line_feeds(data[:end]) + data[end:]
        buffer[: len(data)] = data
        return len(data)


def until_damage(file: Any, size: int) -> tuple[bytes, BadData | None]:
    """Return up to `size` bytes before any damage, and the error for damage.

    The error is None if there is no damage. The result has fewer bytes only if
    the file ends or is damaged.
    """
    data = b""
    try:
        while part := file.read1(size - len(data)):
            data += part
    except BadData as error:
        return data, error
    return data, None


def _read_head(file: Any, path: str) -> tuple[bytes, Any, BadData | None]:
    """Return a file's first bytes, the rewound file, and the error for damage.

    The error is None if these bytes are undamaged. Otherwise, the bytes precede
    the damage, and reading beyond them raises the error. If no byte can be
    read, the error is raised at once.
    """
    head, damage = until_damage(file, HEAD_BYTES)
    if damage and not head:
        raise damage
    if file.seekable():
        file.seek(0)
        return head, file, damage
    replayed = _Unpacked(file, path, head, damage)
    return head, io.BufferedReader(replayed, BUFFER_BYTES), damage


def _looks_like_utf16(head: bytes) -> bool:
    """Return whether bytes look like UTF-16 without a byte-order mark."""
    zeros = sorted(head[i::2].count(0) / max(len(head) // 2, 1) for i in (0, 1))
    return zeros[0] < 0.1 and zeros[1] > 0.5


def _foreign_format(head: bytes) -> str:
    """Describe an unsupported format, with advice; return "" for any other.

    `head` contains the first bytes of a file that is not a table.
    """
    is_office = head.startswith(ZIP) and any(name in head for name in OFFICE)
    if is_office or head.startswith(OLD_OFFICE):
        return (
            "is an office document; save a workbook as CSV UTF-8 with commas, "
            "or a document as text"
        )
    for offset, magic, name, command in FOREIGN:
        if head.startswith(magic, offset):
            return f"is {name}; convert it: `{command}`"
    if _looks_like_utf16(head):
        return (
            "looks like UTF-16; convert it: `iconv -f UTF-16LE -t UTF-8 FILE > "
            "NEW` (or UTF-16BE)"
        )
    if head.count(0) > MANY_ZEROS * len(head) or head.startswith(PICKLES):
        return "is a binary format; convert it or leave it out"
    return ""


def _require_native(head: bytes, path: str) -> None:
    """Raise `InputError` unless a file contains text or a table."""
    found = "" if head.startswith((*TABLES,)) else _foreign_format(head)
    rule = f"A file must be UTF-8 text or a table, but this file {found}."
    require(not found, rule, file=path)


def is_utf8(data: bytes, is_complete: bool = True) -> bool:
    """Return whether bytes are UTF-8.

    Args:
      data: the bytes.
      is_complete: whether the last character must be complete.
    """
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data, is_complete)
    except UnicodeDecodeError:
        return False
    return True


def _first_lines(head: bytes) -> list[bytes]:
    """Return the complete, non-blank lines among the first `HEAD_LINES`.

    `head` contains the first `HEAD_BYTES` of a file, or the entire file.
    """
    lines = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", HEAD_LINES)
    if len(lines) > HEAD_LINES or len(head) >= HEAD_BYTES:
        lines.pop()
    return [line.strip() for line in lines if line.strip()]


def _objects(lines: list[bytes]) -> list[dict]:
    """Return the parsed lines that are JSON objects; ignore other lines."""
    objects = []
    for line in lines:
        with contextlib.suppress(ValueError):
            if line[:1] == b"{":
                objects.append(files.json_value(line))
    return objects


def _json_kind(head: bytes) -> str | None:
    """Return the kind of JSON in a file, or None if the file is not JSON."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if ARRAY.match(text):
        return JSON
    lines = _first_lines(head)
    number = len(_objects(lines))
    if number and 2 * number >= len(lines):
        return JSONL
    if not OBJECT.match(text):
        return None
    if len(lines) < 2:  # one object, invalid or longer than the head
        return JSONL
    continues = lines[0][-1:] in (b"{", b"[", b",")
    return JSON if continues and not _objects(lines[:1]) else None


def _kind(head: bytes, path: str) -> str:
    for magic, kind in TABLES.items():
        if head.startswith(magic):
            return kind
    kind = ENDINGS.get(ending_of(path), TEXT)
    if b"{" in head:
        return _json_kind(head) or kind
    return kind


@contextlib.contextmanager
def raw(path: str) -> Iterator[BinaryIO]:
    """Open a file, or standard input, without decompressing it."""
    if path == files.STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    with files.opened(path, "rb") as file:
        yield file


@contextlib.contextmanager
def opened(path: str) -> Iterator[Source]:
    """Open a text file, a table or standard input for reading.

    Raises:
      InputError: if the file is neither text nor a table, or if its compression
        requires a library that is not installed.
      BadData: if no byte can be read; damage after the first byte raises the
        error when `Source.file` is read.
    """
    with raw(path) as packed_file:
        head, file, damage = _read_head(packed_file, path)
        packed = False
        while packing := next(
            (p for p in PACKINGS if head.startswith(p.magic)), None
        ):
            unpacked = _Unpacked(packing.open(file), path)
            file = io.BufferedReader(unpacked, BUFFER_BYTES)
            head, file, damage = _read_head(file, path)
            packed = True
        named_packed = path.lower().endswith(PACKED_ENDINGS)
        if named_packed and not packed and not is_utf8(head, False):
            raise damaged(path, "its first bytes do not match the format")
        _require_native(head, path)
        if b"\r" in head and b"\n" not in head and is_utf8(head, False):
            file = io.BufferedReader(_ClassicMac(file), BUFFER_BYTES)
            head = with_line_feeds(head)
        yield Source(file, _kind(head, path), head, damage)


def require_lines(kind: str, path: str) -> None:
    """Raise `InputError` for JSON that is not one object per line."""
    rule = (
        "JSON must have one object per line, but this is an array or an "
        "object that spans several lines; convert it: `jq -c '.[]' FILE > NEW` "
        "(an array), `jq -c . FILE > NEW` (objects), or `sed 's/,\\s*$//' FILE "
        "> NEW` (one object per line, with commas between them)."
    )
    require(kind != JSON, rule, file=path)


def kind_of(path: str) -> str:
    """Return the kind of a file, such as `TEXT` or `PARQUET`.

    If the path does not name a file, the kind is inferred from the name. This
    also applies to pipes, which can be read only once.
    """
    if not files.is_file(path) or files.is_stream(path):
        return ENDINGS.get(ending_of(path), TEXT)
    with opened(path) as source:
        return source.kind


def read_text(path: str, what: str) -> str:
    """Return the decompressed text of a file, without its byte-order mark.

    Args:
      path: the file.
      what: the description of the file in error messages.

    Raises:
      InputError: if the file does not exist, is damaged or is not UTF-8.
    """
    files.require_file(files.is_file(path), what, path)
    with opened(path) as source:
        data = source.file.read()
    rule = f"{what} must be UTF-8; {TO_UTF_8}"
    with input_errors(UnicodeDecodeError, rule, file=path):
        return data.decode("utf-8").removeprefix("\ufeff")
