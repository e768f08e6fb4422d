"""Text vectors: by default, the mean over tokens scaled to unit length.

Shapes: B batch, C texts per example, T tokens, H hidden width.
"""

import tensorflow as tf

from albert_tf.model.config import AlbertConfig
from albert_tf.model.layers import registered
from albert_tf.model.ops import fold_in
from albert_tf.model.task_heads import AlbertWithHead
from albert_tf.text.packing import INPUTS


def token_mean(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return the mean [B, H] of vectors [B, T, H], without padding."""
    weights = tf.cast(mask, x.dtype)[..., None]
    return tf.reduce_sum(x * weights, 1) / tf.reduce_sum(weights, 1)


def token_max(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return the maximum [B, H] of vectors [B, T, H], without padding."""
    return tf.reduce_max(tf.where(mask[..., None] > 0, x, x.dtype.min), 1)


POOLINGS = {
    "mean": token_mean,
    "cls": lambda x, mask: x[:, 0],
    "max": token_max,
}


def pooled(
    x: tf.Tensor, mask: tf.Tensor, pooling: str = "mean", unit: bool = True
) -> tf.Tensor:
    """Return one vector per text, float32 [B, H].

    Args:
      x: token vectors [B, T, H].
      mask: [B, T], 1 at tokens.
      pooling: a key of `POOLINGS`.
      unit: whether to scale vectors to unit length, which makes dot products
        cosine similarities.
    """
    vector = POOLINGS[pooling](tf.cast(x, tf.float32), mask)
    return tf.math.l2_normalize(vector, -1) if unit else vector


def two_crops(
    inputs: dict[str, tf.Tensor], rate: float, seed: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Return inputs [B, 2, T] with two random spans of each text.

    The spans are positive pairs that need no labels, as in
    https://arxiv.org/abs/2112.09118. At a rate of 0 both are the whole text,
    and only dropout distinguishes them, as in https://arxiv.org/abs/2104.08821.

    Args:
      inputs: model inputs [B, T], with texts in segment 0 only.
      rate: share of the text's tokens to drop from each span.
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
    """ALBERT that returns pooled vectors, without a layer on top.

    Args:
      config: the architecture.
      pooling: a key of `POOLINGS`.
      unit_length: whether vectors have unit length.
      **kwargs: see `AlbertWithHead`.
    """

    def __init__(
        self,
        config: AlbertConfig,
        pooling: str = "mean",
        unit_length: bool = True,
        **kwargs,
    ):
        self.pooling, self.unit_length = pooling, unit_length
        super().__init__(config, **kwargs)

    def get_config(self):
        how = {"pooling": self.pooling, "unit_length": self.unit_length}
        return super().get_config() | how

    def build_head(self):
        """Create no layers."""

    def head(self, encoded, inputs, seed=None):
        """Return the float32 vector of each row, [B, H]."""
        tokens, mask = encoded["sequence_output"], inputs["input_mask"]
        return pooled(tokens, mask, self.pooling, self.unit_length)

    def compute(self, input_ids, input_mask, segment_ids, seed=None):
        """Return float32 vectors [B, H], or [B, C, H] from [B, C, T]."""
        shape = tf.shape(input_ids)
        flat = [
            tf.reshape(x, [-1, shape[-1]])  # [B * C, T]
            for x in (input_ids, input_mask, segment_ids)
        ]
        vectors = super().compute(*flat, seed=seed)
        width = [self.config.hidden_size]
        return tf.reshape(vectors, tf.concat([shape[:-1], width], axis=0))
