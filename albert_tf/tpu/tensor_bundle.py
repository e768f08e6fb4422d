"""Read and write TensorFlow checkpoints without TensorFlow.

A checkpoint consists of data files, which contain the bytes of its tensors, and
an index: a table in LevelDB's format with each tensor's type, shape, offset and
checksum. See tensorflow/core/util/tensor_bundle in
https://github.com/tensorflow/tensorflow.

A new checkpoint is a copy of a checkpoint that TensorFlow wrote, with new
values. In the index, only the checksums differ.
"""

import functools
import struct
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from albert_tf.base import files
from albert_tf.data.records.tfrecord import (
    CHECKSUM,
    masked_crc32c,
    message_class,
)
from albert_tf.training.checkpoint_files import Damaged, is_variable, name_of

# The messages of tensorflow/core/protobuf/tensor_bundle.proto.
MESSAGES = {
    "Size": ["int64 size = 1"],
    "Shape": ["repeated Size dim = 2"],
    "Header": ["int64 num_shards = 1"],
    "Entry": [
        "int64 dtype = 1",
        "Shape shape = 2",
        "int64 shard_id = 3",
        "int64 offset = 4",
        "int64 size = 5",
        "fixed32 crc32c = 6",
    ],
}
# {number in tensorflow/core/framework/types.proto: NumPy dtype}
DTYPES = {1: "<f4", 3: "<i4", 9: "<i8"}
FOOTER, MAGIC = 48, struct.pack("<Q", 0xDB4775248B80FB57)
TRAILER = 1 + CHECKSUM.size  # a block's compression type and checksum


@functools.cache
def _message(name: str) -> type:
    return message_class(MESSAGES, name)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the number at a position; return it and its end position."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _entries(index: bytes, begin: int, end: int) -> Iterator[tuple]:
    """Yield the key of each entry in a block, and the range of its value."""
    key, (restarts,) = b"", struct.unpack_from("<I", index, end - 4)
    at, end = begin, end - 4 * (restarts + 1)
    while at < end:
        shared, at = _varint(index, at)
        added, at = _varint(index, at)
        size, at = _varint(index, at)
        key = key[:shared] + bytes(index[at : at + added])
        at += added
        yield key.decode(), (at, at + size)
        at += size


def _handle(index: bytes, at: int) -> tuple[int, int, int]:
    """Decode a block handle; return the block's range and the handle's end."""
    begin, at = _varint(index, at)
    size, at = _varint(index, at)
    return begin, begin + size, at


class Bundle:
    """A checkpoint with its index in memory.

    Args:
      index: the content of the index file.
      open_data: a function that returns the content of a data file, given its
        number and the number of data files.

    Attributes:
      variables: {name: entry of the index}.
    """

    def __init__(self, index: bytes, open_data: Callable[[int, int], bytes]):
        self.index, self.open_data = index, open_data
        if index[-8:] != MAGIC:
            raise ValueError("the index is not a table")
        *_, at = _handle(index, len(index) - FOOTER)
        begin, end, _ = _handle(index, at)
        handles = [at for _, (at, _) in self._checked(begin, end)]
        self.blocks = [_handle(index, at)[:2] for at in handles]
        self.spans = dict(
            pair for block in self.blocks for pair in self._checked(*block)
        )
        begin, end = self.spans.pop("")
        self.shards = _message("Header").FromString(index[begin:end]).num_shards
        entry = _message("Entry").FromString
        self.entries = {
            k: entry(index[a:b]) for k, (a, b) in self.spans.items()
        }
        self.variables = {
            name_of(key): value
            for key, value in self.entries.items()
            if is_variable(key)
        }

    def _checked(self, begin: int, end: int) -> Iterator[tuple]:
        stored = self.index[end + 1 : end + TRAILER]
        if CHECKSUM.pack(masked_crc32c(self.index[begin : end + 1])) != stored:
            raise ValueError("the index has a wrong checksum")
        return _entries(self.index, begin, end)

    def _data(self) -> Iterator[bytes]:
        for number in range(self.shards):
            yield self.open_data(number, self.shards)

    def shapes(self) -> dict[str, tuple]:
        """Return {name: (dtype, shape)} for the variables."""
        return {
            name: (DTYPES[e.dtype], tuple(d.size for d in e.shape.dim))
            for name, e in self.variables.items()
        }

    def read(self) -> dict[str, np.ndarray]:
        """Return {name: value} for the variables."""
        data, values, shapes = list(self._data()), {}, self.shapes()
        for name, e in self.variables.items():
            content = data[e.shard_id][e.offset : e.offset + e.size]
            if masked_crc32c(content) != e.crc32c:
                raise ValueError(f"{name} has a wrong checksum")
            dtype, shape = shapes[name]
            values[name] = np.frombuffer(content, dtype).reshape(shape)
        return values

    def write(self, prefix: str, values: Mapping[str, np.ndarray]) -> None:
        """Write a checkpoint with the same names and new values.

        Args:
          prefix: the path of the new checkpoint.
          values: {name: value} of all variables.
        """
        index = bytearray(self.index)
        data = [bytearray(part) for part in self._data()]
        for key, e in self.entries.items():
            if is_variable(key):
                content = values[name_of(key)].tobytes()
                data[e.shard_id][e.offset : e.offset + e.size] = content
                # The checksum is an entry's last field.
                _, end = self.spans[key]
                crc = CHECKSUM.pack(masked_crc32c(content))
                index[end - CHECKSUM.size : end] = crc
        for begin, end in self.blocks:
            crc = CHECKSUM.pack(masked_crc32c(bytes(index[begin : end + 1])))
            index[end + 1 : end + TRAILER] = crc
        for number, part in enumerate(data):
            files.write_bytes(data_file(prefix, number, len(data)), part)
        files.write_bytes(f"{prefix}.index", index)


def data_file(prefix: str, number: int, of: int) -> str:
    """Return the path of one of a checkpoint's data files."""
    return f"{prefix}.data-{number:05d}-of-{of:05d}"


def open_bundle(prefix: str) -> Bundle:
    """Return the checkpoint with a given prefix."""
    return Bundle(
        files.read_bytes(f"{prefix}.index"),
        lambda *numbers: files.read_bytes(data_file(prefix, *numbers)),
    )


def read(prefix: str) -> dict[str, np.ndarray]:
    """Return {name: value} for a checkpoint; raise `Damaged` if damaged."""
    try:
        return open_bundle(prefix).read()
    except (OSError, ValueError, LookupError, struct.error) as error:
        raise Damaged(
            f"The checkpoint is damaged: {error}. Received: {prefix}"
        ) from error
