"""Labels, losses and results of sentence classification and regression."""

import dataclasses
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_tasks
from scipy.special import softmax

from albert_tf.base.errors import InputError
from albert_tf.data.table_sources import InMemoryTable
from albert_tf.tasks.classification import Example
from albert_tf.tasks.predictions import Prediction, write_labels
from albert_tf.tasks.registry import find
from albert_tf.tasks.tables import Columns, class_texts, read_rows
from albert_tf.tasks.task import read_splits, with_settings
from albert_tf.tasks.task_config import DataConfig

TEXTS = ("a", "b", "c", "d")


def own(task, **data):
    return find(task).updated(**data)


def read(tmp_path, task, *rows, part="train"):
    path = tiny_tasks.write_tsv(tmp_path / "t.tsv", ("text", "label"), *rows)
    return task.read(part, path)


def trained(tmp_path, name, *labels, **data):
    """Return a task that is fitted to labels, and the task's examples."""
    task = own(name, **data)
    rows = zip(TEXTS, labels, strict=False)
    examples = read(tmp_path, task, *rows)
    return task.fitted(examples), examples


def test_classes_are_discovered_sorted(tmp_path):
    """The sorted labels of the training examples become the classes."""
    task, examples = trained(tmp_path, "classification", "y", "x", "y", "w")
    assert task.labels == ("w", "x", "y")
    assert task.targets([e.label for e in examples]).tolist() == [2, 1, 2, 0]


def test_an_unknown_class_names_file_and_line(tmp_path):
    """The error for a label that was not in training states the line."""
    task, _ = trained(tmp_path, "classification", "x", "y")
    with pytest.raises(InputError) as error:
        read(tmp_path, task, ("a", "x"), ("b", "z"), part="eval")
    assert "t.tsv:3" in str(error.value)
    assert "x, y" in str(error.value) and "'z'" in str(error.value)


def test_one_class_is_not_enough(tmp_path):
    """Training examples that share a single label raise an error."""
    with pytest.raises(InputError, match="two labels. Received: labels=x"):
        trained(tmp_path, "classification", "x", "x")


def test_cross_entropy_and_probabilities(tmp_path):
    """A softmax of the logits determines the loss and the probabilities."""
    task, examples = trained(tmp_path, "classification", "x", "y", "z")
    logits = np.array([[1, 2, 0], [0, 3, 1], [2, 0, -1]], np.float32)
    batch = {"labels": task.targets([e.label for e in examples])}
    expected = softmax(logits, -1)
    losses = task.objective.example_losses({"logits": logits}, batch)
    np.testing.assert_allclose(
        losses, -np.log(expected[range(3), range(3)]), rtol=1e-5
    )
    hits = task.objective.example_metrics({"logits": logits}, batch)["accuracy"]
    assert hits.numpy().tolist() == [0.0, 1.0, 0.0]
    predictions = task.predictions(examples, {"logits": logits}, None)
    assert [p.label for p in predictions] == ["y", "y", "x"]
    found = np.stack([p.probabilities for p in predictions])
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert task.score(examples, predictions)["accuracy"] == pytest.approx(1 / 3)


def test_squared_error(tmp_path):
    """Regression uses a squared-error loss and predicts a number."""
    task, examples = trained(tmp_path, "regression", 1.5, -2, 0)
    logits = np.array([[1.25], [0.5], [2.75]], np.float32)
    batch = {"labels": task.targets([e.label for e in examples])}
    losses = task.objective.example_losses({"logits": logits}, batch)
    assert losses.numpy().tolist() == [0.0625, 6.25, 7.5625]
    predictions = task.predictions(examples, {"logits": logits}, None)
    assert [p.label for p in predictions] == [1.25, 0.5, 2.75]
    assert not any(p.probabilities.size for p in predictions)
    score = task.score(examples, predictions)
    assert score["negative_mse"] == pytest.approx(-13.875 / 3)
    base = str(tmp_path / "eval_predictions")
    (written,) = task.write_predictions(base, examples, predictions)
    rows = [r.values for r in read_rows(written, Columns())]
    assert [r["prediction"] for r in rows] == ["1.25", "0.5", "2.75"]
    assert [r["label"] for r in rows] == ["1.5", "-2", "0"]


@pytest.mark.parametrize("names", [("joy", "fear"), ("fear", "joy")])
def test_several_numbers_stand_in_columns_or_lists(tmp_path, names):
    """A label of several numbers is read from columns or from a list.

    The columns may be in any order; the list must be in the task's order.
    """
    rows = [("text", "joy", "fear"), ("a", 1, 2.5), ("b", -3, 0)]
    path = tiny_tasks.write_tsv(tmp_path / "t.tsv", *rows)
    task = own("regression", label_column=names)
    assert task.labels == names
    values = [
        dict(zip(names, e.label, strict=True)) for e in task.read("train", path)
    ]
    assert values == [{"joy": 1, "fear": 2.5}, {"joy": -3, "fear": 0}]
    table = InMemoryTable({"text": ["a"], "label": [[1, 2.5]]}, "x")
    task = dataclasses.replace(find("regression"), labels=("joy", "fear"))
    assert task.read("train", table)[0].label == (1, 2.5)
    for wrong in ([1], [1, 2, 3], ["x", 1], 1):
        table = InMemoryTable({"text": ["a"], "label": [wrong]}, "x")
        with pytest.raises(InputError, match="row 0: the label must be"):
            task.read("train", table)
    alone = dataclasses.replace(find("regression"), labels=("joy",))
    table = InMemoryTable({"text": ["a"], "label": [[1, 2]]}, "x")
    with pytest.raises(InputError, match="the label must be a number, joy"):
        alone.read("train", table)


def test_scores_of_several_numbers_are_means(tmp_path):
    """If a label has several numbers, a score is the mean over the numbers.

    In files, commas separate the numbers of a label or a prediction.
    """
    task = dataclasses.replace(find("regression"), labels=("joy", "fear"))
    truth = np.random.default_rng(0).normal(size=(9, 2))
    found = truth + np.random.default_rng(1).normal(size=(9, 2))
    examples = [Example("", "", "", tuple(row)) for row in truth]
    predictions = task.predictions(examples, {"logits": found}, None)
    each = [np.corrcoef(truth[:, i], found[:, i])[0, 1] for i in (0, 1)]
    wanted = pytest.approx(np.mean(each))
    assert task.score(examples, predictions)["pearson"] == wanted
    assert task.label_text((0.5, 2)) == "0.5,2"
    path = str(tmp_path / "eval_predictions")
    (written,) = task.write_predictions(path, examples, predictions)
    rows = [x.split("\t") for x in Path(written).read_text().splitlines()]
    assert rows[0] == ["id", "prediction", "label"]
    for column, values in ((1, found), (2, truth)):
        cells = [row[column].split(",") for row in rows[1:]]
        np.testing.assert_allclose(np.array(cells, float), values, rtol=1e-5)


def test_sets_of_many_classes_need_the_memory_of_their_array():
    """Label sets are converted to 0/1 arrays without larger intermediates."""
    names = tuple(map(str, range(2000)))
    task = dataclasses.replace(find("multilabel"), labels=names)
    tracemalloc.start()
    sets = task.targets([(), *([name, "7"] for name in names[:499])])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    rows, columns = np.nonzero(sets)
    assert {*columns[rows == 9].tolist()} == {7, 8} and not sets[0].any()
    assert peak < 1.5 * sets.nbytes


def test_sets_of_classes(tmp_path):
    """Labels are separated by commas; each class is decided independently."""
    task, examples = trained(tmp_path, "multilabel", "x,y", "", "z, x")
    assert task.labels == ("x", "y", "z")
    targets = task.targets([e.label for e in examples])
    assert targets.tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 1]]
    logits = np.array([[1, -1, 0.1], [-1, -2, -3], [4, -1, 2]], np.float32)
    batch = {"labels": targets}
    p = 1 / (1 + np.exp(-logits))
    expected = -np.log(np.where(targets > 0, p, 1 - p)).mean(-1)
    losses = task.objective.example_losses({"logits": logits}, batch)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    hits = task.objective.example_metrics({"logits": logits}, batch)["accuracy"]
    assert hits.numpy().tolist() == [0.0, 1.0, 1.0]
    predictions = task.predictions(examples, {"logits": logits}, None)
    assert [p.label for p in predictions] == [("x", "z"), (), ("x", "z")]
    even = task.predictions([], {"logits": np.zeros([1, 3], np.float32)}, None)
    assert even[0].label == ()  # a class must be more likely than not
    assert task.cells_and_shares([[0.5, 0.75, 0.25]])[0] == [[0, 1, 0]]


def test_sets_in_columns_of_0_and_1(tmp_path):
    """Each of several label columns represents a class.

    The error for an invalid cell states the file and the line.
    """
    path = tiny_tasks.write_tsv(
        tmp_path / "t.tsv",
        ("text", "rude", "loud"),
        *(("a", 1, 0), ("b", "True", "1.0"), ("c", "0.0", "FALSE")),
    )
    task = own("multilabel", label_column=("rude", "loud"))
    examples = task.read("train", path)
    task = task.fitted(examples)
    assert task.labels == ("rude", "loud")
    assert [e.label for e in examples] == [("rude",), ("rude", "loud"), ()]
    tiny_tasks.write_tsv(
        tmp_path / "t.tsv", ("text", "rude", "loud"), ("a", 1, 2)
    )
    with pytest.raises(InputError, match=r"t\.tsv:2.*loud must be 0 or 1"):
        task.read("train", path)


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_columns_do_not_rename_the_labels_of_a_model(kind):
    """A model keeps its labels, whatever the order of label columns.

    Each label needs a column.
    """
    model = dataclasses.replace(find(kind), labels=("x", "y", "z"))
    task = model.updated(label_column=("z", "x", "y"))
    assert task.labels == ("x", "y", "z")
    assert task.columns.label == ("z", "x", "y")
    for names in (("x", "y"), ("x", "y", "a"), ("x", "y", "z", "a")):
        rule = f"x, y, z. Received: label_column={','.join(names)}$"
        with pytest.raises(InputError, match=rule):
            model.updated(label_column=names)


def test_columns_by_flags(tmp_path):
    """Flags name the columns of texts, pairs, labels and ids."""
    path = tmp_path / "t.csv"
    path.write_text("n,one,two,y\n7,a b,c,x\n8,d,e,y\n")
    task = own(
        "classification",
        text_column="one",
        text_pair_column="two",
        label_column=("y",),
        id_column="n",
    )
    examples = task.read("train", str(path))
    assert [dataclasses.astuple(e)[:4] for e in examples] == [
        ("7", "a b", "c", "x"),
        ("8", "d", "e", "y"),
    ]
    assert task.is_pair


def test_files_without_a_header(tmp_path):
    """In a file without a header, columns are numbered from 1."""
    path = tiny_tasks.write_tsv(tmp_path / "t.tsv", ("x", "a"), ("y", "b"))
    task = own(
        "classification", header=False, text_column="2", label_column=("1",)
    )
    assert [e.label for e in task.read("train", path)] == ["x", "y"]


def test_a_missing_text_column(tmp_path):
    """The error for a missing column lists the columns of the file."""
    with pytest.raises(InputError, match="columns text, label.*sentence"):
        read(tmp_path, own("regression", text_column="sentence"), ("a", 1))
    with pytest.raises(InputError, match="columns text, label.*_column=y"):
        read(tmp_path, own("regression", label_column=("y",)), ("a", 1))


def test_an_empty_split(tmp_path):
    """A file that has only a header raises an error."""
    path = tiny_tasks.write_tsv(tmp_path / "t.tsv", ("text", "label"))
    data = DataConfig(task="classification", eval_file=path)
    with pytest.raises(InputError, match="eval split must have.*t.tsv"):
        read_splits(own("classification"), data, "eval")


def test_files_that_nobody_named():
    """If no data file is given, the error names the missing flag."""
    with pytest.raises(InputError, match="train_file"):
        read_splits(own("classification"), DataConfig(), "train")
    with pytest.raises(InputError, match="data_dir"):
        read_splits(find("rte"), DataConfig(), "train")


def test_own_files_and_columns_go_before_official_ones(tmp_path):
    """A user's files and columns take precedence over official ones."""
    rows = ("said", "truth"), ("a good film", 1)
    path = tiny_tasks.write_tsv(tmp_path / "own.tsv", *rows)
    folder = str(tmp_path)
    data = DataConfig(
        data_dir=folder,
        train_file=path,
        predict_file=path,
        text_column="said",
        label_column=("truth",),
    )
    task = with_settings(find("sst-2"), data)
    for part in ("train", "predict"):
        ((example,),) = read_splits(task, data, part).values()
        assert (example.text, example.label) == ("a good film", "1")


def test_the_file_of_predictions(tmp_path):
    """A prediction file has one line per example, with all probabilities.

    The file has labels only if all labels are known.
    """
    task, examples = trained(tmp_path, "classification", 'x"y', "z", "z")
    logits = np.array([[0, 1], [2, 0], [0, 3]], np.float32)
    predictions = task.predictions(examples, {"logits": logits}, None)
    base = str(tmp_path / "predictions")
    written = task.write_predictions(base, examples, predictions)
    rows = [r.values for r in read_rows(written[0], Columns())]
    names = ["id", "prediction", "label", 'p(x"y)', "p(z)"]
    assert list(rows[0]) == names
    assert [[r[name] for name in names[:3]] for r in rows] == [
        ["0", "z", 'x"y'],
        ["1", 'x"y', "z"],
        ["2", "z", "z"],
    ]
    found = np.array([[r[name] for name in names[3:]] for r in rows], float)
    np.testing.assert_allclose(found, softmax(logits, -1), atol=1e-6)
    examples[2] = dataclasses.replace(examples[2], label=None)
    (path,) = task.write_predictions(base, examples, predictions)
    first, *_ = read_rows(path, Columns())
    assert list(first.values) == names[:2] + names[3:]


@pytest.mark.parametrize(
    ("names", "written"),
    [
        (["b", "é d"], ["", "b", "b,é d"]),
        (["b, c", "é d"], ["[]", '["b, c"]', '["b, c", "é d"]']),
        (["[x]", '"y"'], ["[]", '["[x]"]', '["[x]", "\\"y\\""]']),
    ],
)
def test_sets_of_classes_are_read_as_they_are_written(names, written):
    """Prediction files list classes in a form in which labels are read.

    The form is a JSON list only if commas or brackets in names need it.
    """
    task = dataclasses.replace(find("multilabel"), labels=tuple(names))
    for size, text in enumerate(written):
        assert task.label_text(tuple(names[:size])) == text
        assert class_texts(text, "") == names[:size]


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_file_has_exactly_the_numbers_that_are_scored(tmp_path, kind):
    """Metrics can be recomputed from a file of predictions.

    The float32 numbers in the file equal the model's numbers and the labels,
    even if they differ little or have many digits.
    """
    labels = (0, 2, 1) if kind == "classification" else (1234567, 0.25, -3e-7)
    task, examples = trained(tmp_path, kind, *labels)
    logits = np.float32([[2.16, 20, -9], [2.1600003, 0, 0], [2.1600006, 1, 1]])
    outputs = {"logits": logits if task.has_classes else logits[:, :1]}
    predictions = task.predictions(examples, outputs, None)
    base = str(tmp_path / "predictions")
    written = task.write_predictions(base, examples, predictions)
    rows = [[*r.values.values()] for r in read_rows(written[0], Columns())]
    expected = [
        (i, p.label, label, *p.probabilities)
        for i, (label, p) in enumerate(zip(labels, predictions, strict=True))
    ]
    found, expected = (np.array(x).astype("f4") for x in (rows, expected))
    np.testing.assert_array_equal(found, expected)


def test_every_kind_of_sentence_task_builds_its_model(tmp_path):
    """A model has one output per class, or a single output for regression."""
    labels = {"classification": "xyz", "multilabel": "xyz", "regression": "123"}
    for name in labels:
        task, _ = trained(tmp_path, name, *labels[name])
        outputs = 1 if name == "regression" else 3
        model = task.build_model(tiny.SHALLOW, "float32")
        assert model.classifier.kernel.shape == (16, outputs)


@pytest.mark.parametrize("classes", [(), ("a",), ("a", "b", "c")])
def test_no_column_of_probabilities_is_lost(tmp_path, classes):
    """Each probability must have a class, and each class a probability."""
    examples = [Example("0", "x", "", None)]
    found = [Prediction("a", np.array([0.25, 0.75]))]
    with pytest.raises(ValueError, match="argument 2 is"):
        write_labels(str(tmp_path / "p"), examples, found, str, classes)
    assert not list(tmp_path.iterdir())
