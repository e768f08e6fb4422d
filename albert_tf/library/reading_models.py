"""Models that read: spans, tags and choices, and what `predict` returns.

Shapes: N examples, C choices.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.library.raw_data import TableColumns
from albert_tf.library.task_loading import label_names
from albert_tf.library.task_model import ClassModel, TaskModel
from albert_tf.model.layers import registered
from albert_tf.tasks.multiple_choice import Layout
from albert_tf.tasks.registry import find
from albert_tf.tasks.tables import Columns
from albert_tf.tasks.tagged_words import (
    TAGS_COLUMN,
    WORDS_COLUMN,
    divided,
    name_in_table,
)
from albert_tf.text.packing import checked_texts


@registered
class MultipleChoice(ClassModel):
    """One of several choices: columns `context`, `question`, `choices`.

    Labels are numbers of choices from 0. `predict` returns probabilities,
    float32 [N, C], 0 where an example has fewer choices.
    """

    kinds = ("multiple_choice",)

    @classmethod
    def new_task(cls, labels):
        rule = "`labels` have no meaning for choices."
        require(labels is None, rule, labels=labels)
        return find("multiple_choice")

    def with_task_inputs(self, batch):
        every = tf.ones(tf.shape(batch["input_ids"])[:2])
        return {"choice_mask": every} | batch

    def table_columns(self):
        layout = self.task.layout
        c, choices = layout.columns, layout.choice_columns[:1]
        texts = c.text, c.text_pair, *choices
        return TableColumns(texts, c.label[0], lists=choices)

    def codec(self, x, named):
        if named:
            return self.task
        c, choices = self.task.layout.columns, self.task.layout.choice_columns
        columns = Columns(c.text, c.text_pair, c.label)
        layout = Layout(columns=columns, choice_columns=choices[:1])
        return dataclasses.replace(self.task, layout=layout)


@registered
class QuestionAnswerer(TaskModel):
    """Spans of a context that answer a question: `question`, `context`.

    Labels are texts, which are sought in the context; lists of them; or
    dicts of `text` and `answer_start`, as in SQuAD; "" for no answer.
    `predict` returns the answers' texts, "" where there is none.
    """

    kinds = ("question_answering",)

    @classmethod
    def new_task(cls, labels):
        rule = "`labels` have no meaning for answers."
        require(labels is None, rule, labels=labels)
        return find("question_answering")

    def table_columns(self):
        return TableColumns(("question", "context"), "answers")

    def examples(self, x, y, part):
        task = self.task
        if part == "train" and not task.impossible and task.scoring == "squad1":
            # No question was without an answer so far.
            self.task = dataclasses.replace(task, impossible=None, scoring="")
        return super().examples(x, y, part)

    def task_for(self, examples):
        return self.task.fitted(examples)  # whether there may be no answer

    def answers(self, predictions):
        limit = self.task.config.null_score_diff_threshold or 0.0
        return [p.text(limit) for p in predictions]


@registered
class Tagger(TaskModel):
    """A tag for every word: texts are lists of words, or are divided.

    In a `tf.data.Dataset` without tags, lists of strings are batches of texts
    if any string has a space; otherwise they are the words of a text.

    `predict` returns the tags of each text's words; `words_and_tags` both.
    """

    kinds = ("token_classification",)
    text_rank = 1

    @classmethod
    def new_task(cls, labels):
        require(
            labels is not None,
            "`labels` must be given, for the model has no head with tags. "
            "Received: none",
        )
        task = find("token_classification")
        return dataclasses.replace(task, labels=label_names(labels))

    def table_columns(self):
        words = (name_in_table(self.task.word_column, WORDS_COLUMN),)
        tags = name_in_table(self.task.tag_column, TAGS_COLUMN)
        return TableColumns(words, tags, lists=words)

    def labels_for_codec(self, y):
        return y

    def answers(self, predictions):
        return [list(p.tags) for p in predictions]

    def words_and_tags(self, texts: Sequence[str], **kwargs) -> list[list]:
        """Return (word, tag) for each word of texts, or of a lone text."""
        if isinstance(texts, str):
            return self.words_and_tags([texts], **kwargs)[0]
        words = [divided(text) for text in checked_texts(texts, "x")]
        tags = self.answers(self.predictions(words, **kwargs))
        both = zip(words, tags, strict=True)
        return [list(zip(w, t, strict=True)) for w, t in both]
