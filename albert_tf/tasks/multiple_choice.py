"""Multiple choice: each choice is scored with the context and the question.

Examples come from tables or RACE files. Shapes: N examples, C choices.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from albert_tf.base import files
from albert_tf.base.errors import InputError, brief, require
from albert_tf.base.json_values import field
from albert_tf.data.file_kinds import JSONL
from albert_tf.data.row_files import Row
from albert_tf.tasks.features import Features
from albert_tf.tasks.numerics import IMPOSSIBLE, Array, library
from albert_tf.tasks.predictions import (
    Prediction,
    sibling,
    write_labels,
    write_tsv,
)
from albert_tf.tasks.tables import (
    Columns,
    TableColumns,
    cell,
    json_cell,
    label_text,
    read_rows,
    require_label,
    text_cell,
    texts_cell,
)
from albert_tf.tasks.task import Task
from albert_tf.tasks.task_config import COLUMNS, TaskConfig
from albert_tf.text.packing import checked_texts, two_part_row

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_CHOICES = 1000  # the model encodes one row per choice
BLANK = "_+"  # the pattern of a blank for the choice, such as "_" in RACE
EMPTY = -1e4  # the logit of an empty choice, whose probability is thus 0


def without_empty(logits: Array, is_empty: Array) -> Array:
    """Return logits [N, C] in which empty choices have the logit `EMPTY`.

    If all choices are empty, they are equally likely.
    """
    return library(logits).where(is_empty, np.float32(EMPTY), logits)


def with_choice(question: str, choice: str) -> str:
    """Fill a question's blanks with a choice, or append the choice.

    Source: `RaceProcessor.read_examples` of the released `race_utils.py`, which
    fills each `_` of a longer blank.
    """
    parts = re.split(BLANK, question)
    if len(parts) > 1:
        return choice.join(parts)
    return f"{question} {choice}".strip()


@dataclasses.dataclass(frozen=True)
class Choices:
    """A context, a question about it, and the possible answers.

    Attributes:
      label: the index of the correct answer, or None if it is unknown.
    """

    id: str
    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None
    group: str = ""  # such as RACE's "middle" or "high"


@dataclasses.dataclass(frozen=True)
class ReaderSettings:
    """Settings for reading the files of a data set.

    Attributes:
      reader: a key of `READERS`.
      columns: a table's columns for the context, question (`text_pair`), label
        and id.
      choice_columns: one column with a list, or one column per choice.
      levels: the RACE folders to read.
    """

    reader: str = "table"
    columns: Columns = Columns("context", "question", ("label",))
    choice_columns: tuple[str, ...] = ("choices",)
    levels: tuple[str, ...] = ()


# RACE's .txt files contain JSON.
RACE_COLUMNS = Columns(text="article", format=JSONL)


def parse_choice(value: Any, number: int, part: str, where: str) -> int | None:
    """Return the index of the choice that a label identifies.

    The label is a letter, or an index from 0. A missing label is an error,
    except in prediction, where the result is None.
    """
    text = label_text(value, where)
    if require_label(text, part, where, value) is None:
        return None
    letters = [*LETTERS[:number]]
    if text in letters:
        return letters.index(text)
    # Python does not convert thousands of digits.
    if text.isdecimal() and len(text) < 100 and int(text) < number:
        return int(text)
    raise InputError(
        f"{where}: the label must be one of {', '.join(LETTERS[:number])}, or "
        f"a number from 0 to {number - 1}. Received: {value!r}"
    )


def check_choices(choices: Any, where: str) -> tuple[str, ...]:
    """Check a list of choices; return the choices as strings."""
    legal = isinstance(choices, list) and 2 <= len(choices) <= len(LETTERS)
    # A missing cell is NaN, which does not equal itself.
    legal = legal and all(
        isinstance(x, str | int | float) and x == x for x in choices
    )
    rule = f"{where}: there must be a list of 2 to {len(LETTERS)} choices"
    rule += " (in a text, as JSON)." if isinstance(choices, str) else "."
    require(legal, f"{rule} Received: {brief(choices)}")
    return tuple(map(str, choices))


def row_choices(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    """Return a row's choices, from a column of lists or several columns."""
    if len(names) > 1:
        choices = [cell(row, name, "choice_columns") for name in names]
    else:
        choices = json_cell(cell(row, names[0], "choice_columns"), list)
    return check_choices(choices, f"{row.where}, column {names[0]}")


def row_example(
    layout: ReaderSettings, part: str, row: Row, number: int
) -> Choices:
    """Return the example in a table row."""
    columns = layout.columns
    choices = row_choices(row, layout.choice_columns)
    label = None
    if part != "predict" or columns.label[0] in row.values:
        value = cell(row, columns.label[0], "label_column")
        label = parse_choice(value, len(choices), part, row.label_where)
    name, context, question = columns.texts(row, number)
    return Choices(name, context, question, choices, label)


def read_table(
    layout: ReaderSettings, part: str, path: str
) -> Iterator[Choices]:
    """Yield the examples in a table."""
    for number, row in enumerate(read_rows(path, layout.columns)):
        example = row_example(layout, part, row, number)
        label = example.label
        rule = f"{row.label_where}: the label must not name an empty choice."
        legal = label is None or part == "predict" or example.choices[label]
        require(legal, rule, label=label, choices=brief([*example.choices]))
        yield example


# One RACE question per row, as on the Hugging Face Hub.
HUB = ReaderSettings(
    columns=Columns("article", "question", ("answer",)),
    choice_columns=("options",),
)


def read_race(
    layout: ReaderSettings, part: str, path: str
) -> Iterator[Choices]:
    """Yield the questions in a RACE folder, or in a file from such a folder.

    A row contains either an article with all its questions, or a single
    question in the columns of `HUB` or of `layout`.
    """
    names = {"": [path]}
    if files.is_folder(path):
        names = {
            level: files.matches("*.txt", files.join(path, level))
            for level in layout.levels
        }
    for level, paths in names.items():
        rule = f"A split of RACE must contain files {level}/*.txt."
        require(paths, rule, path=path)
        for file in paths:
            for number, row in enumerate(read_rows(file, RACE_COLUMNS)):
                if "questions" in row.values:
                    yield from race_questions(row, level, part)
                    continue
                on_hub = {"article", "question", "options"} <= {*row.values}
                columns = HUB if on_hub else layout
                example = row_example(columns, part, row, number)
                yield dataclasses.replace(example, group=level)


def race_questions(row: Row, level: str, part: str) -> Iterator[Choices]:
    """Yield the questions about the article in a row."""
    name = row.values.get("id")
    name = row.where if name is None else str(name)
    article = text_cell(row, "article", "text_column")
    questions = texts_cell(row, "questions", "text_pair_column")
    options = field(row.values, "options", list, row.where)
    answers = [None] * len(questions)
    if row.values.get("answers") not in (None, []):
        answers = field(row.values, "answers", list, row.where)
    require(
        len(questions) == len(options) == len(answers),
        f"{row.where}: an article must have one answer and one list of "
        "options per question.",
        questions=len(questions),
        options=len(options),
        answers=len(answers),
    )
    for i, (question, choices, answer) in enumerate(
        zip(questions, options, answers, strict=True)
    ):
        where = f"{row.where}, question {i + 1}"
        choices = check_choices(choices, where)
        label = parse_choice(answer, len(choices), part, where)
        yield Choices(f"{name}-{i}", article, question, choices, label, level)


READERS: dict[str, Callable] = {"table": read_table, "race": read_race}

DEFAULTS = TaskConfig(
    max_seq_length=512, classifier_dropout=0.1, max_qa_length=128
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoice(Task):
    """The task of choosing one of several answers to a question.

    Attributes:
      layout: the settings for reading files.
      number: the number of choices, C, to which shorter lists are padded, or 0
        to use the largest number in the training examples. If an example has
        more choices, C is larger.
    """

    kind = "multiple_choice"
    signature = "choose"
    hub_class = "AlbertForMultipleChoice"
    fields: ClassVar = {"question": str, "context": str, "choices": list}
    scores = ("accuracy",)
    takes = ("max_seq_length", "classifier_dropout", "max_qa_length")
    data_takes = COLUMNS
    learned = ("number",)

    layout: ReaderSettings = ReaderSettings()
    number: int = 0
    main_metric: str = "accuracy"
    config: TaskConfig = DEFAULTS

    def __post_init__(self):
        rule = f"`number` of choices must be from 0 to {MAX_CHOICES}."
        require(0 <= self.number <= MAX_CHOICES, rule, number=self.number)

    def with_columns(self, columns):
        layout, columns = self.layout, dict(columns)
        if "choice_columns" in columns:
            # Read a table, even if the model was trained on RACE.
            names = tuple(columns.pop("choice_columns"))
            layout = dataclasses.replace(
                layout, reader="table", choice_columns=names
            )
        layout = dataclasses.replace(
            layout, columns=layout.columns.updated(columns)
        )
        return dataclasses.replace(self, layout=layout)

    def table(self, width=None, labeled=False):
        c, choices = self.layout.columns, self.layout.choice_columns[:1]
        texts = c.text, c.text_pair, *choices
        return TableColumns(texts, c.label[0], lists=choices)

    def in_memory(self):
        c, choices = self.layout.columns, self.layout.choice_columns[:1]
        columns = Columns(c.text, c.text_pair, c.label)
        layout = ReaderSettings(columns=columns, choice_columns=choices)
        return dataclasses.replace(self, layout=layout)

    def check(self, changes):
        super().check(changes)
        c = self.config
        require(
            c.max_qa_length <= c.max_seq_length - 3,
            "`max_qa_length` must be at most `max_seq_length` - 3.",
            max_qa_length=c.max_qa_length,
            max_seq_length=c.max_seq_length,
        )

    def fitted_lengths(self, config, changes):
        """Return a `max_qa_length` of at most half a row."""
        length = config.max_seq_length
        limit = min(length // 2, length - 3)
        return {"max_qa_length": min(config.max_qa_length, limit)}

    def read(self, part, path) -> list[Choices]:
        return list(READERS[self.layout.reader](self.layout, part, path))

    def fitted(self, examples):
        max_choices = max(len(example.choices) for example in examples)
        return dataclasses.replace(self, number=self.number or max_choices)

    def features(self, examples, tokenizer):
        """Return rows `[CLS] context [SEP] question and choice [SEP]`.

        If the question and choice are too long, they are cut at the start; a
        long context is cut at the end. Source: `convert_single_example` of the
        released `race_utils.py`.
        """
        length, qa_limit = self.config.max_seq_length, self.config.max_qa_length
        contexts = tokenizer.encode_batch([e.context for e in examples])
        rows, counts = [], [len(example.choices) for example in examples]
        number = max([self.number, *counts])
        for example, context in zip(examples, contexts, strict=True):
            choices = tokenizer.encode_batch(
                [with_choice(example.question, c) for c in example.choices]
            )
            choices += [np.zeros(0, np.int32)] * (number - len(choices))
            for choice in choices:
                choice = choice[-qa_limit:]
                first = context[: length - 3 - len(choice)]
                rows.append(two_part_row(tokenizer, first, choice))
        is_present = np.arange(number) < np.array(counts)[:, None]  # [N, C]
        arrays = {"choice_mask": is_present.astype(np.float32)}
        labels = [example.label for example in examples]
        if None not in labels:
            arrays["labels"] = np.array(labels, np.int32)
        return Features.from_rows(
            rows, arrays, tokenizer.pad_id, length, rows_per_example=number
        )

    def predictions(self, examples, outputs, features):
        # Exported models return a logit for every row, even for absent choices.
        logits = outputs["logits"].reshape(len(examples), -1)  # [N, C]
        counts = np.array([len(example.choices) for example in examples])
        is_present = np.arange(logits.shape[1]) < counts[:, None]
        is_empty = np.zeros(logits.shape, bool)
        for row, example in zip(is_empty, examples, strict=True):
            row[: len(example.choices)] = [not x for x in example.choices]
        logits = without_empty(logits, is_empty)
        probabilities = self.probabilities(
            np.where(is_present, logits, IMPOSSIBLE)
        )
        return [Prediction(int(row.argmax()), row) for row in probabilities]

    def for_queries(self):
        """Return a copy of the task that does not pad choices to `number`."""
        return dataclasses.replace(self, number=0)

    def example(self, question, context, choices):
        choices = tuple(checked_texts(choices, "choices"))
        require(choices, "`choices` must not be empty.", choices=[])
        return Choices("", context, question, choices, None)

    def answer(self, query, prediction, top):
        choices = query["choices"]
        probabilities = prediction.probabilities[: len(choices)]  # 0 if absent
        return {
            "choice": prediction.label,
            "text": choices[prediction.label],
            "probabilities": probabilities.tolist(),
        }

    def score(self, examples, predictions):
        labels = np.array([example.label for example in examples])
        hits = labels == [p.label for p in predictions]
        groups = np.array([example.group for example in examples])
        values = {"accuracy": hits.mean().item()}
        names = sorted(set(groups.tolist()))
        for name in names if len(names) > 1 else []:
            values[f"{name}_accuracy"] = hits[groups == name].mean().item()
        return values

    def write_predictions(self, path, examples, predictions):
        letter = LETTERS.__getitem__
        # Choices beyond the last letter are absent; see `check_choices`.
        number = len(LETTERS)
        shown = [
            dataclasses.replace(p, probabilities=p.probabilities[:number])
            for p in predictions
        ]
        letters = LETTERS[: len(shown[0].probabilities)]
        written = [write_labels(path, examples, shown, letter, letters)]
        if None in [example.label for example in examples]:
            return written
        errors = [("id", "question", "prediction", "answer")]
        for example, p in zip(examples, predictions, strict=True):
            if p.label != example.label:
                texts = [example.choices[i] for i in (p.label, example.label)]
                errors.append((example.id, example.question, *texts))
        return [*written, write_tsv(sibling(path, "errors") + ".tsv", errors)]
