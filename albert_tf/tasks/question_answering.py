"""Questions whose answers are spans of a context.

A row is `[CLS] question [SEP] window [SEP]`; long contexts become several of
them, whose windows overlap. The answer's place in a row comes from the
tokenizer's own offsets. Shapes: N rows, T tokens, W tokens of a context.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from albert_tf.base.errors import require
from albert_tf.tasks import answer_metrics
from albert_tf.tasks.answers import (
    AnswerPrediction,
    Spans,
    Window,
    beam_spans,
    n_best,
    simple_spans,
    write_answers,
)
from albert_tf.tasks.features import (
    Features,
    best_windows,
    make_windows,
)
from albert_tf.tasks.squad_files import Question, Reader
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
    "": ("f1",),  # what all have
    "squad1": ("exact_match", "f1"),
    "squad2": ("exact", "f1", "best_exact", "best_f1"),
    "cmrc": ("exact_match", "f1", "average"),
}


def label(
    question: Question,
    context: np.ndarray,
    window: slice,
    position: int,
) -> tuple[int, int]:
    """Return the answer's first and last position in a row.

    They are those of the tokens that show a part of the answer.

    Args:
      question: its `span` is the answer.
      context: int32 [3, W], ids, starts and ends.
      window: the tokens of the context in the row.
      position: where they begin in the row.

    Returns:
      Twice 0, `[CLS]`, if there is no answer or not all of it in the window.
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
    """Return the rows of questions, with labels if all answers are known."""

    @functools.cache  # many questions are about one context
    def encoded(context: str) -> np.ndarray:
        tokens = tokenizer.encode_with_offsets(context)
        return np.array(tokens, np.int32).reshape(3, -1)

    queries = tokenizer.encode_batch([question.text for question in examples])
    rows, labels, counts, offsets, best = [], [], [], [], []
    for question, query in zip(examples, queries, strict=True):
        query = query[: config.max_query_length]
        context = encoded(question.context)
        number = context.shape[1]
        room = config.max_seq_length - len(query) - 3
        # An empty context has one empty window.
        windows = make_windows(number, room, config.doc_stride) or [(0, 0)]
        best_of = best_windows(number, windows)
        for i, (start, length) in enumerate(windows):
            window = slice(start, start + length)
            row, position = two_part_row(tokenizer, query, context[0, window])
            rows.append((row, position))
            labels.append(label(question, context, window, position))
            offsets.append(context[1:, window])
            best.append(best_of[window] == i)
        counts.append(len(windows))
    known = all(question.answers is not None for question in examples)
    starts, ends = np.concatenate(offsets, axis=1)
    return Features.from_rows(
        rows,
        {"labels": np.array(labels, np.int32)} if known else {},
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
    """Return, for each question, the numbers and the windows of its rows."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """The kind; `scoring` and `impossible` are what data sets differ in.

    Attributes:
      scoring: which official script's metrics, a key of `SCORES`; "" follows
        from the training examples.
      impossible: whether questions may have no answer; None follows from the
        training examples.
      submission: name of the file that an evaluation server takes.
    """

    kind = "question_answering"
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
    def scores(self) -> tuple[str, ...]:
        """The metrics of which one can be the main one."""
        return SCORES[self.scoring]

    def with_config(self, config):
        task = super().with_config(config)
        limit = config.null_score_diff_threshold
        require(
            limit is None or self.impossible is not False,
            "`null_score_diff_threshold` has no meaning where every question "
            "has an answer.",
            null_score_diff_threshold=limit,
        )
        c = task.config
        rule = "`max_seq_length` must be at least 5 for questions."
        require(c.max_seq_length >= 5, rule, max_seq_length=c.max_seq_length)
        # Room for [CLS], two [SEP] and as much context as a stride advances.
        require(
            1 <= c.doc_stride <= c.max_seq_length - 3 - c.max_query_length,
            "`doc_stride` must be at most `max_seq_length` - 3 - "
            "`max_query_length`, or parts of the context would be left out.",
            doc_stride=c.doc_stride,
            max_seq_length=c.max_seq_length,
            max_query_length=c.max_query_length,
        )
        return task

    def fitted_lengths(self, config, given):
        """Give questions a quarter; keep windows from skipping tokens."""
        length, query = config.max_seq_length, config.max_query_length
        if "max_query_length" not in given:
            query = min(query, max(1, length // 4))
        room = max(1, length - 3 - query)
        return {
            "max_query_length": query,
            "doc_stride": min(config.doc_stride, room),
            "max_answer_length": min(config.max_answer_length, room),
        }

    def with_data(self, data):
        if self.scoring == "cmrc":
            answer_metrics.latin_tokenizer()  # or an error, before training
        return super().with_data(data)

    def read(self, part, path) -> list[Question]:
        return Reader(path, part, self.impossible is not False).questions()

    def for_model(self, trained):
        task = super().for_model(trained)
        require(
            trained.impossible or not self.impossible,
            "The model must know questions without an answer, as from "
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
            "`answer_head` must be simple where every question has an answer.",
            answer_head=self.config.answer_head,
        )
        scoring = self.scoring or ("squad2" if impossible else "squad1")
        return dataclasses.replace(self, impossible=impossible, scoring=scoring)

    def features(self, examples, tokenizer):
        return question_features(self.config, examples, tokenizer)

    def predictions(self, examples, outputs, features):
        c = self.config
        predictions = []
        for question, rows in zip(
            examples, question_windows(features), strict=True
        ):
            spans = [(self._spans(outputs, r, w), w) for r, w in rows]
            best = n_best(
                question.context, spans, c.n_best_size, c.max_answer_length
            )
            odds = None
            if self.impossible:
                numbers = [row for row, _ in rows]
                odds = self._null_odds(outputs, numbers, best[0].score)
            predictions.append(AnswerPrediction(best, odds))
        return predictions

    def _spans(self, outputs, row: int, window: Window) -> Spans:
        """Return a row's candidates, by the head that the model has."""
        if self.config.answer_head == "beam":
            return beam_spans({name: x[row] for name, x in outputs.items()})
        start, end = outputs["start_logits"][row], outputs["end_logits"][row]
        return simple_spans(start, end, window, self.config.n_best_size)

    def _null_odds(self, outputs, rows: list[int], best: float) -> float:
        """Return how much likelier no answer is, least of all windows."""
        if self.config.answer_head == "beam":
            return float(outputs["answer_logits"][rows].min())
        null = outputs["start_logits"][rows, 0] + outputs["end_logits"][rows, 0]
        return float(null.min()) - best

    def threshold(self, examples, predictions) -> float | None:
        """Return the null odds above which there is no answer."""
        if not self.impossible:
            return None
        if self.config.null_score_diff_threshold is not None:
            return self.config.null_score_diff_threshold
        answers = [question.answers for question in examples]
        if None in answers:
            return 0.0
        return answer_metrics.decision_threshold(
            answers,
            [p.best[0].text for p in predictions],
            [p.null_odds for p in predictions],
        )

    def tuned(self, examples, predictions):
        if not self.impossible:
            return self
        return self.with_null_threshold(self.threshold(examples, predictions))

    def score(self, examples, predictions):
        answers = [question.answers for question in examples]
        texts = [p.best[0].text for p in predictions]
        if self.scoring == "squad1":
            return answer_metrics.squad1(answers, texts)
        if self.scoring == "cmrc":
            return answer_metrics.cmrc(answers, texts)
        odds = [p.null_odds for p in predictions]
        threshold = self.config.null_score_diff_threshold
        return answer_metrics.squad2(answers, texts, odds, threshold)

    def write_predictions(self, path, examples, predictions):
        threshold = self.threshold(examples, predictions)
        return write_answers(
            path, examples, predictions, threshold, self.submission
        )
