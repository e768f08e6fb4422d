"""The network of a task as a Keras model: its outputs, loss and metrics.

Shapes: B batch, C choices, T tokens.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.library.feature_batches import LABELS, WEIGHTS
from albert_tf.library.model_with_tokenizer import ModelWithTokenizer
from albert_tf.model.config import AlbertConfig
from albert_tf.model.custom_gradients import freed_with_graph
from albert_tf.model.dropout import drawn
from albert_tf.tasks.registry import task_of
from albert_tf.tasks.task import Task
from albert_tf.text.packing import INPUTS
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.training.model_directory.checkpoints import named_variables
from albert_tf.training.optimization.keras_optimizers import AdamW


class NetworkModel(ModelWithTokenizer):
    """An ALBERT with the head of a task, which learns from batches of ids.

    Args:
      config: the architecture.
      task: what is learnt, with its labels.
      tokenizer: makes ids of strings.
      **kwargs: of `keras.Model`.
    """

    def __init__(
        self,
        config: AlbertConfig,
        task: Task,
        tokenizer: Tokenizer | None = None,
        **kwargs,
    ):
        length = task.config.max_seq_length
        super().__init__(config, tokenizer, length, **kwargs)
        self.task = task
        self.network = task.head.build_model(config, self.dtype_policy)
        # Keras warns of variables that get no gradient.
        self.albert.pooler.trainable = self.network.reads_pooled
        self.means = {n: keras.metrics.Mean(n) for n in task.head.metrics}
        self.shown: list[str] = []
        self.own_loss = True

    @property
    def albert(self):
        """The encoder; `model.albert.trainable = False` freezes it."""
        return self.network.albert

    def named_weights(self):
        return named_variables(self.network)

    def get_config(self):
        config = super().get_config() | {"task": self.task.description()}
        del config["max_length"]
        return config

    @classmethod
    def from_config(cls, config):
        return super().from_config(config | {"task": task_of(config["task"])})

    # The network.

    def call(self, input_ids, input_mask=None, segment_ids=None, training=None):
        """Return the head's outputs: logits, or a dict of several outputs.

        Args:
          input_ids: int32 [B, T] (of choices [B, C, T]), or a dict of all.
          input_mask: the same shape, 1 at tokens. Default: ones.
          segment_ids: the same shape. Default: zeros.
          training: whether to drop units.
        """
        batch = {"input_mask": input_mask, "segment_ids": segment_ids}
        if not isinstance(input_ids, dict):
            input_ids = {"input_ids": input_ids}
        batch = self.with_defaults(
            {k: x for k, x in batch.items() if x is not None} | input_ids
        )
        seed = drawn(self.network.seed_generator) if training else None
        outputs = self.task.head.outputs(self.network, batch, seed)
        return outputs["logits"] if set(outputs) == {"logits"} else outputs

    def with_defaults(self, batch: dict) -> dict:
        """Return a batch with what users may leave out."""
        ids = batch["input_ids"]
        defaults = tf.ones_like(ids), tf.zeros_like(ids)
        return dict(zip(INPUTS[1:], defaults, strict=True)) | batch

    # The loss and the metrics.

    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Sequence | None = None,
        jit_compile: bool = False,
        **kwargs,
    ):
        """Say how to learn; see `keras.Model.compile`.

        Args:
          optimizer: by default ALBERT's AdamW with a rate of 2e-5.
          loss: by default that of the task, a mean over examples by their
            weights. Any other gets labels as numbers, and logits.
          metrics: "accuracy" is that of the task; others get labels as
            numbers, and logits.
          jit_compile: whether XLA compiles the step; all batches then have
            `max_length` tokens.
          **kwargs: of `keras.Model.compile`.
        """
        self.own_loss = loss is None
        named = isinstance(loss, str) and "entropy" in loss
        rule = "`loss` must be an object with `from_logits=True`."
        logits = not named and getattr(loss, "from_logits", True)
        require(logits, rule, loss=loss)
        if isinstance(metrics, str):
            metrics = [metrics]
        self.shown = [m for m in metrics or () if str(m) in self.means]
        others = [m for m in metrics or () if str(m) not in self.means]
        rule = "This task has no `accuracy` in training; see `model.score`."
        require("accuracy" not in map(str, others), rule, metrics=others)
        super().compile(
            optimizer=AdamW() if optimizer is None else optimizer,
            loss=loss,
            metrics=others or None,
            jit_compile=jit_compile,
            **kwargs,
        )

    def get_compile_config(self):
        config = super().get_compile_config()
        if config:
            config["metrics"] = [*self.shown, *(config["metrics"] or ())]
        return config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    @property
    def metrics(self):
        """The metrics that `compile` asked for."""
        hidden = [x for n, x in self.means.items() if n not in self.shown]
        return [m for m in super().metrics if all(m is not h for h in hidden)]

    @staticmethod
    def _measured(x, y, y_pred) -> tuple[dict, dict]:
        """Return outputs and batch as the head's losses take them."""
        outputs = y_pred if isinstance(y_pred, dict) else {"logits": y_pred}
        number = tf.shape(next(iter(outputs.values())))[0]
        labels = {} if y is None else {LABELS: y}
        # No example is padding; what users weigh is not the head's business.
        return outputs, x | labels | {WEIGHTS: tf.ones([number])}

    def train_step(self, data):
        """Learn from a batch; the graph can be freed with the model."""
        with freed_with_graph():
            return super().train_step(data)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """Return the mean of the task's loss, or what `compile` was told."""
        if not self.own_loss:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        head = self.task.head
        outputs, batch = self._measured(x, y, y_pred)
        weights = head.loss_weights(batch)
        if sample_weight is not None:
            weights *= tf.cast(sample_weight, tf.float32)
        total = tf.reduce_sum(head.example_losses(outputs, batch) * weights)
        loss = tf.math.divide_no_nan(total, tf.reduce_sum(weights))
        # Keras adds up what the replicas have.
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return tf.add_n([loss, *self.losses]) / replicas

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Update and return what `compile` asked for."""
        head = self.task.head
        if self.shown:
            outputs, batch = self._measured(x, y, y_pred)
            values = head.example_metrics(outputs, batch)
            counts = head.label_counts(batch)
            for name in self.shown:
                self.means[name].update_state(values[name], counts)
        return super().compute_metrics(x, y, y_pred, sample_weight)
