"""The official metrics of tasks, computed by well-known libraries.

Class metrics come from scikit-learn and correlations from SciPy; entity
metrics match CoNLL's script `conlleval`.
"""

import functools
import itertools
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics

from albert_tf.tasks.conll import entity_spans


def correlation(
    function: Callable, labels: np.ndarray, predictions: np.ndarray
) -> float:
    """Return a SciPy correlation, 0 if it is undefined."""
    if len(labels) < 2:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        value = float(function(labels, predictions)[0])
    return value if np.isfinite(value) else 0.0


def negative_mse(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return minus the mean squared error, so that larger is better."""
    return -sklearn_metrics.mean_squared_error(labels, predictions)


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return Matthews' correlation, 0 if there is only one class."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return sklearn_metrics.matthews_corrcoef(labels, predictions)


F1 = functools.partial(sklearn_metrics.f1_score, zero_division=0.0)

# Each takes (labels [N], predictions [N]). Classes are numbers; `f1`, the
# metric of MRPC and QQP, takes class 1 as positive. Multi-label sets are 0/1
# arrays [N, C]: accuracy counts whole sets, micro F1 pools all decisions.
METRICS: dict[str, Callable] = {
    "accuracy": sklearn_metrics.accuracy_score,
    "matthews": matthews,
    "f1": functools.partial(F1, average="binary"),
    "macro_f1": functools.partial(F1, average="macro"),
    "micro_f1": functools.partial(F1, average="micro"),
    "pearson": functools.partial(correlation, stats.pearsonr),
    "spearman": functools.partial(correlation, stats.spearmanr),
    "negative_mse": negative_mse,
}


def retrieval(
    queries: np.ndarray, candidates: np.ndarray, numbers: np.ndarray
) -> dict[str, float]:
    """Return metrics of the rank of each query's match.

    `accuracy` is the share of matches ranked first, `mrr` the mean of
    1 / rank. On ties, the match is ranked last.

    Args:
      queries: float [N, H].
      candidates: float [M, H].
      numbers: int [N], each query's matching candidate.
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
    """Return (row, first word, last word, type) of all entities."""
    return {
        (number, *span)
        for number, tags in enumerate(rows)
        for span in entity_spans(tags)
    }


def _shares_found(labels: set, predictions: set) -> dict[str, float]:
    """Return precision, recall and F1 of sets, 0 if a set is empty."""
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

    An entity is correct if both its words and its type are correct.
    """
    pairs = [itertools.chain(*rows) for rows in (labels, predictions)]
    equal = [label == guess for label, guess in zip(*pairs, strict=True)]
    shares = _shares_found(_entities_in(labels), _entities_in(predictions))
    return shares | {"accuracy": sum(equal) / max(len(equal), 1)}


def entity_table(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Return precision, recall, F1 and count by entity type, and overall."""
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
    counts = sklearn_metrics.confusion_matrix(
        labels, predictions, labels=list(classes)
    )
    rows = zip(classes, counts.tolist(), strict=True)
    return [
        ["label \\ prediction", *classes],
        *([label, *map(str, row)] for label, row in rows),
    ]
