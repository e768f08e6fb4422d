"""Metrics against their formulas written out."""

import numpy as np
import pytest

from albert_tf.tasks import metrics

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, 200)
GUESSES = np.where(RNG.random(200) < 0.7, LABELS, 1 - LABELS)
NUMBERS = RNG.integers(0, 6, 200).astype(float)  # with ties
SCORES = NUMBERS + RNG.normal(size=200)


def counts(labels, guesses):
    """Return true and false positives and negatives."""
    return [
        float(np.sum((labels == a) & (guesses == b)))
        for a, b in ((1, 1), (0, 1), (1, 0), (0, 0))
    ]


def correlation(x, y):
    x, y = x - x.mean(), y - y.mean()
    return (x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum())


def ranks(x):
    return np.array([(x < v).sum() + ((x == v).sum() + 1) / 2 for v in x])


def test_metrics_of_two_classes():
    """Accuracy, F1 and MCC are those of the confusion matrix."""
    tp, fp, fn, tn = counts(LABELS, GUESSES)
    mcc = (tp * tn - fp * fn) / np.sqrt(
        (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    )
    f1, other = 2 * tp / (2 * tp + fp + fn), 2 * tn / (2 * tn + fp + fn)
    expected = {
        "accuracy": (tp + tn) / 200,
        "f1": f1,
        "macro_f1": (f1 + other) / 2,
        "matthews": mcc,
    }
    for name, value in expected.items():
        found = metrics.METRICS[name](LABELS, GUESSES)
        assert found == pytest.approx(value), name


def test_correlations():
    """Pearson is the normalised covariance, Spearman that of ranks."""
    assert metrics.METRICS["pearson"](NUMBERS, SCORES) == pytest.approx(
        correlation(NUMBERS, SCORES)
    )
    assert metrics.METRICS["spearman"](NUMBERS, SCORES) == pytest.approx(
        correlation(ranks(NUMBERS), ranks(SCORES))
    )
    assert metrics.METRICS["negative_mse"](NUMBERS, SCORES) == pytest.approx(
        -np.mean((NUMBERS - SCORES) ** 2)
    )


@pytest.mark.parametrize(
    "name", ["pearson", "spearman", "matthews", "f1", "macro_f1"]
)
def test_constant_predictions_score_a_number(name):
    """A model that says one thing scores 0 or little, never NaN."""
    value = metrics.METRICS[name](LABELS, np.zeros(200, int))
    assert value == pytest.approx(0.0) or name == "macro_f1"
    assert np.isfinite(value)


def test_sets_of_classes():
    """Micro F1 counts all decisions together, accuracy whole sets."""
    labels = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0]])
    guesses = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 1]])
    assert metrics.METRICS["accuracy"](labels, guesses) == pytest.approx(1 / 3)
    assert metrics.METRICS["micro_f1"](labels, guesses) == pytest.approx(8 / 10)


def test_entities():
    """An entity is right if its words and its type are; tags count alone."""
    labels = [["B-PER", "I-PER", "O", "B-LOC"], ["I-ORG", "O"]]
    guesses = [["B-PER", "O", "O", "B-LOC"], ["I-ORG", "I-ORG"]]
    found = metrics.entities(labels, guesses)
    # 3 entities, 3 predicted, LOC alone is right; 4 of 6 tags are.
    assert found == pytest.approx(
        {"f1": 1 / 3, "precision": 1 / 3, "recall": 1 / 3, "accuracy": 4 / 6}
    )
    nothing = metrics.entities([["O"]], [["O"]])
    assert nothing["f1"] == 0.0 and nothing["accuracy"] == 1.0


def test_table_of_entities():
    """Each type has its own scores and its number."""
    table = metrics.entity_table([["B-A", "B-B"]], [["B-A", "O"]])
    assert table[0] == ["type", "precision", "recall", "f1", "entities"]
    assert table[1] == ["A", "1.0000", "1.0000", "1.0000", "1"]
    assert table[2] == ["B", "0.0000", "0.0000", "0.0000", "1"]


def test_confusion():
    """Rows are labels, columns predictions, in the order of the classes."""
    table = metrics.confusion_table(
        ["x", "y", "y", "y"], ["z", "y", "x", "y"], ["y", "x", "z"]
    )
    assert [row[1:] for row in table] == [
        ["y", "x", "z"],
        ["2", "1", "0"],
        ["0", "0", "1"],
        ["0", "0", "0"],
    ]
