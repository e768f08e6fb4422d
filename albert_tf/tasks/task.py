"""The one interface between fine-tuning and what is learnt.

A kind of task (classification, ...) is a subclass of `Task`; a data set is
an instance of a kind, a row in a table. `finetuning.py` and `export.py` know
tasks by this interface alone.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.model.albert import AlbertModel
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.features import Features
from albert_tf.tasks.task_config import DataConfig, TaskConfig
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.training.evaluator import Batch

TASK_FILE = "task.json"
PARTS = ("train", "eval", "predict")
LOSS_WEIGHTS = "loss_weights"  # among measured outputs
LABEL_WEIGHTS = "label_weights"  # among features, beside weighted labels


DEFAULT_CONFIG = TaskConfig(max_seq_length=128, classifier_dropout=0.1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """One data set of one kind, and everything that is special about it.

    A task is also the `Objective` of its training. Examples are whatever the
    kind's `read` returns; nothing else looks inside them.

    Attributes:
      name: the name in `--task`.
      splits: {"train" | "eval" | "predict": {split: file}}, relative to the
        data directory; the name of an only split is "".
      folder: where the files lie below the parent of all data sets.
      main_metric: the metric that chooses the best checkpoint; larger is
        better.
      config: input length, dropout and what else the kind takes.

    A kind also says, as class attributes, its name, the `terms` of its loss,
    the means to show in training (`metrics`), and the fields of `TaskConfig`
    that have a meaning for it (`takes`); whether its labels are classes
    (`has_classes`), whether they can be smoothed (`smooths`), whether a
    teacher's outputs can be learnt (`distils`), and which outputs have an
    axis of tokens, with what the model itself says at padding
    (`token_outputs`).
    """

    kind: ClassVar[str]
    terms: ClassVar[tuple[str, ...]]
    metrics: ClassVar[tuple[str, ...]] = ()
    takes: ClassVar[tuple[str, ...]] = ("max_seq_length", "classifier_dropout")
    has_classes: ClassVar[bool] = False
    smooths: ClassVar[bool] = False
    distils: ClassVar[bool] = False
    token_outputs: ClassVar[dict[str, float]] = {}

    name: str
    splits: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    folder: str = ""
    main_metric: str
    config: TaskConfig = DEFAULT_CONFIG

    def with_config(self, config: TaskConfig) -> "Task":
        """Return the task with the settings that are not None."""
        values = dataclasses.asdict(config)
        given = {k: v for k, v in values.items() if v is not None}
        foreign = [name for name in given if name not in self.takes]
        if foreign:
            raise InputError(
                f"A task of {self.kind} takes {', '.join(self.takes)}. "
                f"Received: {foreign[0]}={given[foreign[0]]}"
            )
        changed = dataclasses.replace(self.config, **given)
        return dataclasses.replace(self, config=changed)

    def with_null_threshold(self, value: float | None) -> "Task":
        """Return the task with another `null_score_diff_threshold`."""
        config = dataclasses.replace(
            self.config, null_score_diff_threshold=value
        )
        return dataclasses.replace(self, config=config)

    # Examples.

    @abc.abstractmethod
    def with_data(self, data: DataConfig) -> "Task":
        """Return the task with the columns and labels that the user names."""

    @abc.abstractmethod
    def read(self, part: str, path: str) -> Sequence[Any]:
        """Return the examples of a file.

        Args:
          part: "train", "eval" or "predict"; only the last needs no labels.
          path: the file or folder.

        Raises:
          InputError: the data is malformed; the message gives file and line.
        """

    def for_model(self, trained: "Task") -> "Task":
        """Return the task as the task of a fine-tuned model sees it.

        Raises:
          InputError: the model was fine-tuned for another kind of task.
        """
        if self.kind != trained.kind:
            raise InputError(
                f"`task` must be of the kind that the model was fine-tuned "
                f"for, {trained.kind}. Received: task={self.name}, a task of "
                f"{self.kind}"
            )
        return dataclasses.replace(self, config=trained.config)

    def fitted(self, examples: Sequence[Any]) -> "Task":
        """Return the task with what only training examples tell: labels."""
        return self

    @abc.abstractmethod
    def features(
        self, examples: Sequence[Any], tokenizer: Tokenizer
    ) -> Features:
        """Return the examples as arrays, with labels if all have one."""

    # The model and its loss.

    @property
    def averages(self) -> bool:
        """Whether outputs are logits, of which a mean has a meaning."""
        return True

    @abc.abstractmethod
    def build_model(
        self,
        config: AlbertConfig,
        dtype: str,
        albert: AlbertModel | None = None,
    ):
        """Return an ALBERT, new or the given one, with this task's head."""

    @abc.abstractmethod
    def outputs(self, model, batch: Batch, seed=None) -> dict[str, tf.Tensor]:
        """Return the raw outputs of each example, {name: [B, ...]}.

        If `averages`, those of several models can be averaged before
        `predictions`.
        """

    @abc.abstractmethod
    def example_losses(
        self, outputs: dict[str, tf.Tensor], batch: Batch
    ) -> dict[str, tf.Tensor]:
        """Return each term's float32 loss of each example, {term: [B]}."""

    def soft_losses(
        self,
        outputs: dict[str, tf.Tensor],
        targets: dict[str, tf.Tensor],
        temperature: float,
        batch: Batch,
    ) -> dict[str, tf.Tensor]:
        """Return each term's distance to a teacher's outputs, {term: [B]}.

        Zeros as targets stand for labels that are all alike.
        """
        raise InputError(
            f"A task of {self.kind} can not learn from another model's "
            f"outputs. Received: task={self.name}"
        )

    def example_metrics(
        self, outputs: dict[str, tf.Tensor], batch: Batch
    ) -> dict[str, tf.Tensor]:
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
        """Return each term's weight in a batch: that of its examples."""
        weight = tf.reduce_sum(self.loss_weights(batch))
        return dict.fromkeys(self.terms, weight)

    def measured_outputs(self, model, batch: Batch) -> dict[str, tf.Tensor]:
        """Return `outputs`, with their losses where labels are known."""
        return self.with_losses(self.outputs(model, batch), batch)

    def with_losses(
        self, outputs: dict[str, tf.Tensor], batch: Batch
    ) -> dict[str, tf.Tensor]:
        """Return outputs, where labels are known with `TERM_loss` [B].

        The mean of losses has the weights `LOSS_WEIGHTS` [B].
        """
        if "labels" not in batch:
            return outputs
        losses = self.example_losses(outputs, batch)
        measured = {f"{term}_loss": x for term, x in losses.items()}
        return outputs | measured | {LOSS_WEIGHTS: self.loss_weights(batch)}

    def losses(
        self,
        model,
        batch: Batch,
        seed,
        example_losses: Callable | None = None,
    ) -> tuple[dict, dict]:
        """Return the terms' sums of losses, and metrics (sum, weight).

        Args:
          model: the model.
          batch: the examples.
          seed: of dropout.
          example_losses: instead of the task's own.
        """
        weights, counts = self.loss_weights(batch), self.label_counts(batch)
        outputs = self.outputs(model, batch, seed)
        losses = (example_losses or self.example_losses)(outputs, batch)
        metrics = self.example_metrics(outputs, batch)
        total = tf.reduce_sum(counts)
        return (
            {name: tf.reduce_sum(x * weights) for name, x in losses.items()},
            {
                name: (tf.reduce_sum(x * counts), total)
                for name, x in metrics.items()
            },
        )

    # Results.

    @abc.abstractmethod
    def served(self, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return what a SavedModel gives for outputs, {name: [B, ...]}."""

    @abc.abstractmethod
    def predictions(
        self,
        examples: Sequence[Any],
        outputs: dict[str, np.ndarray],
        features: Features,
    ) -> Sequence[Any]:
        """Return one prediction for each example.

        Args:
          examples: what was predicted.
          outputs: of `outputs`, for each row of the features.
          features: those of the examples; its `notes` tell which rows and
            which places of the text they stand for.
        """

    @abc.abstractmethod
    def score(
        self, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> dict[str, float]:
        """Return the official metrics of predictions, 0 to 1."""

    def tuned(
        self, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> "Task":
        """Return the task with what labelled predictions tell: a threshold."""
        return self

    @abc.abstractmethod
    def write_predictions(
        self, path: str, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> list[str]:
        """Write files whose names begin with `path`; return their names."""

    # The model directory.

    def description(self) -> dict:
        """Return the content of `task.json`, from which the task is remade."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    def identity(self) -> dict:
        """Return `description` without the threshold, which may change."""
        return self.with_null_threshold(None).description()

    @classmethod
    def from_description(cls, values: dict) -> "Task":
        """Remake a task from `description` without its `kind`."""
        return cls(**{**values, "config": TaskConfig(**values["config"])})

    def save(self, model_dir: str) -> None:
        """Write `task.json` into a model directory."""
        files.write_json(files.join(model_dir, TASK_FILE), self.description())
