"""Task models that accept strings in `fit`, `evaluate` and `predict`."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.base.settings import as_type, plain, positive
from albert_tf.conversion.sources import Reading
from albert_tf.library import feature_batches, task_loading, user_data
from albert_tf.library.base_model import (
    ENCODER,
    check_keywords,
    has_text,
    open_model,
    require_rows,
    restore,
)
from albert_tf.library.changed_layers import add_low_rank
from albert_tf.library.network_model import NetworkModel
from albert_tf.library.user_data import (
    is_encoded,
    labels_of_ids,
    weights_of_ids,
)
from albert_tf.tasks.classification import SentenceTask
from albert_tf.tasks.features import Features
from albert_tf.tasks.predictions import Predictor
from albert_tf.tasks.task import Task
from albert_tf.training.health import NotFinite, require_finite

BATCH_SIZE = 32
SHUFFLED = dict | keras.utils.PyDataset  # ids that Keras can shuffle


def checked_batch_size(batch_size: int | None) -> int:
    """Return the batch size; None means the default."""
    if batch_size is None:
        return BATCH_SIZE
    return positive("batch_size", batch_size)


class TaskModel(NetworkModel):
    """An ALBERT model with a task's head and methods that accept strings.

    `fit`, `evaluate` and `predict` convert their arguments and then call
    Keras's own methods. Calling the model with a batch of ids returns the
    head's outputs. `load` creates a model.
    """

    text_methods = "`fit`, `evaluate` and `predict`"
    kinds: ClassVar[tuple[str, ...]]  # kinds of tasks
    options: ClassVar[tuple[str, ...]] = ()  # options of `load`
    _held_out: list | None = None  # examples that `fit` evaluates on

    # Loading.

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
        """Load the model in a folder, with the stored head or a new head.

        Args:
          path: as for `albert_tf.load`, or a fine-tuned model directory.
          labels: names of classes or predicted numbers. Default: the model's.
          max_length: maximum number of tokens. Default: the task's value.
          new_head: whether to replace a fine-tuned model's head.
          num_labels: the number of labels, as an alternative to their names.
          lora_rank: the rank of low-rank matrices (LoRA), which the encoder
            learns instead of its weights.
          added_pieces: texts, such as `[E1]`, to add to the vocabulary.
          **settings: options listed in the class's docstring; fields of
            `TaskConfig`, such as `classifier_dropout`; names of columns, such
            as `text_column`; `hidden_dropout_prob` and
            `attention_probs_dropout_prob`; `name` and `dtype` of a Keras model.

        Raises:
          InputError: if the labels or the settings do not fit the model.
        """
        for name in {"pairs", "multilabel"} & settings.keys():
            settings[name] = as_type(name, settings[name], bool)
        reading = Reading(pairs=settings.get("pairs", False))
        is_choice = "multiple_choice" in cls.kinds
        single = "multiple_choice" if is_choice else "regression"
        source = open_model(path, reading, added_pieces, single)
        keras_settings = {k: settings.pop(k, None) for k in ("name", "dtype")}
        new_head = as_type("new_head", new_head, bool)
        load_head = source.task is not None and not new_head
        arguments = labels, num_labels, max_length, load_head, settings
        task = task_loading.task_of_class(cls, source, *arguments)
        config = task_loading.with_dropout(source.config, settings)
        model = cls(config, task, source.tokenizer, **keras_settings)
        restore(model, source, only="" if load_head else ENCODER)
        if lora_rank is not None:
            add_low_rank(model.albert, lora_rank)
        return model

    # Data.

    def unpacked(self, x: Any, y: Any, weights: Any) -> tuple[Any, Any, Any]:
        """Return (texts, labels, weights); `x` may be such a tuple."""
        if y is not None or not isinstance(x, tuple):
            return x, y, weights
        nested = x and isinstance(x[0], tuple | Mapping)
        if self.task.unlabeled and not nested:
            return x, y, weights  # columns of texts
        rule = "A tuple `x` must be (texts, labels) or (texts, labels, weights)"
        require(0 < len(x) < 4, f"{rule}.", parts=len(x))
        return (*x, None)[:2] + (weights,) if len(x) < 3 else x

    def examples(self, x: Any, y: Any, part: str) -> Sequence[Any]:
        """Convert arguments to the task's examples.

        Args:
          x: texts; or a path, a frame or a data set with all columns.
          y: labels; None if `x` contains the labels or if there are no labels.
          part: "train", "eval" or "predict".
        """
        training = part == "train"
        task = self.task.reopened() if training else self.task
        examples = user_data.read_examples(task, part, x, y)
        if training:
            self.task = task.fitted(examples)
            self.task.check_training(examples, self.albert.config)
        return examples

    def weighted_examples(self, x: Any, y: Any, weights: Any, part: str):
        """Convert arguments to examples and their weights."""
        x, y, weights = self.unpacked(x, y, weights)
        examples = self.examples(x, y, part)
        return examples, user_data.checked_weights(weights, examples)

    def features(self, examples: Sequence[Any]) -> Features:
        """Return the features of examples."""
        return self.task.features(examples, self.need_tokenizer())

    @property
    def label_inputs(self) -> tuple[str, ...]:
        """The names of labels that are also inputs of the network."""
        beam = self.task.config.answer_head == "beam"
        return (feature_batches.LABELS,) if beam else ()

    @property
    def bucketed(self) -> bool:
        """Whether T is the batch's largest length, not `max_length`."""
        return not self.jit_compile

    def _streamed(self, dataset, batch_size: int, part: str):
        """Return the batches of a `tf.data.Dataset` of texts and labels."""
        spec = dataset.element_spec
        scored = isinstance(spec, tuple) and isinstance(spec[0], tuple | dict)
        scored = scored and len(spec) > 1 and self.task.unlabeled
        rule = "Scores must be in memory, to divide them by the largest score."
        require(not scored, rule, x=dataset)
        dataset = feature_batches.in_batches(dataset, self.task, batch_size)

        def convert(element):
            data = element, None, None, part
            examples, weights = self.weighted_examples(*data)
            features = self.features(examples)
            return features, feature_batches.row_weights(features, weights)

        return feature_batches.batches_of_text(
            dataset, convert, self.bucketed, self.label_inputs
        )

    def _in_memory(self, examples, weights, size, shuffle=False):
        """Return the batches of examples; training shuffles them."""
        single = not shuffle or self.task.supports_single_example(examples)
        rule = "`batch_size` must be at least 2, because the other examples of "
        rule += "a batch serve as negatives."
        require(single or size > 1, rule, batch_size=size)
        features = self.features(examples)
        return feature_batches.batches_in_memory(
            features,
            size,
            self.bucketed,
            feature_batches.row_weights(features, weights),
            shuffle,
            self.label_inputs,
            self.task.distinct_texts(examples) if shuffle else None,
        )

    def encoded(self, x: Any) -> Any:
        """Return batches of ids in Keras's format; check the inputs in dicts.

        Args:
          x: a dict, a data set or anything else that `is_encoded` accepts.
        """
        require_rows(x)
        if isinstance(x, Mapping):
            return self.named_inputs(x, {})
        if isinstance(x, tf.data.Dataset):
            x = feature_batches.with_ranks(x)
            spec = x.element_spec
            self.encoded(spec[0] if isinstance(spec, tuple) else spec)
        if isinstance(x, keras.utils.PyDataset):
            rule = "A `PyDataset` must return ids, as `tokenizer(texts)` does; "
            rule += "texts may be in a `tf.data.Dataset`."
            require(not has_text(x[0]), rule, x=type(x).__name__)
        return x

    def _arguments(self, x, y, weights, size, part, shuffle=False) -> dict:
        """Return the data as arguments of Keras's own `fit` or `evaluate`."""
        if is_encoded(x):
            x, y, weights = self.unpacked(x, y, weights)
            y = labels_of_ids(y, self.task, self.own_loss)
            weights = weights_of_ids(weights)
            arguments = {"y": y, "sample_weight": weights, "batch_size": size}
            arguments = {k: v for k, v in arguments.items() if v is not None}
            x, labels = self.encoded(x), (self.task, self.own_loss)
            if isinstance(x, tf.data.Dataset):
                x = user_data.with_label_numbers(x, *labels)
            if isinstance(x, keras.utils.PyDataset):
                x = user_data.CheckedBatches(x, *labels)
            return {"x": x} | arguments
        size = checked_batch_size(size)
        if isinstance(x, tf.data.Dataset):
            rule = "`y` and `sample_weight` must be in the data set."
            require(y is None and weights is None, rule, x=x)
            return {"x": self._streamed(x, size, part)}
        examples, weights = self.weighted_examples(x, y, weights, part)
        return {"x": self._in_memory(examples, weights, size, shuffle)}

    def _divided(self, x, y, weights, size, shuffle, share):
        """Return training batches, held-out batches and held-out examples."""
        rule = "`validation_split` needs texts, ids or a file; pass "
        rule += "`validation_data` along with a `tf.data.Dataset`."
        require(not isinstance(x, tf.data.Dataset), rule, x=x)
        examples, weights = self.weighted_examples(x, y, weights, "train")
        size = checked_batch_size(size)
        split = int(len(examples) * (1 - share))
        rule = "`validation_split` must leave examples in both parts."
        require(0 < split < len(examples), rule, validation_split=share)
        parts = [None, None]
        if weights is not None:
            parts = weights[:split], weights[split:]
        train = self._in_memory(examples[:split], parts[0], size, shuffle)
        held_out = examples[split:]
        return train, self._in_memory(held_out, parts[1], size), held_out

    def _labeled(self, x, y=None) -> list:
        """Convert texts and labels, or a data set with both, to examples."""
        if isinstance(x, tf.data.Dataset):
            x = feature_batches.in_memory(x, self.task)
        return self.weighted_examples(x, y, None, "eval")[0]

    @contextlib.contextmanager
    def _scoring(self, examples: list | None, size) -> Iterator[None]:
        """In the `with` block, add the official metrics to the logs.

        Like the loss, the metrics are NaN if the outputs are not finite.
        """
        names = [metric.name for metric in self.official]
        scores = dict.fromkeys(names, math.nan)
        with contextlib.suppress(NotFinite):
            scores = self._scores(examples, size, names) if names else {}
        with self.showing(scores):
            yield

    def _scores(self, examples, batch_size, names=()) -> dict[str, float]:
        """Return the official metrics in `names`; by default, all metrics."""
        task = self.task.fitted(examples)  # `fit` may not have run
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
        """Return arguments for Keras's `fit`, and held-out examples or None.

        Args:
          data: (`x`, `y`, weights, batch size) for training.
          share: the share of the data to evaluate on; Keras itself splits ids.
          validation_data: data to evaluate on instead.
          size: the size of validation batches.
          shuffle: see `fit`.
        """
        of_ids, held_out = is_encoded(data[0]), None
        self._check_official(share and of_ids or is_encoded(validation_data))
        if share and not of_ids:
            train, validation, held_out = self._divided(*data, shuffle, share)
            return {"x": train, "validation_data": validation}, held_out
        arguments = self._arguments(*data, "train", shuffle)
        if validation_data is not None:
            if self.official:
                held_out = self._labeled(validation_data)
            validation = validation_data, None, None, size, "eval"
            parts = self._arguments(*validation)
            arguments["validation_data"] = tuple(
                parts.get(name) for name in ("x", "y", "sample_weight")
            )
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
        """Train, and return the `History`; see `keras.Model.fit`.

        Args:
          x: texts, or a tuple of columns if an example has several texts;
            batches of ids; or, without `y`, (texts, labels), a
            `tf.data.Dataset` of such tuples, or a file, frame or data set with
            columns.
          y: labels.
          batch_size: number of examples per step, 32 by default.
          epochs: number of passes over the data.
          validation_split: share of the data, from its end, to evaluate on.
          validation_data: data to evaluate on instead, in the form of `x`.
          shuffle: whether to reshuffle data in memory or a `PyDataset`.
          class_weight: {class index or name: weight}. The default weight is 1.
          sample_weight: one weight per example.
          **kwargs: passed to `keras.Model.fit`.
        """
        require(self.compiled, "`compile` must be called before `fit`.")
        check_keywords(kwargs, keras.Model.fit)
        epochs, kwargs = as_type("epochs", epochs, int), plain(kwargs)
        share = as_type("validation_split", validation_split, float)
        share = share if validation_data is None else 0.0
        user_data.check_validation(validation_data, self.task)
        size = kwargs.pop("validation_batch_size", None) or batch_size
        data = x, y, sample_weight, batch_size
        arguments, self._held_out = self._fit_data(
            data, share, validation_data, size, shuffle
        )
        try:
            weights = user_data.class_numbers(plain(class_weight), self.task)
            shuffle = shuffle and isinstance(arguments["x"], SHUFFLED)
            arguments |= {"epochs": epochs, "shuffle": shuffle}
            arguments["validation_batch_size"] = size  # Keras batches ids
            return super().fit(**arguments, class_weight=weights, **kwargs)
        finally:
            self._held_out = None

    def _batch_labels(self, x: Any, y: Any) -> Any:
        """Return the labels of a batch of ids in a form that Keras accepts."""
        return y if has_text(x) else labels_of_ids(y, self.task, self.own_loss)

    def train_on_batch(
        self, x, y=None, sample_weight=None, class_weight=None, **kwargs
    ):
        """Train on one batch of ids; labels and weights are as in `fit`."""
        weights = user_data.class_numbers(plain(class_weight), self.task)
        rows = weights_of_ids(sample_weight)
        arguments = self._batch_labels(x, y), rows, weights
        return super().train_on_batch(x, *arguments, **kwargs)

    def test_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        """Evaluate one batch of ids; labels and weights are as in `fit`."""
        arguments = self._batch_labels(x, y), weights_of_ids(sample_weight)
        return super().test_on_batch(x, *arguments, **kwargs)

    def evaluate(
        self, x=None, y=None, batch_size=None, sample_weight=None, **kwargs
    ):
        """Return the loss and the compiled metrics; data are as in `fit`."""
        check_keywords(kwargs, keras.Model.evaluate)
        examples = self._held_out if is_encoded(x) else None
        if examples is None:
            self._check_official(is_encoded(x))
        arguments = self._arguments(x, y, sample_weight, batch_size, "eval")
        if self.official and examples is None:
            examples = self._labeled(x, y)
        with self._scoring(examples, batch_size):
            return super().evaluate(**arguments, **kwargs)

    def predictions(self, x=(), *extra_columns, **kwargs) -> Sequence[Any]:
        """Return the task's full prediction for each example.

        Args:
          x: texts, the first column of texts, or any `x` that `fit` accepts.
            For a single text, the result is one prediction.
          *extra_columns: additional columns of texts, or single texts if `x` is
            one text.
          **kwargs: `batch_size`, the number of examples per batch, 32 by
            default; other arguments are passed to `keras.Model.predict`.
        """
        return self._answers(lambda values: values, x, *extra_columns, **kwargs)

    def _answers(
        self, convert: Callable, x, *extra_columns, batch_size=None, **kwargs
    ):
        """Return answers for all examples, or one answer for a single text.

        Args:
          convert: a function that converts predictions to answers.
          x: see `predictions`.
          *extra_columns: see `predictions`.
          batch_size: number of examples per batch, or None for the default.
          **kwargs: passed to `keras.Model.predict`.
        """
        rule = "`predict` uses all examples; it does not accept `steps`."
        require(kwargs.get("steps") is None, rule, steps=kwargs.get("steps"))
        is_single = user_data.is_single_text(x, extra_columns)
        if is_single:
            x, *extra_columns = ([column] for column in (x, *extra_columns))
        data = (x, *extra_columns) if extra_columns else x
        if isinstance(data, tf.data.Dataset):
            data = feature_batches.texts_of(data, self.task)
        predictor = self.predictor(batch_size, **{"verbose": 0} | kwargs)
        examples = self.examples(data, None, "predict")
        answers = convert(predictor.predictions(examples))
        return answers[0] if is_single else answers

    def predictor(
        self, batch_size: int | None = None, task: Task | None = None, **kwargs
    ) -> Predictor:
        """Return a `Predictor` that answers queries with the model.

        Args:
          batch_size: number of examples per batch, 32 by default.
          task: the task to use instead of the model's own task.
          **kwargs: `verbose` and `callbacks` of `keras.Model.predict`.
        """
        size = checked_batch_size(batch_size)
        check_keywords(kwargs, ("batch_size", "callbacks", "task", "verbose"))
        run = functools.partial(
            self._outputs, size=size, **{"verbose": 0} | kwargs
        )
        return Predictor(task or self.task, self.need_tokenizer(), run)

    def _outputs(self, features: Features, size: int, **kwargs) -> dict:
        """Return the head's outputs for all rows of features, in order."""
        objective = self.task.objective
        if self.task.unlabeled:
            # Each text is a separate row, because a graph that Keras traced for
            # pairs would not accept single texts, or would have an unknown
            # rank.
            changes = {"rows_per_example": 1, "arrays": {}}
            features = dataclasses.replace(features, **changes)
        order = np.arange(len(features))
        if self.bucketed and not (objective.token_outputs or self.label_inputs):
            batches, order = feature_batches.batches_by_length(features, size)
        else:
            batches = feature_batches.batches_in_memory(features, size, False)
        outputs = self.task.named(super().predict(batches, **kwargs))
        require_finite(*outputs.values())
        return {name: values[order] for name, values in outputs.items()}

    def values(self, predictions: Sequence[Any]) -> Any:
        """Convert predictions to the form that `predict` returns."""
        values = list(map(self.task.value, predictions))
        is_array = isinstance(values[0], np.ndarray)
        return np.stack(values) if is_array else values

    def predict(
        self, x=(), *extra_columns, batch_size=None, verbose="auto", **kwargs
    ) -> Any:
        """Return each example's answer, which the class docstring describes.

        Args:
          x: as for `predictions`; or batches of ids. The answers to questions
            and the tags of words depend on texts, so for ids, these models
            return the network's outputs.
          *extra_columns: as for `predictions`.
          batch_size: number of examples per batch, 32 by default.
          verbose: as in Keras.
          **kwargs: passed to `keras.Model.predict`.
        """
        options = {"batch_size": batch_size, "verbose": verbose} | kwargs
        if is_encoded(x):
            check_keywords(kwargs, keras.Model.predict)
            outputs = super().predict(self.encoded(x), **options)
            return self.values_of_outputs(outputs)
        return self._answers(self.values, x, *extra_columns, **options)

    def score(self, x, y=None, batch_size=None) -> dict[str, float]:
        """Return the task's official metrics, as reported by `finetune.py`."""
        return self._scores(self._labeled(x, y), batch_size)
