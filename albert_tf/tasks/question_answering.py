"""Questions whose answers are spans of a context.

Long contexts become several rows, windows that overlap. Shapes: B batch of
rows, T tokens.
"""

import dataclasses
from typing import ClassVar

import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.model.task_heads import (
    EXCLUDED,
    AlbertForBeamSpans,
    AlbertForSpans,
)
from albert_tf.tasks import answer_metrics
from albert_tf.tasks.answer_files import AnswerPrediction, write_answers
from albert_tf.tasks.answers import (
    Answer,
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
from albert_tf.tasks.task import DataConfig, Task, TaskConfig
from albert_tf.training.objectives import cross_entropy, soft_cross_entropy

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

SQUAD2 = ("exact", "f1", "best_exact", "best_f1")
SCORINGS = {
    "squad1": ("exact_match", "f1"),
    "squad2": SQUAD2,
    "cmrc": ("exact_match", "f1", "average"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """The kind; `scoring` and `impossible` are what data sets differ in.

    Attributes:
      scoring: which official script's metrics, a key of `SCORINGS`; ""
        follows from the training examples.
      impossible: whether questions may have no answer; None follows from the
        training examples.
      submission: name of the file that an evaluation server takes.
    """

    kind = "question_answering"
    terms = ("task",)
    takes: ClassVar = tuple(
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
    def averages(self):
        return self.config.answer_head == "simple"

    @property
    def token_outputs(self):
        if self.config.answer_head == "simple":
            return {"start_logits": EXCLUDED, "end_logits": EXCLUDED}
        return {}

    @property
    def distils(self):
        return self.config.answer_head == "simple"

    def with_config(self, config):
        task = super().with_config(config)
        limit = config.null_score_diff_threshold
        if limit is not None and self.impossible is False:
            raise InputError(
                "`null_score_diff_threshold` has no meaning where every "
                "question has an answer. Received: "
                f"null_score_diff_threshold={limit}"
            )
        c = task.config
        # Room for [CLS], two [SEP] and as much context as a stride advances.
        room = c.max_seq_length - 3 - c.max_query_length
        if room < 1 or c.doc_stride > room:
            raise InputError(
                "`doc_stride` must be at most `max_seq_length` - 3 - "
                "`max_query_length`, or parts of the context would be left "
                f"out. Received: doc_stride={c.doc_stride}, "
                f"max_seq_length={c.max_seq_length}, "
                f"max_query_length={c.max_query_length}"
            )
        return task

    def with_data(self, data: DataConfig):
        columns = "text_column", "text_pair_column", "label_column"
        more = "choice_columns", "id_column", "header"
        data.refuse(self.kind, *columns, *more)
        if self.scoring == "cmrc":
            answer_metrics.latin_tokenizer()  # or an error, before training
        known = SCORINGS[self.scoring] if self.scoring else ("f1",)
        main = data.main_metric or self.main_metric
        if main not in known:
            raise InputError(
                f"`main_metric` must be one of {', '.join(known)}. "
                f"Received: main_metric={main}"
            )
        return dataclasses.replace(self, main_metric=main)

    def read(self, part, path) -> list[Question]:
        return read_squad(path, part, self.impossible is not False)

    def for_model(self, trained):
        task = super().for_model(trained)
        if self.impossible and not trained.impossible:
            raise InputError(
                "The model must know questions without an answer, as from "
                f"task=squad-2.0. Received: task={self.name} and a model of "
                f"task={trained.name}"
            )
        return dataclasses.replace(
            task,
            impossible=trained.impossible and self.impossible is not False,
            scoring=self.scoring or trained.scoring,
        )

    def fitted(self, examples):
        impossible, config = self.impossible, self.config
        if impossible is None:
            impossible = any(q.answers == () for q in examples)
        if config.answer_head == "beam" and not impossible:
            raise InputError(
                "`answer_head` must be simple where every question has an "
                "answer. Received: answer_head=beam"
            )
        scoring = self.scoring or ("squad2" if impossible else "squad1")
        return dataclasses.replace(self, impossible=impossible, scoring=scoring)

    # Features.

    def features(self, examples, tokenizer):
        return question_features(self.config, examples, tokenizer)

    # The model and its loss.

    def build_model(self, config, dtype, albert=None):
        c = self.config
        if c.answer_head == "simple":
            return AlbertForSpans(config, c.classifier_dropout, dtype, albert)
        return AlbertForBeamSpans(
            config,
            c.start_n_top,
            c.end_n_top,
            c.classifier_dropout,
            dtype,
            albert,
        )

    def outputs(self, model, batch, seed=None):
        inputs = [
            batch[name] for name in ("input_ids", "input_mask", "segment_ids")
        ]
        if self.config.answer_head == "simple":
            return model(*inputs, seed=seed)
        return model(*inputs, seed=seed, labels=batch.get("labels"))

    def measured_outputs(self, model, batch):
        outputs = super().measured_outputs(model, batch)
        # These are for the loss alone.
        for name in ("start_log_probs", "end_log_probs"):
            outputs.pop(name, None)
        return outputs

    def example_losses(self, outputs, batch):
        start, end = tf.unstack(batch["labels"], axis=1)  # [B]
        if self.config.answer_head == "simple":
            names = "start_logits", "end_logits"
        else:
            names = "start_log_probs", "end_log_probs"
        loss = cross_entropy(outputs[names[0]], start)
        loss += cross_entropy(outputs[names[1]], end)
        if self.config.answer_head == "beam":
            loss += tf.nn.sigmoid_cross_entropy_with_logits(
                labels=tf.cast(start == 0, tf.float32),
                logits=outputs["answer_logits"],
            )
        return {"task": 0.5 * loss}

    def soft_losses(self, outputs, targets, temperature, batch):
        """Return the distance of logits to a teacher's, {"task": [B]}."""
        losses = [
            soft_cross_entropy(outputs[name], targets[name], temperature)
            for name in ("start_logits", "end_logits")
        ]
        return {"task": 0.5 * (losses[0] + losses[1])}

    # Results.

    def served(self, outputs):
        return {}

    def predictions(self, examples, outputs, features):
        c = self.config
        found = []
        for question, rows in zip(
            examples, question_windows(features), strict=True
        ):
            spans = [(self._spans(outputs, r, w), w) for r, w in rows]
            best = n_best(
                question.context, spans, c.n_best_size, c.max_answer_length
            )
            odds = None
            if self.impossible:
                odds = self._null_odds(outputs, [r for r, _ in rows], best[0])
            found.append(AnswerPrediction(best, odds))
        return found

    def _spans(self, outputs, row: int, window: Window):
        if self.config.answer_head == "simple":
            names = "start_logits", "end_logits"
            logits = [outputs[name][row] for name in names]
            return simple_spans(*logits, window, self.config.n_best_size)
        return beam_spans(
            outputs["start_top_log_probs"][row],
            outputs["start_top_index"][row],
            outputs["end_top_log_probs"][row],
            outputs["end_top_index"][row],
        )

    def _null_odds(self, outputs, rows: list[int], best: Answer) -> float:
        """Return how much likelier no answer is, least of all windows."""
        if self.config.answer_head == "beam":
            return float(outputs["answer_logits"][rows].min())
        null = outputs["start_logits"][rows, 0] + outputs["end_logits"][rows, 0]
        return float(null.min()) - best.score

    def threshold(self, examples, predictions) -> float | None:
        """Return the null odds above which there is no answer."""
        if not self.impossible:
            return None
        given = self.config.null_score_diff_threshold
        if given is not None:
            return given
        if any(question.answers is None for question in examples):
            return 0.0
        return answer_metrics.decision_threshold(
            [question.answers for question in examples],
            [p.best[0].text for p in predictions],
            [p.null_odds for p in predictions],
        )

    def tuned(self, examples, predictions):
        unknown = any(question.answers is None for question in examples)
        if unknown or not self.impossible:
            return self
        return self.with_null_threshold(self.threshold(examples, predictions))

    def score(self, examples, predictions):
        answers = [question.answers for question in examples]
        texts = [p.best[0].text for p in predictions]
        if self.scoring == "squad2":
            return answer_metrics.squad2(
                answers,
                texts,
                [p.null_odds for p in predictions],
                self.config.null_score_diff_threshold,
            )
        return {
            "squad1": answer_metrics.squad1,
            "cmrc": answer_metrics.cmrc,
        }[self.scoring](answers, texts)

    def write_predictions(self, path, examples, predictions):
        threshold = self.threshold(examples, predictions)
        return write_answers(
            path, examples, predictions, threshold, self.submission
        )


KINDS = {QuestionAnswering.kind: QuestionAnswering}
