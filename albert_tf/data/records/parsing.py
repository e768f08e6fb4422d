"""Parse records of each form into batches of tensors.

Dynamic and phoneme records are masked while they are read, by Python functions
that are called from threads of the input pipeline. A thread that is waiting for
the GIL when the interpreter shuts down never returns; if its pipeline is then
destroyed, the process hangs. The interpreter therefore waits for such calls at
exit.

Shapes: B batch size, T tokens, P predictions, R = T - 3 tokens of both
segments.
"""

import atexit
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from albert_tf.data.layout import Masker, id_type, vocabulary_beside
from albert_tf.data.masking import DYNAMIC, STATIC, Draws
from albert_tf.data.phoneme_masking import mask_words
from albert_tf.data.records.metadata import (
    MASKED_NAMES,
    PHONEMES,
    Metadata,
    are_legal,
    static_sizes,
    value_limits,
)

# Tag of `Example.features`, an example's only field: number 1,
# length-delimited.
FEATURES_TAG = 10


def require_all(
    valid: tf.Tensor, names: tf.Tensor, fault: str
) -> tf.Operation | None:
    """Raise an error that names the records for which `valid` [B] is false."""
    wrong = tf.strings.join([tf.boolean_mask(names, ~valid), ": ", fault])
    return tf.debugging.Assert(tf.reduce_all(valid), [wrong])


def _is_example(serialized: tf.Tensor) -> tf.Tensor:
    """Return bool [B], true for records that have only the field `features`."""
    head = tf.io.decode_raw(serialized, tf.uint8, fixed_length=6)
    head = tf.cast(head, tf.int64)
    tag, length = head[:, 0], head[:, 1:]  # a varint, 7 bits per byte
    continues = tf.math.cumprod(length // 128, axis=1)
    bits = length % 128 * [128**i for i in range(5)]
    before = tf.pad(continues, [[0, 0], [1, 0]], constant_values=1)[:, :-1]
    size = 1 + tf.reduce_sum(before * (1 + bits), axis=1)
    actual = tf.cast(tf.strings.length(serialized), tf.int64)
    return (tag == FEATURES_TAG) & (size == actual)


def parse_examples(
    names: tf.Tensor, serialized: tf.Tensor, features: dict
) -> dict[str, tf.Tensor]:
    """Parse a batch of examples.

    Args:
      names: [B] string, the file of each record and its index in the file.
      serialized: [B] string.
      features: as for `tf.io.parse_example`; mismatches are errors.
    """
    # TensorFlow's own error would quote the record instead of naming it, and
    # would become a UnicodeDecodeError if the bytes are not text.
    checked = require_all(
        _is_example(serialized), names, "not a tf.train.Example"
    )
    with tf.control_dependencies([checked]):
        return tf.io.parse_example(serialized, features, example_names=names)


def check_values(
    batch: dict[str, tf.Tensor], names: tf.Tensor, metadata: Metadata
) -> dict[str, tf.Tensor]:
    """Return a batch; at run time, raise an error for illegal integers.

    Without this check, GPUs and XLA would silently use other values.

    Args:
      batch: tensors [B, ...] as stored, before a cast could change them.
      names: [B] string, see `parse_examples`.
      metadata: defines the legal values.
    """
    checks = []
    for name, limit in value_limits(metadata).items():
        if name in batch:
            valid = tf.reduce_all(are_legal(batch[name], limit), axis=1)
            fault = f"`{name}` contains an illegal value"
            checks.append(require_all(valid, names, fault))
    with tf.control_dependencies(checks):
        return {name: tf.identity(value) for name, value in batch.items()}


def parse_padded(
    names: tf.Tensor, serialized: tf.Tensor, metadata: Metadata
) -> dict[str, tf.Tensor]:
    """Parse and check phoneme records or, in part, static records.

    Args:
      names, serialized: [B] string, see `parse_examples`.
      metadata: defines the features; records of other lengths are errors.

    Returns:
      The features, [B, ...] int32 and, for weights, float32. The features of
      phoneme records are symbol_ids and word_ids, [B, T].
    """
    features = {
        name: tf.io.FixedLenFeature(
            [size], tf.float32 if name == "masked_lm_weights" else tf.int64
        )
        for name, size in static_sizes(metadata).items()
    }
    batch = parse_examples(names, serialized, features)
    return {
        name: value if value.dtype.is_floating else tf.cast(value, tf.int32)
        for name, value in check_values(batch, names, metadata).items()
    }


def check_predictions(
    batch: dict[str, tf.Tensor], names: tf.Tensor
) -> tf.Operation | None:
    """Raise an error at run time for illegal weights or masked padding.

    Args:
      batch: static records with legal integers.
      names: [B] string, see `parse_examples`.
    """
    weights = batch["masked_lm_weights"]
    positive = (weights >= 0) & tf.math.is_finite(weights)
    positions = batch["masked_lm_positions"]
    seen = tf.gather(batch["input_mask"], positions, batch_dims=1) > 0
    valid = tf.reduce_all(positive & (seen | (weights == 0)), axis=1)
    return require_all(
        valid, names, "padding is predicted, or a weight is illegal"
    )


def parse_static(
    names: tf.Tensor, serialized: tf.Tensor, metadata: Metadata
) -> dict[str, tf.Tensor]:
    """Parse a batch of static examples; see `parse_padded`.

    Returns:
      input_ids, input_mask, segment_ids [B, T]; masked_lm_positions,
      masked_lm_ids, masked_lm_weights [B, P]; sentence_order_labels [B].
    """
    batch = parse_padded(names, serialized, metadata)
    with tf.control_dependencies([check_predictions(batch, names)]):
        batch = {name: tf.identity(value) for name, value in batch.items()}
    labels = batch.pop("next_sentence_labels")  # [B, 1]
    return batch | {"sentence_order_labels": tf.squeeze(labels, 1)}


# After this many seconds without a call, a pipeline's buffers are assumed to be
# full.
QUIET_SECONDS = 0.1


class Called:
    """A function for pipelines; at exit, Python waits for running calls."""

    def __init__(self, function: Callable):
        self.function = function
        self.running: set[int] = set()  # threads
        self.last_call = 0.0
        atexit.register(_wait, weakref.ref(self))

    def __call__(self, *args):
        """Call the function."""
        thread = threading.get_ident()
        self.running.add(thread)
        try:
            return self.function(*args)
        finally:
            self.last_call = time.monotonic()
            self.running.discard(thread)

    def is_quiet(self) -> bool:
        """Return whether pipelines have stopped calling the function."""
        quiet = time.monotonic() - self.last_call > QUIET_SECONDS
        return quiet and not self.running


def _wait(reference: "weakref.ref[Called]") -> None:
    while (called := reference()) and not called.is_quiet():
        time.sleep(QUIET_SECONDS / 10)


FEATURES = {
    "token_ids": tf.io.FixedLenFeature([], tf.string),
    "word_starts": tf.io.FixedLenFeature([], tf.string),
    "segment_lengths": tf.io.FixedLenFeature([2], tf.int64),
    "next_sentence_labels": tf.io.FixedLenFeature([1], tf.int64),
}


def _unpack_bits(data: tf.Tensor, count: int) -> tf.Tensor:
    """Return the first `count` bits of byte strings [B] as bool [B, count]."""
    raw = tf.io.decode_raw(data, tf.uint8, fixed_length=-(-count // 8))
    shifts = tf.range(7, -1, -1, dtype=tf.int32)
    bits = tf.bitwise.right_shift(tf.cast(raw, tf.int32)[..., None], shifts)
    return tf.reshape(bits & 1, [-1, 8 * raw.shape[1]])[:, :count] > 0


def parse_dynamic(
    names: tf.Tensor, serialized: tf.Tensor, metadata: Metadata
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Parse a batch of dynamic examples.

    Args:
      names, serialized: [B] string, see `parse_examples`.
      metadata: the records' metadata; records that do not match are errors.

    Returns:
      The ids, [B, R] int32, and the word starts, [B, R] bool, both padded; the
      lengths of A and B, [B, 2] int32; the sentence-order labels, [B] int32.
    """
    room = metadata.max_seq_length - 3
    parsed = parse_examples(names, serialized, FEATURES)
    dtype = id_type(metadata.vocab_size)
    total = tf.reduce_sum(parsed["segment_lengths"], axis=1)
    length = tf.strings.length(parsed["token_ids"])
    length = tf.cast(length, tf.int64)
    fits = (total <= room) & (length == total * dtype.itemsize)
    checked = require_all(fits, names, "its lengths contradict each other")
    with tf.control_dependencies([checked]):
        parsed = {name: tf.identity(value) for name, value in parsed.items()}
    ids = tf.io.decode_raw(
        parsed["token_ids"],
        tf.dtypes.as_dtype(dtype),
        fixed_length=room * dtype.itemsize,
    )
    starts = _unpack_bits(parsed["word_starts"], room)
    integers = {
        "token_ids": tf.cast(ids, tf.int64),
        "segment_lengths": parsed["segment_lengths"],
        "next_sentence_labels": parsed["next_sentence_labels"],
    }
    integers = check_values(integers, names, metadata)
    ids, sizes, labels = (tf.cast(x, tf.int32) for x in integers.values())
    return ids, starts, sizes, labels[:, 0]


# A function that takes positions in the stream, [B] int64, and names and
# serialized examples, [B] string, and returns a batch. Masks are drawn in
# Python, so the function runs only in the process that created the pipeline.
Reader = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]


def static_reader(data_dir: str, metadata: Metadata, seed: int) -> Reader:
    """Return a reader of static records; see `parse_static`."""
    return lambda _, names, serialized: parse_static(
        names, serialized, metadata
    )


# {name: dtype} of the tensors that masking returns.
MASKED = {
    name: tf.float32 if name == "masked_lm_weights" else tf.int32
    for name in MASKED_NAMES
}


def dynamic_reader(data_dir: str, metadata: Metadata, seed: int) -> Reader:
    """Return a reader of dynamic records; its batches are as in `parse_static`.

    Args:
      data_dir: the folder of the records and their tokenizer.
      metadata: the folder's metadata.
      seed: the seed for masking.
    """
    tokens, slots = metadata.max_seq_length, metadata.max_predictions_per_seq
    called = Called(Masker(data_dir, metadata, seed))

    def read(positions, names, serialized):
        *text, labels = parse_dynamic(names, serialized, metadata)
        tensors = tf.numpy_function(
            called, (positions, *text), list(MASKED.values()), stateful=False
        )
        # TensorFlow cannot infer the shapes of arrays from Python.
        sizes = [tokens] * 3 + [slots] * 3
        for tensor, size in zip(tensors, sizes, strict=True):
            tensor.set_shape([labels.shape[0], size])
        batch = dict(zip(MASKED, tensors, strict=True))
        return batch | {"sentence_order_labels": labels}

    return read


def phoneme_reader(data_dir: str, metadata: Metadata, seed: int) -> Reader:
    """Return a reader of phoneme records.

    Its batches contain input_ids, input_mask, symbol_ids (the ids before
    masking) and word_ids, int32 [B, T], and symbol_weights, float32 [B, T],
    which are 1 at the symbols to predict.
    """
    table = vocabulary_beside(data_dir, metadata)
    pad, mask = (table.symbols[role] for role in (table.pad, table.mask))
    config = metadata.masking_config()

    @Called
    def masked(positions, ids, labels):
        draws = Draws(seed, positions)
        ids, chosen = mask_words(ids, labels, config, mask, draws)
        return ids, chosen.astype(np.float32)

    def read(positions, names, serialized):
        batch = parse_padded(names, serialized, metadata)
        ids, types = batch["symbol_ids"], (tf.int32, tf.float32)
        inputs = positions, ids, batch["word_ids"]
        new, weights = tf.numpy_function(masked, inputs, types, stateful=False)
        return batch | {
            "input_ids": tf.ensure_shape(new, ids.shape),
            "input_mask": tf.cast(ids != pad, tf.int32),
            "symbol_weights": tf.ensure_shape(weights, ids.shape),
        }

    return read


# {form of records: function that returns their reader}
READERS = {
    STATIC: static_reader,
    DYNAMIC: dynamic_reader,
    PHONEMES: phoneme_reader,
}
