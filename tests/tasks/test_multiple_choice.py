"""Multiple choice: rows, RACE folders, tables and predictions."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import tiny

from albert_tf.base.errors import InputError
from albert_tf.data.table_sources import as_source
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.multiple_choice import (
    LETTERS,
    Choices,
    check_choices,
    parse_choice,
    with_choice,
)
from albert_tf.tasks.registry import find
from albert_tf.tasks.task import read_splits, with_settings
from albert_tf.tasks.task_config import DataConfig

EXAMPLES = [
    Choices("a", "the film was good", "it is _ .", ("good", "bad"), 0, "x"),
    Choices("b", "so very poor", "is it", ("fine", "bad", "so so"), 1, "y"),
]


def make_task(**config):
    values = {"max_seq_length": 16, "max_qa_length": 5}
    task = find("multiple_choice")
    return task.updated(**values | config).fitted(EXAMPLES)


def test_where_a_choice_belongs():
    """A choice fills each blank, or follows a question without blanks.

    Several underscores in a row are one blank.
    """
    assert with_choice("a _ b _?", "X") == "a X b X?"
    assert with_choice("a ____ b __?", r"\1") == r"a \1 b \1?"
    assert with_choice("why?", "X") == "why? X"
    assert with_choice("", "X") == "X"


def test_the_number_of_choices():
    """An example has 2 to 26 choices; a model supports at most 1000."""
    for number in (2, 26):
        assert len(check_choices([1] * number, "")) == number
    for number in (1, 27):
        with pytest.raises(InputError, match="f:1: .* list of 2 to 26 choices"):
            check_choices([1] * number, "f:1")
    with pytest.raises(InputError, match="choices .in a text, as JSON.*'a'"):
        check_choices("['a', 'b']", "f:1")
    task = find("multiple_choice")
    assert dataclasses.replace(task, number=1000).number == 1000
    for number in (-1, 1001):
        with pytest.raises(InputError, match=f"from 0 to 1000.*={number}"):
            dataclasses.replace(task, number=number)


def test_the_label_of_a_choice():
    """A letter, or a number counted from 0, names one of the choices.

    The number may have zeros before it, and digits of any script.
    """
    labels = "A", "C", 0, "2", "01", "\u06f2"
    found = [parse_choice(x, 3, "train", "") for x in labels]
    assert found == [0, 2, 0, 2, 1, 2]
    for label in ("D", "AB", 3, -1, "1" * 5000):
        with pytest.raises(InputError, match="A, B, C, or .* 0 to 2. Rec"):
            parse_choice(label, 3, "train", "f:1")


def test_scores_of_groups():
    """Each group has an accuracy if there are several groups."""
    task, found = scored([2.0, 1.0, -1e4], [5.0, 1.0, 2.0])
    assert task.score(EXAMPLES, found) == {
        "accuracy": 0.5,
        "x_accuracy": 1.0,
        "y_accuracy": 0.0,
    }
    assert task.score(EXAMPLES[:1], found[:1]) == {"accuracy": 1.0}


def test_rows_are_the_released_ones(words):
    """Contexts are cut at the end; questions and choices, at the start.

    A context has the room that its question and choice leave.
    """
    context = "the film was very good and so it is"
    questions = "is this the plot of the film", "is it"
    choices = "good", "not so bad"
    examples = [Choices("a", context, q, choices, 0) for q in questions]
    task = dataclasses.replace(make_task(max_seq_length=12), number=2)
    features = task.features(examples, words)
    cls, sep = words.cls_id, words.sep_id
    rows = iter(np.split(features.tokens, features.row_splits[1:-1]))
    for question, choice in itertools.product(questions, choices):
        qa = words.encode(f"{question} {choice}")[-5:]
        ids = words.encode(context)[: 12 - 3 - len(qa)]
        assert next(rows).tolist() == [cls, *ids, sep, *qa, sep]
    assert features.second_starts.tolist() == [6, 6, 8, 6]


def test_a_batch_has_an_axis_of_choices(words):
    """Batches have an axis of choices, and absent choices are masked."""
    task = make_task()
    assert task.number == 3
    features = task.features(EXAMPLES, words)
    assert len(features) == 2
    batch = next(iter(evaluation_batches(features, 4)))
    assert batch["input_ids"].shape == (4, 3, 16)
    assert batch["choice_mask"].numpy()[:2].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].numpy()[:2].tolist() == [0, 1]
    assert batch["example_weights"].numpy().tolist() == [1, 1, 0, 0]
    model = task.build_model(tiny.SHALLOW, "float32")
    logits = task.objective.measured_outputs(model, batch)
    assert logits["task_loss"].shape == (4,)
    (first, second), _ = np.split(logits["logits"].numpy(), 2)
    assert first[2] < -9000 and second.min() > -10
    # A model has the same number of choices for all its examples.
    assert len(task.features(EXAMPLES[:1], words).lengths) == 3
    assert dataclasses.replace(task, number=4).fitted(EXAMPLES).number == 4


def scored(*rows):
    task = make_task()
    outputs = {"logits": np.array(rows, np.float32)}
    return task, task.predictions(EXAMPLES, outputs, None)


def test_files(tmp_path):
    """Predictions have letters and probabilities; error files have texts."""
    task, found = scored([2.0, 1.0, -1e4], [5.0, 1.0, 2.0])
    task.write_predictions(str(tmp_path / "eval_predictions"), EXAMPLES, found)
    lines = (tmp_path / "eval_predictions.tsv").read_text().splitlines()
    assert lines[0] == "id\tprediction\tlabel\tp(A)\tp(B)\tp(C)"
    assert lines[1].split("\t")[:3] == ["a", "A", "A"]
    found = [float(cell) for cell in lines[1].split("\t")[3:]]
    assert found == pytest.approx([0.731059, 0.268941, 0.0], abs=1e-6)
    errors = (tmp_path / "eval_errors.tsv").read_text().splitlines()
    assert errors[1:] == ["b\tis it\tfine\tbad"]


def test_only_choices_with_letters_have_columns(tmp_path):
    """A model for more choices than letters has a column for each letter."""
    rows = np.zeros([2, 30])
    task, found = scored(*rows)
    task.write_predictions(str(tmp_path / "predictions"), EXAMPLES, found)
    lines = (tmp_path / "predictions.tsv").read_text().splitlines()
    names = lines[0].split("\t")[3:]
    assert names == [f"p({letter})" for letter in LETTERS]
    assert {line.count("\t") for line in lines} == {28}


def test_an_empty_choice_has_probability_0():
    """An empty choice has probability 0, whatever its logit.

    If all choices are empty, they are equally likely.
    """
    empty = [("", "bad"), ("fine", "", "so so"), ("", "")]
    examples = [Choices("", "c", "q", choices, None) for choices in empty]
    logits = np.array([[9, 1, 1], [1, 9, 2], [9, 1, 1]], np.float32)
    found = make_task().predictions(examples, {"logits": logits}, None)
    assert found[0].probabilities.tolist() == [0, 1, 0]
    assert found[1].probabilities[1] == 0 and found[1].label == 2
    assert found[2].probabilities.tolist() == [0.5, 0.5, 0]
    assert found[2].label == 0


ARTICLE = {
    "id": "high1.txt",
    "article": "A film.",
    "questions": ["What is _?", "Why?"],
    "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]],
    "answers": ["B", "D"],
}


@pytest.mark.parametrize(
    ("columns", "data"),
    [
        ({"article": 1, "question": 2, "options": 3, "answer": 4}, {}),
        ({"context": 1, "question": 2, "choices": 3, "label": 4}, {}),
        (
            {"id": 0, "text": 1, "question": 2, "choices": 3, "label": 4},
            {"text_column": "text", "id_column": "id"},
        ),
    ],
)
def test_a_task_of_race_reads_tables_of_choices(tmp_path, columns, data):
    """In tables for RACE, only rows that have `questions` are articles."""
    values = "n7", "a film", "what", ["x", "y"], "B"
    row = {name: values[i] for name, i in columns.items()}
    task = find("race").updated(**data)
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(row))
    for source in ([row], {k: [v] for k, v in row.items()}, str(path)):
        if not isinstance(source, str):
            source = as_source("train_file", source)
        (found,) = task.read("train", source)
        assert found.id == ("n7" if "id" in columns else "0")
        texts = found.context, found.question, found.choices, found.label
        assert texts == ("a film", "what", ("x", "y"), 1)
    (first, _) = task.read("train", as_source("train_file", [ARTICLE]))
    assert first.id == "high1.txt-0" and first.label == 1
    for answers in ("", 0, {}, "BD"):
        broken = as_source("train_file", [ARTICLE | {"answers": answers}])
        with pytest.raises(InputError, match="`answers` must be a list"):
            task.read("predict", broken)


def test_a_task_of_race_reads_a_column_per_choice(tmp_path):
    """If flags name the columns of choices, the file is a table, not JSON."""
    path = tmp_path / "t.tsv"
    path.write_text("article\tquestion\ta\tb\tanswer\nso\twhy\tx\ty\tB\n")
    columns = {"text_column": "article", "label_column": ("answer",)}
    task = find("race").updated(choice_columns=("a", "b"), **columns)
    (found,) = task.read("train", str(path))
    assert found == Choices("0", "so", "why", ("x", "y"), 1)


def write_race(folder, **changes):
    for part in ("train", "dev", "test"):
        for level in ("middle", "high"):
            path = folder / "RACE" / part / level / "1.txt"
            path.parent.mkdir(parents=True)
            article = ARTICLE | {"id": f"{level}1"} | changes
            path.write_text(json.dumps(article) + "\n")
    return DataConfig(data_dir=str(folder))


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("race", ["middle", "high"]),
        ("race-middle", ["middle"]),
        ("race-high", ["high"]),
    ],
)
def test_folders_of_race(tmp_path, name, levels):
    """Each question in the levels' folders is an example with four choices."""
    data = write_race(tmp_path)
    task = with_settings(find(name), data)
    for part in ("train", "eval", "predict"):
        found = read_splits(task, data, part)[""]
        expected = [f"{level}1-{i}" for level in levels for i in (0, 1)]
        assert [e.id for e in found] == expected
        assert [e.label for e in found] == [1, 3] * len(levels)
        assert found[1].choices == ("e", "f", "g", "h")
        assert {e.group for e in found} == set(levels)
    assert task.number == 4
    row = {"article": "a", "question": "b", "options": ["c", "d"], "answer": 0}
    path = tmp_path / "RACE" / "dev" / levels[-1] / "2.txt"
    path.write_text(json.dumps(row))  # a single question
    assert read_splits(task, data, "eval")[""][-1].group == levels[-1]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"answers": ["B", "E"]}, ["1.txt:1, question 2", "A, B, C, D", "'E'"]),
        ({"answers": ["B"]}, ["1.txt:1", "answers=1"]),
        ({"options": [["a"], ["b"]]}, ["question 1", "2 to 26"]),
        ({"article": None}, ["1.txt:1", "null"]),
        ({"questions": None}, ["1.txt:1", "questions", "list of texts"]),
        ({"questions": ["a", 2]}, ["1.txt:1", "questions", "list of texts"]),
        ({"options": "ab"}, ["1.txt:1", "`options` must be a list"]),
        ({"options": [["a", float("nan")], "b"]}, ["question 1", "2 to 26"]),
        ({"options": [{"a": 1}, 2]}, ["1.txt:1, question 1", "2 to 26"]),
        ({"answers": "AB"}, ["1.txt:1", "`answers` must be a list"]),
        ({"answers": [["A"], "B"]}, ["1.txt:1, question 1", "label must be"]),
        ({"answers": None}, ["1.txt:1, question 1", "must have a label"]),
    ],
)
def test_malformed_articles(tmp_path, changes, parts):
    """The error for a malformed article names the file and the line.

    The error also names a question whose choices or answer are malformed.
    """
    data = write_race(tmp_path, **changes)
    with pytest.raises(InputError) as error:
        read_splits(with_settings(find("race"), data), data, "train")
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_race_without_files(tmp_path):
    """If files of RACE are missing, the error names the missing level."""
    (tmp_path / "RACE" / "train").mkdir(parents=True)
    data = DataConfig(data_dir=str(tmp_path))
    with pytest.raises(InputError, match="middle/"):
        read_splits(with_settings(find("race"), data), data, "train")


def own(tmp_path, name, text, part="train", **columns):
    path = tmp_path / name
    path.write_text(text)
    task = find("multiple_choice").updated(**columns)
    return [
        (e.id, e.context, e.question, e.choices, e.label)
        for e in task.read(part, str(path))
    ]


def test_own_files(tmp_path):
    """JSON lines have a list of choices; tables have one column per choice."""
    line = {"context": "c", "question": "q", "choices": ["x", 2], "label": "B"}
    assert own(tmp_path, "t.jsonl", json.dumps(line)) == [
        ("0", "c", "q", ("x", "2"), 1)
    ]
    del line["label"]
    assert own(tmp_path, "t.jsonl", json.dumps(line), "predict")[0][4] is None
    table = "k\ts\ta0\ta1\tgold\nn1\tsome text\tx\ty\t0\n"
    columns = {
        "text_column": "s",
        "text_pair_column": "",
        "choice_columns": ("a0", "a1"),
        "label_column": ("gold",),
        "id_column": "k",
    }
    assert own(tmp_path, "t.tsv", table, **columns) == [
        ("n1", "some text", "", ("x", "y"), 0)
    ]
    for label in ("2", "C", "x", ""):
        bad = table.replace("\t0\n", f"\t{label}\n")
        with pytest.raises(InputError, match="t.tsv:2: .*label"):
            own(tmp_path, "t.tsv", bad, **columns)


def test_a_label_names_no_empty_choice(tmp_path):
    """A label must not name an empty choice; other rows are read.

    A row of a table has empty choices if other rows have more choices. In
    prediction, such a label does not matter.
    """
    columns = {
        "text_column": "s",
        "text_pair_column": "",
        "choice_columns": ("a0", "a1", "a2"),
        "label_column": ("gold",),
    }
    table = "s\ta0\ta1\ta2\tgold\nsome text\tx\ty\t\t1\n"
    (found,) = own(tmp_path, "t.tsv", table, **columns)
    assert found[3:] == (("x", "y", ""), 1)
    table = table.replace("\t1\n", "\t2\n")
    for part in ("train", "eval"):
        with pytest.raises(InputError, match="t.tsv:2.*label.*empty.*label=2"):
            own(tmp_path, "t.tsv", table, part, **columns)
    (found,) = own(tmp_path, "t.tsv", table, "predict", **columns)
    assert found[3:] == (("x", "y", ""), 2)
