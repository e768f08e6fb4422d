"""Metrics and losses for `compile`, adapted to outputs that are logits.

Each metric tells Keras whether larger or smaller values are better, so that
callbacks can monitor the metric.

Shapes: B batch, C classes.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from albert_tf.base.errors import InputError, input_errors, require
from albert_tf.library.feature_batches import LABELS, WEIGHTS
from albert_tf.library.user_data import without_spare_axis
from albert_tf.tasks.losses import (
    ClassObjective,
    NumberObjective,
    SpanObjective,
    TagObjective,
    TaskObjective,
)
from albert_tf.tasks.registry import find
from albert_tf.tasks.task import Task

SHORT = {"acc": "accuracy"}  # as in Keras
# Keras losses that expect probabilities and have no `from_logits`.
OF_PROBABILITIES = ("kl_divergence", "poisson", "dice", "tversky")
AUTOMATIC = ("ce", "crossentropy")  # names for which Keras selects a loss
MEAN = "sum_over_batch_size"  # the default reduction of Keras losses


def weight_rows(weights: Any) -> Any:
    """Return the weights of examples as [B]; [B, 1], for example, becomes [B].

    The product of losses [B] and weights [B, 1] would be [B, B]. The rank is
    unknown in a step that Keras traces for both shapes.

    Raises:
      InputError: if there is not one weight for each example.
    """
    if weights is None:
        return None
    weights = tf.convert_to_tensor(weights)
    rule = "`sample_weight` must have one number for each example."
    more = weights.shape[1:]
    is_legal = more.rank is None or more.as_list() in ([], [1])
    require(is_legal, rule, sample_weight=weights.shape)
    return tf.reshape(weights, tf.shape(weights)[:1])


def with_output_axis(objective: TaskObjective, y: Any) -> Any:
    """Return the labels [B] of single numbers as [B, 1], like the outputs.

    The difference of [B] and [B, 1] would be [B, B].
    """
    single = isinstance(objective, NumberObjective) and y is not None
    single = single and objective.label_rank == len(y.shape) == 1
    return y[..., None] if single else y


def expected_labels(objective: TaskObjective, y: Any, y_pred: Any) -> Any:
    """Return a batch's labels with the dtype and shape of the objective.

    Users who pass ids may pass labels of other shapes too, such as [B, 1].

    Raises:
      InputError: if the objective would broadcast labels of another shape.
    """
    y = without_spare_axis(objective, y)
    if isinstance(y_pred, dict):
        return tf.cast(y, objective.label_dtype)
    are_rows = len(y.shape) == len(y_pred.shape)  # [B, C]
    fits = len(y.shape) == objective.label_rank
    if are_rows:
        fits = tf.TensorShape(y.shape).is_compatible_with(y_pred.shape)
    rule = "Each example must have a label for each output of the network or, "
    rule += "if the outputs are classes, the number of a class."
    require(fits, rule, y=tuple(y.shape), outputs=tuple(y_pred.shape))
    return tf.cast(y, tf.float32 if are_rows else objective.label_dtype)


def loss_inputs(
    objective: TaskObjective, x: dict, y: Any, y_pred: Any
) -> tuple[dict, dict]:
    """Return outputs and a batch in the form that an objective expects."""
    outputs = y_pred if isinstance(y_pred, dict) else {"logits": y_pred}
    number = tf.shape(next(iter(outputs.values())))[0]
    labels = {}
    if y is not None:
        labels = {LABELS: expected_labels(objective, y, y_pred)}
    # No example is padding, and the objective does not apply users' weights.
    return outputs, x | labels | {WEIGHTS: tf.ones([number])}


class ObjectiveMetric(keras.metrics.Mean):
    """The mean of a metric that a task's objective computes.

    Args:
      name: the name in the logs.
      objective: the objective that computes `metric`.
      metric: the objective's name for the metric.
    """

    def __init__(self, name: str, objective: TaskObjective, metric: str):
        super().__init__(name=name)
        self.objective, self.metric, self._direction = objective, metric, "up"

    def update_state(self, y_true, y_pred, sample_weight=None):
        outputs, batch = loss_inputs(self.objective, {}, y_true, y_pred)
        counts = self.objective.label_counts(batch)
        if sample_weight is not None:
            counts *= tf.cast(sample_weight, tf.float32)
        values = self.objective.example_metrics(outputs, batch)[self.metric]
        return super().update_state(values, counts)


class OfficialMetric(keras.metrics.Metric):
    """A metric over all examples, whose value `evaluate` assigns."""

    def __init__(self, name: str):
        super().__init__(name=name)
        self._direction = "up"
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Do nothing: the metric cannot be computed from batches."""

    def reset_state(self):
        """Keep the assigned value."""

    def result(self):
        return tf.convert_to_tensor(self.value)


def function_of(obj: Any) -> tuple[Callable | None, dict]:
    """Return the function of a Keras loss or metric, and its settings.

    The function is None if it is not one of Keras's functions.
    """
    settings = {}
    if isinstance(obj, functools.partial):
        obj, settings = obj.func, obj.keywords
    settings = settings or getattr(obj, "_fn_kwargs", {})
    function = getattr(obj, "fn", None) or getattr(obj, "_fn", obj)
    of_keras = getattr(function, "__module__", "").startswith("keras.")
    is_function = of_keras and inspect.isfunction(function)
    return function if is_function else None, settings


def is_of_keras(obj: Any) -> bool:
    """Return whether a loss or metric is from Keras, not from the user."""
    function, _ = function_of(obj)
    wraps = hasattr(obj, "fn") or hasattr(obj, "_fn")
    if function or wraps:
        return function is not None
    return type(obj).__module__.startswith("keras.")


def takes_probabilities(obj: Any) -> bool:
    """Return whether a Keras loss or metric expects probabilities.

    This is the case if its function is in `OF_PROBABILITIES` or its
    `from_logits` is False. Without `from_logits`, the thresholds decide: they
    are 0 if logits are expected.
    """
    function, settings = function_of(obj)
    if function:
        defaults = inspect.signature(function).parameters
        defaults = {k: p.default for k, p in defaults.items()}
        settings = defaults | settings
    elif isinstance(obj, keras.losses.Loss | keras.metrics.Metric):
        settings = {k.lstrip("_"): x for k, x in vars(obj).items()}
        if not is_of_keras(obj):
            return settings.get("from_logits") is False
    else:
        return False
    if getattr(function, "__name__", "") in OF_PROBABILITIES:
        return True
    if "from_logits" in settings:
        return not settings["from_logits"]
    limits = settings.get("thresholds", settings.get("threshold"))
    limits = limits if isinstance(limits, Sequence) else [limits]
    return any(limits)  # a threshold of 0 is for logits


def label_form(obj: Any) -> str:
    """Return the form of labels that a Keras loss or metric expects.

    Returns:
      "rows" for a 0 or 1 for each class, "binary" for a single 0 or 1, or
      "numbers" for class indices.
    """
    name = getattr(function_of(obj)[0], "__name__", "")
    if "categorical" in name and "sparse" not in name:
        return "rows"
    of_rows = getattr(obj, "class_id", None) is not None
    of_rows = of_rows or getattr(obj, "multi_label", False)
    if of_rows or isinstance(obj, keras.metrics.FBetaScore):
        return "rows"
    limits = hasattr(obj, "thresholds") or hasattr(obj, "threshold")
    if limits or name.startswith("binary"):
        return "binary"
    of_numbers = name.startswith("sparse")
    of_numbers = of_numbers or getattr(obj, "sparse_y_true", False)
    return "numbers" if of_numbers else "rows"


def words_only(y: Any, y_pred: Any, weights: Any, are_scaled: bool) -> tuple:
    """Flatten the labels, outputs and weights of tokens to a single axis.

    Tokens without a tag have a weight of 0. No token is removed, because XLA
    needs fixed shapes.

    Args:
      y: tags [B, T], -1 for tokens without a tag.
      y_pred: outputs [B, T, C].
      weights: weights of the rows [B], or None.
      are_scaled: whether to scale the weights so that a mean over all tokens
        is a mean over words.
    """
    tagged = tf.cast(y >= 0, tf.float32)  # [B, T]
    shares = tagged
    if weights is not None:
        shares *= tf.cast(weights, tf.float32)[:, None]
    if are_scaled:
        tokens = tf.cast(tf.size(y), tf.float32)
        shares *= tf.math.divide_no_nan(tokens, tf.reduce_sum(tagged))
    y_pred = tf.reshape(y_pred, [-1, y_pred.shape[-1]])  # [BT, C]
    y = tf.reshape(tf.maximum(y, 0), [-1])  # [BT]
    return y, y_pred, tf.reshape(shares, [-1])


def adapted(
    obj: Any, objective: TaskObjective, y: Any, y_pred: Any, weights: Any
) -> tuple:
    """Return labels, outputs and weights as a Keras loss or metric expects.

    Binary metrics evaluate class 1 if there are two classes, and every class
    otherwise.

    Args:
      obj: the loss or metric.
      objective: the objective of a task with classes.
      y: labels [B] or [B, C], or tags [B, T].
      y_pred: logits.
      weights: weights of the rows [B], or None.
    """
    of_probabilities = takes_probabilities(obj)
    if of_probabilities:
        y_pred = objective.task.probabilities(y_pred)
    if isinstance(objective, TagObjective):
        is_mean = getattr(obj, "reduction", MEAN) == MEAN
        is_mean &= not isinstance(obj, keras.metrics.Metric)
        y, y_pred, weights = words_only(y, y_pred, weights, is_mean)
    form, classes = label_form(obj), y_pred.shape[-1]
    if form == "numbers" or len(y.shape) == len(y_pred.shape):
        return y, y_pred, weights
    if form == "binary" and classes == 2:
        no, yes = y_pred[..., 0], y_pred[..., 1]
        return y, yes if of_probabilities else yes - no, weights
    return tf.one_hot(tf.cast(y, tf.int32), classes), y_pred, weights


class Adapted(keras.metrics.Metric):
    """A Keras metric that receives the result of `adapted`."""

    def __init__(self, metric: keras.metrics.Metric, objective: TaskObjective):
        super().__init__(name=metric.name)
        self.metric, self.objective = metric, objective
        if hasattr(metric, "_direction"):
            self._direction = metric._direction

    def update_state(self, y_true, y_pred, sample_weight=None):
        arguments = self.objective, y_true, y_pred, sample_weight
        return self.metric.update_state(*adapted(self.metric, *arguments))

    def reset_state(self):
        self.metric.reset_state()

    def result(self):
        return self.metric.result()


def check_loss(loss: Any) -> None:
    """Raise `InputError` for a Keras loss that expects probabilities."""
    for item in keras.tree.flatten(loss):
        automatic = isinstance(item, str) and item.lower() in AUTOMATIC
        rule = "`loss` must be a Keras loss or a function"
        with input_errors((ValueError, TypeError), rule, loss=item):
            resolved = None if automatic else keras.losses.get(item)
        require(
            not (automatic or takes_probabilities(resolved)),
            "`loss` must accept logits: pass an object with `from_logits=True`,"
            " such as `keras.losses.SparseCategoricalCrossentropy("
            "from_logits=True)`, or `BinaryCrossentropy` if a text may have "
            "several classes. Without `loss`, the task's own loss is used.",
            loss=getattr(item, "name", getattr(item, "__name__", item)),
        )


def official_names(task: Task) -> set[str]:
    """Return the metrics that `score` can compute for a task."""
    names = {*task.scores, *find(task.kind).scores}
    if task.kind == "classification" and len(task.labels) == 2:
        names.add("f1")
    return names


def keras_metric(metric: Any, task: Task, objective: TaskObjective) -> Any:
    """Convert a single metric from `compile` to a Keras metric."""
    name = metric.lower() if isinstance(metric, str) else ""
    name = SHORT.get(name, name)
    if name in objective.metrics:
        return ObjectiveMetric(metric, objective, name)
    official = official_names(task)
    if name in official:
        return OfficialMetric(name)
    # Models that predict spans have several outputs.
    allowed = not isinstance(objective, SpanObjective)
    rule = f"`metrics` of a {task.kind} task may be "
    rule += ", ".join(sorted({*objective.metrics, *official}))
    rule += ", and Keras's metrics." if allowed else "."
    require(allowed and name != "accuracy", rule, metrics=metric)
    try:
        resolved = keras.metrics.get(metric)
    except (ValueError, TypeError):
        raise InputError(f"{rule} Received: metrics={metric}") from None
    if not (isinstance(objective, ClassObjective) and is_of_keras(resolved)):
        return metric
    if not isinstance(resolved, keras.metrics.Metric):
        title = getattr(resolved, "__name__", "metric")
        resolved = keras.metrics.MeanMetricWrapper(resolved, title)
    return Adapted(resolved, objective)


def keras_metrics(metrics: Any, task: Task, objective: TaskObjective) -> list:
    """Convert the `metrics` argument of `compile` to a list of Keras metrics.

    Args:
      metrics: a name, a metric, a list of these, or None.
      task: the task to learn.
      objective: the task's objective.
    """
    listed = (m for m in keras.tree.flatten(metrics) if m is not None)
    return [keras_metric(m, task, objective) for m in listed]
