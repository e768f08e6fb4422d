"""The blocks of ALBERT: embeddings, self-attention, feed-forward network.

Shapes: B batch, T tokens, E embedding width, H hidden width, A heads,
D head width, I intermediate width, P places that are asked for.

A `seed`, see `dropout.py`, means training; None means inference.
"""

import tensorflow as tf

from albert_tf.model import compiled_ops
from albert_tf.model.attention_products import flattened, products
from albert_tf.model.config import ACTIVATIONS
from albert_tf.model.configured_layer import ConfiguredLayer, registered
from albert_tf.model.dropout import dropout, fold_in

MASK_BIAS = -10000.0  # added to the scores of padding, as released


@registered
class AlbertEmbeddings(ConfiguredLayer):
    """Factorized embedding: tables of width E, then a projection to H.

    With `embedding_norm="hidden"` (albert_zh's first release) the projection
    comes first, without a bias, and norm, positions and segments have width H.
    """

    def build(self):
        c = self.config
        self.norm_first = c.embedding_norm == "embedding"
        width = c.embedding_size if self.norm_first else c.hidden_size
        self.word_embeddings = self.table(
            "word_embeddings", c.vocab_size, c.embedding_size
        )
        self.token_type_embeddings = self.table(
            "token_type_embeddings", c.type_vocab_size, width
        )
        self.position_embeddings = self.table(
            "position_embeddings", c.max_position_embeddings, width
        )
        self.layer_norm = self.norm(width)
        self.perturb = None  # for adversarial training, [B, T, E] -> the same
        self.projection = None
        if c.embedding_size != c.hidden_size or not self.norm_first:
            self.projection = self.dense(
                "embedding_hidden_mapping_in",
                c.embedding_size,
                c.hidden_size,
                use_bias=self.norm_first,
            )

    def call(self, input_ids, segment_ids, seed=None):
        """Return (embedding output [B, T, E], encoder input [B, T, H])."""
        rate = self.config.hidden_dropout_prob
        x = tf.gather(self.word_embeddings, input_ids)  # [B, T, E]
        if self.perturb:
            x = self.perturb(x)
        if not self.norm_first:
            x = self.projection(x)  # [B, T, H]
        x += tf.gather(self.token_type_embeddings, segment_ids)
        x += self.position_embeddings[: tf.shape(input_ids)[1]]
        x = dropout(self.layer_norm(x), rate, seed)
        if self.norm_first and self.projection is not None:
            return x, self.projection(x)
        return x, x


@registered
class SelfAttention(ConfiguredLayer):
    """Multi-head self-attention, its residual connection and its norm."""

    def build(self):
        width, inner = self.config.hidden_size, self.config.attention_width
        self.query = self.dense("query", width, inner)
        self.key = self.dense("key", width, inner)
        self.value = self.dense("value", width, inner)
        self.output_projection = self.dense("output", inner, width)
        self.layer_norm = self.norm(width)

    def call(self, x, input_mask, seed=None, places=None, compiled=False):
        """Return (output [B, P, H], attention probabilities [B, A, P, T]).

        Args:
          x: hidden states [B, T, H].
          input_mask: int32 [B, T], 1 at tokens and 0 at padding.
          seed: see the module.
          places: int32 [B, P], the tokens whose output is wanted. Default:
            all, P = T.
          compiled: whether to compute as `compiled_ops` does for training.
        """
        c, of = self.config, products()
        asking = x if places is None else tf.gather(x, places, batch_dims=1)
        asked, shape = tf.shape(asking), tf.shape(x)
        heads = c.num_attention_heads, c.head_size
        query = of.heads(
            self.query, flattened(asking), [asked[0], asked[1], *heads]
        )  # [B, P, A, D]
        flat, shape = flattened(x), [shape[0], shape[1], *heads]
        key = of.heads(self.key, flat, shape)  # [B, T, A, D]
        value = of.heads(self.value, flat, shape)
        scores = of.scores(query, key, c.head_size**-0.5)  # [B, A, P, T]
        padding = 1.0 - tf.cast(input_mask, tf.float32)[:, None, None, :]
        scores = tf.cast(scores, tf.float32) + padding * MASK_BIAS
        context, probs = of.attended(
            scores,
            value,
            lambda x: dropout(x, c.attention_probs_dropout_prob, seed),
        )
        context = of.joined(self.output_projection, context, asked)
        context = dropout(context, c.hidden_dropout_prob, fold_in(seed, 1))
        return self.layer_norm(asking + context, compiled=compiled), probs


@registered
class FeedForward(ConfiguredLayer):
    """The position-wise network, its residual connection and its norm."""

    def build(self):
        c = self.config
        self.activation = ACTIVATIONS[c.hidden_act]
        self.intermediate = self.dense(
            "intermediate", c.hidden_size, c.intermediate_size
        )
        self.output_projection = self.dense(
            "output", c.intermediate_size, c.hidden_size
        )
        self.layer_norm = self.norm(c.hidden_size)

    def call(self, x, seed=None, compiled=False):
        """Map [B, T, H] to [B, T, H]; `compiled` as for attention."""
        fused = compiled and self.config.hidden_act == "gelu"
        activation = compiled_ops.gelu if fused else self.activation
        inner = self.intermediate(flattened(x))  # [B * T, I]
        # TensorFlow's optimizer orders operations by name, and finds the GELU
        # that oneDNN computes with the product only where it comes after it.
        with tf.name_scope("intermediate_activation"):
            inner = activation(inner)
        inner = self.output_projection(inner)  # [B * T, H]
        inner = tf.reshape(inner, tf.shape(x))  # [B, T, H]
        inner = dropout(inner, self.config.hidden_dropout_prob, seed)
        return self.layer_norm(x + inner, compiled=compiled)
