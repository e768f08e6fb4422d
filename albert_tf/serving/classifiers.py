"""What fine-tuned models of sentences and pairs of sentences serve.

Shapes: B batch, C classes (1 for a number), H hidden width.
"""

import tensorflow as tf

from albert_tf.model.sentence_vectors import pooled
from albert_tf.serving.encoder import Encoder, Signature, Tensors
from albert_tf.serving.server import Kind
from albert_tf.tasks.task import Task


def texts(encoder: Encoder, compute, task: Task) -> Signature:
    """Return what takes texts or pairs, as the task has them."""
    return (encoder.text_pair if task.is_pair else encoder.text)(compute)


def scores(model, task: Task, encoded: Tensors, inputs: Tensors) -> Tensors:
    """Return logits [B, C], and probabilities or a number."""
    logits = model.classifier(encoded["pooled_output"])
    return {"logits": logits} | task.head.served({"logits": logits})


def best_label(model, task: Task, encoded: Tensors, inputs: Tensors) -> Tensors:
    """Return the same, with the likeliest label [B] and all labels [B, C]."""
    outputs = scores(model, task, encoded, inputs)
    best = tf.argmax(outputs["logits"], axis=-1)
    labels = tf.constant(task.labels)
    every = tf.broadcast_to(labels, tf.shape(outputs["logits"]))
    return outputs | {"label": tf.gather(labels, best), "labels": every}


def chosen_labels(
    model, task: Task, encoded: Tensors, inputs: Tensors
) -> Tensors:
    """Return the same, with all labels and whether each is chosen [B, C]."""
    outputs = scores(model, task, encoded, inputs)
    every = tf.broadcast_to(task.labels, tf.shape(outputs["logits"]))
    chosen = outputs["probabilities"] > task.threshold
    return outputs | {"labels": every, "chosen": chosen}


def text_vectors(
    model, task: Task, encoded: Tensors, inputs: Tensors
) -> Tensors:
    """Return the vector of each text, [B, H], pooled as in fine-tuning."""
    tokens, mask = encoded["sequence_output"], inputs["input_mask"]
    return {"embedding": pooled(tokens, mask, *task.head.sizes())}


def vectors_and_tokens(
    model, task: Task, encoded: Tensors, inputs: Tensors
) -> Tensors:
    """Return the vector of each text, and those of its tokens [B, T, H]."""
    tokens = {"sequence_output": encoded["sequence_output"]}
    return tokens | text_vectors(model, task, encoded, inputs)


def one_text(encoder: Encoder, compute, task: Task) -> Signature:
    """Return what takes texts."""
    return encoder.text(compute)


CLASSIFICATION = Kind("classify", texts, best_label, scores, True, pairs=True)
MULTILABEL = Kind("classify", texts, chosen_labels, scores, True, pairs=True)
REGRESSION = Kind("score", texts, scores, pooled=True, pairs=True)
EMBEDDING = Kind("embed", one_text, text_vectors, vectors_and_tokens)
