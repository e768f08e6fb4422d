"""Answers as texts: those of spans, the n best, and their files.

Positions count tokens of a row, `[CLS]` being 0.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from albert_tf.base import files
from albert_tf.tasks import answer_metrics
from albert_tf.tasks.numerics import Spans, softmax
from albert_tf.tasks.prediction_files import (
    sibling,
    submission_path,
    write_tsv,
)
from albert_tf.tasks.squad_files import Question


@dataclasses.dataclass(frozen=True)
class Window:
    """The part of a context that stands in a row.

    Attributes:
      position: of the first token of the context.
      starts: int [W], where each token begins in the context's text.
      ends: int [W], where it ends.
      is_best: bool [W], whether no other window gives it more context.
    """

    position: int
    starts: np.ndarray
    ends: np.ndarray
    is_best: np.ndarray


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer and the scores of its ends."""

    text: str
    start_score: float
    end_score: float
    place: tuple[int, int]  # in the context

    @property
    def score(self) -> float:
        """The sum of both scores."""
        return self.start_score + self.end_score


NOTHING = Answer("", -1e6, -1e6, (0, 0))


def text_answer(
    context: str, window: Window, start: int, end: int
) -> tuple[str, tuple[int, int]]:
    """Return the text of a span as it stands in the context, and its place."""
    first = int(window.starts[start - window.position])
    last = int(window.ends[end - window.position])
    text = context[first:last]
    first += len(text) - len(text.lstrip())
    text = text.strip()
    return text, (first, first + len(text))


def n_best(
    context: str, windows: Sequence[Window], spans: Spans, n: int
) -> list[Answer]:
    """Return the n best different answers of all rows of a question.

    Source: `write_predictions_v1` and `_v2` of the released `squad_utils.py`.
    """
    scores = spans.start_score + spans.end_score  # [R, S]
    rows, places = np.nonzero(np.isfinite(scores))
    order = np.argsort(-scores[rows, places], kind="stable")
    best: dict[str, Answer] = {}
    for row, place in zip(rows[order], places[order], strict=True):
        first, last, *values = (x[row, place].item() for x in spans)
        text, where = text_answer(context, windows[row], first, last)
        if text and text not in best:
            best[text] = Answer(text, *values, where)
        if len(best) == n:
            break
    return list(best.values()) or [NOTHING]


def probabilities(answers: Sequence[Answer]) -> list[float]:
    """Return the softmax of the answers' scores."""
    return softmax(np.array([answer.score for answer in answers])).tolist()


@dataclasses.dataclass(frozen=True)
class AnswerPrediction:
    """The n best answers, were there one, and how likely there is none."""

    best: list[Answer]
    null_odds: float | None  # larger: no answer is likelier; None: not asked

    def text(self, threshold: float | None) -> str:
        """Return the answer, "" if the null odds exceed a threshold."""
        known = None not in (threshold, self.null_odds)
        return "" if known and self.null_odds > threshold else self.best[0].text


def nbest_entries(answers: Sequence[Answer]) -> list[dict]:
    """Return answers as the released `nbest_predictions.json` has them."""
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
    """Return the questions that were not answered with the exact words."""
    table = [["id", "question", "prediction", "answers"]]
    for question, text in zip(examples, texts, strict=True):
        golds = question.answers or ("",)
        if not any(answer_metrics.exact(gold, text) for gold in golds):
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
    """Write the files of a split; return their names.

    They are `predictions.json`, `nbest_predictions.json`, `null_odds.json`
    where a question may have no answer, and with known answers `errors.tsv`.

    Args:
      path: of the first file without its ending.
      examples: the questions.
      predictions: their answers.
      threshold: null odds above it mean no answer.
      submission: the name of a further file, "" for none.
    """
    pairs = list(zip(examples, predictions, strict=True))
    texts = {q.id: p.text(threshold) for q, p in pairs}
    contents = {
        "predictions": texts,
        "nbest_predictions": {q.id: nbest_entries(p.best) for q, p in pairs},
    }
    if any(p.null_odds is not None for p in predictions):
        contents["null_odds"] = {q.id: p.null_odds for q, p in pairs}
    named = {
        sibling(path, name) + ".json": content
        for name, content in contents.items()
    }
    target = submission_path(path, {"": submission})
    if target:
        named[target] = texts
    for file, content in named.items():
        files.write_json(file, content)
    if any(question.answers is None for question in examples):
        return list(named)
    table = error_table(examples, list(texts.values()))
    return [*named, write_tsv(sibling(path, "errors") + ".tsv", table)]
