"""Metrics of entities, tables, and undefined metrics."""

from albert_tf.tasks import metrics


def test_table_of_entities():
    """Scores and counts are listed for each type and for all types."""
    table = metrics.entity_table([["B-A", "B-B"]], [["B-A", "O"]])
    assert table[0] == ["type", "precision", "recall", "f1", "entities"]
    assert table[1] == ["A", "1.0000", "1.0000", "1.0000", "1"]
    assert table[2] == ["B", "0.0000", "0.0000", "0.0000", "1"]
    assert table[3] == ["all", "1.0000", "0.5000", "0.6667", "2"]
