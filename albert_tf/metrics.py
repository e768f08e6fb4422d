"""The official metrics of tasks, as scikit-learn and SciPy compute them.

Each takes (labels [N], predictions [N]) and returns a float. Classes are
numbers; class 1 is the positive one of `f1`. Multi-label sets are 0/1 arrays
[N, C]. A value that is undefined, as a correlation with a constant, is 0.
"""

import warnings

import numpy as np
from scipy import stats
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
