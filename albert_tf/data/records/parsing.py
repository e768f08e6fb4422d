"""Serialised examples as tensors; an error names the record, with its file.

Glossary: B batch.
"""

import tensorflow as tf

# `Example.features`, the only field of an example: number 1, with a length.
FEATURES_TAG = 10


def require_all(
    sound: tf.Tensor, names: tf.Tensor, fault: str
) -> tf.Operation | None:
    """Stop with the names [B] of the records that are not sound, [B] bool."""
    wrong = tf.strings.join([tf.boolean_mask(names, ~sound), ": ", fault])
    return tf.debugging.Assert(tf.reduce_all(sound), [wrong])


def _is_example(serialized: tf.Tensor) -> tf.Tensor:
    """Return [B] bool: whether one field `features` fills a record [B]."""
    head = tf.io.decode_raw(serialized, tf.uint8, fixed_length=6)
    head = tf.cast(head, tf.int64)
    tag, length = head[:, 0], head[:, 1:]  # a varint, 7 bits a byte
    goes_on = tf.math.cumprod(length // 128, axis=1)
    bits = length % 128 * [128**i for i in range(5)]
    before = tf.pad(goes_on, [[0, 0], [1, 0]], constant_values=1)[:, :-1]
    size = 1 + tf.reduce_sum(before * (1 + bits), axis=1)
    actual = tf.cast(tf.strings.length(serialized), tf.int64)
    return (tag == FEATURES_TAG) & (size == actual)


def parse_examples(
    names: tf.Tensor, serialized: tf.Tensor, features: dict
) -> dict[str, tf.Tensor]:
    """Parse a batch of examples.

    Args:
      names: [B] string, the file and the number of each record.
      serialized: [B] string.
      features: as `tf.io.parse_example` takes them; another is an error.
    """
    # TensorFlow's error quotes such a record instead of its name, and bytes
    # that are no text make it a UnicodeDecodeError.
    whole = require_all(_is_example(serialized), names, "no tf.train.Example")
    with tf.control_dependencies([whole]):
        return tf.io.parse_example(serialized, features, example_names=names)
