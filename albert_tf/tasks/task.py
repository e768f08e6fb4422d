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
from albert_tf.tasks.numerics import softmax
from albert_tf.tasks.tables import TableColumns, note_quotes
from albert_tf.tasks.task_config import COLUMNS, DataConfig, TaskConfig
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

    Class attributes, which a kind sets:
      kind: its name.
      signature: the signature of a SavedModel that serves it.
      fields: the fields of a query, and their types.
      answer_outputs: the outputs of the head from which answers follow.
      takes: the fields of `TaskConfig` that have a meaning for it.
      data_takes: the columns of `DataConfig` that have one.
      learnt: the fields of a task that belong to a fine-tuned model.
      has_classes: whether labels are classes.
      fewest_labels: the least number of labels.
      many_label_columns: whether a label may stand in several columns.
      is_pair: whether examples are pairs of texts.
      text_rank: the rank of an example's text: 0, or 1 for lists of words.
      unlabelled: whether texts without labels can be learnt from.
    """

    kind: ClassVar[str]
    signature: ClassVar[str]
    fields: ClassVar[dict[str, type]] = {"text": str, "text_pair": str}
    answer_outputs: ClassVar[tuple[str, ...]] = ("logits",)
    takes: ClassVar[tuple[str, ...]] = ("max_seq_length", "classifier_dropout")
    data_takes: ClassVar[tuple[str, ...]] = ()
    learnt: ClassVar[tuple[str, ...]] = ()
    has_classes: ClassVar[bool] = False
    fewest_labels: ClassVar[int] = 2
    many_label_columns: ClassVar[bool] = False
    is_pair: ClassVar[bool] = False
    text_rank: ClassVar[int] = 0
    unlabelled: ClassVar[bool] = False

    name: str
    splits: Splits = dataclasses.field(default_factory=dict)
    folder: str = ""
    main_metric: str
    config: TaskConfig = DEFAULT_CONFIG

    def updated(self, **given) -> "Task":
        """Return the task with a user's settings.

        If inputs become shorter, the other lengths are fitted to them.

        Args:
          **given: fields of `TaskConfig`, names of columns, and `main_metric`;
            None changes nothing.
        """
        names = (*COLUMNS, "main_metric")
        data = DataConfig(**{k: given.pop(k) for k in names if k in given})
        self._check_data(data)
        columns = data.columns()
        task = self.renamed(columns) if columns else self
        values = dataclasses.asdict(TaskConfig(**given))
        changes = {k: v for k, v in values.items() if v is not None}
        config = dataclasses.replace(self.config, **changes)
        if config.max_seq_length < self.config.max_seq_length:
            fitted = self.fitted_lengths(config, changes)
            config = dataclasses.replace(config, **fitted | changes)
        main = data.main_metric or self.main_metric
        task = dataclasses.replace(task, main_metric=main, config=config)
        task.check(changes)
        return task

    def _check_data(self, data: DataConfig) -> None:
        """Refuse columns and a main metric that the kind does not have."""
        for name, value in data.columns().items():
            rule = f"`{name}` has no meaning for a task of {self.kind}."
            require(name in self.data_takes, rule, **{name: value})
        require(
            self.many_label_columns or len(data.label_column) < 2,
            f"`label_column` must be one column for a task of {self.kind}.",
            label_column=",".join(data.label_column),
        )
        rule = f"`main_metric` must be one of {', '.join(self.scores)}."
        legal = data.main_metric in (None, *self.scores)
        require(legal, rule, main_metric=data.main_metric)

    def renamed(self, columns: dict[str, Any]) -> "Task":
        """Return the task with the columns that settings name."""
        raise NotImplementedError

    def check(self, given: dict[str, Any]) -> None:
        """Refuse settings that the kind lacks, or that do not fit each other.

        Args:
          given: those of `config` that have just been changed.
        """
        for name, value in given.items():
            rule = f"A task of {self.kind} takes {', '.join(self.takes)}."
            require(name in self.takes, rule, **{name: value})

    def fitted_lengths(
        self, config: TaskConfig, given: dict[str, Any]
    ) -> dict[str, int]:
        """Return the other lengths that fit `config.max_seq_length`.

        Those in `given` stay as they are.
        """
        return {}

    def replaced(self, **config) -> "Task":
        """Return the task with other values in its `config`, unchecked."""
        config = dataclasses.replace(self.config, **config)
        return dataclasses.replace(self, config=config)

    @functools.cached_property
    def head(self):
        """What is learnt for the task, a `Head`, which needs TensorFlow."""
        from albert_tf.tasks.losses import head_of

        return head_of(self)

    # Examples in memory.

    @abc.abstractmethod
    def table(
        self, width: int | None = None, labelled: bool = False
    ) -> TableColumns:
        """Return the columns by which texts and labels are read.

        Args:
          width: the number of columns of texts, None for all that there may
            be.
          labelled: whether there are labels.
        """

    def in_memory(self) -> "Task":
        """Return the task as it reads the columns of `table` alone."""
        return self

    def nameless(self) -> "Task":
        """Return the task as it reads a table whose rows need no names."""
        return self

    def reopened(self) -> "Task":
        """Return the task as it learns from more examples than before."""
        return self

    def table_labels(self, labels: list) -> list:
        """Return labels as they are in tables; each may be a list of one."""
        return [
            x[0] if isinstance(x, list) and len(x) == 1 else x for x in labels
        ]

    def with_shares(self, examples: Sequence[Any], labels: list) -> Sequence:
        """Return examples, with shares of classes if labels are shares."""
        return examples

    def texts_apart(self, examples: Sequence[Any]) -> Sequence | None:
        """Return the texts that a batch must not repeat, or None."""
        return None

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

    def probabilities(self, logits: Any) -> Any:
        """Return the probability of each class, in NumPy or TensorFlow."""
        return softmax(logits)

    def served(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """Return what a served model returns beside the head's outputs."""
        return {}

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

    # One query, {field: value}, and its answer.

    @abc.abstractmethod
    def example(self, **query) -> Any:
        """Return the example of a query, without a label."""

    def value(self, prediction: Any) -> Any:
        """Return what Keras's `predict` returns for an example."""
        return prediction.probabilities

    @abc.abstractmethod
    def answer(
        self, query: dict[str, Any], prediction: Any, top: int
    ) -> dict[str, Any]:
        """Return a prediction as JSON has it, with at most `top` answers."""

    # The model directory.

    def description(self) -> dict:
        """Return the content of `task.json`, of which `typed` remakes it."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    def identity(self) -> dict:
        """Return `description` without what may change: the threshold."""
        return self.replaced(null_score_diff_threshold=None).description()

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
