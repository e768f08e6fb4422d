"""The leak probe on examples whose labels are, or are not, given away."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

from albert_tf.pretraining_data import leak_probe
from albert_tf.pretraining_data.advice import LEAK
from albert_tf.records import decoding

V, NUMBER = 600, 2500


def example(a, b, swapped):
    """Return an example of two segments, without masks."""
    ids = np.concatenate([[2], a, [3], b, [3]])
    nothing = np.zeros(0, np.int64)
    return decoding.Example(
        input_ids=ids,
        segment_ids=np.repeat([0, 1], [len(a) + 2, len(b) + 1]),
        starts=None,
        positions=nothing,
        labels=nothing,
        swapped=bool(swapped),
        slots=0,
        length=len(ids),
    )


def examples(rng, random_documents=0.0, marked=0.0):
    """Return examples of two segments on one of ten topics.

    Args:
      rng: the source of randomness.
      random_documents: share of examples whose B is of any topic and whose
        label is always 1.
      marked: share of examples in which a word of B gives label 1 away.
    """
    found = []
    for _ in range(NUMBER):
        topic, swapped = rng.integers(10), rng.random() < 0.5
        other = topic
        if rng.random() < random_documents:
            other, swapped = rng.integers(10), True
        a, b = (
            5 + 50 * t + rng.integers(0, 50, rng.integers(20, 40))
            for t in (topic, other)
        )
        if swapped and rng.random() < marked:
            b[0] = V - 1
        found.append(example(a, b, swapped))
    return found


def measure(found):
    """Probe examples."""
    return leak_probe.measure(leak_probe._bags(found, V))


def test_fair_labels_are_chance():
    """Where labels are a coin's, a half is inside the interval."""
    found = measure(examples(np.random.default_rng(0)))
    low, high = found["balanced_interval"]
    assert low < 0.5 < high < LEAK and found["records"] == NUMBER
    low, high = found["accuracy_interval"]
    assert low < found["accuracy"] < high and high - low < 0.05


def test_random_documents_leak():
    """Segments of different topics with one label are found out."""
    found = measure(examples(np.random.default_rng(1), random_documents=0.6))
    assert found["balanced_interval"][0] > LEAK
    assert found["majority_share"] == pytest.approx(0.8, abs=0.03)
    # Telling topics apart is right for 0.54 of label 1 and all of label 0.
    best = 0.5 * (1 + 0.6 * 0.9 / 0.8)
    assert found["balanced_accuracy"] == pytest.approx(best, abs=0.06)


def test_words_that_tell_the_label_leak():
    """A word that stands only in one segment of swapped examples is found."""
    found = measure(examples(np.random.default_rng(2), marked=0.5))
    assert found["balanced_interval"][0] > LEAK


def test_labels_of_one_kind():
    """Where a label is too rare to learn from, only its share is told."""
    rng = np.random.default_rng(3)
    found = measure(
        [example(rng.integers(5, V, 9), [7, 8], 1) for _ in range(90)]
    )
    assert found["majority_share"] == 1.0
    assert found["accuracy"] is None and found["balanced_interval"] is None


def test_nothing_to_probe():
    """Without a record there is no accuracy, and no failure."""
    assert leak_probe.probe("", [], V)["accuracy"] is None
    assert measure([])["records"] == 0


def test_wilson_interval():
    """The interval is Wilson's: 8 of 10 is 0.49 to 0.94 (Wilson, 1927)."""
    low, high = leak_probe.wilson(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)


def test_balanced_accuracy_is_sklearns():
    """The mean over labels is scikit-learn's, within its interval."""
    rng = np.random.default_rng(4)
    labels = rng.random(500) < 0.8
    guessed = rng.random(500) < 0.6
    value, half = leak_probe._balanced(guessed == labels, labels)
    assert value == pytest.approx(balanced_accuracy_score(labels, guessed))
    assert 0.02 < half < 0.06


def test_probe_ignores_masks():
    """The words before masking are counted, not the masks."""
    rng = np.random.default_rng(5)
    whole = examples(rng)[:50]
    masked = []
    for item in whole:
        ids = item.input_ids.copy()
        ids[4:9] = 4
        masked.append(
            decoding.Example(
                ids,
                item.segment_ids,
                None,
                np.arange(4, 9),
                item.input_ids[4:9],
                item.swapped,
                5,
                len(ids),
            )
        )
    left, right = (leak_probe._bags(x, V) for x in (whole, masked))
    assert (left.a != right.a).nnz == (left.b != right.b).nnz == 0
    # Neither [CLS] nor [SEP] is counted.
    assert left.a[:, [2]].sum() == left.b[:, [3]].sum() == 0
