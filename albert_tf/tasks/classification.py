"""Prediction of classes, sets of classes or numbers for texts or text pairs.

Shapes: N examples, C classes or predicted numbers.
"""

import abc
import dataclasses
import json
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np

from albert_tf.base.console import counted
from albert_tf.base.errors import require
from albert_tf.base.json_values import field
from albert_tf.data.row_files import Row
from albert_tf.data.table_sources import InMemoryTable
from albert_tf.tasks.features import Features
from albert_tf.tasks.numerics import sigmoid
from albert_tf.tasks.predictions import (
    Prediction,
    number_text,
    sibling,
    write_labels,
    write_submission,
    write_tsv,
)
from albert_tf.tasks.tables import (
    ClassSet,
    Columns,
    TableColumns,
    brief,
    cell,
    class_named,
    class_texts,
    flag_value,
    format_labels,
    label_number,
    label_text,
    named_sets,
    read_rows,
    require_label,
    shares_in,
    text_cell,
)
from albert_tf.tasks.task import Task
from albert_tf.tasks.task_config import TEXT_COLUMNS

PAIR = "text_pair"  # the default column of second texts


def marked_spans(row: Row) -> Row:
    """Return a CLUEWSC row with both spans marked in the text.

    The first span, the noun, is enclosed in `_`, and the second span, the
    pronoun, in brackets. The row may lack a label, as in prediction files.
    Source: CLUE's baselines.
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
            f"`{span}_index`, where the text has {text[start:end]!r}.",
            **{f"{span}_text": repr(words), f"{span}_index": start},
        )
        # If two marks meet, the mark that ends a span comes first.
        marks += [(start, 1, before), (end, 0, after)]
    for position, _, mark in sorted(marks, reverse=True):
        text = text[:position] + mark + text[position:]
    return Row(row.where, row.values | {"text": text})


# {layout of official files: function that converts a row to text columns}. The
# functions also convert the unlabeled rows of prediction files.
LAYOUTS: dict[str, Callable[[Row], Row]] = {"cluewsc": marked_spans}


@dataclasses.dataclass(frozen=True)
class Example:
    """One or two texts, and their label, if known.

    Attributes:
      id: the example's name.
      text: the (first) text.
      text_pair: the second text, or "".
      label: a class, a tuple of classes, one or more numbers, or None.
      shares: the target probability of each class [C], which replaces the label
        in training, or None.
    """

    id: str
    text: str
    text_pair: str
    label: Any
    shares: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceTask(Task):
    """The base class of tasks that predict classes or numbers for texts.

    Attributes:
      columns: the columns of training and evaluation files.
      predict_columns: the columns of prediction files, if they differ.
      labels: the names of the classes; () to use the classes of the training
        examples.
      scores: names of the official metrics, keys of `METRICS`.
      layout: the conversion of official files to columns, a key of `LAYOUTS`,
        or "" for none.
      submissions: {split: name of the submission file} for evaluation servers.
    """

    data_takes = TEXT_COLUMNS
    learned = ("labels",)
    hub_class = "AlbertForSequenceClassification"

    columns: Columns = Columns()
    predict_columns: Columns | None = None
    labels: tuple[str, ...] = ()
    scores: tuple[str, ...] = ("accuracy",)
    main_metric: str = "accuracy"
    layout: str = ""
    submissions: dict[str, str] = dataclasses.field(default_factory=dict)

    def with_columns(self, columns):
        task = dataclasses.replace(
            self, columns=self.columns.updated(columns), predict_columns=None
        )
        names = tuple(columns.get("label_column", ()))
        if len(names) < 2:
            return task
        labels = self.labels or names
        rule = "Several names in `label_column` must be the model's labels, "
        rule += f"{format_labels(labels)}."
        found, expected = (
            {unicodedata.normalize("NFC", name) for name in x}
            for x in (names, labels)
        )
        require(found == expected, rule, label_column=",".join(names))
        return dataclasses.replace(task, labels=labels)

    def table(self, width=None, labeled=False):
        c = self.columns
        pair = (c.text_pair,) if c.text_pair else ()
        return TableColumns((c.text, *pair), c.label[0])

    def in_memory(self):
        c = self.columns
        columns = Columns(c.text, c.text_pair, c.label[:1])
        changes = {"columns": columns, "predict_columns": None, "layout": ""}
        return dataclasses.replace(self, **changes)

    def for_model(self, trained: "SentenceTask") -> "SentenceTask":
        task = super().for_model(trained)
        require(
            self.labels in ((), trained.labels),
            "The task must have the labels that the model was fine-tuned for, "
            f"{format_labels(trained.labels)}.",
            task=f"{self.name} with {format_labels(self.labels)}",
        )
        return task

    @property
    def is_pair(self) -> bool:
        """Whether examples have two texts."""
        return bool(self.columns.text_pair)

    @abc.abstractmethod
    def parse_label(self, values: list, where: str) -> Any:
        """Parse the label in a row's label columns; return None if missing.

        Raises:
          InputError: if the label is malformed.
        """

    def read(self, part: str, path: str) -> list[Example]:
        columns = self.columns
        if part == "predict" and self.predict_columns:
            columns = self.predict_columns
        convert = LAYOUTS.get(self.layout, lambda row: row)
        examples: list[Example] = []
        unlabeled = 0
        for number, row in enumerate(map(convert, read_rows(path, columns))):
            if part != "predict" and columns.lacks_label(row):
                unlabeled += 1
                continue
            name, text, pair = columns.texts(row, number)
            label = self._label(row, columns, part)
            examples.append(Example(name, text, pair, label))
        if unlabeled:
            print(
                f"Note: {path}: skipped {counted(unlabeled, 'example')} "
                f"without an agreed label ({columns.no_label!r})"
            )
        return examples

    def _label(self, row: Row, columns: Columns, part: str) -> Any:
        """Return a row's label; in prediction, return None if it is missing."""
        names = columns.label
        if part == "predict":
            has_label = names and all(name in row.values for name in names)
            if not has_label or columns.lacks_label(row):
                return None
        values = [cell(row, name, "label_column") for name in names]
        label = self.parse_label(values, row.label_where)
        return require_label(label, part, row.label_where, *values)

    def with_labels(self, labels: set[str]) -> "SentenceTask":
        """Return the task with `labels` as classes, unless it has classes."""
        if self.labels:
            return self
        rule = "The training examples must have at least two labels."
        require(len(labels) > 1, rule, labels=format_labels(sorted(labels)))
        return dataclasses.replace(self, labels=tuple(sorted(labels)))

    @abc.abstractmethod
    def targets(self, labels: list) -> np.ndarray:
        """Return the labels of N examples as numbers, [N] or [N, C]."""

    def features(self, examples, tokenizer):
        labels = [e.label for e in examples]
        arrays = {} if None in labels else {"labels": self.targets(labels)}
        shares = [e.shares for e in examples if e.shares is not None]
        if shares:
            arrays["labels"] = np.stack(shares).astype(np.float32)
        texts = [e.text for e in examples]
        pairs = [e.text_pair for e in examples] if self.is_pair else None
        length = self.config.max_seq_length
        return Features.from_texts(tokenizer, texts, length, arrays, pairs)

    def served(self, outputs):
        return {"probabilities": self.probabilities(outputs["logits"])}

    def example(self, text, text_pair=""):
        rule = "`text_pair` must be empty unless the model accepts pairs."
        require(self.is_pair or not text_pair, rule, text_pair=brief(text_pair))
        return Example("", text, text_pair, None)

    def answer(self, query, prediction, top):
        """Return {label: probability}, in descending order of probability."""
        probabilities = prediction.probabilities.tolist()
        pairs = zip(self.labels, probabilities, strict=True)
        return dict(sorted(pairs, key=lambda pair: -pair[1]))

    def score(self, examples, predictions):
        # Imported here because prediction does not need this module.
        from albert_tf.tasks.metrics import METRICS

        labels = self.targets([example.label for example in examples])
        predicted = self.targets([p.label for p in predictions])
        return {
            name: self.measured(METRICS[name], labels, predicted)
            for name in self.scores
        }

    def measured(self, metric: Callable, labels: Any, predicted: Any) -> float:
        """Return the value of a metric, given true and predicted labels."""
        return float(metric(labels, predicted))

    def write_predictions(self, path, examples, predictions):
        text = self.label_text
        classes = self.labels if self.has_classes else ()
        ids = [example.id for example in examples]
        predicted = [text(p.label) for p in predictions]
        return [
            write_labels(path, examples, predictions, text, classes),
            *write_submission(path, self.submissions, ids, predicted),
        ]

    def label_text(self, label: Any) -> str:
        """Return a label in the form that prediction files use."""
        return str(label)


class ClassTask(SentenceTask):
    """The base class of tasks that assign classes.

    A label may also be a list of target probabilities, one for each class.
    """

    has_classes = True

    @property
    def head_arguments(self):
        return (len(self.labels),)


class Classification(ClassTask):
    """A task that assigns one of several classes."""

    kind = "classification"
    signature = "classify"
    problem_type = "single_label_classification"

    def parse_label(self, values, where):
        text = label_text(values[0], where)
        return text and class_named(text, self.labels, where)

    def cells_and_shares(self, labels):
        shares = shares_in(labels, self.labels, are_sets=False)
        if shares is None:
            return super().cells_and_shares(labels)
        return [self.labels[i] for i in shares.argmax(axis=1)], shares

    def fitted(self, examples):
        return self.with_labels({example.label for example in examples})

    def targets(self, labels):
        number = {label: i for i, label in enumerate(self.labels)}
        return np.array([number[label] for label in labels], np.int32)

    def predictions(self, examples, outputs, features):
        return [
            Prediction(self.labels[row.argmax()], row)
            for row in self.probabilities(outputs["logits"])
        ]

    def write_predictions(self, path, examples, predictions):
        written = super().write_predictions(path, examples, predictions)
        labels = [example.label for example in examples]
        if None in labels:
            return written
        from albert_tf.tasks.metrics import confusion_table

        predicted = [p.label for p in predictions]
        table = confusion_table(labels, predicted, self.labels)
        return [*written, write_tsv(sibling(path, "confusion") + ".tsv", table)]


class MultiLabel(ClassTask):
    """A task that assigns any number of classes, independently.

    A single label column contains JSON lists, or classes separated by commas.
    Several label columns are named after the classes, and contain 0 or 1. An
    empty cell means that no class applies. If no row has a class, prediction
    examples count as unlabeled; a training or evaluation file is an error.
    """

    kind = "multilabel"
    signature = "classify"
    problem_type = "multi_label_classification"
    many_label_columns = True
    threshold = 0.5

    def parse_label(self, values, where):
        if len(values) > 1:
            return self._flags(values, where)
        texts = class_texts(values[0], where)
        return None if texts is None else ClassSet(texts, where)

    def _flags(self, values, where):
        texts = [label_text(value, where) for value in values]
        if None in texts:
            return None
        classes = []
        for name, text in zip(self.columns.label, texts, strict=True):
            rule = f"{where}: label column {name} must be 0 or 1."
            flag = flag_value(text)
            require(flag is not None, f"{rule} Received: {text!r}")
            classes += [class_named(name, self.labels, where)] * flag
        return tuple(classes)

    def read(self, part, path):
        examples = self._with_names(super().read(part, path))
        if any(example.label for example in examples) or not examples:
            return examples
        if part != "predict" and isinstance(path, InMemoryTable):
            return examples  # a batch may contain only empty sets
        require(
            part == "predict",
            f"{path}: at least one row must have a label in a file for "
            "training or evaluation.",
            label="no class",
        )
        return [dataclasses.replace(e, label=None) for e in examples]

    def _with_names(self, examples):
        """Convert the flags and class numbers in examples to class names."""
        sets = [e.label for e in examples if isinstance(e.label, ClassSet)]
        named = iter(named_sets(sets, self.labels))
        return [
            dataclasses.replace(e, label=next(named))
            if isinstance(e.label, ClassSet)
            else e
            for e in examples
        ]

    def cells_and_shares(self, labels):
        shares = shares_in(labels, self.labels, are_sets=True)
        if shares is None:
            return labels, None
        return (shares > 0.5).astype(int).tolist(), shares

    def fitted(self, examples):
        return self.with_labels({x for e in examples for x in e.label})

    def targets(self, labels):
        number = {label: i for i, label in enumerate(self.labels)}
        sets = np.zeros([len(labels), len(number)], np.float32)  # [N, C]
        for row, names in zip(sets, labels, strict=True):
            row[[number[name] for name in names]] = 1.0
        return sets

    def probabilities(self, logits):
        return sigmoid(logits)

    def predictions(self, examples, outputs, features):
        names = np.array(self.labels)
        return [
            Prediction(tuple(names[row > self.threshold].tolist()), row)
            for row in self.probabilities(outputs["logits"])
        ]

    def label_text(self, label):
        # In this form, `class_texts` reads the same classes.
        if any("," in x or x.startswith("[") for x in self.labels):
            return json.dumps(label, ensure_ascii=False)
        return ",".join(label)


class Regression(SentenceTask):
    """A task that predicts one number, or several named numbers.

    Several numbers are a list in one column, or are in several columns, which
    are named after the numbers.

    Attributes:
      labels: the names of several numbers, or () for a single number.
    """

    kind = problem_type = "regression"
    signature = "score"
    many_label_columns, fewest_labels = True, 1

    @property
    def head_arguments(self):
        return (len(self.labels) or 1,)

    def parse_label(self, values, where):
        if len(values) > 1:
            names = (
                class_named(x, self.labels, "") for x in self.columns.label
            )
            cells = dict(zip(names, values, strict=True))
            values = [cells[name] for name in self.labels]
        elif self.labels and isinstance(values[0], list | tuple):
            values = values[0]
        number = len(self.labels) or 1
        size = "a number" if number == 1 else f"{number} numbers"
        rule = f"{where}: the label must be {size}"
        rule += f", {format_labels(self.labels)}." if self.labels else "."
        require(len(values) == number, rule, label=brief(values))
        numbers = tuple(label_number(value, where) for value in values)
        if None in numbers:
            return None
        return numbers if self.labels else numbers[0]

    def targets(self, labels):
        return np.array(labels, np.float32)  # [N] or [N, C]

    def numbers(self, logits):
        """Return the predictions: [N] for one number, or [N, C] for several."""
        return logits if self.labels else logits[:, 0]

    def served(self, outputs):
        return {"score": self.numbers(outputs["logits"])}

    def predictions(self, examples, outputs, features):
        empty, rows = np.zeros(0), outputs["logits"].tolist()
        return [
            Prediction(tuple(row) if self.labels else row[0], empty)
            for row in rows
        ]

    def value(self, prediction):
        return np.array(prediction.label, np.float32)

    def answer(self, query, prediction, top):
        names = {"labels": list(self.labels)} if self.labels else {}
        return {"score": prediction.label} | names

    def measured(self, metric, labels, predicted):
        if not self.labels:
            return super().measured(metric, labels, predicted)
        return float(np.mean(list(map(metric, labels.T, predicted.T))))

    def label_text(self, label):
        numbers = label if self.labels else (label,)
        return ",".join(map(number_text, numbers))
