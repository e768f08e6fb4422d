"""Metrics equal those of scikit-learn and SciPy; undefined metrics are 0."""

import functools

import numpy as np
import pytest

from albert_tf.tasks import metrics


@pytest.mark.parametrize("several", [False, True])
def test_metrics_are_scikit_learns(several):
    """Metrics of classes and of class sets equal those of scikit-learn."""
    from sklearn import metrics as theirs

    rng = np.random.default_rng(0)
    f1 = functools.partial(theirs.f1_score, zero_division=0.0)
    wanted = {
        "accuracy": theirs.accuracy_score,
        "macro_f1": functools.partial(f1, average="macro"),
        "negative_mse": lambda a, b: -theirs.mean_squared_error(a, b),
    }
    if several:
        wanted["micro_f1"] = functools.partial(f1, average="micro")
    else:
        wanted |= {"f1": f1, "matthews": theirs.matthews_corrcoef}
    for number in (2, 2, 2, 5, 5, 5):
        shape, most = ([9, number], 2) if several else ([9], number)
        labels, found = rng.integers(most, size=[2, *shape])
        if several:
            labels[:, 0] = found[:, 0] = 0  # a class without examples
        for name, function in wanted.items():
            if name == "f1" and number > 2:
                continue
            value = metrics.METRICS[name](labels, found)
            assert value == pytest.approx(function(labels, found), rel=1e-12)


def test_correlations_are_scipys():
    """Correlations equal those of SciPy, but are 0 for a single example."""
    from scipy import stats

    rng = np.random.default_rng(0)
    for number in (2, 9, 200):
        labels, found = rng.integers(4, size=[2, number])
        labels[:2] = found[:2] = 0, 3  # not constant
        for x in (labels, labels + rng.normal(size=number)):
            for name in ("pearson", "spearman"):
                wanted = getattr(stats, f"{name}r")(x, found)[0]
                value = metrics.METRICS[name](x, found)
                assert value == pytest.approx(wanted, rel=1e-9)
                assert metrics.METRICS[name](x[:1], found[:1]) == 0.0


def test_table_of_entities():
    """A table lists scores and counts for each entity type and in total."""
    table = metrics.entity_table([["B-A", "B-B"]], [["B-A", "O"]])
    assert table[0] == ["type", "precision", "recall", "f1", "entities"]
    assert table[1] == ["A", "1.0000", "1.0000", "1.0000", "1"]
    assert table[2] == ["B", "0.0000", "0.0000", "0.0000", "1"]
    assert table[3] == ["all", "1.0000", "0.5000", "0.6667", "2"]
