"""Signatures that return classes, numbers, vectors or choices.

Shapes: N questions, B batch, C classes or choices.
"""

import tensorflow as tf

from albert_tf.serving.signatures import (
    Encoder,
    Signature,
    Tensors,
    same_batch_size,
    two_part_rows,
)
from albert_tf.tasks.multiple_choice import BLANK, without_empty
from albert_tf.tasks.task import Task


def with_choice(question: tf.Tensor, choice: tf.Tensor) -> tf.Tensor:
    """Fill the blanks in questions [N] with choices.

    If a question has no blank, its choice is appended.
    """
    parts = tf.strings.split(question, BLANK)
    # A choice precedes every part except the first.
    has_choice = tf.ragged.range(parts.row_lengths()).values > 0
    prefixes = tf.where(has_choice, tf.gather(choice, parts.value_rowids()), "")
    filled = parts.with_values(prefixes + parts.values)
    filled = tf.strings.reduce_join(filled, axis=1)
    appended = tf.strings.join([question, choice], " ")
    return tf.where(parts.row_lengths() > 1, filled, appended)


def first_of(rows: tf.RaggedTensor, keep: tf.Tensor) -> tf.RaggedTensor:
    """Return the first `keep` [N] values of each row."""
    indices = tf.ragged.range(rows.row_starts(), rows.row_starts() + keep)
    return tf.gather(rows.values, indices)


def choice_rows(
    encoder: Encoder, task: Task, context, question, choices
) -> Tensors:
    """Return a row `[CLS] context [SEP] question and choice [SEP]` per choice.

    Args:
      encoder: the model's encoder.
      task: the task, with the maximum length of a question with a choice.
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
    fixed = length if encoder.config.fixed_length else None
    return two_part_rows(encoder.tokenizer, first, second, fixed)


def likeliest(outputs: Tensors, choices: tf.Tensor) -> Tensors:
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
        "text": tf.gather(choices, best, batch_dims=1),
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
        return likeliest(outputs, request[-1])

    return Signature([*encoder.strings("context", "question"), spec], call)


def text_signature(encoder: Encoder, compute, task: Task) -> Signature:
    """Return the signature for the texts or text pairs of the task."""
    return (encoder.text_pair if task.is_pair else encoder.text)(compute)


def class_names(task: Task, outputs: Tensors) -> Tensors:
    """Return `labels`, the names of all classes [B, C], and the prediction.

    If a text has one class, `label` [B] is the most probable class. If a text
    may have several classes, `chosen` [B, C] marks the predicted classes.
    """
    logits, labels = outputs["logits"], tf.constant(task.labels)
    result = {"labels": tf.broadcast_to(labels, tf.shape(logits))}
    if task.kind == "multilabel":
        return result | {"chosen": outputs["probabilities"] > task.threshold}
    best = tf.argmax(logits, axis=-1)
    return result | {"label": tf.gather(labels, best)}
