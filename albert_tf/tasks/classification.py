"""Classification, multi-label classification and regression of sentences.

Shapes: N examples, C classes (1 for a number).
"""

import dataclasses
import itertools
from collections.abc import Sequence
from numbers import Real
from typing import NamedTuple

import numpy as np

from albert_tf.base.errors import require
from albert_tf.data.table_sources import InMemoryTable
from albert_tf.tasks.numerics import sigmoid
from albert_tf.tasks.predictions import sibling, write_tsv
from albert_tf.tasks.sentences import Prediction, SentenceTask
from albert_tf.tasks.tables import (
    FLAGS,
    NUMBER,
    class_named,
    class_texts,
    label_number,
    label_text,
    shown,
)


def shares_in(
    labels: Sequence, classes: Sequence[str], are_sets: bool
) -> np.ndarray | None:
    """Return the shares of classes [N, C], None if labels are classes.

    Args:
      labels: labels of N examples; a row of numbers has a share per class.
      classes: the names of the classes.
      are_sets: whether any number of classes may apply.
    """
    rows = [row for row in labels if isinstance(row, list) and len(row) > 1]
    numbers = [x for row in rows for x in row if isinstance(x, Real)]
    if not rows or len(numbers) != sum(map(len, rows)):
        return None
    if are_sets and all(x in (0, 1) for x in numbers):
        return None
    if are_sets and all(isinstance(x, int) for x in numbers):
        return None  # class names that are numbers
    legal = len(rows) == len(labels) and {*map(len, rows)} == {len(classes)}
    legal = legal and all(0 <= x <= 1 for x in numbers)
    legal = legal and (
        are_sets or all(abs(sum(row) - 1) < 1e-3 for row in rows)
    )
    rule = "Rows of labels must have a share from 0 to 1 for each of "
    rule += shown(classes)
    rule += "." if are_sets else ", and add up to 1."
    require(legal, rule, y=str(rows[:1])[:60])
    return np.array(rows, np.float64)


class ClassTask(SentenceTask):
    """The base of kinds with classes; labels may be shares of classes."""

    has_classes = True

    @property
    def head_arguments(self):
        return (len(self.labels),)

    def shares(self, labels: list) -> np.ndarray | None:
        """Return labels as shares [N, C], None if labels are classes."""
        return shares_in(labels, self.labels, self.many_label_columns)

    def with_shares(self, examples, labels):
        shares = self.shares(labels)
        if shares is None:
            return examples
        both = zip(examples, shares, strict=True)
        return [dataclasses.replace(e, shares=row) for e, row in both]


class Classification(ClassTask):
    """One of several classes."""

    kind = "classification"
    signature = "classify"

    def parse_label(self, values, where):
        text = label_text(values[0], where)
        return text and class_named(text, self.labels, where)

    def table_labels(self, labels):
        shares = self.shares(labels)
        if shares is None:
            return super().table_labels(labels)
        return [self.labels[i] for i in shares.argmax(axis=1)]

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


class ClassSet(NamedTuple):
    """The classes of a row as written, and where they are."""

    texts: list[str]
    where: str

    @property
    def are_flags(self) -> bool:
        """Whether all are 0 or 1, and so may be flags of classes."""
        return bool(self.texts) and {*self.texts} <= {*FLAGS}


def named_sets(
    sets: Sequence[ClassSet], labels: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return the names of the classes in each row of a column.

    A row lists names or numbers from 0, or has a flag, 0 or 1, for each class.
    Rows of only 0 and 1 are class numbers if their lengths differ.

    Args:
      sets: the classes as written in all rows.
      labels: the classes; () if they are not known yet.
    """
    lengths = {len(row.texts) for row in sets if row.texts}
    numbered = any(not row.are_flags for row in sets if row.texts)
    numbered = numbered or len(lengths) > 1 or lengths == {1}
    # If no class name is a number, 0 and 1 may be class numbers.
    doubtful = bool(labels) and not any(map(NUMBER.fullmatch, labels))
    named = []
    for row in sets:
        texts, where = row
        twice = len({*texts}) < len(texts)
        flags = row.are_flags and (twice or not numbered)
        if flags and len(texts) == len(labels):
            there = [FLAGS[text] for text in texts]
            named.append(tuple(itertools.compress(labels, there)))
            continue
        rule = "there must be a 0 or 1 for each of "
        rule += shown(labels) or "the classes, whose names are not known"
        if not twice:
            rule = "0 and 1 may be class numbers, or flags of too few classes; "
            rule += f"use the names {shown(labels)}"
        doubt = flags and (twice or doubtful)
        received = f"[{', '.join(texts)}]"
        require(not doubt, f"{where}: {rule}.", label=received)
        named.append(tuple(class_named(x, labels, where) for x in texts))
    return named


class MultiLabel(ClassTask):
    """Any number of several classes, independently.

    Labels are in one column, as a JSON list or separated by commas, or in
    several columns of 0 and 1 named after the classes. An empty cell means no
    class; a column that is empty in every row counts as unlabelled.
    """

    kind = "multilabel"
    signature = "classify"
    many_label_columns = True
    threshold = 0.5

    def renamed(self, columns):
        task = super().renamed(columns)
        names = columns.get("label_column", ())
        if len(names) > 1:
            task = dataclasses.replace(task, labels=task.labels or tuple(names))
            require(
                set(names) == set(task.labels),
                "Several names in `label_column` must be the model's classes, "
                f"{shown(task.labels)}.",
                label_column=",".join(names),
            )
        return task

    def parse_label(self, values, where):
        if len(values) > 1:
            return self._flags(values, where)
        texts = class_texts(values[0], where)
        return None if texts is None else ClassSet(texts, where)

    def _flags(self, values, where):
        texts = [label_text(value, where) for value in values]
        if None in texts:
            return None
        chosen = []
        for name, text in zip(self.columns.label, texts, strict=True):
            rule = f"{where}: label column {name} must be 0 or 1."
            require(text in FLAGS, f"{rule} Received: {text!r}")
            chosen += [name] * FLAGS[text]
        return tuple(chosen)

    def read(self, part, path):
        examples = self._with_names(super().read(part, path))
        if any(example.label for example in examples) or not examples:
            return examples
        if part != "predict" and isinstance(path, InMemoryTable):
            return examples  # perhaps a batch, in which no class need apply
        require(
            part == "predict",
            f"{path}: at least one row must have a label in a file for "
            "training or evaluation.",
            label="no class",
        )
        return [dataclasses.replace(e, label=None) for e in examples]

    def _with_names(self, examples):
        """Return examples with their classes as names."""
        sets = [e.label for e in examples if isinstance(e.label, ClassSet)]
        named = iter(named_sets(sets, self.labels))
        return [
            dataclasses.replace(e, label=next(named))
            if isinstance(e.label, ClassSet)
            else e
            for e in examples
        ]

    def table_labels(self, labels):
        shares = self.shares(labels)
        return labels if shares is None else (shares > 0.5).astype(int).tolist()

    def fitted(self, examples):
        return self.with_labels({x for e in examples for x in e.label})

    def targets(self, labels):
        rows = [[name in label for name in self.labels] for label in labels]
        return np.array(rows, np.float32)  # [N, C]

    def probabilities(self, logits):
        return sigmoid(logits)

    def predictions(self, examples, outputs, features):
        names = np.array(self.labels)
        return [
            Prediction(tuple(names[row > self.threshold].tolist()), row)
            for row in self.probabilities(outputs["logits"])
        ]

    def label_text(self, label):
        return ",".join(label)


class Regression(SentenceTask):
    """One number, or several named numbers.

    Several numbers are a list in one column, or one column each, named after
    the numbers.

    Attributes:
      labels: the names of several numbers, () for a single one.
    """

    kind = "regression"
    signature = "score"
    many_label_columns, fewest_labels = True, 1

    @property
    def head_arguments(self):
        return (len(self.labels) or 1,)

    def renamed(self, columns):
        task = super().renamed(columns)
        names = tuple(columns.get("label_column", ()))
        if len(names) < 2:
            return task
        rule = "`label_column` must name one column, or those of the model's "
        rule += f"numbers, {shown(task.labels)}."
        legal = not task.labels or set(names) == set(task.labels)
        require(legal, rule, label_column=",".join(names))
        return dataclasses.replace(task, labels=task.labels or names)

    def parse_label(self, values, where):
        if len(values) > 1:
            cells = dict(zip(self.columns.label, values, strict=True))
            values = [cells[name] for name in self.labels]
        elif self.labels and isinstance(values[0], list | tuple):
            values = values[0]
        number = len(self.labels) or 1
        rule = f"{where}: the label must be {number} numbers"
        rule += f", {shown(self.labels)}." if self.labels else "."
        require(len(values) == number, rule, label=str(values)[:60])
        numbers = tuple(label_number(value, where) for value in values)
        if None in numbers:
            return None
        return numbers if self.labels else numbers[0]

    def targets(self, labels):
        return np.array(labels, np.float32)  # [N], or [N, C] of several

    def numbers(self, logits):
        """Return the numbers in logits, [N], or [N, C] for several."""
        return logits if self.labels else logits[:, 0]

    def served(self, outputs):
        return {"score": self.numbers(outputs["logits"])}

    def predictions(self, examples, outputs, features):
        none, rows = np.zeros(0), outputs["logits"].tolist()
        return [
            Prediction(tuple(row) if self.labels else row[0], none)
            for row in rows
        ]

    def value(self, prediction):
        return np.array(prediction.label, np.float32)

    def answer(self, query, prediction, top):
        return {"score": prediction.label}

    def score(self, examples, predictions):
        if not self.labels:
            return super().score(examples, predictions)
        from albert_tf.tasks.metrics import METRICS

        truth, found = (
            self.targets([x.label for x in each]).T
            for each in (examples, predictions)
        )
        return {
            name: float(np.mean(list(map(METRICS[name], truth, found))))
            for name in self.scores
        }

    def label_text(self, label):
        numbers = label if self.labels else (label,)
        return ",".join(f"{number:.6g}" for number in numbers)
