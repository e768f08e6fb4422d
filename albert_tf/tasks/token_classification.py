"""A tag for every word, such as the entities of a text.

A word is represented by its first piece. Long sentences become several rows
that overlap; each word counts in the row that has most of its context.
Shapes: N rows, B batch, T tokens, C tags.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.model.task_heads import AlbertTokenClassifier
from albert_tf.tasks import metrics
from albert_tf.tasks.conll import (
    Sentence,
    all_tags,
    check_tags,
    find_scheme,
    read_conll,
)
from albert_tf.tasks.features import Features
from albert_tf.tasks.sentences import shown
from albert_tf.tasks.tables import sibling, write_tsv
from albert_tf.tasks.task import LABEL_WEIGHTS, DataConfig, Task, TaskConfig
from albert_tf.tasks.windows import best_windows, make_windows
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.training.objectives import (
    cross_entropy,
    hits,
    soft_cross_entropy,
    weighted_mean,
)

SCORES = ("f1", "precision", "recall", "accuracy")
NO_LABEL = -1


@dataclasses.dataclass(frozen=True)
class Tags:
    """The predicted tags of a sentence's words, and their probabilities."""

    tags: tuple[str, ...]
    probabilities: np.ndarray  # [words]


def encode_words(
    sentences: Sequence[Sentence], tokenizer: Tokenizer
) -> list[list[np.ndarray]]:
    """Return the ids of every word; one that has no piece is unknown."""
    words = list(dict.fromkeys(w for s in sentences for w in s.words))
    unknown = np.array([tokenizer.unk_id], np.int32)
    known = {
        word: ids if len(ids) else unknown
        for word, ids in zip(words, tokenizer.encode_batch(words), strict=True)
    }
    return [[known[word] for word in s.words] for s in sentences]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenClassification(Task):
    """The kind; data sets differ in files and columns.

    Attributes:
      word_column: number of the column of words, "" for the first.
      tag_column: number of the column of tags, "" for the last.
      labels: the tags; () follows from the training examples.
      scheme: how tags mark entities, a key of `conll.SCHEMES`.
    """

    kind = "token_classification"
    terms = ("task",)
    metrics = ("accuracy",)
    takes: ClassVar = ("max_seq_length", "classifier_dropout", "doc_stride")
    has_classes = smooths = distils = True
    token_outputs: ClassVar = {"logits": 0.0}

    word_column: str = ""
    tag_column: str = ""
    labels: tuple[str, ...] = ()
    scheme: str = ""
    main_metric: str = "f1"

    def with_data(self, data: DataConfig):
        columns = "text_pair_column", "choice_columns", "id_column", "header"
        data.refuse(self.kind, *columns)
        if data.main_metric and data.main_metric not in SCORES:
            raise InputError(
                f"`main_metric` must be one of {', '.join(SCORES)}. "
                f"Received: main_metric={data.main_metric}"
            )
        data.check_one_label_column(self.kind)
        return dataclasses.replace(
            self,
            word_column=data.text_column or self.word_column,
            tag_column=(*data.label_column, self.tag_column)[0],
            main_metric=data.main_metric or self.main_metric,
        )

    def with_config(self, config):
        task = super().with_config(config)
        size, stride = task.window
        if stride > size:
            raise InputError(
                "`doc_stride` must be at most `max_seq_length` - 2, or words "
                f"would be left out. Received: doc_stride={stride}, "
                f"max_seq_length={task.config.max_seq_length}"
            )
        return task

    @property
    def window(self) -> tuple[int, int]:
        """The tokens of a window, and between the beginnings of two."""
        size = self.config.max_seq_length - 2
        return size, self.config.doc_stride or max(1, 3 * size // 4)

    def read(self, part, path) -> list[Sentence]:
        tagged = part != "predict"
        sentences = read_conll(path, self.word_column, self.tag_column, tagged)
        if part == "train" or self.labels:
            scheme = self.scheme or find_scheme(sentences)
            for sentence in sentences:
                self._check(sentence, scheme)
        return sentences

    def _check(self, sentence: Sentence, scheme: str) -> None:
        for i, tag in enumerate(sentence.tags or ()):
            if self.labels and tag not in self.labels:
                raise InputError(
                    f"{sentence.where(i)}: the tag must be one of "
                    f"{shown(self.labels)}. Received: {tag!r}"
                )
        check_tags(sentence, scheme)

    def fitted(self, examples):
        scheme = self.scheme or find_scheme(examples)
        labels = self.labels or all_tags(examples, scheme)
        if len(labels) < 2:
            raise InputError(
                "The training examples must have a tag beside O. "
                f"Received: {shown(labels)}"
            )
        return dataclasses.replace(self, scheme=scheme, labels=labels)

    def for_model(self, trained):
        task = super().for_model(trained)
        return dataclasses.replace(
            task, labels=trained.labels, scheme=trained.scheme
        )

    # Features.

    def features(self, examples, tokenizer):
        number = {tag: i for i, tag in enumerate(self.labels)}
        rows, labels = [], []
        notes: dict[str, list] = {"rows": [], "word_rows": [], "positions": []}
        known = all(sentence.tags is not None for sentence in examples)
        for sentence, words in zip(
            examples, encode_words(examples, tokenizer), strict=True
        ):
            own, row_of, positions = self._rows(words, tokenizer)
            tags = [np.full(len(ids), NO_LABEL, np.int32) for ids, _ in own]
            if known:
                for tag, row, position in zip(
                    sentence.tags, row_of, positions, strict=True
                ):
                    tags[row][position] = number[tag]
            rows += own
            labels += tags
            notes["rows"].append(len(own))
            notes["word_rows"] += row_of.tolist()
            notes["positions"] += positions.tolist()
        return Features.from_rows(
            rows,
            {},
            tokenizer.pad_id,
            self.config.max_seq_length,
            token_arrays={"labels": np.concatenate(labels)} if known else {},
            fills={"labels": NO_LABEL},
            notes={k: np.array(v, np.int32) for k, v in notes.items()},
        )

    def _rows(
        self, words: list[np.ndarray], tokenizer: Tokenizer
    ) -> tuple[list, np.ndarray, np.ndarray]:
        """Return a sentence's rows, and each word's row and place in it."""
        ids = np.concatenate(words)
        lengths = [len(word) for word in words]
        firsts = np.cumsum(lengths) - lengths  # first piece of each word
        windows = make_windows(len(ids), *self.window)
        row_of = best_windows(len(ids), windows)[firsts]
        starts = np.array([start for start, _ in windows])
        cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
        rows = []
        for start, length in windows:
            row = np.concatenate([cls, ids[start : start + length], sep])
            rows.append((row.astype(np.int32), len(row)))
        return rows, row_of, firsts - starts[row_of] + 1

    # The model and its loss.

    def build_model(self, config, dtype, albert=None):
        dropout = self.config.classifier_dropout
        return AlbertTokenClassifier(
            config, len(self.labels), dropout, dtype, albert
        )

    def outputs(self, model, batch, seed=None):
        logits = model(
            batch["input_ids"],
            batch["input_mask"],
            batch["segment_ids"],
            seed=seed,
        )
        return {"logits": logits}  # [B, T, C]

    def _words(self, batch):
        """Return float32 [B, T]: 1 at the first piece of each word."""
        return tf.cast(batch["labels"] >= 0, tf.float32)

    def _weights(self, batch):
        """Return float32 [B, T], the weight of each word in the loss."""
        return self._words(batch) * batch.get(LABEL_WEIGHTS, 1.0)

    def label_counts(self, batch):
        words = tf.reduce_sum(self._words(batch), axis=1)
        return words * batch["example_weights"]

    def loss_weights(self, batch):
        weights = tf.reduce_sum(self._weights(batch), axis=1)
        return weights * batch["example_weights"]

    # Losses and metrics of a row are means over its words, and the row counts
    # by its words: all in all they are means over words.

    def example_losses(self, outputs, batch):
        labels = tf.maximum(batch["labels"], 0)  # [B, T]
        losses = cross_entropy(outputs["logits"], labels)
        return {"task": weighted_mean(losses, self._weights(batch))}

    def soft_losses(self, outputs, targets, temperature, batch):
        losses = soft_cross_entropy(
            outputs["logits"], targets["logits"], temperature
        )
        return {"task": weighted_mean(losses, self._weights(batch))}

    def example_metrics(self, outputs, batch):
        right = hits(outputs["logits"], batch["labels"])
        return {"accuracy": weighted_mean(right, self._words(batch))}

    # Results.

    def served(self, outputs):
        return {"probabilities": tf.nn.softmax(outputs["logits"])}

    def predictions(self, examples, outputs, features):
        notes = features.notes
        row_counts = notes["rows"]
        words = [len(sentence.words) for sentence in examples]
        first = np.repeat(np.cumsum(row_counts) - row_counts, words)
        chosen = outputs["logits"][
            first + notes["word_rows"], notes["positions"]
        ]  # [words, C]
        p = self.served({"logits": chosen})["probabilities"].numpy()
        best, p = p.argmax(axis=1), p.max(axis=1)
        ends = np.cumsum(words)[:-1]
        return [
            Tags(tuple(self.labels[i] for i in tags), values)
            for tags, values in zip(
                np.split(best, ends), np.split(p, ends), strict=True
            )
        ]

    def score(self, examples, predictions):
        return metrics.entities(
            [list(sentence.tags) for sentence in examples],
            [list(p.tags) for p in predictions],
        )

    def write_predictions(self, path, examples, predictions):
        known = all(sentence.tags is not None for sentence in examples)
        table: list[Sequence[str]] = []
        for sentence, p in zip(examples, predictions, strict=True):
            tags = [sentence.tags] if known else []
            table += zip(sentence.words, *tags, p.tags, strict=True)
            table.append(())
        written = [write_tsv(f"{path}.conll", table)]
        if known:
            rows = metrics.entity_table(
                [list(sentence.tags) for sentence in examples],
                [list(p.tags) for p in predictions],
            )
            name = sibling(path, "entities") + ".tsv"
            written.append(write_tsv(name, rows))
        return written

    @classmethod
    def from_description(cls, values):
        return cls(
            **values
            | {
                "config": TaskConfig(**values["config"]),
                "labels": tuple(values["labels"]),
            }
        )


KINDS = {TokenClassification.kind: TokenClassification}
