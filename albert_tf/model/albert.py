"""ALBERT's layers, in the order of Section 3 of the paper.

Source: https://arxiv.org/abs/1909.11942.

Shapes: B batch, T tokens, E embedding width, H hidden width, A heads,
D head width, I intermediate width, V vocabulary, P predictions or requested
tokens.

A `seed` (see `ops.py`) selects training; None selects inference.
"""

import contextlib
import functools
import types
from collections.abc import Mapping

import keras
import tensorflow as tf

from albert_tf.model import ops
from albert_tf.model.config import ACTIVATIONS, AlbertConfig
from albert_tf.model.layers import (
    PLAIN,
    AlbertNetwork,
    ConfiguredLayer,
    Weights,
    registered,
)
from albert_tf.model.ops import attention_products, dropout, flattened, fold_in

# Added to the attention scores of padding, as in the release.
MASK_BIAS = -10000.0


@registered
class AlbertEmbeddings(ConfiguredLayer):
    """The factorized embedding: tables of width E, then a projection to H.

    With `embedding_norm="hidden"` (albert_zh's first release), the projection
    directly follows the word-embedding lookup and has no bias; the norm and the
    position and segment tables have width H.
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
        self.perturb = None  # [B, T, E] -> [B, T, E], for adversarial training
        self.projection = None
        if c.embedding_size != c.hidden_size or not self.norm_first:
            self.projection = self.dense(
                "embedding_hidden_mapping_in",
                c.embedding_size,
                c.hidden_size,
                use_bias=self.norm_first,
            )

    def call(self, input_ids, segment_ids, seed=None):
        """Return the embedding output [B, T, E] and encoder input [B, T, H].

        With `embedding_norm="hidden"`, or if E = H, both are the same tensor.
        """
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
    """Multi-head self-attention with its residual connection and norm."""

    def build(self):
        width, inner = self.config.hidden_size, self.config.attention_width
        self.query = self.dense("query", width, inner)
        self.key = self.dense("key", width, inner)
        self.value = self.dense("value", width, inner)
        self.output_projection = self.dense("output", inner, width)
        self.layer_norm = self.norm(width)

    def call(self, x, input_mask, seed=None, positions=None, compiled=False):
        """Return the output [B, P, H] and attention probabilities [B, A, P, T].

        Args:
          x: hidden states [B, T, H].
          input_mask: int32 [B, T], 1 at tokens and 0 at padding.
          seed: see the module docstring.
          positions: int32 [B, P], the positions at which to compute outputs.
            Default: all positions, P = T.
          compiled: whether to use the fused training ops in the module `ops`.
        """
        c, products = self.config, attention_products()
        selected = (
            x if positions is None else tf.gather(x, positions, batch_dims=1)
        )
        output_shape, shape = tf.shape(selected), tf.shape(x)
        heads = c.num_attention_heads, c.head_size
        query = products.heads(
            self.query,
            flattened(selected),
            [output_shape[0], output_shape[1], *heads],
        )  # [B, P, A, D]
        flat, shape = flattened(x), [shape[0], shape[1], *heads]
        key = products.heads(self.key, flat, shape)  # [B, T, A, D]
        value = products.heads(self.value, flat, shape)
        scores = products.scores(query, key, c.head_size**-0.5)  # [B, A, P, T]
        padding = 1.0 - tf.cast(input_mask, tf.float32)[:, None, None, :]
        scores = tf.cast(scores, tf.float32) + padding * MASK_BIAS
        context, probs = products.attended(
            scores,
            value,
            lambda x: dropout(x, c.attention_probs_dropout_prob, seed),
        )
        context = products.joined(self.output_projection, context, output_shape)
        context = dropout(context, c.hidden_dropout_prob, fold_in(seed, 1))
        return self.layer_norm(selected + context, compiled=compiled), probs


@registered
class FeedForward(ConfiguredLayer):
    """The feed-forward network with its residual connection and norm."""

    def build(self):
        c = self.config
        self.activation = ACTIVATIONS[c.hidden_act].function
        self.intermediate = self.dense(
            "intermediate", c.hidden_size, c.intermediate_size
        )
        self.output_projection = self.dense(
            "output", c.intermediate_size, c.hidden_size
        )
        self.layer_norm = self.norm(c.hidden_size)

    def call(self, x, seed=None, compiled=False):
        """Map [B, T, H] to [B, T, H]; for `compiled`, see `SelfAttention`."""
        fused = compiled and self.config.hidden_act == "gelu"
        activation = ops.gelu if fused else self.activation
        inner = self.intermediate(flattened(x))  # [B * T, I]
        # TensorFlow's graph optimizer orders operations by name. It fuses the
        # GELU with oneDNN's matrix product only if the GELU comes later.
        with tf.name_scope("intermediate_activation"):
            inner = activation(inner)
        inner = self.output_projection(inner)  # [B * T, H]
        inner = tf.reshape(inner, tf.shape(x))  # [B, T, H]
        inner = dropout(inner, self.config.hidden_dropout_prob, seed)
        return self.layer_norm(x + inner, compiled=compiled)


@registered
class AlbertEncoder(ConfiguredLayer):
    """An encoder whose layers may share parameters.

    A block that several layers share is a single object, called repeatedly.

    Attributes:
      loop, xla: the run's `EncoderLoop` and `XlaPolicy`.
    """

    def __init__(self, config: AlbertConfig, **kwargs):
        # Without autocast, loops receive weights in float32.
        super().__init__(config, autocast=False, **kwargs)
        self.loop, self.xla = PLAIN, ops.XlaPolicy()

    def build(self):
        self.attentions = self.blocks(SelfAttention, "attention")
        self.ffns = self.blocks(FeedForward, "ffn")

    def blocks(self, cls: type, kind: str) -> Mapping:
        """Create the blocks of one type; return {(index, inner index): block}.

        Several layers may share a block.
        """
        blocks = {}
        for g in sorted(set(self.config.blocks(kind))):
            for k in range(self.config.inner_group_num):
                name = f"{kind}_{g}_{k}"
                blocks[g, k] = self.sublayer(cls, name)
                setattr(self, name, blocks[g, k])
        # TensorFlow would track a dict, but cannot save a dict whose keys are
        # tuples.
        return types.MappingProxyType(blocks)

    def layer_blocks(
        self, config: AlbertConfig, i: int
    ) -> list[tuple[SelfAttention, FeedForward]]:
        """Return the blocks that layer i calls, in order."""
        a, f = config.blocks("attention")[i], config.blocks("ffn")[i]
        inner = range(config.inner_group_num)
        return [(self.attentions[a, k], self.ffns[f, k]) for k in inner]

    def layer(self, blocks, number, x, input_mask, seed, positions=None):
        """Return the outputs and attention probabilities of a layer's blocks.

        The layer's number, an int or a scalar tensor, affects only dropout.
        With `positions` [B, P], the last block computes outputs only at these
        positions.
        """
        hidden_states, attention_probs = [], []
        compiled = self.xla.pieces and seed is not None
        for k, (attention, ffn) in enumerate(blocks):
            block_seed = fold_in(seed, number * len(blocks) + k)
            block_positions = positions if k == len(blocks) - 1 else None
            x, probs = attention(
                x,
                input_mask,
                seed=block_seed,
                positions=block_positions,
                compiled=compiled,
            )
            x = ffn(x, seed=fold_in(block_seed, 2), compiled=compiled)
            hidden_states.append(x)
            attention_probs.append(probs)
        return hidden_states, attention_probs

    def call(
        self,
        x,
        input_mask,
        seed=None,
        return_all=False,
        layers=None,
        positions=None,
    ):
        """Return lists of every block's outputs and attention probabilities.

        Outputs are [B, T, H], and probabilities are [B, A, T, T]. If `loop` is
        not the plain loop, return only the last output and no probabilities.

        Args:
          x: hidden states [B, T, H].
          input_mask: int32 [B, T], 1 at tokens and 0 at padding.
          seed: see the module docstring.
          return_all: whether to return the outputs and probabilities of all
            blocks for every `loop`; if so, the layers are unrolled.
          layers: the number of layers to run; None means all.
          positions: int32 [B, P], the only positions at which the last block
            computes outputs [B, P, H] and probabilities [B, A, P, T].
        """
        config = self.config.with_layers(layers)
        if self.loop != PLAIN and not return_all:
            return [self.looped(config, x, input_mask, seed, positions)], []
        hidden_states, attention_probs = [], []
        all_blocks = [
            self.layer_blocks(config, i)
            for i in range(config.num_hidden_layers)
        ]
        read = contextlib.nullcontext
        if self.compute_dtype != "float32":
            # A dict, unlike a set, keeps the order of the blocks.
            used = {
                b: None for pairs in all_blocks for pair in pairs for b in pair
            }
            weights = Weights(used)
            read = functools.partial(weights.read_as, *weights.tensors)
        for i, blocks in enumerate(all_blocks):
            layer_positions = positions if blocks is all_blocks[-1] else None
            with read():
                states, probs = self.layer(
                    blocks, i, x, input_mask, seed, layer_positions
                )
            x = states[-1]
            hidden_states += states
            attention_probs += probs
        return hidden_states, attention_probs

    def looped(self, config, x, input_mask, seed, positions):
        """Apply `loop` to each range of layers that share all their blocks.

        The result is the output of the last layer.
        """
        runs = [(numbers, None) for numbers in config.shared_layers()]
        if positions is not None:
            *runs, (numbers, _) = runs
            runs += [(numbers[:-1], None), (numbers[-1:], positions)]
        for numbers, run_positions in runs:
            blocks = self.layer_blocks(config, numbers.start)

            def layer(x, number, blocks=blocks, run_positions=run_positions):
                states, _ = self.layer(
                    blocks, number, x, input_mask, seed, run_positions
                )
                return states[-1]

            x = self.loop(layer, x, numbers, sum(blocks, ()))
        return x


def with_cls(positions: tf.Tensor | None) -> tf.Tensor | None:
    """Prepend the position of [CLS], for the pooler; map None to None."""
    return None if positions is None else tf.pad(positions, [[0, 0], [1, 0]])


@registered
class AlbertModel(AlbertNetwork):
    """The ALBERT encoder with its embeddings and pooler.

    Args:
      config: the architecture.
      dtype: a Keras dtype policy, such as "float32" or "mixed_bfloat16". Under
        every policy, softmax, norms, logits and losses are computed in float32.
        Default: the global policy.
    """

    def __init__(
        self, config: AlbertConfig, dtype=None, name="albert", **kwargs
    ):
        super().__init__(config, dtype=dtype, name=name, **kwargs)

    def build(self):
        c = self.config
        self.embeddings = self.sublayer(AlbertEmbeddings, "embeddings")
        self.encoder = self.sublayer(AlbertEncoder, "encoder")
        self.pooler = self.dense(
            "pooler", c.hidden_size, c.hidden_size, activation="tanh"
        )

    def compute(
        self,
        input_ids,
        input_mask,
        segment_ids,
        seed=None,
        return_all=False,
        layers=None,
        positions=None,
    ):
        """Encode a batch.

        Args:
          input_ids, input_mask, segment_ids: int32 [B, T], as for `call`.
          seed: see the module docstring.
          return_all: whether to return the outputs of every block.
          layers: number of layers to run; None means all.
          positions: int32 [B, P], the positions that the last block computes,
            in addition to [CLS]. None means all positions, P = T.

        Returns:
          A dict of `sequence_output` [B, P, H] and `pooled_output` [B, H]. With
          `return_all`, also `embedding_output` (see `AlbertEmbeddings`) and,
          for each block, `hidden_states` [B, T, H] and `attention_probs`
          [B, A, T, T].
        """
        embedding_output, x = self.embeddings(
            input_ids, segment_ids, seed=fold_in(seed, 0)
        )
        needed = with_cls(positions)
        hidden_states, attention_probs = self.encoder(
            x,
            input_mask,
            seed=fold_in(seed, 1),
            return_all=return_all,
            layers=layers,
            positions=None if return_all else needed,
        )
        last = hidden_states[-1]
        if return_all and positions is not None:
            last = tf.gather(last, needed, batch_dims=1)
        outputs = {
            "sequence_output": last if positions is None else last[:, 1:],
            "pooled_output": self.pooler(last[:, 0]),
        }
        if return_all:
            outputs["embedding_output"] = embedding_output
            outputs["hidden_states"] = hidden_states
            outputs["attention_probs"] = attention_probs
        return outputs


@registered
class MaskedLMHead(ConfiguredLayer):
    """A head that predicts masked tokens with the tied embedding table."""

    def build(self):
        c = self.config
        # The head predicts words from vectors that have the same width as the
        # normalized embeddings.
        self.norm_first = c.embedding_norm == "embedding"
        width = c.embedding_size if self.norm_first else c.hidden_size
        self.activation = ACTIVATIONS[c.hidden_act].function
        self.transform = self.dense("transform", c.hidden_size, width)
        self.layer_norm = self.norm(width)
        self.output_bias = self.add_weight(
            name="output_bias",
            shape=(c.vocab_size,),
            initializer="zeros",
            autocast=False,
        )

    def call(self, x, embeddings):
        """Return float32 logits [B, P, V].

        Args:
          x: the outputs of the encoder's last layer, [B, P, H].
          embeddings: the model's `AlbertEmbeddings`, which contain the tied
            table.
        """
        # [B, P, E], or [B, P, H] with `embedding_norm="hidden"`.
        x = self.layer_norm(self.activation(self.transform(x)))
        x = tf.cast(x, tf.float32)  # many bfloat16 logits would be equal
        if not self.norm_first:
            kernel = tf.cast(embeddings.projection.float_kernel(), x.dtype)
            x = tf.matmul(x, kernel, transpose_b=True)  # [B, P, E]
        table = tf.cast(embeddings.word_embeddings, x.dtype)
        logits = tf.einsum("bpe,ve->bpv", x, table)
        return logits + tf.cast(self.output_bias, x.dtype)


@registered
class SentenceOrderHead(ConfiguredLayer):
    """A head that predicts whether segments are in order (0) or swapped (1)."""

    def build(self):
        self.classifier = self.logits("classifier", self.config.hidden_size, 2)

    def call(self, pooled_output):
        """Map [B, H] to float32 logits [B, 2]."""
        return self.classifier(pooled_output)


@registered
class AlbertForPretraining(AlbertNetwork):
    """ALBERT with both pretraining heads."""

    further_inputs = ("masked_lm_positions",)

    def __init__(
        self, config: AlbertConfig, dtype=None, name="pretraining", **kwargs
    ):
        super().__init__(config, dtype=dtype, name=name, **kwargs)
        self.build()

    def build(self):
        self.albert = self.sublayer(AlbertModel, "albert")
        self.mlm = self.sublayer(MaskedLMHead, "mlm")
        self.sop = self.sublayer(SentenceOrderHead, "sop")

    @property
    def output_bias(self) -> keras.Variable:
        """The bias [V] of the masked-LM logits."""
        return self.mlm.output_bias

    def call(
        self,
        input_ids,
        input_mask=None,
        segment_ids=None,
        masked_lm_positions=None,
        training=None,
        seed=None,
        **kwargs,
    ):
        """Return the outputs of `AlbertModel` and of both heads.

        `sequence_output` [B, P, H] and `mlm_logits`, float32 [B, P, V], cover
        the positions `masked_lm_positions` [B, P], by default all positions.
        `sop_logits` are float32 [B, 2]. `seed`, `return_all` and `layers` are
        passed to `AlbertModel`.
        """
        if masked_lm_positions is not None:
            kwargs["masked_lm_positions"] = masked_lm_positions
        inputs = input_ids, input_mask, segment_ids
        return super().call(*inputs, training=training, seed=seed, **kwargs)

    def compute(
        self,
        input_ids,
        input_mask,
        segment_ids,
        masked_lm_positions=None,
        **kwargs,
    ):
        outputs = self.albert(
            input_ids,
            input_mask,
            segment_ids,
            positions=masked_lm_positions,
            **kwargs,
        )
        outputs["mlm_logits"] = self.mlm(
            outputs["sequence_output"], embeddings=self.albert.embeddings
        )
        outputs["sop_logits"] = self.sop(outputs["pooled_output"])
        return outputs
