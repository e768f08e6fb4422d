"""What all heads share: how outputs of examples become losses and metrics.

Shapes: B batch.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

from albert_tf.model.albert import AlbertModel
from albert_tf.model.config import AlbertConfig
from albert_tf.model.task_heads import AlbertWithHead
from albert_tf.text.packing import INPUTS
from albert_tf.training.evaluator import Batch

LOSS_WEIGHTS = "loss_weights"  # among measured outputs
LABEL_WEIGHTS = "label_weights"  # among features, beside weighted labels

Outputs = dict[str, tf.Tensor]


class Head(abc.ABC):
    """The layers and the loss of a task: the `Objective` of its training.

    Attributes:
      terms: the name of its loss.
      metrics: the means to show in training.
      smooths: whether labels can be smoothed.
      averages: whether outputs are logits: those of several models can be
        averaged, and learnt from.
      token_outputs: which outputs have an axis of tokens, with what the model
        itself says at padding.
      further_inputs: names in a batch beside `INPUTS` and the labels.
      label_dtype: of labels, unless they are shares of classes, float32.
      output: the name of the model's output, if it has only one.
      model_class: makes the model from a config, `sizes`, and the rest.
    """

    terms: ClassVar[tuple[str, ...]] = ("task",)
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    smooths: ClassVar[bool] = True
    averages: ClassVar[bool] = True
    token_outputs: ClassVar[dict[str, float]] = {}
    further_inputs: ClassVar[tuple[str, ...]] = ()
    label_dtype: ClassVar[str] = "int32"
    output: ClassVar[str] = "logits"
    model_class: ClassVar[type[AlbertWithHead]]

    def __init__(self, task: Any):
        self.task = task

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the head's layers."""
        return ()

    def build_model(
        self,
        config: AlbertConfig,
        dtype: str,
        albert: AlbertModel | None = None,
    ) -> AlbertWithHead:
        """Return an ALBERT, new or the given one, with this head."""
        return self.model_class(
            config,
            *self.sizes(),
            classifier_dropout=self.task.config.classifier_dropout,
            dtype=dtype,
            albert=albert,
        )

    def outputs(self, model, batch: Batch, seed=None) -> Outputs:
        """Return the raw outputs of each example, {name: [B, ...]}."""
        inputs = [batch[name] for name in INPUTS]
        return self.named(model(*inputs, seed=seed))

    def named(self, outputs: Any) -> Outputs:
        """Return the outputs of a model, or its only output, by name."""
        return outputs if isinstance(outputs, dict) else {self.output: outputs}

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
        """Return each example's distance to a teacher's outputs, [B].

        Zeros as targets stand for labels that are all alike.
        """

    def example_metrics(self, outputs: Outputs, batch: Batch) -> Outputs:
        """Return {metric: [B]}, what to show of training beside the loss."""
        return {}

    def label_counts(self, batch: Batch) -> tf.Tensor:
        """Return how many labels each example has, [B]; 0 for padding.

        They are the examples' weights in the means of metrics.
        """
        return batch["example_weights"]

    def loss_weights(self, batch: Batch) -> tf.Tensor:
        """Return the examples' weights in the mean of a loss, [B]."""
        return self.label_counts(batch)

    def weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return the weight of the loss in a batch: that of its examples."""
        return {"task": tf.reduce_sum(self.loss_weights(batch))}

    def measured_outputs(self, model, batch: Batch) -> Outputs:
        """Return `outputs`, with their losses where labels are known."""
        return self.with_losses(self.outputs(model, batch), batch)

    def with_losses(self, outputs: Outputs, batch: Batch) -> Outputs:
        """Return outputs, where labels are known with `task_loss` [B].

        The mean of losses has the weights `LOSS_WEIGHTS` [B].
        """
        if "labels" not in batch:
            return outputs
        return outputs | {
            "task_loss": self.example_losses(outputs, batch),
            LOSS_WEIGHTS: self.loss_weights(batch),
        }

    def losses(
        self,
        model,
        batch: Batch,
        seed,
        example_losses: Callable | None = None,
    ) -> tuple[dict, dict]:
        """Return the sum of losses, and metrics (sum, weight).

        Args:
          model: the model.
          batch: the examples.
          seed: of dropout.
          example_losses: instead of the head's own.
        """
        weights, counts = self.loss_weights(batch), self.label_counts(batch)
        outputs = self.outputs(model, batch, seed)
        losses = (example_losses or self.example_losses)(outputs, batch)
        shown = self.example_metrics(outputs, batch)
        total = tf.reduce_sum(counts)
        return (
            {"task": tf.reduce_sum(losses * weights)},
            {k: (tf.reduce_sum(x * counts), total) for k, x in shown.items()},
        )
