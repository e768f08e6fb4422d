"""Dynamic records: parsed, laid out and masked while they are read.

Glossary: B batch, T tokens, P predictions, R = T - 3 room for A and B.
"""

from collections.abc import Callable

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.data import masking_graph
from albert_tf.data.masking import Instances, Words
from albert_tf.data.records.metadata import Metadata, id_type
from albert_tf.data.records.parsing import parse_examples, require_all
from albert_tf.text.tokenizers import Tokenizer, load_tokenizer

FEATURES = {
    "token_ids": tf.io.FixedLenFeature([], tf.string),
    "word_starts": tf.io.FixedLenFeature([], tf.string),
    "segment_lengths": tf.io.FixedLenFeature([2], tf.int64),
    "next_sentence_labels": tf.io.FixedLenFeature([1], tf.int64),
}


def _unpack_bits(data: tf.Tensor, count: int) -> tf.Tensor:
    """Return the first bits of byte strings [B] as bool [B, count]."""
    raw = tf.io.decode_raw(data, tf.uint8, fixed_length=-(-count // 8))
    shifts = tf.range(7, -1, -1, dtype=tf.int32)
    bits = tf.bitwise.right_shift(tf.cast(raw, tf.int32)[..., None], shifts)
    return tf.reshape(bits & 1, [-1, 8 * raw.shape[1]])[:, :count] > 0


def parse(
    names: tf.Tensor, serialized: tf.Tensor, metadata: Metadata
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Parse a batch of dynamic examples.

    Args:
      names, serialized: [B] string, see `parse_examples`.
      metadata: gives T and V; a record that does not fit is an error.

    Returns:
      ids [B, R] int32 and word starts [B, R] bool, padded; tokens of A and B
      [B, 2] int32; sentence_order_labels [B] int32.
    """
    room = metadata.max_seq_length - 3
    parsed = parse_examples(names, serialized, FEATURES)
    dtype = id_type(metadata.vocab_size)
    sizes = tf.cast(parsed["segment_lengths"], tf.int32)
    total = tf.reduce_sum(sizes, axis=1)
    length = tf.strings.length(parsed["token_ids"])
    fits = (total <= room) & (length == total * dtype.itemsize)
    require_all(fits, names, "its lengths contradict each other")
    ids = tf.io.decode_raw(
        parsed["token_ids"],
        tf.dtypes.as_dtype(dtype),
        fixed_length=room * dtype.itemsize,
    )
    starts = _unpack_bits(parsed["word_starts"], room)
    labels = tf.cast(parsed["next_sentence_labels"][:, 0], tf.int32)
    return tf.cast(ids, tf.int32), starts, sizes, labels


def lay_out(
    ids: tf.Tensor,
    starts: tf.Tensor,
    sizes: tf.Tensor,
    swapped: tf.Tensor,
    tokenizer,
) -> Instances:
    """Lay out [CLS] A [SEP] B [SEP], or [CLS] A [SEP], and padding.

    Args:
      ids: [B, R] the tokens of A, then of B.
      starts: [B, R] which of them begin a word.
      sizes: [B, 2] how many they are.
      swapped: [B] the label.
      tokenizer: names the special tokens.
    """
    tokens = ids.shape[1] + 3
    place = tf.range(tokens)[None]
    a_size, b_size = sizes[:, :1], sizes[:, 1:]
    last = a_size + b_size + 1 + tf.cast(b_size > 0, tf.int32)
    separators = (place == a_size + 1) | (place == last)
    maskable = (place > 0) & (place < last) & ~separators

    def spread(values, special):
        shifted = [tf.pad(values, [[0, 0], [k, 3 - k]]) for k in (1, 2)]
        laid = tf.where(place <= a_size, *shifted)
        return tf.where(maskable, laid, special)

    frame = tf.where(separators, tokenizer.sep_id, tokenizer.pad_id)
    frame = tf.where(place == 0, tokenizer.cls_id, frame)
    return Instances(
        input_ids=spread(ids, frame),
        segment_ids=(place > a_size + 1) & (place <= last),
        maskable=maskable,
        starts=spread(starts, separators | (place == 0)),
        lengths=last[:, 0] + 1,
        swapped=swapped,
    )


def tokenizer_beside(data_dir: str, metadata: Metadata) -> Tokenizer:
    """Return the tokenizer of dynamic records, which must lie beside them."""
    tokenizer = load_tokenizer(data_dir)
    require(
        tokenizer.fingerprint() == metadata.tokenizer_fingerprint,
        "The tokenizer beside unmasked records must be the one that made "
        "them; make or copy them again.",
        data_dir=f"{data_dir} with another",
    )
    return tokenizer


def masker(
    data_dir: str, metadata: Metadata, seed: int
) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]:
    """Return what makes masked batches of dynamic examples.

    It takes positions in the stream [B] int64, names and serialised examples
    [B], and returns what `input_pipeline.parse` returns.

    Args:
      data_dir: where the records and their tokenizer are.
      metadata: of the same folder.
      seed: of the masks.
    """
    tokenizer = tokenizer_beside(data_dir, metadata)
    words, config = Words.of(tokenizer), metadata.masking_config()
    slots = metadata.max_predictions_per_seq

    def read(positions, names, serialized):
        instances = lay_out(*parse(names, serialized, metadata), tokenizer)
        masked_ids, where, originals, weights = masking_graph.mask(
            instances, slots, config, words, seed, positions
        )
        place = tf.range(metadata.max_seq_length)
        return {
            "input_ids": masked_ids,
            "input_mask": tf.cast(place < instances.lengths[:, None], tf.int32),
            "segment_ids": tf.cast(instances.segment_ids, tf.int32),
            "masked_lm_positions": where,
            "masked_lm_ids": originals,
            "masked_lm_weights": weights,
            "sentence_order_labels": instances.swapped,
        }

    return read
