"""What fine-tuned models of sentences and pairs of sentences serve.

Shapes: B batch, C classes.
"""

import tensorflow as tf

from albert_tf.serving.encoder import Encoder, Signature, Tensors
from albert_tf.tasks.task import Task


def texts(encoder: Encoder, compute, task: Task) -> Signature:
    """Return the signature that takes texts, or pairs if the task has them."""
    return (encoder.text_pair if task.is_pair else encoder.text)(compute)


def class_names(task: Task, outputs: Tensors) -> Tensors:
    """Return the names of all classes [B, C], and which of them apply.

    That is the likeliest `label` [B]; or of sets of classes whether each is
    `chosen` [B, C].
    """
    logits, labels = outputs["logits"], tf.constant(task.labels)
    names = {"labels": tf.broadcast_to(labels, tf.shape(logits))}
    if task.kind == "multilabel":
        return names | {"chosen": outputs["probabilities"] > task.threshold}
    best = tf.argmax(logits, axis=-1)
    return names | {"label": tf.gather(labels, best)}
