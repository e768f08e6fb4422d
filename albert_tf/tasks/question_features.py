"""Questions and windows over their contexts as rows of tokens, and back.

A row is `[CLS] question [SEP] window [SEP]`. The answer's place in it comes
from the tokenizer's own offsets. Shapes: N rows, W tokens of a context.
"""

from collections.abc import Sequence

import numpy as np

from albert_tf.tasks.answers import Window
from albert_tf.tasks.features import Features
from albert_tf.tasks.squad_files import Question
from albert_tf.tasks.task_config import TaskConfig
from albert_tf.tasks.windows import best_windows, make_windows
from albert_tf.text.tokenizers import Tokenizer


class Contexts:
    """The tokens of contexts, each made once, and where they stand."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.known: dict[str, int] = {}
        self.tokens: list[np.ndarray] = []  # int32 [3, W]: ids, starts, ends

    def number(self, context: str) -> int:
        """Return the number of a context, a new one if it is new."""
        if context not in self.known:
            self.known[context] = len(self.tokens)
            encoded = self.tokenizer.encode_with_offsets(context)
            self.tokens.append(np.array(encoded, np.int32).reshape(3, -1))
        return self.known[context]

    def notes(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Return the contexts' offsets, and which context a question has.

        Contexts stand once, in the order in which questions have them first.
        Parts of a data set can be put one after the other, because a
        question's context is counted back from the newest one.
        """
        newest = np.maximum.accumulate(numbers)
        is_new = np.diff(newest, prepend=-1)
        return {
            "new_contexts": is_new.astype(np.int32),
            "contexts_back": (newest - numbers).astype(np.int32),
            "context_sizes": np.array(
                [tokens.shape[1] for tokens in self.tokens], np.int32
            ),
            "token_starts": np.concatenate([t[1] for t in self.tokens]),
            "token_ends": np.concatenate([t[2] for t in self.tokens]),
        }


def span_tokens(
    starts: np.ndarray, ends: np.ndarray, span: tuple[int, int]
) -> tuple[int, int]:
    """Return the first and last token that show a part of a span of text."""
    first = int(np.searchsorted(ends, span[0], side="right"))
    last = int(np.searchsorted(starts, span[1], side="left")) - 1
    return first, max(first, last)


def question_row(
    tokenizer: Tokenizer, query: np.ndarray, window: np.ndarray
) -> tuple[np.ndarray, int]:
    """Return the tokens of a row and where its window begins."""
    sep = [tokenizer.sep_id]
    parts = [[tokenizer.cls_id], query, sep, window, sep]
    return np.concatenate(parts).astype(np.int32), len(query) + 2


def label(
    question: Question,
    context: np.ndarray,
    window: tuple[int, int],
    position: int,
) -> tuple[int, int]:
    """Return the answer's first and last position in a row.

    Args:
      question: its `span` is the answer.
      context: int32 [3, W], ids, starts and ends.
      window: its first token and its length.
      position: where the window begins in the row.

    Returns:
      Twice 0, `[CLS]`, if there is no answer or not all of it in the window.
    """
    if question.span == (0, 0):
        return 0, 0
    first, last = span_tokens(context[1], context[2], question.span)
    start, length = window
    if first < start or last >= start + length:
        return 0, 0
    return first - start + position, last - start + position


def question_features(
    config: TaskConfig, examples: Sequence[Question], tokenizer: Tokenizer
) -> Features:
    """Return the rows of questions, with labels if all answers are known."""
    contexts = Contexts(tokenizer)
    queries = tokenizer.encode_batch([question.text for question in examples])
    rows, labels, counts, starts, numbers = [], [], [], [], []
    for question, query in zip(examples, queries, strict=True):
        query = query[: config.max_query_length]
        number = contexts.number(question.context)
        context = contexts.tokens[number]
        size = config.max_seq_length - len(query) - 3
        # An empty context has one empty window.
        windows = make_windows(context.shape[1], size, config.doc_stride) or [
            (0, 0)
        ]
        for window in windows:
            first, length = window
            part = context[0, first : first + length]
            rows.append(question_row(tokenizer, query, part))
            labels.append(label(question, context, window, len(query) + 2))
        counts.append(len(windows))
        starts += [first for first, _ in windows]
        numbers.append(number)
    known = all(question.answers is not None for question in examples)
    return Features.from_rows(
        rows,
        {"labels": np.array(labels, np.int32)} if known else {},
        tokenizer.pad_id,
        config.max_seq_length,
        notes={
            "rows": np.array(counts, np.int32),
            "window_starts": np.array(starts, np.int32),
            **contexts.notes(np.array(numbers, np.int32)),
        },
    )


def question_windows(features: Features) -> list[list[tuple[int, Window]]]:
    """Return, for each question, the numbers and the windows of its rows."""
    notes = features.notes
    bounds = np.concatenate([[0], np.cumsum(notes["context_sizes"])])
    numbers = np.cumsum(notes["new_contexts"]) - 1 - notes["contexts_back"]
    first_rows = np.cumsum(notes["rows"]) - notes["rows"]
    lengths = features.lengths - features.second_starts - 1
    questions = []
    for number, first, count in zip(
        numbers, first_rows, notes["rows"], strict=True
    ):
        context = slice(bounds[number], bounds[number + 1])
        starts = notes["token_starts"][context]
        ends = notes["token_ends"][context]
        rows = range(first, first + count)
        windows = [
            (int(notes["window_starts"][r]), int(lengths[r])) for r in rows
        ]
        best = best_windows(len(starts), windows)
        parts = [slice(start, start + length) for start, length in windows]
        questions.append(
            [
                (
                    row,
                    Window(
                        int(features.second_starts[row]),
                        starts[part],
                        ends[part],
                        best[part] == i,
                    ),
                )
                for i, (row, part) in enumerate(zip(rows, parts, strict=True))
            ]
        )
    return questions
