"""Questions of files in the format of SQuAD, with answers found in the text."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from albert_tf.base import files
from albert_tf.base.errors import InputError


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
    if text and context[start : start + len(text)] == text:
        return start
    places = []
    place = context.find(text) if text else -1
    while place >= 0:
        places.append(place)
        place = context.find(text, place + 1)
    return min(places, key=lambda x: abs(x - start), default=None)


def field(values: Any, name: str, kind: type, where: str) -> Any:
    """Return a field of a JSON object, which must be of a type."""
    found = values.get(name) if isinstance(values, dict) else None
    if isinstance(found, kind):
        return found
    names = {str: "a text", list: "a list", int: "a whole number"}
    raise InputError(
        f"{where}: `{name}` must be {names[kind]}. "
        f"Received: {name}={str(found)[:60]}"
    )


class Reader:
    """Reads one file, and counts what had to be put right.

    Args:
      path: the file.
      part: "train", "eval" or "predict"; only training needs the places.
      impossible: whether a question may have no answer.
    """

    def __init__(self, path: str, part: str, impossible: bool):
        self.path, self.part, self.impossible = path, part, impossible
        self.moved = self.absent = 0
        self.seen: set[str] = set()

    def questions(self) -> Iterator[Question]:
        """Yield the questions of the file."""
        content = files.read_json(self.path, "The data file")
        for number, article in enumerate(
            field(content, "data", list, self.path)
        ):
            where = f"{self.path}, data[{number}]"
            for paragraph in field(article, "paragraphs", list, where):
                context = field(paragraph, "context", str, where)
                for qa in field(paragraph, "qas", list, where):
                    yield self._question(qa, context, where)
        self._report()

    def _question(self, qa: Any, context: str, where: str) -> Question:
        name = str(qa.get("id", "")) if isinstance(qa, dict) else ""
        if not name or name in self.seen:
            raise InputError(
                f"{where}: every question must have an `id` of its own. "
                f"Received: id={name!r}"
            )
        self.seen.add(name)
        where = f"{self.path}, question {name}"
        text = field(qa, "question", str, where)
        if self.part == "predict" and not qa.get("answers"):
            known = () if qa.get("is_impossible") else None
            return Question(name, text, context, known)
        if qa.get("is_impossible") or not field(qa, "answers", list, where):
            self._may_be_impossible(where)
            return Question(name, text, context, ())
        answers = [
            (field(a, "text", str, where), field(a, "answer_start", int, where))
            for a in qa["answers"]
        ]
        texts = tuple(answer for answer, _ in answers)
        return Question(
            name, text, context, texts, self._span(context, answers, where)
        )

    def _may_be_impossible(self, where: str) -> None:
        if not self.impossible:
            raise InputError(
                f"{where}: every question of this task must have an answer; "
                "task=squad-2.0 knows questions without. Received: none"
            )

    def _span(self, context: str, answers: list, where: str) -> tuple[int, int]:
        """Return the place of the first answer that is in the context."""
        for text, start in answers:
            place = find_answer(context, text, start)
            if place is not None:
                self.moved += place != start
                return place, place + len(text)
        if self.part == "train":
            raise InputError(
                f"{where}: an answer must be in its context. "
                f"Received: {answers[0][0]!r}"
            )
        self.absent += 1
        return 0, 0

    def _report(self) -> None:
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


def read_squad(path: str, part: str, impossible: bool) -> list[Question]:
    """Return the questions of a file.

    Args:
      path: the file.
      part: "train", "eval" or "predict"; the last needs no answers.
      impossible: whether a question may have no answer.

    Raises:
      InputError: the file is malformed, or an answer to learn from is not in
        its context; the message names the file and the question.
    """
    return list(Reader(path, part, impossible).questions())
