"""Files of records in TensorFlow's format, without TensorFlow.

A record is its length (8 bytes, little-endian), a checksum of the length, its
bytes, and a checksum of these. A checksum is a masked CRC-32C in 4 bytes.
https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

import itertools
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import google_crc32c

from albert_tf.base import files
from albert_tf.base.errors import InputError

LENGTH, CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
MASK_DELTA = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """Return the checksum that TensorFlow keeps of records and tensors."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def _with_checksum(data: bytes) -> bytes:
    """Return bytes and their checksum after them."""
    return data + CHECKSUM.pack(masked_crc32c(data))


def write(path: str, records: Iterable[bytes]) -> None:
    """Write a file of records."""
    with files.opened(path, "wb") as file:
        for record in records:
            file.write(_with_checksum(LENGTH.pack(len(record))))
            file.write(_with_checksum(record))


def _checked(framed: bytes) -> bytes | None:
    """Return bytes without the checksum at their end; None if it is wrong."""
    data = framed[: -CHECKSUM.size]
    return data if framed == _with_checksum(data) else None


def _record(file: BinaryIO, head: bytes) -> bytes | None:
    """Return the record after its length; None if either is damaged."""
    length = _checked(head)
    if length is None:
        return None
    return _checked(file.read(LENGTH.unpack(length)[0] + CHECKSUM.size))


def read(path: str) -> Iterator[bytes]:
    """Yield the records of a file.

    Raises:
      InputError: a record is damaged or cut off.
    """
    with files.opened(path, "rb") as file:
        for number in itertools.count():
            head = file.read(LENGTH.size + CHECKSUM.size)
            if not head:
                return
            record = _record(file, head)
            if record is None:
                raise InputError(
                    "A file of records must be a TFRecord file, whole and not "
                    "compressed; make or copy it again. Received: "
                    f"{path}, damaged or cut off in record {number}"
                )
            yield record
