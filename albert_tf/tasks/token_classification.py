"""Tagging of words, for example to mark entities.

A word is represented by its first piece. A long sentence is split into several
overlapping rows; a word's tag comes from the row in which the word has the most
context. Shapes: N rows, T tokens, C tags.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from albert_tf.base.errors import require
from albert_tf.tasks.conll import (
    CLASSES,
    OUTSIDE,
    all_tags,
    entity_spans,
    find_scheme,
    invalid_transitions,
    only_separates,
    read_conll,
    split_tag,
)
from albert_tf.tasks.features import Features, best_windows, make_windows
from albert_tf.tasks.predictions import sibling, write_tsv
from albert_tf.tasks.tables import TableColumns, class_named, format_labels
from albert_tf.tasks.tagged_words import (
    TAG_NAMES,
    TAGS_COLUMN,
    WORDS_COLUMN,
    Sentence,
    column_in,
    name_in_table,
    split_words,
    word_spans,
)
from albert_tf.tasks.task import Task
from albert_tf.text.packing import packed_row
from albert_tf.text.tokenizers import Tokenizer

NO_LABEL = -1


@dataclasses.dataclass(frozen=True)
class Tags:
    """The predicted tags of a sentence's words, with probabilities."""

    tags: tuple[str, ...]
    probabilities: np.ndarray  # [words]


def encode_words(
    sentences: Sequence[Sentence], tokenizer: Tokenizer
) -> list[list[np.ndarray]]:
    """Return the ids of each sentence's words, int32 [pieces] per word.

    A word without pieces is encoded as the unknown piece.
    """
    words = list(dict.fromkeys(w for s in sentences for w in s.words))
    unknown = np.array([tokenizer.unk_id], np.int32)
    ids_of = {
        word: ids if len(ids) else unknown
        for word, ids in zip(words, tokenizer.encode_batch(words), strict=True)
    }
    return [[ids_of[word] for word in s.words] for s in sentences]


def default_stride(size: int) -> int:
    """Return the default number of tokens between the starts of windows."""
    return max(1, 3 * size // 4)


def tags_of(sentences: Sequence[Sentence]) -> set[str]:
    """Return the set of all tags in sentences."""
    return {tag for s in sentences for tag in s.tags or ()}


def note_tags(
    sentences: Sequence[Sentence], scheme: str, source: object
) -> None:
    """Print how many tags lack a prefix or cannot follow the previous tag.

    Args:
      sentences: the sentences of the file.
      scheme: the scheme of the tags.
      source: the file or table.
    """
    tagged = [s for s in sentences if s.tags is not None]
    untyped = [
        (s.where(i), tag)
        for s in tagged
        for i, tag in enumerate(s.tags)
        if tag != OUTSIDE and not split_tag(tag)[1]
    ]
    if scheme == CLASSES:
        are_numbers = all(tag.isdecimal() for _, tag in untyped)
        if untyped and (are_numbers or any(OUTSIDE in s.tags for s in tagged)):
            print(
                f"Note: {source}: tags such as {untyped[0][1]} count as "
                "classes, because entities need prefixes as in B-PER; the "
                "metric is accuracy"
            )
        return
    if untyped:
        where, tag = untyped[0]
        print(
            f"Note: {source}: {len(untyped)} tags mark no entity; the first is "
            f"{tag} at {where}"
        )
    if scheme == "BIO" and all(only_separates(s.tags) for s in tagged):
        return  # IOB1, in which an entity begins with I
    breaks = [
        (s, i) for s in tagged for i in invalid_transitions(s.tags, scheme)
    ]
    if breaks:
        sentence, word = breaks[0]
        where = sentence.where(min(word, len(sentence.words) - 1))
        print(
            f"Note: {source}: {len(breaks)} tags cannot follow the previous "
            f"tag in the scheme {scheme}, the first at {where}; entities are "
            "found as in the script conlleval"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenClassification(Task):
    """The task of tagging words, for example to mark entities.

    Attributes:
      word_column: number or name of the word column, or "" for the default.
      tag_column: number or name of the tag column, or "" for the default.
      id_column: name of the column of sentence names, or "" for the default.
      labels: the tags; () to use the tags of the training examples.
      scheme: the tag scheme, a key of `conll.SCHEMES` or `conll.CLASSES`; it
        depends on the labels.
    """

    kind = "token_classification"
    signature = "entities"
    hub_class = "AlbertForTokenClassification"
    fields: ClassVar = {"text": str}
    scores = ("f1", "precision", "recall", "accuracy")
    takes = ("max_seq_length", "classifier_dropout", "doc_stride")
    data_takes = ("text_column", "label_column", "id_column")
    learned = ("labels", "scheme")
    has_classes, text_rank = True, 1

    word_column: str = ""
    tag_column: str = ""
    id_column: str = ""
    labels: tuple[str, ...] = ()
    scheme: str = ""
    main_metric: str = "f1"

    @property
    def head_arguments(self):
        return (len(self.labels),)

    def with_columns(self, columns):
        return dataclasses.replace(
            self,
            word_column=columns.get("text_column", self.word_column),
            tag_column=columns.get("label_column", (self.tag_column,))[0],
            id_column=columns.get("id_column", self.id_column),
        )

    def check(self, changes):
        super().check(changes)
        size, stride = self.window
        require(
            stride <= size,
            "`doc_stride` must be at most `max_seq_length` - 2; otherwise "
            "windows skip words.",
            doc_stride=stride,
            max_seq_length=self.config.max_seq_length,
        )

    def fitted_lengths(self, config, changes):
        """Return the `doc_stride`, if set, reduced so that windows overlap."""
        stride = default_stride(config.max_seq_length - 2)
        doc_stride = config.doc_stride
        return {"doc_stride": min(doc_stride, stride)} if doc_stride else {}

    @property
    def window(self) -> tuple[int, int]:
        """The size of windows and the stride between them, in tokens."""
        size = self.config.max_seq_length - 2
        return size, self.config.doc_stride or default_stride(size)

    def table(self, width=None, labeled=False):
        words = (name_in_table(self.word_column, WORDS_COLUMN),)
        tags = name_in_table(self.tag_column, TAGS_COLUMN)
        return TableColumns(words, tags, lists=words)

    def label_column_in(self, names):
        return column_in(names, self.tag_column, TAGS_COLUMN, TAG_NAMES)

    def in_memory(self):
        return dataclasses.replace(self, id_column="")

    def cells_and_shares(self, labels):
        return labels, None

    def read(self, part, path) -> list[Sentence]:
        columns = self.word_column, self.tag_column
        tagged = part != "predict"
        sentences = read_conll(path, *columns, tagged, self.id_column)
        if self.labels:
            sentences = list(map(self._named, sentences))
        if tagged and not getattr(path, "is_batch", False):
            scheme = find_scheme(self.labels or tags_of(sentences))
            note_tags(sentences, scheme, path)
        return sentences

    def _named(self, sentence: Sentence) -> Sentence:
        """Return a sentence with any tag numbers converted to names."""
        if sentence.tags is None:
            return sentence
        tags = tuple(
            class_named(tag, self.labels, sentence.where(i))
            for i, tag in enumerate(sentence.tags)
        )
        return dataclasses.replace(sentence, tags=tags)

    @property
    def marks_entities(self) -> bool:
        """Whether tags mark entities, not classes."""
        return not self.labels or find_scheme(self.labels) != CLASSES

    def fitted(self, examples):
        labels = self.labels or all_tags(tags_of(examples))
        rule = "The training examples must have at least two different tags."
        require(len(labels) > 1, rule, labels=format_labels(labels))
        scheme = find_scheme(labels)
        task = dataclasses.replace(self, scheme=scheme, labels=labels)
        return task.evaluated_on(examples)

    def evaluated_on(self, examples):
        if self.marks_entities:
            return self
        main = self.main_metric
        rule = "`main_metric` must be accuracy if tags do not mark entities."
        require(main in ("f1", "accuracy"), rule, main_metric=main)
        return dataclasses.replace(self, main_metric="accuracy")

    def identity(self):
        # The metric for classes depends on the labels.
        metric = {} if self.marks_entities else {"main_metric": "accuracy"}
        return super().identity() | metric

    # Features.

    def features(self, examples, tokenizer):
        length = self.config.max_seq_length
        tag_index = {tag: i for i, tag in enumerate(self.labels)}
        has_tags = all(sentence.tags is not None for sentence in examples)
        rows, labels = [], []
        notes: dict[str, list] = {"rows": [], "word_rows": [], "positions": []}
        for sentence, words in zip(
            examples, encode_words(examples, tokenizer), strict=True
        ):
            windows, row_of, positions = self._windows(words)
            tags = [np.full(len(w) + 2, NO_LABEL, np.int32) for w in windows]
            if has_tags:
                for tag, row, position in zip(
                    sentence.tags, row_of, positions, strict=True
                ):
                    tags[row][position] = tag_index[tag]
            rows += [packed_row(tokenizer, w, (), length) for w in windows]
            labels += tags
            notes["rows"].append(len(windows))
            notes["word_rows"] += row_of.tolist()
            notes["positions"] += positions.tolist()
        return Features.from_rows(
            rows,
            {},
            tokenizer.pad_id,
            length,
            token_arrays={"labels": np.concatenate(labels)} if has_tags else {},
            fills={"labels": NO_LABEL},
            notes={k: np.array(v, np.int32) for k, v in notes.items()},
        )

    def _windows(
        self, words: list[np.ndarray]
    ) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        """Return a sentence's windows and each word's row and position."""
        ids = np.concatenate([np.zeros(0, np.int32), *words])
        lengths = np.array([len(word) for word in words], np.int64)
        firsts = np.cumsum(lengths) - lengths  # first piece of each word
        # A text without words has one empty window.
        windows = make_windows(len(ids), *self.window) or [(0, 0)]
        row_of = best_windows(len(ids), windows)[firsts]
        starts = np.array([start for start, _ in windows])
        positions = firsts - starts[row_of] + 1
        return [ids[a : a + size] for a, size in windows], row_of, positions

    # Results.

    def predictions(self, examples, outputs, features):
        notes = features.notes
        row_counts = notes["rows"]
        words = [len(sentence.words) for sentence in examples]
        first = np.repeat(np.cumsum(row_counts) - row_counts, words)
        rows = first + notes["word_rows"]
        logits = outputs["logits"][rows, notes["positions"]]  # [words, C]
        probabilities = self.probabilities(logits)
        ends = np.cumsum(words)[:-1]
        best = np.split(probabilities.argmax(axis=1), ends)
        values = np.split(probabilities.max(axis=1), ends)
        return [
            Tags(tuple(self.labels[i] for i in tags), shares)
            for tags, shares in zip(best, values, strict=True)
        ]

    def example(self, text):
        return Sentence(tuple(split_words(text)), None, "", 1)

    def value(self, prediction):
        return list(prediction.tags)

    def answer(self, query, prediction, top):
        """Return the entities of a text and the tag of each word."""
        text, tags = query["text"], prediction.tags
        words = word_spans(text)
        spans = entity_spans(tags) if self.marks_entities else ()
        entities = [
            (kind, words[first][0], words[last][1])
            for first, last, kind in spans
        ]
        probabilities = prediction.probabilities.tolist()
        tagged = zip(words, tags, probabilities, strict=True)
        return {
            "entities": [
                {"text": text[a:b], "kind": kind, "start": a, "end": b}
                for kind, a, b in entities
            ],
            "words": [
                {"text": text[a:b], "tag": tag, "probability": probability}
                for (a, b), tag, probability in tagged
            ],
        }

    def score(self, examples, predictions):
        # Imported here because prediction does not need this module.
        from albert_tf.tasks.metrics import entities

        labels = [list(sentence.tags) for sentence in examples]
        scores = entities(labels, [list(p.tags) for p in predictions])
        if self.marks_entities:
            return scores
        return {"accuracy": scores["accuracy"]}

    def write_predictions(self, path, examples, predictions):
        has_tags = all(sentence.tags is not None for sentence in examples)
        table: list[Sequence[str]] = []
        for sentence, p in zip(examples, predictions, strict=True):
            tags = [sentence.tags] if has_tags else []
            table += zip(sentence.words, *tags, p.tags, strict=True)
            table.append(())
        written = [write_tsv(f"{path}.conll", table)]
        if not has_tags:
            return written
        from albert_tf.tasks.metrics import confusion_table, entity_table

        labels = [list(sentence.tags) for sentence in examples]
        predicted = [list(p.tags) for p in predictions]
        if self.marks_entities:
            name, rows = "entities", entity_table(labels, predicted)
        else:
            pairs = [[*itertools.chain(*x)] for x in (labels, predicted)]
            name, rows = "confusion", confusion_table(*pairs, self.labels)
        return [*written, write_tsv(f"{sibling(path, name)}.tsv", rows)]
