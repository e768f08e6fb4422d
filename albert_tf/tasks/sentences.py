"""What tasks over sentences and pairs of sentences share.

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
    """Return a row of CLUEWSC with the two spans marked in its text.

    `_` stands around the first span, the noun, and brackets around the
    second, the pronoun. Source: the baselines of CLUE.
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
            f"{row.where}: `{span}_text` must stand in the text at "
            f"`{span}_index`, where it has {text[start:end]!r}.",
            **{f"{span}_text": repr(words), f"{span}_index": start},
        )
        # Of marks at one place those that end a span come first.
        marks += [(start, 1, before), (end, 0, after)]
    for place, _, mark in sorted(marks, reverse=True):
        text = text[:place] + mark + text[place:]
    return Row(row.where, row.values | {"text": text})


PAIR = "text_pair"  # the column of second texts, where none is named
LAYOUTS: dict[str, Callable[[Row], Row]] = {"cluewsc": marked_spans}


@dataclasses.dataclass(frozen=True)
class Example:
    """One or two texts, and their label if it is known.

    Attributes:
      id: its name.
      text: the (first) text.
      text_pair: the second, or "".
      label: a class, a tuple of classes, a number or several, or None.
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

    label: Any  # as in an example
    probabilities: np.ndarray  # [C], empty for a number


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
        for number, row in enumerate(map(change, read_rows(path, columns))):
            if part != "predict" and columns.lacks_label(row):
                unlabelled += 1
                continue
            name, text, pair = columns.texts(row, number)
            label = self._label(row, columns, part)
            examples.append(Example(name, text, pair, label))
        if unlabelled:
            print(
                f"Note: {path}: passed over {unlabelled} examples without an "
                f"agreed label ({columns.no_label!r})"
            )
        return examples

    def _label(self, row: Row, columns: Columns, part: str) -> Any:
        """Return a row's label; None only to predict."""
        names = columns.label
        if part == "predict":
            there = names and all(name in row.values for name in names)
            if not there or columns.lacks_label(row):
                return None
        values = [cell(row, name, "label_column") for name in names]
        label = self.parse_label(values, row.label_where)
        return require_label(label, part, row.label_where, *values)

    def with_labels(self, labels: set[str]) -> "SentenceTask":
        """Return the task with the classes of its training examples."""
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
        rule = "`text_pair` must be given to a model of pairs alone."
        require(self.is_pair or not text_pair, rule, text_pair=text_pair)
        return Example("", text, text_pair, None)

    def answer(self, query, prediction, top):
        """Return each label with its probability, the likeliest first."""
        shares = prediction.probabilities.tolist()
        pairs = zip(self.labels, shares, strict=True)
        return dict(sorted(pairs, key=lambda pair: -pair[1]))

    def score(self, examples, predictions):
        # Its libraries are not needed to predict.
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
        """Return a label as it stands in a file of predictions."""
        return str(label)
