"""Answers from the outputs of a model: spans, texts, the n best, their files.

Positions count tokens of a row, `[CLS]` being 0.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from albert_tf.base import files
from albert_tf.tasks import answer_metrics
from albert_tf.tasks.prediction_files import (
    sibling,
    submission_path,
    write_tsv,
)
from albert_tf.tasks.probabilities import softmax
from albert_tf.tasks.squad_files import Question


@dataclasses.dataclass(frozen=True)
class Spans:
    """Candidates of one row: positions of first and last token, and scores."""

    start: np.ndarray  # int [S]
    end: np.ndarray
    start_score: np.ndarray  # float [S]
    end_score: np.ndarray


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


def top(values: np.ndarray, number: int) -> np.ndarray:
    """Return the indices of the largest values, largest first."""
    return np.argsort(-values, kind="stable")[:number]


def simple_spans(
    start_logits: np.ndarray, end_logits: np.ndarray, window: Window, n: int
) -> Spans:
    """Return all pairs of the n likeliest starts and ends in a context."""
    first = window.position
    inside = slice(first, first + len(window.starts))
    # Only starts in their best window can be answers.
    logits = np.where(window.is_best, start_logits[inside], -np.inf)
    start = top(logits, min(n, int(window.is_best.sum()))) + first
    end = top(end_logits[inside], n) + first
    pairs = np.repeat(start, len(end)), np.tile(end, len(start))
    return Spans(*pairs, start_logits[pairs[0]], end_logits[pairs[1]])


def beam_spans(outputs: dict[str, np.ndarray]) -> Spans:
    """Return the spans of a row's beam: K starts, and M ends of each."""
    ends = outputs["end_top_index"]  # [K, M]
    return Spans(
        np.repeat(outputs["start_top_index"], ends.shape[1]),
        ends.reshape(-1),
        np.repeat(outputs["start_top_log_probs"], ends.shape[1]),
        outputs["end_top_log_probs"].reshape(-1),
    )


def possible(spans: Spans, window: Window, max_answer_length: int) -> Spans:
    """Return the spans that can be answers.

    They lie in the context, in order, are not too long, and begin in the
    window that knows most of what surrounds them.
    """
    first, size = window.position, len(window.starts)
    inside = (spans.start >= first) & (spans.end < first + size)
    length = spans.end - spans.start + 1
    fits = inside & (length >= 1) & (length <= max_answer_length)
    within = np.clip(spans.start - first, 0, max(size - 1, 0))
    fits &= window.is_best[within] if size else False
    return Spans(*(x[fits] for x in dataclasses.astuple(spans)))


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
    context: str,
    rows: Sequence[tuple[Spans, Window]],
    n: int,
    max_answer_length: int,
) -> list[Answer]:
    """Return the n best different answers of all rows of a question.

    Source: `write_predictions_v1` and `_v2` of the released `squad_utils.py`.
    """
    fit = [possible(s, window, max_answer_length) for s, window in rows]
    row_of = np.repeat(np.arange(len(fit)), [len(s.start) for s in fit])
    columns = zip(*map(dataclasses.astuple, fit), strict=True)
    start, end, *scores = map(np.concatenate, columns)
    best: dict[str, Answer] = {}
    for i in top(scores[0] + scores[1], len(start)):
        window = rows[row_of[i]][1]
        text, place = text_answer(context, window, start[i], end[i])
        values = [x[i].item() for x in scores]
        if text and text not in best:
            best[text] = Answer(text, *values, place)
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
