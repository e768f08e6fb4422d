"""Ways to damage a file, each a function of its bytes and random draws."""

import bz2
import gzip
import io
import json
import lzma
import random
import re
import struct
import zipfile
from collections.abc import Callable

from albert_tf.data.records import tfrecord

Mutator = Callable[[bytes, random.Random], bytes]

ODD_NUMBERS = (0, -1, 1.5, 2**31, 2**63, -(2**63), 10**30, 10**400, 1e308)
ODD_VALUES = (
    *(None, True, "", "x", "\ud800", "\0", "a/../../b", [], {}, [[]], {"": {}}),
    *(["x"], [1], {"content": 1}, float("nan"), float("inf"), -float("inf")),
    *ODD_NUMBERS,
)
# Replacements for a number in a text.
ODD_TEXTS = (
    *("NaN", "Infinity", "-1", "0", "1e999", "99999999999999999999", "0x10"),
    *("9" * 5000, "", "-", "1.5", "null", '"1"', "２"),
)
DEPTH = 100_000  # beyond Python's limit on recursion
LONG = 1 << 20
LONG_PIECE = "x" * 5000


def _position(data: bytes, draw: random.Random) -> int:
    return draw.randrange(len(data) + 1)


def truncate(data: bytes, draw: random.Random) -> bytes:
    """Cut off the end of the data."""
    return data[: _position(data, draw)]


def empty(data: bytes, draw: random.Random) -> bytes:
    """Remove all bytes."""
    return b""


def flip_bits(data: bytes, draw: random.Random) -> bytes:
    """Flip one to eight bits."""
    damaged = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8)) if data else 0):
        damaged[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def replace_bytes(data: bytes, draw: random.Random) -> bytes:
    """Replace a few bytes with random bytes."""
    start, size = _position(data, draw), draw.randrange(1, 16)
    return data[:start] + draw.randbytes(size) + data[start + size :]


def huge_number(data: bytes, draw: random.Random) -> bytes:
    """Overwrite some bytes with a very large number, as in a length field."""
    start, size = _position(data, draw), draw.choice((1, 2, 4, 8))
    number = draw.choice((b"\xff" * size, b"\xff" * (size - 1) + b"\x7f"))
    return data[:start] + number + data[start + size :]


def swap(data: bytes, draw: random.Random) -> bytes:
    """Swap two adjacent parts of the data."""
    a, b, c = sorted(_position(data, draw) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def repeat(data: bytes, draw: random.Random) -> bytes:
    """Repeat a part of the data."""
    a, b = sorted(_position(data, draw) for _ in range(2))
    return data[:b] + data[a:b] * draw.choice((1, 1, 50)) + data[b:]


def remove(data: bytes, draw: random.Random) -> bytes:
    """Remove a part of the data."""
    a, b = sorted(_position(data, draw) for _ in range(2))
    return data[:a] + data[b:]


def zero(data: bytes, draw: random.Random) -> bytes:
    """Overwrite a part of the data with zeros, like a lost disk block."""
    a, b = sorted(_position(data, draw) for _ in range(2))
    return data[:a] + bytes(b - a) + data[b:]


def recode(data: bytes, draw: random.Random) -> bytes:
    """Write the text in another encoding, or with a byte-order mark."""
    text = data.decode("utf-8", "replace")
    name = draw.choice(("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp500"))
    return text.encode(name, "replace")


def replace_characters(data: bytes, draw: random.Random) -> bytes:
    """Replace a byte with an unusual character."""
    odd = ("\0", "\ufeff", "\u2028", "\x85", "\r", "\t", '"', "\\", "\x1f", "▁")
    raw = draw.choice(([x.encode() for x in odd], [b"\xff", b"\xed\xa0\x80"]))
    start = _position(data, draw)
    return data[:start] + draw.choice(raw) + data[start + 1 :]


def change_number(data: bytes, draw: random.Random) -> bytes:
    """Replace a number in a text."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if not found:
        return truncate(data, draw)
    match = draw.choice(found)
    new = draw.choice(ODD_TEXTS).encode()
    return data[: match.start()] + new + data[match.end() :]


def change_lines(data: bytes, draw: random.Random) -> bytes:
    """Remove, repeat, swap, cut or extend lines, or change line endings."""
    lines = data.split(b"\n")
    i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(6)
    if kind == 0:
        del lines[i]
    elif kind == 1:
        lines.insert(j, lines[i])
    elif kind == 2:
        lines[i], lines[j] = lines[j], lines[i]
    elif kind == 3:
        lines[i] = lines[i][: draw.randrange(len(lines[i]) + 1)]
    elif kind == 4:
        lines[i] += draw.choice((b"\t", b",", b" ", b'"', b"x")) * LONG
    return draw.choice((b"\n", b"\n", b"\r\n", b"\r")).join(lines)


class Twice(dict):
    """A JSON object that is written with a duplicate key."""

    def items(self):
        """Return the items, with the first key repeated at the end."""
        pairs = list(super().items())
        return [*pairs, *((key, None) for key, _ in pairs[:1])]


def _containers(value, found: list) -> list:
    if isinstance(value, dict | list) and value:
        found.append(value)
        for item in value.values() if isinstance(value, dict) else value:
            _containers(item, found)
    return found


def _change_value(value, draw: random.Random):
    """Change one item of a JSON value; return the value."""
    found = _containers(value, [])
    if not found or draw.random() < 0.05:
        return draw.choice(ODD_VALUES)
    part = draw.choice(found)
    names = list(part) if isinstance(part, dict) else list(range(len(part)))
    name, other = draw.choice(names), draw.choice(names)
    kind = draw.randrange(6)
    if kind == 0:
        del part[name]
    elif kind == 1:
        part[name], part[other] = part[other], part[name]
    elif kind == 2 and isinstance(part, dict):
        part[draw.choice(("", "x", "type", "\ud800", f"{name} "))] = part[name]
    elif kind == 3 and isinstance(part, list):
        part.extend(part[:20] * draw.choice((1, 100)))
    else:
        part[name] = draw.choice(ODD_VALUES)
    return value


def _written(value, draw: random.Random) -> bytes:
    if isinstance(value, dict) and draw.random() < 0.05:
        value = Twice(value)
    return json.dumps(value, ensure_ascii=draw.random() < 0.9).encode(
        "utf-8", "surrogatepass"
    )


def change_json(data: bytes, draw: random.Random) -> bytes:
    """Change a value, a key or a list in a JSON text or in one of its lines."""
    try:
        return _written(_change_value(json.loads(data), draw), draw)
    except (ValueError, RecursionError):
        pass
    lines = data.split(b"\n")
    index = draw.randrange(len(lines))
    try:
        changed = _change_value(json.loads(lines[index]), draw)
    except (ValueError, RecursionError):
        return change_number(data, draw)
    lines[index] = _written(changed, draw)
    return b"\n".join(lines)


def nest(data: bytes, draw: random.Random) -> bytes:
    """Replace a JSON value, or the whole text, with a deeply nested value."""
    opening, closing = draw.choice(((b"[", b"]"), (b'{"a":', b"}")))
    depth = draw.choice((DEPTH, 900))
    deep = opening * depth + b"1" + closing * draw.choice((depth, 0))
    found = list(re.finditer(rb'(?<=: )"?[\w.]+"?', data))
    if not found or draw.random() < 0.3:
        return deep
    match = draw.choice(found)
    return data[: match.start()] + deep + data[match.end() :]


ANY: dict[str, Mutator] = {
    f.__name__: f
    for f in (
        *(truncate, empty, flip_bits, replace_bytes, huge_number, swap),
        *(repeat, remove, zero),
    )
}
TEXT = ANY | {
    f.__name__: f
    for f in (recode, replace_characters, change_number, change_lines)
}
JSON = TEXT | {f.__name__: f for f in (change_json, nest)}


def any_of(mutators: dict[str, Mutator]) -> Mutator:
    """Return a mutator that applies one of several mutators at random."""
    return lambda data, draw: draw.choice([*mutators.values()])(data, draw)


def _frames(data: bytes) -> list[bytes]:
    """Return the records in the bytes of a TFRecord file."""
    found, start = [], 0
    while start + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, start)
        found.append(data[start + 12 : start + 12 + size])
        start += 16 + size
    return found


def _framed(record: bytes, size: int | None = None) -> bytes:
    def checked(part: bytes) -> bytes:
        return part + struct.pack("<I", tfrecord.masked_crc32c(part))

    length = len(record) if size is None else size
    return checked(struct.pack("<Q", length)) + checked(record)


def reseal(data: bytes, draw: random.Random) -> bytes:
    """Damage a record or falsify its length, with correct checksums."""
    frames = _frames(data) or [b""]
    index = draw.randrange(len(frames))
    size = None
    if draw.random() < 0.2:
        size = draw.choice((0, 1, 2**31, 2**40, 2**62, 2**63, 2**64 - 16))
    else:
        frames[index] = any_of(ANY)(frames[index], draw)
    return b"".join(
        _framed(record, size if i == index else None)
        for i, record in enumerate(frames)
    )


RECORDS = ANY | {"reseal": reseal}


def reheader(data: bytes, draw: random.Random) -> bytes:
    """Change the JSON header of a safetensors file."""
    (size,) = struct.unpack_from("<Q", data)
    header = change_json(data[8 : 8 + size], draw)
    return struct.pack("<Q", len(header)) + header + data[8 + size :]


SAFETENSORS = ANY | {"reheader": reheader}


def _zstd():
    import zstandard

    return zstandard


# {magic bytes: functions that unpack and pack}
PACKED = {
    b"\x1f\x8b": (gzip.decompress, lambda x: gzip.compress(x, mtime=0)),
    b"BZh": (bz2.decompress, bz2.compress),
    b"\xfd7zXZ": (lzma.decompress, lzma.compress),
    b"\x28\xb5\x2f\xfd": (
        lambda x: _zstd().ZstdDecompressor().decompress(x),
        lambda x: _zstd().ZstdCompressor().compress(x),
    ),
}


def repack(data: bytes, draw: random.Random) -> bytes:
    """Damage the text in a compressed file."""
    unpack, pack = next(
        both for magic, both in PACKED.items() if data.startswith(magic)
    )
    return pack(any_of(JSON)(unpack(data), draw))


COMPRESSED = ANY | {"repack": repack}


def rezip(data: bytes, draw: random.Random) -> bytes:
    """Damage one file of a zip archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice([*parts])
    mutators = JSON if name.endswith(".json") else ANY
    parts[name] = any_of(mutators)(parts[name], draw)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in parts.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return target.getvalue()


ZIP = ANY | {"rezip": rezip, "rezip_again": rezip}


def respell(data: bytes, draw: random.Random) -> bytes:
    """Change the pieces, rules or settings of a SentencePiece model.

    Pieces are changed or deleted, the compiled rules are damaged, or a setting
    of the trainer is changed.
    """
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    proto = ModelProto.FromString(data)
    piece = draw.choice(proto.pieces)
    kind = draw.randrange(6)
    if kind == 0:
        piece.score = draw.choice((float("nan"), float("inf"), 1e38, -1e38))
    elif kind == 1:
        piece.piece = draw.choice(
            ("", "\0", "▁", "[MASK]", "<pad>", LONG_PIECE)
        )
    elif kind == 2:
        piece.type = draw.randrange(1, 7)
    elif kind == 3:
        del proto.pieces[draw.randrange(len(proto.pieces)) :]
    elif kind == 4:
        spec = proto.normalizer_spec
        damage = any_of(ANY)
        spec.precompiled_charsmap = damage(spec.precompiled_charsmap, draw)
    else:
        number = draw.choice((-5, 0, 3, 2**31 - 1))
        name = draw.choice(("unk_id", "pad_id", "bos_id", "model_type"))
        number = 1 + abs(number) % 4 if name == "model_type" else number
        setattr(proto.trainer_spec, name, number)
    return proto.SerializeToString()


SENTENCEPIECE = ANY | {"respell": respell, "respell_again": respell}
