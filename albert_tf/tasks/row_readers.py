"""Rows of official files whose text does not stand in a column as it is."""

from collections.abc import Callable

from albert_tf.base.errors import require
from albert_tf.tasks.tables import Row, cell


def marked_spans(row: Row) -> Row:
    """Return a row of CLUEWSC with the two spans marked in its text.

    `_` stands around the first span, the noun, and brackets around the
    second, the pronoun. Source: the baselines of CLUE.
    """
    text, target = str(cell(row, "text", "text_column")), row.values["target"]
    marks = []
    for span, before, after in (("span1", "_", "_"), ("span2", "[", "]")):
        words, start = target[f"{span}_text"], int(target[f"{span}_index"])
        end = start + len(words)
        require(
            text[start:end] == words,
            f"{row.where}: `{span}_text` must stand in the text at "
            f"`{span}_index`, where it has {text[start:end]!r}.",
            **{f"{span}_text": repr(words), f"{span}_index": start},
        )
        # Of marks at one place those that end a span come first.
        marks += [(start, 1, before), (end, 0, after)]
    for place, _, mark in sorted(marks, reverse=True):
        text = text[:place] + mark + text[place:]
    return Row(row.where, row.values | {"text": text})


LAYOUTS: dict[str, Callable[[Row], Row]] = {"cluewsc": marked_spans}
