"""Signatures of a pretrained ALBERT: masked words and sentence order.

Shapes: B batch, T tokens, P masks of a text, K = top_k, V vocabulary.
"""

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.serving.server import ServedModel, basic_signatures
from albert_tf.serving.signatures import (
    Encoder,
    Signature,
    Tensors,
    graph_function,
)

# The number of masks per text in formats with fixed shapes.
NUMBER_MASKS = 8


def mask_rows(encoder: Encoder, text: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
    """Return rows with the `positions` [B, P] of masks, and their counts."""
    inputs = encoder.pack(encoder.text_graph.encode_masked(text))
    is_mask = inputs["input_ids"] == encoder.tokenizer.mask_id  # [B, T]
    count = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)
    positions = tf.RaggedTensor.from_row_lengths(
        tf.cast(tf.where(is_mask)[:, 1], tf.int32), count
    ).to_tensor()  # [B, P]
    return inputs | {"positions": positions}, count


def fill_mask(encoder: Encoder, model: AlbertForPretraining) -> Signature:
    """Return the signature that fills every `[MASK]` in strings [B].

    Its outputs are `pieces` and `probabilities` [B, P, K], likeliest first;
    `positions` int32 [B, P] of the masks among the tokens, and `mask_count`
    int32 [B]. Texts with fewer than P masks are padded with "", 0 and -1; masks
    in the part that is cut from a long text do not count.
    """
    config, tokenizer = encoder.config, encoder.tokenizer
    require(
        config.top_k <= tokenizer.vocab_size,
        "`top_k` must be at most the number of pieces, "
        f"{tokenizer.vocab_size}.",
        top_k=config.top_k,
    )

    def likeliest(positions, **inputs) -> Tensors:
        encoded = encoder.encode(**inputs, places=positions)
        masks = encoded["sequence_output"]  # [B, P, H]
        logits = model.mlm(masks, embeddings=encoder.albert.embeddings)
        # The word table may have more rows than there are pieces.
        known = tf.nn.softmax(logits)[..., : tokenizer.vocab_size]
        probabilities, ids = tf.math.top_k(known, config.top_k)
        return {"probabilities": probabilities, "ids": ids}

    compute = graph_function(likeliest)

    def call(text: tf.Tensor) -> Tensors:
        inputs, count = mask_rows(encoder, text)
        outputs, positions = encoder.run(compute, inputs), inputs["positions"]
        there = tf.sequence_mask(count, tf.shape(positions)[1])
        pieces = tf.gather(encoder.vocabulary, outputs["ids"])
        every = there[..., None]  # [B, P, 1]
        return {
            "pieces": tf.where(every, pieces, ""),
            "probabilities": tf.where(every, outputs["probabilities"], 0.0),
            "positions": tf.where(there, positions, -1),
            "mask_count": count,
        }

    return Signature(encoder.strings("text"), call)


def sentence_order(encoder: Encoder, model: AlbertForPretraining) -> Signature:
    """Return the signature for the probability [B] that a pair is in order."""

    def in_order(**inputs) -> Tensors:
        logits = model.sop(encoder.pool(**inputs)["pooled_output"])
        return {"in_order": tf.nn.softmax(logits)[:, 0]}

    return encoder.text_pair(graph_function(in_order))


def pretrained_server(
    encoder: Encoder,
    model: AlbertForPretraining,
    weights: dict[str, tf.Variable],
) -> ServedModel:
    """Return a server with the heads of the model that have weights.

    Args:
      encoder: the model's encoder.
      model: restored.
      weights: {name: variable}, without absent heads.
    """
    there = {name.split("/")[0] for name in weights}

    def order(encoded: Tensors, inputs: Tensors) -> Tensors:
        if "sop" not in there:
            return {}
        return {"sop_logits": model.sop(encoded["pooled_output"])}  # [B, 2]

    def numbers(mlm_positions=None, **inputs) -> Tensors:
        encoded = encoder.outputs(**inputs)
        outputs = encoded | order(encoded, inputs)
        if mlm_positions is None:
            return outputs
        masks = tf.gather(
            encoded["sequence_output"], mlm_positions, batch_dims=1
        )  # [B, P, H]
        logits = model.mlm(
            masks, embeddings=encoder.albert.embeddings
        )  # [B, P, V]
        return outputs | {"mlm_logits": logits}

    signatures, number_inputs = basic_signatures(encoder, order), encoder.ids()
    if "mlm" in there:
        config = encoder.config
        masks = NUMBER_MASKS if config.fixed_length else None
        shape = [config.batch_size, masks]
        number_inputs.append(tf.TensorSpec(shape, tf.int32, "mlm_positions"))
    if encoder.takes_text and "mlm" in there:
        signatures["fill_mask"] = fill_mask(encoder, model)
    if encoder.takes_text and "sop" in there:
        signatures["sentence_order"] = sentence_order(encoder, model)
    default = "text" if encoder.takes_text else "ids"
    return ServedModel(
        encoder, weights, signatures, default, number_inputs, numbers
    )
