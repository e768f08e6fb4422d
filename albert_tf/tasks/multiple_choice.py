"""One of several choices, each scored beside the context and the question.

Shapes: N examples, C choices.
"""

import dataclasses

import numpy as np

from albert_tf.base.errors import require
from albert_tf.tasks.choice_files import (
    LETTERS,
    READERS,
    Choices,
    Layout,
    with_choice,
)
from albert_tf.tasks.features import Features, two_part_row
from albert_tf.tasks.prediction_files import sibling, write_labels, write_tsv
from albert_tf.tasks.probabilities import softmax
from albert_tf.tasks.sentences import Prediction
from albert_tf.tasks.task import Task
from albert_tf.tasks.task_config import COLUMNS, TaskConfig

DEFAULTS = TaskConfig(
    max_seq_length=512, classifier_dropout=0.1, max_qa_length=128
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoice(Task):
    """The kind; data sets differ in layout and number of choices.

    Attributes:
      layout: how files are read.
      number: C; 0 is the largest number of the training examples.
    """

    kind = "multiple_choice"
    scores = ("accuracy",)
    takes = ("max_seq_length", "classifier_dropout", "max_qa_length")
    data_takes = COLUMNS
    learnt = ("number",)

    layout: Layout = Layout()
    number: int = 0
    main_metric: str = "accuracy"
    config: TaskConfig = DEFAULTS

    def with_columns(self, columns):
        layout, columns = self.layout, dict(columns)
        if "choice_columns" in columns:
            # A table, also for a model that has learnt from RACE.
            names = tuple(columns.pop("choice_columns"))
            layout = dataclasses.replace(
                layout, reader="table", choice_columns=names
            )
        layout = dataclasses.replace(
            layout, columns=layout.columns.renamed(columns)
        )
        return dataclasses.replace(self, layout=layout)

    def with_config(self, config):
        task = super().with_config(config)
        c = task.config
        require(
            c.max_qa_length <= c.max_seq_length - 3,
            "`max_qa_length` must be at most `max_seq_length` - 3.",
            max_qa_length=c.max_qa_length,
            max_seq_length=c.max_seq_length,
        )
        return task

    def read(self, part, path) -> list[Choices]:
        examples = list(READERS[self.layout.reader](self.layout, part, path))
        for example in examples:
            choices = len(example.choices)
            require(
                not self.number or choices <= self.number,
                f"An example must have at most {self.number} choices.",
                example=f"{example.id} of {path} with {choices}",
            )
        return examples

    def fitted(self, examples):
        most = max(len(example.choices) for example in examples)
        return dataclasses.replace(self, number=self.number or most)

    def features(self, examples, tokenizer):
        """Return rows `[CLS] context [SEP] question and choice [SEP]`.

        The second part keeps its end, the context its beginning. Source:
        `convert_single_example` of the released `race_utils.py`.
        """
        length, most = self.config.max_seq_length, self.config.max_qa_length
        contexts = tokenizer.encode_batch([e.context for e in examples])
        rows, counts = [], []
        for example, context in zip(examples, contexts, strict=True):
            choices = tokenizer.encode_batch(
                [with_choice(example.question, c) for c in example.choices]
            )
            counts.append(len(choices))
            choices += [np.zeros(0, np.int32)] * (self.number - len(choices))
            for choice in choices:
                choice = choice[-most:]
                first = context[: length - 3 - len(choice)]
                rows.append(two_part_row(tokenizer, first, choice))
        present = np.arange(self.number) < np.array(counts)[:, None]  # [N, C]
        arrays = {"choice_mask": present.astype(np.float32)}
        labels = [example.label for example in examples]
        if None not in labels:
            arrays["labels"] = np.array(labels, np.int32)
        return Features.from_rows(
            rows,
            arrays,
            tokenizer.pad_id,
            length,
            rows_per_example=self.number,
        )

    def predictions(self, examples, outputs, features):
        # A server gives them one by one.
        logits = outputs["logits"].reshape(len(examples), -1)  # [N, C]
        return [Prediction(int(row.argmax()), row) for row in softmax(logits)]

    def score(self, examples, predictions):
        labels = np.array([example.label for example in examples])
        hits = labels == [p.label for p in predictions]
        groups = np.array([example.group for example in examples])
        values = {"accuracy": hits.mean().item()}
        names = sorted(set(groups.tolist()))
        for name in names if len(names) > 1 else []:
            values[f"{name}_accuracy"] = hits[groups == name].mean().item()
        return values

    def write_predictions(self, path, examples, predictions):
        ids = [example.id for example in examples]
        labels = [example.label for example in examples]
        known = None if None in labels else [LETTERS[x] for x in labels]
        predicted = [LETTERS[p.label] for p in predictions]
        shares = np.array([p.probabilities for p in predictions]).T  # [C, N]
        table = dict(zip(LETTERS[: self.number], shares, strict=True))
        written = [write_labels(path, ids, predicted, known, table)]
        if known is None:
            return written
        errors = [("id", "question", "prediction", "answer")]
        for example, p in zip(examples, predictions, strict=True):
            if p.label != example.label:
                texts = [example.choices[i] for i in (p.label, example.label)]
                errors.append((example.id, example.question, *texts))
        return [*written, write_tsv(sibling(path, "errors") + ".tsv", errors)]
