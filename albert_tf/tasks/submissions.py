"""Files of predictions that the servers of GLUE and CLUE take."""

import json
import os
from collections.abc import Sequence

from albert_tf.base import files
from albert_tf.tasks.tables import write_tsv


def split_of(path: str) -> str | None:
    """Return the split of a file of predictions, None if of evaluation.

    Args:
      path: `DIR/predictions` or, of one of several, `DIR/predictions_SPLIT`.
    """
    stem, _, split = os.path.basename(path).partition("_")
    return split if stem == "predictions" else None


def write_submission(
    path: str,
    submissions: dict[str, str],
    ids: Sequence[str],
    labels: Sequence[str],
) -> list[str]:
    """Write the file of a split that has one; return its name.

    Args:
      path: of the predictions without their ending.
      submissions: {split: name}; a name in `.tsv` has the form of GLUE, a
        table, one in `.json` that of CLUE, an object on each line.
      ids: the examples' names.
      labels: their predicted labels as texts.
    """
    name = submissions.get(split_of(path))
    if not name:
        return []
    target = files.join(os.path.dirname(path), name)
    pairs = list(zip(ids, labels, strict=True))
    if name.endswith(".tsv"):
        return [write_tsv(target, [("index", "prediction"), *pairs])]
    lines = [
        json.dumps({"id": int(i) if i.isdecimal() else i, "label": label})
        for i, label in pairs
    ]
    files.write_text(target, "\n".join(lines) + "\n")
    return [target]
