"""Signatures that answer questions about a context, with spans or choices.

Shapes: B questions, R rows (windows over contexts), T tokens, S candidates per
row, M candidates in all rows, N = top_k answers, C choices.
"""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.serving.signatures import (
    Encoder,
    Signature,
    Tensors,
    Windows,
    cut,
    make_windows,
    same_batch_size,
)
from albert_tf.tasks.multiple_choice import BLANK, without_empty
from albert_tf.tasks.numerics import IMPOSSIBLE, NO_ANSWER
from albert_tf.tasks.task import Task
from albert_tf.text.normalization import WHITE_SPACE
from albert_tf.text.text_graph import TokenSpans, first_of, offset_graph, valid

# {output: its value beyond the last answer}; the value is 0 for other outputs.
PADDING = {"answers": "", "scores": 2 * NO_ANSWER}


def row_flags(flags: tf.RaggedTensor, position: tf.Tensor, width) -> tf.Tensor:
    """Convert flags of window tokens [R, W] to flags of row tokens [R, T].

    Args:
      flags: ragged bool [R, W].
      position: [R], the position in each row at which the window begins.
      width: T.
    """
    padding = tf.RaggedTensor.from_row_lengths(
        tf.zeros([tf.reduce_sum(position)], tf.bool), position
    )
    dense = tf.concat([padding, flags], axis=1).to_tensor(False)
    dense = dense[:, :width]
    return tf.pad(dense, [[0, 0], [0, width - tf.shape(dense)[1]]])


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

    def __call__(self, question: tf.Tensor, context: tf.Tensor) -> Tensors:
        """Return the answers in contexts [B].

        The output `answer` [B] is empty if there is no answer. The other
        outputs, all [B, N], are `answers`, their `scores` and relative
        `probabilities`, their `starts` and `ends` in characters, and their
        `byte_starts` and `byte_ends` in the original context. If questions may
        have no answer, `null_odds` [B] contains the log odds that there is no
        answer.
        """
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
        inputs = encoder.two_part_rows(a, b)
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
        # The token index that position 0 would have; an empty window has no
        # index.
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
        return score, starts, ends

    @staticmethod
    def _sorted(windows: Windows, score, starts, ends) -> list[tf.Tensor]:
        """Return candidates sorted by question, then from best to worst.

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
        # A piece may have no characters in the text, or only characters without
        # width.
        visible = tf.where(candidates["answers"] != "")[:, 0]
        rows = tf.gather(rows, visible)
        candidates = {k: tf.gather(x, visible) for k, x in candidates.items()}
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
        text, _, _ = cut(context, rows, starts, ends)
        # Pieces may include the white space around their text.
        left = tf.strings.regex_replace(text, f"^{WHITE_SPACE}+", "")
        inner = tf.strings.regex_replace(left, f"{WHITE_SPACE}+$", "")
        sizes = [
            tf.strings.length(x, unit="UTF8_CHAR") for x in (text, left, inner)
        ]
        starts += sizes[0] - sizes[1]
        ends -= sizes[1] - sizes[2]
        text, first, last = cut(context, rows, starts, ends)
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
        """Return the first answers, and all answers' relative probabilities."""
        scores = best["scores"]
        # If there are no spans, the first answer is "", as in `n_best`.
        counted = (scores > 2 * NO_ANSWER) | (
            tf.range(tf.shape(scores)[1]) == 0
        )
        probabilities = tf.nn.softmax(tf.where(counted, scores, IMPOSSIBLE))
        return {"answer": best["answers"][:, 0], "probabilities": probabilities}

    def _null(self, windows: Windows, outputs, answers) -> Tensors:
        """Return `null_odds` and `answer`; {} if all questions have answers."""
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
    """Return the signature that finds answers in contexts."""
    strings = encoder.string_specs("question", "context")
    return Signature(strings, Answers(encoder, compute, task))


def with_choice(question: tf.Tensor, choice: tf.Tensor) -> tf.Tensor:
    """Fill the blanks in questions [N] with choices.

    If a question has no blank, its choice is appended.
    """
    question = tf.strings.regex_replace(question, BLANK, "_")
    parts = tf.strings.split(question, "_")
    # A choice precedes every part except the first.
    has_choice = tf.ragged.range(parts.row_lengths()).values > 0
    prefixes = tf.where(has_choice, tf.gather(choice, parts.value_rowids()), "")
    filled = parts.with_values(prefixes + parts.values)
    filled = tf.strings.reduce_join(filled, axis=1)
    appended = tf.strings.join([question, choice], " ")
    return tf.where(parts.row_lengths() > 1, filled, appended)


def choice_rows(
    encoder: Encoder, task: Task, context, question, choices
) -> Tensors:
    """Return a row `[CLS] context [SEP] question and choice [SEP]` per choice.

    Args:
      encoder: the model's encoder.
      task: the task, which limits the length of a question with its choice.
      context: strings [B].
      question: strings [B].
      choices: strings [B, C].
    """
    shape, length = tf.shape(choices), encoder.config.max_seq_length
    indices = tf.repeat(tf.range(shape[0]), shape[1])
    flat = tf.reshape(choices, [-1])
    filled = with_choice(tf.gather(question, indices), flat)
    second = encoder.segment(filled)[:, -task.config.max_qa_length :]
    # An absent choice is an empty segment.
    is_present = tf.cast(flat != "", tf.int64)
    second = first_of(second, second.row_lengths() * is_present)
    first = tf.gather(encoder.segment(context), indices)
    remaining = length - 3 - second.row_lengths()
    first = first_of(first, tf.minimum(first.row_lengths(), remaining))
    return encoder.two_part_rows(first, second)


def likeliest_choices(outputs: Tensors, choices: tf.Tensor) -> Tensors:
    """Return each example's most probable choice from choices [B, C].

    For an example without choices, the result is choice 0, the empty text.

    Returns:
      `choice` int32 [B], the choice's number, counted from 0; `text` [B];
      `probabilities` [B, C].
    """
    logits = tf.reshape(outputs["logits"], tf.shape(choices))
    logits = without_empty(logits, choices == "")
    best = tf.argmax(logits, axis=1, output_type=tf.int32)
    return {
        "choice": best,
        "text": valid(tf.gather(choices, best, batch_dims=1)),
        "probabilities": tf.nn.softmax(logits),
    }


def choice_signature(encoder: Encoder, compute, task: Task) -> Signature:
    """Return the signature that selects a choice."""
    shape = [encoder.config.batch_size, None]
    spec = tf.TensorSpec(shape, tf.string, "choices")

    def call(context, question, choices) -> Tensors:
        request = same_batch_size(
            context=context, question=question, choices=choices
        )
        rule = "`choices` must have at least one choice for each question"
        check = tf.debugging.assert_positive(tf.shape(choices)[1], rule)
        with tf.control_dependencies([check]):
            request = [tf.identity(values) for values in request]
        inputs = choice_rows(encoder, task, *request)
        outputs = encoder.run(compute, inputs, one_row_per_text=False)
        return likeliest_choices(outputs, request[-1])

    return Signature([*encoder.string_specs("context", "question"), spec], call)
