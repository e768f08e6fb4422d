"""Rows of tables of any kind, each with the place it stands at.

TSV, CSV and JSON lines are read here, others by `data/table_sources.py`.

TSV is split at tabs and knows no quotes, as GLUE's files; CSV has quotes.
`note_quotes` tells a user who may not have meant that.
A malformed line is an error that names file and line, never a row skipped.
"""

import csv
import dataclasses
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from albert_tf.base import files
from albert_tf.base.errors import InputError, require
from albert_tf.data.table_sources import Row, TableObject, is_table, rows_of

# A whole cell of a tab-separated line in quotes, those inside it doubled.
QUOTED = re.compile(r'(?:^|\t)("(?:[^"\t\n]|"")+")(?=\t|\r?$)', re.MULTILINE)
LONGEST_FIELD = 2**31 - 1  # Python's csv stops at 131,072 characters


def cell(row: Row, column: str, flag: str) -> Any:
    """Return a row's value in a column, or name the columns that exist.

    Args:
      row: the row.
      column: the column's name.
      flag: the flag that names the column, for the error.
    """
    if column in row.values:
        return row.values[column]
    raise InputError(
        f"{row.where}: `{flag}` must name one of the columns "
        f"{', '.join(row.values)}. Received: {flag}={column}"
    )


KINDS = {
    str: "a text",
    list: "a list",
    int: "a whole number",
    dict: "an object",
}


def field(values: Any, name: str, kind: type, where: str) -> Any:
    """Return a field of a JSON object, which must be of a type."""
    value = values.get(name) if isinstance(values, dict) else None
    legal = isinstance(value, kind) and not isinstance(value, bool)
    rule = f"{where}: `{name}` must be {KINDS[kind]}."
    require(legal, rule, **{name: str(value)[:60]})
    return value


def texts_cell(row: Row, column: str, flag: str) -> tuple[str, ...]:
    """Return the texts of a cell that holds a list of them."""
    texts = cell(row, column, flag)
    listed = isinstance(texts, list) and all(isinstance(x, str) for x in texts)
    rule = f"{row.where}: column {column} must hold a list of texts."
    require(listed, rule, **{column: str(texts)[:60]})
    return tuple(texts)


def text_cell(row: Row, column: str, flag: str) -> str:
    """Return a text; a list is joined by spaces, all else is an error."""
    value = cell(row, column, flag)
    if isinstance(value, list):
        return " ".join(map(str, value))
    if not isinstance(value, str):
        raise InputError(
            f"{row.where}: column {column} must hold text. "
            f"Received: {json.dumps(value, default=str)[:60]}"
        )
    return value


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns of a table mean what; "" is a column that is not there.

    Attributes:
      text: the (first) sentence.
      text_pair: the second sentence.
      label: the label, or several columns of 0 and 1 for `multilabel`.
      id: the example's name; without it that is its row's number from 0.
      header: whether the first line names the columns; otherwise they are
        called 1, 2, 3, ... Has no meaning for JSON lines.
      skip_broken: pass over lines with a wrong number of columns, for the
        official files that are known to have them, and print how many.
      no_label: what stands for a label where annotators did not agree; such
        rows are passed over, except to predict, and their number printed.
      format: the ending of files of the same format; "" is their own.
    """

    text: str = "text"
    text_pair: str = ""
    label: tuple[str, ...] = ("label",)
    id: str = ""
    header: bool = True
    skip_broken: bool = False
    no_label: str = ""
    format: str = ""

    def renamed(self, columns: dict[str, Any]) -> "Columns":
        """Return the columns with those that settings name, {flag: column}."""
        fields = {
            flag.removesuffix("_column"): x for flag, x in columns.items()
        }
        return dataclasses.replace(self, **fields)

    def lacks_label(self, row: Row) -> bool:
        """Return whether the annotators did not agree about a row."""
        cells = [str(row.values.get(name)).strip() for name in self.label]
        return bool(self.no_label) and cells == [self.no_label]

    def texts(self, row: Row, number: int) -> tuple[str, str, str]:
        """Return the name of the example in a row, and its two texts.

        Args:
          row: the row.
          number: names the example where no column does.
        """
        name = cell(row, self.id, "id_column") if self.id else number
        pair = ""
        if self.text_pair:
            pair = text_cell(row, self.text_pair, "text_pair_column")
        return str(name), text_cell(row, self.text, "text_column"), pair


Cells = Iterator[tuple[int, list[str]]]  # (line number, cells)


def tsv_cells(text: str, path: str) -> Cells:
    """Yield the cells of each line; only a line feed ends a line."""
    for number, line in enumerate(text.rstrip("\r\n").split("\n"), start=1):
        yield number, line.removesuffix("\r").split("\t")


def csv_cells(text: str, path: str) -> Cells:
    """Yield the cells of each record; a quoted cell may hold line feeds."""
    text = text.rstrip("\r\n")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    first = 1
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        for cells in reader:
            yield first, cells
            first = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}:{first}: a CSV record must be well-formed: {error}"
        ) from None
    finally:
        csv.field_size_limit(limit)


def named_rows(path: str, cells: Iterable, columns: Columns) -> Iterator[Row]:
    """Yield the rows of a file of cells, whose first line may be a header."""
    names: list[str] = []
    broken = 0
    for number, values in cells:
        where = f"{path}:{number}"
        if not names:
            names = header_names(where, values, columns.header)
            if columns.header:
                continue
        if len(values) == len(names):
            yield Row(where, dict(zip(names, values, strict=True)))
        elif columns.skip_broken:
            broken += 1
        else:
            raise InputError(
                f"{where}: every line must have {len(names)} columns "
                f"({', '.join(names)}). Received: {len(values)} columns"
            )
    if broken:
        print(f"Note: {path}: passed over {broken} broken lines")


def header_names(where: str, values: list[str], header: bool) -> list[str]:
    """Return the columns' names from the first line of a file."""
    if not header:
        return [str(i + 1) for i in range(len(values))]
    names = [name.strip() for name in values]
    twice = sorted({name for name in names if names.count(name) > 1})
    rule = f"{where}: the columns of the header must differ."
    require(not twice, rule, twice=", ".join(twice))
    return names


def json_rows(text: str, path: str) -> Iterator[Row]:
    """Yield the objects of a file that holds one on each line."""
    for number, line in enumerate(text.rstrip("\r\n").split("\n"), start=1):
        where = f"{path}:{number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise InputError(
                f"{where}: every line must be a JSON object. "
                f"Received: {line[:60]}"
            )
        yield Row(where, values)


CELLS = {".tsv": tsv_cells, ".txt": tsv_cells, ".csv": csv_cells}
FORMATS = (*CELLS, ".jsonl", ".json")


def ending_of(path: str) -> str:
    """Return the ending of a file's name, which tells its format."""
    return os.path.splitext(path)[1].lower()


def read_rows(path: str | TableObject, columns: Columns) -> Iterator[Row]:
    """Yield the rows of a table; the file's ending tells its format.

    Raises:
      InputError: the file is missing, empty, not UTF-8, of an unknown ending
        or has a malformed line; the message names file and line.
    """
    if is_table(path):
        yield from rows_of(path)
        return
    ending = columns.format or ending_of(path)
    rule = (
        f"The name of a data file must end in {', '.join(FORMATS)}, .parquet, "
        "or be of a folder that `save_to_disk` of `datasets` wrote."
    )
    require(ending in FORMATS, rule, path=path)
    text = files.read_text(path, "The data file").removeprefix("\ufeff")
    require(text.strip(), "The data file must not be empty.", path=path)
    if ending in CELLS:
        yield from named_rows(path, CELLS[ending](text, path), columns)
    else:
        yield from json_rows(text, path)


def note_quotes(path: str | TableObject) -> None:
    """Print where a tab-separated file first has a cell in quotes."""
    if CELLS.get(ending_of(path)) is not tsv_cells:
        return
    text = files.read_text(path, "The data file")
    quoted = QUOTED.search(text)
    if quoted:
        before = text[: quoted.start(1)]
        line = before.count("\n") + 1
        column = before.rpartition("\n")[2].count("\t") + 1
        print(
            f"Note: {path}:{line}, column {column}: the quotes around "
            f"{quoted[1][:40]} count as text, for tab-separated files are "
            "read without quoting. If they are not part of the text, write "
            "the file without them, or with commas as .csv"
        )
