"""Test whether anything other than the text reveals the labels of pairs.

    python benchmarks/leak_probe.py --data_dir=DIR

Two linear classifiers of the label are evaluated on unseen records. Their
features are:

- Form: the last pieces of segments A and B, the lengths of the segments and
  their similarity. Without a leak, the accuracy is 50%. A higher accuracy
  reveals a fault in how pairs are made, such as cut sentences, long sentences
  at the same position, or segments from different texts.
- Words: the words in which A and B differ, and the first pieces of A and B.
  Words may legitimately reveal the order, for example if documents begin alike.

In the next-sentence task, a model must judge the similarity of A and B, so the
similarity is a feature of the second classifier.

Shapes: n records, V vocabulary.
"""

import argparse
import dataclasses
import itertools
import math

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.preprocessing import normalize

from albert_tf.base import files
from albert_tf.base.errors import InputError, require
from albert_tf.data.records import tfrecord
from albert_tf.data.records.metadata import TRAIN, Metadata, read_metadata
from albert_tf.data.records.tfrecord import Example, decode

# Maximum number of records to examine, and of files to read them from. The
# files share no text.
SAMPLE = 8192
MOST_FILES = 64
FOLDS = 5

# With fewer examples of a label, the classifiers cannot learn.
LEAST_OF_A_LABEL = 10 * FOLDS

# The quantile for 95% intervals.
Z = 1.959964

FIGURES = """balanced_accuracy balanced_interval words_balanced_accuracy
words_balanced_interval""".split()

# Without a leak, the accuracy of the form classifier does not exceed this value
# (measured: 49 to 53% on novels, an encyclopedia and docstrings).
LEAK = 0.53

# Number of bins for similarity and lengths.
BINS = 10


@dataclasses.dataclass(frozen=True)
class Segments:
    """The features of n segment pairs, A and B, in their stored order."""

    a: sparse.csr_array  # [n, V] counts of words
    b: sparse.csr_array  # [n, V]
    first: np.ndarray  # [n, 2] pieces of A and B
    last: np.ndarray  # [n, 2]
    swapped: np.ndarray  # [n] bool


def _bag(rows: list[np.ndarray], width: int) -> sparse.csr_array:
    """Return the counts [rows, width] of each id in each row."""
    first = np.arange(len(rows)) * width
    cells = np.repeat(first, list(map(len, rows)))
    cells += np.concatenate([np.zeros(0, np.int64), *rows])
    cells, counts = np.unique(cells, return_counts=True)
    return sparse.csr_array(
        (counts.astype(np.float32), np.divmod(cells, width)), (len(rows), width)
    )


def _segments(examples: list[Example], width: int) -> Segments:
    """Return the features of segments; ids are taken modulo the width."""
    bags, edges = [], []
    segments = [example.segments() for example in examples]
    for segment in (0, 1):
        rows = [pair[segment] % width for pair in segments]
        bags.append(_bag(rows, width))
        edges.append([row[[0, -1]] if len(row) else (0, 0) for row in rows])
    first, last = np.array(edges, np.int64).reshape(2, -1, 2).T
    swapped = np.array([example.swapped for example in examples], bool)
    return Segments(*bags, first, last, swapped)


def _one_hot(values: np.ndarray, width: int) -> sparse.csr_array:
    ends = np.arange(len(values) + 1)
    shape = (len(values), width)
    return sparse.csr_array((np.ones(len(values)), values, ends), shape)


def _one_hot_bins(values: np.ndarray) -> sparse.csr_array:
    """Return the quantile bin of each value as a one-hot row [BINS]."""
    edges = np.quantile(values, np.arange(1, BINS) / BINS)
    return _one_hot(np.searchsorted(edges, values), BINS)


def _joined(columns: list[sparse.csr_array]) -> sparse.csr_matrix:
    """Join blocks of columns; convert indices to 32 bits for liblinear."""
    joined = sparse.hstack(columns, format="csr")
    narrow = (joined.indices.astype("i4"), joined.indptr.astype("i4"))
    return sparse.csr_matrix((joined.data, *narrow), joined.shape)


def _features(
    segments: Segments, next_sentence: bool
) -> tuple[sparse.csr_matrix, ...]:
    """Return the features of the form classifier and the word classifier."""
    bags, width = (segments.a, segments.b), segments.a.shape[1]
    seen = np.asarray((sum(bags) > 0).sum(axis=0)).ravel()
    rare = np.log((1 + len(segments.swapped)) / (1 + seen)).astype(np.float32)
    a, b = (normalize(bag.sqrt() * rare) for bag in bags)
    alike = np.asarray(a.multiply(b).sum(axis=1)).ravel()
    a_size, b_size = (np.asarray(bag.sum(axis=1)).ravel() for bag in bags)
    sizes = (a_size, b_size, a_size + b_size, a_size - b_size)
    ends, begins = (
        [_one_hot(pieces, width) for pieces in edge.T]
        for edge in (segments.last, segments.first)
    )
    form, words = [*ends, *map(_one_hot_bins, sizes)], [a - b, *begins]
    (words if next_sentence else form).append(_one_hot_bins(alike))
    return _joined(form), _joined(words)


def _guessed_right(
    features: sparse.csr_matrix, swapped: np.ndarray
) -> np.ndarray:
    """Return, for each record, whether its predicted label is correct.

    The label is predicted by cross-validation.
    """
    guessed = cross_val_predict(
        # The dual form takes a tenth of the time for such sparse features.
        LogisticRegression(
            C=0.1,
            solver="liblinear",
            dual=True,
            class_weight="balanced",
            tol=0.02,
            random_state=0,
        ),
        features,
        swapped,
        cv=StratifiedKFold(FOLDS, shuffle=True, random_state=0),
    )
    return guessed == swapped


def balanced_accuracy(
    right: np.ndarray, swapped: np.ndarray
) -> tuple[float, list]:
    """Return the mean accuracy over the two labels, and its 95% interval."""
    groups = [right[swapped == label] for label in (False, True)]
    middle = float(np.mean([group.mean() for group in groups]))
    variance = sum(group.var() / len(group) for group in groups)
    half = Z * math.sqrt(variance) / 2
    return round(middle, 4), [round(middle - half, 4), round(middle + half, 4)]


def measure(segments: Segments, next_sentence: bool = False) -> dict:
    """Return the accuracies on unseen records, with 95% intervals.

    `balanced_accuracy`, a mean over the two labels, belongs to the form
    classifier, and `words_balanced_accuracy` to the word classifier. Both are
    None with fewer than `LEAST_OF_A_LABEL` records of either label.
    """
    swapped = segments.swapped
    number, ones = len(swapped), int(swapped.sum())
    sample = {
        "records": number,
        "majority_share": round(max(ones, number - ones) / max(number, 1), 4),
    }
    if min(ones, number - ones) < LEAST_OF_A_LABEL:
        return sample | dict.fromkeys(FIGURES)
    form, words = (
        _guessed_right(features, swapped)
        for features in _features(segments, next_sentence)
    )
    figures = (
        *balanced_accuracy(form, swapped),
        *balanced_accuracy(words, swapped),
    )
    return sample | dict(zip(FIGURES, figures, strict=True))


def probe(
    paths: list[str], vocab_size: int, next_sentence: bool = False
) -> dict:
    """Return the results of `measure` for record files that share no text.

    Args:
      paths: the files, for example those returned by `first_duplicate`.
      vocab_size: V, or 0 if unknown.
      next_sentence: whether A and B may come from different texts.
    """
    sampled = paths[:: max(1, -(-len(paths) // MOST_FILES))]
    examples = []
    for path in sampled:
        share = -(-SAMPLE // len(sampled))
        decoded = map(decode, itertools.islice(tfrecord.read(path), share))
        examples += (x for x in decoded if len(x.segments()[1]))  # has an order
    segments = _segments(examples[:SAMPLE], vocab_size or 1 << 16)
    return measure(segments, next_sentence)


def first_duplicate(metadata: Metadata) -> list[str]:
    """Return the training files of the first pass over the text.

    Files of different passes share text.
    """
    names = [entry.file for entry in metadata.splits[TRAIN]]
    return names[: len(names) // metadata.settings.get("dupe_factor", 1)]


def report(data_dir: str) -> list[str]:
    """Return the lines of a report on a folder of records."""
    metadata = read_metadata(data_dir)
    paths = [files.join(data_dir, x) for x in first_duplicate(metadata)]
    rule = "`data_dir` must contain training records."
    require(paths, rule, data_dir=data_dir)
    next_sentence = metadata.settings.get("random_next_sentence", False)
    found = probe(paths, metadata.vocab_size, next_sentence)
    lines = [f"{name.replace('_', ' '):<26}{x}" for name, x in found.items()]
    interval = found["balanced_interval"]
    if interval and interval[0] > LEAK:
        lines.append(
            "Warning: the ends, lengths and similarity of A and B reveal "
            f"swapped segments in {found['balanced_accuracy']:.1%} of unseen "
            "examples (50% is ideal), so the form reveals the order; see "
            "--compat, and check short documents for titles without a full stop"
        )
    return lines


def main() -> None:
    """Print the accuracies, and a warning if the form reveals the label."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True, help="folder of records")
    try:
        print(*report(parser.parse_args().data_dir), sep="\n")
    except InputError as error:
        parser.exit(1, f"error: {error}\n")


if __name__ == "__main__":
    main()
