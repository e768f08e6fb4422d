"""The official metrics of tasks, as well-known libraries compute them.

Those of classes come from scikit-learn, correlations from SciPy, those of
entities from seqeval.
"""

import functools
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats
from seqeval.metrics import sequence_labeling
from sklearn import metrics as sklearn_metrics


def correlation(
    function: Callable, labels: np.ndarray, predictions: np.ndarray
) -> float:
    """Return a correlation of SciPy's, 0 where it is undefined."""
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


F1 = functools.partial(sklearn_metrics.f1_score, zero_division=0.0)

# Each takes (labels [N], predictions [N]). Classes are numbers; class 1 is the
# positive one of `f1`, the metric of MRPC and QQP. Multi-label sets are 0/1
# arrays [N, C]: accuracy counts whole sets, micro F1 all decisions together.
METRICS: dict[str, Callable] = {
    "accuracy": sklearn_metrics.accuracy_score,
    "matthews": sklearn_metrics.matthews_corrcoef,
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
    """Return how high the candidate that each query seeks is ranked.

    `accuracy` is the share that comes first, `mrr` the mean of 1 / rank. Of
    equal products the sought one is the last.

    Args:
      queries: float [N, H].
      candidates: float [M, H].
      numbers: int [N], the candidate that each seeks.
    """
    ranks = []
    for query, number in zip(queries, numbers, strict=True):
        products = candidates @ query
        ranks.append(np.count_nonzero(products >= products[number]))
    return {
        "accuracy": float(np.equal(ranks, 1).mean()),
        "mrr": float(np.reciprocal(ranks, dtype=float).mean()),
    }


def entities(
    labels: Sequence[list[str]], predictions: Sequence[list[str]]
) -> dict[str, float]:
    """Return `f1`, `precision` and `recall` of entities, `accuracy` of tags.

    Entities are read from tags as the script `conlleval` of CoNLL reads them.
    """
    precision, recall, f1, _ = (
        sequence_labeling.precision_recall_fscore_support(
            labels, predictions, average="micro", zero_division=0
        )
    )
    accuracy = sequence_labeling.accuracy_score(labels, predictions)
    values = {"f1": f1, "precision": precision, "recall": recall}
    values["accuracy"] = accuracy
    return {name: float(value) for name, value in values.items()}


def entity_table(
    labels: Sequence[list[str]], predictions: Sequence[list[str]]
) -> list[list[str]]:
    """Return a table of every type's precision, recall, F1 and number."""
    report = sequence_labeling.classification_report(
        labels, predictions, output_dict=True, zero_division=0
    )
    columns = ("precision", "recall", "f1-score")
    return [["type", "precision", "recall", "f1", "entities"]] + [
        [kind, *(f"{row[c]:.4f}" for c in columns), str(row["support"])]
        for kind, row in report.items()
    ]


def confusion_table(
    labels: Sequence[str], predictions: Sequence[str], classes: Sequence[str]
) -> list[list[str]]:
    """Return how often each class, a row, was predicted as each, a column."""
    counts = sklearn_metrics.confusion_matrix(
        labels, predictions, labels=list(classes)
    )
    rows = zip(classes, counts.tolist(), strict=True)
    return [
        ["label \\ prediction", *classes],
        *([label, *map(str, row)] for label, row in rows),
    ]
