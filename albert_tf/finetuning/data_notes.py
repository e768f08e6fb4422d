"""Notes on the examples of a split: labels and texts that may be mistakes."""

import itertools
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_tf.base.console import counted
from albert_tf.tasks.features import Features
from albert_tf.tasks.task import Task
from albert_tf.text.tokenizers import Tokenizer

MAX_SHOWN = 10  # maximum number of labels to print
# With fewer examples per class than this, the labels may be row numbers.
FEWEST_PER_CLASS = 1.5
UNKNOWN_SHARE = 0.05  # of the tokens
OVERLAP_SHARE = 0.05  # of the evaluation rows
LARGE_NUMBER = 10  # a regression needs many steps to reach larger labels
# Scripts without spaces, in which a word usually has several characters.
UNSPACED_SCRIPTS = (
    *"HIRAGANA KATAKANA THAI LAO KHMER MYANMAR".split(),
    "HALFWIDTH KATAKANA",
)
UNSPACED_SHARE = 0.1  # of the pairs of adjacent words
# Names that suggest that a cell contains several classes, with a separator
# other than `,` (some are Arabic or Chinese), flags with spaces, several lines,
# hashtags, or an array as in PostgreSQL.
JOINED = re.compile(
    r"[;|/\n\u060c\u061b\u3001\uff0c\uff1b]|^[01]( [01])+$|\s#|^\{|\}$"
)


def label_counts(
    task: Task, features: Features, examples: Sequence[Any] = ()
) -> dict[str, int]:
    """Return {label: number of examples}; for tagging, {tag: number of words}.

    The result is {} if the examples have no classes or are unlabeled.
    """
    labels = task.labels if task.has_classes else ()
    values = (features.arrays | features.token_arrays).get("labels")
    if not labels or values is None:
        return {}
    if task.kind == "token_classification":
        tags = Counter(tag for sentence in examples for tag in sentence.tags)
        return {label: tags[label] for label in labels}
    if values.ndim == 1:
        counts = np.bincount(values, minlength=len(labels))
    else:
        counts = np.count_nonzero(values, axis=0)
    return dict(zip(labels, counts.tolist(), strict=True))


def normalize_label(label: str) -> str:
    """Normalize a label, so labels that look alike become equal."""
    text = " ".join(unicodedata.normalize("NFKC", label).casefold().split())
    try:
        return f"{float(text.replace(',', '.')):g}"
    except ValueError:
        return text


def similar_labels(labels: Sequence[str]) -> list[list[str]]:
    """Return groups of labels that look alike.

    Such labels differ only in case, spaces or number format.
    """
    groups = defaultdict(list)
    for label in labels:
        groups[normalize_label(label)].append(label)
    return [group for group in groups.values() if len(group) > 1]


def label_notes(task: Task, counts: dict[str, int]) -> list[str]:
    """Return a line with the frequent classes, and notes on likely mistakes."""
    ranked = sorted(counts, key=lambda label: -counts[label])
    shown = [f"{label!r} {counts[label]:,}" for label in ranked[:MAX_SHOWN]]
    hidden = len(ranked) - MAX_SHOWN
    end = f" and {hidden:,} more classes" if hidden > 0 else ""
    lines = [f"classes: {', '.join(shown)}{end}"]
    for group in similar_labels(ranked)[:3]:
        names = ", ".join(map(repr, group))
        lines.append(f"Note: these classes may be the same: {names}")
    joined = [label for label in ranked if JOINED.search(label)]
    if task.kind == "multilabel" and joined:
        lines.append(
            "Note: several classes in a cell must be separated by `,` or be "
            f"in a list; {joined[0]!r} is one class"
        )
    examples = sum(counts.values())
    if len(counts) > MAX_SHOWN and examples < FEWEST_PER_CLASS * len(counts):
        lines.append(
            f"Note: {len(counts):,} classes for {examples:,} examples; is "
            "`label_column` the column of the labels?"
        )
    return lines


def number_notes(task: Task, features: Features) -> list[str]:
    """Return [note] if a regression's labels are large, otherwise []."""
    values = features.arrays.get("labels")
    if task.kind != "regression" or values is None:
        return []
    low, high = float(values.min()), float(values.max())
    if max(-low, high) <= LARGE_NUMBER:
        return []
    return [
        f"Note: the labels range from {low:g} to {high:g}, but the first "
        "predictions are close to 0 and each step changes them little; scale "
        "the labels, for example to a mean of 0 and a standard deviation of 1"
    ]


def text_notes(
    features: Features, tokenizer: Tokenizer, one_text_per_row: bool = False
) -> list[str]:
    """Return notes on empty texts and on unknown pieces.

    Args:
      features: the examples.
      tokenizer: the model's tokenizer.
      one_text_per_row: whether each text of an example has a separate row.
    """
    lines = []
    empty = int(np.sum(features.second_starts <= 2))  # [CLS] and [SEP]
    if empty and one_text_per_row:
        lines.append(f"Note: {counted(empty, 'empty text')} (in any column)")
    elif empty:
        lines.append(
            f"Note: in {counted(empty, 'row')}, the first text is empty"
        )
    unknown = float(np.mean(features.tokens == tokenizer.unk_id))
    if unknown > UNKNOWN_SHARE:
        lines.append(
            f"Note: {unknown:.0%} of the tokens are unknown pieces; is the "
            "model's vocabulary for this language?"
        )
    return lines


def _distinct_rows(features: Features) -> set[bytes]:
    ends = zip(features.row_splits[:-1], features.row_splits[1:], strict=True)
    return {features.tokens[start:end].tobytes() for start, end in ends}


def overlap_notes(
    task: Task, features: Features, training: Sequence[Features]
) -> list[str]:
    """Return [note] if training examples are evaluated again, otherwise [].

    Embedding tasks have no such note, because a text is part of many pairs.
    """
    if task.kind == "embedding" or not training:
        return []
    rows = _distinct_rows(features)
    shared = len(rows & set().union(*map(_distinct_rows, training)))
    if shared <= OVERLAP_SHARE * len(rows):
        return []
    return [
        f"Note: {shared:,} of {len(rows):,} different inputs are also training "
        "examples, so the metrics may be too high"
    ]


def prediction_notes(
    task: Task, examples: Sequence[Any], predictions: Sequence[Any]
) -> list[str]:
    """Return [note] if all predicted classes are the same, otherwise [].

    There is no note if the labels are unknown or also all the same.
    """
    if not task.has_classes or task.kind == "token_classification":
        return []
    labels = {example.label for example in examples}
    predicted = {prediction.label for prediction in predictions}
    if None in labels or len(labels) < 2 or len(predicted) > 1:
        return []
    name = task.label_text(predicted.pop())
    return [
        f"Note: the prediction for all examples is {name or 'no class'}; the "
        "model may need more steps or another learning rate"
    ]


def missing_notes(examples: Sequence[Any]) -> list[str]:
    """Return [note] if some, but not all, labels are missing, otherwise []."""
    fields = "label", "tags", "answers", "score"  # one per kind of example
    labels = [
        getattr(example, field)
        for example in examples
        for field in fields
        if hasattr(example, field)
    ]
    missing = sum(label is None for label in labels)
    if missing in (0, len(labels)):
        return []
    return [
        f"Note: {missing:,} of {len(labels):,} labels are missing, so the "
        "predictions are not scored"
    ]


def _is_unspaced(character: str) -> bool:
    return unicodedata.name(character, "").startswith(UNSPACED_SCRIPTS)


def word_notes(sentences: Sequence[Sequence[str]]) -> list[str]:
    """Return [note] if the words' script does not use spaces, otherwise []."""
    pairs = [
        (left, right)
        for words in sentences
        for left, right in itertools.pairwise(filter(None, words))
    ]
    unspaced = [
        (left, right)
        for left, right in pairs
        if _is_unspaced(left[-1]) and _is_unspaced(right[0])
    ]
    if len(unspaced) <= UNSPACED_SHARE * len(pairs):
        return []
    left, right = unspaced[0]
    return [
        "Note: a trained model splits texts at spaces. Put a space between "
        f"words such as {left!r} and {right!r} in the texts to tag, or pass "
        "each text as a list of words"
    ]


def notes(
    task: Task,
    features: Features,
    tokenizer: Tokenizer,
    examples: Sequence[Any] = (),
) -> list[str]:
    """Return all lines to print about the examples of a split."""
    counts = label_counts(task, features, examples)
    lines = label_notes(task, counts) if any(counts.values()) else []
    if task.kind == "token_classification":
        lines += word_notes([sentence.words for sentence in examples])
    lines += number_notes(task, features) + missing_notes(examples)
    one_text_per_row = task.kind == "embedding"
    return [*lines, *text_notes(features, tokenizer, one_text_per_row)]
