"""The task of a loaded model, fine-tuned or with a new head."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from albert_tf.base.errors import require
from albert_tf.base.settings import as_type
from albert_tf.conversion.sources import Source
from albert_tf.library.base_model import check_keywords, check_length
from albert_tf.library.user_data import listed
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.classification import PAIR
from albert_tf.tasks.registry import find
from albert_tf.tasks.tables import label_text
from albert_tf.tasks.task import Task
from albert_tf.tasks.task_config import COLUMNS, TaskConfig
from albert_tf.text.packing import is_column

# Parameters of `load` other than `path` and `settings`.
ARGUMENTS = (
    *("labels", "max_length", "new_head", "num_labels"),
    *("added_pieces", "lora_rank"),
)
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def with_dropout(config: AlbertConfig, settings: dict) -> AlbertConfig:
    """Return the architecture with the requested dropout rates."""
    rates = {k: settings[k] for k in DROPOUTS if k in settings}
    return dataclasses.replace(config, **rates)


def label_names(labels: Sequence) -> tuple[str, ...]:
    """Return labels as strings; numbers are formatted as in JSON."""
    rule = "`labels` must be a list of the classes, in order."
    require(is_column(labels), rule, labels=labels)
    texts = [label_text(x, "`labels`") for x in listed(labels, "labels")]
    distinct = None not in texts and len(set(texts)) == len(texts) > 1
    rule = "`labels` must contain two or more different labels."
    require(distinct, rule, labels=", ".join(map(str, texts)))
    return tuple(texts)


def resolved_labels(
    labels: Sequence | None,
    number: int | None,
    stored_labels: Sequence[str],
    minimum: int,
) -> Sequence | None:
    """Return the labels of a model to load, or None for the task's labels.

    Args:
      labels: the classes, or None.
      number: the argument `num_labels` of `load`, or None. For 1, the result
        is None, because a single predicted number has no name.
      stored_labels: the labels of a fine-tuned model; () for a new head.
      minimum: the smallest valid `number`.
    """
    if number is None:
        return labels
    number = as_type("num_labels", number, int)
    names = stored_labels if labels is None else label_names(labels)
    rule = "`num_labels` must be the number of labels and at least "
    rule += f"{minimum}."
    legal = number >= minimum and (not names or len(names) == number)
    received = {"labels": ", ".join(names)} if names else {}
    require(legal, rule, num_labels=number, **received)
    if number == 1:
        return None
    return names or [str(i) for i in range(number)]


def finetuned_task(cls: type, source: Source, labels, **options) -> Task:
    """Return a fine-tuned model's task; all arguments must agree with it."""
    task, hint = source.task, "`new_head=True` loads only the encoder."
    require(
        task.kind in cls.kinds,
        f"A {cls.__name__} must be fine-tuned for {' or '.join(cls.kinds)}; "
        f"{hint}",
        path=f"{source.path}, fine-tuned for {task.kind}",
    )
    stored = getattr(task, "labels", ())
    names = stored if labels is None else label_names(labels)
    rule = f"`labels` must be the model's labels, {', '.join(stored)}; {hint}"
    require(names == stored, rule, labels=", ".join(names))
    finetuned = {"pairs": task.is_pair, "multilabel": task.kind == "multilabel"}
    for name, value in options.items():
        rule = f"`{name}` must have the value used in fine-tuning."
        require(value == finetuned[name], rule, **{name: value})
    return task


def new_task(
    cls: type,
    labels: Sequence | None,
    pairs: bool = False,
    multilabel: bool = False,
) -> Task:
    """Return the task of a model with a new head."""
    task = find(cls.kinds[bool(multilabel)])
    if pairs:
        task = task.updated(text_pair_column=PAIR)
    rule = f"`{cls.__name__}` accepts neither `labels` nor `num_labels`."
    require(labels is None or hasattr(task, "labels"), rule, labels=labels)
    require(
        labels is not None or not task.has_classes,
        "`labels` must be given, because the model has no head with classes. "
        "Received: none",
    )
    if labels is None:
        return task
    return dataclasses.replace(task, labels=label_names(labels))


def task_of_class(
    cls: type,
    source: Source,
    labels: Sequence | None,
    num_labels: int | None,
    max_length: int | None,
    load_head: bool,
    settings: dict[str, Any],
) -> Task:
    """Return the task of a loaded `TaskModel`.

    Args:
      cls: the model's class.
      source: the model on disk.
      labels: the classes, or None for the fine-tuned model's classes.
      num_labels: the number of classes, or None.
      max_length: maximum number of tokens in an input, or None for the task's
        value.
      load_head: whether to load the head too.
      settings: options of the class, fields of `TaskConfig`, names of columns
        and dropout rates.
    """
    stored_labels = getattr(source.task, "labels", ()) if load_head else ()
    fewest = find(cls.kinds[0]).fewest_labels
    labels = resolved_labels(labels, num_labels, stored_labels, fewest)
    fields = [field.name for field in dataclasses.fields(TaskConfig)]
    legal = sorted((*cls.options, *fields, *COLUMNS, *DROPOUTS))
    check_keywords(settings, legal, ARGUMENTS)
    options = {k: settings[k] for k in cls.options if k in settings}
    if load_head:
        task = finetuned_task(cls, source, labels, **options)
    else:
        task = new_task(cls, labels, **options)
    max_length = check_length(max_length, source.config)
    task = task.within(source.config.max_position_embeddings)
    excluded = {*cls.options, *DROPOUTS}
    changes = {k: x for k, x in settings.items() if k not in excluded}
    task = task.updated(**{"max_seq_length": max_length} | changes)
    source.config.check_length("max_seq_length", task.config.max_seq_length)
    return task
