"""Metrics match scikit-learn, SciPy and the official scripts.

Undefined metrics are 0.
"""

import collections
import functools
import re
import string
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from properties import examples
from reference import conlleval
from scipy import stats
from sklearn import metrics as sklearn_metrics

from albert_tf.tasks import metrics
from albert_tf.tasks.conll import entity_spans
from albert_tf.tasks.minimal_pairs import Pair, accuracy, summarize
from albert_tf.tasks.numerics import sigmoid, softmax

CLASSES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30
)


def by_hand(labels, guesses, kind):
    """Return a class's true positives, false positives and false negatives."""
    both = list(zip(labels, guesses, strict=True))
    return (
        both.count((kind, kind)),
        sum(g == kind != x for x, g in both),
        sum(x == kind != g for x, g in both),
    )


def f1_by_hand(right, wrong, missed):
    """Return 2 TP / (2 TP + FP + FN), or 0 if all three counts are 0."""
    return 2 * right / max(2 * right + wrong + missed, 1)


@examples(20)
@given(pairs=CLASSES)
@example(pairs=[(0, 0)])
@example(pairs=[(1, 0), (0, 1)])
def test_class_metrics_are_their_definitions(pairs):
    """Accuracy, F1 and Matthews' correlation equal their formulas."""
    labels, guesses = map(np.array, zip(*pairs, strict=True))
    names = ("accuracy", "macro_f1", "matthews")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {n: metrics.METRICS[n](labels, guesses) for n in names}
    assert found["accuracy"] == pytest.approx(np.mean(labels == guesses))
    kinds = {*labels.tolist(), *guesses.tolist()}
    every = [f1_by_hand(*by_hand(labels, guesses, k)) for k in kinds]
    assert found["macro_f1"] == pytest.approx(np.mean(every))
    x, y = (np.eye(4)[values] for values in (labels, guesses))
    spread = [
        np.sum(a * b) - np.sum(a.mean(0) * b.sum(0))
        for a, b in ((x, y), (x, x), (y, y))
    ]
    norm = np.sqrt(spread[1] * spread[2])
    wanted = spread[0] / norm if norm > 1e-9 else 0.0
    assert found["matthews"] == pytest.approx(wanted, abs=1e-9)
    binary = metrics.METRICS["f1"](labels % 2, guesses % 2)
    counts = by_hand(labels % 2, guesses % 2, 1)
    assert binary == pytest.approx(f1_by_hand(*counts))


def test_metrics_of_many_classes_need_little_memory():
    """The memory of a metric does not grow with examples times classes."""
    labels = np.arange(3000)
    guesses = np.roll(labels, 1)
    guesses[:1500] = labels[:1500]
    tracemalloc.start()
    values = [
        metrics.METRICS[x](labels, guesses) for x in ("macro_f1", "matthews")
    ]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert values == pytest.approx([0.5, 0.5], abs=1e-3)
    assert peak < 1e6


def test_metrics_of_sets_are_scikit_learns():
    """Metrics of class sets match scikit-learn."""
    theirs = sklearn_metrics
    f1 = functools.partial(theirs.f1_score, zero_division=0.0)
    functions = {
        "accuracy": theirs.accuracy_score,
        "macro_f1": functools.partial(f1, average="macro"),
        "micro_f1": functools.partial(f1, average="micro"),
        "negative_mse": lambda a, b: -theirs.mean_squared_error(a, b),
    }
    rng = np.random.default_rng(0)
    for number in (2, 2, 2, 5, 5, 5):
        labels, found = rng.integers(2, size=[2, 9, number])
        labels[:, 0] = found[:, 0] = 0  # a class without examples
        for name, function in functions.items():
            value = metrics.METRICS[name](labels, found)
            assert value == pytest.approx(function(labels, found), rel=1e-12)


NUMBERS = st.integers(-5, 5) | st.floats(-1e6, 1e6, width=32)


@examples(20)
@given(pairs=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12))
@example(pairs=[(1, 2)])
@example(pairs=[(1, 2), (1, 3)])
@example(pairs=[(1, 2), (2, 2), (3, 2)])
def test_correlations_are_numbers(pairs):
    """Correlations equal NumPy's, and are 0 where they are undefined."""
    labels, guesses = np.array(pairs, float).T
    assert metrics.METRICS["negative_mse"](labels, guesses) == pytest.approx(
        -np.mean((labels - guesses) ** 2)
    )
    ranks = [stats.rankdata(x) for x in (labels, guesses)]
    for name, values in (("pearson", (labels, guesses)), ("spearman", ranks)):
        found = metrics.METRICS[name](labels, guesses)
        assert -1 - 1e-9 <= found <= 1 + 1e-9
        centered = [x - x.mean() for x in values]
        sizes = [
            np.abs(x).max() / max(np.abs(v).max(), 1e-300)
            for x, v in zip(centered, values, strict=True)
        ]
        if min(sizes) == 0.0:
            assert found == 0.0
        elif min(sizes) > 1e-4:
            x, y = (v / np.linalg.norm(v) for v in centered)
            assert found == pytest.approx(x @ y, abs=1e-4)


def test_squares_of_large_errors_are_finite():
    """The mean of squares is computed in float64, even for float32 numbers."""
    labels, guesses = np.float32([[1e25, 2.0], [0.0, 2.0]])
    found = metrics.METRICS["negative_mse"](labels, guesses)
    assert found == pytest.approx(-5e49)


def test_matthews_does_not_round():
    """Perfect predictions score exactly 1; predictions at chance, exactly 0.

    Otherwise, rounding would decide which of two such evaluations is better.
    """
    for number in (3, 7, 10, 49, 100):
        labels = np.arange(number) % 3
        assert metrics.matthews(labels, labels) == 1.0
        constant = np.full(number, 5)
        assert metrics.matthews(labels, constant) == 0.0
    # As many of the predictions as of all labels are of class 1.
    for each in (1, 3, 33):
        labels = np.repeat([0, 0, 1, 0, 0, 1, 0, 0, 1], each)
        guesses = np.repeat([0, 0, 0, 1, 1, 1, 2, 2, 2], each)
        assert metrics.matthews(labels, guesses) == 0.0


@pytest.mark.parametrize("name", ["pearson", "spearman", "matthews"])
def test_a_constant_has_no_correlation(name):
    """A constant has the correlation 0, even if its mean is rounded.

    The mean of three values of 0.1 is larger than 0.1.
    """
    for value in (0.1, -0.7, 2):
        constant, other = np.full(3, value), np.array([1, 2, 4])
        for pair in ((constant, constant), (constant, other)):
            assert metrics.METRICS[name](*pair) == 0.0
            assert metrics.METRICS[name](*pair[::-1]) == 0.0


TAGS = ["O", *(f"{x}-{kind}" for x in "BIESMLUW" for kind in ("P", "Q-R"))]
TAG_ROWS = st.lists(
    st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS))),
    max_size=5,
)


@examples(30)
@given(rows=TAG_ROWS)
@example(rows=[])
@example(rows=[[]])
def test_entities_are_those_of_conlleval(rows):
    """Chunks and F1 agree for tags in any order and scheme, even for none."""
    labels, guesses = (
        [[pair[i] for pair in row] for row in rows] for i in (0, 1)
    )
    for row in (*labels, *guesses):
        spans = {tuple(span) for span in entity_spans(row)}
        assert spans == conlleval.chunks(row), row
    found = metrics.entities(labels, guesses)
    assert found["f1"] == pytest.approx(conlleval.f1(labels, guesses))
    pairs = [pair for row in rows for pair in row]
    same = sum(x == y for x, y in pairs)
    assert found["accuracy"] == pytest.approx(same / max(len(pairs), 1))
    gold, guess = (
        {(n, *c) for n, row in enumerate(tags) for c in conlleval.chunks(row)}
        for tags in (labels, guesses)
    )
    for name, sought in (("precision", guess), ("recall", gold)):
        share = len(gold & guess) / max(len(sought), 1)
        assert found[name] == pytest.approx(share)
    table = metrics.entity_table(labels, guesses)
    assert table[-1][3] == f"{found['f1']:.4f}"


def test_table_of_entities():
    """A table lists scores and counts for each entity type and in total."""
    table = metrics.entity_table([["B-A", "B-B"]], [["B-A", "O"]])
    assert table[0] == ["type", "precision", "recall", "f1", "entities"]
    assert table[1] == ["A", "1.0000", "1.0000", "1.0000", "1"]
    assert table[2] == ["B", "0.0000", "0.0000", "0.0000", "1"]
    assert table[3] == ["all", "1.0000", "0.5000", "0.6667", "2"]


# The scripts evaluate-v1.1.py and evaluate-v2.0.py, written from their rules.
# https://rajpurkar.github.io/SQuAD-explorer/


def official_normal(text):
    """Lowercase a text; remove punctuation, articles and double spaces."""
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def official_f1(gold, guess, version):
    """Return F1 over tokens; in version 2, 1 if both texts are empty."""
    gold, guess = official_normal(gold).split(), official_normal(guess).split()
    if version == 2 and (not gold or not guess):
        return float(gold == guess)
    common = collections.Counter(gold) & collections.Counter(guess)
    same = sum(common.values())
    if not same:
        return 0.0
    precision, recall = same / len(guess), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def official_raw(golds, guess, version):
    """Return the best exact match and the best F1 over the answers."""
    if version == 2:
        golds = [gold for gold in golds if official_normal(gold)] or [""]
    exact = [float(official_normal(x) == official_normal(guess)) for x in golds]
    return max(exact), max(official_f1(x, guess, version) for x in golds)


def official_best(scores, has_answer, guesses, odds):
    """Return the best score and its threshold, as the official search does."""
    right = sum(not has for has in has_answer)
    best, threshold = right, 0.0
    for i in sorted(range(len(odds)), key=lambda i: odds[i]):
        if has_answer[i]:
            right += scores[i]
        else:
            right += -1 if guesses[i] else 0
        if right > best:
            best, threshold = right, odds[i]
    return best / len(scores), threshold


WORD = st.sampled_from(
    ["a", "The", "an", "cat", "cat.", "cats", "-", "É", " ", ""]
)
ANSWER = st.lists(WORD, max_size=4).map(" ".join) | st.text(max_size=4)
GOLDS = st.lists(ANSWER.filter(bool), min_size=1, max_size=3)
ODDS = st.integers(-3, 3) | st.floats(-9, 9)


@examples(20)
@given(asked=st.lists(st.tuples(GOLDS, ANSWER), max_size=5))
@example(asked=[])
@example(asked=[(["–a–"], "–")])  # an article between other characters
def test_squad1_is_the_official_script(asked):
    """Exact match and F1 are the means of the best scores over answers."""
    golds, guesses = [x for x, _ in asked], [x for _, x in asked]
    raw = [official_raw(*pair, version=1) for pair in asked]
    exact, f1 = np.mean(raw, axis=0) if raw else (0.0, 0.0)
    found = metrics.squad1(golds, guesses)
    assert found == pytest.approx({"exact_match": exact, "f1": f1})


@examples(30)
@given(
    asked=st.lists(
        st.tuples(GOLDS | st.just([]), ANSWER, ODDS), min_size=1, max_size=6
    ),
    threshold=ODDS,
)
@example(asked=[([], "", 0.0)], threshold=0.0)
@example(asked=[(["a"], "", 0.0)], threshold=0.0)
def test_squad2_is_the_official_script(asked, threshold):
    """Scores at a threshold, and the best scores, equal the official search.

    The threshold that we choose has the best F1.
    """
    golds, guesses, odds = map(list, zip(*asked, strict=True))
    has = [bool(x) for x in golds]
    raw = [official_raw(*x[:2], version=2) for x in asked]
    found = metrics.squad2(golds, guesses, odds, threshold)
    ours = metrics.squad2(golds, guesses, odds)
    for i, name in enumerate(("exact", "f1")):
        scores = [pair[i] for pair in raw]
        final = [
            float(not h) if o > threshold else s
            for s, h, o in zip(scores, has, odds, strict=True)
        ]
        assert found[name] == pytest.approx(np.mean(final))
        for kind, wanted in (("HasAns", True), ("NoAns", False)):
            part = [s for s, h in zip(final, has, strict=True) if h == wanted]
            assert (f"{kind}_{name}" in found) == bool(part)
            if part:
                assert found[f"{kind}_{name}"] == pytest.approx(np.mean(part))
        best, at = official_best(scores, has, guesses, odds)
        assert found[f"best_{name}"] == pytest.approx(best)
        again = official_best(scores, has, guesses, odds)[0]
        assert ours[f"best_{name}"] == pytest.approx(again)
        if len({*odds}) == len(odds):
            assert found[f"best_{name}_thresh"] == at
    if len({*odds}) == len(odds):
        assert ours["f1"] == pytest.approx(ours["best_f1"])


@pytest.mark.parametrize(
    ("answers", "odds", "expected"),
    [
        (["x", "x", ""], [-4.0, -3.0, 1.0], -1.0),
        (["x", "x", ""], [2.0, 3.0, 5.0], 4.0),
        (["x", "", "", ""], [-3.0, -3.0, 1.0, 2.0], -1.0),  # a tie
        (["x y", ""], [-4.0, 1.0], -1.5),  # not exact, but F1 is 2 / 3
        (["x", "x"], [-9.0, -8.0], 0.0),
        (["x", "x"], [5.0, 6.0], 7.0),
        (["", "b"], [3.0, 4.0], 0.0),
        # One of 49 questions has no answer; 1 / 49 * 49 is not 1.
        (["", *"b" * 48], [-5.0] * 49, -6.0),
    ],
)
def test_the_threshold_keeps_its_distance(answers, odds, expected):
    """A threshold is halfway between two odds, or at least 1 from all odds."""
    answers = [[text] if text else [] for text in answers]
    predictions = ["x"] * len(answers)
    assert metrics.decision_threshold(answers, predictions, odds) == expected


def test_cmrc():
    """CMRC compares single ideographs, and other text word by word."""
    pytest.importorskip("nltk")
    found = metrics.cmrc(
        [["1990年，北京"], ["他在Windows 7上"], ["好"]],
        ["1990年 北京", "windows 7上", "坏"],
    )
    # Exact matches ignore punctuation, but not spaces. The longest common run
    # is ["1990", "年", "北", "京"].
    assert found["exact_match"] == 0.0
    # 3 of 3 predicted and 3 of 5 expected tokens: 他 在 windows 7 上.
    assert found["f1"] == pytest.approx((1.0 + 2 * 0.6 / 1.6 + 0) / 3)
    assert found["average"] == pytest.approx(found["f1"] / 2)
    exact = metrics.cmrc([["好", "《书》，A-b"]], ["书ab"])
    assert exact["exact_match"] == 1.0
    # Frequent tokens count in long answers, too.
    assert metrics.longest_run(["中", "国"] * 150, ["国", "中"] * 150) == 299
    # A full stop is a token at the end of every sentence.
    tokens = metrics.cmrc_tokens("走 go on. stop", metrics.latin_tokenizer())
    assert tokens == ["走", "go", "on", ".", "stop"]


@examples(30)
@given(right=st.lists(st.booleans(), min_size=1, max_size=40))
def test_shares_have_wilson_intervals(right):
    """An interval has the bounds of Wilson's formula, within 0 and 1."""
    n, p, z = len(right), np.mean(right), stats.norm.ppf(0.975)
    middle = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    found = accuracy(right)
    assert found["pairs"] == n
    bounds = found["low"], found["accuracy"], found["high"]
    wanted = max(middle - half, 0), p, min(middle + half, 1)
    assert bounds == pytest.approx(wanted, abs=6e-6)


RIGHT = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.booleans()),
    min_size=1,
)


@examples(30)
@given(rows=RIGHT)
def test_minimal_pairs_are_averaged_over_paradigms(rows):
    """Each group has the share of its pairs; the mean is over paradigms."""
    pairs = [Pair("g", "b", name, kind) for kind, name, _ in rows]
    found = summarize(pairs, [right for *_, right in rows])
    for column, key in ((1, "paradigm"), (0, "phenomenon")):
        groups = collections.defaultdict(list)
        for row in rows:
            groups[row[column]].append(row[2])
        shares = {name: x["accuracy"] for name, x in found[key].items()}
        wanted = {name: np.mean(x) for name, x in groups.items()}
        assert shares == pytest.approx(wanted, abs=6e-6)
        if key == "paradigm":
            mean = np.mean([*wanted.values()])
            assert found["accuracy"] == pytest.approx(mean, abs=2e-5)


LOGITS = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=6)


@examples(30)
@given(logits=LOGITS)
@example(logits=[1e4, -1e4])
def test_probabilities_of_any_logits(logits):
    """Probabilities are shares of 1 in the order of the logits."""
    logits = np.array(logits, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shares, alone = softmax(logits), sigmoid(logits)
    assert shares.sum() == pytest.approx(1.0, abs=1e-5)
    order = np.argsort(logits, kind="stable")
    for values in (shares, alone):
        assert ((values >= 0) & (values <= 1)).all()
        assert (np.diff(values[order]) >= 0).all()
    expected = 1 / (1 + np.exp(-np.clip(logits.astype(float), -700, 700)))
    np.testing.assert_allclose(alone, expected, atol=1e-6)


VECTORS = st.lists(
    st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=6
)


@examples(30)
@given(queries=VECTORS, candidates=VECTORS, data=st.data())
def test_retrieval_ranks_ties_last(queries, candidates, data):
    """Accuracy and MRR use the last rank among equal products."""
    numbers = data.draw(
        st.lists(
            st.integers(0, len(candidates) - 1),
            min_size=len(queries),
            max_size=len(queries),
        )
    )
    queries, candidates = np.array(queries, float), np.array(candidates, float)
    found = metrics.retrieval(queries, candidates, np.array(numbers))
    ranks = []
    for query, number in zip(queries, numbers, strict=True):
        products = [float(query @ x) for x in candidates]
        order = sorted(
            range(len(products)), key=lambda i: (-products[i], i == number)
        )
        ranks.append(order.index(number) + 1)
    assert found["accuracy"] == pytest.approx(np.mean(np.equal(ranks, 1)))
    assert found["mrr"] == pytest.approx(np.mean(1 / np.array(ranks)))


NAMES = st.sampled_from(["x", "y", "a\tb", ""])


@examples(20)
@given(pairs=st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=20))
def test_confusions_are_counted(pairs):
    """Each cell counts its pairs, in the order of classes."""
    classes = ["y", "", "x", "a\tb"]
    labels, guesses = zip(*pairs, strict=True)
    table = metrics.confusion_table(labels, guesses, classes)
    assert table[0][1:] == [row[0] for row in table[1:]] == classes
    for label, row in zip(classes, table[1:], strict=True):
        assert row[1:] == [str(pairs.count((label, x))) for x in classes]
    right = sklearn_metrics.accuracy_score(labels, guesses)
    diagonal = sum(int(table[i + 1][i + 1]) for i in range(len(classes)))
    assert diagonal / len(pairs) == pytest.approx(right)
