"""The official metrics of all tasks.

The results equal those of scikit-learn and SciPy, which need not be installed.
The entity metrics equal the output of CoNLL's script `conlleval`.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from albert_tf.tasks.conll import entity_spans


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the share of examples whose labels are all correct."""
    right = np.equal(labels, predictions).reshape(len(labels), -1)
    return float(right.all(axis=1).mean())


def negative_mse(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the negative mean squared error; larger values are better."""
    return -float(np.mean(np.subtract(labels, predictions, dtype=float) ** 2))


def class_sets(*numbers: np.ndarray) -> np.ndarray:
    """Convert each array of class numbers [N] to a 0/1 array [N, C].

    C is the number of classes that occur in at least one array.
    """
    classes, places = np.unique(numbers, return_inverse=True)
    return np.eye(len(classes))[places.reshape(np.shape(numbers))]


def f1_of_classes(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return each class's F1 score for sets [N, C]; 0 for absent classes."""
    right = 2 * np.sum(np.multiply(labels, predictions, dtype=float), axis=0)
    both = np.sum([labels, predictions], axis=(0, 1), dtype=float)
    return np.divide(right, both, np.zeros(len(both)), where=both > 0)


def binary_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the F1 score of class 1."""
    sets = (np.equal(x, 1)[:, None] for x in (labels, predictions))
    return float(f1_of_classes(*sets)[0])


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the mean F1 score of classes.

    For class numbers [N], only classes that occur count; for sets [N, C], a
    class that does not occur has an F1 score of 0.
    """
    sets = labels, predictions
    sets = class_sets(*sets) if np.ndim(labels) == 1 else sets
    return float(f1_of_classes(*sets).mean())


def micro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the F1 score of all decisions in sets [N, C]."""
    sets = (np.reshape(x, [-1, 1]) for x in (labels, predictions))
    return float(f1_of_classes(*sets)[0])


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return Pearson's correlation, or 0 if an input is constant."""
    pair = [np.asarray(x, float) for x in (labels, predictions)]
    first, second = (x - x.mean(axis=0) for x in pair)
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    return float(np.sum(first * second) / lengths) if lengths else 0.0


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of values [N]; equal values share their mean rank."""
    _, places, counts = np.unique(
        values, return_inverse=True, return_counts=True
    )
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return Spearman's correlation, that is, the correlation of ranks."""
    return pearson(ranks(labels), ranks(predictions))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return Matthews's correlation, for any number of classes.

    See https://doi.org/10.1016/j.compbiolchem.2004.09.006.
    """
    return pearson(*class_sets(labels, predictions))


# Each function accepts (labels [N], predictions [N]). Classes are numbers;
# `f1`, the metric of MRPC and QQP, treats class 1 as positive. Multi-label sets
# are 0/1 arrays [N, C]: accuracy counts correct sets, and micro F1 pools all
# decisions.
METRICS: dict[str, Callable] = {
    "accuracy": accuracy,
    "matthews": matthews,
    "f1": binary_f1,
    "macro_f1": macro_f1,
    "micro_f1": micro_f1,
    "pearson": pearson,
    "spearman": spearman,
    "negative_mse": negative_mse,
}


def retrieval(
    queries: np.ndarray, candidates: np.ndarray, numbers: np.ndarray
) -> dict[str, float]:
    """Return retrieval metrics, given each query's match.

    `accuracy` is the share of matches that rank first, and `mrr` is the mean
    reciprocal rank of the matches. In ties, the match ranks last.

    Args:
      queries: float [N, H].
      candidates: float [M, H].
      numbers: int [N], the number of each query's matching candidate.
    """
    ranks = []
    for query, number in zip(queries, numbers, strict=True):
        products = candidates @ query
        ranks.append(np.count_nonzero(products >= products[number]))
    return {
        "accuracy": float(np.equal(ranks, 1).mean()),
        "mrr": float(np.reciprocal(ranks, dtype=float).mean()),
    }


def _entities_in(rows: Sequence[Sequence[str]]) -> set[tuple]:
    """Return a (row, first word, last word, type) tuple for each entity."""
    return {
        (number, *span)
        for number, tags in enumerate(rows)
        for span in entity_spans(tags)
    }


def _shares_found(labels: set, predictions: set) -> dict[str, float]:
    """Return the precision, recall and F1 score of a predicted set."""
    right = len(labels & predictions)
    both = len(labels) + len(predictions)
    return {
        "precision": right / max(len(predictions), 1),
        "recall": right / max(len(labels), 1),
        "f1": 2 * right / max(both, 1),
    }


def entities(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return `f1`, `precision` and `recall` of entities, and tag `accuracy`.

    An entity is correct if both its words and its type are right.
    """
    pairs = [itertools.chain(*rows) for rows in (labels, predictions)]
    equal = [label == guess for label, guess in zip(*pairs, strict=True)]
    shares = _shares_found(_entities_in(labels), _entities_in(predictions))
    return shares | {"accuracy": sum(equal) / max(len(equal), 1)}


def entity_table(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Return a table of precision, recall, F1 and count by entity type.

    The count is the number of entities in the labels. The first row is the
    header, and the last row is about all types.
    """
    sets = [_entities_in(labels), _entities_in(predictions)]
    table = [["type", "precision", "recall", "f1", "entities"]]
    for kind in [*sorted({entity[-1] for s in sets for entity in s}), None]:
        true, guessed = ({e for e in s if kind in (e[-1], None)} for s in sets)
        shares = [f"{x:.4f}" for x in _shares_found(true, guessed).values()]
        table.append([kind or "all", *shares, str(len(true))])
    return table


def confusion_table(
    labels: Sequence[str], predictions: Sequence[str], classes: Sequence[str]
) -> list[list[str]]:
    """Return the confusion matrix: labels in rows, predictions in columns."""
    counts = Counter(zip(labels, predictions, strict=True))
    return [
        ["label \\ prediction", *classes],
        *([c, *(str(counts[c, other]) for other in classes)] for c in classes),
    ]
