"""Metrics of entities, tables, and undefined metrics."""

import numpy as np
import pytest

from albert_tf.tasks import metrics

LABELS = np.arange(200) % 3 % 2


@pytest.mark.parametrize(
    "name", ["pearson", "spearman", "matthews", "f1", "macro_f1"]
)
def test_constant_predictions_score_a_number(name):
    """A constant model has a low score, never NaN."""
    value = metrics.METRICS[name](LABELS, np.zeros(200, int))
    assert value == pytest.approx(0.0) or name == "macro_f1"
    assert np.isfinite(value)


def test_entities():
    """An entity needs the right words and type; tags count singly."""
    labels = [["B-PER", "I-PER", "O", "B-LOC"], ["I-ORG", "O"]]
    guesses = [["B-PER", "O", "O", "B-LOC"], ["I-ORG", "I-ORG"]]
    found = metrics.entities(labels, guesses)
    # 3 entities, 3 predicted, only LOC is right; 4 of 6 tags are.
    assert found == pytest.approx(
        {"f1": 1 / 3, "precision": 1 / 3, "recall": 1 / 3, "accuracy": 4 / 6}
    )
    nothing = metrics.entities([["O"]], [["O"]])
    assert nothing["f1"] == 0.0 and nothing["accuracy"] == 1.0


def test_table_of_entities():
    """Scores and counts are listed for each type and for all types."""
    table = metrics.entity_table([["B-A", "B-B"]], [["B-A", "O"]])
    assert table[0] == ["type", "precision", "recall", "f1", "entities"]
    assert table[1] == ["A", "1.0000", "1.0000", "1.0000", "1"]
    assert table[2] == ["B", "0.0000", "0.0000", "0.0000", "1"]
    assert table[3] == ["all", "1.0000", "0.5000", "0.6667", "2"]


def test_confusion():
    """Rows are labels and columns predictions, in the order of classes."""
    table = metrics.confusion_table(
        ["x", "y", "y", "y"], ["z", "y", "x", "y"], ["y", "x", "z"]
    )
    assert [row[1:] for row in table] == [
        ["y", "x", "z"],
        ["2", "1", "0"],
        ["0", "0", "1"],
        ["0", "0", "0"],
    ]
