"""What a cell says of a label: one rule for TSV, CSV and JSON lines.

White space around a label is none of it. What is missing is no class of its
own: only files to predict may lack labels.
"""

import json
import math
import re
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


# A number as text, and the booleans of JSON, which are 0 and 1.
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
FLAGS = {"0": False, "1": True, "false": False, "true": True}


def class_named(text: str, labels: Sequence[str], where: str) -> str:
    """Return the class that a label names, or numbers from 0.

    If classes are named by numbers, a number is always a name, so that no
    class is mistaken for another.

    Args:
      text: the label, from `label_text`.
      labels: the classes; () if they are not known yet.
      where: "file:line".
    """
    if not labels or text in labels:
        return text
    number = None
    if text in FLAGS or NUMBER.fullmatch(text):
        number = label_text(float(FLAGS.get(text, text)), where)
        if number in labels:
            return number
    rule = f"{where}: the label must be one of {shown(labels)}"
    if any(map(NUMBER.fullmatch, labels)):
        rule += "; where classes are named by numbers, a number is a name"
    elif number and number.isdecimal() and int(number) < len(labels):
        return labels[int(number)]
    else:
        rule += f", or a number below {len(labels)}"
    raise InputError(f"{rule}. Received: label={text!r}")


def shown(labels: Sequence[str], most: int = 20) -> str:
    """Return labels for a message, not all of very many."""
    text = ", ".join(labels[:most])
    hidden = len(labels) - most
    return f"{text} and {hidden} more" if hidden > 0 else text
