"""Classes, sets of classes, and numbers, of sentences or pairs of them.

Shapes: B batch, N examples, C classes (1 for a number).
"""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.tasks.labels import class_texts, label_text
from albert_tf.tasks.metrics import confusion_table
from albert_tf.tasks.sentences import Prediction, SentenceTask
from albert_tf.tasks.tables import sibling, write_tsv
from albert_tf.tasks.task import LABEL_WEIGHTS, Task
from albert_tf.training.objectives import (
    cross_entropy,
    hits,
    soft_cross_entropy,
    weighted_mean,
)


class Classification(SentenceTask):
    """One of several classes."""

    kind = "classification"
    metrics = ("accuracy",)
    smooths = distils = True

    def parse_label(self, values, where):
        text = label_text(values[0], where)
        return None if text is None else self.check_class(text, where)

    def fitted(self, examples):
        return self.with_labels({example.label for example in examples})

    def targets(self, labels):
        number = {label: i for i, label in enumerate(self.labels)}
        return np.array([number[label] for label in labels], np.int32)

    def loss_weights(self, batch):
        return self.label_counts(batch) * batch.get(LABEL_WEIGHTS, 1.0)

    def example_losses(self, outputs, batch):
        return {"task": cross_entropy(outputs["logits"], batch["labels"])}

    def soft_losses(self, outputs, targets, temperature, batch):
        both = outputs["logits"], targets["logits"]
        return {"task": soft_cross_entropy(*both, temperature)}

    def example_metrics(self, outputs, batch):
        return {"accuracy": hits(outputs["logits"], batch["labels"])}

    def served(self, outputs):
        return {"probabilities": tf.nn.softmax(outputs["logits"])}

    def predictions(self, examples, outputs, features):
        probabilities = self.served(outputs)["probabilities"].numpy()
        return [
            Prediction(self.labels[row.argmax()], row) for row in probabilities
        ]

    def write_predictions(self, path, examples, predictions):
        written = super().write_predictions(path, examples, predictions)
        labels = [example.label for example in examples]
        if any(label is None for label in labels):
            return written
        table = confusion_table(
            labels, [p.label for p in predictions], self.labels
        )
        return [*written, write_tsv(sibling(path, "confusion") + ".tsv", table)]


# Of a class with a column of its own; booleans are of JSON.
FLAGS = {"0": False, "1": True, "false": False, "true": True}


class MultiLabel(SentenceTask):
    """Any number of several classes, each apart.

    Labels stand in one column, as a JSON list or separated by commas, or in
    several columns of 0 and 1 whose names are the classes. No class applies
    to an empty cell; a column that is empty in every row says nothing.
    """

    kind = "multilabel"
    metrics = ("accuracy",)
    smooths = distils = True
    threshold = 0.5
    label_columns = None

    def with_data(self, data):
        task = super().with_data(data)
        if len(data.label_column) > 1:
            labels = tuple(data.label_column)
            task = dataclasses.replace(task, labels=labels)
        return task

    def parse_label(self, values, where):
        if len(values) > 1:
            return self._flags(values, where)
        texts = class_texts(values[0], where)
        if texts is None:
            return None
        return tuple(self.check_class(text, where) for text in texts)

    def _flags(self, values, where):
        names = self.columns.label
        texts = [label_text(value, where) for value in values]
        if None in texts:
            return None
        for name, text in zip(names, texts, strict=True):
            if text not in FLAGS:
                raise InputError(
                    f"{where}: label column {name} must be 0 or 1. "
                    f"Received: {text!r}"
                )
        pairs = zip(names, texts, strict=True)
        return tuple(name for name, text in pairs if FLAGS[text])

    def read(self, part, path):
        examples = super().read(part, path)
        if any(example.label for example in examples) or not examples:
            return examples
        if part != "predict":
            raise InputError(
                f"{path}: the label column must not be empty in every row "
                "of a file to learn from or to evaluate. Received: no class"
            )
        return [dataclasses.replace(e, label=None) for e in examples]

    def fitted(self, examples):
        return self.with_labels({x for e in examples for x in e.label})

    def targets(self, labels):
        sets = [set(label) for label in labels]
        rows = [[label in s for label in self.labels] for s in sets]
        return np.array(rows, np.float32)  # [N, C]

    def _weights(self, batch):
        """Return float32 [B, C], the weight of each yes and no."""
        return batch.get(LABEL_WEIGHTS, tf.ones_like(batch["labels"]))

    def loss_weights(self, batch):
        weights = tf.reduce_mean(self._weights(batch), axis=-1)
        return self.label_counts(batch) * weights

    def example_losses(self, outputs, batch):
        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=batch["labels"], logits=outputs["logits"]
        )
        return {"task": weighted_mean(losses, self._weights(batch))}

    def soft_losses(self, outputs, targets, temperature, batch):
        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.sigmoid(targets["logits"] / temperature),
            logits=outputs["logits"] / temperature,
        )
        mean = weighted_mean(losses, self._weights(batch))
        return {"task": mean * temperature**2}

    def example_metrics(self, outputs, batch):
        chosen = outputs["logits"] > logit(self.threshold)
        right = tf.equal(chosen, batch["labels"] > 0.5)
        return {"accuracy": tf.cast(tf.reduce_all(right, -1), tf.float32)}

    def served(self, outputs):
        return {"probabilities": tf.sigmoid(outputs["logits"])}

    def predictions(self, examples, outputs, features):
        probabilities = self.served(outputs)["probabilities"].numpy()
        return [
            Prediction(
                tuple(np.array(self.labels)[row > self.threshold].tolist()),
                row,
            )
            for row in probabilities
        ]

    def label_text(self, label):
        return ",".join(label)


def logit(probability: float) -> float:
    """Return the logit of a probability."""
    return math.log(probability / (1.0 - probability))


class Regression(SentenceTask):
    """A number, learnt by its squared error as in the release."""

    kind = "regression"
    has_classes = False
    distils = True

    def parse_label(self, values, where):
        text = label_text(values[0], where)
        if text is None:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise InputError(
                f"{where}: the label must be a finite number. "
                f"Received: {values[0]!r}"
            )
        return number

    def targets(self, labels):
        return np.array(labels, np.float32)

    def example_losses(self, outputs, batch):
        error = outputs["logits"][:, 0] - batch["labels"]
        return {"task": tf.square(error)}

    def soft_losses(self, outputs, targets, temperature, batch):
        error = outputs["logits"][:, 0] - targets["logits"][:, 0]
        return {"task": tf.square(error)}

    def served(self, outputs):
        return {"score": outputs["logits"][:, 0]}

    def predictions(self, examples, outputs, features):
        none = np.zeros(0)
        return [Prediction(float(x), none) for x in outputs["logits"][:, 0]]

    def label_text(self, label):
        return f"{label:.6g}"


KINDS: dict[str, type[Task]] = {
    cls.kind: cls for cls in (Classification, MultiLabel, Regression)
}
