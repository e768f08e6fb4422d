"""Models of tasks, from raw strings, under `fit`, `evaluate` and `predict`.

Features and predictions are those of the task's codec, as in `finetune.py`.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.base.settings import as_type, plain
from albert_tf.library import feature_batches, task_loading, user_data
from albert_tf.library.base_model import ENCODER, open_model, restore
from albert_tf.library.changed_layers import add_low_rank
from albert_tf.library.network_model import NetworkModel
from albert_tf.library.user_data import is_encoded
from albert_tf.tasks.features import Features
from albert_tf.tasks.predictions import Predictor
from albert_tf.tasks.registry import find
from albert_tf.tasks.sentences import SentenceTask
from albert_tf.tasks.task import Task

BATCH_SIZE = 32


def examples_at_once(batch_size: int | None) -> int:
    """Return a batch size, the default for None."""
    if batch_size is None:
        return BATCH_SIZE
    size = as_type("batch_size", batch_size, int)
    require(size > 0, "`batch_size` must be at least 1.", batch_size=size)
    return size


class TaskModel(NetworkModel):
    """An ALBERT with the head of a task, which takes raw strings.

    `fit`, `evaluate` and `predict` convert what they are passed, and then are
    Keras's own. Called with a batch of ids, it returns the head's outputs.
    Make one with `load`.
    """

    text_methods = "`fit`, `evaluate` and `predict`"
    kinds: ClassVar[tuple[str, ...]]  # of tasks
    options: ClassVar[tuple[str, ...]] = ()  # of `load`
    _held_out: list | None = None  # examples that `fit` evaluates on

    # Where it comes from.

    @classmethod
    def load(
        cls,
        path: str,
        labels: Sequence | None = None,
        max_length: int | None = None,
        new_head: bool = False,
        num_labels: int | None = None,
        lora_rank: int | None = None,
        added_pieces: Sequence[str] | None = None,
        **settings,
    ) -> "TaskModel":
        """Return the model of a folder: with its head, or with a new one.

        Args:
          path: what `albert_tf.load` takes, or a fine-tuned model directory.
          labels: the classes, in order. Default: the fine-tuned model's.
          max_length: most tokens of an input. Default: the task's.
          new_head: whether to leave a fine-tuned model's head out.
          num_labels: the number of classes, if they have no names.
          lora_rank: the rank of low-rank matrices (LoRA), which the encoder
            learns instead of its weights.
          added_pieces: texts that become pieces of the vocabulary, such as
            `[E1]`, each with a row of the word table.
          **settings: options of the class, as it says; fields of `TaskConfig`
            (`classifier_dropout`); names of columns as `text_column`;
            `hidden_dropout_prob` and `attention_probs_dropout_prob`; `name`
            and `dtype` of a Keras model.

        Raises:
          InputError: the folder, the labels or the settings do not fit.
        """
        for name in {"pairs", "multilabel"} & settings.keys():
            settings[name] = as_type(name, settings[name], bool)
        opened = open_model(path, settings.get("pairs", False), added_pieces)
        keras_settings = {k: settings.pop(k, None) for k in ("name", "dtype")}
        new_head = as_type("new_head", new_head, bool)
        learnt = opened.task is not None and not new_head
        known = getattr(opened.task, "labels", ()) if learnt else ()
        number = num_labels, known, find(cls.kinds[0]).fewest_labels
        labels = task_loading.counted(labels, *number)
        how = labels, max_length, learnt, settings
        task = task_loading.task_of_class(cls, opened, *how)
        config = task_loading.with_dropout(opened.config, settings)
        model = cls(config, task, opened.tokenizer, **keras_settings)
        weights = model.named_weights().items()
        kept = {n: v for n, v in weights if learnt or n.startswith(ENCODER)}
        restore(opened, kept)
        if lora_rank is not None:
            add_low_rank(model.albert, lora_rank)
        return model

    # Data.

    def unpacked(self, x: Any, y: Any, weights: Any) -> tuple[Any, Any, Any]:
        """Return (texts, labels, weights) of what stands in one tuple."""
        if y is not None or not isinstance(x, tuple):
            return x, y, weights
        nested = x and isinstance(x[0], tuple | dict)
        if self.task.unlabelled and not nested:
            return x, y, weights  # columns of texts
        return (*x, None)[:2] + (weights,) if len(x) < 3 else x

    def task_for(self, x: Any, named: bool) -> Task:
        """Return the task as it reads what is passed.

        Args:
          x: what is passed.
          named: whether it has the columns of the task, or is columns alone.
        """
        if not named:
            return self.task.in_memory()
        is_path = isinstance(x, str | os.PathLike)
        return self.task if is_path else self.task.nameless()

    def examples(self, x: Any, y: Any, part: str) -> Sequence[Any]:
        """Return the task's examples of what was passed.

        Args:
          x: texts; or a path, a frame or a data set with all columns.
          y: labels, None where `x` has them or there are none.
          part: "train", "eval" or "predict".
        """
        rule = "`y` must be given, unless `x` is a table, or a data set of "
        rule += "TensorFlow, with labels."
        named = y is None and user_data.is_source(x)
        known = self.task.unlabelled or y is not None or named
        require(part == "predict" or known, f"{rule} Received: none")
        if part == "train":
            self.task = self.task.reopened()
        task = self.task_for(x, named)
        columns = task.table(user_data.width_of(x), y is not None)
        if y is not None:
            y = user_data.listed(y, "y")
        labels = None if y is None else task.table_labels(y)
        source = user_data.table_of(x, labels, columns)
        examples = user_data.read_examples(task, part, source)
        if y is not None:
            examples = task.with_shares(examples, y)
        if part == "train":
            self.task = self.task.fitted(examples)
        return examples

    def weighted_examples(self, x: Any, y: Any, weights: Any, part: str):
        """Return the examples of what was passed, and a weight of each."""
        x, y, weights = self.unpacked(x, y, weights)
        y = user_data.label_rows(y, getattr(self.task, "labels", ()))
        examples = self.examples(x, y, part)
        user_data.check_weights(weights, examples)
        return examples, weights

    def features(self, examples: Sequence[Any]) -> Features:
        """Return what the codec makes of examples."""
        return self.task.features(examples, self.need_tokenizer())

    @property
    def kept_labels(self) -> tuple[str, ...]:
        """What the network takes of the labels while it learns."""
        beam = self.task.config.answer_head == "beam"
        return (feature_batches.LABELS,) if beam else ()

    @property
    def bucketed(self) -> bool:
        """Whether batches are as long as their longest row, not all alike."""
        return not self.jit_compile

    def _streamed(self, dataset, batch_size: int, part: str):
        """Return the batches of a `tf.data` set of texts and labels."""
        spec = dataset.element_spec
        rated = isinstance(spec, tuple) and isinstance(spec[0], tuple | dict)
        rated = rated and len(spec) > 1 and self.task.unlabelled
        rule = "Scores must be in memory, for the largest of all divides them."
        require(not rated, rule, x=dataset)
        dataset = user_data.in_batches(dataset, self.task.text_rank, batch_size)

        def convert(element):
            data = element, None, None, part
            examples, weights = self.weighted_examples(*data)
            features = self.features(examples)
            return features, feature_batches.row_weights(features, weights)

        return feature_batches.batches_of_text(
            dataset, convert, self.bucketed, self.kept_labels
        )

    def _in_memory(self, examples, weights, size, shuffle=False):
        """Return the batches of examples."""
        features = self.features(examples)
        return feature_batches.batches_in_memory(
            features,
            size,
            self.bucketed,
            feature_batches.row_weights(features, weights),
            shuffle,
            self.kept_labels,
            self.task.texts_apart(examples) if shuffle else None,
        )

    def encoded(self, x: Any) -> Any:
        """Return batches of ids as Keras takes them, checked if possible.

        Args:
          x: a dict, a data set or others that `is_encoded` recognises.
        """
        if isinstance(x, Mapping):
            return self.named_inputs(x, {})
        if isinstance(x, tuple):
            return (self.encoded(x[0]), *x[1:])
        if isinstance(x, tf.data.Dataset):
            self.encoded(x.element_spec)
        return x

    def _arguments(self, x, y, weights, size, part, shuffle=False) -> dict:
        """Return data as arguments of Keras's own `fit` or `evaluate`."""
        if is_encoded(x):
            more = {"y": y, "sample_weight": weights, "batch_size": size}
            more = {k: v for k, v in more.items() if v is not None}
            return {"x": self.encoded(x)} | more
        size = examples_at_once(size)
        if isinstance(x, tf.data.Dataset):
            rule = "`y` and `sample_weight` must stand in the data set."
            require(y is None and weights is None, rule, x=x)
            return {"x": self._streamed(x, size, part)}
        examples, weights = self.weighted_examples(x, y, weights, part)
        return {"x": self._in_memory(examples, weights, size, shuffle)}

    def _divided(self, x, y, weights, size, shuffle, share):
        """Return batches to learn from, and to evaluate on the last share."""
        rule = "`validation_split` needs texts, ids or a file; give "
        rule += "`validation_data` beside a data set of TensorFlow."
        require(not isinstance(x, tf.data.Dataset), rule, x=x)
        examples, weights = self.weighted_examples(x, y, weights, "train")
        size = examples_at_once(size)
        first = int(len(examples) * (1 - share))
        rule = "`validation_split` must leave an example on either side."
        require(0 < first < len(examples), rule, validation_split=share)
        halves = [None, None]
        if weights is not None:
            halves = weights[:first], weights[first:]
        train = self._in_memory(examples[:first], halves[0], size, shuffle)
        others = examples[first:]
        return train, self._in_memory(others, halves[1], size), others

    def _labelled(self, x, y=None) -> list:
        """Return all examples of what was passed, also of a data set."""
        examples, batches = [], [x]
        if isinstance(x, tf.data.Dataset):
            batches = user_data.in_batches(x, self.task.text_rank)
        for batch in batches:
            examples += self.weighted_examples(batch, y, None, "eval")[0]
        return examples

    @contextlib.contextmanager
    def _scoring(self, examples: list | None, size) -> Iterator[None]:
        """Add official metrics of examples to the logs within the block."""
        names = [metric.name for metric in self.official]
        scores = self._scores(examples, size, names) if names else {}
        with self.showing(scores):
            yield

    def _scores(self, examples, batch_size, names=()) -> dict[str, float]:
        """Return official metrics of examples: the task's, or some of them."""
        task = self.task.fitted(examples)  # perhaps before any `fit`
        predictor = self.predictor(batch_size, task, verbose=0)
        predictions = predictor.predictions(examples)
        if names and isinstance(task, SentenceTask):
            task = dataclasses.replace(task, scores=tuple(names))
        scores = task.score(examples, predictions)
        unknown = ", ".join(set(names) - set(scores))
        rule = f"These examples have only the metrics {', '.join(scores)}."
        require(not unknown, rule, metrics=unknown)
        return scores

    def _fit_data(self, data, share, validation_data, size, shuffle) -> tuple:
        """Return arguments of Keras's `fit`, and held-out examples or None.

        Args:
          data: `x`, `y`, weights and batch size, to learn from.
          share: of the data, to evaluate on; Keras divides ids.
          validation_data: to evaluate on instead.
          size: of validation batches.
          shuffle: see `fit`.
        """
        of_ids, held_out = is_encoded(data[0]), None
        self._check_official(share and of_ids or is_encoded(validation_data))
        if share and not of_ids:
            train, others, held_out = self._divided(*data, shuffle, share)
            return {"x": train, "validation_data": others}, held_out
        arguments = self._arguments(*data, "train", shuffle)
        if validation_data is not None:
            if self.official:
                held_out = self._labelled(validation_data)
            others = validation_data, None, None, size, "eval"
            arguments["validation_data"] = self._arguments(*others)["x"]
        return arguments | {"validation_split": share}, held_out

    # Keras.

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        *,
        validation_split=0.0,
        validation_data=None,
        shuffle=True,
        class_weight=None,
        sample_weight=None,
        **kwargs,
    ):
        """Learn, and return the `History`; see `keras.Model.fit`.

        Args:
          x: texts, or a tuple of columns where the task has several; with `y`
            None also (texts, labels), a `tf.data.Dataset` of that, or a file,
            frame or data set with columns. Also batches of ids.
          y: labels.
          batch_size: examples of a step, 32 by default.
          epochs: passes over the data.
          validation_split: the last share of the examples, to evaluate on.
          validation_data: as `x`, to evaluate on instead.
          shuffle: whether each epoch has an order of its own.
          class_weight: {number or name of a class: weight}, 1 for others.
          sample_weight: of the examples.
          **kwargs: of `keras.Model.fit`.
        """
        require(self.compiled, "`compile` must come before `fit`.")
        epochs, kwargs = as_type("epochs", epochs, int), plain(kwargs)
        share = as_type("validation_split", validation_split, float)
        share = share if validation_data is None else 0.0
        size = kwargs.pop("validation_batch_size", None) or batch_size
        data = x, y, sample_weight, batch_size
        arguments, self._held_out = self._fit_data(
            data, share, validation_data, size, shuffle
        )
        try:
            weights = user_data.class_numbers(plain(class_weight), self.task)
            return super().fit(
                **arguments,
                epochs=epochs,
                shuffle=shuffle and isinstance(arguments["x"], dict),
                class_weight=weights,
                **kwargs,
            )
        finally:
            self._held_out = None

    def _check_official(self, of_ids: bool) -> None:
        """Raise `InputError` if official metrics are asked of ids."""
        rule = "Official metrics follow from texts and labels, not from ids."
        names = ", ".join(m.name for m in self.official)
        require(not (self.official and of_ids), rule, metrics=names)

    def evaluate(
        self, x=None, y=None, batch_size=None, sample_weight=None, **kwargs
    ):
        """Return the loss and what `compile` asked for; data as for `fit`."""
        examples = self._held_out if is_encoded(x) else None
        if examples is None:
            self._check_official(is_encoded(x))
        arguments = self._arguments(x, y, sample_weight, batch_size, "eval")
        if self.official and examples is None:
            examples = self._labelled(x, y)
        with self._scoring(examples, batch_size):
            return super().evaluate(**arguments, **kwargs)

    def predictions(self, x=(), *more, **kwargs) -> Sequence[Any]:
        """Return the codec's prediction of each example, labels and all.

        Args:
          x: texts, or the first column of texts; or as the `x` of `fit`. For
            a lone text, the result is one prediction.
          *more: further columns of texts; beside a lone text, one of each.
          **kwargs: `batch_size`, examples computed at once, 32 by default;
            others are those of `keras.Model.predict`.
        """
        return self._answered(lambda found: found, x, *more, **kwargs)

    def _answered(self, make: Callable, x, *more, batch_size=None, **kwargs):
        """Return answers to all examples, or the answer to a lone text.

        Args:
          make: makes answers of predictions.
          x: see `predictions`.
          *more: see `predictions`.
          batch_size: examples computed at once, None for the default.
          **kwargs: of `keras.Model.predict`.
        """
        rule = "`predict` answers all examples, and takes no `steps`."
        require(kwargs.get("steps") is None, rule, steps=kwargs.get("steps"))
        lone = user_data.is_lone(x, more)
        if lone:
            x, *more = ([column] for column in (x, *more))
        data = (x, *more) if more else x
        if isinstance(data, tf.data.Dataset):
            columns, rank = self.task.table(), self.task.text_rank
            data = user_data.texts_of(data, columns, rank)
        examples = self.examples(data, None, "predict")
        how = {"verbose": 0} | kwargs
        found = make(self.predictor(batch_size, **how).predictions(examples))
        return found[0] if lone else found

    def predictor(
        self, batch_size: int | None = None, task: Task | None = None, **kwargs
    ) -> Predictor:
        """Return what answers queries with the model.

        Args:
          batch_size: examples computed at once, 32 by default.
          task: instead of the model's own.
          **kwargs: of `keras.Model.predict`.
        """
        size = examples_at_once(batch_size)

        def run(features: Features) -> dict[str, np.ndarray]:
            return self._outputs(features, size, **kwargs)

        return Predictor(task or self.task, self.need_tokenizer(), run)

    def _outputs(self, features: Features, size: int, **kwargs) -> dict:
        """Return the outputs of the head for all rows."""
        head = self.task.head
        if self.task.unlabelled:
            # One by one: Keras's graph for pairs would not take texts, or
            # would no longer know how many axes there are.
            alone = {"rows_per_example": 1, "arrays": {}}
            features = dataclasses.replace(features, **alone)
        order = np.arange(len(features))
        if self.bucketed and not (head.token_outputs or self.kept_labels):
            batches, order = feature_batches.batches_by_length(features, size)
        else:
            batches = feature_batches.batches_in_memory(features, size, False)
        outputs = head.named(super().predict(batches, **kwargs))
        return {name: values[order] for name, values in outputs.items()}

    def values(self, predictions: Sequence[Any]) -> Any:
        """Return predictions as `predict` does."""
        values = list(map(self.task.value, predictions))
        is_array = isinstance(values[0], np.ndarray)
        return np.stack(values) if is_array else values

    def predict(
        self, x=(), *more, batch_size=None, verbose="auto", **kwargs
    ) -> Any:
        """Return an answer to each example, as the class says.

        Args:
          x: as for `predictions`; or batches of ids, for which the answer is
            what the network computes.
          *more: as for `predictions`.
          batch_size: examples computed at once, 32 by default.
          verbose: as of Keras.
          **kwargs: of `keras.Model.predict`.
        """
        how = {"batch_size": batch_size, "verbose": verbose} | kwargs
        if is_encoded(x):
            return super().predict(self.encoded(x), **how)
        return self._answered(self.values, x, *more, **how)

    def score(self, x, y=None, batch_size=None) -> dict[str, float]:
        """Return the task's official metrics, as `finetune.py` does."""
        return self._scores(self._labelled(x, y), batch_size)


class ClassModel(TaskModel):
    """A model of classes: `predict` returns probabilities."""

    def predict_proba(self, x=(), *more, **kwargs) -> np.ndarray:
        """Return the probabilities of `predict`, for batches of ids too."""
        found = self.predict(x, *more, **kwargs)
        return self.task.probabilities(found) if is_encoded(x) else found
