"""Columns, cells and labels of tables, with locations for error messages."""

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from albert_tf.base import files
from albert_tf.base.errors import InputError, brief, require
from albert_tf.data import file_kinds, row_files
from albert_tf.data.file_kinds import TEXT, TSV, BadData
from albert_tf.data.row_files import Row
from albert_tf.data.table_sources import InMemoryTable, is_table, rows_of
from albert_tf.text.normalization import REPLACEMENT, SURROGATE

# An empty cell, and the text that pandas and NumPy write for a missing number.
# The texts NA, null and None may be names of classes.
MISSING = ("", "nan", "NaN")
LARGEST = float(np.finfo(np.float32).max)  # the largest legal numeric label


def label_text(value: Any, where: str) -> str | None:
    """Return a label as text, or None if it is missing.

    A JSON number or boolean is converted to its JSON text, so 1 and "1", or
    true and "true", are the same label. Whole numbers have no decimal point.
    Letters are composed (NFC), so labels that look the same are equal.
    """
    if value is None:
        return None
    if isinstance(value, Decimal):  # as in Parquet files and databases
        whole = value.is_finite() and value == value.to_integral_value()
        value = int(value) if whole else float(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float):
        value = json.dumps(value)
    rule = f"{where}: a label must be a string, a number or a boolean."
    require(isinstance(value, str), rule, label=brief(value))
    # A lone surrogate, half a character, cannot be written to a file.
    text = SURROGATE.sub(REPLACEMENT, value.strip())
    text = unicodedata.normalize("NFC", text)
    return None if text in MISSING else text


def label_number(value: Any, where: str) -> float | None:
    """Return a label as a number, or None if it is missing."""
    text = label_text(value, where)
    if text is None:
        return None
    number = math.nan
    with contextlib.suppress(ValueError):
        number = float(text.replace("_", "?"))  # Python reads 1_000 as 1000
    rule = f"{where}: the label must be a finite number."
    require(abs(number) <= LARGEST, rule, label=repr(value))
    return number


def require_label(label: Any, part: str, where: str, *cells: Any) -> Any:
    """Return a label; raise an error if it is missing, except in prediction.

    Args:
      label: the label, or None if it is missing.
      part: "train", "eval" or "predict".
      where: "file:line".
      *cells: the cells, for the error message.
    """
    require(
        label is not None or part == "predict",
        f"{where}: training and evaluation examples must have a label; "
        "empty cells, null and NaN are missing labels.",
        label=", ".join(map(repr, cells)),
    )
    return label


def class_texts(value: Any, where: str) -> list[str] | None:
    """Return the classes in a cell, or None if the label is missing.

    The cell contains a list, possibly as JSON, or texts separated by commas. An
    empty cell is an empty set, because tables have no other notation for empty
    sets. For null and NaN, which are missing labels, the result is None.
    """
    items = value
    if isinstance(value, str):
        items = cell_items(value.strip(), where)
    if not isinstance(items, list):
        items = [items]
        if label_text(value, where) is None:
            return None
    texts = [label_text(item, where) for item in items]
    rule = f"{where}: a set must not contain an empty class."
    require(None not in texts, rule, label=repr(value))
    return texts


def json_cell(value: Any, *kinds: type) -> Any:
    """Return a cell's JSON value if it has a given type, otherwise the cell.

    Only lists and objects are read, because parsing every plain text is slow.

    Args:
      value: a cell.
      *kinds: the types of JSON values to return: list, dict or both.
    """
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        parsed = files.json_value(value)
    except ValueError:
        return value
    return parsed if isinstance(parsed, kinds) else value


def cell_items(text: str, where: str) -> list | str | dict:
    """Return the items of a cell; [] for an empty cell.

    The texts "nan" and "NaN", which mean a missing label, are returned as is. A
    JSON object, which is not a set of classes, is returned as a dict.
    """
    if text in MISSING:
        return text or []
    if not text.startswith("["):
        value = json_cell(text, dict)
        return text.split(",") if value is text else value
    try:
        return files.json_value(text)
    except ValueError:
        raise InputError(
            f'{where}: a set of classes must be a JSON list such as ["a", '
            f'"b"], or texts separated by commas. Received: {brief(text)}'
        ) from None


# A number, a number at the beginning of a text, and the spellings of 0 and 1.
# Python does not convert integers of more than 4300 digits to text.
NUMBER = re.compile(r"[+-]?\d{1,4000}(\.\d+)?")
BEGINS_AS_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?(?!\w)")
BOOLEANS = {"false": False, "true": True}
FLAGS = {"0": False, "1": True} | BOOLEANS


def flag_value(text: str) -> bool | None:
    """Return the value of a 0 or 1, or None for any other text.

    pandas writes 1.0 and True, spreadsheets write TRUE, and JSON has true.
    """
    return FLAGS.get(text.casefold().removesuffix(".0"))


def spelling(text: str) -> str:
    """Return a label with a single spelling for each number and boolean.

    Labels of earlier versions, and column names, may have decomposed letters.
    """
    if NUMBER.fullmatch(text):
        return str(label_text(Decimal(text), ""))
    folded = text.casefold()
    return folded if folded in BOOLEANS else unicodedata.normalize("NFC", text)


@functools.lru_cache(maxsize=8)
def classes_by_spelling(labels: tuple[str, ...]) -> dict[str, list[str]]:
    """Return {spelling: the classes with this spelling}."""
    classes: dict[str, list[str]] = {}
    for label in labels:
        classes.setdefault(spelling(label), []).append(label)
    return classes


def class_named(text: str, labels: Sequence[str], where: str) -> str:
    """Return the class that a label identifies by name, or by number from 0.

    If any class name begins with a number, as "5" and "5 stars" do, all numbers
    count as names, so classes cannot be confused. Spellings of a number, such
    as 1 and 1.0, or of a boolean, such as true and TRUE, are the same name
    unless several classes have such names.

    Args:
      text: the label, from `label_text`.
      labels: the classes; () if they are not known yet.
      where: "file:line".
    """
    text = unicodedata.normalize("NFC", text)
    if not labels or text in labels:
        return text
    number, flag = None, flag_value(text)
    if flag is not None or NUMBER.fullmatch(text):
        number = label_text(Decimal(text if flag is None else flag), where)
    classes = classes_by_spelling(tuple(labels))
    found = classes.get(spelling(text)) or classes.get(number, ())
    if len(found) == 1:
        return found[0]
    rule = f"{where}: the label must be one of {format_labels(labels)}"
    if found:
        rule += ", in this spelling"
    elif any(map(BEGINS_AS_NUMBER.match, labels)):
        rule += "; if class names begin with numbers, every number is a name"
    elif number and number.isdecimal() and int(number) < len(labels):
        return labels[int(number)]
    else:
        rule += f", or a number below {len(labels)}"
    raise InputError(f"{rule}. Received: label={text!r}")


def format_labels(labels: Sequence[str], limit: int = 20) -> str:
    """Return at most `limit` labels as text for a message.

    The text states how many labels are omitted.
    """
    text = ", ".join(labels[:limit])
    hidden = len(labels) - limit
    return f"{text} and {hidden} more" if hidden > 0 else text


def shares_in(
    labels: Sequence, classes: Sequence[str], are_sets: bool
) -> np.ndarray | None:
    """Return class shares [N, C], or None if the labels are not shares.

    Args:
      labels: the labels of N examples; shares are a list of numbers, the
        target probability of each class.
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
        return None  # the class names are numbers
    legal = len(rows) == len(labels) and {*map(len, rows)} == {len(classes)}
    legal = legal and all(0 <= x <= 1 for x in numbers)
    legal = legal and (
        are_sets or all(abs(sum(row) - 1) < 1e-3 for row in rows)
    )
    rule = "Rows of labels must have a share from 0 to 1 for each of "
    rule += format_labels(classes)
    rule += "." if are_sets else ", and add up to 1."
    require(legal, rule, y=brief(rows[:1]))
    return np.array(rows, np.float64)


class ClassSet(NamedTuple):
    """The classes of a row as written in the file, and their location."""

    texts: list[str]
    where: str

    @property
    def are_flags(self) -> bool:
        """Whether all items are 0 or 1, and may therefore be class flags."""
        values = map(flag_value, self.texts)
        return bool(self.texts) and None not in values


def named_sets(
    sets: Sequence[ClassSet], labels: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return the names of the classes in each row.

    A row lists class names or indices from 0, or contains a flag, 0 or 1, for
    each class. If all rows contain only 0 and 1, but have different lengths,
    these numbers are indices.

    Args:
      sets: the classes of all rows, as written in the file.
      labels: the classes; () if they are not known yet.
    """
    lengths = {len(row.texts) for row in sets if row.texts}
    numbered = any(not row.are_flags for row in sets if row.texts)
    numbered = numbered or len(lengths) > 1 or lengths == {1}
    # If no class name is a number, 0 and 1 may be class indices.
    may_be_indices = bool(labels) and not any(map(NUMBER.fullmatch, labels))
    named = []
    for row in sets:
        texts, where = row
        has_duplicates = len({*texts}) < len(texts)
        are_flags = row.are_flags and (has_duplicates or not numbered)
        if are_flags and len(texts) == len(labels):
            is_set = map(flag_value, texts)
            named.append(tuple(itertools.compress(labels, is_set)))
            continue
        rule = "there must be a 0 or 1 for each of "
        rule += (
            format_labels(labels) or "the classes, whose names are not known"
        )
        if not has_duplicates:
            rule = "0 and 1 may be class numbers, or flags of too few classes; "
            rule += f"use the names {format_labels(labels)}"
        is_ambiguous = are_flags and (has_duplicates or may_be_indices)
        received = f"[{', '.join(texts)}]"
        require(not is_ambiguous, f"{where}: {rule}.", label=received)
        named.append(tuple(class_named(x, labels, where) for x in texts))
    return named


def cell(row: Row, column: str, flag: str) -> Any:
    """Return a row's value in a column; raise an error if there is none.

    Args:
      row: the row.
      column: the column's name.
      flag: the setting that names the column, for the error message.
    """
    if column in row.values:
        return row.values[column]
    raise InputError(
        f"{row.where}: `{flag}` must name one of the columns "
        f"{', '.join(row.values)}{row_files.delimiter_hint([*row.values])}. "
        f"Received: {flag}={column}"
    )


def texts_cell(row: Row, column: str, flag: str) -> tuple[str, ...]:
    """Return the list of texts in a cell."""
    texts = cell(row, column, flag)
    listed = isinstance(texts, list) and all(isinstance(x, str) for x in texts)
    rule = f"{row.where}: column {column} must contain a list of texts."
    require(listed, rule, **{column: brief(texts)})
    return tuple(texts)


def text_cell(row: Row, column: str, flag: str) -> str:
    """Return the text in a cell; join a list of texts with spaces."""
    value = cell(row, column, flag)
    if isinstance(value, list) and all(isinstance(x, str) for x in value):
        return " ".join(value)
    if not isinstance(value, str):
        raise InputError(
            f"{row.where}: column {column} must contain text. "
            f"Received: {brief(json.dumps(value, default=str))}"
        )
    return value


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a table; an absent column is "".

    Attributes:
      text: the (first) sentence.
      text_pair: the second sentence.
      label: the label, or several columns, which contain 0 or 1 for
        `multilabel` and numbers for `regression`.
      id: the example's name; without this column, examples are numbered from 0.
      header: whether the first line names the columns; if not, the columns
        are named 1, 2, 3, ... JSON lines do not use this attribute.
      skip_broken: whether to skip lines with the wrong number of columns, which
        some official files contain; the number of skipped lines is printed.
      no_label: the label of rows on which annotators did not agree. Such rows
        are skipped, except in prediction, and their number is printed.
      format: the file format, or "" to detect it.
    """

    text: str = "text"
    text_pair: str = ""
    label: tuple[str, ...] = ("label",)
    id: str = ""
    header: bool = True
    skip_broken: bool = False
    no_label: str = ""
    format: str = ""

    def updated(self, columns: dict[str, Any]) -> "Columns":
        """Return the columns, updated with settings {flag: column}."""
        fields = {
            flag.removesuffix("_column"): x for flag, x in columns.items()
        }
        return dataclasses.replace(self, **fields)

    def lacks_label(self, row: Row) -> bool:
        """Return whether the annotators disagreed about a row."""
        cells = [str(row.values.get(name)).strip() for name in self.label]
        return bool(self.no_label) and cells == [self.no_label]

    def texts(self, row: Row, number: int) -> tuple[str, str, str]:
        """Return an example's name, text and second text from a row.

        Args:
          row: the row.
          number: the example's name if there is no `id` column.
        """
        name = cell(row, self.id, "id_column") if self.id else number
        pair = ""
        if self.text_pair:
            pair = text_cell(row, self.text_pair, "text_pair_column")
        return str(name), text_cell(row, self.text, "text_column"), pair


class TableColumns(NamedTuple):
    """The names of a table's columns.

    Attributes:
      texts: the columns with texts.
      label: the column with labels.
      lists: the columns in `texts` that may contain lists of strings.
    """

    texts: tuple[str, ...]
    label: str
    lists: tuple[str, ...] = ()


TXT = ".txt"  # read as TSV
FORMATS = (".tsv", TXT, ".csv", ".jsonl", ".json")


def is_lines(path: str | InMemoryTable) -> bool:
    """Return whether a path is a `.txt` file of plain text."""
    ends_in_txt = file_kinds.ending_of(path) == TXT
    return ends_in_txt and file_kinds.kind_of(path) == TEXT


def _kind(source: file_kinds.Source, path: str) -> str:
    """Return the format of rows, inferred from the file's content and name."""
    if source.kind == TEXT and file_kinds.ending_of(path) == TXT:
        return TSV
    file_kinds.require_lines(source.kind, path)
    rule = (
        "A data file must contain JSON lines, or its name must end in "
        f"{', '.join(FORMATS)} or .parquet, or it must be a folder "
        "written by `save_to_disk` of `datasets`."
    )
    require(source.kind in row_files.KINDS, rule, path=path)
    return source.kind


def read_rows(path: str | InMemoryTable, columns: Columns) -> Iterator[Row]:
    """Yield the rows of a table.

    Raises:
      InputError: if the file is missing, empty, not UTF-8, in an unknown format
        or malformed; the message names the file and the line.
    """
    if is_table(path):
        yield from rows_of(path)
        return
    files.require_file(files.is_file(path), "The data file", path)
    broken = 0

    def skip_line(error: BadData, line: bytes) -> None:
        nonlocal broken
        if line or not columns.skip_broken:
            raise error
        broken += 1

    with file_kinds.opened(path) as source:
        rule = "The data file must not be empty."
        require(source.head.strip(b"\xef\xbb\xbf \r\n\t"), rule, path=path)
        kind = columns.format or _kind(source, path)
        yield from row_files.read(source, path, kind, columns.header, skip_line)
    if broken:
        print(f"Note: {path}: skipped {broken} broken lines")


# A quoted cell of a tab-separated line, with inner quotes doubled.
QUOTED = re.compile(r'(?:^|\t)("(?:[^"\t\n]|"")+")(?=\t|\r?$)', re.MULTILINE)


def note_quotes(path: str | InMemoryTable) -> None:
    """Print the location of the first quoted cell in a tab-separated file."""
    if isinstance(path, InMemoryTable) or files.is_stream(path):
        return
    if not is_lines(path) and file_kinds.kind_of(path) != TSV:
        return
    text = file_kinds.read_text(path, "The data file")
    quoted = QUOTED.search(text)
    if quoted:
        before = text[: quoted.start(1)]
        line = before.count("\n") + 1
        column = before.rpartition("\n")[2].count("\t") + 1
        print(
            f"Note: {path}:{line}, column {column}: the quotes around "
            f"{quoted[1][:40]} are kept, because tab-separated files are "
            "read without quoting. If they are not part of the text, remove "
            "them, or save the file as .csv with commas"
        )
