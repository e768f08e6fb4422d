"""Questions in the format of SQuAD, with answers found in the text.

They come from a JSON file, or from a table with its fields as columns.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.data import file_kinds
from albert_tf.data.table_sources import is_table, rows_of
from albert_tf.tasks.tables import field


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context.

    Attributes:
      id: names the question in files of predictions.
      text: the question.
      context: what the answers are parts of.
      answers: texts of all answers, () if there is none; None: not known.
      span: start and end of the first answer that is in the context; (0, 0)
        if there is none.
    """

    id: str
    text: str
    context: str
    answers: tuple[str, ...] | None
    span: tuple[int, int] = (0, 0)


def find_answer(context: str, text: str, start: int) -> int | None:
    """Return where an answer is, nearest to where it is said to be."""
    if text and start >= 0 and context.startswith(text, start):
        return start
    # A look ahead, for places may overlap.
    places = re.finditer(f"(?={re.escape(text)})", context) if text else ()
    places = [match.start() for match in places]
    return min(places, key=lambda x: abs(x - start), default=None)


def table_entries(source: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield what `entries` does, of a table with a question in each row.

    Its column `answers` holds lists of texts and places, as on the hub.
    """
    for row in rows_of(source):
        where, qa = row.where, dict(row.values)
        context = field(qa, "context", str, where)
        if qa.get("answers") is not None:
            texts = field(qa["answers"], "text", list, where)
            starts = field(qa["answers"], "answer_start", list, where)
            rule = f"{where}: every answer must have an `answer_start`."
            require(len(texts) == len(starts), rule, answers=qa["answers"])
            qa["answers"] = [
                {"text": text, "answer_start": start}
                for text, start in zip(texts, starts, strict=True)
            ]
        yield context, qa, where


def entries(path: str) -> Iterator[tuple[str, Any, str]]:
    """Yield context, question and the place of each question in a file."""
    if is_table(path):
        yield from table_entries(path)
        return
    text = file_kinds.read_text(path, "The data file")
    content = files.parse_json(text, path, "The data file")
    for number, article in enumerate(field(content, "data", list, path)):
        where = f"{path}, data[{number}]"
        for paragraph in field(article, "paragraphs", list, where):
            context = field(paragraph, "context", str, where)
            for qa in field(paragraph, "qas", list, where):
                yield context, qa, where


class Reader:
    """Reads one file, and counts what had to be put right.

    Args:
      path: the file.
      part: "train", "eval" or "predict"; only training needs the places, and
        the last needs no answers.
      impossible: whether a question may have no answer.
    """

    def __init__(self, path: str, part: str, impossible: bool):
        self.path, self.part, self.impossible = path, part, impossible
        self.moved = self.absent = 0

    def questions(self) -> list[Question]:
        """Return the questions of the file.

        Raises:
          InputError: the file is malformed, or an answer to learn from is not
            in its context; the message names the file and the question.
        """
        questions: dict[str, Question] = {}
        for context, qa, where in entries(self.path):
            name = str(qa.get("id", "")) if isinstance(qa, dict) else ""
            rule = f"{where}: every question must have an `id` of its own."
            require(name and name not in questions, rule, id=repr(name))
            questions[name] = self._question(name, qa, context)
        if self.moved:
            print(
                f"Note: {self.path}: {self.moved} answers are not at their "
                "`answer_start`; the nearest place with the same text is taken"
            )
        if self.absent:
            print(
                f"Note: {self.path}: {self.absent} questions have answers "
                "that are not in their context and cannot be found"
            )
        return list(questions.values())

    def _question(self, name: str, qa: Any, context: str) -> Question:
        where = f"{self.path}, question {name}"
        text = field(qa, "question", str, where)
        if self.part == "predict" and not qa.get("answers"):
            known = self.impossible and qa.get("is_impossible")
            return Question(name, text, context, () if known else None)
        if qa.get("is_impossible") or not field(qa, "answers", list, where):
            require(
                self.impossible,
                f"{where}: every question of this task must have an answer; "
                "task=squad-2.0 knows questions without.",
                answers=[],
            )
            return Question(name, text, context, ())
        answers = [
            (field(a, "text", str, where), field(a, "answer_start", int, where))
            for a in qa["answers"]
        ]
        span = self._span(context, answers, where)
        return Question(name, text, context, tuple(a for a, _ in answers), span)

    def _span(self, context: str, answers: list, where: str) -> tuple[int, int]:
        """Return the place of the first answer that is in the context."""
        for text, start in answers:
            place = find_answer(context, text, start)
            if place is not None:
                self.moved += place != start
                return place, place + len(text)
        rule = f"{where}: an answer must be in its context."
        require(self.part != "train", rule, answer=repr(answers[0][0]))
        self.absent += 1
        return 0, 0
