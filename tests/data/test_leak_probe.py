"""The leak probe detects whether the form of segments reveals the label."""

import dataclasses
import sys

import numpy as np
import pytest
from project_file import ROOT
from sklearn.metrics import balanced_accuracy_score

from albert_tf.base.errors import InputError
from albert_tf.data.records import tfrecord

sys.path.append(str(ROOT / "benchmarks"))
import leak_probe  # noqa: E402
from leak_probe import LEAK  # noqa: E402

V, NUMBER = 600, 2500
STOP = V - 2


def example(a, b, swapped):
    """Return an example of two segments, without masks."""
    ids = np.concatenate([[2], a, [3], b, [3]])
    segments = np.repeat([0, 1], [len(a) + 2, len(b) + 1])
    return tfrecord.Example(ids, segments, len(ids), swapped=bool(swapped))


def examples(rng, random_documents=0.0, marked=0.0, cut=0.0, long=0):
    """Return examples of two sentences about one of ten topics.

    Args:
      rng: the source of randomness.
      random_documents: share of examples in which B has a random topic and the
        label is always 1.
      marked: share of examples in which a word of B reveals label 1.
      cut: share of examples whose first sentence lacks its full stop.
      long: number of additional tokens in the first sentence.
    """
    found = []
    for _ in range(NUMBER):
        topic, swapped = rng.integers(10), rng.random() < 0.5
        other = topic
        if rng.random() < random_documents:
            other, swapped = rng.integers(10), True
        sizes = rng.integers(20, 40, 2) + [long, 0]
        a, b = (
            np.append(5 + 50 * t + rng.integers(0, 50, size), STOP)
            for t, size in zip((topic, other), sizes, strict=True)
        )
        if rng.random() < cut:
            a = a[:-1]
        if swapped:
            a, b = b, a
        if swapped and rng.random() < marked:
            b[0] = V - 1
        found.append(example(a, b, swapped))
    return found


def measure(found):
    """Return the leak probe's measurements of the given examples."""
    return leak_probe.measure(leak_probe._segments(found, V))


def test_fair_labels_are_chance():
    """For random labels, the intervals of both accuracies contain 0.5.

    The probe trains a classifier on the form, and another on the words.
    """
    found = measure(examples(np.random.default_rng(0)))
    for name in ("balanced_interval", "words_balanced_interval"):
        low, high = found[name]
        assert low < 0.5 < high
    assert found["records"] == NUMBER


def test_random_documents_leak():
    """The probe finds a label that depends on whether topics match."""
    found = measure(examples(np.random.default_rng(1), random_documents=0.6))
    assert found["balanced_interval"][0] > LEAK
    assert found["majority_share"] == pytest.approx(0.8, abs=0.03)
    # Topics differ in 54% of the examples, all of which have label 1.
    best = 0.5 * (1 + 0.6 * 0.9 / 0.8)
    assert found["balanced_accuracy"] == pytest.approx(best, abs=0.06)


def test_in_the_next_sentence_task_topics_are_the_task():
    """In the next-sentence task, topics count as content, not as form."""
    found = examples(np.random.default_rng(1), random_documents=0.6)
    segments = leak_probe._segments(found, V)
    measured = leak_probe.measure(segments, next_sentence=True)
    low, high = measured["balanced_interval"]
    assert low < 0.5 < high
    best = 0.5 * (1 + 0.6 * 0.9 / 0.8)
    told = measured["words_balanced_accuracy"]
    assert told == pytest.approx(best, abs=0.06)


def test_cut_sentences_and_long_ones_leak():
    """Truncated or long first sentences reveal the order to the probe."""
    cut = measure(examples(np.random.default_rng(2), cut=0.3))
    assert cut["balanced_accuracy"] == pytest.approx(0.65, abs=0.04)
    long = measure(examples(np.random.default_rng(3), long=5))
    # Of 400 pairs of sizes, 105 have a longer second sentence, and 15 are ties:
    # 1 - (105 + 15 / 2) / 400 is 0.72.
    assert long["balanced_accuracy"] == pytest.approx(0.72, abs=0.04)
    for found in (cut, long):
        assert found["balanced_interval"][0] > LEAK


def test_words_that_tell_the_label_are_told_apart():
    """A word that reveals the label counts as content, not as form."""
    found = measure(examples(np.random.default_rng(4), marked=0.5))
    assert found["words_balanced_accuracy"] == pytest.approx(0.75, abs=0.04)
    assert found["balanced_interval"][0] < 0.5 < found["balanced_interval"][1]


def test_labels_of_one_kind():
    """If one label is too rare to learn, the probe returns no accuracy."""
    rng = np.random.default_rng(8)
    found = measure(
        [example(rng.integers(5, V, 9), [7, 8], 1) for _ in range(90)]
    )
    assert found["majority_share"] == 1.0
    assert found["balanced_accuracy"] is found["balanced_interval"] is None


def test_nothing_to_probe():
    """Without records, the probe returns no accuracy and raises no error."""
    assert leak_probe.probe([], V)["balanced_accuracy"] is None
    assert measure([])["records"] == 0


def test_balanced_accuracy_is_sklearns():
    """Balanced accuracy equals scikit-learn's and lies inside the interval."""
    rng = np.random.default_rng(6)
    labels = rng.random(500) < 0.8
    guessed = rng.random(500) < 0.6
    value, (low, high) = leak_probe.balanced_accuracy(guessed == labels, labels)
    right = balanced_accuracy_score(labels, guessed)
    assert value == pytest.approx(right, abs=1e-4)
    assert low < value < high and 0.04 < high - low < 0.12


def test_probe_ignores_masks():
    """The probe examines the text before masking."""
    whole = examples(np.random.default_rng(7))[:50]
    masked, positions = [], np.arange(4, 9)
    for item in whole:
        ids = item.input_ids.copy()
        ids[positions] = 4
        hidden = {"positions": positions, "labels": item.input_ids[positions]}
        masked.append(dataclasses.replace(item, input_ids=ids, **hidden))
    left, right = (leak_probe._segments(x, V) for x in (whole, masked))
    assert (left.a != right.a).nnz == (left.b != right.b).nnz == 0
    # Neither [CLS] nor [SEP] is counted.
    assert left.a[:, [2]].sum() == left.b[:, [3]].sum() == 0
    np.testing.assert_array_equal(left.last, STOP)
    np.testing.assert_array_equal(left.first, right.first)


def test_a_folder_is_probed_by_its_first_pass(whole, monkeypatch):
    """Files of later duplicates, which repeat the text, are not probed."""
    output, made = whole
    names = [entry.file for entry in made.splits["train"]]
    first = leak_probe.first_duplicate(made)
    assert first == names[: len(names) // 2] and first
    records = sum(x.records for x in made.splits["train"][: len(first)])
    lines = leak_probe.report(str(output))
    assert lines[0].split() == ["records", str(records)]
    leak = {"balanced_accuracy": 0.7, "balanced_interval": [0.68, 0.72]}
    monkeypatch.setattr(leak_probe, "probe", lambda *_: leak)
    assert "segments in 70.0%" in leak_probe.report(str(output))[-1]


def test_a_folder_without_records_is_refused(tmp_path):
    """A folder without records raises an error."""
    with pytest.raises(InputError, match="metadata.json"):
        leak_probe.report(str(tmp_path))
