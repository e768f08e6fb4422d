"""Answers from the outputs of a model: spans, their texts, the n best.

Positions count tokens of a row, `[CLS]` being 0.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from albert_tf.tasks.probabilities import softmax


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
