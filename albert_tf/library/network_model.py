"""A task's network as a Keras model, with outputs, loss and metrics.

Shapes: B batch, C choices, T tokens.
"""

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from albert_tf.base.errors import InputError, require
from albert_tf.base.settings import as_type
from albert_tf.library.base_model import ModelWithTokenizer
from albert_tf.library.feature_batches import LABELS
from albert_tf.library.training_metrics import (
    OfficialMetric,
    adapted,
    check_loss,
    is_of_keras,
    keras_metrics,
    loss_inputs,
    weight_rows,
    with_output_axis,
)
from albert_tf.model.config import AlbertConfig
from albert_tf.model.layers import with_defaults
from albert_tf.model.ops import freed_with_graph, next_seed
from albert_tf.tasks.losses import ClassObjective, TaskObjective
from albert_tf.tasks.registry import task_of
from albert_tf.tasks.task import Task
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.training.checkpoints import named_variables
from albert_tf.training.distribution import all_sum
from albert_tf.training.keras_optimizers import AdamW

# Keras's arguments that set the number of batches.
STEPS = ("steps_per_epoch", "validation_steps", "steps")
OUT_OF_DATA = "Your input ran out of data"


def checked_smoothing(value: Any, objective: TaskObjective, loss: Any) -> float:
    """Return the label smoothing as a float, or raise `InputError`."""
    smoothing = as_type("label_smoothing", value, float)
    rule = "`label_smoothing` must be at least 0 and below 1."
    require(0 <= smoothing < 1, rule, label_smoothing=smoothing)
    rule = "`label_smoothing` needs a task with classes and the task's loss."
    possible = loss is None and objective.smooths or not smoothing
    require(possible, rule, label_smoothing=smoothing, loss=loss)
    return smoothing


@contextlib.contextmanager
def errors_of_data() -> Iterator[None]:
    """Raise the `InputError` that a function of a data set raised.

    TensorFlow converts such errors to its own, with the function's traceback.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = re.search(f"{InputError.__name__}: (.*)", str(error))
        if not found:
            raise
        raise InputError(found[1]) from None


def of_keras(name: str) -> Callable:
    """Wrap a method of `keras.Model` to shorten errors and hide a warning.

    Keras warns at the end of data of unknown size, even if the caller did not
    set the number of steps. The size is unknown if the data come from a
    generator, or if batches must not repeat a text. The method is looked up
    when it is called, because tracking tools such as MLflow replace it.
    """

    @functools.wraps(getattr(keras.Model, name))
    def quiet(self, *args, **kwargs):
        with warnings.catch_warnings(), errors_of_data():
            if not any(kwargs.get(steps) for steps in STEPS):
                warnings.filterwarnings("ignore", OUT_OF_DATA)
            return getattr(keras.Model, name)(self, *args, **kwargs)

    return quiet


class NetworkModel(ModelWithTokenizer):
    """An ALBERT model with a task's head, which trains on batches of ids.

    Args:
      config: the architecture.
      task: the task to learn, with its labels.
      tokenizer: the tokenizer, or None for a model that accepts only ids.
      **kwargs: passed to `keras.Model`.
    """

    fit, evaluate = of_keras("fit"), of_keras("evaluate")
    predict = of_keras("predict")

    def __init__(
        self,
        config: AlbertConfig,
        task: Task,
        tokenizer: Tokenizer | None = None,
        **kwargs,
    ):
        length = task.config.max_seq_length
        super().__init__(config, tokenizer, length, **kwargs)
        self.jit_compile = False  # on GPUs, the default before `compile` is XLA
        self.own_loss = True
        self.task = task
        self.network = task.build_model(config, self.dtype_policy)
        self._freeze_unused_pooler()
        # Keras would track the metrics if they were in a list.
        self._official = SimpleNamespace(metrics=[])
        self._shows_official = False

    @property
    def albert(self):
        """The encoder; `model.albert.trainable = False` freezes it."""
        return self.network.albert

    def _freeze_unused_pooler(self) -> None:
        """Freeze an unused pooler, so that Keras does not expect gradients."""
        if not self.network.reads_pooled:
            self.albert.pooler.trainable = False

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
          input_ids: int32 [B, T] ([B, C, T] for choices), or a dict of all
            inputs.
          input_mask: same shape, 1 for tokens. Default: ones.
          segment_ids: same shape. Default: zeros.
          training: whether to apply dropout.
        """
        batch = with_defaults(input_ids, input_mask, segment_ids)
        batch = self.with_task_inputs(batch)
        seed = next_seed(self.network.seed_generator) if training else None
        outputs = self.task.objective.outputs(self.network, batch, seed)
        return outputs["logits"] if set(outputs) == {"logits"} else outputs

    def named_inputs(self, inputs, extra):
        further = self.task.objective.further_inputs
        return self.network.named_inputs(inputs, extra, further)

    def with_task_inputs(self, batch: dict) -> dict:
        """Return a batch with defaults for the task's additional inputs."""
        return batch

    def values_of_outputs(self, outputs: Any) -> Any:
        """Convert the network's outputs for batches of ids to answers.

        By default, return the outputs unchanged, because some answers depend on
        texts.
        """
        return outputs

    def predict_on_batch(self, x):
        """Return the answers to one batch of ids, as `predict` does."""
        return self.values_of_outputs(super().predict_on_batch(x))

    # The loss and the metrics.

    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Sequence | None = None,
        weighted_metrics: Sequence | None = None,
        label_smoothing: float = 0.0,
        jit_compile: bool = False,
        **kwargs,
    ):
        """Configure training; see `keras.Model.compile`.

        Args:
          optimizer: by default, ALBERT's AdamW with learning rate 2e-5.
          loss: by default, the task's loss, a weighted mean over examples. Any
            other loss receives numeric labels and logits.
          metrics: "accuracy" is the task's own accuracy. Official metrics of
            `score`, such as "matthews", and, for two classes, "f1" are computed
            from all evaluated examples; `fit` logs them with the prefix `val_`.
            Keras's metrics receive logits, or probabilities if they need them;
            your own functions receive class indices and logits, or numbers.
          weighted_metrics: more metrics, weighted by the examples' weights.
          label_smoothing: share of the target to spread evenly over all classes
            during training; requires the task's own loss.
          jit_compile: whether XLA compiles the step. All rows then have
            `max_length` tokens.
          **kwargs: passed to `keras.Model.compile`.
        """
        self._freeze_unused_pooler()  # `albert.trainable = True` unfreezes it
        self.own_loss, objective = loss is None, self.task.objective
        check_loss(loss)
        smoothing = checked_smoothing(label_smoothing, objective, loss)
        self.label_smoothing = smoothing
        requested = {"metrics": metrics, "weighted_metrics": weighted_metrics}
        self._requested = SimpleNamespace(**requested)
        plain, weighted = (
            keras_metrics(x, self.task, objective) for x in requested.values()
        )
        self._official.metrics = [
            m for m in (*plain, *weighted) if isinstance(m, OfficialMetric)
        ]
        self._compile_metrics = None  # else Keras may keep earlier metrics
        super().compile(
            optimizer=AdamW() if optimizer is None else optimizer,
            loss=loss,
            metrics=plain or None,
            weighted_metrics=weighted or None,
            jit_compile=jit_compile,
            **kwargs,
        )

    def get_compile_config(self):
        config = super().get_compile_config()
        if config:
            arguments = {"label_smoothing": self.label_smoothing}
            arguments |= vars(self._requested)
            config |= keras.saving.serialize_keras_object(arguments)
        return config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    @property
    def official(self) -> list[OfficialMetric]:
        """The official metrics requested in `compile`."""
        return self._official.metrics

    def _check_official(self, of_ids: bool) -> None:
        """Raise `InputError` if official metrics are requested for ids."""
        rule = "Official metrics need texts and labels, not ids."
        names = ", ".join(m.name for m in self.official)
        require(not (self.official and of_ids), rule, metrics=names)

    @contextlib.contextmanager
    def showing(self, scores: dict[str, float]) -> Iterator[None]:
        """Within the `with` block, show official metrics in evaluation logs."""
        for metric in self.official:
            metric.value.assign(scores[metric.name])
        self._shows_official = True
        try:
            yield
        finally:
            self._shows_official = False

    def get_metrics_result(self):
        """Return the metrics; include official metrics only in evaluations."""
        results = super().get_metrics_result()
        if not self._shows_official:
            for metric in self.official:
                results.pop(metric.name, None)
        return results

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Under a strategy, Keras would pass the mean of the replicas' batches,
        # whose numbers of rows may differ.
        strategy = self._distribute_strategy
        if strategy is not None and iterator is not None:
            batch = next(next(iter(iterator))[-1])
            data_batch = tf.nest.map_structure(
                lambda x: strategy.experimental_local_results(x)[0], batch
            )
        super()._maybe_symbolic_build(data_batch=data_batch)

    def train_step(self, data):
        """Train on a batch, in a graph that is freed along with the model."""
        with freed_with_graph():
            return super().train_step(data)

    def test_step(self, data):
        """Evaluate a batch; the task's loss is a mean over all examples.

        Each batch is weighted by the sum of its examples' weights. Keras would
        weight it by its number of rows.
        """
        if not self.own_loss:
            return super().test_step(data)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        args = x, y, self(x, training=False), sample_weight
        loss = self.compute_loss(*args, training=False)
        loss *= tf.distribute.get_strategy().num_replicas_in_sync
        batch = loss_inputs(self.task.objective, *args[:3])[1]
        weight = tf.reduce_sum(self._loss_weights(batch, sample_weight))
        self._loss_tracker.update_state(loss, sample_weight=weight)
        return self.compute_metrics(*args)

    def _loss_weights(self, batch: dict, sample_weight: Any) -> tf.Tensor:
        """Return the weight of each row's loss, [B]."""
        weights = self.task.objective.loss_weights(batch)
        if sample_weight is not None:
            weights *= tf.cast(weight_rows(sample_weight), tf.float32)
        return weights

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """Return the mean of the compiled loss, by default the task's loss."""
        objective = self.task.objective
        labeled = y is not None or self.task.unlabeled or LABELS in x
        rule = "Ids need labels, as `y` or in the data set. Received: none"
        require(labeled, rule)
        if not self.own_loss:
            weights = weight_rows(sample_weight)
            args = with_output_axis(objective, y), y_pred, weights
            loss = keras.losses.get(*keras.tree.flatten(self.loss)[:1])
            if isinstance(objective, ClassObjective) and is_of_keras(loss):
                args = adapted(loss, objective, *args)
            return super().compute_loss(x, *args, training)
        outputs, batch = loss_inputs(objective, x, y, y_pred)
        weights = self._loss_weights(batch, sample_weight)
        losses = objective.example_losses(outputs, batch)
        if training and self.label_smoothing:
            uniform = {name: tf.zeros_like(x) for name, x in outputs.items()}
            soft = objective.soft_losses(outputs, uniform, 1.0, batch)
            losses += self.label_smoothing * (soft - losses)
        weight = tf.reduce_sum(weights)
        loss = tf.math.divide_no_nan(tf.reduce_sum(losses * weights), weight)
        # Keras sums over replicas.
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        in_replica = not tf.distribute.in_cross_replica_context()
        if training and replicas > 1 and in_replica:
            # Keras logs the loss, the mean over the replica's rows. The
            # replicas' gradients must add up to the whole batch's gradient.
            share = tf.math.divide_no_nan(weight * replicas, all_sum(weight))
            loss = share * loss + tf.stop_gradient((1.0 - share) * loss)
        return tf.add_n([loss, *self.losses]) / replicas

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Update and return the compiled metrics."""
        if isinstance(y_pred, dict):  # metrics use the first output
            y_pred = next(iter(y_pred.values()))
        y = with_output_axis(self.task.objective, y)
        weights = weight_rows(sample_weight)
        return super().compute_metrics(x, y, y_pred, weights)
