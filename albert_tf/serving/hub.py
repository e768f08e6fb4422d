"""The encoder with the signatures of the released TF-Hub modules.

Source: google-research/albert `export_to_tfhub.py`. Shapes: B batch, T tokens,
P masks of a text, V vocabulary.
"""

import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.serving.pretrained import PretrainedServer
from albert_tf.serving.server import IDS, Server


class HubModule(tf.Module):
    """What a released module offers, as far as the model has its heads.

    Args:
      server: a pretrained model.
      vocabulary: the path of the vocabulary, None if there is none.
    """

    def __init__(self, server: Server, vocabulary: str | None):
        super().__init__(name="albert")
        if not isinstance(server, PretrainedServer):
            raise InputError(
                "`to=hub` must be given a pretrained model. Received: the "
                f"fine-tuned model of the task {server.task.name}"
            )
        self._server = server
        self.weights = server.weights
        self.vocabulary = vocabulary and tf.saved_model.Asset(vocabulary)

    def tokens(self, **inputs):
        """Return `sequence_output` [B, T, H] and `pooled_output` [B, H]."""
        return self._server.run(self._server.encode, inputs)

    def sop(self, **inputs):
        """Return `sop_log_probs` [B, 2], in order and swapped, and tokens."""
        outputs = self.tokens(**inputs)
        logits = self._server.sop(outputs["pooled_output"])
        return outputs | {"sop_log_probs": tf.nn.log_softmax(logits)}

    def mlm(self, mlm_positions, **inputs):
        """Return `mlm_logits` [B * P, V] at `mlm_positions` [B, P]."""
        outputs = self.tokens(**inputs)
        logits = self._server.mlm(
            outputs["sequence_output"],
            mlm_positions,
            embeddings=self._server.albert.embeddings,
        )
        flat = tf.reshape(logits, [-1, tf.shape(logits)[-1]])
        return outputs | {"mlm_logits": flat}

    def tokenization_info(self):
        """Return the path of the vocabulary and the casing."""
        config = self._server.tokenizer.config
        return {
            "vocab_file": tf.identity(self.vocabulary.asset_path),
            "do_lower_case": tf.constant(config.do_lower_case),
        }

    def signatures(self) -> dict:
        """Return {name: concrete function} of what is there."""
        ids = {s.name: s for s in self._server.id_inputs()}
        shape = ids[IDS[0]].shape[:1] + [None]
        masks = tf.TensorSpec(shape, tf.int32, "mlm_positions")
        wanted = {"tokens": ids}
        if self._server.sop:
            wanted["sop"] = ids
        if self._server.mlm:
            wanted["mlm"] = ids | {"mlm_positions": masks}
        if self.vocabulary:
            wanted["tokenization_info"] = {}
        made = {
            name: tf.function(
                getattr(self, name), autograph=False
            ).get_concrete_function(**specs)
            for name, specs in wanted.items()
        }
        return {"serving_default": made["tokens"], **made}
