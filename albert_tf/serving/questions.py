"""Question-answering signatures, which return spans of a context.

Shapes: B questions, R rows (windows over contexts), T tokens, S candidates per
row, N = top_k answers.
"""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.serving.signatures import (
    Encoder,
    Signature,
    Tensors,
    Windows,
    byte_bounds,
    cut,
    make_windows,
    row_flags,
    same_batch_size,
    two_part_rows,
)
from albert_tf.tasks.numerics import IMPOSSIBLE, NO_ANSWER
from albert_tf.tasks.task import Task
from albert_tf.text.normalization import WHITE_SPACE
from albert_tf.text.text_graph import TokenSpans, offset_graph

# Outputs beyond the last answer; 0 for other outputs.
PADDING = {"answers": "", "scores": 2 * NO_ANSWER}


class QuestionRows(NamedTuple):
    """Data for locating the answers to a request in the contexts.

    Attributes:
      context: strings [B].
      spanned: the ids and character offsets of the contexts' tokens.
      windows: the windows over these tokens.
    """

    context: tf.Tensor
    spanned: TokenSpans
    windows: Windows
    position: tf.Tensor  # position of the window in a row's tokens


class Answers:
    """The function of a signature that answers questions about a context.

    A context can have any length.

    Args:
      encoder: the model's encoder, with a tokenizer.
      compute: a function that returns the head's outputs.
      task: the task, with the settings of windows, head and answer length.
    """

    def __init__(self, encoder: Encoder, compute, task: Task):
        self.encoder, self.compute, self.task = encoder, compute, task
        self.offsets = offset_graph(encoder.tokenizer, encoder.text_graph)
        encoder.graphs.append(self.offsets)

    def signature(self) -> Signature:
        """Return the signature that finds answers in contexts [B].

        The output `answer` [B] is empty if there is no answer. The other
        outputs, all [B, N], are `answers`, their `scores` and relative
        `probabilities`, their `starts` and `ends` in characters, and their
        `byte_starts` and `byte_ends` in the original context. If questions may
        have no answer, `null_odds` [B] contains the log odds that there is no
        answer.
        """
        return Signature(self.encoder.strings("question", "context"), self)

    def __call__(self, question: tf.Tensor, context: tf.Tensor) -> Tensors:
        """Return the outputs that `signature` lists."""
        inputs, request = self._rows(question, context)
        outputs = self.encoder.run(self.compute, inputs, one_row_per_text=False)
        width = tf.shape(inputs["input_ids"])[1]
        spans = self._candidates(request, width, outputs)
        best = self._best(request, *spans)
        answers = best | self._summary(best)
        return answers | self._null(request.windows, outputs, answers)

    def _rows(self, question, context) -> tuple[Tensors, QuestionRows]:
        encoder, task = self.encoder, self.task.config
        question, context = same_batch_size(question=question, context=context)
        query = encoder.segment(question)[:, : task.max_query_length]
        spanned = self.offsets(context)
        length = encoder.config.max_seq_length
        size = length - 3 - query.row_lengths()
        windows = make_windows(spanned.ids, size, task.doc_stride)
        a = tf.gather(query, windows.texts)
        b = tf.gather(spanned.ids.values, windows.token_indices)
        fixed = length if encoder.config.fixed_length else None
        inputs = two_part_rows(encoder.tokenizer, a, b, fixed)
        position = a.row_lengths() + 2
        return inputs, QuestionRows(context, spanned, windows, position)

    def _candidates(
        self, request: QuestionRows, width: tf.Tensor, outputs: Tensors
    ):
        """Return the scores of candidates and their offsets, all [R, S]."""
        _, spanned, windows, position = request
        begins = row_flags(windows.is_best, position, width)
        all_tokens = tf.ones_like(windows.is_best.values)
        all_tokens = windows.is_best.with_values(all_tokens)
        inside = row_flags(all_tokens, position, width)
        spans = self.task.candidates(outputs, begins, inside)
        score = spans.start_score + spans.end_score
        fits = tf.math.is_finite(score)
        # The index that position 0 would have; an empty window has none.
        indices = tf.pad(windows.token_indices.values, [[0, 1]])
        base = tf.gather(indices, windows.token_indices.row_starts()) - position
        base = tf.cast(base, tf.int32)[:, None]
        starts, ends = (
            tf.gather(
                tf.pad(offsets.flat_values, [[0, 1]]),
                tf.where(fits, token + base, 0),
            )
            for token, offsets in (
                (spans.first, spanned.starts),
                (spans.last, spanned.ends),
            )
        )
        # A piece without characters in the text cannot be an answer.
        score = tf.where(fits & (ends > starts), score, IMPOSSIBLE)
        return score, starts, ends

    @staticmethod
    def _sorted(windows: Windows, score, starts, ends) -> list[tf.Tensor]:
        """Return candidates, by question and then from the best to the worst.

        The tensors are the questions' indices, scores, starts and ends, all
        [M].
        """
        valid = tf.where(tf.math.is_finite(score))
        texts = tf.gather(windows.texts, valid[:, 0])
        columns = [tf.gather_nd(x, valid) for x in (score, starts, ends)]
        order = tf.argsort(columns[0], direction="DESCENDING", stable=True)
        by_text = tf.argsort(tf.gather(texts, order), stable=True)
        order = tf.gather(order, by_text)
        return [tf.gather(x, order) for x in (texts, *columns)]

    def _best(self, request: QuestionRows, score, starts, ends) -> Tensors:
        """Return each question's N best distinct answers, as in `n_best`."""
        context, width = request.context, self.encoder.config.top_k
        max_answers = min(width, self.task.config.n_best_size)
        rows, *columns = self._sorted(request.windows, score, starts, ends)
        candidates = self._texts(context, rows, *columns)
        keys = tf.strings.join(
            [tf.strings.as_string(rows), candidates["answers"]], " "
        )
        distinct, groups = tf.unique(keys)
        first = tf.math.unsorted_segment_min(
            tf.range(tf.size(groups)), groups, tf.size(distinct)
        )
        selected = tf.RaggedTensor.from_value_rowids(
            first, tf.gather(rows, first), tf.size(context, tf.int64)
        )[:, :max_answers]

        def table(name: str) -> tf.Tensor:  # [B, N]
            values = tf.gather(candidates[name], selected.values)
            padding = PADDING.get(name, 0)
            return selected.with_values(values).to_tensor(
                padding, shape=[None, width]
            )

        return {name: table(name) for name in candidates}

    def _texts(self, context, rows, score, starts, ends) -> Tensors:
        """Return the texts and offsets of candidates, all [M]."""
        bounds = byte_bounds(context)
        text, _, _ = cut(context, bounds, rows, starts, ends)
        # Pieces may include the white space around their text.
        left = tf.strings.regex_replace(text, f"^{WHITE_SPACE}+", "")
        inner = tf.strings.regex_replace(left, f"{WHITE_SPACE}+$", "")
        sizes = [
            tf.strings.length(x, unit="UTF8_CHAR") for x in (text, left, inner)
        ]
        starts += sizes[0] - sizes[1]
        ends -= sizes[1] - sizes[2]
        text, first, last = cut(context, bounds, rows, starts, ends)
        return {
            "answers": text,
            "starts": starts,
            "ends": ends,
            "byte_starts": first,
            "byte_ends": last,
            "scores": score,
        }

    @staticmethod
    def _summary(best: Tensors) -> Tensors:
        """Return the first answers, and the shares of all answers."""
        scores = best["scores"]
        # Without any span, the first answer is "", as in `n_best`.
        counted = (scores > 2 * NO_ANSWER) | (
            tf.range(tf.shape(scores)[1]) == 0
        )
        probabilities = tf.nn.softmax(tf.where(counted, scores, IMPOSSIBLE))
        return {"answer": best["answers"][:, 0], "probabilities": probabilities}

    def _null(self, windows: Windows, outputs, answers) -> Tensors:
        """Return `null_odds` and `answer` if a question may have no answer."""
        if not self.task.impossible:
            return {}
        odds = self.task.no_answer(outputs)
        odds = tf.math.segment_min(odds, windows.texts)  # [B]
        if self.task.odds_are_relative:
            odds -= answers["scores"][:, 0]
        limit = self.task.config.null_score_diff_threshold or 0.0
        answer = tf.where(odds > limit, "", answers["answer"])
        return {"null_odds": odds, "answer": answer}


def answer_signature(encoder: Encoder, compute, task: Task) -> Signature:
    """Return the signature that answers questions."""
    return Answers(encoder, compute, task).signature()
