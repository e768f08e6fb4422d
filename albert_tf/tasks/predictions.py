"""Queries to answers over any engine, and files of predictions."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from albert_tf.base import files
from albert_tf.tasks.features import Features
from albert_tf.tasks.task import Task
from albert_tf.text.tokenizers import Tokenizer


class Predictor:
    """A task with a tokenizer and a model.

    Args:
      task: what is predicted.
      tokenizer: the model's.
      run: returns the head's outputs {name: [N, ...]} for all rows of features.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: Tokenizer,
        run: Callable[[Features], dict[str, np.ndarray]],
    ):
        self.task, self.tokenizer, self.run = task, tokenizer, run

    def predictions(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Return the prediction of each example."""
        features = self.task.features(examples, self.tokenizer)
        return self.task.predictions(examples, self.run(features), features)

    def __call__(self, queries: Sequence[dict], top: int = 5) -> list[dict]:
        """Return the answers to queries, as JSON has them.

        Args:
          queries: {field: value} each; see `Task.fields`.
          top: most answers to a question.
        """
        task = self.task
        examples = [task.example(**query) for query in queries]
        pairs = zip(queries, self.predictions(examples), strict=True)
        return [task.answer(query, found, top) for query, found in pairs]


def write_tsv(path: str, table: Iterable[Sequence[str]]) -> str:
    """Write rows of cells as `read_rows` reads them; return the path.

    Tabs and line ends inside a cell become spaces.
    """
    spaces = str.maketrans("\t\n\r", "   ")
    lines = [
        "\t".join(cell.translate(spaces) for cell in cells) + "\n"
        for cells in table
    ]
    files.write_text(path, "".join(lines))
    return path


def write_labels(
    path: str,
    ids: Sequence[str],
    predictions: Sequence[str],
    labels: Sequence[str] | None,
    shares: dict[str, np.ndarray],
) -> str:
    """Write a table of predicted labels; return its name.

    Args:
      path: without its ending.
      ids: the examples' names.
      predictions: their predicted labels.
      labels: the true ones, if all are known.
      shares: {class: probability of each example}.
    """
    columns = {"id": ids, "prediction": predictions}
    if labels is not None:
        columns["label"] = labels
    for name, values in shares.items():
        columns[f"p({name})"] = [f"{x:.6f}" for x in values]
    rows = zip(*columns.values(), strict=True)
    return write_tsv(f"{path}.tsv", [list(columns), *rows])


def sibling(path: str, name: str) -> str:
    """Return the path of a further file of a split.

    Args:
      path: of its predictions without their ending, such as
        `DIR/eval_predictions` or `DIR/predictions_mismatched`.
      name: what takes the place of "predictions" in the file's name.
    """
    folder, stem = os.path.split(path)
    return files.join(folder, stem.replace("predictions", name))


def submission_path(path: str, submissions: dict[str, str]) -> str:
    """Return the path of the file that a server takes, "" for none.

    Args:
      path: as for `sibling`; only files to predict have such a one.
      submissions: {split: name}.
    """
    # "eval_predictions" gives "predictions", which is no name of a split.
    split = os.path.basename(path).partition("_")[2]
    name = submissions.get(split)
    return files.join(os.path.dirname(path), name) if name else ""


def write_submission(
    path: str,
    submissions: dict[str, str],
    ids: Sequence[str],
    labels: Sequence[str],
) -> list[str]:
    """Write the file of a split that has one; return its name.

    Args:
      path: as for `sibling`.
      submissions: {split: name}; a name in `.tsv` has the form of GLUE, a
        table, one in `.json` that of CLUE, an object on each line.
      ids: the examples' names.
      labels: their predicted labels as texts.
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
