"""Questions whose answers are spans of a context.

Long contexts become several rows, windows that overlap. Shapes: N rows, T
tokens.
"""

import dataclasses

from albert_tf.base.errors import require
from albert_tf.tasks import answer_metrics
from albert_tf.tasks.answer_files import AnswerPrediction, write_answers
from albert_tf.tasks.answers import (
    Spans,
    Window,
    beam_spans,
    n_best,
    simple_spans,
)
from albert_tf.tasks.question_features import (
    question_features,
    question_windows,
)
from albert_tf.tasks.squad_files import Question, read_squad
from albert_tf.tasks.task import Task, TaskConfig

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
    takes = tuple(
        f.name
        for f in dataclasses.fields(TaskConfig)
        if f.name != "max_qa_length"
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

    def with_data(self, data):
        if self.scoring == "cmrc":
            answer_metrics.latin_tokenizer()  # or an error, before training
        return super().with_data(data)

    def read(self, part, path) -> list[Question]:
        return read_squad(path, part, self.impossible is not False)

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
