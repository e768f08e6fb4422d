"""The leak probe: can a bag of words tell whether segments are swapped?

Sentence order should be learnt from how a text goes on. If the words alone
give the label away, because the segments of swapped examples come from
different texts or because one label is far more frequent, a model learns
that instead. The probe is a linear classifier of the words by which A and B
differ and of how alike and how long A and B are, measured on records that it
has not seen. 50 % is right.

Glossary: n records, T tokens, V vocabulary.
"""

import dataclasses
import itertools
import math

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.preprocessing import normalize

from albert_tf import files
from albert_tf.records import framing
from albert_tf.records.decoding import Example, decode

# Records that are looked at, from files that share no text.
SAMPLE = 8192
MOST_FILES = 64
FOLDS = 5

# A rarer label cannot be learnt from.
LEAST_OF_A_LABEL = 10 * FOLDS

# Intervals are of 95 %.
Z = 1.959964

# Likeness and lengths are seen in so many steps.
BINS = 10


@dataclasses.dataclass(frozen=True)
class Bags:
    """The words of segments, counted."""

    a: sparse.csr_array  # [n, V]
    b: sparse.csr_array  # [n, V]
    swapped: np.ndarray  # [n] bool


def _bag(rows: list[np.ndarray], width: int) -> sparse.csr_array:
    """Count the ids of each row; ids may be beyond a vocabulary unknown."""
    ends = np.cumsum([0] + [len(row) for row in rows])
    ids = np.concatenate([np.zeros(0, np.int64), *rows]) % width
    counts = sparse.csr_array(
        (np.ones(len(ids), np.float32), ids, ends), (len(rows), width)
    )
    counts.sum_duplicates()
    return counts


def _bags(examples: list[Example], width: int) -> Bags:
    segments = []
    for segment in (0, 1):
        rows = []
        for example in examples:
            ids = example.originals()[example.segment_ids == segment]
            rows.append(ids[1 - segment : -1])  # without [CLS] and [SEP]
        segments.append(_bag(rows, width))
    swapped = np.array([example.swapped for example in examples], bool)
    return Bags(*segments, swapped)


def _one_hot_bins(values: np.ndarray) -> sparse.csr_array:
    """Return which of `BINS` equally full bins each value falls into."""
    edges = np.quantile(values, np.arange(1, BINS) / BINS)
    found = np.searchsorted(edges, values)
    ends = np.arange(len(values) + 1)
    shape = (len(values), BINS)
    return sparse.csr_array((np.ones(len(values)), found, ends), shape)


def _features(bags: Bags) -> sparse.csr_matrix:
    """Return the words that A has more of, likeness and lengths in bins."""
    seen = np.asarray(((bags.a + bags.b) > 0).sum(axis=0)).ravel()
    rare = np.log((1 + len(bags.swapped)) / (1 + seen)).astype(np.float32)
    a, b = (normalize(bag.sqrt() * rare) for bag in (bags.a, bags.b))
    alike = np.asarray(a.multiply(b).sum(axis=1)).ravel()
    lengths = [np.asarray(x.sum(axis=1)).ravel() for x in (bags.a, bags.b)]
    dense = [alike, *lengths, lengths[0] + lengths[1]]
    bins = [_one_hot_bins(column) for column in dense]
    joined = sparse.hstack([a - b, *bins], format="csr")
    # liblinear takes no wider indices.
    narrow = (joined.indices.astype("i4"), joined.indptr.astype("i4"))
    return sparse.csr_matrix((joined.data, *narrow), joined.shape)


def wilson(right: int, number: int) -> tuple[float, float]:
    """Return the interval of a share, by Wilson's formula."""
    share, z2 = right / number, Z * Z
    middle = share + z2 / (2 * number)
    half = Z * math.sqrt(share * (1 - share) / number + z2 / (4 * number**2))
    scale = 1 + z2 / number
    return (middle - half) / scale, (middle + half) / scale


def _balanced(right: np.ndarray, swapped: np.ndarray) -> tuple[float, float]:
    """Return the mean accuracy of the two labels, and half its interval."""
    shares = [right[swapped == label].mean() for label in (False, True)]
    spread = [
        share * (1 - share) / np.sum(swapped == label)
        for label, share in zip((False, True), shares, strict=True)
    ]
    return float(np.mean(shares)), Z * math.sqrt(sum(spread)) / 2


def measure(bags: Bags) -> dict:
    """Return how well unseen labels are told, with 95 % intervals.

    `accuracy` counts every record alike, so that an unfair coin shows;
    `balanced_accuracy` is the mean over the two labels. Both are null for
    fewer than `LEAST_OF_A_LABEL` records of either label.
    """
    swapped = bags.swapped
    number, ones = len(swapped), int(swapped.sum())
    found = {
        "records": number,
        "majority_share": round(max(ones, number - ones) / max(number, 1), 4),
        "accuracy": None,
        "accuracy_interval": None,
        "balanced_accuracy": None,
        "balanced_interval": None,
    }
    if min(ones, number - ones) < LEAST_OF_A_LABEL:
        return found
    guessed = cross_val_predict(
        LogisticRegression(
            C=0.1, solver="liblinear", class_weight="balanced", tol=0.02
        ),
        _features(bags),
        swapped,
        cv=StratifiedKFold(FOLDS, shuffle=True, random_state=0),
    )
    right = guessed == swapped
    interval = wilson(int(right.sum()), number)
    balanced, half = _balanced(right, swapped)
    return found | {
        "accuracy": round(float(right.mean()), 4),
        "accuracy_interval": [round(end, 4) for end in interval],
        "balanced_accuracy": round(balanced, 4),
        "balanced_interval": [
            round(balanced - half, 4),
            round(balanced + half, 4),
        ],
    }


def _first_records(path: str, count: int) -> list[Example]:
    return list(map(decode, itertools.islice(framing.read(path), count)))


def probe(data_dir: str, names: list[str], vocab_size: int) -> dict:
    """Probe files of records that share no text; see `measure`.

    Args:
      data_dir: where the files are.
      names: their names, for example those of the first duplicate.
      vocab_size: V; 0 if it is not known.
    """
    chosen = names[:: max(1, -(-len(names) // MOST_FILES))]
    examples = []
    for name in chosen:
        share = -(-SAMPLE // len(chosen))
        examples += _first_records(files.join(data_dir, name), share)
    return measure(_bags(examples[:SAMPLE], vocab_size or 1 << 16))
