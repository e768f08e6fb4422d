"""Predicted answers, and the files of them that evaluations take."""

import dataclasses
from collections.abc import Sequence

from albert_tf.base import files
from albert_tf.tasks import answer_metrics
from albert_tf.tasks.answers import Answer, probabilities
from albert_tf.tasks.prediction_files import (
    sibling,
    submission_path,
    write_tsv,
)
from albert_tf.tasks.squad_files import Question


@dataclasses.dataclass(frozen=True)
class AnswerPrediction:
    """The n best answers, were there one, and how likely there is none."""

    best: list[Answer]
    null_odds: float | None  # larger: no answer is likelier; None: not asked

    def text(self, threshold: float | None) -> str:
        """Return the answer, "" if the null odds exceed a threshold."""
        if threshold is not None and (self.null_odds or 0.0) > threshold:
            return ""
        return self.best[0].text


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
