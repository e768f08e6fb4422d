"""Attention's matrix products, in the form that a kind of device takes fastest.

Shapes: B batch, T tokens, P tokens that are asked for, A heads, D head width,
H hidden width. All forms compute the same.
"""

import keras
import tensorflow as tf

from albert_tf.model.custom_gradients import custom_gradient
from albert_tf.model.devices import is_tpu


def flattened(x: tf.Tensor) -> tf.Tensor:
    """Turn [B, T, H] into [B * T, H], where a product takes its bias along.

    Not on TPUs, whose compiler then could no longer order B and T in memory.
    """
    return x if is_tpu() else tf.reshape(x, [-1, x.shape[-1]])


class FlatProducts:
    """Products of matrices, their heads cut out and moved by transposing."""

    @staticmethod
    def heads(dense: keras.layers.Dense, x, shape):
        """Return the shape [B, T, A, D] of `flattened` x."""
        return tf.reshape(dense(x), shape)

    @staticmethod
    def heads_first(x):
        """Turn [B, T, A, D] into [B, A, T, D], or back."""
        return tf.transpose(x, [0, 2, 1, 3])

    @classmethod
    def scores(cls, query, key, scale):
        """Return [B, A, P, T] of query [B, P, A, D] and key [B, T, A, D]."""
        query = cls.heads_first(query) * scale
        return tf.matmul(query, cls.heads_first(key), transpose_b=True)

    @classmethod
    def attended(cls, scores, value, drop):
        """Return the context [B, P, A, D], and probabilities [B, A, P, T].

        Args:
          scores: float32 [B, A, P, T], masked.
          value: [B, T, A, D].
          drop: dropout of probabilities.
        """
        probs = tf.nn.softmax(scores)
        kept = tf.cast(drop(probs), value.dtype)
        product = tf.matmul(kept, cls.heads_first(value))
        return cls.heads_first(product), probs

    @staticmethod
    def joined(dense: keras.layers.Dense, context, shape):
        """Return the shape [B, P, H] of context [B, P, A, D]."""
        width = context.shape[2] * context.shape[3]
        return tf.reshape(dense(tf.reshape(context, [-1, width])), shape)


class HeadProducts(FlatProducts):
    """The same as products of heads, whose order a TPU's compiler chooses.

    Of flat products it copies what heads are cut out of, and computes scores
    apart from their softmax: docs/cloud_tpu.md.
    """

    @staticmethod
    def heads(dense, x, shape):
        kernel = tf.reshape(dense.kernel, [-1, *shape[2:]])
        bias = tf.reshape(dense.bias, shape[2:])
        return tf.einsum("bth,had->btad", x, kernel) + bias

    @staticmethod
    def scores(query, key, scale):
        # Scaled in float32, for softmax's gradient then needs no memory.
        scores = tf.einsum("bpad,btad->bapt", query, key)
        return tf.cast(scores, tf.float32) * scale

    @staticmethod
    def attended(scores, value, drop):
        probs = tf.nn.softmax(scores)

        @custom_gradient
        def context_of(_, value):
            kept = tf.cast(drop(probs), value.dtype)
            context = tf.einsum("bapt,btad->bpad", kept, value)

            def gradient(dy):
                # What softmax takes off is dy * context, summed over a head's
                # width: so XLA need not keep the products, nor sum over them.
                means = tf.cast(dy, tf.float32) * tf.cast(context, tf.float32)
                means = tf.einsum("bpad->bap", means)[..., None]
                products = tf.einsum("bpad,btad->bapt", dy, value)
                change = drop(tf.cast(products, tf.float32)) - means
                return probs * change, tf.einsum("bapt,bpad->btad", kept, dy)

            return context, gradient

        return context_of(scores, value), probs

    @staticmethod
    def joined(dense, context, shape):
        kernel = tf.reshape(dense.kernel, [*context.shape[2:], dense.units])
        product = tf.einsum("bpad,adh->bph", context, kernel)
        return product + dense.bias


def products() -> type[FlatProducts]:
    """Return the form for the device of the replica that is entered."""
    return HeadProducts if is_tpu() else FlatProducts
