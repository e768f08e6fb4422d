"""Texts as vectors: means over tokens, of length one.

Shapes: B batch, C texts of an example, T tokens, H hidden width.
"""

import tensorflow as tf

from albert_tf.model.configured_layer import registered
from albert_tf.model.dropout import fold_in
from albert_tf.model.task_heads import AlbertWithHead
from albert_tf.text.packing import INPUTS


def token_mean(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return the mean [B, H] of vectors [B, T, H], padding left out."""
    weights = tf.cast(mask, x.dtype)[..., None]
    return tf.reduce_sum(x * weights, 1) / tf.reduce_sum(weights, 1)


def unit_mean(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return the same with length one, so that products are cosines."""
    return tf.math.l2_normalize(token_mean(tf.cast(x, tf.float32), mask), -1)


def two_crops(
    inputs: dict[str, tf.Tensor], rate: float, seed: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Return two random spans of each text, ids and mask [B, 2, T].

    They are positive pairs without labels, as in
    https://arxiv.org/abs/2112.09118; of a rate of 0 both are the whole text,
    which dropout tells apart, as in https://arxiv.org/abs/2104.08821.

    Args:
      inputs: of the model [B, T], texts in segment 0 alone.
      rate: the share of its tokens that a span lacks.
      seed: int32 [2].
    """
    ids, mask = inputs["input_ids"], inputs["input_mask"]
    shape = tf.shape(ids)
    length = tf.reduce_sum(mask, axis=1)[:, None, None] - 2  # [CLS], [SEP]
    lost = tf.cast(rate * tf.cast(length, tf.float32), tf.int32)
    share = tf.random.stateless_uniform(
        [shape[0], 2, 1], fold_in(seed, 3), alg="philox"
    )
    start = tf.cast(share * tf.cast(lost + 1, tf.float32), tf.int32)
    place, kept = tf.range(shape[1]), length - lost  # [T], [B, 1, 1]
    source = tf.where(place <= kept, place + start, length + 1)  # [B, 2, T]
    source = tf.where(place == 0, 0, source)
    whole = tf.broadcast_to(place < kept + 2, tf.shape(source))
    cropped = tf.gather(ids, source, batch_dims=1)
    mask = tf.cast(whole, tf.int32)
    return dict(zip(INPUTS, (cropped, mask, tf.zeros_like(mask)), strict=True))


@registered
class AlbertEmbedder(AlbertWithHead):
    """ALBERT without a layer on top: what it learns is in the encoder."""

    def build_head(self):
        """Make nothing."""

    def compute(self, input_ids, input_mask, segment_ids, seed=None):
        """Return float32 unit vectors [B, H], or [B, C, H] from [B, C, T]."""
        shape = tf.shape(input_ids)
        flat = [
            tf.reshape(x, [-1, shape[-1]])  # [B * C, T]
            for x in (input_ids, input_mask, segment_ids)
        ]
        encoded = self.albert(*flat, seed=seed)
        vectors = unit_mean(encoded["sequence_output"], flat[1])
        width = [self.config.hidden_size]
        return tf.reshape(vectors, tf.concat([shape[:-1], width], axis=0))
