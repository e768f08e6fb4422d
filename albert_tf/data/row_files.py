"""Read CSV, TSV and JSON lines row by row, with the position of each row.

TSV lines are split at tabs without quoting, as in the GLUE files; CSV cells may
be quoted.
"""

import csv
import dataclasses
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.data.file_kinds import (
    CSV,
    JSONL,
    TO_UTF_8,
    TSV,
    BadData,
    Source,
)

LONGEST_FIELD = 2**31 - 1  # Python's csv allows 131,072 by default

Lines = Iterator[tuple[int, str]]  # (line number, text)
Cells = Iterator[tuple[int, list[str]]]  # (line number, cells)

# A function that handles an unusable item. It receives the error and, for a
# line that is not UTF-8, the bytes. It raises the error, returns replacement
# text, or returns None to skip the item.
Handler = Callable[[BadData, bytes], str | None]


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a table and its position.

    Attributes:
      where: the row's position in the user's terms, such as "file:line",
        "frame, row 3" or "x[3]".
      values: {column: value}.
      where_label: the position of the row's label, such as "y[3]", or "" if
        labels were not passed separately.
    """

    where: str
    values: dict
    where_label: str = ""

    @property
    def label_where(self) -> str:
        """The position of the row's label."""
        return self.where_label or self.where


def stop(error: BadData, line: bytes = b"") -> None:
    """Raise the error instead of skipping the item."""
    raise error


def lines_in(source: Source, path: str, bad: Handler = stop) -> Lines:
    """Yield decoded lines, split only at line feeds, which are removed."""
    for number, line in enumerate(source.file, start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            bad_bytes = BadData(
                f"{path}:{number}: the text must be UTF-8; {TO_UTF_8}. "
                f"Received: byte 0x{line[error.start]:02x} at {error.start}"
            )
            text = bad(bad_bytes, line)
        if text is not None:
            text = text.removeprefix("\ufeff") if number == 1 else text
            yield number, text.removesuffix("\n")


def _tsv_cells(lines: Lines, path: str, bad: Handler) -> Cells:
    for number, line in lines:
        yield number, line.removesuffix("\r").split("\t")


def csv_cells(lines: Lines, path: str, bad: Handler = stop) -> Cells:
    """Yield the cells of each record; quoted cells may contain line feeds."""
    last = 0

    def feed() -> Iterator[str]:
        nonlocal last
        for last, line in lines:  # noqa: B007
            yield from io.StringIO(f"{line}\n", newline="")

    reader = csv.reader(feed(), strict=True)
    # The limit applies to the whole process. It is not reset, because other
    # files may be open.
    csv.field_size_limit(LONGEST_FIELD)
    while True:
        first = last + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            rule = "a CSV record must be well-formed, with commas between cells"
            received = f"{path}:{first}: {rule}. Received: {error}"
            bad(BadData(received), b"")
            continue
        if cells is None:
            return
        yield first, cells or [""]


def _without_last_blanks(cells: Cells) -> Cells:
    """Yield cells, omitting trailing blank lines."""
    blanks = []
    for number, values in cells:
        if values == [""]:
            blanks.append(number)
            continue
        yield from ((blank, [""]) for blank in blanks)
        blanks.clear()
        yield number, values


def delimiter_hint(names: Sequence[str], cells: Sequence[str] = ()) -> str:
    """Return a hint for errors about columns, or an empty string.

    There is a hint if a column's name or a cell begins with a quote, or if the
    only column name contains a delimiter.
    """
    if any(text.startswith('"') for text in (*names, *cells)):
        return (
            "; .tsv files are read without quoting, so save a table with quotes"
            " as .csv with commas"
        )
    if len(names) != 1 or not re.search("[;,|\t]", names[0]):
        return ""
    return "; the delimiter must be a comma in .csv and a tab in .tsv files"


def _named_rows(
    path: str, cells: Cells, header: bool, bad: Handler
) -> Iterator[Row]:
    """Yield rows from the cells of a file, which may start with a header.

    Columns without a name, such as the empty columns of a spreadsheet, are
    omitted.
    """
    names: list[str] = []
    for number, values in cells:
        where = f"{path}:{number}"
        if not names:
            names = [str(i + 1) for i in range(len(values))]
            if header:
                names = distinct_names(where, map(str.strip, values))
                rule = f"{where}: the first line must name the columns."
                require(any(names), rule, names=names)
                continue
        if len(values) == len(names):
            row = dict(zip(names, values, strict=True))
            row.pop("", None)
            yield Row(where, row)
            continue
        error = (
            f"{where}: every line must have {len(names)} columns "
            f"({', '.join(names)}){delimiter_hint(names, values)}. "
            f"Received: {len(values)} columns"
        )
        bad(BadData(error), b"")


def distinct_names(where: str, names: Iterable) -> list[str]:
    """Return the column names of a table as strings.

    Several columns may have no name, because no setting selects them.

    Raises:
      InputError: if a name occurs twice.
    """
    names = list(map(str, names))
    counts = Counter(filter(None, names))
    twice = sorted(name for name, n in counts.items() if n > 1)
    rule = f"{where}: the column names must be unique."
    require(not twice, rule, twice=", ".join(twice))
    return names


def _json_rows(lines: Lines, path: str, bad: Handler) -> Iterator[Row]:
    """Yield the object on each non-blank line."""
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            values = files.json_value(line)
        except ValueError:
            values = None
        if isinstance(values, dict):
            yield Row(where, values)
            continue
        rule = f"{where}: every line must be a JSON object."
        bad(BadData(f"{rule} Received: {line[:60]}"), b"")


CELLS = {TSV: _tsv_cells, CSV: csv_cells}
KINDS = (*CELLS, JSONL)


def read(
    source: Source,
    path: str,
    kind: str,
    header: bool = True,
    bad: Handler = stop,
) -> Iterator[Row]:
    """Yield the rows of an open file.

    Args:
      source: the file.
      path: the file's name.
      kind: one of `KINDS`.
      header: whether the first line names the columns; otherwise the columns
        are named 1, 2, 3, ... Ignored for JSON lines.
      bad: see `Handler`.
    """
    lines = lines_in(source, path, bad)
    if kind == JSONL:
        yield from _json_rows(lines, path, bad)
        return
    cells = _without_last_blanks(CELLS[kind](lines, path, bad))
    yield from _named_rows(path, cells, header, bad)
