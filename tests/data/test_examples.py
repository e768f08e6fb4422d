"""Our parser reads `tf.train.Example` without TensorFlow."""

import numpy as np
import tensorflow as tf
from tiny_records import serialized

from albert_tf.data.records import tfrecord


def test_values_of_every_kind():
    """Integers, floats and byte strings are read as written."""
    written = {
        "ints": [0, 1, -1, 2**62, -(2**63)],
        "floats": [0.0, -1.5, float(np.float32(0.1))],
        "strings": [b"", b"\xff\x00", "naïve".encode()],
    }
    found = tfrecord.parse(serialized(**written))
    assert {name: list(values) for name, values in found.items()} == written


def test_features_without_values():
    """A feature that is missing, empty or of no type yields no values."""
    example = tf.train.Example()
    example.features.feature["empty"].int64_list.SetInParent()
    example.features.feature["nothing"].SetInParent()
    found = tfrecord.parse(example.SerializeToString())
    assert [len(found[n]) for n in ("empty", "nothing", "missing")] == [0] * 3


def test_values_that_are_not_packed():
    """Integers stored one by one, instead of packed, are also read."""
    # Example.features.feature{"a": {int64_list: [1, 2]}}, where each value
    # has a tag.
    values = b"\x08\x01\x08\x02"
    kind = b"\x1a" + bytes([len(values)]) + values
    entry = b"\x0a\x01a\x12" + bytes([len(kind)]) + kind
    features = b"\x0a" + bytes([len(entry)]) + entry
    example = b"\x0a" + bytes([len(features)]) + features
    written = tf.train.Example.FromString(example).features.feature["a"]
    assert list(written.int64_list.value) == [1, 2]
    assert list(tfrecord.parse(example)["a"]) == [1, 2]
