"""Models of texts and of pairs of texts, and what their `predict` returns.

Shapes: N examples, C classes, H hidden width.
"""

import dataclasses
import os
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from albert_tf.base.errors import require
from albert_tf.library import raw_data
from albert_tf.library.raw_data import TableColumns, table_of
from albert_tf.library.task_loading import label_names
from albert_tf.library.task_model import ClassModel, TaskModel
from albert_tf.model.layers import registered
from albert_tf.tasks.labels import shown
from albert_tf.tasks.registry import find
from albert_tf.tasks.sentence_embedding import NEGATIVE, USUAL, Texts
from albert_tf.tasks.sentences import PAIR
from albert_tf.tasks.tables import Columns
from albert_tf.tasks.task import Task


def nameless(task: Task, x: Any) -> Task:
    """Return the task for examples in memory, which need no names of rows.

    Nor have they columns of their own where they are to be predicted.
    """
    is_path = isinstance(x, str | os.PathLike)
    return task if is_path else task.with_columns({"id_column": ""})


class SentenceModel(TaskModel):
    """What a text, or with `pairs=True` two of them, are labelled with."""

    options = ("pairs",)

    @classmethod
    def sentence_task(cls, kind: str, pairs: bool):
        """Return the task of a kind."""
        columns = {"text_pair_column": PAIR if pairs else ""}
        return find(kind).with_columns(columns)

    @classmethod
    def check_learnt(cls, task, pairs=None):
        rule = "`pairs` must be as the model was fine-tuned."
        require(pairs in (None, task.is_pair), rule, pairs=pairs)

    def table_columns(self):
        c = self.task.columns
        pair = (c.text_pair,) if c.text_pair else ()
        return TableColumns((c.text, *pair), c.label[0])

    def codec(self, x, named):
        if named:
            return nameless(self.task, x)
        c = self.task.columns
        columns = Columns(c.text, c.text_pair, c.label[:1])
        how = {"columns": columns, "predict_columns": None, "layout": ""}
        return dataclasses.replace(self.task, **how)


@registered
class Classifier(ClassModel, SentenceModel):
    """One of several classes, or with `multilabel=True` any number of them.

    Labels are names of classes or their numbers; of several classes lists of
    names, or 0 and 1 for each. Rows may have a share of each class instead,
    one-hot or soft. `predict` returns probabilities, float32 [N, C];
    `classify` the names. The network's outputs are logits [B, C].

    Options of `load`: `pairs`, for pairs of texts, and `multilabel`.
    """

    kinds = ("classification", "multilabel")
    options = ("pairs", "multilabel")

    @classmethod
    def new_task(cls, labels, pairs=False, multilabel=False):
        require(
            labels is not None,
            "`labels` must be given, for the model has no head with classes. "
            "Received: none",
        )
        task = cls.sentence_task(cls.kinds[bool(multilabel)], pairs)
        return dataclasses.replace(task, labels=label_names(labels))

    @classmethod
    def check_learnt(cls, task, pairs=None, multilabel=None):
        super().check_learnt(task, pairs)
        there = task.kind == "multilabel"
        rule = "`multilabel` must be as the model was fine-tuned."
        require(multilabel in (None, there), rule, multilabel=multilabel)

    def labels_for_codec(self, y):
        labels, shares = self.task.labels, self._shares(y)
        if self.task.kind == "multilabel":
            return y if shares is None else (shares > 0.5).astype(int).tolist()
        if shares is not None:
            return [labels[i] for i in shares.argmax(axis=1)]
        return super().labels_for_codec(y)

    def _shares(self, y: list) -> np.ndarray | None:
        """Return shares of the classes [N, C], None if labels are classes."""
        of_set, number = self.task.kind == "multilabel", len(self.task.labels)
        rows = [row for row in y if isinstance(row, list) and len(row) > 1]
        numbers = [x for row in rows for x in row if isinstance(x, Real)]
        if not rows or len(numbers) != sum(map(len, rows)):
            return None
        if of_set and all(x in (0, 1) for x in numbers):
            return None
        if of_set and all(isinstance(x, int) for x in numbers):
            return None  # names that are numbers
        legal = len(rows) == len(y) and {*map(len, rows)} == {number}
        legal = legal and all(0 <= x <= 1 for x in numbers)
        legal = legal and (
            of_set or all(abs(sum(row) - 1) < 1e-3 for row in rows)
        )
        rule = "Rows of labels must have a share from 0 to 1 of each of "
        rule += shown(self.task.labels)
        rule += "." if of_set else ", which add up to 1."
        require(legal, rule, y=str(rows[:1])[:60])
        return np.array(rows, np.float64)

    def with_shares(self, examples, y):
        shares = None if y is None else self._shares(raw_data.listed(y, "y"))
        if shares is None:
            return examples
        both = zip(examples, shares, strict=True)
        return [dataclasses.replace(e, shares=row) for e, row in both]

    def classify(self, *x, **kwargs) -> list:
        """Return the label of each example, or the tuple of its labels."""
        return self._answered(
            lambda found: [p.label for p in found], *x, **kwargs
        )


@registered
class PairClassifier(Classifier):
    """A `Classifier` of pairs: texts are a tuple of two columns, or pairs."""

    @classmethod
    def load(cls, path, labels=None, **kwargs):
        """Return the model of a folder; see `TaskModel.load`."""
        return super().load(path, labels, **{"pairs": True} | kwargs)


@registered
class Regressor(SentenceModel):
    """A number, or several; `predict` returns float32 [N], or [N, C].

    For several numbers, pass their names as the `labels` of `load`, or their
    count as `num_labels`; labels in `fit` are then rows of numbers.

    Options of `load`: `pairs`, for pairs of texts.
    """

    kinds = ("regression",)
    fewest_labels = 1

    @classmethod
    def new_task(cls, labels, pairs=False):
        names = () if labels is None else label_names(labels)
        task = cls.sentence_task("regression", pairs)
        return dataclasses.replace(task, labels=names)

    def answers(self, predictions):
        return np.array([p.label for p in predictions], np.float32)


@registered
class Embedder(TaskModel):
    """A vector of length one for each text; cosines say how alike texts are.

    `fit` learns from texts, two crops of which belong together; from pairs or
    triplets (a text, one that belongs to it, one that does not), a tuple of
    columns; or from pairs with scores. Shuffled batches of data in memory have
    no two pairs or triplets that share a text. `predict` and `encode` return
    float32 [N, H], which `albert_tf.search` and `similarity` compare.
    """

    kinds = ("embedding",)
    unlabelled = True

    @classmethod
    def new_task(cls, labels):
        rule = "`labels` have no meaning for vectors."
        require(labels is None, rule, labels=labels)
        return find("embedding")

    def unpacked(self, x, y, weights):
        nested = isinstance(x, tuple) and x and isinstance(x[0], tuple | dict)
        return super().unpacked(x, y, weights) if nested else (x, y, weights)

    def table_columns(self):
        texts = USUAL.text, USUAL.text_pair, NEGATIVE
        return TableColumns(texts, USUAL.label[0])

    def codec(self, x, named):
        if named:
            return nameless(self.task, x)
        return dataclasses.replace(self.task, columns=USUAL)

    def table(self, x, y):
        names, label, _ = self.table_columns()
        rows = isinstance(x, list) and x and isinstance(x[0], list | tuple)
        columns = x[0] if rows else x
        number = len(columns) if rows or isinstance(x, tuple) else 1
        rule = "Texts must be a list, or a tuple of two or three lists."
        require(number <= len(names), rule, columns=number)
        rule = "Scores must be of pairs, a tuple of two lists."
        require(y is None or number == 2, rule, columns=number)
        return table_of(x, y, TableColumns(names[:number], label))

    def _streamed(self, dataset, batch_size, part):
        spec = dataset.element_spec
        rated = isinstance(spec, tuple) and isinstance(spec[0], tuple | dict)
        rule = "Scores must be in memory, for the largest of all divides them."
        require(not (rated and len(spec) > 1), rule, x=dataset)
        return super()._streamed(dataset, batch_size, part)

    def texts_apart(self, examples):
        # Another row's partner is a wrong answer: it must not be one's own.
        is_contrast = len(examples[0].texts) > 1 and examples[0].score is None
        return [e.texts for e in examples] if is_contrast else None

    def _predicted(self, examples, batch_size, **kwargs):
        # One by one: Keras's graph for pairs would not take texts, or would
        # no longer know how many axes there are.
        alone = [Texts("", (text,)) for e in examples for text in e.texts]
        vectors = super()._predicted(alone, batch_size, **kwargs)
        return vectors.reshape(len(examples), -1, vectors.shape[-1])

    def answers(self, predictions):
        return predictions[:, 0]

    def encode(self, texts: Sequence[str], **kwargs) -> np.ndarray:
        """Return the vector of each text, float32 [N, H], without progress."""
        return self.predict(texts, **{"verbose": 0} | kwargs)
