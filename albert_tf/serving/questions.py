"""Answers to questions: spans of a context, with their text and place.

Shapes: B questions, R rows (windows over contexts), T tokens, S candidates of
a row, N = top_k answers.
"""

import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.serving.blocks import Tensors
from albert_tf.serving.server import Server, as_many
from albert_tf.serving.window_rows import (
    Windows,
    byte_bounds,
    cut,
    make_windows,
    placed,
    two_part_rows,
)
from albert_tf.tasks.answers import NOTHING
from albert_tf.tasks.task import TaskConfig
from albert_tf.text.character_graph import characters
from albert_tf.text.offset_graph import offset_graph

IMPOSSIBLE = float("-inf")


def simple_candidates(outputs: Tensors, inside, best, number: int):
    """Return first and last token and score [R, S] of every candidate.

    As `answers.simple_spans`: the likeliest starts, in their best window, and
    the likeliest ends.
    """
    number = tf.minimum(number, tf.shape(inside)[1])
    start = tf.where(best, outputs["start_logits"], IMPOSSIBLE)
    end = tf.where(inside, outputs["end_logits"], IMPOSSIBLE)
    start, first = tf.math.top_k(start, number)
    end, last = tf.math.top_k(end, number)
    score = start[:, :, None] + end[:, None, :]
    first = tf.broadcast_to(first[:, :, None], tf.shape(score))
    last = tf.broadcast_to(last[:, None, :], tf.shape(score))
    return first, last, score


def beam_candidates(outputs: Tensors, inside, best, number: int):
    """Return the same of a beam: starts [R, K], and ends [R, K, M] of each."""
    last = outputs["end_top_index"]
    score = outputs["start_top_log_probs"][..., None]
    score += outputs["end_top_log_probs"]
    first = outputs["start_top_index"][..., None]
    first = tf.broadcast_to(first, tf.shape(last))
    fits = tf.gather(best, first, batch_dims=1)
    fits &= tf.gather(inside, last, batch_dims=1)
    return first, last, tf.where(fits, score, IMPOSSIBLE)


CANDIDATES = {"simple": simple_candidates, "beam": beam_candidates}


class QuestionServer(Server):
    """Questions about contexts, which may be longer than the model's input.

    Args:
      model: the model with its head.
      weights: see `Server`.
      config: see `Server`.
      tokenizer: see `Server`.
      task: gives windows, the form of the head, and how long answers are.
    """

    def __init__(self, model, weights, config, tokenizer, task):
        self.model = model
        # A shorter input must still reach all of a context.
        length = TaskConfig(max_seq_length=config.max_seq_length)
        self.task = task.with_config(length)
        super().__init__(model.albert, weights, config, tokenizer)
        if tokenizer:
            spaces = "".join(c for c in characters() if c.isspace())
            self.spaces = f"[{spaces}]+"
            self.offsets = offset_graph(tokenizer, self.text_graph)
            self.graphs.append(self.offsets)

    def inputs(self):
        inputs = super().inputs()
        if self.tokenizer:
            shape = [self.config.batch_size]
            inputs["answer"] = [
                tf.TensorSpec(shape, tf.string, name)
                for name in ("question", "context")
            ]
        return inputs

    def default(self):
        return "answer" if self.tokenizer else "ids"

    def numbers(self, **inputs):
        return self.model(**inputs)

    def soft_numbers(self, **inputs):
        if self.task.config.answer_head == "beam":
            raise InputError(
                "`precision` must not be int8 for a model with "
                "answer_head=beam, whose log probabilities 8 bits cannot "
                "hold. Received: precision=int8"
            )
        # Padding is left in: who asks looks at the context alone.
        sequence = self._encode(**inputs)["sequence_output"]
        return self.model.spans(sequence, tf.ones_like(inputs["input_ids"]))

    def _outputs(self, **inputs):
        return self.encode(**inputs) | self.numbers(**inputs)

    def features(self):
        string = tf.io.FixedLenFeature([], tf.string)
        return {"question": string, "context": string}

    def tf_example(self, examples):
        """Serve `answer` for serialized questions and contexts [B]."""
        return self.answer(**tf.io.parse_example(examples, self.features()))

    def answer(self, question, context) -> Tensors:
        """Serve the likeliest spans of contexts [B] as answers.

        Returns:
          `answer` [B], empty if there is none; `answers`, `probabilities`
          among them, and their `starts` and `ends` in characters and
          `byte_starts` and `byte_ends` in the context as given, [B, N].
          Where questions may have no answer, `null_odds` [B]: how much
          likelier that is, as a logarithm.
        """
        question, context = as_many(question=question, context=context)
        most = self.task.config.max_query_length
        query = self.segment(question)[:, :most]
        spanned = self.offsets(context)
        length = self.config.max_seq_length
        size = length - 3 - query.row_lengths()
        windows = make_windows(spanned.ids, size, self.task.config.doc_stride)
        a = tf.gather(query, windows.texts)
        b = tf.gather(spanned.ids.values, windows.places)
        inputs = two_part_rows(
            self.tokenizer, a, b, length if self.config.fixed_length else None
        )
        outputs = self.run(self.body(self.numbers, any_number=True), inputs)
        width = tf.shape(inputs["input_ids"])[1]
        position = a.row_lengths() + 2
        spans = self._candidates(windows, position, width, outputs, spanned)
        score, starts, ends = self._best(windows, *spans)
        found = self._texts(context, score, starts, ends)
        return found | self._null(windows, outputs, found)

    def _candidates(self, windows: Windows, position, width, outputs, spanned):
        """Return scores and offsets in the context, [R, S]."""
        config = self.task.config
        best = placed(windows.is_best, position, width)
        there = windows.is_best.with_values(
            tf.ones_like(windows.is_best.values)
        )
        inside = placed(there, position, width)
        first, last, score = CANDIDATES[config.answer_head](
            outputs, inside, best, config.n_best_size
        )
        size = last - first + 1
        fits = (size >= 1) & (size <= config.max_answer_length)
        fits &= tf.math.is_finite(score)
        # The place that position 0 would have; empty windows have no place.
        places = tf.pad(windows.places.values, [[0, 1]])
        base = tf.gather(places, windows.places.row_starts()) - position
        base = tf.cast(base, tf.int32)[:, None, None]
        starts, ends = (
            tf.gather(
                tf.pad(offsets.flat_values, [[0, 1]]),
                tf.where(fits, token + base, 0),
            )
            for token, offsets in (
                (first, spanned.starts),
                (last, spanned.ends),
            )
        )
        # A piece that shows nothing of the text is no answer.
        score = tf.where(fits & (ends > starts), score, IMPOSSIBLE)
        rows = tf.shape(score)[0]
        return [tf.reshape(x, [rows, -1]) for x in (score, starts, ends)]

    @staticmethod
    def _by_text(windows: Windows, values, fill):
        """Return values [R, S] of all rows of a text as [B, rows * S]."""
        ragged = tf.RaggedTensor.from_row_lengths(values, windows.counts)
        dense = ragged.to_tensor(fill)
        shape = tf.shape(dense)
        return tf.reshape(dense, [shape[0], shape[1] * shape[2]])

    def _best(self, windows: Windows, score, starts, ends):
        """Return scores and offsets [B, N] of the best candidates of a text."""
        most = self.config.top_k
        every = self._by_text(windows, score, IMPOSSIBLE)
        missing = tf.maximum(most - tf.shape(every)[1], 0)
        pads = [[0, 0], [0, missing]]
        every = tf.pad(every, pads, constant_values=IMPOSSIBLE)
        score, place = tf.math.top_k(every, most)
        real = tf.math.is_finite(score)
        offsets = []
        for values in (starts, ends):
            values = tf.pad(self._by_text(windows, values, 0), pads)
            chosen = tf.gather(values, place, batch_dims=1)
            offsets.append(tf.where(real, chosen, 0))
        return score, *offsets

    def _texts(self, context, score, starts, ends) -> Tensors:
        real = tf.math.is_finite(score)  # [B, N]
        rows = tf.range(tf.shape(context)[0])[:, None] * tf.ones_like(starts)
        bounds = byte_bounds(context)
        text, _, _ = cut(context, bounds, rows, starts, ends)
        # Pieces may hold the white space around them.
        left = tf.strings.regex_replace(text, f"^{self.spaces}", "")
        inner = tf.strings.regex_replace(left, f"{self.spaces}$", "")
        sizes = [
            tf.strings.length(x, unit="UTF8_CHAR") for x in (text, left, inner)
        ]
        starts += sizes[0] - sizes[1]
        ends -= sizes[1] - sizes[2]
        text, first, last = cut(context, bounds, rows, starts, ends)
        weights = tf.where(real, score, NOTHING.score)
        return {
            "answer": text[:, 0],
            "answers": text,
            "starts": starts,
            "ends": ends,
            "byte_starts": first,
            "byte_ends": last,
            "scores": weights,
            "probabilities": tf.where(real, tf.nn.softmax(weights), 0.0),
        }

    def _null(self, windows: Windows, outputs, found) -> Tensors:
        """Return what changes if there may be no answer."""
        if not self.task.impossible:
            return {}
        if self.task.config.answer_head == "beam":
            odds = outputs["answer_logits"]
        else:
            odds = outputs["start_logits"][:, 0] + outputs["end_logits"][:, 0]
        odds = tf.math.segment_min(odds, windows.texts)  # [B]
        if self.task.config.answer_head == "simple":
            odds -= found["scores"][:, 0]
        limit = self.task.config.null_score_diff_threshold or 0.0
        answer = tf.where(odds > limit, "", found["answer"])
        return {"null_odds": odds, "answer": answer}
