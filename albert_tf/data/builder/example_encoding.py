"""Examples in the wire format of `tf.train.Example`, encoded in batches.

`tf.train.Example` objects built value by value cost more than everything
else together, so the few fields of the fixed layout are encoded here: numpy
makes the bytes of all values of a batch, Python joins a dozen slices per
record. https://protobuf.dev/programming-guides/encoding

Glossary: B instances, T tokens, P predictions.
"""

import functools

import numpy as np

from albert_tf.data.masking import Instances, Masked

# Tags of length-delimited fields: Example.features and its map entries (1), an
# entry's key (1) and value (2), Feature.bytes_list (1), .float_list (2) and
# .int64_list (3).
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
    """Return what stands before `size` bytes of packed values of a feature."""
    packed = FIELD_1 + _varint(size)
    inner = list_tag + _varint(len(packed) + size) + packed
    name = _delimited(FIELD_1, key.encode())
    value = FIELD_2 + _varint(len(inner) + size) + inner
    entry = name + value
    return FIELD_1 + _varint(len(entry) + size) + entry


def _rows(key: str, list_tag: bytes, data: bytes, ends: np.ndarray):
    """Return the encoded feature of each row; `ends` [B] cuts the bytes."""
    result, begin = [], 0
    for end in ends.tolist():
        head = _entry_head(key, list_tag, end - begin)
        result.append(head + data[begin:end])
        begin = end
    return result


def ints(key: str, values: np.ndarray) -> list[bytes]:
    """Encode an int64 feature of every row of values [B, n], each < 2 ** 28."""
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
    """Encode a feature of every row of values [B, n] of one size each.

    Those of bool are int64 ones, those of float32 are float ones.
    """
    list_tag = FIELD_3 if values.dtype == bool else FIELD_2
    ends = np.arange(1, len(values) + 1) * values[:1].nbytes
    return _rows(key, list_tag, values.tobytes(), ends)


def _join(*columns: list[bytes]) -> list[bytes]:
    """Return the examples whose features are the rows of the columns."""
    return [
        _delimited(FIELD_1, b"".join(row)) for row in zip(*columns, strict=True)
    ]


def encode(instances: Instances, masked: Masked) -> list[bytes]:
    """Return each instance as a serialised static record."""
    place = np.arange(instances.input_ids.shape[1])
    return _join(
        ints("input_ids", masked.input_ids),
        fixed("input_mask", place < instances.lengths[:, None]),
        fixed("segment_ids", instances.segment_ids),
        fixed("token_boundary", instances.starts),
        ints("masked_lm_positions", masked.positions),
        ints("masked_lm_ids", masked.labels),
        fixed("masked_lm_weights", masked.weights),
        fixed("next_sentence_labels", instances.swapped[:, None]),
    )


def _packed(flags: np.ndarray, sizes: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Pack the flags of all rows, end to end, into bytes row by row.

    Args:
      flags: [sum of sizes] bool.
      sizes: [B] how many flags belong to each row.

    Returns:
      the bytes of all rows, and where each row ends in them.
    """
    place = np.arange(8 * -(-int(sizes.max()) // 8))
    padded = np.zeros((len(sizes), len(place)), bool)
    padded[place < sizes[:, None]] = flags
    lengths = -(-sizes // 8)
    packed = np.packbits(padded, axis=1)
    used = np.arange(packed.shape[1]) < lengths[:, None]
    return packed[used].tobytes(), np.cumsum(lengths)


def encode_unmasked(instances: Instances, id_type: np.dtype) -> list[bytes]:
    """Return each instance as a serialised dynamic record.

    Args:
      instances: what to encode.
      id_type: `records.id_type` of the vocabulary.
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
