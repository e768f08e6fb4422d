"""Sentence embeddings: vectors that are close if texts have similar meanings.

Shapes: N examples, C texts per example, H vector width.
"""

import dataclasses
import io
import os
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.data import file_kinds
from albert_tf.data.row_files import Row
from albert_tf.tasks.features import Features
from albert_tf.tasks.predictions import number_text, write_tsv
from albert_tf.tasks.tables import (
    Columns,
    TableColumns,
    cell,
    is_lines,
    label_number,
    read_rows,
    require_label,
    text_cell,
)
from albert_tf.tasks.task import Task
from albert_tf.tasks.task_config import TEXT_COLUMNS, TaskConfig

# The default columns. The second text and the score are optional, but any
# column that a flag names must exist.
DEFAULT_COLUMNS = Columns("text", "text_pair", ("score",))
NEGATIVE = "negative"
RATED, MATCHED = ("spearman", "pearson"), ("mrr", "accuracy")


@dataclasses.dataclass(frozen=True)
class Texts:
    """A text and the texts to compare it with.

    Attributes:
      id: the id of the example.
      texts: a single text, a text and its match, or a text, its match and a
        negative.
      score: the rated similarity of the first two texts, or None if unrated.
      is_labeled: whether the similarity is known, either from the score or
        because the texts match.
    """

    id: str
    texts: tuple[str, ...]
    score: float | None = None
    is_labeled: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedding(Task):
    """The task of embedding sentences.

    There are three kinds of training examples: single texts, pairs or triplets,
    and pairs with scores. Two crops of a single text form a pair. Pairs without
    scores and triplets are contrasted with the other examples of the batch. A
    score is the target for the cosine of the pair's vectors.

    Attributes:
      columns: the columns of tables; a `.txt` file has one text per line.
    """

    kind = "embedding"
    signature = "embed"
    hub_class, hub_head = "AlbertModel", ""
    output, answer_outputs = "embedding", ("embedding",)
    fields: ClassVar = {"text": str}
    scores = (*RATED, *MATCHED)
    takes = (
        *("max_seq_length", "temperature", "crop_rate"),
        *("pooling", "unit_length"),
    )
    data_takes = TEXT_COLUMNS
    unlabeled = True

    columns: Columns = DEFAULT_COLUMNS
    main_metric: str = "spearman"
    config: TaskConfig = TaskConfig(
        max_seq_length=128, temperature=0.05, crop_rate=0.3
    )

    @property
    def head_arguments(self):
        """The pooling, and whether vectors have unit length."""
        c = self.config
        return c.pooling or "mean", c.unit_length is not False

    def with_columns(self, columns):
        return dataclasses.replace(self, columns=self.columns.updated(columns))

    # Examples.

    def table(self, width=None, labeled=False):
        names = DEFAULT_COLUMNS.text, DEFAULT_COLUMNS.text_pair, NEGATIVE
        rule = "Texts must be a list, or a tuple of two or three lists."
        require((width or 0) <= len(names), rule, columns=width)
        rule = "Scores need pairs of texts, a tuple of two lists."
        require(width in (None, 2) or not labeled, rule, columns=width)
        names = names[: 2 if labeled else width]
        return TableColumns(names, DEFAULT_COLUMNS.label[0])

    def in_memory(self):
        return dataclasses.replace(self, columns=DEFAULT_COLUMNS)

    def distinct_texts(self, examples):
        # The matches of other rows serve as negatives, so they must differ from
        # the row's match.
        is_contrast = len(examples[0].texts) > 1 and examples[0].score is None
        return [e.texts for e in examples] if is_contrast else None

    def check_training(self, examples, config):
        rates = config.hidden_dropout_prob, config.attention_probs_dropout_prob
        is_single = len(examples[0].texts) == 1
        require(
            self.config.crop_rate or any(rates) or not is_single,
            "`crop_rate` must be above 0 for single texts if the model has no "
            "dropout, because the two copies of a text would be equal; "
            "`hidden_dropout_prob=0.1` adds dropout.",
            crop_rate=self.config.crop_rate,
        )

    def read(self, part, path) -> list[Texts]:
        if is_lines(path):
            text = file_kinds.read_text(path, "The data file")
            # Only line feeds end lines, as in tables.
            lines = text.removesuffix("\n").split("\n")
            texts = [line.removesuffix("\r") for line in lines]
            if part != "predict" or not text.strip():
                texts = [line for line in texts if line.strip()]
            examples = [Texts(str(i), (x,)) for i, x in enumerate(texts)]
        else:
            examples = list(self._table(part, path))
        sizes = {len(example.texts) for example in examples}
        rated = {example.score is None for example in examples}
        require(
            len(sizes) < 2 and (len(rated) < 2 or part == "predict"),
            f"{path}: all examples must have the same number of texts, "
            "and all or none must have a score.",
            texts=sorted(sizes),
        )
        require(
            part != "eval" or sizes != {1},
            f"{path}: evaluation examples must be pairs of texts; name the "
            "column of the second text with `text_pair_column`.",
            text_pair_column=self.columns.text_pair,
        )
        return examples

    def _table(self, part: str, path: str) -> Iterator[Texts]:
        """Yield the examples of a table."""
        unused = False
        for number, row in enumerate(read_rows(path, self.columns)):
            columns = self._columns_of(row)
            name, text, pair = columns.texts(row, number)
            if not columns.text_pair:
                yield Texts(name, (text,))
                continue
            texts, score = (text, pair), self._score(row, part)
            if NEGATIVE in row.values and score is None:
                texts += (text_cell(row, NEGATIVE, NEGATIVE),)
            unused |= NEGATIVE in row.values and score is not None
            is_labeled = part != "predict" or score is not None
            yield Texts(name, texts, score, is_labeled)
        if unused:
            print(
                f"Note: {path}: the target of a pair is its score; the column "
                f"{NEGATIVE} is ignored"
            )

    def _columns_of(self, row: Row) -> Columns:
        """Return the columns to read from a row.

        The default second column is omitted if the row lacks it.
        """
        pair = self.columns.text_pair
        if pair == DEFAULT_COLUMNS.text_pair and pair not in row.values:
            return dataclasses.replace(self.columns, text_pair="")
        return self.columns

    def _score(self, row: Row, part: str) -> float | None:
        """Return the score of a pair, or None if it is optional and absent.

        The score is optional in prediction, and if `label_column` is not set.
        """
        (column,) = self.columns.label
        if column not in row.values and (
            part == "predict" or self.columns.label == DEFAULT_COLUMNS.label
        ):
            return None
        value = cell(row, column, "label_column")
        score = label_number(value, row.label_where)
        return require_label(score, part, row.label_where, value)

    def evaluated_on(self, examples):
        metrics = MATCHED if examples[0].score is None else RATED
        if self.main_metric in metrics:
            return self
        print(f"Note: for these examples, main_metric is {metrics[0]}")
        return dataclasses.replace(self, main_metric=metrics[0])

    def identity(self):
        # The metric depends on the examples to evaluate, if any.
        return super().identity() | {"main_metric": ""}

    def supports_single_example(self, examples):
        return examples[0].score is not None or len(examples[0].texts) > 2

    def features(self, examples, tokenizer):
        arrays = {}
        if all(example.is_labeled for example in examples):
            arrays["labels"] = np.ones(len(examples), np.float32)
        scores = [e.score for e in examples]
        if None not in scores:
            # The target of the largest score is a cosine of 1.
            arrays["labels"] = np.array(scores, np.float32)
            arrays["labels"] /= np.abs(arrays["labels"]).max() or 1.0
            arrays["is_rated"] = np.ones(len(examples), np.int32)
        return Features.from_texts(
            tokenizer,
            [text for example in examples for text in example.texts],
            self.config.max_seq_length,
            arrays,
            rows_per_example=len(examples[0].texts),
        )

    # Results.

    def predictions(self, examples, outputs, features) -> np.ndarray:
        """Return the vectors of each example's texts, [N, C, H]."""
        vectors = outputs["embedding"]
        return vectors.reshape(len(examples), -1, vectors.shape[-1])

    def example(self, text):
        return Texts("", (text,))

    def value(self, prediction):
        return prediction[0]

    def answer(self, query, prediction, top):
        return {"embedding": prediction[0].tolist()}

    def score(self, examples, predictions):
        from albert_tf.tasks.metrics import METRICS, retrieval

        labels = [example.score for example in examples]
        if None not in labels:
            values = np.array(labels), cosines(predictions)
            return {name: METRICS[name](*values) for name in RATED}
        # The candidates are the matches and any negatives, without duplicates.
        texts = [text for e in examples for text in e.texts[1:]]
        positions = {text: i for i, text in enumerate(texts)}
        candidate_index = {text: i for i, text in enumerate(positions)}
        width = predictions.shape[-1]
        candidates = predictions[:, 1:].reshape(-1, width)
        # The length of a query does not change the order of its cosines.
        lengths = np.linalg.norm(candidates, axis=1, keepdims=True)
        candidates = candidates / np.maximum(lengths, 1e-12)
        return retrieval(
            predictions[:, 0],
            candidates[list(positions.values())],
            np.array([candidate_index[e.texts[1]] for e in examples]),
        )

    def write_predictions(self, path, examples, predictions):
        files.make_folder(os.path.dirname(path))
        content = io.BytesIO()
        np.save(content, np.asarray(predictions, np.float32))
        files.write_bytes(f"{path}.npy", content.getvalue())
        if len(examples[0].texts) == 1:
            return [f"{path}.npy"]
        has_scores = all(example.score is not None for example in examples)
        table = [["id", "prediction", "label"][: 2 + has_scores]]
        for example, cosine in zip(examples, cosines(predictions), strict=True):
            score = [number_text(example.score)] if has_scores else []
            table.append([example.id, number_text(cosine), *score])
        return [f"{path}.npy", write_tsv(f"{path}.tsv", table)]


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the cosine [N] of each example's first two vectors."""
    first, second = vectors[:, 0], vectors[:, 1]
    products = np.einsum("nh,nh->n", first, second)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return products / np.maximum(lengths, 1e-12)
