"""The official metrics of tasks, as well-known libraries compute them.

Those of classes come from scikit-learn, correlations from SciPy, those of
entities from seqeval.

Each of `METRICS` takes (labels [N], predictions [N]) and returns a float.
Classes are numbers; class 1 is the positive one of `f1`. Multi-label sets are
0/1 arrays [N, C]. A value that is undefined, as a correlation with a constant,
is 0.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from scipy import stats
from seqeval import metrics as seqeval_metrics
from sklearn import metrics as sklearn_metrics


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the share of examples predicted exactly; of sets, whole sets."""
    return float(sklearn_metrics.accuracy_score(labels, predictions))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return Matthews' correlation, CoLA's metric."""
    return float(sklearn_metrics.matthews_corrcoef(labels, predictions))


def _f1(labels, predictions, average: str) -> float:
    score = sklearn_metrics.f1_score(
        labels, predictions, average=average, zero_division=0.0
    )
    return float(score)


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the F1 of class 1 of two, the metric of MRPC and QQP."""
    return _f1(labels, predictions, "binary")


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the mean of the classes' F1, each class alike."""
    return _f1(labels, predictions, "macro")


def micro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the F1 of all decisions of all classes together."""
    return _f1(labels, predictions, "micro")


def _correlation(function, labels, predictions) -> float:
    if len(labels) < 2:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        value = float(function(labels, predictions)[0])
    return value if np.isfinite(value) else 0.0


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return Pearson's correlation, a metric of STS-B."""
    return _correlation(stats.pearsonr, labels, predictions)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return Spearman's rank correlation, a metric of STS-B."""
    return _correlation(stats.spearmanr, labels, predictions)


def negative_mse(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return minus the mean squared error, so that larger is better."""
    return -float(sklearn_metrics.mean_squared_error(labels, predictions))


METRICS = {
    function.__name__: function
    for function in (
        accuracy,
        matthews,
        f1,
        macro_f1,
        micro_f1,
        pearson,
        spearman,
        negative_mse,
    )
}


def entities(
    labels: Sequence[list[str]], predictions: Sequence[list[str]]
) -> dict[str, float]:
    """Return `f1`, `precision` and `recall` of entities, `accuracy` of tags.

    Entities are read from tags as the script `conlleval` of CoNLL reads them.
    """
    scores = {
        "f1": seqeval_metrics.f1_score,
        "precision": seqeval_metrics.precision_score,
        "recall": seqeval_metrics.recall_score,
    }
    values = {
        name: float(score(labels, predictions, zero_division=0))
        for name, score in scores.items()
    }
    accuracy = seqeval_metrics.accuracy_score(labels, predictions)
    return values | {"accuracy": float(accuracy)}


def entity_table(
    labels: Sequence[list[str]], predictions: Sequence[list[str]]
) -> list[list[str]]:
    """Return a table of every type's precision, recall, F1 and number."""
    report = seqeval_metrics.classification_report(
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
