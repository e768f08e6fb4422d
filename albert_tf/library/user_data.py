"""Conversion of the arguments of `fit` and `predict` to a task's tables."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.base.settings import plain
from albert_tf.data.file_kinds import ENDINGS, ending_of
from albert_tf.data.table_sources import InMemoryTable, as_source
from albert_tf.tasks.classification import SentenceTask
from albert_tf.tasks.losses import TaskObjective
from albert_tf.tasks.tables import (
    FORMATS,
    TableColumns,
    class_named,
    format_labels,
    label_text,
)
from albert_tf.tasks.task import Task
from albert_tf.text.packing import checked_texts, is_column

ONE_WEIGHT = "`sample_weight` must have one finite number for each example."


def listed(values: Any, name: str) -> list:
    """Convert a column to a list of plain Python values; decode bytes."""
    is_ragged = isinstance(values, tf.RaggedTensor)
    values = values.to_list() if is_ragged else plain(values)
    require(
        is_column(values),
        f"`{name}` must be a list with a value for each example.",
        **{name: repr(values)[:60]},
    )
    return [decoded(value) for value in map(plain, values)]


def column_names(x: Any) -> list | None:
    """Return the names of a table's columns, or None if `x` is not a table.

    Frames of pandas and polars have `columns`; `datasets` and pyarrow tables
    have `column_names`. A series has neither.
    """
    if hasattr(x, "column_names"):
        return list(x.column_names or ())
    if hasattr(x, "columns"):
        return list(x.columns)
    return list(x) if isinstance(x, Mapping) else None


def label_list(y: Any, labels: Sequence[str]) -> list:
    """Return the label of each example; a frame or dict has columns of labels.

    Args:
      y: labels; a frame has one column, or a column named after each label, in
        any order.
      labels: the task's labels, in the order of the columns; () if the task has
        none.
    """
    names = column_names(y)
    if names is None:
        return listed(y, "y")
    if len(names) == 1:
        return listed(y[names[0]], "y")
    names = {str(name): name for name in names}
    rule = "`y` must have one column"
    rule += f", or the columns {format_labels(labels)}." if labels else "."
    require({*names} == {*labels}, rule, columns=format_labels([*names]))
    columns = [listed(y[names[label]], f"y[{label!r}]") for label in labels]
    sizes = dict(zip(labels, map(len, columns), strict=True))
    rule = "The columns of `y` must have the same number of rows."
    require(len({*sizes.values()}) == 1, rule, **sizes)
    return [list(row) for row in zip(*columns, strict=True)]


def decoded(value: Any) -> Any:
    """Convert bytes to text, and NumPy values to Python values."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple | set | np.ndarray):
        return [decoded(x) for x in value]
    return value


def are_columns(x: Any, number: int) -> bool:
    """Return whether `x` is a list of columns, which are arrays, as in Keras.

    Rows may be arrays too, so as many rows as columns would be ambiguous.
    """
    is_list = isinstance(x, list) and len(x) == number
    if not (is_list and all(len(getattr(part, "shape", ())) for part in x)):
        return False
    rule = f"{number} arrays of {number} values may be columns or rows; pass a "
    rule += "tuple of columns or a list of tuples."
    is_clear = {*map(len, x)} != {number}
    require(is_clear, rule, x=repr(x)[:60])
    return True


def text_columns(x: Any, columns: TableColumns) -> dict[str, list]:
    """Return {column name: values} for the texts of the examples.

    Args:
      x: the values of a single column; for several columns, a tuple, dict or
        list of columns (in a list, columns are arrays), or a list of rows.
      columns: the names of the columns.
    """
    names, available = columns.texts, column_names(x)
    rule = f"Texts must have the columns {', '.join(names)}."
    if available is not None:
        shown = ", ".join(map(str, available))
        require({*names} <= {*available}, rule, columns=shown)
        parts = [x[name] for name in names]
    elif len(names) == 1:
        parts = [x]
    elif isinstance(x, tuple) or are_columns(x, len(names)):
        parts = list(x)
    else:
        rows = listed(x, "x")
        sizes = {len(r) if isinstance(r, list | tuple) else 1 for r in rows}
        require(sizes == {len(names)}, rule, x=repr(rows[:1])[:60])
        parts = list(zip(*rows, strict=True))
    require(len(parts) == len(names), rule, columns=len(parts))
    return {
        name: (listed if name in columns.lists else checked_texts)(part, name)
        for name, part in zip(names, parts, strict=True)
    }


def width_of(x: Any) -> int | None:
    """Return the number of text columns, or None if the columns have names."""
    if is_source(x):
        return None
    if len(shape := getattr(x, "shape", ())) == 2:  # an array
        return shape[1]
    in_rows = isinstance(x, list) and x and isinstance(x[0], list | tuple)
    columns = x[0] if in_rows else x
    return len(columns) if in_rows or isinstance(x, tuple) else 1


def is_source(x: Any) -> bool:
    """Return whether `x` is a path, or a table with named columns."""
    if isinstance(x, str | os.PathLike | InMemoryTable):
        return True
    if isinstance(x, Sequence):
        return bool(x) and isinstance(x[0], Mapping)
    return column_names(x) is not None


def is_single_text(x: Any, extra_columns: Sequence) -> bool:
    """Return whether `x` is a single text to make a prediction for.

    A string may instead be the path of a table: a word with a table's file
    extension, or an existing path. A string with neither a slash nor such an
    extension is always a text, even if the current folder contains a file with
    this name.

    Args:
      x: a text or anything else.
      extra_columns: additional columns; if there are any, `x` is not a path.
    """
    if not isinstance(x, str):
        return False
    if extra_columns:
        return True
    is_word, is_link = len(x.split()) == 1, files.is_remote(x)
    path = files.expanded(x)
    if is_link and not is_word:
        return True
    if ending_of(x) in {*FORMATS, *ENDINGS}:
        return not (is_word or files.exists(path))
    if x.startswith(("http://", "https://")) or "/" not in x.strip("/"):
        return True
    return not files.exists(path)


def source_of(x: Any) -> str | InMemoryTable:
    """Return the path or table for a task to read."""
    rule = "`x` must be a list of texts, or the path of an existing table."
    if isinstance(x, str | os.PathLike):
        x = files.local_path("x", os.fspath(x))
        require(files.exists(x), rule, x=x[:60])
    if isinstance(x, Mapping) and any(map(tf.is_tensor, x.values())):
        x = {name: listed(values, name) for name, values in x.items()}
    return as_source("x", x)


def table_of(x: Any, labels: list | None, columns: TableColumns) -> Any:
    """Return a table of texts and labels; for `x`, see `text_columns`."""
    table = text_columns(x, columns)
    rule = "All columns must have the same number of texts, at least one."
    if labels is not None:
        table[columns.label] = labels
        rule = (
            "There must be as many labels as texts, and at least one of each."
        )
    sizes = {name: len(values) for name, values in table.items()}
    legal = len(set(sizes.values())) == 1 and all(sizes.values())
    require(legal, rule, **sizes)
    return InMemoryTable(table, "x", "y", is_batch=tf.is_tensor(x))


def read_examples(task: Task, part: str, x: Any, y: Any) -> Sequence[Any]:
    """Return a task's examples; at least one must exist.

    Args:
      task: the task.
      part: "train", "eval" or "predict".
      x: texts; or a path, a frame or a data set with all columns.
      y: labels; None if `x` contains the labels or if there are no labels.
    """
    named = y is None and is_source(x)
    rule = "`y` must be given, unless `x` is a table or a `tf.data.Dataset` "
    rule += "with labels. To use a generator, wrap it with "
    rule += "`tf.data.Dataset.from_generator`. Received: none"
    has_labels = task.unlabeled or y is not None or named
    require(part == "predict" or has_labels, rule)
    shares = None
    if named:
        source = source_of(x)
        task = task if isinstance(source, str) else task.without_ids()
    else:
        task, labels = task.in_memory(), None
        columns = task.table(width_of(x), y is not None)
        if y is not None:
            listed_labels = label_list(y, getattr(task, "labels", ()))
            labels, shares = task.cells_and_shares(listed_labels)
        source = table_of(x, labels, columns)
    examples = task.read(part, source)
    rule = "There must be at least one example."
    require(examples, rule, x=str(source)[:60])
    if shares is None:
        return examples
    pairs = zip(examples, shares, strict=True)
    return [dataclasses.replace(e, shares=row) for e, row in pairs]


def array_of(values: Any, dtype: type | None = None) -> np.ndarray:
    """Return an array; bfloat16, which is not a type of NumPy, becomes float32.

    NumPy does not count bfloat16 as a number.
    """
    array = np.asarray(values, dtype)
    is_foreign = array.dtype.name == "bfloat16"
    return array.astype(np.float32) if is_foreign else array


def are_finite(values: np.ndarray) -> bool:
    """Return whether an array contains only finite numbers."""
    return values.dtype.kind in "biuf" and bool(np.isfinite(values).all())


def checked_weights(weights: Any, examples: Sequence) -> np.ndarray | None:
    """Return weights [N] or [N, 1] as [N], one finite weight per example."""
    if weights is None:
        return None
    values = array_of(weights)
    if values.shape[1:] == (1,):
        values = values[:, 0]
    require(
        values.shape == (len(examples),) and are_finite(values),
        ONE_WEIGHT,
        sample_weight=f"{values.dtype} {values.shape}",
        examples=len(examples),
    )
    return values


def class_numbers(
    class_weight: dict | None, task: Task
) -> dict[int, float] | None:
    """Return {class number: weight}; the default weight is 1.

    Args:
      class_weight: {class index or name: weight}.
      task: a task with one class for each text.
    """
    if class_weight is None:
        return None
    rule = "`class_weight` must be {class: weight} for one class per text; "
    rule += "`class_weights` of `albert_tf.finetune` supports other tasks."
    legal = isinstance(class_weight, Mapping) and task.kind == "classification"
    require(legal, rule, class_weight=class_weight, task=task.kind)
    labels = task.labels
    where = "`class_weight`"
    names = [
        class_named(str(label_text(k, where)), labels, where)
        for k in class_weight
    ]
    rule = "`class_weight` must contain each class once, by name or number."
    require(len({*names}) == len(names), rule, class_weight=class_weight)
    weights = dict(zip(names, class_weight.values(), strict=True))
    rule = "The weights in `class_weight` must be finite and at least 0."
    numbers = [
        isinstance(x, Real) and 0 <= x < np.inf for x in weights.values()
    ]
    require(all(numbers), rule, class_weight=class_weight)
    return {i: weights.get(label, 1.0) for i, label in enumerate(labels)}


def is_encoded(x: Any) -> bool:
    """Return whether `x` contains ids, which Keras accepts directly."""
    if isinstance(x, tf.data.Dataset):
        x = x.element_spec
    x = x[0] if isinstance(x, tuple) and x else x
    is_batch = isinstance(x, Mapping) and "input_ids" in x
    return is_batch or isinstance(x, keras.utils.PyDataset)


def check_validation(data: Any, task: Task) -> None:
    """Raise `InputError` if evaluation data lack labels that a task needs."""
    is_table = is_source(data) or isinstance(data, tf.data.Dataset)
    has_labels = isinstance(data, tuple) and len(data) > 1
    legal = data is None or is_table or has_labels or is_encoded(data)
    rule = "`validation_data` must be a tuple of texts and labels, a table or "
    rule += "a `tf.data.Dataset`."
    received = f"{type(data).__name__} {repr(data)[:60]}"
    require(legal or task.unlabeled, rule, validation_data=received)


def has_spare_axis(objective: TaskObjective, y: Any) -> bool:
    """Return whether labels have an unexpected last axis of size 1."""
    shape = y.shape if hasattr(y, "shape") else np.shape(y)
    return len(shape) == objective.label_rank + 1 and shape[-1] == 1


def without_spare_axis(objective: TaskObjective, y: Any) -> Any:
    """Remove a spare last axis from labels: [B, 1], for example, becomes [B].

    If labels had different ranks, Keras would trace the step for an unknown
    rank.
    """
    if y is None or not has_spare_axis(objective, y):
        return y
    return (y if tf.is_tensor(y) else np.asarray(y))[..., 0]


def parsed_labels(rows: list, task: SentenceTask) -> np.ndarray:
    """Return labels as numbers, by the rules for the labels of texts."""
    width = len(task.in_memory().table().texts)
    text = "" if width == 1 else ("",) * width
    examples = read_examples(task, "eval", [text] * len(rows), rows)
    if examples[0].shares is not None:
        return np.array([example.shares for example in examples])
    return task.targets([example.label for example in examples])


def label_array(y: Any, task: Task) -> np.ndarray:
    """Return the labels of ids as an array.

    Names become numbers, and columns named after the task's labels are put in
    the order of these labels.
    """
    if not isinstance(y, np.ndarray) and not tf.is_tensor(y):
        y = label_list(y, getattr(task, "labels", ()))
    try:
        array = array_of(y, float if task.kind == "regression" else None)
    except ValueError:  # texts, or sets of classes that differ in size
        array = np.array(None)
    if array.dtype.kind in "biuf" or not isinstance(task, SentenceTask):
        return array
    y = without_spare_axis(task.objective, array) if array.ndim else y
    return parsed_labels(listed(y, "y"), task)


def labels_of_ids(y: Any, task: Task, own_loss: bool) -> Any:
    """Return the labels of batches of ids in a form that Keras accepts.

    Columns, frames, lists and tensors become arrays, names become numbers, and
    [B, 1] becomes [B]. Class numbers become int32 and shares of classes
    float32, because Keras would trace both in one step if their dtypes agreed.

    Args:
      y: the labels.
      task: the task.
      own_loss: whether the loss is the task's own, which needs whole numbers;
        with a binary loss, for example, labels may be probabilities.

    Raises:
      InputError: for a class that the task does not have.
    """
    if y is None:
        return None
    objective = task.objective
    y = without_spare_axis(objective, label_array(y, task))
    shown, is_number = repr(y)[:60], y.dtype.kind in "biuf"
    require(is_number, "For ids, labels must be numbers.", y=shown)
    if task.kind == "regression" and own_loss:
        rule = "Labels must be finite numbers."
        require(np.isfinite(y).all(), rule, y=shown)
    if objective.label_dtype != "int32":
        return y
    if y.ndim == objective.label_rank + 1:
        return y.astype(np.float32)
    is_free = y.dtype.kind == "f" and not own_loss
    if is_free or y.ndim != objective.label_rank:
        return y
    classes = len(getattr(task, "labels", ())) or np.inf
    legal = (y % 1 == 0) & (y < classes)
    if task.kind == "classification":
        legal &= y >= 0
        rule = f"Class numbers must be from 0 to {classes - 1}, "
        rule += "without a fraction; for ids, names must be strings."
    else:
        limit = "" if classes == np.inf else f" below {classes}"
        rule = f"For ids, labels must be whole numbers{limit}."
    require(legal.all(), rule, y=shown)
    return y.astype(np.int32)


def weights_of_ids(weights: Any) -> Any:
    """Return the weights of ids as an array; leave tensors unchanged."""
    if weights is None or tf.is_tensor(weights):
        return weights
    values = np.asarray(plain(weights))
    shown = repr(values)[:60]
    require(are_finite(values), ONE_WEIGHT, sample_weight=shown)
    return values


def with_label_numbers(
    dataset: tf.data.Dataset, task: Task, own_loss: bool
) -> tf.data.Dataset:
    """Convert the labels in a data set of ids; see `labels_of_ids`."""
    spec = dataset.element_spec
    labels = spec[1] if isinstance(spec, tuple) and len(spec) > 1 else None
    if not isinstance(labels, tf.TensorSpec):
        return dataset
    shape, objective = labels.shape, task.objective
    if shape.rank == objective.label_rank + 1 and shape[-1] is None:
        first = next(iter(dataset), None)  # the axis may be a spare one
        labels = labels if first is None else first[1]
    shape = shape[:-1] if has_spare_axis(objective, labels) else shape
    dtype = tf.as_dtype(objective.label_dtype)
    if labels.dtype == tf.string:  # a text may name several classes
        shape = tf.TensorShape([None] * objective.label_rank)
    else:
        zeros = np.zeros([2] * shape.rank, labels.dtype.as_numpy_dtype)
        dtype = tf.as_dtype(labels_of_ids(zeros, task, own_loss).dtype)

    def converted(y: np.ndarray) -> np.ndarray:
        return labels_of_ids(y, task, own_loss).astype(dtype.as_numpy_dtype)

    @tf.autograph.experimental.do_not_convert
    def convert(ids, y, *rest):
        y = tf.numpy_function(converted, [y], dtype, stateful=False)
        return ids, tf.ensure_shape(y, shape), *rest

    return dataset.map(convert)


class CheckedBatches(keras.utils.PyDataset):
    """A `PyDataset` whose labels and weights have a form that Keras accepts.

    Args:
      batches: the data set, which returns tuples of ids, labels and weights;
        the last two are optional.
      task: see `labels_of_ids`.
      own_loss: see `labels_of_ids`.
    """

    def __init__(
        self, batches: keras.utils.PyDataset, task: Task, own_loss: bool
    ):
        super().__init__(
            batches.workers, batches.use_multiprocessing, batches.max_queue_size
        )
        self._batches, self._labels_are = batches, (task, own_loss)

    @property
    def num_batches(self) -> int | None:
        return self._batches.num_batches

    def __getitem__(self, index):
        batch = self._batches[index]
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            return batch
        ids, labels, *weights = batch
        labels = labels_of_ids(labels, *self._labels_are)
        return ids, labels, *map(weights_of_ids, weights)

    def on_epoch_begin(self):
        self._batches.on_epoch_begin()

    def on_epoch_end(self):
        self._batches.on_epoch_end()
