"""Questions and windows over their contexts as rows of tokens, and back.

A row is `[CLS] question [SEP] window [SEP]`. The answer's place in it comes
from the tokenizer's own offsets. Shapes: N rows, W tokens of a context.
"""

import functools
from collections.abc import Sequence

import numpy as np

from albert_tf.tasks.answers import Window
from albert_tf.tasks.features import Features, two_part_row
from albert_tf.tasks.squad_files import Question
from albert_tf.tasks.task_config import TaskConfig
from albert_tf.tasks.windows import best_windows, make_windows
from albert_tf.text.tokenizers import Tokenizer


def label(
    question: Question,
    context: np.ndarray,
    window: slice,
    position: int,
) -> tuple[int, int]:
    """Return the answer's first and last position in a row.

    They are those of the tokens that show a part of the answer.

    Args:
      question: its `span` is the answer.
      context: int32 [3, W], ids, starts and ends.
      window: the tokens of the context in the row.
      position: where they begin in the row.

    Returns:
      Twice 0, `[CLS]`, if there is no answer or not all of it in the window.
    """
    start, end = question.span
    first = int(np.searchsorted(context[2], start, side="right"))
    last = int(np.searchsorted(context[1], end, side="left")) - 1
    last = max(first, last)
    if not end or first < window.start or last >= window.stop:
        return 0, 0
    shift = position - window.start
    return first + shift, last + shift


def question_features(
    config: TaskConfig, examples: Sequence[Question], tokenizer: Tokenizer
) -> Features:
    """Return the rows of questions, with labels if all answers are known."""

    @functools.cache  # many questions are about one context
    def encoded(context: str) -> np.ndarray:
        tokens = tokenizer.encode_with_offsets(context)
        return np.array(tokens, np.int32).reshape(3, -1)

    queries = tokenizer.encode_batch([question.text for question in examples])
    rows, labels, counts, offsets, best = [], [], [], [], []
    for question, query in zip(examples, queries, strict=True):
        query = query[: config.max_query_length]
        context = encoded(question.context)
        number = context.shape[1]
        room = config.max_seq_length - len(query) - 3
        # An empty context has one empty window.
        windows = make_windows(number, room, config.doc_stride) or [(0, 0)]
        best_of = best_windows(number, windows)
        for i, (start, length) in enumerate(windows):
            window = slice(start, start + length)
            row, position = two_part_row(tokenizer, query, context[0, window])
            rows.append((row, position))
            labels.append(label(question, context, window, position))
            offsets.append(context[1:, window])
            best.append(best_of[window] == i)
        counts.append(len(windows))
    known = all(question.answers is not None for question in examples)
    starts, ends = np.concatenate(offsets, axis=1)
    return Features.from_rows(
        rows,
        {"labels": np.array(labels, np.int32)} if known else {},
        tokenizer.pad_id,
        config.max_seq_length,
        notes={
            "rows": np.array(counts, np.int32),
            "token_starts": starts,
            "token_ends": ends,
            "is_best": np.concatenate(best),
        },
    )


def question_windows(features: Features) -> list[list[tuple[int, Window]]]:
    """Return, for each question, the numbers and the windows of its rows."""
    notes, positions = features.notes, features.second_starts.tolist()
    sizes = features.lengths - features.second_starts - 1
    bounds = np.cumsum(sizes)[:-1]
    names = "token_starts", "token_ends", "is_best"
    tokens = zip(
        *(np.split(notes[name], bounds) for name in names), strict=True
    )
    windows = [Window(p, *x) for p, x in zip(positions, tokens, strict=True)]
    rows = list(enumerate(windows))
    last = np.cumsum(notes["rows"])
    return [
        rows[end - count : end]
        for end, count in zip(last, notes["rows"], strict=True)
    ]
