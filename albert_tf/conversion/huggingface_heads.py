"""Heads of fine-tuned models as Hugging Face's classes have them."""

import dataclasses

import numpy as np

from albert_tf.base.errors import require
from albert_tf.conversion.named_tensors import Tensors
from albert_tf.tasks.task import Task

# By the kind of a task: the class that has its head, and the head's name.
HEADS = {
    "classification": ("AlbertForSequenceClassification", "classifier"),
    "multilabel": ("AlbertForSequenceClassification", "classifier"),
    "regression": ("AlbertForSequenceClassification", "classifier"),
    "token_classification": ("AlbertForTokenClassification", "classifier"),
    "multiple_choice": ("AlbertForMultipleChoice", "classifier"),
    "question_answering": ("AlbertForQuestionAnswering", "qa_outputs"),
    "embedding": ("AlbertModel", ""),
}
PROBLEMS = {
    "classification": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}
# Classes that compute no `pooled_output`.
WITHOUT_POOLER = ("AlbertForTokenClassification", "AlbertForQuestionAnswering")


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """The head of a fine-tuned model as Hugging Face has it.

    Attributes:
      architecture: the class.
      arrays: {name: array}.
      config: what `config.json` says of it.
    """

    architecture: str
    arrays: dict[str, np.ndarray]
    config: dict


def head_of(task: Task, head: Tensors) -> TaskHead:
    """Return a task's head, or refuse one that Hugging Face has not."""
    require(
        task.kind in HEADS and task.config.answer_head != "beam",
        "Hugging Face must have the task's head; there is none like "
        "answer_head=beam.",
        task=task.name,
    )
    architecture, name = HEADS[task.kind]
    values: dict = {"classifier_dropout_prob": task.config.classifier_dropout}
    if task.kind in PROBLEMS:
        values["problem_type"] = PROBLEMS[task.kind]
    labels = getattr(task, "labels", ()) or ("score",)
    if task.kind in PROBLEMS or task.kind == "token_classification":
        values["id2label"] = dict(enumerate(labels))
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    if not head.shapes:
        return TaskHead(architecture, {}, {})
    arrays = {
        f"{name}.weight": np.ascontiguousarray(
            head.read("classifier/kernel").T
        ),
        f"{name}.bias": head.read("classifier/bias"),
    }
    return TaskHead(architecture, arrays, values)
