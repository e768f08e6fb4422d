"""Read tables from files, Hugging Face data sets and pandas frames.

A source is a file (Parquet, Arrow, CSV, TSV or JSON lines), a folder written by
`save_to_disk` of `datasets`, or an object in memory: a pandas DataFrame, a
Dataset or IterableDataset of `datasets`, a pyarrow Table, a dict of columns or
a list of dicts. Rows are numbered from 0, as in `frame.iloc[0]` and
`dataset[0]`. In a text file, a row has the number of its first line, counted
from 1. Class labels of a data set are converted to names.
"""

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from albert_tf.base import files
from albert_tf.base.errors import InputError, first_line, require
from albert_tf.base.json_values import field
from albert_tf.base.packages import need
from albert_tf.base.remote_files import is_of_storage
from albert_tf.base.settings import plain
from albert_tf.data import file_kinds, row_files
from albert_tf.data.file_kinds import (
    ARROW,
    ARROW_FILE,
    PARQUET,
    BadData,
    Source,
)
from albert_tf.data.row_files import Handler, Row, distinct_names, stop
from albert_tf.text.packing import is_column

STATE_FILE = "state.json"  # in a folder written by `Dataset.save_to_disk`
SPLITS_FILE = "dataset_dict.json"  # in a folder with a subfolder per split
BATCH_ROWS = 256
ACCEPTED_SOURCES = (
    "a path, a pandas DataFrame, a Dataset or IterableDataset of `datasets`, "
    "a pyarrow Table, a dict of columns or a list of dicts"
)


class InMemoryTable:
    """A table in memory, passed in place of a path.

    Args:
      data: the table.
      setting: the name of the argument that contained the table.
      labels: the name of the argument that contained the labels, if they are
        separate; both arguments then contained a list with one value per row.
      is_batch: whether the table is one of several batches of the same data.
    """

    def __init__(
        self,
        data: Any,
        setting: str,
        labels: str | None = None,
        is_batch: bool = False,
    ):
        kind = f" ({type(data).__name__})" * (labels is None)
        self.data, self._name = data, setting + kind
        self.is_batch = is_batch
        self._lists = None if labels is None else (setting, labels)

    def locations(self, number: int) -> tuple[str, ...]:
        """Return the location of a row, as a tuple of strings for messages.

        If the labels are a separate list, a second string is the location of
        the row's label.
        """
        if self._lists is None:
            return (f"{self._name}, row {number}",)
        of_batch = " of a batch" * self.is_batch
        return tuple(f"{name}[{number}]{of_batch}" for name in self._lists)

    def __str__(self) -> str:
        return self._name

    __repr__ = __fspath__ = __str__

    def __deepcopy__(self, _) -> "InMemoryTable":
        return self


def is_saved_dataset(path: str) -> bool:
    """Return whether a path is a folder that `datasets` saved to disk."""
    names = (STATE_FILE, SPLITS_FILE)
    return any(files.exists(files.join(path, name)) for name in names)


def is_table(source: Any) -> bool:
    """Return whether a source is a table rather than text.

    Tables are objects in memory, Parquet and Arrow files, and saved data sets.
    CSV, TSV and JSON lines files count as text.
    """
    if not isinstance(source, str):
        return True
    kind = file_kinds.kind_of(source)
    return kind in (PARQUET, ARROW) or is_saved_dataset(source)


def data_files(path: str) -> list[str]:
    """Return `[path]` for a file, or the data files of a saved data set.

    Raises:
      InputError: if the data set has splits, or its `state.json` is missing or
        damaged.
    """
    if not files.is_folder(path):
        return [path]
    splits = files.join(path, SPLITS_FILE)
    if files.exists(splits):
        values = files.read_json_object(splits, f"`{SPLITS_FILE}`")
        raise InputError(
            f"A data set with splits must be passed as one of its folders "
            f"{values.get('splits')}. Received: {path}"
        )
    state_path = files.join(path, STATE_FILE)
    state = files.read_json(state_path, f"`{STATE_FILE}`")
    entries = field(state, "_data_files", list, state_path)
    names = [field(entry, "filename", str, state_path) for entry in entries]
    rule = f"`{STATE_FILE}` must name the files of a data set."
    require(all(map(files.is_name, names)), rule, file=state_path)
    return [files.join(path, name) for name in names]


def _class_names(features: Mapping) -> dict[str, Sequence[str]]:
    """Return {column: class names} for columns of classes or lists of classes.

    Args:
      features: the features of a `datasets` data set, as JSON.
    """
    table = {}
    for column, feature in features.items():
        while isinstance(feature, list) or "feature" in feature:
            is_list = isinstance(feature, list)
            feature = feature[0] if is_list else feature["feature"]
        if feature.get("_type") == "ClassLabel" and feature["names"]:
            table[column] = feature["names"]
    return table


def _name_of(value: Any, names: Sequence[str]) -> Any:
    """Return the class name for an index, or None for None or -1.

    For a list of indices, return a list of names. A name stays unchanged.
    """
    if isinstance(value, list):
        return [_name_of(x, names) for x in value]
    if isinstance(value, str):
        return value
    return None if value is None or value < 0 else names[value]


def _with_names(rows: Iterator[dict], features: Mapping) -> Iterator[dict]:
    """Yield rows with class labels replaced by their names."""
    classes = _class_names(features)
    for row in rows:
        yield row | {
            column: _name_of(row[column], names)
            for column, names in classes.items()
            if column in row
        }


def _features_of(schema: Any) -> Mapping:
    """Return the features that `datasets` stores in an Arrow schema, or {}."""
    stored = files.json_value(
        (schema.metadata or {}).get(b"huggingface", b"{}")
    )
    return stored.get("info", {}).get("features", {})


# Errors raised if the `datasets` metadata in a schema are malformed, if cells
# are not UTF-8, or if a damaged length exceeds the available memory.
MALFORMED = (AttributeError, LookupError, MemoryError, TypeError, ValueError)


@contextlib.contextmanager
def _arrow(path: str) -> Iterator[None]:
    """Require pyarrow; convert errors about a damaged file to `BadData`."""
    need("A Parquet or `datasets` file", "pyarrow", path=path)
    import pyarrow

    try:
        yield
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError, *MALFORMED) as error:
        if is_of_storage(error):
            raise
        reason = first_line(error)
        raise BadData(
            f"A table file must not be damaged: {reason}. Received: {path}"
        ) from None


def _schema_and_batches(source: Source) -> tuple[Any, Callable]:
    """Return an open file's schema, and a function that yields its batches.

    The argument of the function is the list of columns to read.
    """
    import pyarrow.parquet

    file = source.file
    if source.kind == PARQUET:
        table = pyarrow.parquet.ParquetFile(file, buffer_size=1 << 20)
        return table.schema_arrow, lambda columns: table.iter_batches(
            BATCH_ROWS, columns=columns
        )
    if source.head.startswith(ARROW_FILE):
        reader = pyarrow.ipc.open_file(file)
        batches = map(reader.get_batch, range(reader.num_record_batches))
    else:
        reader = batches = pyarrow.ipc.open_stream(file)
    return reader.schema, lambda columns: (b.select(columns) for b in batches)


def _checked_rows(batches: Iterator[Any]) -> Iterator[dict]:
    """Validate batches from a file, and yield their rows.

    Without validation, pyarrow would follow damaged offsets beyond the end of
    a buffer.
    """
    for batch in batches:
        batch.validate(full=True)
        yield from batch.to_pylist()


def _arrow_rows_of(
    source: Source, path: str, column: str | None
) -> Iterator[dict]:
    """Yield the rows of a Parquet or Arrow file, read batch by batch."""
    rule = "A Parquet or Arrow file must be neither compressed nor a pipe."
    require(source.file.seekable(), rule, file=path)
    with _arrow(path):
        schema, batches = _schema_and_batches(source)
        if column is not None:
            _require_column(path, column, schema.names)
        read = [x for x in schema.names if column in (None, x)]
        columns = distinct_names(path, read)
        rows = _checked_rows(batches(columns))
        yield from _with_names(rows, _features_of(schema))


def _require_column(where: Any, column: str, names: Sequence[str]) -> None:
    require(
        column in names,
        f"{where}: `text_field` must name one of the columns "
        f"{' '.join(', '.join(names).split())[:200]}"
        f"{row_files.delimiter_hint(names)}.",
        text_field=column,
    )


def rows_in(
    source: Source, path: str, column: str | None, bad: Handler
) -> Iterator[Row]:
    """Yield the rows of an open table file; see `rows_of`."""
    if source.kind in row_files.KINDS:
        yield from row_files.read(source, path, source.kind, bad=bad)
        return
    file_kinds.require_lines(source.kind, path)
    rule = "A table must be a Parquet, Arrow, CSV, TSV or JSON lines file."
    require(source.kind in (PARQUET, ARROW), rule, file=path)
    for number, values in enumerate(_arrow_rows_of(source, path, column)):
        yield Row(f"{path}, row {number}", values)


def _file_rows(path: str, column: str | None, bad: Handler) -> Iterator[Row]:
    with file_kinds.opened(path) as source:
        yield from rows_in(source, path, column, bad)


def _path_rows(path: str, column: str | None, bad: Handler) -> Iterator[Row]:
    """Yield the rows of a file, or of the files of a saved data set."""
    names = data_files(path)
    for name in names:
        exists = files.is_file(name) or files.is_stream(name)
        files.require_file(exists, "The data file", name)
    if names == [path]:
        yield from _file_rows(path, column, bad)
        return
    per_file = (_file_rows(name, column, bad) for name in names)
    for number, row in enumerate(itertools.chain.from_iterable(per_file)):
        yield Row(f"{path}, row {number}", row.values)


def _frame_rows(frame: Any) -> Iterator[dict]:
    names = distinct_names("A DataFrame", frame.columns)
    presence = frame.notna().itertuples(index=False, name=None)
    cells = frame.itertuples(index=False, name=None)
    for values, present in zip(cells, presence, strict=True):
        row = zip(names, values, present, strict=True)
        yield {
            name: plain(x) if is_present else None
            for name, x, is_present in row
        }


def _dataset_rows(dataset: Any) -> Iterator[dict]:
    features = dataset.features.to_dict() if dataset.features else {}
    # The function of `with_transform` changes the values; other formats change
    # only their types.
    is_own = getattr(dataset, "format", {}).get("type") == "custom"
    rows = map(plain, dataset) if is_own else iter(dataset.with_format(None))
    yield from _with_names(rows, features)


def _arrow_rows(table: Any) -> Iterator[dict]:
    distinct_names("A pyarrow Table", table.column_names)
    batches = table.to_batches(BATCH_ROWS)
    rows = (row for batch in batches for row in batch.to_pylist())
    yield from _with_names(rows, _features_of(table.schema))


# {(library, class): the function that yields the rows of its instances}. An
# instance exists only if its library has been imported.
OBJECTS: dict[tuple[str, str], Callable] = {
    ("pandas", "DataFrame"): _frame_rows,
    ("datasets", "Dataset"): _dataset_rows,
    ("datasets", "IterableDataset"): _dataset_rows,
    ("pyarrow", "Table"): _arrow_rows,
}


def _reader(data: Any) -> Callable | None:
    """Return the function that yields an object's rows, or None if unknown."""
    for (library, name), read in OBJECTS.items():
        kind = getattr(sys.modules.get(library), name, None)
        if kind and isinstance(data, kind):
            return read
    columns = isinstance(data, Mapping) and data.values()
    if columns and all(is_column(x) and hasattr(x, "__len__") for x in columns):
        return _column_rows
    if isinstance(data, list | tuple) and data:
        return _list_rows if all(isinstance(x, Mapping) for x in data) else None
    return None


def _list_rows(rows: Sequence[Mapping]) -> Iterator[dict]:
    return map(plain, rows)


def _column_rows(columns: Mapping) -> Iterator[dict]:
    names = distinct_names("A dict of columns", columns)
    sizes = dict(zip(names, map(len, columns.values()), strict=True))
    rule = "The columns of a table must have the same length."
    require(len(set(sizes.values())) == 1, rule, **sizes)
    for cells in zip(*map(plain, columns.values()), strict=True):
        yield dict(zip(names, map(plain, cells), strict=True))


def as_source(setting: str, value: Any) -> str | InMemoryTable:
    """Convert the value of a setting to a path or an `InMemoryTable`.

    Raises:
      InputError: if the value is neither a path nor a table.
    """
    if isinstance(value, str | InMemoryTable):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    reads = _reader(value)
    if not reads and isinstance(value, Mapping):
        require(
            not any(map(_reader, value.values())),
            f"`{setting}` must be one of the splits "
            f"{', '.join(map(str, value))}.",
            **{setting: type(value).__name__},
        )
    require(
        reads,
        f"`{setting}` must be {ACCEPTED_SOURCES}.",
        **{setting: f"{type(value).__name__} {str(value)[:60]}"},
    )
    return InMemoryTable(value, setting)


def as_sources(setting: str, value: Any) -> str | InMemoryTable:
    """Convert a value as `as_source` does; join a list of paths with commas."""
    if isinstance(value, list | tuple) and value:
        if all(isinstance(path, str | os.PathLike) for path in value):
            paths = list(map(os.fspath, value))
            for path in paths:
                require(
                    len(paths) == 1 or not set(",\n") & set(path),
                    f"`{setting}` must list paths without commas (in a glob, "
                    "use `?`). Pass texts as a table, {'text': texts}.",
                    **{setting: repr(path)[:60]},
                )
            return ",".join(paths)
    return as_source(setting, value)


def rows_of(
    source: str | InMemoryTable,
    column: str | None = None,
    bad: Handler = stop,
) -> Iterator[Row]:
    """Yield the rows of a source, with plain Python values.

    Column names become strings; unnamed columns of a frame are named 0, 1, ...

    Args:
      source: see the module docstring; files are read incrementally.
      column: the only column to read from a file; None reads all columns.
      bad: the handler for unreadable rows of text files; see `Handler`.

    Raises:
      InputError: if the source is not a table or is damaged; the message names
        the source.
    """
    if isinstance(source, str):
        yield from _path_rows(source, column, bad)
        return
    for number, values in enumerate(_reader(source.data)(source.data)):
        cells = {str(k): x for k, x in values.items()}
        where, *of_label = source.locations(number)
        yield Row(where, cells, *of_label)


def class_names(source: str | InMemoryTable) -> dict[str, Sequence[str]]:
    """Return {column: class names in the order of the class numbers}.

    A column without classes has the value (). Only data sets of `datasets`, and
    tables made from them, define classes; for other tables, the result is {}.

    Args:
      source: a table whose rows have been read without errors.
    """
    features: Mapping = {}
    if isinstance(source, str):
        is_read = not files.is_stream(source) and is_table(source)
        for path in data_files(source)[:1] if is_read else ():
            with file_kinds.opened(path) as file, _arrow(path):
                features = _features_of(_schema_and_batches(file)[0])
    elif _reader(source.data) is _arrow_rows:
        features = _features_of(source.data.schema)
    elif _reader(source.data) is _dataset_rows and source.data.features:
        features = source.data.features.to_dict()
    return dict.fromkeys(features, ()) | _class_names(features)


def texts_in(
    rows: Iterator[Row], column: str, bad: Handler
) -> Iterator[tuple[str, str]]:
    """Yield each row's position and its text in one column.

    Args:
      rows: the rows of a table.
      column: the column, the value of `text_field`.
      bad: the handler for rows without text.

    Raises:
      InputError: if the first row lacks the column or, unless `bad` skips the
        row, if a cell contains no text; the message locates the row.
    """
    checked = False
    for row in rows:
        if not checked:  # not in later rows, because objects may lack fields
            _require_column(row.where, column, list(row.values))
            checked = True
        text = row.values.get(column)
        if isinstance(text, str):
            yield row.where, text
            continue
        error = (
            f"{row.where}: column {column} must contain text. "
            f"Received: {column}={text!r:.60}"
        )
        bad(BadData(error), b"")


def texts_of(
    source: str | InMemoryTable, column: str, bad: Handler
) -> Iterator[str]:
    """Yield the texts in one column of a source; see `texts_in`."""
    for _, text in texts_in(rows_of(source, column, bad), column, bad):
        yield text
