"""Columns, rows and weights as arguments of `fit`, and their errors."""

import dataclasses
import types
from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.library import feature_batches, user_data
from albert_tf.library.task_loading import label_names
from albert_tf.tasks.registry import TASKS, find
from albert_tf.tasks.tables import TableColumns

COLUMNS = TableColumns(("text",), "label")
TASK = dataclasses.replace(find("classification"), labels=("1", "2", "3"))


class PolarsFrame:
    """A frame that, like a polars frame, is iterated column by column."""

    columns: ClassVar = ["id", "text"]

    def __getitem__(self, name):
        return {"id": [7], "text": ["a"]}[name]

    def __iter__(self):
        return map(self.__getitem__, self.columns)


def test_a_frame_beside_labels_is_its_column():
    """If labels are passed, a frame provides the column of texts.

    A table of pyarrow or `datasets` also provides columns. Errors quote the
    beginning of an argument.
    """
    frame = pytest.importorskip("pandas").DataFrame({"id": [7], "text": ["a"]})
    arrow = pytest.importorskip("pyarrow").Table.from_pandas(frame)
    dataset = pytest.importorskip("datasets").Dataset.from_pandas(frame)
    for x in (frame, arrow, dataset, PolarsFrame()):
        table = user_data.table_of(x, ["good"], COLUMNS)
        assert table.data == {"text": ["a"], "label": ["good"]}
        found = user_data.label_list(x, ["text", "id"])
        assert found == [["a", 7]]
        with pytest.raises(InputError, match="columns t. .*columns=id, text$"):
            user_data.table_of(x, ["good"], TableColumns(("t",), "label"))
    with pytest.raises(InputError, match="`y` must be a list with a value"):
        user_data.listed(frame, "y")
    with pytest.raises(InputError, match=f"Received: y='{'x' * 59}$"):
        user_data.listed("x" * 99, "y")
    with pytest.raises(InputError, match=f"existing table. .*x={'x' * 60}$"):
        user_data.source_of("x" * 99)


def test_a_table_without_rows_is_named(tmp_path):
    """A table without examples raises an error that names the table."""
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n")
    frame = pytest.importorskip("pandas").DataFrame({"text": [], "label": []})
    for x, name in ((str(path), str(path)[:60]), (frame, r"x \(DataFrame\)")):
        with pytest.raises(InputError, match=f"one example. .*x={name}$"):
            user_data.read_examples(TASK, "train", x, None)


def test_rows_have_a_text_for_each_column():
    """A row must have a text for each column.

    Otherwise, an error quotes the start of the first row.
    """
    columns = TableColumns(("a", "b"), "label")
    assert user_data.text_columns([("x", "y"), ["z", ""]], columns) == {
        "a": ["x", "z"],
        "b": ["y", ""],
    }
    for rows in ([("x", "y"), "zz"], [("x", "y"), ("x", "y", "z")]):
        message = r"columns a, b. Received: x=\[\['x', 'y'\]\]$"
        with pytest.raises(InputError, match=message):
            user_data.text_columns(rows, columns)
    with pytest.raises(InputError, match=r"x=\['x{58}$"):
        user_data.text_columns(["x" * 99], columns)


@pytest.mark.parametrize("make", [np.array, tf.constant])
def test_arrays_in_a_list_are_columns(make):
    """In a list, as many arrays as columns are columns, as in Keras.

    Other numbers of arrays are rows. Two arrays of two texts may be either, so
    they cause an error; two lists of two texts are rows.
    """
    columns = TableColumns(("a", "b"), "label")
    first, second = ["x", "y", "z"], ["1", "2", "3"]
    rows = list(zip(first, second, strict=True))
    wanted = {"a": first, "b": second}
    for x in ([make(first), make(second)], [*map(make, rows)], rows):
        assert user_data.text_columns(x, columns) == wanted
    assert user_data.text_columns(rows[:2], columns)["a"] == ["x", "y"]
    with pytest.raises(InputError, match="a tuple of columns or a list of tu"):
        user_data.text_columns([*map(make, rows[:2])], columns)


def test_sources_are_told_from_texts(tmp_path):
    """Paths and tables have columns; lists and tuples of texts do not."""
    frame = pytest.importorskip("pandas").DataFrame({"text": ["a"]})
    arrow = types.SimpleNamespace(column_names=["text"])
    for source in (
        "a",
        tmp_path,
        {"text": []},
        [{"text": "a"}, 2],
        frame,
        arrow,
    ):
        assert user_data.is_source(source)
        assert user_data.width_of(source) is None
    for texts in ([], ["a"], ("a", "b"), [1, {"text": "a"}], frame["text"]):
        assert not user_data.is_source(texts)
    for texts, width in (
        *(([], 1), (["a", "b"], 1), (np.array([["a", "b"]]), 2)),
        *((("a", "b"), 2), ([("a", "b", "c")], 3), ([["a", "b"], "c"], 2)),
    ):
        assert user_data.width_of(texts) == width


def test_a_lone_text_is_told_from_a_path(tmp_path, monkeypatch):
    """A string is a path if it ends in a table's extension or exists as a path.

    A name without a slash or an extension is a text, even if such a file
    exists. A string of several words is a path only if it exists. If there are
    other columns, every string is a text.
    """
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a film"
    for name in ("a film", "film", "the data.csv"):
        (tmp_path / name).touch()
    links = "https://t.co/a", "https://t.co/a.csv it is"
    words = "a film", "film", "", ".", "/", "..", "and/or", "I opened data.csv"
    missing = "file:///nowhere/a", f"file://{path} and more"
    for text in (*links, *words, *missing):
        assert user_data.is_single_text(text, ())
    names = "a.tsv", "b.jsonl.gz", "c.parquet", "the data.csv", "./film"
    for source in (str(path), f"file://{tmp_path}", *names):
        assert not user_data.is_single_text(source, ())
        assert user_data.is_single_text(source, ["b"])
    assert not user_data.is_single_text(["a"], ())
    assert not user_data.is_single_text([], ["b"])


class Batches(keras.utils.PyDataset):
    """A `PyDataset`, which is Keras's class for sources of batches."""


def test_ids_are_told_from_texts():
    """Dicts of ids and Keras sources count as ids.

    Dicts may be in tuples or data sets.
    """
    ids = {"input_ids": np.ones([1, 4], np.int32)}
    dataset = tf.data.Dataset.from_tensor_slices
    for x in (ids, (ids, [1]), dataset(ids), dataset((ids, [1])), Batches()):
        assert user_data.is_encoded(x)
    for x in ({"text": ["a"]}, ["input_ids"], (), "input_ids", dataset(["a"])):
        assert not user_data.is_encoded(x)


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("make", [dict, lambda x: tuple(x.values())])
def test_labels_of_pairs_are_no_texts(make, size):
    """The texts of a data set are all its pairs, in order, without labels."""
    pairs = make({"text": ["a", "b", "c"], "text_pair": ["d", "e", "f"]})
    task = find("classification").updated(text_pair_column="text_pair")
    for data in (pairs, (pairs, [1, 0, 1])):
        dataset = tf.data.Dataset.from_tensor_slices(data)
        dataset = dataset.batch(size) if size else dataset
        assert feature_batches.texts_of(dataset, task) == pairs


def test_a_table_may_be_of_tensors():
    """A dict of tensors, as in a `tf.data.Dataset`, is a table."""
    table = {"text": tf.constant(["a"]), "label": tf.constant([1])}
    assert user_data.source_of(table).data == {"text": ["a"], "label": [1]}


@pytest.mark.parametrize("dtype", ["Int64", "float64", "object", "category"])
def test_missing_cells_of_a_series_are_none(dtype):
    """Missing values in every type of pandas column are read as None."""
    series = pytest.importorskip("pandas").Series([1, None, 2], dtype=dtype)
    for column in (series, series.array):
        assert user_data.listed(column, "y") == [1, None, 2]


def test_a_lazy_column_may_yield_tensors():
    """A column of `datasets` in TensorFlow's format has values as in a list."""
    for values in (["a", "b"], [1, 0]):
        found = user_data.listed(map(tf.constant, values), "y")
        assert found == values
        assert [*map(type, found)] == [*map(type, values)]


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 2])
def test_a_generator_without_shapes_is_data(classifier, size):
    """Data without declared shapes lead to the same results as other data.

    The elements of a data set from a generator are examples, batches of texts
    or batches of ids. The last batch may be smaller.
    """
    texts = ["the film was good", "a bad plot", "good film"]
    labels = ["good", "bad", "good"]
    shaped = tf.data.Dataset.from_tensor_slices((texts, labels))
    shaped = shaped.batch(size) if size else shaped

    def shapeless(dataset):
        types = tf.nest.map_structure(lambda x: x.dtype, dataset.element_spec)
        generate = dataset.as_numpy_iterator
        return tf.data.Dataset.from_generator(generate, output_types=types)

    stream, how = shapeless(shaped), {"verbose": 0}
    wanted = classifier.predict(texts, **how)
    for x in (stream, shapeless(shaped.map(lambda text, label: text))):
        found = classifier.predict(x, **how)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    wanted = classifier.evaluate(texts, labels, **how)
    assert classifier.evaluate(stream, **how) == pytest.approx(wanted)
    assert classifier.score(stream) == classifier.score(texts, labels)
    ids = classifier.tokenizer(texts), [[1], [0], [1]]
    ids = shapeless(tf.data.Dataset.from_tensor_slices(ids).batch(2))
    assert classifier.evaluate(ids, **how) == pytest.approx(wanted)
    assert classifier.fit(stream, **how).history["loss"][0] > 0
    with pytest.raises(InputError, match="at least one example"):
        classifier.fit(shapeless(shaped.take(0)), **how)


@pytest.mark.parametrize("method", ["predict", "classify", "score"])
def test_no_method_accepts_an_empty_data_set(classifier, method):
    """A data set without examples is an error of the user's input."""
    empty = tf.data.Dataset.from_tensor_slices((["one"], ["yes"])).take(0)
    with pytest.raises(InputError, match="at least one example"):
        getattr(classifier, method)(empty)


@pytest.mark.parametrize("method", ["predict", "classify", "score"])
def test_no_method_reads_an_endless_data_set(classifier, method):
    """Predictions and official metrics need a finite data set."""
    endless = tf.data.Dataset.from_tensors(("one", "yes")).repeat()
    with pytest.raises(InputError, match=r"such as `x.take\(number\)`"):
        getattr(classifier, method)(endless)


def test_an_endless_generator_is_refused():
    """An endless generator of batches raises an error at its first value."""
    batches = iter(lambda: (["a film"], ["good"]), None)
    with pytest.raises(InputError, match=r"list of strings. Received: text\[0"):
        user_data.text_columns(batches, COLUMNS)


@pytest.mark.parametrize(
    "weights", [1.0, [1.0, np.nan], ["a", "b"], np.ones([2, 2]), [1, None]]
)
def test_weights_are_a_number_for_each_example(weights):
    """There must be one finite weight for each example."""
    with pytest.raises(InputError, match="finite number"):
        user_data.checked_weights(weights, ["a", "b"])


@pytest.mark.parametrize(
    "form",
    [list, np.array, tf.constant, lambda values: tf.cast(values, "bfloat16")],
)
def test_weights_may_be_a_column(form):
    """Weights [N, 1] are read as [N], as next to ids."""
    for values in ([1, 0.5], [[1], [0.5]]):
        weights = user_data.checked_weights(form(values), ["a", "b"])
        assert weights.tolist() == [1, 0.5]


def test_weights_of_classes_are_by_name_where_names_are_numbers():
    """If class names are numbers, the keys of `class_weight` are names."""
    assert user_data.class_numbers({2: 5.0}, TASK) == {0: 1.0, 1: 5.0, 2: 1.0}
    names = dataclasses.replace(TASK, labels=("bad", "good"))
    assert user_data.class_numbers({1: 5.0}, names) == {0: 1.0, 1: 5.0}
    with pytest.raises(InputError, match="each class once"):
        user_data.class_numbers({"bad": 1.0, 0: 2.0}, names)
    for weight in (np.inf, np.nan, "1"):
        with pytest.raises(InputError, match="must be finite and at least 0"):
            user_data.class_numbers({"bad": weight}, names)
    for task, weights in ((TASK, "balanced"), (find("regression"), {0: 1.0})):
        with pytest.raises(InputError, match="must be {class: weight}"):
            user_data.class_numbers(weights, task)


def test_labels_have_an_order():
    """A set or dict of class names is rejected: classes must have an order."""
    assert label_names(np.array([0, 1])) == ("0", "1")
    for labels in (["a"], ["a", "a"], ["a", None]):
        with pytest.raises(InputError, match="two or more different labels"):
            label_names(labels)
    for labels in ({"a", "b"}, {0: "a", 1: "b"}, "ab", 2):
        with pytest.raises(InputError, match="list of the classes, in order"):
            label_names(labels)


NAMES = "Classifier Embedder MultipleChoice QuestionAnswerer Regressor Tagger"
MODELS = [getattr(albert_tf, name) for name in NAMES.split()]
CLASSES = {kind: model for model in MODELS for kind in model.kinds}
TEXTS = ["the good film", "a bad plot"]
WORDS = [text.split() for text in TEXTS]
LABELS = ("O", "B-x")
OF_KIND = {
    "question_answering": ((TEXTS, TEXTS), ["good", "plot"]),
    "multiple_choice": ((TEXTS, TEXTS, WORDS), [0, 1]),
    "token_classification": (WORDS, [["O", "B-x", "O"]] * 2),
    "embedding": ((TEXTS, TEXTS), [1.0, 2.0]),
    "multilabel": (TEXTS, [["O"], []]),
}
IN_COLUMNS = (
    find("multilabel").updated(label_column=LABELS),
    find("multiple_choice").updated(choice_columns=("a", "b", "c")),
)


@pytest.mark.slow_after(12)
@pytest.mark.parametrize(
    "task", [*TASKS.values(), *IN_COLUMNS], ids=lambda task: task.name
)
def test_lists_have_no_columns_of_a_data_set(words, task):
    """A model for any known data set needs only texts and labels.

    The files of the data set may number rows, mark spans, or have different
    columns for prediction.
    """
    task = task.updated(max_seq_length=16)
    if task.has_classes and not task.labels:
        task = dataclasses.replace(task, labels=LABELS)
    pairs = getattr(task, "is_pair", False)
    labels = [*getattr(task, "labels", ())[:2]] or [0, 1]
    usual = (TEXTS, TEXTS) if pairs else TEXTS, labels
    x, y = OF_KIND.get(task.kind, usual)
    model = CLASSES[task.kind](tiny.SHALLOW, task, words)
    for part, labels_beside in (("predict", None), ("train", y), ("eval", y)):
        assert len(model.examples(x, labels_beside, part)) == 2
    if task.kind == "embedding":
        assert len(model.examples(TEXTS, None, "predict")) == 2
