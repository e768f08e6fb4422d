"""What a fine-tuned model gets right."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.features import Features
from albert_tf.tasks.head import LOSS_WEIGHTS
from albert_tf.tasks.task import Task
from albert_tf.training.step.evaluator import Evaluator

METRICS_FILE = "metrics.json"


@dataclasses.dataclass(frozen=True)
class Split:
    """One part of the data: "eval", or "eval_matched" where there are two."""

    name: str
    examples: Sequence[Any]
    features: Features


def metric_name(split: str, metric: str) -> str:
    """Return a metric's name in curves: "accuracy", "matched_accuracy"."""
    suffix = split.partition("_")[2]
    return f"{suffix}_{metric}" if suffix else metric


class Judge:
    """Evaluates and predicts with the current weights of a model.

    Its `tuned` is the task with the threshold that the last evaluation found,
    with which data to predict are predicted.

    Args:
      evaluator: the model.
      task: what it is fine-tuned for.
      bucketed: whether to sort examples by length; results are the same.
      outputs: instead of those of the task's head, with their losses.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        task: Task,
        bucketed: bool = False,
        outputs: Callable | None = None,
    ):
        self.evaluator, self.task, self.bucketed = evaluator, task, bucketed
        self.tuned = task
        self.outputs = outputs or task.head.measured_outputs

    def judge(self, split: Split) -> tuple[dict[str, float], Sequence[Any]]:
        """Return a split's metrics, {} without labels, and predictions."""
        size = self.evaluator.eval_batch_size
        outputs = self.evaluator.predict(
            lambda: evaluation_batches(split.features, size, self.bucketed),
            self.outputs,
        )
        weights = outputs.pop(LOSS_WEIGHTS, None)
        losses = outputs.pop("task_loss", None)
        is_eval = split.name.startswith("eval")
        task = self.task if is_eval else self.tuned
        predictions = task.predictions(split.examples, outputs, split.features)
        if losses is None:
            return {}, predictions
        scores = task.score(split.examples, predictions)
        if is_eval:
            self.tuned = task.tuned(split.examples, predictions)
        loss = float(np.average(losses, None, weights))
        return {"loss": loss, **scores}, predictions

    def metrics(self, splits: Sequence[Split]) -> dict[str, float]:
        """Return the metrics of several splits under names that differ."""
        return {
            metric_name(split.name, name): value
            for split in splits
            for name, value in self.judge(split)[0].items()
        }
