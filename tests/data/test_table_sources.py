"""Tables of every library yield equal rows."""

import errno
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from albert_tf.base.errors import InputError
from albert_tf.base.remote_files import RemoteError
from albert_tf.data import table_sources
from albert_tf.data.table_sources import InMemoryTable, as_source, rows_of

ROWS = [
    {"text": "a film", "label": "good", "tags": ["O", "B"], "size": 1.5},
    {"text": "a\nplot", "label": "bad", "tags": ["B"], "size": None},
    {"text": None, "label": None, "tags": [], "size": 2.0},
]


def frame(rows):
    return pytest.importorskip("pandas").DataFrame(rows)


def arrow(rows):
    return pytest.importorskip("pyarrow").Table.from_pylist(rows)


def columns(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}


def dataset(rows):
    """Return a data set with class labels, as from the Hugging Face Hub."""
    datasets = pytest.importorskip("datasets")
    numbers = {"good": 1, "bad": 0, None: -1, "O": 0, "B": 1}
    coded = [
        row
        | {
            "label": numbers[row["label"]],
            "tags": [numbers[tag] for tag in row["tags"]],
        }
        for row in rows
    ]
    features = datasets.Features(
        text=datasets.Value("string"),
        label=datasets.ClassLabel(names=["bad", "good"]),
        tags=datasets.Sequence(datasets.ClassLabel(names=["O", "B"])),
        size=datasets.Value("float32"),
    )
    return datasets.Dataset.from_list(coded, features)


def hub_columns(rows):
    """Return columns like `dataset["text"]`, which is not a list."""
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict(columns(rows))
    return {name: whole[name] for name in whole.column_names}


def series(rows):
    """Return columns of a frame that marks missing cells with `NA`."""
    return dict(frame(rows).convert_dtypes().items())


def chunks(rows):
    return {name: arrow(rows)[name] for name in rows[0]}


def parquet(rows, folder, rows_in_group=2):
    path = str(folder / "t.parquet")
    library = pytest.importorskip("pyarrow.parquet")
    library.write_table(arrow(rows), path, row_group_size=rows_in_group)
    return path


def saved(rows, folder):
    dataset(rows).save_to_disk(str(folder / "saved"), num_shards=2)
    return str(folder / "saved")


def hub_parquet(rows, folder):
    path = str(folder / "hub.parquet")
    dataset(rows).to_parquet(path)
    return path


@pytest.mark.parametrize(
    "make",
    [
        list,
        columns,
        frame,
        arrow,
        dataset,
        hub_columns,
        series,
        chunks,
        lambda rows: dataset(rows).to_iterable_dataset(),
        lambda rows: dataset(rows).with_format("numpy"),
        lambda rows: dataset(rows).data.table,
    ],
)
def test_objects_have_the_same_rows(make):
    """Objects of all libraries yield the same rows.

    Rows contain class names, not indices, and None for missing values.
    """
    source = as_source("x", make(ROWS))
    found = list(rows_of(source))
    assert [row.values for row in found] == ROWS
    places = [f"{source}, row {number}" for number in range(3)]
    assert [row.where for row in found] == places


@pytest.mark.parametrize("write", [parquet, saved, hub_parquet])
def test_files_have_the_same_rows(tmp_path, write):
    """Files and saved data sets yield the same rows as objects.

    The position of a row consists of the file or folder and the row's number.
    If one column is read, each row contains only this column.
    """
    path = write(ROWS, tmp_path)
    found = list(rows_of(path))
    assert [row.values for row in found] == ROWS
    assert [row.where for row in found] == [
        f"{path}, row {i}" for i in range(3)
    ]
    for name in ROWS[0]:
        found = [row.values for row in rows_of(path, name)]
        assert found == [{name: row[name]} for row in ROWS]


TWICE = ["text", "label", "tags", "text"]


def twice_in_parquet(rows, folder):
    library = pytest.importorskip("pyarrow.parquet")
    path = str(folder / "t.parquet")
    library.write_table(arrow(rows).rename_columns(TWICE), path)
    return path


@pytest.mark.parametrize(
    "make",
    [
        twice_in_parquet,
        lambda rows, _: arrow(rows).rename_columns(TWICE),
        lambda rows, _: frame(rows).set_axis(TWICE, axis="columns"),
        lambda rows, _: frame(rows).set_axis([1, 2, 3, "1"], axis="columns"),
        lambda rows, _: {1: ["a"], "1": ["b"]},
    ],
)
def test_no_two_columns_have_the_same_name(make, tmp_path):
    """A table with two columns of the same name raises an error.

    Names are compared as strings. If they were equal, one of the columns would
    be ignored.
    """
    with pytest.raises(InputError, match="must be unique.*twice=(text|1)$"):
        list(rows_of(as_source("x", make(ROWS, tmp_path))))


def test_a_file_may_repeat_columns_that_are_not_read(tmp_path):
    """Only the column that is read from a Parquet file must be unique."""
    path = twice_in_parquet(ROWS, tmp_path)
    found = [row.values["label"] for row in rows_of(path, "label")]
    assert found == [row["label"] for row in ROWS]
    with pytest.raises(InputError, match="must be unique.*twice=text$"):
        list(rows_of(path, "text"))


@pytest.mark.parametrize("make", [lambda rows: rows, frame])
def test_cells_of_numpy_are_pythons(make):
    """In rows and frames, NumPy values become Python lists and numbers."""
    rows = [{"a": np.array([1, 2]), "b": np.int32(1)}, {"a": [3], "b": 2}]
    found = [row.values for row in rows_of(as_source("x", make(rows)))]
    assert found == [{"a": [1, 2], "b": 1}, {"a": [3], "b": 2}]
    assert type(found[0]["b"]) is int


def test_a_transform_of_the_user_is_applied():
    """Rows of a `Dataset` are those that `with_transform` returns.

    Classes may be indices or names.
    """

    def change(batch):
        names = ["good" if x == 1 else x for x in batch["label"]]
        texts = np.array([text.upper() for text in batch["text"]])
        return {"text": texts, "label": names}

    changed = dataset(ROWS[:2]).with_transform(change)
    found = [row.values for row in rows_of(as_source("x", changed))]
    assert found == [
        {"text": row["text"].upper(), "label": row["label"]} for row in ROWS[:2]
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "train_file=int 3"),
        (["a", "b"], "`train_file` must be a path, a pandas DataFrame"),
        ([{"a": 1}, 2], "list of dicts"),
        ({"a": [1], "b": [1, 2]}, "same length. Received: a=1, b=2"),
        ({"train": {"a": [1]}}, "must be one of the splits train. Received"),
        ({"a": "text"}, "train_file=dict {'a': 'text'}"),
        ({"a": [1], "b": b"text"}, "train_file=dict"),
        ([], "train_file=list []"),
        ({}, "train_file=dict {}"),
        pytest.param(
            {"a": iter("b")}, "train_file=dict {'a': <str", id="iterator"
        ),
    ],
    ids=str,
)
def test_what_is_no_table(value, message):
    """The error for an object that is not a table names the argument."""
    with pytest.raises(InputError) as error:
        list(rows_of(as_source("train_file", value)))
    assert message in str(error.value)


def test_positions_in_a_table():
    """A row's position names the argument, or both if two are passed."""
    table = InMemoryTable([{"a": 1}], "data")
    assert table.locations(3) == ("data (list), row 3",)
    table = InMemoryTable((["a"], [1]), "x", "y")
    assert table.locations(3) == ("x[3]", "y[3]")
    table = InMemoryTable((["a"], [1]), "x", "y", is_batch=True)
    assert table.locations(0) == ("x[0] of a batch", "y[0] of a batch")


def test_what_is_a_table(tmp_path):
    """Objects, Parquet files and saved data sets are tables.

    A CSV file is text.
    """
    assert table_sources.is_table({"a": [1]})
    assert table_sources.is_table(parquet(ROWS, tmp_path))
    assert table_sources.is_table(saved(ROWS, tmp_path))
    (tmp_path / "x.csv").write_text("a,b\n")
    assert not table_sources.is_table(str(tmp_path / "x.csv"))


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"_data_files": 3},
        *({"_data_files": [f]} for f in ({}, "a", {"filename": 3})),
        *({"_data_files": [{"filename": n}]} for n in ("a\0b", "a\ud800")),
    ],
)
def test_a_damaged_data_set(tmp_path, state):
    """The error for a damaged data set names the folder's `state.json`.

    This file must list the other files of the data set.
    """
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match="state.json.* must (be|name)"):
        list(rows_of(str(tmp_path)))


@pytest.mark.parametrize("second", ["b, c.txt", "no path\nbut a text"])
def test_lists_of_paths(second):
    """Lists of paths are joined with commas; paths must not contain commas."""
    paths = table_sources.as_sources("input_file", ["a.txt", Path("b.txt")])
    assert paths == "a.txt,b.txt"
    assert table_sources.as_sources("input_file", ["a, b.txt"]) == "a, b.txt"
    with pytest.raises(InputError, match=f"must list paths.*{second[:7]}"):
        table_sources.as_sources("input_file", ["a.txt", second])


def test_splits_are_no_table(tmp_path):
    """A data set with splits raises an error that asks for one split."""
    datasets = pytest.importorskip("datasets")
    both = datasets.DatasetDict(train=dataset(ROWS), test=dataset(ROWS))
    with pytest.raises(InputError, match="of the splits train, test. Received"):
        as_source("eval_file", both)
    both.save_to_disk(str(tmp_path))
    with pytest.raises(InputError, match="folders .'train', 'test'.. Received"):
        list(rows_of(str(tmp_path)))


def test_a_damaged_file(tmp_path):
    """The error names a missing file or a damaged table."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    path.write_text("a,b\n")
    with pytest.raises(InputError, match=f"not be damaged.*Received: {path}"):
        list(rows_of(str(path)))
    with pytest.raises(InputError, match="existing file. Received: none"):
        list(rows_of("none.parquet"))


def test_lengths_beyond_the_memory_are_damage(tmp_path, monkeypatch):
    """A `MemoryError` from a damaged length is reported as damage."""
    ipc = pytest.importorskip("pyarrow.ipc")

    def too_long(file):
        raise MemoryError

    monkeypatch.setattr(ipc, "open_stream", too_long)
    path = tmp_path / "t.arrow"
    path.write_bytes(b"\xff\xff\xff\xff")
    message = f"must not be damaged: MemoryError. Received: {path}"
    with pytest.raises(InputError, match=message):
        list(rows_of(str(path)))


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "disk"), RemoteError("connection")]
)
def test_errors_of_disks_are_no_damage(tmp_path, monkeypatch, error):
    """Disk and connection errors are raised unchanged.

    The message of any other error is shortened to one line.
    """

    def fail(source):
        raise error

    path = parquet(ROWS, tmp_path)
    monkeypatch.setattr(table_sources, "_schema_and_batches", fail)
    with pytest.raises(type(error)) as caught:
        list(rows_of(path))
    assert caught.value is error
    error = OSError("a fault\nmore")
    with pytest.raises(InputError, match=f"damaged: a fault. Received: {path}"):
        list(rows_of(path))


def test_names_of_classes():
    """Columns of classes or lists of classes contain the class names."""
    label = {"_type": "ClassLabel", "names": ["x", "y"]}
    features = {
        "a": label,
        "b": [label],
        "c": {"feature": [{"feature": label}]},
        "d": {"_type": "ClassLabel", "names": []},
        "e": {"_type": "Value"},
    }
    found = table_sources._class_names(features)
    assert found == dict.fromkeys("abc", ["x", "y"])
    named = table_sources._name_of([[0, -1], None, 1], ["x", "y"])
    assert named == [["x", None], None, "y"]


@pytest.mark.parametrize(
    "make",
    [
        saved,
        hub_parquet,
        lambda rows, _: dataset(rows),
        lambda rows, _: dataset(rows).to_iterable_dataset(),
        lambda rows, _: dataset(rows).data.table,
    ],
)
def test_data_sets_name_their_classes(make, tmp_path):
    """Data sets list all columns, with the names of classes in order."""
    source = as_source("data", make(ROWS, tmp_path))
    found = table_sources.class_names(source)
    assert [*found] == ["text", "label", "tags", "size"]
    assert {name: [*names] for name, names in found.items()} == {
        **{"text": [], "label": ["bad", "good"]},
        **{"tags": ["O", "B"], "size": []},
    }


@pytest.mark.parametrize(
    "make", [lambda rows, _: rows, lambda rows, _: frame(rows), parquet]
)
def test_other_tables_name_no_classes(make, tmp_path):
    """Tables that `datasets` did not make define no classes."""
    source = as_source("data", make(ROWS, tmp_path))
    assert table_sources.class_names(source) == {}


def test_a_missing_library_names_its_extra(tmp_path, monkeypatch):
    """Without pyarrow, the error names the extra to install."""
    path = parquet(ROWS, tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"albert-tf\[data\].*Received: .*t.p"):
        list(rows_of(path))


def test_files_are_read_a_batch_at_a_time(tmp_path, monkeypatch):
    """Files are read batch by batch, and only the requested column is read."""
    path = parquet(ROWS, tmp_path, rows_in_group=3)
    monkeypatch.setattr(table_sources, "BATCH_ROWS", 1)
    sizes = []
    batches = table_sources._schema_and_batches

    def counted(source):
        schema, read = batches(source)
        return schema, lambda columns: (
            sizes.append(batch.shape) or batch for batch in read(columns)
        )

    monkeypatch.setattr(table_sources, "_schema_and_batches", counted)
    assert next(rows_of(path, "text")).values == {"text": "a film"}
    assert sizes == [(1, 1)]
