"""One of several choices, each scored beside the context and the question.

Shapes: N examples, B batch, C choices, T tokens.
"""

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.model.task_heads import EXCLUDED, AlbertChooser
from albert_tf.tasks import metrics
from albert_tf.tasks.choice_files import (
    LETTERS,
    READERS,
    Choices,
    Layout,
    with_choice,
)
from albert_tf.tasks.features import Features
from albert_tf.tasks.tables import sibling, write_tsv
from albert_tf.tasks.task import DataConfig, Task, TaskConfig
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.training.objectives import (
    cross_entropy,
    hits,
    soft_cross_entropy,
)

DEFAULTS = TaskConfig(
    max_seq_length=512, classifier_dropout=0.1, max_qa_length=128
)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The predicted choice, and the probability of each."""

    label: int
    probabilities: np.ndarray  # [C]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoice(Task):
    """The kind; data sets differ in layout and number of choices.

    Attributes:
      layout: how files are read.
      number: C; 0 is the largest number of the training examples.
    """

    kind = "multiple_choice"
    terms = ("task",)
    metrics = ("accuracy",)
    takes: ClassVar = ("max_seq_length", "classifier_dropout", "max_qa_length")
    smooths = distils = True

    layout: Layout = Layout()
    number: int = 0
    main_metric: str = "accuracy"
    config: TaskConfig = DEFAULTS

    def with_data(self, data: DataConfig):
        if data.main_metric not in (None, "accuracy"):
            raise InputError(
                "`main_metric` must be accuracy for multiple choice. "
                f"Received: main_metric={data.main_metric}"
            )
        data.check_one_label_column(self.kind)
        named = {
            "text": data.text_column,
            "text_pair": data.text_pair_column,
            "label": data.label_column or None,
            "id": data.id_column,
            "header": data.header,
        }
        named = {k: v for k, v in named.items() if v is not None}
        choices = tuple(data.choice_columns)
        layout = dataclasses.replace(
            self.layout,
            columns=dataclasses.replace(self.layout.columns, **named),
            choice_columns=choices or self.layout.choice_columns,
            # A table, also for a model that has learnt from RACE.
            reader="table" if choices else self.layout.reader,
        )
        return dataclasses.replace(self, layout=layout)

    def with_config(self, config):
        task = super().with_config(config)
        c = task.config
        if c.max_qa_length > c.max_seq_length - 3:
            raise InputError(
                "`max_qa_length` must be at most `max_seq_length` - 3. "
                f"Received: max_qa_length={c.max_qa_length}, "
                f"max_seq_length={c.max_seq_length}"
            )
        return task

    def read(self, part, path) -> list[Choices]:
        examples = list(READERS[self.layout.reader](self.layout, part, path))
        for example in examples:
            if self.number and len(example.choices) > self.number:
                raise InputError(
                    f"An example must have at most {self.number} choices. "
                    f"Received: example {example.id} of {path} with "
                    f"{len(example.choices)}"
                )
        return examples

    def for_model(self, trained):
        task = super().for_model(trained)
        return dataclasses.replace(task, number=trained.number)

    def fitted(self, examples):
        most = max(len(example.choices) for example in examples)
        return dataclasses.replace(self, number=self.number or most)

    # Features.

    def features(self, examples, tokenizer):
        contexts = tokenizer.encode_batch([e.context for e in examples])
        rows, present = [], []
        for example, context in zip(examples, contexts, strict=True):
            choices = tokenizer.encode_batch(
                [with_choice(example.question, c) for c in example.choices]
            )
            missing = self.number - len(choices)
            choices += [np.zeros(0, np.int32)] * missing
            rows += [self._row(tokenizer, context, ids) for ids in choices]
            present.append([True] * len(example.choices) + [False] * missing)
        labels = [example.label for example in examples]
        arrays = {"choice_mask": np.array(present, np.float32)}  # [N, C]
        if all(label is not None for label in labels):
            arrays["labels"] = np.array(labels, np.int32)
        return Features.from_rows(
            rows,
            arrays,
            tokenizer.pad_id,
            self.config.max_seq_length,
            rows_per_example=self.number,
        )

    def _row(
        self, tokenizer: Tokenizer, context: np.ndarray, choice: np.ndarray
    ) -> tuple[np.ndarray, int]:
        """Return `[CLS] context [SEP] question and choice [SEP]`.

        The second part keeps its end, the context its beginning. Source:
        `convert_single_example` of the released `race_utils.py`.
        """
        choice = choice[-self.config.max_qa_length :]
        context = context[: self.config.max_seq_length - 3 - len(choice)]
        cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
        row = np.concatenate([cls, context, sep, choice, sep])
        return row.astype(np.int32), len(context) + 2

    # The model and its loss.

    def build_model(self, config, dtype, albert=None):
        dropout = self.config.classifier_dropout
        return AlbertChooser(config, dropout, dtype, albert)

    @staticmethod
    def _present(logits, batch):
        """Return logits [B, C] without choices that others have more of."""
        return tf.where(batch["choice_mask"] > 0, logits, EXCLUDED)

    def outputs(self, model, batch, seed=None):
        logits = model(
            batch["input_ids"],
            batch["input_mask"],
            batch["segment_ids"],
            seed=seed,
        )
        return {"logits": self._present(logits, batch)}

    def example_losses(self, outputs, batch):
        return {"task": cross_entropy(outputs["logits"], batch["labels"])}

    def soft_losses(self, outputs, targets, temperature, batch):
        targets = self._present(targets["logits"], batch)
        logits = outputs["logits"]
        return {"task": soft_cross_entropy(logits, targets, temperature)}

    def example_metrics(self, outputs, batch):
        return {"accuracy": hits(outputs["logits"], batch["labels"])}

    # Results.

    def served(self, outputs):
        return {"probabilities": tf.nn.softmax(outputs["logits"])}

    def predictions(self, examples, outputs, features):
        probabilities = self.served(outputs)["probabilities"].numpy()
        return [Choice(int(row.argmax()), row) for row in probabilities]

    def score(self, examples, predictions):
        labels = np.array([example.label for example in examples])
        chosen = np.array([p.label for p in predictions])
        groups = np.array([example.group for example in examples])
        values = {"accuracy": metrics.accuracy(labels, chosen)}
        names = sorted(set(groups.tolist()))
        for name in names if len(names) > 1 else []:
            own = groups == name
            value = metrics.accuracy(labels[own], chosen[own])
            values[f"{name}_accuracy"] = value
        return values

    def write_predictions(self, path, examples, predictions):
        known = all(example.label is not None for example in examples)
        letters = LETTERS[: self.number]
        header = ["id", "prediction", *(["label"] if known else [])]
        table = [[*header, *(f"p({letter})" for letter in letters)]]
        errors = [["id", "question", "prediction", "answer"]]
        for example, p in zip(examples, predictions, strict=True):
            label = [LETTERS[example.label]] if known else []
            shares = [f"{x:.6f}" for x in p.probabilities]
            table.append([example.id, LETTERS[p.label], *label, *shares])
            if known and p.label != example.label:
                pair = [example.choices[i] for i in (p.label, example.label)]
                errors.append([example.id, example.question, *pair])
        written = [write_tsv(f"{path}.tsv", table)]
        if known:
            written.append(write_tsv(sibling(path, "errors") + ".tsv", errors))
        return written

    @classmethod
    def from_description(cls, values):
        layout = Layout.from_description(values["layout"])
        config = TaskConfig(**values["config"])
        return cls(**values | {"config": config, "layout": layout})


KINDS = {MultipleChoice.kind: MultipleChoice}
