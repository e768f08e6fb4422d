"""The base class of tasks, which define files, features, losses and answers.

A kind of task (classification, ...) is a subclass of `Task`. The subclass needs
only NumPy, so a LiteRT model can answer without TensorFlow; the layers are in
`model/task_heads.py`, and the loss is in `losses.py`. A data set is an instance
of a kind, declared in `registry.py`.
"""

import abc
import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
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
# The settings of `DataConfig` that change a task.
DATA_SETTINGS = (*COLUMNS, "main_metric")
UNCHANGED = TaskConfig()


def splits_of(*names: str) -> Splits:
    """Return the splits of a data set that has one file per part."""
    return {part: {"": name} for part, name in zip(PARTS, names, strict=True)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """A data set of one kind, with all code and data specific to the task.

    Examples are the values that the kind's `read` returns; only the code of the
    kind inspects them.

    Attributes:
      name: the value of `--task`.
      splits: {"train" | "eval" | "predict": {split: file}}; the files are
        relative to the data directory, and a single split has the name "".
      folder: the data set's folder in the parent folder of all data sets.
      main_metric: the metric that selects the best checkpoint, one of the
        task's `scores`; larger is better.
      config: the input length, the dropout rate and the kind's other settings.

    Class attributes, set by each kind:
      kind: the name of the kind.
      signature: the signature that serves the task in a SavedModel.
      fields: the names and types of a query's fields.
      output: the name of the model's output, if there is only one output.
      answer_outputs: the outputs from which answers are computed.
      takes: the fields of `TaskConfig` that apply to the kind.
      data_takes: the column settings of `DataConfig` that apply to the kind.
      learned: the fields that a fine-tuned model determines.
      has_classes: whether labels are classes.
      fewest_labels: the minimum number of labels.
      many_label_columns: whether several columns may contain the label.
      is_pair: whether examples are pairs of texts.
      text_rank: the rank of an example's text: 0, or 1 for lists of words.
      unlabeled: whether the task can learn from texts without labels.
      hub_class: the class in `transformers` with the same head.
      hub_head: the prefix of the head's variables in this class, or "" if the
        class has no head.
      problem_type: the option of `hub_class` that distinguishes the kinds with
        this class, or "" if there is only one.
    """

    kind: ClassVar[str]
    signature: ClassVar[str]
    fields: ClassVar[dict[str, type]] = {"text": str, "text_pair": str}
    output: ClassVar[str] = "logits"
    answer_outputs: ClassVar[tuple[str, ...]] = ("logits",)
    takes: ClassVar[tuple[str, ...]] = ("max_seq_length", "classifier_dropout")
    data_takes: ClassVar[tuple[str, ...]] = ()
    learned: ClassVar[tuple[str, ...]] = ()
    has_classes: ClassVar[bool] = False
    fewest_labels: ClassVar[int] = 2
    many_label_columns: ClassVar[bool] = False
    is_pair: ClassVar[bool] = False
    text_rank: ClassVar[int] = 0
    unlabeled: ClassVar[bool] = False
    hub_class: ClassVar[str]
    hub_head: ClassVar[str] = "classifier"
    problem_type: ClassVar[str] = ""

    name: str
    splits: Splits = dataclasses.field(default_factory=dict)
    folder: str = ""
    main_metric: str
    config: TaskConfig = DEFAULT_CONFIG

    def updated(self, **settings) -> "Task":
        """Return the task, updated with a user's settings.

        If inputs become shorter, the other lengths are reduced to fit.

        Args:
          **settings: fields of `TaskConfig`, column names, and `main_metric`;
            None leaves a setting unchanged.
        """
        names = [name for name in DATA_SETTINGS if name in settings]
        data = DataConfig(**{name: settings.pop(name) for name in names})
        columns = {name: getattr(data, name) for name in COLUMNS}
        columns = {k: v for k, v in columns.items() if v not in (None, ())}
        self._check_data(data, columns)
        task = self.with_columns(columns) if columns else self
        if columns:
            task._check_label_column(columns)
        values = dataclasses.asdict(TaskConfig(**settings))
        changes = {k: v for k, v in values.items() if v is not None}
        config = dataclasses.replace(self.config, **changes)
        if config.max_seq_length < self.config.max_seq_length:
            fitted = self.fitted_lengths(config, changes)
            config = dataclasses.replace(config, **fitted | changes)
        main = data.main_metric or self.main_metric
        task = dataclasses.replace(task, main_metric=main, config=config)
        task.check(changes)
        return task

    def within(self, positions: int) -> "Task":
        """Return the task with inputs of at most `positions` tokens."""
        if self.config.max_seq_length <= positions:
            return self
        return self.updated(max_seq_length=positions)

    def _check_data(self, data: DataConfig, columns: dict) -> None:
        """Raise an error if columns or the main metric do not apply."""
        for name, value in columns.items():
            rule = f"`{name}` does not apply to tasks of kind {self.kind}."
            require(name in self.data_takes, rule, **{name: value})
        require(
            self.many_label_columns or len(data.label_column) < 2,
            f"`label_column` must be one column for tasks of kind {self.kind}.",
            label_column=",".join(data.label_column),
        )
        rule = f"`main_metric` must be one of {', '.join(self.scores)}."
        legal = data.main_metric in (None, *self.scores)
        require(legal, rule, main_metric=data.main_metric)

    def _check_label_column(self, columns: dict) -> None:
        """Raise an error if the model would read the labels as texts."""
        table = self.table()
        texts = {*table.texts, columns.get("text_column")}
        shared = texts & {table.label, *columns.get("label_column", ())}
        rule = "`label_column` must not be a column of the texts."
        require(not shared, rule, label_column=",".join(shared))

    def with_columns(self, columns: dict[str, Any]) -> "Task":
        """Return the task with the column names from the settings."""
        raise NotImplementedError

    def check(self, changes: dict[str, Any]) -> None:
        """Raise an error for settings that conflict or do not apply.

        Args:
          changes: the fields of `config` that have just changed.
        """
        for name, value in changes.items():
            rule = f"Tasks of kind {self.kind} accept {', '.join(self.takes)}."
            require(name in self.takes, rule, **{name: value})

    def fitted_lengths(
        self, config: TaskConfig, changes: dict[str, Any]
    ) -> dict[str, int]:
        """Return the other length settings, reduced to fit `max_seq_length`.

        The caller ignores results for lengths in `changes`, because the user
        has set these lengths.
        """
        return {}

    def replaced(self, **config) -> "Task":
        """Return the task with an updated `config`, without checks."""
        config = dataclasses.replace(self.config, **config)
        return dataclasses.replace(self, config=config)

    # Layers and loss, which need TensorFlow.

    @property
    def head_kind(self) -> str:
        """The task's key in `MODELS` and in `OBJECTIVES`."""
        return self.kind

    @property
    def head_arguments(self) -> tuple:
        """The arguments of the task's layers, except for the architecture."""
        return ()

    def build_model(self, config, dtype: str, albert=None):
        """Return an ALBERT model with the task's layers.

        Args:
          config: the architecture.
          dtype: a Keras dtype policy.
          albert: an encoder to share with other tasks; None creates an encoder.
        """
        from albert_tf.model.task_heads import MODELS

        model = MODELS[self.head_kind]
        # Keras would name a process's first model like this, and add numbers to
        # later names. The fingerprint of a checkpoint depends on the name.
        name = re.sub(r"\B(?=[A-Z])", "_", model.__name__).lower()
        return model(
            config,
            *self.head_arguments,
            classifier_dropout=self.config.classifier_dropout,
            dtype=dtype,
            albert=albert,
            name=name,
        )

    def named(self, outputs: Any) -> dict[str, Any]:
        """Return a model's outputs by name."""
        return outputs if isinstance(outputs, dict) else {self.output: outputs}

    @functools.cached_property
    def objective(self):
        """The task's loss and training metrics, a `TaskObjective`."""
        from albert_tf.tasks.losses import OBJECTIVES

        return OBJECTIVES[self.head_kind](self)

    # Examples in memory.

    @abc.abstractmethod
    def table(
        self, width: int | None = None, labeled: bool = False
    ) -> TableColumns:
        """Return the columns from which to read texts and labels.

        Args:
          width: the number of text columns, or None if the columns have names.
          labeled: whether there are labels.
        """

    def label_column_in(self, names: Iterable[str]) -> str:
        """Return the column of the labels in a table with these columns."""
        return self.table().label

    def in_memory(self) -> "Task":
        """Return a copy of the task that reads only the columns of `table`."""
        return self

    def without_ids(self) -> "Task":
        """Return a copy of the task that reads rows without an id column.

        A column that names the sentence of each word is kept.
        """
        has_id_column = "id_column" in self.data_takes and not self.text_rank
        return self.with_columns({"id_column": ""}) if has_id_column else self

    def reopened(self) -> "Task":
        """Return the task without settings that training data determined.

        The result is for training on additional examples.
        """
        return self

    def cells_and_shares(self, labels: list) -> tuple[list, Any]:
        """Return labels in the form of cells, and the shares of the classes.

        Lists of one item are unpacked. The shares are an array [N, C], or None
        if the labels are not shares.
        """
        cells = [
            x[0] if isinstance(x, list) and len(x) == 1 else x for x in labels
        ]
        return cells, None

    def distinct_texts(self, examples: Sequence[Any]) -> Sequence | None:
        """Return the texts that a batch must not repeat.

        The result has one tuple of texts per example, or is None if a batch may
        repeat any text.
        """
        return None

    # Examples.

    @abc.abstractmethod
    def read(self, part: str, path: str) -> Sequence[Any]:
        """Return the examples in a file or folder.

        Args:
          part: "train", "eval" or "predict"; "predict" needs no labels.
          path: the file or folder.

        Raises:
          InputError: if the data are malformed; the message locates the error.
        """

    def for_model(self, trained: "Task") -> "Task":
        """Return the task, adapted to the task of a fine-tuned model.

        Raises:
          InputError: if the model was fine-tuned for a different kind of task.
        """
        require(
            self.kind == trained.kind,
            "`task` must be of the kind that the model was fine-tuned for, "
            f"{trained.kind}.",
            task=f"{self.name}, a task of kind {self.kind}",
        )
        learned = {name: getattr(trained, name) for name in self.learned}
        return dataclasses.replace(self, config=trained.config, **learned)

    def fitted(self, examples: Sequence[Any]) -> "Task":
        """Return the task with the fields that training examples determine.

        For example, they may determine `labels`.
        """
        return self

    def check_training(self, examples: Sequence[Any], config: Any) -> None:
        """Raise `InputError` if a model cannot learn from the examples.

        Args:
          examples: the training examples.
          config: the `AlbertConfig` of the model.
        """
        return None

    def evaluated_on(self, examples: Sequence[Any]) -> "Task":
        """Return the task with a main metric that suits the given examples."""
        return self

    def supports_single_example(self, examples: Sequence[Any]) -> bool:
        """Return whether a batch of a single example has a useful loss."""
        return True

    @abc.abstractmethod
    def features(
        self, examples: Sequence[Any], tokenizer: Tokenizer
    ) -> Features:
        """Return the examples as arrays, with labels if all are labeled."""

    # Results.

    def probabilities(self, logits: Any) -> Any:
        """Return the probability of each class, in NumPy or TensorFlow."""
        return softmax(logits)

    def served(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """Return additional outputs for serving, given the head's outputs."""
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
          examples: the examples.
          outputs: the head's outputs for each row of the features.
          features: the examples' features, whose `notes` map rows back to
            examples and to positions in the text.
        """

    @abc.abstractmethod
    def score(
        self, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> dict[str, float]:
        """Return {name: value} for the official metrics of predictions."""

    def tuned(
        self, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> "Task":
        """Return the task with a threshold tuned on labeled examples."""
        return self

    @abc.abstractmethod
    def write_predictions(
        self, path: str, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> list[str]:
        """Write the files of a split's predictions; return their paths.

        Args:
          path: the path of the predictions without the extension.
          examples: the examples of the split.
          predictions: the prediction for each example.
        """

    # A query, {field: value}, and its answer.

    def for_queries(self) -> "Task":
        """Return a copy of the task that skips outputs not used in answers."""
        return self

    @abc.abstractmethod
    def example(self, **query) -> Any:
        """Convert a query to an example without a label."""

    def value(self, prediction: Any) -> Any:
        """Return a prediction in the form that `TaskModel.predict` returns."""
        return prediction.probabilities

    @abc.abstractmethod
    def answer(
        self, query: dict[str, Any], prediction: Any, top: int
    ) -> dict[str, Any]:
        """Convert a prediction to JSON values, with at most `top` answers."""

    # The model directory.

    def description(self) -> dict:
        """Return the content of `task.json`; `task_of` is the inverse."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    def identity(self) -> dict:
        """Return `description` without the threshold, which may change."""
        return self.replaced(null_score_diff_threshold=None).description()

    def save(self, model_dir: str) -> None:
        """Write `task.json` to a model directory."""
        files.write_json(files.join(model_dir, TASK_FILE), self.description())


def with_settings(
    task: Task, data: DataConfig, config: TaskConfig = UNCHANGED
) -> Task:
    """Return the task with a run's settings; see `Task.updated`."""
    data_settings = {name: getattr(data, name) for name in DATA_SETTINGS}
    return task.updated(**data_settings, **vars(config))


def example_file(task: Task, data: DataConfig, file: str) -> str:
    """Return the path of a data set's official file, which must exist."""
    require(
        data.data_dir,
        f"task={task.name} needs `data_dir`, or your own files in "
        "`train_file`, `eval_file` and `predict_file`.",
        data_dir=data.data_dir,
    )
    candidates = [files.join(data.data_dir, file)]
    if task.folder:
        candidates.append(files.join(data.data_dir, task.folder, file))
    for path in candidates:
        if files.exists(path):
            return path
    raise InputError(
        f"`data_dir` must contain {file} of {task.name}. Received: "
        f"data_dir={data.data_dir} (looked for {' and '.join(candidates)})"
    )


def split_paths(task: Task, data: DataConfig, part: str) -> dict[str, str]:
    """Return {split: path} for "train", "eval" or "predict"."""
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
    """Return {split: examples} for "train", "eval" or "predict"."""
    splits = {}
    for split, path in split_paths(task, data, part).items():
        if getattr(data, f"{part}_file"):
            note_quotes(path)
        splits[split] = task.read(part, path)
        rule = f"The {part} split must have at least one example."
        require(splits[split], rule, path=path)
    return splits
