"""The base class of tasks over sentences and sentence pairs.

Shapes: N examples, C classes (1 for a number).
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from albert_tf.base.errors import require
from albert_tf.data.row_files import Row
from albert_tf.tasks.features import Features
from albert_tf.tasks.predictions import write_labels, write_submission
from albert_tf.tasks.tables import (
    Columns,
    TableColumns,
    cell,
    field,
    read_rows,
    require_label,
    shown,
    text_cell,
)
from albert_tf.tasks.task import Task
from albert_tf.tasks.task_config import TEXT_COLUMNS
from albert_tf.text.packing import packed_row


def marked_spans(row: Row) -> Row:
    """Return a CLUEWSC row with its two spans marked in the text.

    The first span, the noun, is put between `_`, and the second, the pronoun,
    between brackets. Source: the baselines of CLUE.
    """
    text = text_cell(row, "text", "text_column")
    target = field(row.values, "target", dict, row.where)
    marks = []
    for span, before, after in (("span1", "_", "_"), ("span2", "[", "]")):
        words = field(target, f"{span}_text", str, row.where)
        start = field(target, f"{span}_index", int, row.where)
        end = start + len(words)
        require(
            words and start >= 0 and text[start:end] == words,
            f"{row.where}: `{span}_text` must be in the text at "
            f"`{span}_index`, where it has {text[start:end]!r}.",
            **{f"{span}_text": repr(words), f"{span}_index": start},
        )
        # Where two marks meet, the one that ends a span comes first.
        marks += [(start, 1, before), (end, 0, after)]
    for place, _, mark in sorted(marks, reverse=True):
        text = text[:place] + mark + text[place:]
    return Row(row.where, row.values | {"text": text})


PAIR = "text_pair"  # the column of second texts, if none is named
LAYOUTS: dict[str, Callable[[Row], Row]] = {"cluewsc": marked_spans}


@dataclasses.dataclass(frozen=True)
class Example:
    """One or two texts, and their label if known.

    Attributes:
      id: the example's name.
      text: the (first) text.
      text_pair: the second text, or "".
      label: a class, a tuple of classes, one or several numbers, or None.
      shares: the share of each class [C], learnt instead of the label, or
        None.
    """

    id: str
    text: str
    text_pair: str
    label: Any
    shares: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A predicted label, and the probability of each class."""

    label: Any  # as in `Example`
    probabilities: np.ndarray  # [C], empty for a number


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceTask(Task):
    """The base of three kinds, which score each example with a vector.

    Attributes:
      columns: the columns of the files.
      predict_columns: the columns of prediction files, if they differ.
      scores: names of the official metrics, keys of `METRICS`.
      layout: how to make columns from official files, a key of `LAYOUTS`.
      submissions: {split: file} of predictions for an evaluation server.
    """

    data_takes = TEXT_COLUMNS
    learnt = ("labels",)

    columns: Columns = Columns()
    predict_columns: Columns | None = None
    labels: tuple[str, ...] = ()
    scores: tuple[str, ...] = ("accuracy",)
    main_metric: str = "accuracy"
    layout: str = ""
    submissions: dict[str, str] = dataclasses.field(default_factory=dict)

    def renamed(self, columns):
        return dataclasses.replace(
            self, columns=self.columns.renamed(columns), predict_columns=None
        )

    def table(self, width=None, labelled=False):
        c = self.columns
        pair = (c.text_pair,) if c.text_pair else ()
        return TableColumns((c.text, *pair), c.label[0])

    def in_memory(self):
        c = self.columns
        columns = Columns(c.text, c.text_pair, c.label[:1])
        how = {"columns": columns, "predict_columns": None, "layout": ""}
        return dataclasses.replace(self, **how)

    def nameless(self):
        return self.renamed({"id_column": ""})

    def for_model(self, trained: "SentenceTask") -> "SentenceTask":
        task = super().for_model(trained)
        require(
            self.labels in ((), trained.labels),
            "The task must have the labels that the model was fine-tuned for, "
            f"{shown(trained.labels)}.",
            task=f"{self.name} with {shown(self.labels)}",
        )
        return task

    @property
    def is_pair(self) -> bool:
        """Whether examples have two texts."""
        return bool(self.columns.text_pair)

    @abc.abstractmethod
    def parse_label(self, values: list, where: str) -> Any:
        """Parse the label in a row's label columns, None if it is missing.

        Raises:
          InputError: the label is malformed.
        """

    def read(self, part: str, path: str) -> list[Example]:
        columns = self.columns
        if part == "predict" and self.predict_columns:
            columns = self.predict_columns
        change = LAYOUTS.get(self.layout, lambda row: row)
        examples: list[Example] = []
        unlabelled = 0
        for number, row in enumerate(map(change, read_rows(path, columns))):
            if part != "predict" and columns.lacks_label(row):
                unlabelled += 1
                continue
            name, text, pair = columns.texts(row, number)
            label = self._label(row, columns, part)
            examples.append(Example(name, text, pair, label))
        if unlabelled:
            print(
                f"Note: {path}: skipped {unlabelled} examples without an "
                f"agreed label ({columns.no_label!r})"
            )
        return examples

    def _label(self, row: Row, columns: Columns, part: str) -> Any:
        """Return a row's label, None only for prediction."""
        names = columns.label
        if part == "predict":
            there = names and all(name in row.values for name in names)
            if not there or columns.lacks_label(row):
                return None
        values = [cell(row, name, "label_column") for name in names]
        label = self.parse_label(values, row.label_where)
        return require_label(label, part, row.label_where, *values)

    def with_labels(self, labels: set[str]) -> "SentenceTask":
        """Return the task with the classes of the training examples."""
        if self.labels:
            return self
        rule = "The training examples must have at least two labels."
        require(len(labels) > 1, rule, labels=shown(sorted(labels)))
        return dataclasses.replace(self, labels=tuple(sorted(labels)))

    @abc.abstractmethod
    def targets(self, labels: list) -> np.ndarray:
        """Return the labels of N examples as numbers."""

    def features(self, examples, tokenizer):
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
        arrays = {} if None in labels else {"labels": self.targets(labels)}
        shares = [e.shares for e in examples if e.shares is not None]
        if shares:
            arrays["labels"] = np.stack(shares).astype(np.float32)
        return Features.from_rows(rows, arrays, tokenizer.pad_id, length)

    def served(self, outputs):
        return {"probabilities": self.probabilities(outputs["logits"])}

    def example(self, text, text_pair=""):
        rule = "`text_pair` must be empty unless the model takes pairs."
        require(self.is_pair or not text_pair, rule, text_pair=text_pair)
        return Example("", text, text_pair, None)

    def answer(self, query, prediction, top):
        """Return each label with its probability, the likeliest first."""
        shares = prediction.probabilities.tolist()
        pairs = zip(self.labels, shares, strict=True)
        return dict(sorted(pairs, key=lambda pair: -pair[1]))

    def score(self, examples, predictions):
        # Prediction does not need the libraries that it imports.
        from albert_tf.tasks.metrics import METRICS

        labels = self.targets([example.label for example in examples])
        predicted = self.targets([p.label for p in predictions])
        return {
            name: float(METRICS[name](labels, predicted))
            for name in self.scores
        }

    def write_predictions(self, path, examples, predictions):
        ids = [example.id for example in examples]
        labels = [example.label for example in examples]
        predicted = [self.label_text(p.label) for p in predictions]
        known = None
        if None not in labels:
            known = list(map(self.label_text, labels))
        shares = np.array([p.probabilities for p in predictions]).T  # [C, N]
        classes = dict(zip(self.labels, shares, strict=True))
        return [
            write_labels(path, ids, predicted, known, classes),
            *write_submission(path, self.submissions, ids, predicted),
        ]

    def label_text(self, label: Any) -> str:
        """Return a label as written to prediction files."""
        return str(label)
