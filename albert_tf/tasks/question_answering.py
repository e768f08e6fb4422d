"""Question answering, in which answers are spans of a context.

A row is `[CLS] question [SEP] window [SEP]`; a long context is split into
several rows with overlapping windows. The answer's position in a row comes from
the tokenizer's offsets. Shapes: N rows, R rows per question, T tokens, W
tokens per context.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from albert_tf.base.errors import require
from albert_tf.tasks import metrics
from albert_tf.tasks.features import Features, best_windows, make_windows
from albert_tf.tasks.numerics import Spans, candidates
from albert_tf.tasks.squad import (
    AnswerPrediction,
    Question,
    Reader,
    Window,
    n_best,
    probabilities,
    write_answers,
)
from albert_tf.tasks.tables import TableColumns
from albert_tf.tasks.task import Task
from albert_tf.tasks.task_config import TaskConfig
from albert_tf.text.packing import two_part_row
from albert_tf.text.tokenizers import Tokenizer

DEFAULTS = TaskConfig(
    max_seq_length=384,
    classifier_dropout=0.1,
    doc_stride=128,
    max_query_length=64,
    answer_head="simple",
    start_n_top=5,
    end_n_top=5,
    n_best_size=20,
    max_answer_length=30,
)

SCORES = {
    "": ("f1",),  # the metric that all scripts compute
    "squad1": ("exact_match", "f1"),
    "squad2": ("exact", "f1", "best_exact", "best_f1"),
    "cmrc": ("exact_match", "f1", "average"),
}


def label(
    question: Question, context: np.ndarray, window: slice, position: int
) -> tuple[int, int]:
    """Return the positions of an answer's first and last tokens in a row.

    Each token from the first to the last contains part of the answer.

    Args:
      question: the question; its `span` is the answer.
      context: int32 [3, W], the ids, starts and ends of the context's tokens.
      window: the slice of context tokens in the row.
      position: the position in the row at which the window begins.

    Returns:
      The positions, or (0, 0), which is `[CLS]`, if the window does not contain
      the whole answer.
    """
    start, end = question.span
    first = int(np.searchsorted(context[2], start, side="right"))
    last = int(np.searchsorted(context[1], end, side="left")) - 1
    last = max(first, last)
    if not end or first < window.start or last >= window.stop:
        return 0, 0
    shift = position - window.start
    return first + shift, last + shift


def question_features(
    config: TaskConfig, examples: Sequence[Question], tokenizer: Tokenizer
) -> Features:
    """Return the questions as rows, with labels if all answers are known."""

    @functools.cache  # many questions may share a context
    def encoded(context: str) -> np.ndarray:
        tokens = tokenizer.encode_with_offsets(context)
        return np.array(tokens, np.int32).reshape(3, -1)

    queries = tokenizer.encode_batch([question.text for question in examples])
    rows, labels, counts, offsets, best = [], [], [], [], []
    for question, query in zip(examples, queries, strict=True):
        query = query[: config.max_query_length]
        context = encoded(question.context)
        number = context.shape[1]
        size = config.max_seq_length - len(query) - 3
        # Even an empty context has one window, which is empty.
        windows = make_windows(number, size, config.doc_stride) or [(0, 0)]
        best_of = best_windows(number, windows)
        for i, (start, length) in enumerate(windows):
            window = slice(start, start + length)
            row, position = two_part_row(tokenizer, query, context[0, window])
            rows.append((row, position))
            labels.append(label(question, context, window, position))
            offsets.append(context[1:, window])
            best.append(best_of[window] == i)
        counts.append(len(windows))
    is_labeled = all(question.answers is not None for question in examples)
    starts, ends = np.concatenate(offsets, axis=1)
    return Features.from_rows(
        rows,
        {"labels": np.array(labels, np.int32)} if is_labeled else {},
        tokenizer.pad_id,
        config.max_seq_length,
        notes={
            "rows": np.array(counts, np.int32),
            "token_starts": starts,
            "token_ends": ends,
            "is_best": np.concatenate(best),
        },
    )


def question_windows(features: Features) -> list[list[tuple[int, Window]]]:
    """Return a list of (row number, window) pairs for each question."""
    notes, positions = features.notes, features.second_starts.tolist()
    sizes = features.lengths - features.second_starts - 1
    bounds = np.cumsum(sizes)[:-1]
    names = "token_starts", "token_ends", "is_best"
    tokens = zip(
        *(np.split(notes[name], bounds) for name in names), strict=True
    )
    windows = [Window(p, *x) for p, x in zip(positions, tokens, strict=True)]
    rows = list(enumerate(windows))
    last = np.cumsum(notes["rows"])
    return [
        rows[end - count : end]
        for end, count in zip(last, notes["rows"], strict=True)
    ]


def answer_tokens(
    windows: Sequence[Window], width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return where answers may begin and where they may end, both bool [R, T].

    An answer may begin only in the window in which its first token has the most
    context.

    Args:
      windows: the windows of R rows.
      width: the number of tokens in a row, T.
    """
    begins, inside = np.zeros([2, len(windows), width], bool)
    for row, window in enumerate(windows):
        span = slice(window.position, window.position + len(window.starts))
        begins[row, span], inside[row, span] = window.is_best, True
    return begins, inside


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """The task of finding the answer to a question in a context.

    Attributes:
      scoring: the official script to follow, a key of `SCORES`; "" to choose a
        script that suits the training examples.
      impossible: whether questions may have no answer; None to infer the value
        from the training examples.
      submission: name of the submission file, or "" if there is none.
    """

    kind = "question_answering"
    signature = "answer"
    hub_class, hub_head = "AlbertForQuestionAnswering", "qa_outputs"
    fields: ClassVar = {"question": str, "context": str}
    takes = (
        *(k for k, x in dataclasses.asdict(DEFAULTS).items() if x is not None),
        "null_score_diff_threshold",
    )

    scoring: str = ""
    impossible: bool | None = None
    submission: str = ""
    main_metric: str = "f1"
    config: TaskConfig = DEFAULTS

    @property
    def head_kind(self):
        is_beam = self.config.answer_head == "beam"
        return "beam" if is_beam else self.kind

    @property
    def head_arguments(self):
        c = self.config
        return (c.start_n_top, c.end_n_top) if self.head_kind == "beam" else ()

    @property
    def scores(self) -> tuple[str, ...]:
        """The metrics that can be the main metric."""
        return SCORES[self.scoring]

    def check(self, changes):
        super().check(changes)
        limit = changes.get("null_score_diff_threshold")
        require(
            limit is None or self.impossible is not False,
            "`null_score_diff_threshold` does not apply if every question "
            "has an answer.",
            null_score_diff_threshold=limit,
        )
        c = self.config
        rule = "`max_seq_length` must be at least 5 for questions."
        require(c.max_seq_length >= 5, rule, max_seq_length=c.max_seq_length)
        # Besides the question, a row must have room for [CLS], two [SEP] and a
        # stride of context.
        require(
            1 <= c.doc_stride <= c.max_seq_length - 3 - c.max_query_length,
            "`doc_stride` must be at most `max_seq_length` - 3 - "
            "`max_query_length`; otherwise windows skip parts of the context.",
            doc_stride=c.doc_stride,
            max_seq_length=c.max_seq_length,
            max_query_length=c.max_query_length,
        )

    def fitted_lengths(self, config, changes):
        """Return lengths that give a question at most a quarter of a row.

        A `max_query_length` in `changes` is kept. The stride and the answer
        length are reduced to fit the rest of the row.
        """
        length, query = config.max_seq_length, config.max_query_length
        if "max_query_length" not in changes:
            query = min(query, max(1, length // 4))
        room = max(1, length - 3 - query)
        return {
            "max_query_length": query,
            "doc_stride": min(config.doc_stride, room),
            "max_answer_length": min(config.max_answer_length, room),
        }

    def table(self, width=None, labeled=False):
        return TableColumns(("question", "context"), "answers")

    def reopened(self):
        if self.impossible or self.scoring != "squad1":
            return self
        # In earlier training, every question had an answer.
        return dataclasses.replace(self, impossible=None, scoring="")

    def read(self, part, path) -> list[Question]:
        if self.scoring == "cmrc":
            metrics.latin_tokenizer()  # fails before training, not after
        return Reader(path, part, self.impossible is not False).questions()

    def for_model(self, trained):
        task = super().for_model(trained)
        require(
            trained.impossible or not self.impossible,
            "The model must be trained with unanswerable questions, as in "
            "task=squad-2.0.",
            task=f"{self.name} and a model of task={trained.name}",
        )
        return dataclasses.replace(
            task,
            impossible=trained.impossible and self.impossible is not False,
            scoring=self.scoring or trained.scoring,
        )

    def fitted(self, examples):
        impossible = self.impossible
        if impossible is None:
            impossible = any(q.answers == () for q in examples)
        require(
            impossible or self.config.answer_head == "simple",
            "`answer_head` must be simple if every question has an answer.",
            answer_head=self.config.answer_head,
        )
        scoring = self.scoring or ("squad2" if impossible else "squad1")
        return dataclasses.replace(self, impossible=impossible, scoring=scoring)

    def features(self, examples, tokenizer):
        return question_features(self.config, examples, tokenizer)

    def predictions(self, examples, outputs, features):
        width = features.max_seq_length
        if "start_logits" in outputs:
            width = outputs["start_logits"].shape[1]
        predictions = []
        for question, rows in zip(
            examples, question_windows(features), strict=True
        ):
            numbers, windows = map(list, zip(*rows, strict=True))
            question_outputs = {name: x[numbers] for name, x in outputs.items()}
            spans = self.candidates(
                question_outputs, *answer_tokens(windows, width)
            )
            n = self.config.n_best_size
            best = n_best(question.context, windows, spans, n)
            odds = None
            if self.impossible:
                odds = float(self.no_answer(question_outputs).min())
                odds -= best[0].score if self.odds_are_relative else 0.0
            predictions.append(AnswerPrediction(best, odds))
        return predictions

    def candidates(self, outputs, begins, inside) -> Spans:
        """Return the spans in rows [R] that may be answers."""
        c = self.config
        limits = c.n_best_size, c.max_answer_length
        return candidates(c.answer_head, outputs, begins, inside, *limits)

    def no_answer(self, outputs):
        """Return each row's score [R] for the absence of an answer."""
        if self.odds_are_relative:
            return outputs["start_logits"][:, 0] + outputs["end_logits"][:, 0]
        return outputs["answer_logits"]

    @property
    def odds_are_relative(self) -> bool:
        """Whether null odds are `no_answer` minus the best answer's score."""
        return self.config.answer_head == "simple"

    def threshold(self, examples, predictions) -> float | None:
        """Return the null odds above which a question has no answer.

        If no setting specifies the threshold, it is tuned on the examples. If
        there are no examples, or any of them is unlabeled, it is 0. The result
        is None if every question has an answer.
        """
        if not self.impossible:
            return None
        if self.config.null_score_diff_threshold is not None:
            return self.config.null_score_diff_threshold
        answers = [question.answers for question in examples]
        if not answers or None in answers:
            return 0.0
        return metrics.decision_threshold(
            answers,
            [p.best[0].text for p in predictions],
            [p.null_odds for p in predictions],
        )

    def tuned(self, examples, predictions):
        if not self.impossible:
            return self
        threshold = self.threshold(examples, predictions)
        return self.replaced(null_score_diff_threshold=threshold)

    @property
    def answer_outputs(self) -> tuple[str, ...]:
        """The head's outputs from which answers are computed."""
        if self.odds_are_relative:
            return "start_logits", "end_logits"
        return "start_top_log_probs", "end_top_log_probs", "answer_logits"

    def example(self, question, context):
        return Question("", question, context, None)

    def value(self, prediction):
        return prediction.text(self.config.null_score_diff_threshold or 0.0)

    def answer(self, query, prediction, top):
        """Return the answer ("" if there is none) and the best spans.

        If questions may have no answer, the result includes the null odds.
        """
        best = prediction.best[:top]
        pairs = zip(best, probabilities(best), strict=True)
        answers = [
            {
                "text": answer.text,
                "start": answer.span[0],
                "end": answer.span[1],
                "score": answer.score,
                "probability": probability,
            }
            for answer, probability in pairs
        ]
        odds = {"null_odds": prediction.null_odds} if self.impossible else {}
        return {"answer": self.value(prediction), "answers": answers} | odds

    def score(self, examples, predictions):
        answers = [question.answers for question in examples]
        texts = [p.best[0].text for p in predictions]
        if self.scoring == "squad1":
            return metrics.squad1(answers, texts)
        if self.scoring == "cmrc":
            return metrics.cmrc(answers, texts)
        odds = [p.null_odds for p in predictions]
        threshold = self.config.null_score_diff_threshold
        return metrics.squad2(answers, texts, odds, threshold)

    def write_predictions(self, path, examples, predictions):
        return write_answers(
            path, examples, predictions, self.threshold((), ()), self.submission
        )
