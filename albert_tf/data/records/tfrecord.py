"""TFRecord files and `tf.train.Example` messages, without TensorFlow.

A record consists of its length (8 bytes, little-endian), a checksum of the
length, the data, and a checksum of the data. A checksum is a masked CRC-32C of
4 bytes. Source: https://www.tensorflow.org/tutorials/load_data/tfrecord

Glossary: B instances, n tokens including special tokens, m masked tokens.
"""

import dataclasses
import functools
import itertools
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.data.masking import Instances, Masked

LENGTH, CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
MASK_DELTA = 0xA282EAD8
LEAST_BYTES = LENGTH.size + 2 * CHECKSUM.size  # minimum size of a record


def masked_crc32c(data: bytes) -> int:
    """Return the checksum that TensorFlow stores with records and tensors."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def _with_checksum(data: bytes) -> bytes:
    """Return bytes followed by their checksum."""
    return data + CHECKSUM.pack(masked_crc32c(data))


def write(path: str, records: Iterable[bytes]) -> None:
    """Write a record file."""
    with files.opened(path, "wb") as file:
        for record in records:
            file.write(_with_checksum(LENGTH.pack(len(record))))
            file.write(_with_checksum(record))


def read_counts(path: str) -> Counter:
    """Read the counts of a finished record file from the JSON file `path`."""
    return Counter(files.read_json(path, "The counts of a file"))


def write_once(
    path: str, counts_path: str, records: Callable[[Counter], Iterable[bytes]]
) -> Counter:
    """Write a file of records unless it is finished; return its counts.

    Args:
      path: the file.
      counts_path: the file of the counts; if it exists too, `path` is finished.
      records: a function that yields the records and updates the counts.
    """
    if all(map(files.exists, (counts_path, path))):
        return read_counts(counts_path)
    counts: Counter = Counter()
    with files.atomic_path(path) as temporary:
        write(temporary, records(counts))
        counts["file_bytes"] = files.size(temporary)
        files.write_json(counts_path, dict(counts))
    return counts


def _checked(framed: bytes) -> bytes | None:
    """Verify and remove the checksum at the end; return None on a mismatch."""
    data = framed[: -CHECKSUM.size]
    return data if framed == _with_checksum(data) else None


PART_BYTES = 1 << 24


def _read(file: BinaryIO, size: int) -> bytes:
    """Return up to `size` bytes, read in parts.

    A damaged size may be huge, so memory is allocated part by part.
    """
    parts = []
    while size and (part := file.read(min(size, PART_BYTES))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _record(file: BinaryIO, head: bytes) -> bytes | None:
    """Return the record that follows `head`, or None if either is damaged."""
    length = _checked(head)
    if length is None or len(length) < LENGTH.size:
        return None
    size = LENGTH.unpack(length)[0] + CHECKSUM.size
    framed = _read(file, size)
    return _checked(framed) if len(framed) == size else None


def read(path: str) -> Iterator[bytes]:
    """Yield the records of a file.

    Raises:
      InputError: if a record is damaged or truncated.
    """
    with files.opened(path, "rb") as file:
        for number in itertools.count():
            head = file.read(LENGTH.size + CHECKSUM.size)
            if not head:
                return
            record = _record(file, head)
            if record is None:
                raise InputError(
                    "A record file must be a complete, uncompressed TFRecord "
                    "file; make or copy it again. Received: "
                    f"{path}, damaged or truncated in record {number}"
                )
            yield record


# The encoding of tensorflow/core/example/example.proto and feature.proto, in
# which a map is a list of entries.
MESSAGES = {
    "BytesList": ["repeated bytes value = 1"],
    "FloatList": ["repeated float value = 1"],
    "Int64List": ["repeated int64 value = 1"],
    "Feature": [
        "BytesList bytes_list = 1",
        "FloatList float_list = 2",
        "Int64List int64_list = 3",
    ],
    "Entry": ["string key = 1", "Feature value = 2"],
    "Features": ["repeated Entry feature = 1"],
    "Example": ["Features features = 1"],
}

Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "bytes": Field.TYPE_BYTES,
    "fixed32": Field.TYPE_FIXED32,
    "float": Field.TYPE_FLOAT,
    "int64": Field.TYPE_INT64,
    "string": Field.TYPE_STRING,
}


def _field(text: str) -> descriptor_pb2.FieldDescriptorProto:
    """Return the descriptor of a field that is declared as in `MESSAGES`."""
    *repeated, kind, name, _, number = text.split()
    field = Field(name=name, number=int(number), label=Field.LABEL_OPTIONAL)
    if repeated:
        field.label = Field.LABEL_REPEATED
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type_name = kind
    return field


def message_class(messages: dict[str, list[str]], name: str) -> type:
    """Return the class of a protobuf message, defined in a new pool.

    Args:
      messages: {message: fields, as in a `.proto` file}.
      name: one of these messages.
    """
    file = descriptor_pb2.FileDescriptorProto(name="file", syntax="proto3")
    for message, lines in messages.items():
        file.message_type.add(name=message, field=map(_field, lines))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


@functools.cache
def _example_class() -> type:
    return message_class(MESSAGES, "Example")


def parse(serialized: bytes) -> defaultdict[str, Sequence]:
    """Return the values of each feature in an example, by name.

    A missing feature has no values.

    Raises:
      ValueError: if the bytes are not an example.
    """
    try:
        example = _example_class().FromString(serialized)
    except DecodeError as error:
        raise ValueError(f"not a tf.train.Example: {error}") from None
    features: defaultdict[str, Sequence] = defaultdict(tuple)
    for entry in example.features.feature:
        for _, values in entry.value.ListFields():
            features[entry.key] = values.value
    return features


# Tags of length-delimited fields: 1 is Example.features, a map entry of
# Features, an entry's key, Feature.bytes_list, or the values of any list; 2 is
# an entry's value, or Feature.float_list; 3 is Feature.int64_list.
FIELD_1, FIELD_2, FIELD_3 = b"\x0a", b"\x12", b"\x1a"


@functools.cache
def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes(encoded) + bytes([value])


def _delimited(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


@functools.cache
def _entry_head(key: str, list_tag: bytes, size: int) -> bytes:
    """Return the bytes that precede `size` bytes of packed feature values."""
    packed = FIELD_1 + _varint(size)
    inner = list_tag + _varint(len(packed) + size) + packed
    name = _delimited(FIELD_1, key.encode())
    value = FIELD_2 + _varint(len(inner) + size) + inner
    entry = name + value
    return FIELD_1 + _varint(len(entry) + size) + entry


def _rows(key: str, list_tag: bytes, data: bytes, ends: np.ndarray):
    """Return the encoded feature of each row; `ends` [B] splits the bytes."""
    result, begin = [], 0
    for end in ends.tolist():
        head = _entry_head(key, list_tag, end - begin)
        result.append(head + data[begin:end])
        begin = end
    return result


def ints(key: str, values: np.ndarray) -> list[bytes]:
    """Encode values [B, n], each below 2**28, as an int64 feature per row."""
    values = values.astype(np.uint32)
    largest = int(values.max(initial=0))
    width = max(1, (largest.bit_length() + 6) // 7)
    shifted = values[..., None] >> np.arange(0, 7 * width, 7, dtype=np.uint32)
    present = shifted > 0
    present[..., 0] = True
    data = (shifted & 127).astype(np.uint8)
    data[..., :-1] |= present[..., 1:].astype(np.uint8) << 7
    ends = np.cumsum(np.count_nonzero(present, axis=(1, 2)))
    return _rows(key, FIELD_3, data[present].tobytes(), ends)


def fixed(key: str, values: np.ndarray) -> list[bytes]:
    """Encode fixed-size values [B, n] as one feature per row.

    Bool values become an int64 feature, and float32 values a float feature.
    """
    list_tag = FIELD_3 if values.dtype == bool else FIELD_2
    ends = np.arange(1, len(values) + 1) * values[:1].nbytes
    return _rows(key, list_tag, values.tobytes(), ends)


def _join(*columns: list[bytes]) -> list[bytes]:
    """Return one example per row, with a feature from each column."""
    return [
        _delimited(FIELD_1, b"".join(row)) for row in zip(*columns, strict=True)
    ]


def encode_ints(features: Mapping[str, np.ndarray]) -> list[bytes]:
    """Serialize each row of integers [B, n] as a record; see `ints`."""
    return _join(*(ints(key, values) for key, values in features.items()))


def encode(instances: Instances, masked: Masked) -> list[bytes]:
    """Serialize each instance as a static record."""
    position = np.arange(instances.input_ids.shape[1])
    return _join(
        ints("input_ids", masked.input_ids),
        fixed("input_mask", position < instances.lengths[:, None]),
        fixed("segment_ids", instances.segment_ids),
        fixed("token_boundary", instances.starts),
        ints("masked_lm_positions", masked.positions),
        ints("masked_lm_ids", masked.labels),
        fixed("masked_lm_weights", masked.weights),
        fixed("next_sentence_labels", instances.swapped[:, None]),
    )


def _packed(flags: np.ndarray, sizes: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Pack flags into bits; each row starts on a new byte.

    Args:
      flags: [sum of sizes] bool.
      sizes: [B], the number of flags in each row.

    Returns:
      The bytes of all rows, and the end of each row in these bytes.
    """
    column = np.arange(8 * -(-int(sizes.max()) // 8))
    padded = np.zeros((len(sizes), len(column)), bool)
    padded[column < sizes[:, None]] = flags
    lengths = -(-sizes // 8)
    packed = np.packbits(padded, axis=1)
    used = np.arange(packed.shape[1]) < lengths[:, None]
    return packed[used].tobytes(), np.cumsum(lengths)


def encode_unmasked(instances: Instances, id_type: np.dtype) -> list[bytes]:
    """Serialize each instance as a dynamic record.

    Args:
      instances: the instances to encode.
      id_type: `layout.id_type` of the vocabulary.
    """
    real = instances.maskable
    ids = instances.input_ids[real].astype(id_type).tobytes()
    sizes = np.count_nonzero(real, axis=1)
    in_b = np.count_nonzero(real & instances.segment_ids, axis=1)
    return _join(
        _rows("token_ids", FIELD_1, ids, np.cumsum(sizes) * id_type.itemsize),
        _rows("word_starts", FIELD_1, *_packed(instances.starts[real], sizes)),
        ints("segment_lengths", np.stack([sizes - in_b, in_b], axis=1)),
        fixed("next_sentence_labels", instances.swapped[:, None]),
    )


def _nothing() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True)
class Example:
    """A decoded record, without padding.

    In records of text, each segment ends with [SEP].

    Attributes:
      input_ids: [n] int64, with masks applied. Dynamic records have no special
        tokens; -1 represents [CLS] and -2 represents [SEP].
      segment_ids: [n], 0 in A and 1 in B.
      positions: [m], the positions of the masked tokens.
      labels: [m], the original ids of the masked tokens.
      swapped: the sentence-order label.
      slots: the number of prediction slots; 0 for an unmasked record.
      length: the number of tokens including padding (dynamic and phoneme
        records: n).
      words: [n], the word label at each symbol of a phoneme record, or None for
        other records.
    """

    input_ids: np.ndarray
    segment_ids: np.ndarray
    length: int
    positions: np.ndarray = dataclasses.field(default_factory=_nothing)
    labels: np.ndarray = dataclasses.field(default_factory=_nothing)
    swapped: bool = False
    slots: int = 0
    words: np.ndarray | None = None

    def originals(self) -> np.ndarray:
        """Return the ids [n] before masking."""
        ids = self.input_ids.copy()
        ids[self.positions] = self.labels
        return ids

    def segments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of A and B before masking, without special tokens."""
        ids, b_start = self.originals(), np.searchsorted(self.segment_ids, 1)
        return ids[1 : b_start - 1], ids[b_start:-1]


CLS, SEP = -1, -2


def _decode_dynamic(feature) -> Example:
    a_size, b_size = feature["segment_lengths"]
    total = a_size + b_size
    data = feature["token_ids"][0]
    ids = np.frombuffer(data, f"<u{len(data) // max(total, 1)}")
    length = total + 2 + (b_size > 0)
    pieces = [CLS], ids[:a_size], [SEP], ids[a_size:], [SEP]
    return Example(
        input_ids=np.concatenate(pieces)[:length],
        segment_ids=np.repeat([0, 1], [a_size + 2, b_size + 1])[:length],
        length=length,
        swapped=bool(feature["next_sentence_labels"][0]),
    )


def _decode_phonemes(feature) -> Example:
    labels = np.array(feature["word_ids"])
    end = np.flatnonzero(labels)[-1] + 2  # including the last separator
    ids = np.array(feature["symbol_ids"])[:end]
    segments = np.zeros(len(ids), np.int64)
    return Example(ids, segments, len(ids), words=labels[:end])


def _decode_static(feature) -> Example:
    def array(name):
        return np.array(feature[name])

    real = array("input_mask") > 0
    weights = array("masked_lm_weights")
    return Example(
        input_ids=array("input_ids")[real],
        segment_ids=array("segment_ids")[real],
        positions=array("masked_lm_positions")[weights > 0],
        labels=array("masked_lm_ids")[weights > 0],
        swapped=bool(array("next_sentence_labels")[0]),
        slots=len(weights),
        length=len(real),
    )


# {feature that only this form of records has: function that decodes it}
FORMS = {"token_ids": _decode_dynamic, "symbol_ids": _decode_phonemes}


def decode(serialized: bytes) -> Example:
    """Decode a static, dynamic, phoneme or released record.

    Raises:
      ValueError: if the bytes are not a pretraining record.
    """
    feature = parse(serialized)
    forms = (form for name, form in FORMS.items() if name in feature)
    try:
        example = next(forms, _decode_static)(feature)
    except (IndexError, TypeError) as error:
        raise ValueError(f"not a pretraining record: {error}") from None
    arrays = (x for x in vars(example).values() if isinstance(x, np.ndarray))
    if any(x.dtype.kind not in "iu" for x in arrays):
        raise ValueError("not a pretraining record: values must be integers")
    if not set(example.positions.tolist()) <= {*range(len(example.input_ids))}:
        raise ValueError("a masked position outside the tokens")
    if not set(example.segment_ids.tolist()) <= {0, 1}:
        raise ValueError("a segment id other than 0 and 1")
    return example


def decoded(path: str, count: int | None = None) -> Iterator[Example]:
    """Yield the decoded records of a file, or the first `count` of them.

    Raises:
      InputError: if a record is damaged or is not a pretraining record.
    """
    records = itertools.islice(read(path), count)
    for number, record in enumerate(records):
        try:
            yield decode(record)
        except ValueError as error:
            raise InputError(
                "The file must contain pretraining records. "
                f"Received: {path}, record {number} ({error})"
            ) from None
