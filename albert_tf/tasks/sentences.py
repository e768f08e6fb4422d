"""What tasks over sentences and pairs of sentences share.

Shapes: B batch, N examples, C classes (1 for a number).
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from albert_tf.base.errors import InputError
from albert_tf.model.task_heads import AlbertClassifier
from albert_tf.tasks.features import Features, packed_row
from albert_tf.tasks.labels import require_label
from albert_tf.tasks.metrics import METRICS
from albert_tf.tasks.row_readers import LAYOUTS
from albert_tf.tasks.submissions import write_submission
from albert_tf.tasks.tables import (
    Columns,
    Row,
    cell,
    read_rows,
    text_cell,
    write_tsv,
)
from albert_tf.tasks.task import DataConfig, Task, TaskConfig
from albert_tf.text.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class Example:
    """One or two texts, and what they are labelled with if that is known."""

    id: str
    text: str
    text_pair: str
    label: Any  # a class, a tuple of classes, a number, or None


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A predicted label, and the probability of each class."""

    label: Any
    probabilities: np.ndarray  # [C], empty for a number


def shown(labels: Sequence[str], most: int = 20) -> str:
    """Return labels for a message, not all of very many."""
    text = ", ".join(labels[:most])
    hidden = len(labels) - most
    return f"{text} and {hidden} more" if hidden > 0 else text


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceTask(Task):
    """What the three kinds share: a vector of scores for each example.

    Attributes:
      columns: the columns of the files.
      predict_columns: those of the files to predict, where they differ.
      scores: names of the official metrics, keys of `METRICS`.
      layout: what makes the columns of official files, a key of `LAYOUTS`.
      submissions: {split: file} of predictions for an evaluation's server.
    """

    terms = ("task",)
    has_classes = True
    label_columns: ClassVar[int | None] = 1  # at most; None is any number

    columns: Columns = Columns()
    predict_columns: Columns | None = None
    labels: tuple[str, ...] = ()
    scores: tuple[str, ...]
    layout: str = ""
    submissions: dict[str, str] = dataclasses.field(default_factory=dict)

    def with_data(self, data: DataConfig) -> "SentenceTask":
        data.refuse(self.kind, "choice_columns")
        if self.label_columns:
            data.check_one_label_column(self.kind)
        named = {
            "text": data.text_column,
            "text_pair": data.text_pair_column,
            "label": data.label_column or None,
            "id": data.id_column,
            "header": data.header,
        }
        named = {k: v for k, v in named.items() if v is not None}
        main = data.main_metric or self.main_metric
        if main not in self.scores:
            raise InputError(
                f"`main_metric` must be one of {', '.join(self.scores)}. "
                f"Received: main_metric={main}"
            )
        predict = self.predict_columns
        if named:
            predict = None
        return dataclasses.replace(
            self,
            columns=dataclasses.replace(self.columns, **named),
            predict_columns=predict,
            main_metric=main,
        )

    def for_model(self, trained: "SentenceTask") -> "SentenceTask":
        task = super().for_model(trained)
        if self.labels and self.labels != trained.labels:
            raise InputError(
                "The task must have the labels that the model was fine-tuned "
                f"for, {shown(trained.labels)}. Received: task={self.name} "
                f"with {shown(self.labels)}"
            )
        return dataclasses.replace(task, labels=trained.labels)

    @property
    def is_pair(self) -> bool:
        """Whether examples have two texts."""
        return bool(self.columns.text_pair)

    @abc.abstractmethod
    def parse_label(self, values: list, where: str) -> Any:
        """Return the label of a row's label columns, None if it is missing.

        Raises:
          InputError: it is there and not as it must be.
        """

    def read(self, part: str, path: str) -> list[Example]:
        columns = self.columns
        if part == "predict" and self.predict_columns:
            columns = self.predict_columns
        change = LAYOUTS.get(self.layout, lambda row: row)
        examples: list[Example] = []
        unlabelled = 0
        for row in map(change, read_rows(path, columns)):
            if part != "predict" and self._has_no_label(row, columns):
                unlabelled += 1
                continue
            examples.append(self._example(row, columns, len(examples), part))
        if unlabelled:
            print(
                f"Note: {path}: passed over {unlabelled} examples without an "
                f"agreed label ({columns.no_label!r})"
            )
        return examples

    def _has_no_label(self, row: Row, columns: Columns) -> bool:
        """Return whether the annotators did not agree about a row."""
        found = [str(row.values.get(name)).strip() for name in columns.label]
        return bool(columns.no_label) and found == [columns.no_label]

    def _label(self, row: Row, columns: Columns, part: str) -> Any:
        """Return a row's label; None only to predict."""
        names = columns.label
        if part == "predict":
            there = names and all(name in row.values for name in names)
            if not there or self._has_no_label(row, columns):
                return None
        values = [cell(row, name, "label_column") for name in names]
        label = self.parse_label(values, row.where)
        return require_label(label, part, row.where, *values)

    def _example(
        self, row: Row, columns: Columns, number: int, part: str
    ) -> Example:
        pair = ""
        if columns.text_pair:
            pair = text_cell(row, columns.text_pair, "text_pair_column")
        label = self._label(row, columns, part)
        name = str(number)
        if columns.id:
            name = str(cell(row, columns.id, "id_column"))
        text = text_cell(row, columns.text, "text_column")
        return Example(name, text, pair, label)

    def check_class(self, label: str, where: str) -> str:
        """Return a class, or refuse one that is not among the labels."""
        if self.labels and label not in self.labels:
            raise InputError(
                f"{where}: the label must be one of {shown(self.labels)}. "
                f"Received: {label!r}"
            )
        return label

    def with_labels(self, found: set[str]) -> "SentenceTask":
        """Return the task with the classes of its training examples."""
        if self.labels:
            return self
        if len(found) < 2:
            raise InputError(
                "The training examples must have at least two labels. "
                f"Received: {shown(sorted(found))}"
            )
        return dataclasses.replace(self, labels=tuple(sorted(found)))

    @abc.abstractmethod
    def targets(self, labels: list) -> np.ndarray:
        """Return the labels of N examples as numbers."""

    def features(
        self, examples: Sequence[Example], tokenizer: Tokenizer
    ) -> Features:
        first = tokenizer.encode_batch([e.text for e in examples])
        second = [np.zeros(0, np.int32)] * len(examples)
        if self.is_pair:
            second = tokenizer.encode_batch([e.text_pair for e in examples])
        length = self.config.max_seq_length
        rows = [
            packed_row(tokenizer, a, b, length)
            for a, b in zip(first, second, strict=True)
        ]
        labels = [e.label for e in examples]
        arrays = {}
        if all(label is not None for label in labels):
            arrays["labels"] = self.targets(labels)
        return Features.from_rows(rows, arrays, tokenizer.pad_id, length)

    def build_model(self, config, dtype: str, albert=None):
        outputs = len(self.labels) if self.has_classes else 1
        dropout = self.config.classifier_dropout
        return AlbertClassifier(config, outputs, dropout, dtype, albert)

    def outputs(self, model: AlbertClassifier, batch, seed=None):
        logits = model(
            batch["input_ids"],
            batch["input_mask"],
            batch["segment_ids"],
            seed=seed,
        )
        return {"logits": logits}  # [B, C]

    def metric_values(self, examples, predictions) -> dict[str, float]:
        """Return the official metrics of predicted numbers."""
        labels = self.targets([example.label for example in examples])
        predicted = self.targets([p.label for p in predictions])
        return {name: METRICS[name](labels, predicted) for name in self.scores}

    def score(self, examples, predictions) -> dict[str, float]:
        return self.metric_values(examples, predictions)

    def write_predictions(self, path, examples, predictions) -> list[str]:
        known = all(example.label is not None for example in examples)
        header = ["id", "prediction", *(["label"] if known else [])]
        table = [[*header, *(f"p({label})" for label in self.labels)]]
        for example, p in zip(examples, predictions, strict=True):
            row = [example.id, self.label_text(p.label)]
            row += [self.label_text(example.label)] if known else []
            table.append([*row, *(f"{x:.6f}" for x in p.probabilities)])
        written = [write_tsv(f"{path}.tsv", table)]
        return written + write_submission(
            path,
            self.submissions,
            [example.id for example in examples],
            [self.label_text(p.label) for p in predictions],
        )

    def label_text(self, label: Any) -> str:
        """Return a label as it stands in a file of predictions."""
        return str(label)

    @classmethod
    def from_description(cls, values: dict) -> "SentenceTask":
        def columns(value):
            return Columns(**{**value, "label": tuple(value["label"])})

        other = values["predict_columns"]
        return cls(
            **values
            | {
                "config": TaskConfig(**values["config"]),
                "columns": columns(values["columns"]),
                "predict_columns": columns(other) if other else None,
                "labels": tuple(values["labels"]),
                "scores": tuple(values["scores"]),
            }
        )
