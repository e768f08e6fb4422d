"""Text files as blocks of whole lines, and blocks as documents of lines."""

import dataclasses
import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator

import tensorflow as tf

from albert_tf.errors import InputError

# The unit of work of one process. A document is cut over blocks only if it is
# larger than this, so its first block holds at least this much of it.
BLOCK_BYTES = 1 << 20

BAD_TEXT = ("fail", "replace", "skip")


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive whole lines of one file.

    `document` is the hash of the document that goes on from the block before,
    and `piece` counts the blocks of that document; they are None and 0 where
    the block begins with a document of its own.
    """

    path: str
    first_line: int  # counted from 1
    offset: int  # bytes before the block in the (decompressed) file
    data: bytes
    document: int | None = None
    piece: int = 0


def document_hash(lines: list[str], seed: int) -> int:
    """Return 64 bits that depend on the seed and on a document's text."""
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8, key=str(seed).encode())
    return int.from_bytes(digest.digest(), "little")


def _cut(buffer: bytes) -> int:
    """Return the length of the whole documents in a buffer of whole lines.

    0 if the buffer holds one unfinished document.
    """
    end = buffer.rfind(b"\n")
    while end >= 0:
        begin = buffer.rfind(b"\n", 0, end) + 1
        if not buffer[begin:end].decode("utf-8", "replace").strip():
            return end + 1
        end = begin - 1
    return 0


def _pieces(path: str) -> Iterator[bytes]:
    """Yield runs of whole lines of at least `BLOCK_BYTES`, then the rest."""
    with tf.io.gfile.GFile(path, "rb") as raw:
        file = gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw
        parts, size = [], 0
        while data := file.read(BLOCK_BYTES):
            parts.append(data)
            size += len(data)
            end = data.rfind(b"\n") + 1
            if size >= BLOCK_BYTES and end:
                whole = b"".join(parts[:-1]) + data[:end]
                parts, size = [data[end:]], len(data) - end
                yield whole
        yield b"".join(parts)


def _raw_blocks(path: str) -> Iterator[tuple[bytes, bool]]:
    """Yield blocks and whether the block's last document goes on after it."""
    buffer = b""
    for piece in _pieces(path):
        buffer += piece
        if len(buffer) < BLOCK_BYTES:
            continue
        end = _cut(buffer)
        yield buffer[: end or None], not end
        buffer = buffer[end:] if end else b""
    if buffer:
        yield buffer, False


def blocks(path: str, seed: int, on_bad_text: str) -> Iterator[Block]:
    """Yield the blocks of one text file, plain or `.gz`, in order."""
    line, offset, document, piece = 1, 0, None, 0
    try:
        for data, open_end in _raw_blocks(path):
            block = Block(path, line, offset, data, document, piece)
            yield block
            line += data.count(b"\n")
            offset += len(data)
            if not open_end:
                document, piece = None, 0
                continue
            if document is None:
                (lines,) = read_documents(block, on_bad_text, Counter())
                document = document_hash(lines, seed)
            piece += 1
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"`input_file` holds a damaged .gz file ({error}). Received: {path}"
        ) from None


def _bad_line(error: UnicodeDecodeError, block: Block, start: int, policy: str):
    """Return the lines to read instead of one that is not UTF-8.

    Args:
      error: what decoding the line raised.
      block: where the line stands.
      start: the line's first byte in the block.
      policy: one of `BAD_TEXT`.
    """
    if policy == "fail":
        line = block.first_line + block.data.count(b"\n", 0, start)
        raise InputError(
            "`input_file` must be UTF-8; convert it, or give "
            "--on_bad_text=replace or skip. Received: bad bytes in "
            f"{block.path}, line {line}, byte "
            f"{block.offset + start + error.start} of the file"
        )
    return [error.object.decode("utf-8", "replace")] * (policy == "replace")


def _decode(block: Block, on_bad_text: str, counts: Counter) -> list[str]:
    """Return the lines of a block, bad ones treated as the flag says."""
    data = block.data
    try:
        return data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        pass
    lines, start = [], 0
    for raw in data.split(b"\n"):
        try:
            lines.append(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            lines += _bad_line(error, block, start, on_bad_text)
            counts["bad_lines"] += 1
        start += len(raw) + 1
    return lines or [""]


def read_documents(
    block: Block, on_bad_text: str, counts: Counter
) -> list[list[str]]:
    """Split a block into documents of stripped, non-blank lines.

    The first document may be empty where the block goes on with a document
    of the block before: it holds the lines that still belong to that one.
    There is always a first document, empty if the block has no text.
    """
    lines = _decode(block, on_bad_text, counts)
    if block.offset == 0:
        lines[0] = lines[0].removeprefix("\ufeff")
    goes_on = block.document is not None
    documents: list[list[str]] = [[]]
    for line in lines:
        line = line.strip()
        if line:
            documents[-1].append(line)
        elif documents[-1] or (goes_on and len(documents) == 1):
            documents.append([])
    if not documents[-1] and len(documents) > 1:
        documents.pop()
    return documents


def check_not_empty(paths: list[str]) -> None:
    """Raise `InputError` for input files without a byte."""
    for path in paths:
        if tf.io.gfile.stat(path).length == 0:
            raise InputError(
                "`input_file` must not hold empty files; remove it from the "
                f"list. Received: {path}"
            )
