"""A task: where its examples are, how they become arrays, and arrays answers.

A kind of task (classification, ...) is a subclass of `Task`, its codec. It
knows NumPy alone, so that a LiteRT model answers without TensorFlow; the
layers and the loss are its head, see `heads.py`. A data set is an instance of
a kind, a row in a table.
"""

import abc
import dataclasses
import functools
import types
import typing
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from albert_tf.base import files
from albert_tf.base.errors import InputError, require
from albert_tf.tasks.features import Features
from albert_tf.tasks.tables import note_quotes
from albert_tf.tasks.task_config import DataConfig, TaskConfig
from albert_tf.text.tokenizers import Tokenizer

TASK_FILE = "task.json"
PARTS = ("train", "eval", "predict")
Splits = dict[str, dict[str, str]]

DEFAULT_CONFIG = TaskConfig(max_seq_length=128, classifier_dropout=0.1)


def splits_of(*names: str) -> Splits:
    """Return the splits of a data set with one file for each part."""
    return {part: {"": name} for part, name in zip(PARTS, names, strict=True)}


# The types in JSON of values of a type; a float may be a whole number.
JSON_TYPES = {
    bool: bool,
    str: str,
    int: int,
    float: int | float,
    tuple: list | tuple,
    dict: dict,
}


def typed(kind: Any, value: Any) -> Any:
    """Convert a value from JSON to a type.

    Dataclasses come from objects and tuples from lists.

    Raises:
      TypeError: the value is of another type.
    """
    if isinstance(kind, types.UnionType):
        kinds = typing.get_args(kind)
        return None if value is None else typed(kinds[0], value)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{k: typed(hints[k], x) for k, x in value.items()})
    outer = typing.get_origin(kind) or kind
    legal = isinstance(value, JSON_TYPES[outer])
    if not legal or isinstance(value, bool) and outer is not bool:
        raise TypeError(f"{value!r:.60} is not of type {outer.__name__}")
    if outer is not tuple:
        return value
    of_items = typing.get_args(kind)[:1]
    return tuple(typed(*of_items, x) if of_items else x for x in value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """One data set of one kind, and everything that is special about it.

    Examples are whatever the kind's `read` returns; nothing else looks inside
    them.

    Attributes:
      name: the name in `--task`.
      splits: {"train" | "eval" | "predict": {split: file}}, relative to the
        data directory; the name of an only split is "".
      folder: where the files lie below the parent of all data sets.
      main_metric: the metric that chooses the best checkpoint, one of the
        task's `scores`; larger is better.
      config: input length, dropout and what else the kind takes.

    A kind also says, as class attributes, its name, the fields of `TaskConfig`
    (`takes`) and the columns of `DataConfig` (`data_takes`) that have a
    meaning for it, which fields are those of a fine-tuned model (`learnt`),
    whether a label may stand in several columns, and whether its labels are
    classes.
    """

    kind: ClassVar[str]
    takes: ClassVar[tuple[str, ...]] = ("max_seq_length", "classifier_dropout")
    data_takes: ClassVar[tuple[str, ...]] = ()
    learnt: ClassVar[tuple[str, ...]] = ()
    many_label_columns: ClassVar[bool] = False
    has_classes: ClassVar[bool] = False

    name: str
    splits: Splits = dataclasses.field(default_factory=dict)
    folder: str = ""
    main_metric: str
    config: TaskConfig = DEFAULT_CONFIG

    def with_config(self, config: TaskConfig) -> "Task":
        """Return the task with the settings that are not None.

        If inputs become shorter, the other lengths are fitted to them.
        """
        values = dataclasses.asdict(config)
        changes = {k: v for k, v in values.items() if v is not None}
        for name, value in changes.items():
            rule = f"A task of {self.kind} takes {', '.join(self.takes)}."
            require(name in self.takes, rule, **{name: value})
        changed = dataclasses.replace(self.config, **changes)
        if changed.max_seq_length < self.config.max_seq_length:
            fitted = self.fitted_lengths(changed, changes)
            changed = dataclasses.replace(changed, **fitted | changes)
        return dataclasses.replace(self, config=changed)

    def with_length(self, length: int) -> "Task":
        """Return the task with settings that fit inputs of `length` tokens."""
        return self.with_config(TaskConfig(max_seq_length=length))

    def fitted_lengths(
        self, config: TaskConfig, given: dict[str, Any]
    ) -> dict[str, int]:
        """Return the other lengths that fit `config.max_seq_length`.

        Those in `given` stay as they are.
        """
        return {}

    def with_null_threshold(self, value: float | None) -> "Task":
        """Return the task with another `null_score_diff_threshold`."""
        config = dataclasses.replace(
            self.config, null_score_diff_threshold=value
        )
        return dataclasses.replace(self, config=config)

    def with_data(self, data: DataConfig) -> "Task":
        """Return the task with the columns and the metric of the user."""
        columns = data.columns()
        for name, value in columns.items():
            rule = f"`{name}` has no meaning for a task of {self.kind}."
            require(name in self.data_takes, rule, **{name: value})
        require(
            self.many_label_columns or len(data.label_column) < 2,
            f"`label_column` must be one column for a task of {self.kind}.",
            label_column=",".join(data.label_column),
        )
        main = data.main_metric or self.main_metric
        rule = f"`main_metric` must be one of {', '.join(self.scores)}."
        require(main in self.scores, rule, main_metric=main)
        changed = self.with_columns(columns) if columns else self
        return dataclasses.replace(changed, main_metric=main)

    def with_columns(self, columns: dict[str, Any]) -> "Task":
        """Return the task with the columns that settings name, if any do."""
        raise NotImplementedError

    @functools.cached_property
    def head(self):
        """What is learnt for the task, a `Head`, which needs TensorFlow."""
        from albert_tf.tasks.heads import head_of

        return head_of(self)

    # Examples.

    @abc.abstractmethod
    def read(self, part: str, path: str) -> Sequence[Any]:
        """Return the examples of a file.

        Args:
          part: "train", "eval" or "predict"; only the last needs no labels.
          path: the file or folder.

        Raises:
          InputError: the data is malformed; the message gives file and line.
        """

    def for_model(self, trained: "Task") -> "Task":
        """Return the task as the task of a fine-tuned model sees it.

        Raises:
          InputError: the model was fine-tuned for another kind of task.
        """
        require(
            self.kind == trained.kind,
            "`task` must be of the kind that the model was fine-tuned for, "
            f"{trained.kind}.",
            task=f"{self.name}, a task of {self.kind}",
        )
        learnt = {name: getattr(trained, name) for name in self.learnt}
        return dataclasses.replace(self, config=trained.config, **learnt)

    def fitted(self, examples: Sequence[Any]) -> "Task":
        """Return the task with what only training examples tell: labels."""
        return self

    def evaluated_on(self, examples: Sequence[Any]) -> "Task":
        """Return the task with the main metric that examples can have."""
        return self

    def learns_alone(self, examples: Sequence[Any]) -> bool:
        """Return whether each example has a loss without others beside it."""
        return True

    @abc.abstractmethod
    def features(
        self, examples: Sequence[Any], tokenizer: Tokenizer
    ) -> Features:
        """Return the examples as arrays, with labels if all have one."""

    # Results.

    @abc.abstractmethod
    def predictions(
        self,
        examples: Sequence[Any],
        outputs: dict[str, np.ndarray],
        features: Features,
    ) -> Sequence[Any]:
        """Return one prediction for each example.

        Args:
          examples: what was predicted.
          outputs: of the head, for each row of the features.
          features: those of the examples; its `notes` tell which rows and
            which places of the text they stand for.
        """

    @abc.abstractmethod
    def score(
        self, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> dict[str, float]:
        """Return the official metrics of predictions, 0 to 1."""

    def tuned(
        self, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> "Task":
        """Return the task with what labelled predictions tell: a threshold."""
        return self

    @abc.abstractmethod
    def write_predictions(
        self, path: str, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> list[str]:
        """Write files whose names begin with `path`; return their names."""

    # The model directory.

    def description(self) -> dict:
        """Return the content of `task.json`, of which `typed` remakes it."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    def identity(self) -> dict:
        """Return `description` without what may change: the threshold."""
        return self.with_null_threshold(None).description()

    def save(self, model_dir: str) -> None:
        """Write `task.json` into a model directory."""
        files.write_json(files.join(model_dir, TASK_FILE), self.description())


def example_file(task: Task, data: DataConfig, file: str) -> str:
    """Return the path of an official file of a data set, which must exist."""
    require(
        data.data_dir,
        f"`data_dir` must be given for task={task.name}, or own files by "
        "`train_file`, `eval_file`, `predict_file`.",
        data_dir=data.data_dir,
    )
    tried = [files.join(data.data_dir, file)]
    if task.folder:
        tried.append(files.join(data.data_dir, task.folder, file))
    for path in tried:
        if files.exists(path):
            return path
    raise InputError(
        f"`data_dir` must hold {file} of {task.name}. Received: "
        f"data_dir={data.data_dir} (there is no {' nor '.join(tried)})"
    )


def split_paths(task: Task, data: DataConfig, part: str) -> dict[str, str]:
    """Return {split: path} of "train", "eval" or "predict"."""
    name = f"{part}_file"
    if getattr(data, name):
        return {"": getattr(data, name)}
    official = task.splits.get(part)
    rule = f"`{name}` must be given for task={task.name}."
    require(official, rule, **{name: None})
    return {
        split: example_file(task, data, file)
        for split, file in official.items()
    }


def read_splits(
    task: Task, data: DataConfig, part: str
) -> dict[str, Sequence[Any]]:
    """Return {split: examples} of "train", "eval" or "predict"."""
    splits = {}
    for split, path in split_paths(task, data, part).items():
        if getattr(data, f"{part}_file"):
            note_quotes(path)
        splits[split] = task.read(part, path)
        rule = f"The {part} split must have an example."
        require(splits[split], rule, path=path)
    return splits
