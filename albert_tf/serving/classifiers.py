"""What fine-tuned models of sentences and pairs of sentences serve.

Shapes: B batch, C classes (1 for a number).
"""

import tensorflow as tf

from albert_tf.model.task_heads import AlbertClassifier
from albert_tf.serving.blocks import Tensors
from albert_tf.serving.server import Server, ServingConfig
from albert_tf.tasks.classification import SentenceTask
from albert_tf.text.tokenizers import Tokenizer


class SentenceServer(Server):
    """A model with scores for each sentence or pair, whatever they mean.

    Args:
      model: the model with its head.
      weights: see `Server`.
      config: see `Server`.
      tokenizer: see `Server`.
      task: gives probabilities or a number for the scores, and the labels.
    """

    own: str  # the name of the function that serves the task alone

    def __init__(
        self,
        model: AlbertClassifier,
        weights: dict[str, tf.Variable],
        config: ServingConfig,
        tokenizer: Tokenizer | None,
        task: SentenceTask,
    ):
        self.classifier, self.task = model.classifier, task
        super().__init__(model.albert, weights, config, tokenizer)

    def inputs(self):
        inputs = super().inputs()
        if self.tokenizer:
            more = ("text_pair",) if self.task.is_pair else ()
            inputs[self.own] = self.text_inputs(*more)
        return inputs

    def default(self):
        return self.own if self.tokenizer else "ids"

    def scores(self, encoded: Tensors) -> Tensors:
        """Return the numbers of the head for `AlbertModel`'s outputs."""
        logits = self.classifier(encoded["pooled_output"])  # [B, C]
        return {"logits": logits} | self.task.served({"logits": logits})

    def heads(self, encoded):
        return self.scores(encoded)

    def numbers(self, **inputs):
        return self.scores(self._encode(**inputs))

    def _bulk(self, **inputs) -> Tensors:
        return self.heads(self.encode(**inputs))

    def answer(self, text, text_pair=None) -> Tensors:
        """Return the outputs of the task alone for one or two strings [B]."""
        if text_pair is None:
            inputs = self.pack(self.segment(text))
        else:
            inputs = self.pack_pair(text, text_pair)
        return self.run(self.body(self._bulk), inputs)


class ClassificationServer(SentenceServer):
    """One of several classes."""

    own = "classify"

    def heads(self, encoded):
        outputs = super().heads(encoded)
        labels = tf.constant(self.task.labels)
        best = tf.argmax(outputs["logits"], axis=-1)
        every = tf.broadcast_to(labels, tf.shape(outputs["logits"]))
        return outputs | {"label": tf.gather(labels, best), "labels": every}

    def classify(self, text, text_pair=None) -> Tensors:
        """Serve labels and probabilities [B, C], and the best label [B]."""
        return self.answer(text, text_pair)


class MultiLabelServer(SentenceServer):
    """Any number of several classes."""

    own = "classify"

    def heads(self, encoded):
        outputs = super().heads(encoded)
        labels = tf.constant(self.task.labels)
        every = tf.broadcast_to(labels, tf.shape(outputs["logits"]))
        chosen = outputs["probabilities"] > self.task.threshold
        return outputs | {"labels": every, "chosen": chosen}

    def classify(self, text, text_pair=None) -> Tensors:
        """Serve labels, probabilities and whether each is chosen [B, C]."""
        return self.answer(text, text_pair)


class RegressionServer(SentenceServer):
    """A number."""

    own = "score"

    def score(self, text, text_pair=None) -> Tensors:
        """Serve the number [B] of each sentence or pair."""
        return self.answer(text, text_pair)
