"""What a pretrained ALBERT serves: words for masks, the order of sentences.

Shapes: B batch, T tokens, P masks of a text, K = top_k, V vocabulary.
"""

import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.serving.blocks import Tensors
from albert_tf.serving.server import Server, ServingConfig
from albert_tf.text.tokenizers import Tokenizer

# Masks whose probabilities of all pieces are held at a time.
BLOCK_MASKS = 512

# Masks of a text in formats of fixed shapes.
NUMBER_MASKS = 8


class PretrainedServer(Server):
    """A pretrained model with those of its heads that have weights.

    Args:
      model: the model.
      weights: {name: variable}, without the heads that are not there.
      config: see `Server`.
      tokenizer: see `Server`.
    """

    def __init__(
        self,
        model: AlbertForPretraining,
        weights: dict[str, tf.Variable],
        config: ServingConfig,
        tokenizer: Tokenizer | None,
    ):
        parts = {name.split("/")[0] for name in weights}
        self.mlm = model.mlm if "mlm" in parts else None
        self.sop = model.sop if "sop" in parts else None
        if tokenizer and config.top_k > tokenizer.vocab_size:
            raise InputError(
                "`top_k` must be at most the number of pieces, "
                f"{tokenizer.vocab_size}. Received: top_k={config.top_k}"
            )
        super().__init__(model.albert, weights, config, tokenizer)

    def inputs(self):
        inputs = super().inputs()
        if self.tokenizer and self.mlm:
            inputs["fill_mask"] = self.text_inputs()
        if self.tokenizer and self.sop:
            inputs["sentence_order"] = self.text_inputs("text_pair")
        return inputs

    def heads(self, encoded):
        if not self.sop:
            return {}
        return {"sop_logits": self.sop(encoded["pooled_output"])}  # [B, 2]

    def number_inputs(self):
        if not self.mlm:
            return self.id_inputs()
        shape = [self.config.batch_size, None]
        if self.config.fixed_length:
            shape = [self.config.batch_size, NUMBER_MASKS]
        spec = tf.TensorSpec(shape, tf.int32, "mlm_positions")
        return [*self.id_inputs(), spec]

    def numbers(self, mlm_positions=None, **inputs):
        encoded = super().numbers(**inputs)
        if mlm_positions is None:
            return encoded
        logits = self.mlm(
            encoded["sequence_output"],
            mlm_positions,
            embeddings=self.albert.embeddings,
        )  # [B, P, V]
        return encoded | {"mlm_logits": logits}

    def fill_mask(self, text) -> Tensors:
        """Serve the likeliest pieces for every `[MASK]` in strings [B].

        Returns:
          `pieces` and `probabilities` [B, P, K], the likeliest first;
          `positions` int32 [B, P] of the masks among the tokens, and
          `mask_count` int32 [B]. Texts with fewer masks than P are padded
          with "", 0 and -1; masks cut off with the end of a long text do not
          count.
        """
        inputs = self.pack(self.text_graph.encode_masked(text))
        is_mask = inputs["input_ids"] == self.tokenizer.mask_id  # [B, T]
        count = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)
        positions = tf.RaggedTensor.from_row_lengths(
            tf.cast(tf.where(is_mask)[:, 1], tf.int32), count
        ).to_tensor()  # [B, P]
        masks = tf.shape(positions)[1]
        shape = [self.config.batch_size, None]
        spec = tf.TensorSpec(shape, tf.int32, "positions")
        found = self.run(
            self.body(self._likeliest, (spec,)),
            inputs | {"positions": positions},
            most_rows=tf.maximum(BLOCK_MASKS // tf.maximum(masks, 1), 1),
        )
        there = tf.sequence_mask(count, masks)[..., None]  # [B, P, 1]
        pieces = tf.gather(self.vocabulary, found["ids"])
        return {
            "pieces": tf.where(there, pieces, ""),
            "probabilities": tf.where(there, found["probabilities"], 0.0),
            "positions": tf.where(there[..., 0], positions, -1),
            "mask_count": count,
        }

    def _likeliest(self, positions, **inputs) -> Tensors:
        """Return probabilities and ids [B, P, K] at positions [B, P]."""
        logits = self.mlm(
            self.encode(**inputs)["sequence_output"],
            positions,
            embeddings=self.albert.embeddings,
        )
        # The table may have more rows than there are pieces.
        known = tf.nn.softmax(logits)[..., : self.tokenizer.vocab_size]
        probabilities, ids = tf.math.top_k(known, self.config.top_k)
        return {"probabilities": probabilities, "ids": ids}

    def _in_order(self, **inputs) -> Tensors:
        logits = self.heads(self.encode(**inputs))["sop_logits"]
        return {"in_order": tf.nn.softmax(logits)[:, 0]}

    def sentence_order(self, text, text_pair) -> Tensors:
        """Serve the probability [B] that `text_pair` follows `text`."""
        inputs = self.pack_pair(text, text_pair)
        return self.run(self.body(self._in_order), inputs)
