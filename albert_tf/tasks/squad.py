"""SQuAD files, and the conversion of predicted spans to texts."""

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from albert_tf.base import files
from albert_tf.base.console import counted
from albert_tf.base.errors import brief, require
from albert_tf.base.json_values import field, flag_in
from albert_tf.base.settings import plain
from albert_tf.data import file_kinds
from albert_tf.data.file_kinds import CSV, JSONL, TSV
from albert_tf.data.row_files import delimiter_hint
from albert_tf.data.table_sources import is_table
from albert_tf.tasks import metrics
from albert_tf.tasks.numerics import NO_ANSWER, Spans, softmax
from albert_tf.tasks.predictions import sibling, submission_path, write_tsv
from albert_tf.tasks.tables import Columns, json_cell, read_rows
from albert_tf.text.normalization import SPACES


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context.

    Attributes:
      id: the question's name in prediction files.
      text: the question.
      context: the text that contains the answers.
      answers: the texts of all answers, () if there are none, or None if
        unknown.
      span: start and end, in characters, of the first answer that occurs in the
        context, or (0, 0) if no answer occurs.
    """

    id: str
    text: str
    context: str
    answers: tuple[str, ...] | None
    span: tuple[int, int] = (0, 0)


def find_answer(context: str, text: str, start: int) -> int | None:
    """Return the position nearest to `start` at which the answer occurs.

    The result is None if the answer does not occur in the context.
    """
    if text and start >= 0 and context.startswith(text, start):
        return start
    # The look-ahead finds occurrences that overlap.
    starts = re.finditer(f"(?={re.escape(text)})", context) if text else ()
    starts = [match.start() for match in starts]
    return min(starts, key=lambda x: abs(x - start), default=None)


# Answers as Python prints them, which pandas writes to CSV.
PRINTED_ANSWERS = re.compile(r"\s*\[?\{'(text|answer_start)':")


def answers_in(qa: dict, where: str) -> list[tuple[str, int | None]]:
    """Return the (text, start) pairs of a question's answers.

    Answers are a list of objects (in SQuAD files), an object of lists (on the
    Hugging Face Hub), or one or more texts, whose starts are None. Empty texts
    are ignored.
    """
    raw_answers = plain(qa["answers"])
    if isinstance(raw_answers, str):
        parsed = json_cell(raw_answers, list, dict)
        if all(isinstance(x, dict | str) for x in parsed):
            raw_answers = parsed
    if isinstance(raw_answers, dict):
        texts, starts = (
            x if isinstance(x, list) else [x]
            for x in map(raw_answers.get, ("text", "answer_start"))
        )
        rule = f"{where}: every answer must have an `answer_start`."
        require(len(texts) == len(starts), rule, answers=raw_answers)
        pairs = zip(texts, starts, strict=True)
        raw_answers = [{"text": t, "answer_start": s} for t, s in pairs]
    if isinstance(raw_answers, str):
        rule = f"{where}: an object in `answers` must be JSON, such as "
        rule += '{"text": ["cat"], "answer_start": [2]}.'
        is_printed = PRINTED_ANSWERS.match(raw_answers)
        require(not is_printed, rule, answers=brief(raw_answers))
        raw_answers = [raw_answers]
    rule = f"{where}: `answers` must be a list, an object or a text."
    require(isinstance(raw_answers, list), rule, answers=brief(raw_answers))
    answers = []
    for answer in raw_answers:
        text, start = answer, None
        if not isinstance(answer, str):
            text = field(answer, "text", str, where)
            start = field(answer, "answer_start", int, where)
        answers += [(text, start)] * bool(text)
    return answers


@dataclasses.dataclass(frozen=True)
class Entry:
    """A question as it appears in the file.

    Attributes:
      context: the context.
      qa: the question's other fields.
      where: the part of the file, or the row, for error messages.
      where_answers: the location of the answers; "" if errors name the question
        instead.
    """

    context: str
    qa: dict
    where: str
    where_answers: str = ""


def table_entries(source: Any) -> Iterator[Entry]:
    """Yield the questions of a table with one question per row."""
    for number, row in enumerate(read_rows(source, Columns())):
        names = [*row.values]
        rule = f"{row.where}: a table of questions must have the columns "
        rule += f"`question` and `context`{delimiter_hint(names)}."
        legal = {"question", "context"} <= {*names}
        require(legal, rule, columns=", ".join(names))
        context = field(row.values, "context", str, row.where)
        qa = {"id": number} | row.values
        yield Entry(context, qa, row.where, row.label_where)


def is_rows(path: str) -> bool:
    """Return whether a file or table contains one question per row."""
    if is_table(path):
        return True
    if not files.is_file(path):
        return False
    with file_kinds.opened(path) as source:
        if source.kind == JSONL:  # may also be a SQuAD object on one line
            ends_in_jsonl = file_kinds.ending_of(path) == ".jsonl"
            return ends_in_jsonl or "context" in source.fields()
        return source.kind in (CSV, TSV)


def entries(path: str) -> Iterator[Entry]:
    """Yield the questions of a file or table."""
    if is_rows(path):
        yield from table_entries(path)
        return
    text = file_kinds.read_text(path, "The data file")
    content = files.parse_json(text, path, "The data file")
    for number, article in enumerate(field(content, "data", list, path)):
        where = f"{path}, data[{number}]"
        for paragraph in field(article, "paragraphs", list, where):
            context = field(paragraph, "context", str, where)
            for qa in field(paragraph, "qas", list[dict], where):
                yield Entry(context, qa, where)


class Reader:
    """A reader of one file that counts misplaced and missing answers.

    Args:
      path: the file or table.
      part: "train", "eval" or "predict"; only training needs answer positions,
        and "predict" needs no answers.
      impossible: whether a question may have no answer.
    """

    def __init__(self, path: str, part: str, impossible: bool):
        self.path, self.part, self.impossible = path, part, impossible
        self.moved = self.absent = 0
        self.faults: list[str] = []

    def questions(self) -> list[Question]:
        """Return the questions of the file.

        Raises:
          InputError: if the file is malformed, or if answers are missing,
            forbidden or, in training, not in the context; the message lists
            these questions.
        """
        questions: dict[str, Question] = {}
        for entry in entries(self.path):
            value = entry.qa.get("id")
            is_cell = isinstance(value, str | int | float) and value == value
            name = str(value) if is_cell else ""
            is_unique = name and name not in questions
            rule = "every question must have a unique `id`."
            require(is_unique, f"{entry.where}: {rule}", id=repr(value))
            questions[name] = self._question(name, entry)
        if self.moved:
            print(
                f"Note: {self.path}: {counted(self.moved, 'answer')} not at "
                "`answer_start`; the nearest occurrence of the text is used"
            )
        require(
            not self.faults,
            f"Correct or remove {counted(len(self.faults), 'question')}:\n  "
            + "\n  ".join(self.faults),
        )
        if self.absent:
            print(
                f"Note: {self.path}: for {counted(self.absent, 'question')}, "
                "an answer does not occur in the context"
            )
        return list(questions.values())

    def _question(self, name: str, entry: Entry) -> Question:
        qa, context = entry.qa, entry.context
        where = entry.where_answers or f"{self.path}, question {name}"
        text = field(qa, "question", str, where)
        impossible = bool(flag_in(qa, "is_impossible", where))
        has_answers = qa.get("answers") is not None
        answers = answers_in(qa, where) if has_answers else []
        if self.part == "predict" and not answers:
            unanswerable = self.impossible and impossible
            return Question(name, text, context, () if unanswerable else None)
        rule = f"{where}: `answers` is required, except for prediction."
        require(has_answers or impossible, rule, answers=None)
        if not answers and not self.impossible:
            self.faults.append(
                f"{where}: every question of this task must have an answer; "
                "task=squad-2.0 accepts questions without one."
            )
        if answers and impossible:
            self.faults.append(
                f"{where}: a question with `is_impossible` must have no "
                f"answer. Received: answers={answers[0][0]!r}"
            )
        texts = tuple(text for text, _ in answers)
        span = self._span(context, answers, where) if answers else (0, 0)
        return Question(name, text, context, texts, span)

    def _span(self, context: str, answers: list, where: str) -> tuple[int, int]:
        """Return the span of the first answer that occurs in the context.

        The result is (0, 0) if no answer occurs, which is an error in training.
        Misplaced and missing answers are counted.
        """
        for text, start in answers:
            position = find_answer(context, text, start or 0)
            if position is not None:
                self.moved += start not in (position, None)
                return position, position + len(text)
        if self.part == "train":
            text = answers[0][0]
            normalize = functools.partial(unicodedata.normalize, "NFKC")
            hint = (
                "; the context has another Unicode form of the answer, so "
                "normalize both texts, for example with NFKC"
            ) * (normalize(text) in normalize(context))
            self.faults.append(
                f"{where}: an answer must be in its context{hint}. Received: "
                f"answer={text!r}"
            )
        self.absent += 1
        return 0, 0


@dataclasses.dataclass(frozen=True)
class Window:
    """The part of a context in one row, with W tokens.

    Attributes:
      position: the position of the first context token in the row.
      starts: int [W], the offset in the context at which each token begins.
      ends: int [W], the offset at which each token ends.
      is_best: bool [W], whether a token has the most context in this window.
    """

    position: int
    starts: np.ndarray
    ends: np.ndarray
    is_best: np.ndarray


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer with the scores of its start and end."""

    text: str
    start_score: float
    end_score: float
    span: tuple[int, int]  # start and end in the context

    @property
    def score(self) -> float:
        """The sum of the start and end scores."""
        return self.start_score + self.end_score


def text_answer(
    context: str, window: Window, start: int, end: int
) -> tuple[str, tuple[int, int]]:
    """Return the stripped text of a span, and the text's start and end.

    Args:
      context: the context.
      window: the window that contains the span.
      start: the position of the span's first token in the row.
      end: the position of the span's last token in the row.
    """
    first = int(window.starts[start - window.position])
    last = int(window.ends[end - window.position])
    text = context[first:last]
    first += len(text) - len(text.lstrip(SPACES))
    text = text.strip(SPACES)
    return text, (first, first + len(text))


def n_best(
    context: str, windows: Sequence[Window], spans: Spans, n: int
) -> list[Answer]:
    """Return the n best distinct answers over all rows of a question.

    If there are no answers, the result is a single empty answer.

    Source: `write_predictions_v1` and `_v2` of the released `squad_utils.py`.
    """
    scores = spans.start_score + spans.end_score  # [R, S]
    rows, columns = np.nonzero(np.isfinite(scores))
    order = np.argsort(-scores[rows, columns], kind="stable")
    best: dict[str, Answer] = {}
    for row, column in zip(rows[order], columns[order], strict=True):
        first, last, *values = (x[row, column].item() for x in spans)
        text, span = text_answer(context, windows[row], first, last)
        if text and text not in best:
            best[text] = Answer(text, *values, span)
        if len(best) == n:
            break
    return list(best.values()) or [Answer("", NO_ANSWER, NO_ANSWER, (0, 0))]


def probabilities(answers: Sequence[Answer]) -> list[float]:
    """Return the softmax of the answers' scores."""
    return softmax(np.array([answer.score for answer in answers])).tolist()


@dataclasses.dataclass(frozen=True)
class AnswerPrediction:
    """The n best answers, and the log odds that there is no answer."""

    best: list[Answer]
    # Larger if the question is less answerable; None if unused.
    null_odds: float | None

    def text(self, threshold: float | None) -> str:
        """Return the answer, or "" if the null odds exceed a threshold."""
        valid = None not in (threshold, self.null_odds)
        return "" if valid and self.null_odds > threshold else self.best[0].text


def nbest_entries(answers: Sequence[Answer]) -> list[dict]:
    """Return answers in the released format of `nbest_predictions.json`."""
    return [
        {
            "text": answer.text,
            "probability": p,
            "start_log_prob": answer.start_score,
            "end_log_prob": answer.end_score,
        }
        for answer, p in zip(answers, probabilities(answers), strict=True)
    ]


def error_table(
    examples: Sequence[Question], texts: Sequence[str]
) -> list[list[str]]:
    """Return a table of the questions whose predictions match no answer."""
    table = [["id", "question", "prediction", "answers"]]
    for question, text in zip(examples, texts, strict=True):
        golds = question.answers or ("",)
        if not any(metrics.exact(gold, text) for gold in golds):
            shown = " | ".join(dict.fromkeys(golds))
            table.append([question.id, question.text, text, shown])
    return table


def write_answers(
    path: str,
    examples: Sequence[Question],
    predictions: Sequence[AnswerPrediction],
    threshold: float | None,
    submission: str,
) -> list[str]:
    """Write the prediction files of a split; return their paths.

    The files are `predictions.json`, `nbest_predictions.json`, `null_odds.json`
    if questions may have no answer, and `errors.tsv` if answers are known.

    Args:
      path: the first file's path, without the extension.
      examples: the questions.
      predictions: the predicted answers.
      threshold: the null odds above which there is no answer, or None if every
        question has an answer.
      submission: the name of the submission file, or "" if there is none.
    """
    pairs = list(zip(examples, predictions, strict=True))
    texts = {q.id: p.text(threshold) for q, p in pairs}
    contents = {
        "predictions": texts,
        "nbest_predictions": {q.id: nbest_entries(p.best) for q, p in pairs},
    }
    if any(p.null_odds is not None for p in predictions):
        contents["null_odds"] = {q.id: p.null_odds for q, p in pairs}
    outputs = {
        sibling(path, name) + ".json": content
        for name, content in contents.items()
    }
    target = submission_path(path, {"": submission})
    if target:
        outputs[target] = texts
    for file, content in outputs.items():
        files.write_json(file, content)
    if any(question.answers is None for question in examples):
        return list(outputs)
    table = error_table(examples, list(texts.values()))
    return [*outputs, write_tsv(sibling(path, "errors") + ".tsv", table)]
