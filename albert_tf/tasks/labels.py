"""What a cell says of a label: one rule for TSV, CSV and JSON lines.

White space around a label is none of it. What is missing is no class of its
own: only files to predict may lack labels.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_tf.base.errors import InputError, require

# An empty cell, and what pandas and NumPy write for a number that is missing.
# NA, null and None as texts may be classes.
MISSING = ("", "nan", "NaN")
LARGEST = float(np.finfo(np.float32).max)  # what a loss can be made of


def label_text(value: Any, where: str) -> str | None:
    """Return a label as text, None for one that is missing.

    A number or boolean of JSON is the text that it has there, so that 1 and
    "1", true and "true" are one label; a whole number has no point.
    """
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float):
        value = json.dumps(value)
    rule = f"{where}: a label must be a text, a number or a boolean."
    require(isinstance(value, str), rule, label=str(value)[:60])
    text = value.strip()
    return None if text in MISSING else text


def label_number(value: Any, where: str) -> float | None:
    """Return the number that a label is, None for one that is missing."""
    text = label_text(value, where)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    rule = f"{where}: the label must be a finite number."
    require(abs(number) <= LARGEST, rule, label=repr(value))
    return number


def require_label(label: Any, part: str, where: str, *cells: Any) -> Any:
    """Return a label; refuse that one is missing, except to predict.

    Args:
      label: None if it is missing.
      part: "train", "eval" or "predict".
      where: "file:line".
      *cells: what stands there.
    """
    require(
        label is not None or part == "predict",
        f"{where}: the label must not be missing in a file to learn from or "
        "to evaluate; empty cells, null and NaN are no labels.",
        label=", ".join(map(repr, cells)),
    )
    return label


def class_texts(value: Any, where: str) -> list[str] | None:
    """Return the classes of a cell that holds any number of them.

    A list, also one that JSON writes in a cell of a table, or texts between
    commas. An empty cell is an empty set, for tables have no other; null and
    NaN are missing: None.
    """
    items = value
    if isinstance(value, str):
        items = cell_items(value.strip(), where)
    if not isinstance(items, list):
        items = [items]
        if label_text(value, where) is None:
            return None
    texts = [label_text(item, where) for item in items]
    rule = f"{where}: no class of a set may be empty."
    require(None not in texts, rule, label=repr(value))
    return texts


def cell_items(text: str, where: str) -> list | str:
    """Return the items of a cell, or the text that says that it has none."""
    if text in MISSING:
        return text or []
    if not text.startswith("["):
        return text.split(",")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise InputError(
            f'{where}: a set of classes must be a JSON list as ["a", "b"], or '
            f"texts between commas. Received: {text[:60]}"
        ) from None


def class_name(label: Any, labels: Sequence[str]) -> Any:
    """Return the name of a class that is given by its number, from 0.

    Where names are numbers themselves, a number is a name. What is no number
    comes back as it is.
    """
    text = label_text(label, "y")
    if text is None or text in labels or isinstance(label, str):
        return label
    number = float(label)
    if label_text(number, "y") in labels:  # of a boolean
        return number
    rule = f"A label must be one of {shown(labels)}"
    if not (named := any(map(str.isdecimal, labels))):
        rule += f", or a number below {len(labels)}"
    legal = not named and number in range(len(labels))
    require(legal, f"{rule}.", label=label)
    return labels[int(number)]


def check_known(label: str, labels: Sequence[str], where: str) -> str:
    """Return a label, or refuse one that is not among the known ones."""
    if labels and label not in labels:
        rule = f"{where}: the label must be one of {shown(labels)}."
        raise InputError(f"{rule} Received: {label!r}")
    return label


def shown(labels: Sequence[str], most: int = 20) -> str:
    """Return labels for a message, not all of very many."""
    text = ", ".join(labels[:most])
    hidden = len(labels) - most
    return f"{text} and {hidden} more" if hidden > 0 else text
