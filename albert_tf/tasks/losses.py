"""The loss and the training metrics of each kind of task.

Shapes: B batch, T tokens, C classes, choices or texts per example, H vector
width.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

from albert_tf.model.ops import (
    cross_entropy,
    hits,
    soft_cross_entropy,
    weighted_mean,
)
from albert_tf.model.task_heads import IMPOSSIBLE, two_crops
from albert_tf.text.packing import INPUTS
from albert_tf.training.objectives import Batch

LOSS_WEIGHTS = "loss_weights"  # a key of `TaskObjective.measured_outputs`
LABEL_WEIGHTS = "label_weights"  # a key of features with weighted labels

Outputs = dict[str, tf.Tensor]


class TaskObjective(abc.ABC):
    """The training `Objective` of a task: its loss and metrics.

    Attributes:
      terms: the names of the loss terms.
      metrics: the names of the metrics to show during training.
      smooths: whether labels can be smoothed.
      averages: whether outputs are logits, which can be averaged over models or
        distilled.
      token_outputs: {output with a token axis: value at padding}.
      further_inputs: names of features that the model or the loss needs in
        addition to `INPUTS`.
      label_dtype: the dtype of labels; class probabilities are float32.
      label_rank: the number of axes of a batch's labels. If a label is one of
        several classes, class probabilities have one more axis.
    """

    terms: ClassVar[tuple[str, ...]] = ("task",)
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    smooths: ClassVar[bool] = True
    averages: ClassVar[bool] = True
    token_outputs: ClassVar[dict[str, float]] = {}
    further_inputs: ClassVar[tuple[str, ...]] = ()
    label_dtype: ClassVar[str] = "int32"
    label_rank: ClassVar[int] = 1

    def __init__(self, task: Any):
        self.task = task

    def outputs(self, model, batch: Batch, seed=None) -> Outputs:
        """Return the raw outputs of each example, {name: [B, ...]}."""
        inputs = [batch[name] for name in INPUTS]
        return self.task.named(model(*inputs, seed=seed))

    @abc.abstractmethod
    def example_losses(self, outputs: Outputs, batch: Batch) -> tf.Tensor:
        """Return the loss of each example, [B]."""

    @abc.abstractmethod
    def soft_losses(
        self,
        outputs: Outputs,
        targets: Outputs,
        temperature: float,
        batch: Batch,
    ) -> tf.Tensor:
        """Return each example's loss [B] against a teacher's outputs.

        `targets` are the teacher's outputs. Except in regression, targets of 0
        mean that all labels are equally likely.
        """

    def example_metrics(self, outputs: Outputs, batch: Batch) -> Outputs:
        """Return {metric: values [B]} to show during training."""
        return {}

    def label_counts(self, batch: Batch) -> tf.Tensor:
        """Return each example's number of labels [B], which is 0 for padding.

        These counts are the weights of the examples in the means of metrics.
        """
        return batch["example_weights"]

    def loss_weights(self, batch: Batch) -> tf.Tensor:
        """Return the examples' weights in the mean loss, [B]."""
        return self.label_counts(batch)

    def weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return {"task": the sum of the examples' loss weights}."""
        return {"task": tf.reduce_sum(self.loss_weights(batch))}

    def measured_outputs(self, model, batch: Batch) -> Outputs:
        """Return `outputs`, with losses if labels are known."""
        return self.with_losses(self.outputs(model, batch), batch)

    def with_losses(self, outputs: Outputs, batch: Batch) -> Outputs:
        """Return the outputs, with `task_loss` [B] if labels are known.

        The output `LOSS_WEIGHTS` [B] then contains the examples' weights in
        the mean loss.
        """
        if "labels" not in batch:
            return outputs
        return outputs | {
            "task_loss": self.example_losses(outputs, batch),
            LOSS_WEIGHTS: self.loss_weights(batch),
        }

    def losses(
        self, model, batch: Batch, seed, example_losses: Callable | None = None
    ) -> tuple[dict, dict]:
        """Return {term: sum of losses}, and {metric: (sum, weight)}.

        In each sum, the value of an example is multiplied by the example's
        weight. The weight of a metric is the sum of the examples' weights.

        Args:
          model: the model.
          batch: the examples.
          seed: the dropout seed.
          example_losses: a replacement for the method `example_losses`, or
            None.
        """
        weights, counts = self.loss_weights(batch), self.label_counts(batch)
        outputs = self.outputs(model, batch, seed)
        losses = (example_losses or self.example_losses)(outputs, batch)
        metrics = self.example_metrics(outputs, batch)
        total = tf.reduce_sum(counts)
        return (
            {"task": tf.reduce_sum(losses * weights)},
            {k: (tf.reduce_sum(x * counts), total) for k, x in metrics.items()},
        )


class ClassObjective(TaskObjective):
    """The objective for tasks in which a label is one of several classes.

    A label may also be a list of target probabilities, one for each class.
    """

    def loss_weights(self, batch):
        return self.label_counts(batch) * batch.get(LABEL_WEIGHTS, 1.0)

    def example_losses(self, outputs, batch):
        logits, labels = outputs["logits"], batch["labels"]
        if len(labels.shape) == len(logits.shape):  # shares of the classes
            shares = tf.cast(labels, tf.float32)
            return tf.nn.softmax_cross_entropy_with_logits(shares, logits)
        return cross_entropy(logits, labels)

    def soft_losses(self, outputs, targets, temperature, batch):
        pair = outputs["logits"], targets["logits"]
        return soft_cross_entropy(*pair, temperature)

    def example_metrics(self, outputs, batch):
        logits, labels = outputs["logits"], batch["labels"]
        if len(labels.shape) == len(logits.shape):
            labels = tf.argmax(labels, axis=-1)
        return {"accuracy": hits(logits, labels)}


class SetObjective(ClassObjective):
    """The objective if a label is a set of any number of classes."""

    label_dtype, label_rank = "float32", 2

    def _weights(self, batch):
        """Return float32 [B, C], the weight of each class's label."""
        return batch.get(LABEL_WEIGHTS, tf.ones_like(batch["labels"]))

    def _loss(self, logits, labels, batch):
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
        return weighted_mean(losses, self._weights(batch))

    def loss_weights(self, batch):
        weights = tf.reduce_mean(self._weights(batch), axis=-1)
        return self.label_counts(batch) * weights

    def example_losses(self, outputs, batch):
        return self._loss(outputs["logits"], batch["labels"], batch)

    def soft_losses(self, outputs, targets, temperature, batch):
        labels = tf.sigmoid(targets["logits"] / temperature)
        mean = self._loss(outputs["logits"] / temperature, labels, batch)
        return mean * temperature**2

    def example_metrics(self, outputs, batch):
        probabilities = self.task.probabilities(outputs["logits"])
        predicted = probabilities > self.task.threshold
        correct = tf.equal(predicted, batch["labels"] > 0.5)
        return {"accuracy": tf.cast(tf.reduce_all(correct, -1), tf.float32)}


class NumberObjective(TaskObjective):
    """The objective for one or more numbers: the mean squared error.

    The released code uses the same loss.
    """

    metrics, smooths, label_dtype = (), False, "float32"

    @property
    def label_rank(self):
        return 2 if self.task.labels else 1

    def _errors(self, outputs, numbers):
        errors = tf.square(self.task.numbers(outputs["logits"]) - numbers)
        return tf.reduce_mean(errors, axis=-1) if self.task.labels else errors

    def example_losses(self, outputs, batch):
        return self._errors(outputs, batch["labels"])

    def soft_losses(self, outputs, targets, temperature, batch):
        return self._errors(outputs, self.task.numbers(targets["logits"]))


class ChoiceObjective(ClassObjective):
    """The objective for choices; an example may have fewer than C of them."""

    further_inputs = ("choice_mask",)

    @staticmethod
    def _present(logits, batch):
        """Return logits [B, C] with the absent choices excluded."""
        return {
            "logits": tf.where(batch["choice_mask"] > 0, logits, IMPOSSIBLE)
        }

    def outputs(self, model, batch, seed=None):
        outputs = super().outputs(model, batch, seed)
        return self._present(outputs["logits"], batch)

    def soft_losses(self, outputs, targets, temperature, batch):
        present = self._present(targets["logits"], batch)
        return super().soft_losses(outputs, present, temperature, batch)


class TagObjective(ClassObjective):
    """The objective for tags, which belong to the first piece of every word.

    A row's loss and metrics are means over its words, and the row's weight is
    the number of its words. Means over a batch are therefore means over words.
    If labels have weights, the loss is a weighted mean, and the row's weight in
    the loss is the sum of these weights.
    """

    token_outputs: ClassVar = {"logits": 0.0}
    label_rank = 2

    def _words(self, batch):
        """Return float32 [B, T], 1 at the first piece of each word."""
        return tf.cast(batch["labels"] >= 0, tf.float32)

    def _weights(self, batch):
        """Return float32 [B, T], the weight of each word in the loss."""
        return self._words(batch) * batch.get(LABEL_WEIGHTS, 1.0)

    def label_counts(self, batch):
        words = tf.reduce_sum(self._words(batch), axis=1)
        return words * batch["example_weights"]

    def loss_weights(self, batch):
        weights = tf.reduce_sum(self._weights(batch), axis=1)
        return weights * batch["example_weights"]

    def example_losses(self, outputs, batch):
        labels = tf.maximum(batch["labels"], 0)  # [B, T]
        losses = cross_entropy(outputs["logits"], labels)
        return weighted_mean(losses, self._weights(batch))

    def soft_losses(self, outputs, targets, temperature, batch):
        losses = super().soft_losses(outputs, targets, temperature, batch)
        return weighted_mean(losses, self._weights(batch))

    def example_metrics(self, outputs, batch):
        labels = tf.maximum(batch["labels"], 0)
        correct = hits(outputs["logits"], labels)
        return {"accuracy": weighted_mean(correct, self._words(batch))}


class SpanObjective(TaskObjective):
    """The objective if an answer's start and end have independent logits."""

    metrics, smooths, label_rank = (), False, 2
    token_outputs: ClassVar = {
        "start_logits": IMPOSSIBLE,
        "end_logits": IMPOSSIBLE,
    }

    def example_losses(self, outputs, batch):
        start, end = tf.unstack(batch["labels"], 2, axis=1)  # [B]
        loss = cross_entropy(outputs["start_logits"], start)
        return 0.5 * (loss + cross_entropy(outputs["end_logits"], end))

    def soft_losses(self, outputs, targets, temperature, batch):
        start, end = (
            soft_cross_entropy(outputs[name], targets[name], temperature)
            for name in self.token_outputs
        )
        return 0.5 * (start + end)


class BeamObjective(SpanObjective):
    """The objective of the released head for SQuAD 2.0, with a beam."""

    averages = False
    token_outputs: ClassVar = {}
    further_inputs = ("labels",)

    def outputs(self, model, batch, seed=None):
        inputs = [batch[name] for name in INPUTS]
        return model(*inputs, seed=seed, labels=batch.get("labels"))

    def measured_outputs(self, model, batch):
        outputs = super().measured_outputs(model, batch)
        # Only the loss needs these outputs.
        for name in ("start_log_probs", "end_log_probs"):
            outputs.pop(name, None)
        return outputs

    def example_losses(self, outputs, batch):
        start, end = tf.unstack(batch["labels"], 2, axis=1)  # [B]
        loss = cross_entropy(outputs["start_log_probs"], start)
        loss += cross_entropy(outputs["end_log_probs"], end)
        loss += tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(start == 0, tf.float32),
            logits=outputs["answer_logits"],
        )
        return 0.5 * loss


class EmbeddingObjective(TaskObjective):
    """The objective for vectors whose cosine is high for matching texts.

    Without scores, the loss is the cross entropy of choosing a text's match
    from the matches and negatives of all rows in a replica's micro-batch. With
    scores, it is the squared difference between the cosine and the scaled
    score.
    """

    metrics, smooths, averages = (), False, False
    further_inputs, label_dtype = ("is_rated",), "float32"

    def outputs(self, model, batch, seed=None):
        inputs = {name: batch[name] for name in INPUTS}
        if seed is not None and inputs["input_ids"].shape.rank == 2:
            inputs = two_crops(inputs, self.task.config.crop_rate, seed)
        return self.task.named(model(*inputs.values(), seed=seed))

    def example_losses(self, outputs, batch):
        texts = tf.transpose(outputs["embedding"], [1, 0, 2])  # [C, B, H]
        _, is_unit = self.task.head_arguments
        if not is_unit:
            texts = tf.math.l2_normalize(texts, axis=-1)
        first, others = texts[0], texts[1:]
        if "is_rated" in batch:
            cosine = tf.reduce_sum(first * others[0], axis=-1)
            return tf.square(cosine - batch["labels"])
        width = tf.shape(first)[1]
        candidates = tf.reshape(others, [-1, width])  # [B, H], or [2 B, H]
        logits = tf.matmul(first, candidates, transpose_b=True)
        number = tf.shape(others)[:1]
        padding = 1.0 - tf.tile(batch["example_weights"], number)
        logits = logits / self.task.config.temperature + IMPOSSIBLE * padding
        if not logits.shape[0]:
            # Without rows, as in a replica that receives no part of the last
            # batch, TensorFlow's cross entropy would lack a class.
            is_empty = tf.cast(tf.equal(tf.shape(logits)[0], 0), tf.int32)
            logits = tf.pad(logits, [[0, 0], [0, is_empty]])
        return cross_entropy(logits, tf.range(tf.shape(first)[0]))

    def soft_losses(self, outputs, targets, temperature, batch):
        raise NotImplementedError


# The class of the objective for each `Task.head_kind`.
OBJECTIVES: dict[str, type[TaskObjective]] = {
    "classification": ClassObjective,
    "multilabel": SetObjective,
    "regression": NumberObjective,
    "multiple_choice": ChoiceObjective,
    "token_classification": TagObjective,
    "question_answering": SpanObjective,
    "beam": BeamObjective,
    "embedding": EmbeddingObjective,
}
