"""One of several choices for a question about a context.

Shapes: B questions, C choices of each, T tokens.
"""

import tensorflow as tf

from albert_tf.serving.blocks import Tensors
from albert_tf.serving.server import Server, as_many
from albert_tf.serving.window_rows import two_part_rows
from albert_tf.tasks.choice_files import BLANK
from albert_tf.tasks.task import TaskConfig

ABSENT = 1e4  # subtracted from the logits of empty choices


def with_choice(question: tf.Tensor, choice: tf.Tensor) -> tf.Tensor:
    """Return questions [N] with choices in their blanks, or after them."""
    parts = tf.strings.split(question, BLANK)
    # A choice stands before every part but the first.
    later = tf.ragged.range(parts.row_lengths()).values > 0
    before = tf.where(later, tf.gather(choice, parts.value_rowids()), "")
    filled = parts.with_values(before + parts.values)
    filled = tf.strings.reduce_join(filled, axis=1)
    after = tf.strings.join([question, choice], " ")
    return tf.where(parts.row_lengths() > 1, filled, after)


class ChoiceServer(Server):
    """Questions with choices.

    Args:
      model: the model with its head.
      weights: see `Server`.
      config: see `Server`.
      tokenizer: see `Server`.
      task: gives how rows are made.
    """

    def __init__(self, model, weights, config, tokenizer, task):
        self.classifier = model.classifier
        length = TaskConfig(max_seq_length=config.max_seq_length)
        self.task = task.with_config(length)
        super().__init__(model.albert, weights, config, tokenizer)

    def inputs(self):
        inputs = super().inputs()
        if self.tokenizer:
            size = self.config.batch_size
            inputs["choose"] = [
                tf.TensorSpec([size], tf.string, "context"),
                tf.TensorSpec([size], tf.string, "question"),
                tf.TensorSpec([size, None], tf.string, "choices"),
            ]
        return inputs

    def default(self):
        return "choose" if self.tokenizer else "ids"

    def heads(self, encoded):
        logits = self.classifier(encoded["pooled_output"])
        return {"logits": logits[:, 0]}  # of each row

    def numbers(self, **inputs):
        return self.heads(self._encode(**inputs))

    def features(self):
        string = tf.io.FixedLenFeature([], tf.string)
        choices = tf.io.RaggedFeature(tf.string)
        return {"context": string, "question": string, "choices": choices}

    def tf_example(self, examples):
        """Serve `choose` for serialized examples [B] of any many choices."""
        parsed = tf.io.parse_example(examples, self.features())
        choices = parsed["choices"].to_tensor("")
        return self.choose(parsed["context"], parsed["question"], choices)

    def choose(self, context, question, choices) -> Tensors:
        """Serve the likeliest of choices [B, C]; empty ones are none.

        Returns:
          `choice` int32 [B], its number from 0; `text` [B]; `probabilities`
          [B, C].
        """
        context, question, choices = as_many(
            context=context, question=question, choices=choices
        )
        shape = tf.shape(choices)
        flat = tf.reshape(choices, [-1])
        each = tf.repeat(tf.range(shape[0]), shape[1])
        inputs = self._rows(context, question, flat, each)
        outputs = self.run(self.body(self.numbers, any_number=True), inputs)
        logits = tf.reshape(outputs["logits"], shape)
        # An example without choices has the number 0 of nothing.
        logits = tf.where(choices == "", logits - ABSENT, logits)
        logits = tf.pad(logits, [[0, 0], [0, tf.maximum(1 - shape[1], 0)]])
        best = tf.argmax(logits, axis=1, output_type=tf.int32)
        none = tf.fill([shape[0], tf.maximum(1 - shape[1], 0)], "")
        known = tf.concat([choices, none], axis=1)
        return {
            "choice": best,
            "text": tf.gather(known, best, batch_dims=1),
            "probabilities": tf.nn.softmax(logits)[:, : shape[1]],
        }

    def _rows(self, context, question, choices, each) -> Tensors:
        """Return `[CLS] context [SEP] question and choice [SEP]` of each."""
        config = self.task.config
        length = self.config.max_seq_length
        second = self.segment(with_choice(tf.gather(question, each), choices))[
            :, -config.max_qa_length :
        ]
        # An absent choice is an empty part.
        there = tf.cast(choices != "", tf.int64)
        second = first_of(second, second.row_lengths() * there)
        first = tf.gather(self.segment(context), each)
        room = length - 3 - second.row_lengths()
        first = first_of(first, tf.minimum(first.row_lengths(), room))
        fixed = length if self.config.fixed_length else None
        return two_part_rows(self.tokenizer, first, second, fixed)


def first_of(rows: tf.RaggedTensor, keep: tf.Tensor) -> tf.RaggedTensor:
    """Return the first `keep` [N] values of each row."""
    places = tf.ragged.range(rows.row_starts(), rows.row_starts() + keep)
    return tf.gather(rows.values, places)
