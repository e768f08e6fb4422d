"""Examples with choices, from tables and from the files of RACE."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from albert_tf.base import files
from albert_tf.base.errors import InputError, require
from albert_tf.tasks.labels import label_text, require_label
from albert_tf.tasks.tables import Columns, Row, cell, read_rows, text_cell

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BLANK = "_"  # where the choice belongs in a question of RACE


def with_choice(question: str, choice: str) -> str:
    """Return a question with a choice in its blanks, or after it.

    Source: `RaceProcessor.read_examples` of the released `race_utils.py`.
    """
    if BLANK in question:
        return question.replace(BLANK, choice)
    return f"{question} {choice}".strip()


@dataclasses.dataclass(frozen=True)
class Choices:
    """A context, a question about it, and what may be the answer."""

    id: str
    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None
    group: str = ""  # such as "middle" or "high" of RACE


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the files of a data set are read.

    Attributes:
      reader: a key of `READERS`.
      columns: of a table: context, question (`text_pair`), label and id.
      choice_columns: one with a list, or several with a choice each.
      levels: the folders of RACE to read.
    """

    reader: str = "table"
    columns: Columns = Columns("context", "question", ("label",))
    choice_columns: tuple[str, ...] = ("choices",)
    levels: tuple[str, ...] = ()


# RACE's .txt files hold JSON.
RACE_COLUMNS = Columns(text="article", format=".jsonl")


def parse_choice(value: Any, number: int, part: str, where: str) -> int | None:
    """Return the index of a choice that a letter or a number from 0 names.

    None if the label is missing, as it may be to predict.
    """
    text = label_text(value, where)
    if require_label(text, part, where, value) is None:
        return None
    if len(text) == 1 and text in LETTERS[:number]:
        return LETTERS.index(text)
    if text.isdecimal() and int(text) < number:
        return int(text)
    raise InputError(
        f"{where}: the label must be one of {', '.join(LETTERS[:number])}, or "
        f"a number from 0 to {number - 1}. Received: {value!r}"
    )


def check_choices(choices: Any, where: str) -> tuple[str, ...]:
    """Return choices as texts, at least two."""
    if isinstance(choices, list) and 2 <= len(choices) <= len(LETTERS):
        if all(isinstance(choice, str | int | float) for choice in choices):
            return tuple(map(str, choices))
    raise InputError(
        f"{where}: there must be a list of 2 to {len(LETTERS)} choices. "
        f"Received: {str(choices)[:60]}"
    )


def row_choices(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    """Return a row's choices, in one column as a list or in several."""
    if len(names) > 1:
        choices = [cell(row, name, "choice_columns") for name in names]
    else:
        choices = cell(row, names[0], "choice_columns")
        if isinstance(choices, str):
            with contextlib.suppress(json.JSONDecodeError):  # refused below
                choices = json.loads(choices)
    return check_choices(choices, f"{row.where}, column {names[0]}")


def read_table(layout: Layout, part: str, path: str) -> Iterator[Choices]:
    """Yield the examples of a .jsonl, .tsv or .csv file."""
    columns = layout.columns
    for number, row in enumerate(read_rows(path, columns)):
        choices = row_choices(row, layout.choice_columns)
        label = None
        if part != "predict" or columns.label[0] in row.values:
            value = cell(row, columns.label[0], "label_column")
            label = parse_choice(value, len(choices), part, row.where)
        name, context, question = columns.texts(row, number)
        yield Choices(name, context, question, choices, label)


def read_race(layout: Layout, part: str, path: str) -> Iterator[Choices]:
    """Yield the questions of a folder of RACE, or of one file of it."""
    names = {"": [path]}
    if files.is_folder(path):
        names = {
            level: files.matches("*.txt", files.join(path, level))
            for level in layout.levels
        }
    for level, paths in names.items():
        rule = f"A part of RACE must hold files {level}/*.txt."
        require(paths, rule, path=path)
        for file in paths:
            for row in read_rows(file, RACE_COLUMNS):
                yield from race_questions(row, level, part)


def race_questions(row: Row, level: str, part: str) -> Iterator[Choices]:
    """Yield the questions about one article, a line of a file."""
    name = str(row.values.get("id", row.where))
    article = text_cell(row, "article", "text_column")
    questions = cell(row, "questions", "text_pair_column")
    options = cell(row, "options", "choice_columns")
    answers = row.values.get("answers") or [None] * len(questions)
    if not len(questions) == len(options) == len(answers):
        raise InputError(
            f"{row.where}: an article must have as many answers and lists of "
            f"options as questions. Received: {len(questions)} questions, "
            f"{len(options)} lists, {len(answers)} answers"
        )
    for i, (question, choices, answer) in enumerate(
        zip(questions, options, answers, strict=True)
    ):
        where = f"{row.where}, question {i + 1}"
        choices = check_choices(choices, where)
        label = parse_choice(answer, len(choices), part, where)
        yield Choices(f"{name}-{i}", article, question, choices, label, level)


READERS: dict[str, Callable] = {"table": read_table, "race": read_race}
