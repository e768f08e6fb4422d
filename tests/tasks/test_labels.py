"""Labels that are missing, of unusual types or surrounded by spaces."""

import dataclasses
import json
from decimal import Decimal

import numpy as np
import pytest

from albert_tf.base.errors import InputError
from albert_tf.tasks.classification import Example
from albert_tf.tasks.registry import find, load_task
from albert_tf.tasks.tables import (
    LARGEST,
    ClassSet,
    class_named,
    format_labels,
    label_text,
    named_sets,
    shares_in,
)
from albert_tf.tasks.task import with_settings
from albert_tf.tasks.task_config import DataConfig

CHOICES = {"context": "c", "question": "q", "choices": ["x", "y"]}
NAMES = ("classification", "regression", "multiple_choice")


def read(tmp_path, name, labels, part="train", ending=".jsonl", **data):
    """Write labels to a file; return the labels that the task reads."""
    path = tmp_path / f"t{ending}"
    if ending == ".jsonl":
        text = CHOICES | {"text": "a"}
        rows = [json.dumps(text | {"label": x}) for x in labels]
    else:
        mark = {".tsv": "\t", ".csv": ","}[ending]
        rows = [f"text{mark}label", *(f"a{mark}{x}" for x in labels)]
    path.write_text("".join(f"{row}\n" for row in rows))
    task = find(name).updated(**data)
    return [example.label for example in task.read(part, str(path))]


@pytest.mark.parametrize("part", ["train", "eval"])
@pytest.mark.parametrize("name", NAMES)
def test_a_missing_label_is_no_class(tmp_path, name, part):
    """Null, NaN and empty labels raise errors that name the file and line."""
    for missing in (None, float("nan"), "", " \t", "nan", "NaN"):
        with pytest.raises(
            InputError,
            match=r"t\.jsonl:2: .* must have a label.*=(None|nan|'.*')$",
        ):
            read(tmp_path, name, [1, missing, 0], part)
    if name == "multiple_choice":
        return
    for ending in (".tsv", ".csv"):
        for missing in ("", "  ", "nan"):
            with pytest.raises(
                InputError, match=rf"t\{ending}:3: .* must have a label"
            ):
                read(tmp_path, name, ["1", missing, "0"], part, ending)


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("classification", ["x", None], ["x", None]),
        ("classification", ["", " "], [None, None]),
        ("regression", [float("nan"), 1.5], [None, 1.5]),
        ("regression", ["", ""], [None, None]),
        ("multiple_choice", [None, "B"], [None, 1]),
        ("multiple_choice", [None, ""], [None, None]),
        ("multilabel", [None, ["x"], []], [None, ("x",), ()]),
        ("multilabel", ["", ""], [None, None]),
        ("ocnli", ["neutral", "-", ""], ["neutral", None, None]),
    ],
)
def test_a_file_to_predict_may_lack_labels(tmp_path, name, labels, expected):
    """For prediction, some or all labels may be absent or empty."""
    columns = {"text_column": "text"} if name == "ocnli" else {}
    if name == "ocnli":
        columns["text_pair_column"] = "context"
    assert read(tmp_path, name, labels, "predict", **columns) == expected


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl"])
def test_white_space_around_a_label_is_none_of_it(tmp_path, ending):
    """In all formats, white space around labels is removed, even in sets."""
    texts = ["pos", " pos", "pos ", "very  neg"]
    expected = ["pos", "pos", "pos", "very  neg"]
    found = read(tmp_path, "classification", texts, ending=ending)
    assert found == expected
    sets = read(tmp_path, "multilabel", texts, ending=ending)
    assert sets == [(label,) for label in expected]
    texts = ["1", " 2.5 ", str(-LARGEST)]
    numbers = read(tmp_path, "regression", texts, ending=ending)
    assert numbers == [1.0, 2.5, -LARGEST]


@pytest.mark.parametrize("ending", [".jsonl", ".tsv"])
def test_decomposed_labels_are_composed(tmp_path, ending):
    """Composed and decomposed labels are one class; the same holds for tags."""
    composed, decomposed = "B-\u00d6rt", "B-O\u0308rt"
    labels = [composed, decomposed]
    found = read(tmp_path, "classification", labels, ending=ending)
    assert found == [composed] * 2
    found = read(tmp_path, "multilabel", labels, ending=ending)
    assert found == [(composed,)] * 2
    assert class_named(decomposed, [composed], "x") == composed
    path = tmp_path / "t.conll"
    path.write_text(f"o\u0308 {composed}\no\u0308 {decomposed}\n")
    (sentence,) = find("token_classification").read("train", str(path))
    assert sentence.tags == (composed,) * 2
    assert sentence.words == ("o\u0308",) * 2


def test_half_a_character_of_a_label_is_replaced(tmp_path):
    """A label with a lone surrogate is stored in a model that can be loaded."""
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"text": "a", "label": "x\\ud83d"}\n{"text": "a", "label": "y"}'
    )
    task = find("classification")
    task = task.fitted(task.read("train", str(path)))
    assert task.labels == ("x\ufffd", "y")
    task.save(str(tmp_path))
    assert load_task(str(tmp_path)) == task


@pytest.mark.parametrize("name", ["multilabel", "regression"])
def test_decomposed_names_of_a_model_or_of_columns(tmp_path, name):
    """Labels and columns match if only the composition of letters differs."""
    names = ["\u00d6rt", "O\u0308rt"]
    (tmp_path / "t.tsv").write_text("text\tO\u0308rt\tb\nso\t1\t0\n")
    for label in names:
        assert class_named(names[0], [label, "bad"], "x") == label
        task = dataclasses.replace(find(name), labels=(label, "b"))
        columns = {"text_column": "text", "label_column": (names[1], "b")}
        task = task.with_columns(columns)
        (example,) = task.read("train", str(tmp_path / "t.tsv"))
        expected = (label,) if name == "multilabel" else (1.0, 0.0)
        assert example.label == expected


def test_json_values_are_the_texts_that_they_have_in_json(tmp_path):
    """1, 1.0 and "1" are one class; true and "true" are another class."""
    labels = [1, "1", 1.0, 0.5, True, "true", False, "None", "NA"]
    expected = ["1", "1", "1", "0.5", "true", "true", "false", "None", "NA"]
    assert read(tmp_path, "classification", labels) == expected
    assert read(tmp_path, "multilabel", [[1, True], 1.0]) == [
        ("1", "true"),
        ("1",),
    ]
    assert read(tmp_path, "multiple_choice", [1, 0.0, "1"]) == [1, 0, 1]


@pytest.mark.parametrize(
    ("name", "label", "message"),
    [
        ("classification", ["x"], "a string, a number or a boolean.*'x'"),
        ("classification", {"a": 1}, "a string, a number or a boolean"),
        ("classification", ["x" * 99], r"boolean.*label=\['x{58}$"),
        ("regression", True, "finite number. Received: label=True"),
        ("regression", [1.5], "a string, a number or a boolean"),
        ("regression", "x", "finite number. Received: label='x'"),
        ("regression", "NAN", "finite number. Received: label='NAN'"),
        ("regression", "-inf", "finite number. Received: label='-inf'"),
        ("regression", "1e39", "finite number. Received: label='1e39'"),
        ("regression", "1_000", "finite number. Received: label='1_000'"),
        ("multilabel", ["x", None], "contain an empty class.*None"),
        ("multilabel", ["x", ["y"]], "a string, a number or a boolean"),
        ("multilabel", "x,,y", "contain an empty class.*'x,,y'"),
        ("multilabel", "x,", "contain an empty class"),
        ("multilabel", "['x', 'y']", "JSON list.*'x', 'y'"),
        ("multilabel", '{"choices": ["x", "y"]}', "a string.*label={.choices"),
        ("multilabel", None, "must have a label"),
        ("multilabel", "nan", "must have a label"),
    ],
)
def test_labels_that_are_none(tmp_path, name, label, message):
    """The error for an invalid label states the file, line, rule and value."""
    with pytest.raises(InputError, match=rf"t\.jsonl:2: .*{message}"):
        read(tmp_path, name, ["1", label])


def test_no_class_applies_to_an_empty_cell(tmp_path):
    """An empty cell means no classes, but not all cells may be empty.

    A cell that contains only white space is empty.
    """
    for ending in (".tsv", ".jsonl"):
        cells = ["x,y", "", " "]
        found = read(tmp_path, "multilabel", cells, ending=ending)
        assert found == [("x", "y"), (), ()]
        for part in ("train", "eval"):
            with pytest.raises(InputError, match=rf"t\{ending}.*one row must"):
                read(tmp_path, "multilabel", ["", ""], part, ending=ending)
    found = read(tmp_path, "multilabel", ['["x", "y"]', "[]"], ending=".tsv")
    assert found == [("x", "y"), ()]


def test_columns_of_0_and_1_that_lack_some(tmp_path):
    """In columns of classes, booleans mean 0 and 1; null means no label."""
    path = tmp_path / "t.jsonl"
    rows = [{"rude": True, "loud": "0"}, {"rude": 1, "loud": None}]
    lines = [json.dumps(row | {"text": "a"}) + "\n" for row in rows]
    path.write_text("".join(lines))
    data = DataConfig(label_column=("rude", "loud"))
    task = with_settings(find("multilabel"), data)
    assert [e.label for e in task.read("predict", str(path))] == [
        ("rude",),
        None,
    ]
    with pytest.raises(InputError, match=r"t\.jsonl:2: .* must have a label"):
        task.read("train", str(path))


def test_race_without_answers(tmp_path):
    """Questions need answers for training, but not for prediction."""
    path = tmp_path / "1.txt"
    article = {"article": "a", "questions": ["q"], "options": [["x", "y"]]}
    path.write_text(json.dumps(article) + "\n")
    race = find("race")
    assert [e.label for e in race.read("predict", str(path))] == [None]
    with pytest.raises(
        InputError, match=r"1\.txt:1, question 1: .* must have a label"
    ):
        race.read("train", str(path))


def words(tmp_path, text, part, **data):
    path = tmp_path / "t.conll"
    path.write_text(text)
    task = find("token_classification").updated(**data)
    return [sentence.tags for sentence in task.read(part, str(path))]


def test_words_that_lack_a_tag(tmp_path):
    """Tags are stripped; for prediction, some or all may be missing."""
    text = "EU\tB-ORG \nand\t O\n"
    assert words(tmp_path, text, "train") == [("B-ORG", "O")]
    partly = "EU\tB-ORG\nand\t\n\nso\tO\n"
    assert words(tmp_path, partly, "predict") == [None, ("O",)]
    for missing in (partly, "EU\tB-ORG\nand\t \n"):
        with pytest.raises(InputError, match=r"t\.conll:2: .*a word and a tag"):
            words(tmp_path, missing, "train")
    # The file for prediction lacks the tag column.
    columns = {"label_column": ("4",)}
    assert words(tmp_path, "a DT B\n", "predict", **columns) == [None]
    with pytest.raises(InputError, match=r"t\.conll:1: `label_column`"):
        words(tmp_path, "a DT B\n", "train", **columns)


@pytest.mark.parametrize(
    ("labels", "label", "wanted"),
    [
        (("bad", "good"), 1, "good"),
        (("bad", "good"), 1.0, "good"),
        (("bad", "good"), True, "good"),
        (("bad", "good"), Decimal("1.0"), "good"),
        (("0.5", "1.5"), Decimal("1.50"), "1.5"),
        ((f"{2**70}", f"{2**70 + 1}"), Decimal(2**70 + 1), f"{2**70 + 1}"),
        (("bad", "good"), "good", "good"),
        (("true", "false"), True, "true"),
        (("0", "1"), True, "1"),
        (("2", "1"), 1, "1"),
        (("bad", "good"), "1", "good"),
        (("bad", "good"), "1.0", "good"),
        (("0", "1"), "1.0", "1"),
        (("-1", "0", "1"), -1, "-1"),
        (("a", "b"), 2, "one of a, b, or a number below 2. .*label='2'"),
        (("a", "b"), -1, "or a number below 2"),
        (("a", "b"), 0.5, "or a number below 2"),
        (("a", "b"), "c", "or a number below 2"),
        (("1", "2"), 0, "every number is a name. .*label='0'"),
        (("0.5", "1.5"), 1, "begin with numbers"),
        (("1 star", "2 stars"), 1, "begin with numbers"),
        (("1,0", "2,0"), "1", "begin with numbers"),
        (("1*", "2*"), 1.0, "begin with numbers"),
        (("2d", "3d"), 1, "3d"),
        (("True", "False"), True, "True"),
        (("FALSE", "MAYBE", "TRUE"), True, "TRUE"),
        (("false", "true"), "FALSE", "false"),
        (("bad", "good"), "TRUE", "good"),
        (("0", "1"), "TRUE", "1"),
        (("TRUE", "true"), "True", "TRUE, true, in this spelling"),
        (("0.0", "1.0"), 1, "1.0"),
        (("01", "02"), 2, "02"),
        (("1.0", "01"), 1, "1.0, 01, in this spelling"),
        (("1", "TRUE", "true"), "True", "1, TRUE, true, in this spelling"),
    ],
)
def test_a_number_is_a_class_unless_classes_are_numbers(labels, label, wanted):
    """A number is an index unless a class name is or begins with a number.

    If all class names are whole numbers, a number must be one of them. If a
    name only begins with a number, as `1 star` does, but not `2d`, any number
    that is not a name is an error. Numbers of the same value are the same name,
    and the case of booleans is ignored, unless this fits several classes.
    """
    text = label_text(label, "")
    if wanted in labels:
        assert class_named(text, labels, "f:1") == wanted
    else:
        with pytest.raises(InputError, match=f"f:1: the label.*{wanted}"):
            class_named(text, labels, "f:1")


def test_a_very_long_number_is_only_a_name():
    """Numbers that Python would not convert to text are compared as texts."""
    name = "9" * 5000
    assert class_named(name, ("bad", name), "f:1") == name
    with pytest.raises(InputError, match="f:1: the label must be one of bad"):
        class_named(name, ("bad", "1"), "f:1")


def named(name, labels=("bad", "good", "ugly")):
    return dataclasses.replace(find(name), labels=labels)


@pytest.mark.parametrize("ending", [".jsonl", ".tsv", ".csv"])
def test_files_have_names_or_numbers_of_classes(tmp_path, ending):
    """If classes are known, a file may contain their names or indices."""
    path = tmp_path / f"t{ending}"
    mark = "," if ending == ".csv" else "\t"

    def labels(name, *values):
        rows = [f"text{mark}label", *(f"a{mark}{x}" for x in values)]
        if ending == ".jsonl":
            rows = [json.dumps({"text": "a", "label": x}) for x in values]
        path.write_text("\n".join(rows))
        return [e.label for e in named(name).read("eval", str(path))]

    assert labels("classification", "ugly", 0, 2) == ["ugly", "bad", "ugly"]
    with pytest.raises(InputError, match="a number below 3. .*label='3'"):
        labels("classification", 3)
    sets = [("bad", "ugly"), ("ugly",), ()]
    if ending == ".jsonl":
        flags = [1, 0, 1], [0, 0, 1], []
        numbers = [0, 2], [2], []
        assert labels("multilabel", *flags) == sets
        assert labels("multilabel", [True, False, True]) == sets[:1]
    else:
        numbers = ('"[0, 2]"' if mark == "," else "0,2", "2", "")
    assert labels("multilabel", *numbers) == sets


@pytest.mark.parametrize(
    ("names", "rows", "wanted"),
    [
        ("abc", [["0", "1", "1"], ["1", "0", "0"]], ["bc", "a"]),
        ("abc", [["0", "2"], ["0", "1"], ["1"], []], ["ac", "ab", "b", ""]),
        ("abc", [["0"], ["1"]], ["a", "b"]),
        ("abc", [["a", "2"], ["0", "1"]], ["ac", "ab"]),
        ("ab", [["0", "1"], ["1", "0"]], ["b", "a"]),
        ("ab", [["1", "0"], [], ["0", "1"]], ["a", "", "b"]),
        ("ab", [["0", "1"], ["1"]], ["ab", "b"]),
        ("ab", [["1", "1"], ["0", "0"]], ["ab", ""]),
        ("abc", [["1.0", "0.0", "1.0"], ["0.0"] * 3], ["ac", ""]),
        ("abc", [["TRUE", "FALSE", "TRUE"], ["True"] * 3], ["ac", "abc"]),
        ("123", [["1", "3"], ["2"]], ["13", "2"]),
        ("", [["1", "0"], ["0"]], ["10", "0"]),
        ("abc", [["0", "1"], ["1", "0"]], None),
        ("abc", [["0", "1", "1", "0"]], None),
        ("abc", [["1", "1"], ["2"]], None),
        ("", [["1", "0", "1"]], None),
        ("123", [["0"]], None),
        ("abc", [["3"]], None),
    ],
)
def test_numbers_of_a_set_of_classes(names, rows, wanted):
    """All rows together determine whether numbers are flags, indices or names.

    Flags may be written as pandas and spreadsheets write them. An ambiguity
    raises an error.
    """
    sets = [ClassSet(row, f"f:{i}") for i, row in enumerate(rows)]
    if wanted is not None:
        found = named_sets(sets, tuple(names))
        assert ["".join(row) for row in found] == wanted
        return
    with pytest.raises(InputError, match=r"^f:0: .*Received: label="):
        named_sets(sets, tuple(names))


@pytest.mark.parametrize(
    ("labels", "are_sets", "legal"),
    [
        ([[0.5, 0.5], [1, 0]], False, True),
        ([[0, 1], [1.0, 0.0]], False, True),
        ([[0.5, 0.5005]], False, True),
        ([[0.5, 0.502]], False, False),
        ([[0.498, 0.5]], False, False),
        ([[1.5, -0.5]], False, False),
        ([[0.5, 0.25, 0.25]], False, False),
        ([[0.5, 0.5], "a"], False, False),
        ([[0.5, 0.5], [1.0]], False, False),
        ([["a", "b"]], False, None),
        ([["a", 0.5]], False, None),
        ([["a"], [0.5]], False, None),
        ([["a", "b"]], True, None),
        ([[0, 1], [1, 1.0]], True, None),
        ([[2, 3]], True, None),
        ([[0.5, 0.9], [0, 0]], True, True),
        ([[0.5, 1.5]], True, False),
        ([[0.5, -0.5]], True, False),
    ],
)
def test_lists_of_numbers_are_shares(labels, are_sets, legal):
    """Shares of classes are from 0 to 1, and add up to 1 except for sets."""
    if legal is False:
        rule = "of a, b. R" if are_sets else "of a, b, and add up to 1. R"
        with pytest.raises(InputError, match=f"shar.* {rule}.*: y=.*5"):
            shares_in(labels, ("a", "b"), are_sets)
        return
    found = shares_in(labels, ("a", "b"), are_sets)
    assert (found is None) == (legal is None)
    if legal:
        np.testing.assert_array_equal(found, labels)


def test_shares_replace_labels(words):
    """Features contain the shares; a table contains the likely classes."""
    rows = [[0.2, 0.5, 0.3], [0.7, 0.1, 0.2]]
    cells, shares = named("multilabel").cells_and_shares(rows)
    assert cells == [[0, 0, 0], [1, 0, 0]]
    np.testing.assert_array_equal(shares, rows)
    task = named("classification")
    cells, shares = task.cells_and_shares(rows)
    assert cells == ["good", "bad"]
    examples = [Example("", "a", "", "ugly", row) for row in shares]
    found = task.features(examples, words).arrays["labels"]
    np.testing.assert_array_equal(found, np.float32(rows))


def test_features_of_which_some_have_labels(words):
    """If any label is missing, the features have no labels."""
    examples = [Example("", "a", "", "bad"), Example("", "b", "", None)]
    for rows in (examples, examples[::-1]):
        assert not named("classification").features(rows, words).arrays


def test_some_of_several_columns_of_labels(tmp_path):
    """To predict, a file may lack some columns of labels, or some cells."""
    for name, cells in (("multilabel", "01"), ("regression", ("1", ""))):
        task = find(name).updated(label_column=("x", "y"))
        path = tmp_path / "t.tsv"
        path.write_text("text\tx\na\t1\n")
        assert task.read("predict", str(path))[0].label is None
        path.write_text("text\tx\ty\na\t{}\t{}\n".format(*cells))
        (found,) = task.read("predict", str(path))
        assert found.label == (("y",) if name == "multilabel" else None)


def test_columns_of_numbers_in_another_order(tmp_path):
    """Columns are matched to a model's numbers by their names."""
    task = named("regression", ("x", "y"))
    task = task.updated(label_column=("y", "x"))
    path = tmp_path / "t.tsv"
    path.write_text("text\tx\ty\na\t1\t2\n")
    assert task.read("train", str(path))[0].label == (1.0, 2.0)


def test_the_model_of_a_single_named_number():
    """A named number keeps its axis; an unnamed number has no axis."""
    logits = np.zeros([3, 1])
    for labels, shape in (((), (3,)), (("x",), (3, 1))):
        task = named("regression", labels)
        assert task.numbers(logits).shape == shape
        assert task.head_arguments == (1,)


def test_a_message_lists_at_most_twenty_labels():
    """A message lists at most 20 labels, and states how many are omitted."""
    labels = [str(i) for i in range(22)]
    twenty = ", ".join(labels[:20])
    assert format_labels(labels[:20]) == twenty
    assert format_labels(labels[:21]) == f"{twenty} and 1 more"
    assert format_labels(labels) == f"{twenty} and 2 more"
