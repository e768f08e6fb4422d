"""Batches for Keras, from features in memory or from data sets of texts.

Shapes: B batch, T tokens, as in `tasks/batches.py`.
"""

import collections
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.data.table_sources import BATCH_ROWS
from albert_tf.library.user_data import listed
from albert_tf.tasks.batches import batcher, example_lengths
from albert_tf.tasks.features import Features
from albert_tf.tasks.task import Task

LABELS = "labels"
WEIGHTS = "example_weights"
LOOK_AHEAD = 100  # skip at most this many batches' worth of examples


def for_keras(
    batch: dict[str, tf.Tensor], weights: tf.Tensor | None, keep: tuple = ()
) -> tuple:
    """Split a task's batch into the tuple that Keras expects.

    Args:
      batch: a batch from `batcher`.
      weights: weights of the examples [B], or None.
      keep: names of labels and weights that are also model inputs.

    Returns:
      (inputs, labels, weights), (inputs, labels) or (inputs,). If there are
      weights but no labels, the labels are None.
    """
    of_loss = {LABELS, WEIGHTS}.difference(keep)
    inputs = {k: v for k, v in batch.items() if k not in of_loss}
    if weights is not None:
        return inputs, batch.get(LABELS), weights
    return (inputs, batch[LABELS]) if LABELS in batch else (inputs,)


def row_weights(features: Features, weights) -> np.ndarray | None:
    """Return each row's weight, which is the weight of its example."""
    if weights is None:
        return None
    weights = np.asarray(weights, np.float32)
    counts = features.notes.get("rows")
    return weights if counts is None else np.repeat(weights, counts)


def of_generator(generate: Callable[[], Iterator], signature: Any):
    """Return a data set of the elements that a function yields.

    TensorFlow normally keeps such a function alive until the process ends.
    Here, the function lives only as long as the data set, because the function
    may refer to a model and the model's data.
    """
    reference = weakref.ref(generate)
    dataset = tf.data.Dataset.from_generator(
        lambda: reference()(), output_signature=signature
    )
    dataset.generate = generate
    return dataset


def without_repeats(
    order: Sequence[int], texts: Sequence[Sequence[str]], size: int
) -> Iterator[list[int]]:
    """Yield batches of example numbers; no text repeats within a batch.

    The search for the examples of a batch skips at most `LOOK_AHEAD * size`
    examples, so a batch can be smaller than `size`.

    Args:
      order: the numbers of all examples.
      texts: the texts of each example.
      size: the size of a full batch.
    """
    waiting = collections.deque(order)
    while waiting:
        batch: list[int] = []
        seen: set[str] = set()
        later: list[int] = []
        while waiting and len(batch) < size and len(later) < LOOK_AHEAD * size:
            number = waiting.popleft()
            if seen.isdisjoint(texts[number]):
                batch.append(number)
                seen.update(texts[number])
            else:
                later.append(number)
        waiting.extendleft(reversed(later))
        yield batch


def shuffled_apart(texts: Sequence[Sequence[str]], size: int):
    """Return a data set of batches from `without_repeats`, in random order.

    Each pass has a new order, which depends on NumPy's global seed.

    Raises:
      InputError: if the examples are pairs, and no batch has two of them.
    """
    batches = without_repeats(range(len(texts)), texts, size)
    require(
        len(texts[0]) != 2 or any(len(batch) > 1 for batch in batches),
        "A batch must have at least 2 pairs without a common text, because the "
        "other pairs of a batch serve as negatives.",
        batch_size=size,
        pairs=len(texts),
    )

    def generate() -> Iterator[np.ndarray]:
        order = np.random.permutation(len(texts)).tolist()
        for batch in without_repeats(order, texts, size):
            yield np.array(batch, np.int64)

    return of_generator(generate, tf.TensorSpec([None], tf.int64))


def batches_in_memory(
    features: Features,
    batch_size: int,
    bucketed: bool,
    weights: np.ndarray | None = None,
    shuffle: bool = False,
    keep: tuple = (),
    distinct_texts: Sequence[Sequence[str]] | None = None,
) -> tf.data.Dataset:
    """Return a data set for one pass over features, shuffled if requested.

    Args:
      features: the features of all examples.
      batch_size: B; the last batch may be smaller.
      bucketed: whether T is the length of the batch's longest row.
      weights: weights of the rows, or None.
      shuffle: whether to shuffle, with the global seed of TensorFlow or, if
        `distinct_texts` is given, of NumPy.
      keep: see `for_keras`.
      distinct_texts: the texts of each example, which must not repeat in a
        shuffled batch; None allows repeats.
    """
    make, number = batcher(features, int(bucketed)), len(features)
    weighted = None if weights is None else tf.constant(weights)

    @tf.autograph.experimental.do_not_convert
    def batch(indices):
        selected = None if weighted is None else tf.gather(weighted, indices)
        return for_keras(make(indices), selected, keep)

    indices = tf.data.Dataset.range(number)
    if shuffle and distinct_texts is not None:
        indices = shuffled_apart(distinct_texts, batch_size)
    else:
        if shuffle:
            indices = indices.shuffle(number, reshuffle_each_iteration=True)
        indices = indices.batch(batch_size)
    return indices.map(batch, num_parallel_calls=2).prefetch(tf.data.AUTOTUNE)


def batches_by_length(
    features: Features, batch_size: int
) -> tuple[tf.data.Dataset, np.ndarray]:
    """Return batches of inputs, longest first, and each example's position.

    The position counts the examples in the order of the batches.
    """
    order = np.argsort(-example_lengths(features), kind="stable")
    make = batcher(features, step=1)
    indices = tf.data.Dataset.from_tensor_slices(order).batch(batch_size)

    @tf.autograph.experimental.do_not_convert
    def inputs(indices):
        return for_keras(make(indices), None)[:1]

    return indices.map(inputs), np.argsort(order)


def batches_of_text(
    dataset: tf.data.Dataset,
    convert: Callable[[Any], tuple[Features, Any]],
    bucketed: bool,
    keep: tuple = (),
) -> tf.data.Dataset:
    """Return the batches of a data set of texts, converted on the fly.

    Args:
      dataset: batches of (texts, labels, weights); the last two are optional.
      convert: a function that returns a batch's features and row weights.
      bucketed: see `batches_in_memory`.
      keep: see `for_keras`.
    """

    def generate() -> Iterator[tuple]:
        for element in dataset:
            features, weights = convert(element)
            with tf.device("CPU"):
                make = batcher(features, int(bucketed))
                batch = make(tf.range(len(features)))
            yield for_keras(batch, weights, keep)

    def any_shape(x):
        return tf.TensorSpec([None, *[None] * (np.ndim(x) - 1)], x.dtype)

    first = next(generate(), None)
    require(first is not None, "The data set must have at least one example.")
    signature = tf.nest.map_structure(any_shape, first)
    batches = of_generator(generate, signature)
    number = dataset.cardinality()
    if number != tf.data.UNKNOWN_CARDINALITY:
        with_cardinality = tf.data.experimental.assert_cardinality(number)
        batches = batches.apply(with_cardinality)
    return batches.prefetch(tf.data.AUTOTUNE)


# Data sets of texts.


def tensor_specs(spec: Any) -> list[tf.TypeSpec]:
    """Return the specs of an element's tensors, omitting None."""
    return [x for x in tf.nest.flatten(spec) if hasattr(x, "shape")]


def with_ranks(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a data set whose elements have the ranks of the first element.

    Elements whose labels and weights are None become the texts or ids alone.

    The shapes of a data set from `from_generator` are unknown unless its
    arguments specify them. If a rank is unknown, the first element is read an
    extra time, so the source must be repeatable.
    """
    spec = dataset.element_spec
    if isinstance(spec, tuple) and not tensor_specs(spec[1:]):
        return with_ranks(dataset.map(lambda x, *_: x))
    parts = tensor_specs(spec)
    if all(part.shape.rank is not None for part in parts):
        return dataset
    first = next(iter(dataset), None)
    require(first is not None, "The data set must have at least one example.")

    @tf.autograph.experimental.do_not_convert
    def set_ranks(*element):
        element = element if isinstance(first, tuple) else element[0]
        return tf.nest.map_structure(
            lambda x, like: (
                tf.ensure_shape(x, [None] * like.shape.rank)
                if isinstance(x, tf.Tensor)
                else x
            ),
            *(element, first),
        )

    return dataset.map(set_ranks)


def in_batches(
    dataset: tf.data.Dataset, task: Task, size: int = BATCH_ROWS
) -> tf.data.Dataset:
    """Return a data set of batches; group single examples into batches.

    If a task's texts are lists of words, but the labels have a higher rank than
    the texts, the texts are strings with a label for each word.

    Args:
      dataset: a data set of texts, of (texts, labels) or of dicts of columns.
      task: the task, which defines the rank of one example's text.
      size: the size of a new batch.
    """
    dataset, text_rank = with_ranks(dataset), task.text_rank
    spec = dataset.element_spec
    if text_rank and isinstance(spec, Mapping):
        names = *task.table().texts, task.label_column_in(spec)
        spec = tuple(spec[name] for name in names if name in spec) or spec
    parts = spec if isinstance(spec, tuple) else (spec,)
    ranks = [min(x.shape.rank for x in tf.nest.flatten(p)) for p in parts]
    if text_rank and len(ranks) > 1 and ranks[1] > ranks[0]:
        text_rank -= 1  # whole texts, with a label for each word
    return dataset.ragged_batch(size) if ranks[0] <= text_rank else dataset


def in_memory(dataset: tf.data.Dataset, task: Task) -> Any:
    """Return a data set as a single batch of lists; see `in_batches`."""
    rule = "Predictions and official metrics need a finite data set, such as "
    rule += "`x.take(number)`."
    is_finite = dataset.cardinality() != tf.data.INFINITE_CARDINALITY
    require(is_finite, rule, x=dataset)
    batches = list(in_batches(dataset, task))
    require(batches, "The data set must have at least one example.")
    return tf.nest.map_structure(
        lambda *parts: [x for part in parts for x in listed(part, "x")],
        *batches,
    )


def texts_of(dataset: tf.data.Dataset, task: Task) -> Any:
    """Return all texts of a data set, which may be labeled or batched."""
    dataset, text_rank = with_ranks(dataset), task.text_rank
    name, *others = task.table().texts
    if text_rank and isinstance(dataset.element_spec, Mapping):
        rule = f"Texts must have the column {name}."
        spec = dataset.element_spec
        require(name in spec, rule, columns=", ".join(spec))
        dataset = dataset.map(lambda row: row[name])
    spec, texts = dataset.element_spec, in_memory(dataset, task)
    if isinstance(spec, tuple) and (
        not others or isinstance(spec[0], tuple | dict)
    ):
        return texts[0]  # without labels
    if text_rank and spec.shape.rank == text_rank:
        all_texts = list(itertools.chain.from_iterable(texts))
        if any(len(text.split()) > 1 for text in all_texts):
            return all_texts  # words contain no spaces, so these are texts
    return texts
