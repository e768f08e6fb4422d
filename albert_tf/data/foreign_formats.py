"""Formats of files that cannot be read, with advice on their conversion."""

import codecs

MANY_ZEROS = 0.1  # a file with a larger share of zero bytes is not text
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
PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))


def _looks_16_bits_wide(head: bytes) -> bool:
    """Return whether bytes look like UTF-16 without a byte-order mark."""
    zeros = sorted(head[i::2].count(0) / max(len(head) // 2, 1) for i in (0, 1))
    return zeros[0] < 0.1 and zeros[1] > 0.5


def foreign_format(head: bytes) -> str:
    """Describe an unsupported format, with advice; return "" for other formats.

    `head` contains the first bytes of a file that is not a table.
    """
    if head.startswith(ZIP) and any(name in head for name in OFFICE):
        return (
            "is an office document; save a workbook as CSV UTF-8 with commas, "
            "or a document as text"
        )
    for offset, magic, name, command in FOREIGN:
        if head.startswith(magic, offset):
            return f"is {name}; convert it: `{command}`"
    if _looks_16_bits_wide(head):
        return (
            "looks like UTF-16; convert it: `iconv -f UTF-16LE -t UTF-8 FILE > "
            "NEW` (or UTF-16BE)"
        )
    if head.count(0) > MANY_ZEROS * len(head) or head.startswith(PICKLES):
        return "is a binary format; convert it or leave it out"
    return ""
