"""Predicted labels, a predictor that answers queries, and output files."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.base.settings import positive
from albert_tf.tasks.features import Features
from albert_tf.tasks.task import Task
from albert_tf.text.packing import is_column
from albert_tf.text.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A predicted label, and the probability of each class."""

    label: Any  # in the same form as in the examples
    probabilities: np.ndarray  # [C]; empty if the label is a number


def check_query(
    query: Any, fields: Mapping[str, type], is_pair: bool, name: str
) -> None:
    """Raise `InputError` if a query lacks a field or has an unknown field.

    Lists are not checked, because `Task.example` checks them.

    Args:
      query: the query.
      fields: the names and types of the model's fields.
      is_pair: whether the model needs `text_pair`.
      name: the query's name in error messages.
    """
    required = [field for field in fields if is_pair or field != "text_pair"]
    rule = "A query must have " + ", ".join(f"`{field}`" for field in required)
    legal = isinstance(query, Mapping) and {*required} <= {*query}
    require(legal, f"{rule}.", **{name: repr(query)[:60]})
    for field, value in query.items():
        received = {f"{name}, {field!s:.60}": repr(value)[:60]}
        require(field in fields, f"{rule}, and no other fields.", **received)
        is_text = fields[field] is not str or isinstance(value, str)
        require(is_text, f"`{field}` must be a string.", **received)


class Predictor:
    """A predictor that answers a task's queries with a tokenizer and a model.

    The model may run in any engine, such as TensorFlow or LiteRT.

    Args:
      task: the task.
      tokenizer: the model's tokenizer.
      run: a function from features to the head's outputs {name: [N, ...]}.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: Tokenizer,
        run: Callable[[Features], dict[str, np.ndarray]],
    ):
        self.task, self.tokenizer, self.run = task, tokenizer, run

    def predictions(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Return the prediction for each example."""
        features = self.task.features(examples, self.tokenizer)
        return self.task.predictions(examples, self.run(features), features)

    def __call__(self, queries: Sequence[dict], top: int = 5) -> list[dict]:
        """Return the answers to queries as JSON values.

        Args:
          queries: one dict {field: value} per query; see `Task.fields`.
          top: the maximum number of answers to a question, at least 1.

        Raises:
          InputError: if a query lacks a field or has an unknown field or an
            illegal value, or if `top` is less than 1.
        """
        top = positive("top", top)
        task = self.task.for_queries()
        rule = "`queries` must be a list of dicts."
        require(is_column(queries), rule, queries=repr(queries)[:60])
        queries = list(queries)
        for number, query in enumerate(queries):
            name = f"queries[{number}]"
            check_query(query, task.fields, task.is_pair, name)
        if not queries:
            return []
        predictor = Predictor(task, self.tokenizer, self.run)
        examples = [task.example(**query) for query in queries]
        pairs = zip(queries, predictor.predictions(examples), strict=True)
        return [
            task.answer(query, prediction, top) for query, prediction in pairs
        ]


def write_tsv(path: str, table: Iterable[Sequence[str]]) -> str:
    """Write rows of cells as a tab-separated file; return the path.

    Tabs and line breaks inside cells are replaced with spaces.
    """
    spaces = str.maketrans("\t\n\r", "   ")
    lines = [
        "\t".join(cell.translate(spaces) for cell in cells) + "\n"
        for cells in table
    ]
    files.write_text(path, "".join(lines))
    return path


def number_text(number: float) -> str:
    """Format a number with enough digits to restore its float32 value."""
    return f"{number:.9g}"


def write_labels(
    path: str,
    examples: Sequence[Any],
    predictions: Sequence[Prediction],
    text: Callable[[Any], str],
    classes: Sequence[str],
) -> str:
    """Write a table of predicted labels; return its path.

    The table includes the true labels if all of them are known.

    Args:
      path: the path without its extension.
      examples: the examples.
      predictions: the predictions.
      text: a function that returns a label as text.
      classes: the names of the classes, one per probability.
    """
    columns = {
        "id": [example.id for example in examples],
        "prediction": [text(p.label) for p in predictions],
    }
    labels = [example.label for example in examples]
    if None not in labels:
        columns["label"] = map(text, labels)
    probabilities = np.array([p.probabilities for p in predictions])  # [N, C]
    for name, values in zip(classes, probabilities.T, strict=True):
        columns[f"p({name})"] = map(number_text, values)
    rows = zip(*columns.values(), strict=True)
    return write_tsv(f"{path}.tsv", [list(columns), *rows])


def sibling(path: str, name: str) -> str:
    """Return the path, without extension, of another file for the same split.

    Args:
      path: the path of the predictions, without extension, such as
        `DIR/eval_predictions` or `DIR/predictions_mismatched`.
      name: the replacement for "predictions" in the file name.
    """
    folder, stem = os.path.split(path)
    return files.join(folder, stem.replace("predictions", name))


def submission_path(path: str, submissions: dict[str, str]) -> str:
    """Return the path of a split's submission file, or "" if it has none.

    Args:
      path: see `sibling`; only test data has a submission file.
      submissions: {split: file name}.
    """
    # For "eval_predictions", the result is "predictions", which is not a split.
    split = os.path.basename(path).partition("_")[2]
    name = submissions.get(split)
    return files.join(os.path.dirname(path), name) if name else ""


def write_submission(
    path: str,
    submissions: dict[str, str],
    ids: Sequence[str],
    labels: Sequence[str],
) -> list[str]:
    """Write a split's submission file, if any; return the written paths.

    Args:
      path: see `sibling`.
      submissions: {split: file name}; `.tsv` means GLUE's format, a table, and
        `.json` means CLUE's format, one object per line.
      ids: the examples' names.
      labels: the predicted labels as strings.
    """
    target = submission_path(path, submissions)
    if not target:
        return []
    pairs = list(zip(ids, labels, strict=True))
    if target.endswith(".tsv"):
        return [write_tsv(target, [("index", "prediction"), *pairs])]
    lines = [
        json.dumps({"id": int(i) if i.isdecimal() else i, "label": label})
        for i, label in pairs
    ]
    files.write_text(target, "\n".join(lines) + "\n")
    return [target]
