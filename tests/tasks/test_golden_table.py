"""The tasks and the presets agree with `testdata/tasks.md`.

The tables in that file were written from the papers, the documentation of the
data sets and the released code. A change to a task requires a change to a
table, with a source.
"""

import dataclasses
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import ROOT

from albert_tf.tasks.classification import Example
from albert_tf.tasks.embedding import Texts
from albert_tf.tasks.multiple_choice import Choices
from albert_tf.tasks.registry import KINDS, TASKS
from albert_tf.tasks.squad import Answer, AnswerPrediction, Question
from albert_tf.tasks.tagged_words import Sentence
from albert_tf.tasks.token_classification import Tags

PRESETS = Path(ROOT) / "configs" / "finetuning"


def read_tables() -> dict[str, list[dict[str, str]]]:
    """Return {heading: rows} for all tables; cells with `-` are omitted."""
    path = Path(__file__).parents[1] / "testdata" / "tasks.md"
    tables = {}
    for section in path.read_text("utf-8").split("\n## ")[1:]:
        title, *lines = section.splitlines()
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in lines
            if line.startswith("|") and not line.startswith("|---")
        ]
        tables[title] = [
            {k: v for k, v in zip(rows[0], row, strict=True) if v != "-"}
            for row in rows[1:]
        ]
    return tables


TABLES = read_tables()
ROWS = {row["task"]: row for row in TABLES["Tasks"]}
INPUTS = {row["kind"]: row for row in TABLES["Inputs"]}
EXAMPLES = {name: r for r in TABLES["Metrics"] for name in r["tasks"].split()}
FLAGS = {row["preset"]: row for row in TABLES["Presets"]}


def pairs(text: str) -> dict[str, str]:
    """Parse "name=value name=value" into {name: value}."""
    return dict(pair.split("=") for pair in text.split())


def by_split(text: str) -> dict[str, str]:
    """Parse "split: file, split: file", or a single file, as {split: file}."""
    parts = [part.strip() for part in text.split(",")] if text else []
    return dict(
        part.split(": ") if ": " in part else ("", part) for part in parts
    )


def labels_of(row: dict[str, str]) -> tuple[str, ...]:
    """Return the labels in a row's cell; "0 .. 118" means 119 labels."""
    labels = row.get("labels", "").split()
    if ".." in labels:
        labels = map(str, range(int(labels[0]), int(labels[2]) + 1))
    return tuple(labels)


def text_of(value) -> str:
    """Return a field's value in the notation of the table."""
    return ",".join(value) if isinstance(value, tuple) else str(value)


def test_every_task_and_every_preset_has_a_row():
    """The table has a row for every task and every preset, and no other row."""
    unmeasured = "question_answering"  # it has SQuAD's metrics
    presets = {path.stem for path in PRESETS.glob("*.flags")}
    tables = {
        "Tasks": ({*ROWS}, {*TASKS}),
        "Inputs": ({*INPUTS}, {*KINDS}),
        "Metrics": ({*EXAMPLES, unmeasured}, {*TASKS}),
        "Presets": ({*FLAGS}, presets),
    }
    for heading, (rows, names) in tables.items():
        where = f"a row in testdata/tasks.md, under {heading}"
        assert sorted(names - rows) == [], f"these lack {where}"
        assert sorted(rows - names) == [], (
            f"these do not exist, but have {where}"
        )


@pytest.mark.parametrize("name", ROWS)
def test_rows(name):
    """A task's kind, files, labels, metric and inputs match the table."""
    row, task = ROWS[name], TASKS[name]
    parts = {p: by_split(row.get(p, "")) for p in ("train", "eval", "predict")}
    submissions = by_split(row.get("submission", ""))
    own = task.description()
    assert own["kind"] == row["kind"]
    assert own["folder"] == row.get("folder", "")
    assert own["splits"] == {p: files for p, files in parts.items() if files}
    assert own["main_metric"] == row["main metric"]
    assert own.get("labels", ()) == labels_of(row)
    if "submission" in own:
        submissions = submissions.get("", "")
        assert own["submission"] == submissions
    else:
        assert own.get("submissions", {}) == submissions
    settings = pairs(row.get("settings", ""))
    for path, expected in settings.items():
        value = task
        for part in path.split("."):
            value = getattr(value, part)
        assert text_of(value) == expected, path
    inputs = INPUTS[row["kind"]] | {
        path.removeprefix("config."): value
        for path, value in settings.items()
        if path.startswith("config.")
    }
    config = {k: str(v) for k, v in own["config"].items() if v is not None}
    assert config | {"kind": row["kind"]} == inputs


def one_hot(numbers, classes: int) -> dict[str, np.ndarray]:
    """Return the logits of a model that is certain of its classes."""
    return {"logits": np.eye(classes, dtype="f4")[numbers] * 9}


def classes(task, labels, answers, guesses):
    examples = [Example("", "", "", label) for label in answers]
    order = labels or tuple(sorted(set(answers)))
    outputs = one_hot([order.index(label) for label in guesses], len(order))
    return examples, outputs


def sets(task, labels, answers, guesses):
    examples = [Example("", "", "", tuple(x.split(","))) for x in answers]
    order = sorted({label for e in examples for label in e.label})
    chosen = [[label in x.split(",") for label in order] for x in guesses]
    return examples, {"logits": np.array(chosen, "f4") * 9 - 5}


def numbers(task, labels, answers, guesses):
    examples = [Example("", "", "", float(x)) for x in answers]
    return examples, {"logits": np.array(guesses, "f4")[:, None]}


def cosines(task, labels, answers, guesses):
    examples = [Texts("", ("a", "b"), float(x), True) for x in answers]
    angles = np.arccos(np.array(guesses, "f8") / 10)
    pairs = np.stack([np.zeros_like(angles), angles], axis=1)  # [N, 2]
    return examples, {"embedding": np.stack([np.cos(pairs), np.sin(pairs)], -1)}


def choices(task, labels, answers, guesses):
    split = [text.rpartition(":") for text in answers]
    texts = ("a", "b", "c", "d")
    examples = [
        Choices("", "", "", texts, int(number), level)
        for level, _, number in split
    ]
    return examples, one_hot([int(x) for x in guesses], len(texts))


MODELS = {
    "classification": classes,
    "multilabel": sets,
    "regression": numbers,
    "multiple_choice": choices,
    "embedding": cosines,
}


def questions(task, labels, answers, guesses):
    """Return the questions and answers in a row's cells.

    `_` stands for a space, and `:` precedes the odds.
    """
    examples, predictions = [], []
    for text, guess in zip(answers, guesses, strict=True):
        golds = tuple(text.replace("_", " ").split("/")) if text != "-" else ()
        examples.append(Question("", "", "", golds))
        guess, _, odds = guess.replace("_", " ").partition(":")
        best = [Answer(guess, 0.0, 0.0, (0, 0))]
        predictions.append(
            AnswerPrediction(best, float(odds) if odds else None)
        )
    return examples, predictions


def tagged(task, labels, answers, guesses):
    examples = [
        Sentence(("w",) * len(x.split(",")), tuple(x.split(",")), "", 1)
        for x in answers
    ]
    return examples, [Tags(tuple(x.split(",")), np.ones(1)) for x in guesses]


@pytest.mark.parametrize("name", EXAMPLES)
def test_metrics_by_value(name):
    """Each metric of the task equals the value computed by hand."""
    row, example, task = ROWS[name], EXAMPLES[name], TASKS[name]
    if name == "cmrc2018":
        pytest.importorskip("nltk")
    arguments = (
        task,
        labels_of(row),
        example["answers"].split(),
        example["predictions"].split(),
    )
    if row["kind"] in MODELS:
        examples, outputs = MODELS[row["kind"]](*arguments)
        task = task.fitted(examples)
        predictions = task.predictions(examples, outputs, None)
    else:
        make = {"question_answering": questions, "token_classification": tagged}
        examples, predictions = make[row["kind"]](*arguments)
    expected = {
        k: float(Fraction(v)) for k, v in pairs(example["values"]).items()
    }
    found = task.score(examples, predictions)
    assert found == pytest.approx(expected, abs=1e-5)
    assert row["main metric"] in expected


@pytest.mark.parametrize("name", [n for n in ROWS if "positive" in ROWS[n]])
def test_the_positive_class(name):
    """F1 measures class 1, which must be the source's positive class."""
    positive = ROWS[name]["positive"]
    assert TASKS[name].targets([positive]).tolist() == [1]
    assert "f1" in TASKS[name].scores


def as_written(text: str) -> str:
    """Return a flag's value in a form in which 1e-5 equals 0.00001."""
    try:
        return str(float(text))
    except ValueError:
        return text


@pytest.mark.parametrize("name", FLAGS)
def test_presets(name):
    """A preset sets the flags in the table, and cites the table's source."""
    row = dict(FLAGS[name])
    source, others = row.pop("source"), pairs(row.pop("others", ""))
    del row["preset"]
    lines = (PRESETS / f"{name}.flags").read_text().splitlines()
    flags = [x.removeprefix("--") for x in lines if not x.startswith("#")]
    found = pairs(" ".join(flags))
    assert len(found) == len(flags)
    expected = row | others
    assert {k: as_written(v) for k, v in found.items()} == {
        k: as_written(v) for k, v in expected.items()
    }
    comments = " ".join(x.strip("# ") for x in lines if x.startswith("#"))
    assert source in comments


def test_defaults_of_the_kind_do_not_hide_in_presets():
    """The lengths and heads in a preset equal the task's defaults."""
    for name, row in FLAGS.items():
        config = dataclasses.asdict(TASKS[row["task"]].config)
        for flag, value in pairs(row.get("others", "")).items():
            assert str(config[flag]) == value, name
