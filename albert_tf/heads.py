"""The layers that fine-tuning puts on the encoder.

Shapes: B batch, T tokens, H hidden width, C classes or outputs.
"""

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.dropout import dropout, fold_in
from albert_tf.model import AlbertModel, AlbertPart


class AlbertClassifier(AlbertPart):
    """ALBERT with a dense layer on the pooled output.

    Args:
      config: the architecture.
      outputs: the number C of classes, or 1 for a number.
      classifier_dropout: dropout of the pooled output, 0.1 as released.
      dtype: see `AlbertModel`.
    """

    def __init__(
        self,
        config: AlbertConfig,
        outputs: int,
        classifier_dropout: float = 0.1,
        dtype="float32",
    ):
        super().__init__(config, dtype=dtype, name="classification")
        self.outputs = outputs
        self.classifier_dropout = classifier_dropout
        self.build()

    def build(self):
        self.albert = AlbertModel(self.config, dtype=self.dtype_policy)
        self.albert.build()
        self.classifier = self.dense(
            "classifier", self.config.hidden_size, self.outputs
        )

    def call(self, input_ids, input_mask, segment_ids, seed=None):
        """Return float32 logits [B, C]; inputs as for `AlbertModel`."""
        encoded = self.albert(input_ids, input_mask, segment_ids, seed=seed)
        pooled = dropout(
            encoded["pooled_output"],  # [B, H]
            self.classifier_dropout,
            fold_in(seed, 2),
        )
        return tf.cast(self.classifier(pooled), tf.float32)
