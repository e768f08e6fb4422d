"""The official metrics of all tasks.

The results equal scikit-learn's and SciPy's, but need neither package.
The entity metrics equal the output of CoNLL's script `conlleval`, and the
answer scores equal those of the official scripts of SQuAD and CMRC 2018. The
official scripts receive the reference answers and the predicted text for each
question: an unanswerable question has no reference answer, and the prediction
"" means that there is no answer. The scripts report percentages; here, answer
scores are from 0 to 1.
"""

import difflib
import itertools
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from albert_tf.base.packages import need
from albert_tf.tasks.conll import entity_spans


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the share of examples whose labels are all correct."""
    correct = np.equal(labels, predictions).reshape(len(labels), -1)
    return float(correct.all(axis=1).mean())


def negative_mse(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the negative mean squared error; larger values are better."""
    return -float(np.mean(np.subtract(labels, predictions, dtype=float) ** 2))


def class_counts(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Count each class's correct predictions, labels and predictions, [3, C].

    Args:
      labels: class numbers [N], or sets, 0/1 arrays [N, C]. For numbers, C is
        the number of classes that occur.
      predictions: the predicted class numbers or sets.
    """
    if np.ndim(labels) == 2:
        pair = labels, predictions
        correct = np.einsum("nc,nc->c", *pair, dtype=float)
        return np.array([correct, *(np.sum(x, 0, float) for x in pair)])
    classes, inverse = np.unique([labels, predictions], return_inverse=True)
    pair = inverse.reshape(2, -1)
    parts = pair[0, pair[0] == pair[1]], *pair
    counts = [np.bincount(part, minlength=len(classes)) for part in parts]
    return np.array(counts, float)


def f1_of_classes(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return the F1 score of each class; see `class_counts`.

    A class that is neither a label nor a prediction has an F1 score of 0.
    """
    correct, *counts = class_counts(labels, predictions)
    total = sum(counts)
    return np.divide(2 * correct, total, np.zeros(len(total)), where=total > 0)


def binary_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the F1 score of class 1."""
    sets = (np.equal(x, 1)[:, None] for x in (labels, predictions))
    return float(f1_of_classes(*sets)[0])


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the mean F1 score of classes.

    For class numbers [N], the mean includes only classes that occur. For sets
    [N, C], a class that does not occur has an F1 score of 0.
    """
    return float(f1_of_classes(labels, predictions).mean())


def micro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the F1 score of all decisions in sets [N, C]."""
    sets = (np.reshape(x, [-1, 1]) for x in (labels, predictions))
    return float(f1_of_classes(*sets)[0])


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the Pearson correlation, or 0 if an input is constant."""
    pair = [np.asarray(x, float) for x in (labels, predictions)]
    # The mean of equal values may differ from them by a rounding error.
    if not all(x.size and np.ptp(x, axis=0).any() for x in pair):
        return 0.0
    first, second = (x - x.mean(axis=0) for x in pair)
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    return float(np.sum(first * second) / lengths) if lengths else 0.0


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of values [N]; equal values share their mean rank."""
    _, inverse, counts = np.unique(
        values, return_inverse=True, return_counts=True
    )
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the Spearman correlation: the Pearson correlation of ranks."""
    return pearson(ranks(labels), ranks(predictions))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the Matthews correlation for any number of classes.

    The result is 0 if all labels or all predictions are equal. The sums are
    integers, so equal predictions do not differ by rounding. See
    https://doi.org/10.1016/j.compbiolchem.2004.09.006.
    """
    correct, *counts = class_counts(labels, predictions)
    product = math.prod(len(labels) ** 2 - int(x @ x) for x in counts)
    covariance = len(labels) * int(correct.sum()) - int(np.dot(*counts))
    return covariance / math.sqrt(product) if product else 0.0


# Each function accepts (labels [N], predictions [N]). Classes are numbers;
# `f1`, the metric of MRPC and QQP, treats class 1 as positive. Multi-label sets
# are 0/1 arrays [N, C]: accuracy counts correct sets, and micro F1 pools all
# decisions.
METRICS: dict[str, Callable] = {
    "accuracy": accuracy,
    "matthews": matthews,
    "f1": binary_f1,
    "macro_f1": macro_f1,
    "micro_f1": micro_f1,
    "pearson": pearson,
    "spearman": spearman,
    "negative_mse": negative_mse,
}


def retrieval(
    queries: np.ndarray, candidates: np.ndarray, matches: np.ndarray
) -> dict[str, float]:
    """Return retrieval metrics, given each query's match.

    `accuracy` is the share of matches that rank first, and `mrr` is the mean
    reciprocal rank of the matches. In ties, the match ranks last.

    Args:
      queries: float [N, H].
      candidates: float [M, H].
      matches: int [N], the index of each query's match in `candidates`.
    """
    ranks = []
    for query, number in zip(queries, matches, strict=True):
        products = candidates @ query
        ranks.append(np.count_nonzero(products >= products[number]))
    return {
        "accuracy": float(np.equal(ranks, 1).mean()),
        "mrr": float(np.reciprocal(ranks, dtype=float).mean()),
    }


def _entities_in(rows: Sequence[Sequence[str]]) -> set[tuple]:
    """Return a (row, first word, last word, type) tuple for each entity."""
    return {
        (number, *span)
        for number, tags in enumerate(rows)
        for span in entity_spans(tags)
    }


def _precision_recall_f1(labels: set, predictions: set) -> dict[str, float]:
    """Return the precision, recall and F1 score of a predicted set."""
    correct = len(labels & predictions)
    total = len(labels) + len(predictions)
    return {
        "precision": correct / max(len(predictions), 1),
        "recall": correct / max(len(labels), 1),
        "f1": 2 * correct / max(total, 1),
    }


def entities(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return `f1`, `precision` and `recall` of entities, and tag `accuracy`.

    An entity is correct if both its span and its type are correct.
    """
    pairs = [itertools.chain(*rows) for rows in (labels, predictions)]
    equal = [label == guess for label, guess in zip(*pairs, strict=True)]
    scores = _precision_recall_f1(
        _entities_in(labels), _entities_in(predictions)
    )
    return scores | {"accuracy": sum(equal) / max(len(equal), 1)}


def entity_table(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Return a table of precision, recall, F1 and count by entity type.

    The count is the number of entities in the labels. The first row is the
    header, and the last row covers all types.
    """
    sets = [_entities_in(labels), _entities_in(predictions)]
    table = [["type", "precision", "recall", "f1", "entities"]]
    for kind in [*sorted({entity[-1] for s in sets for entity in s}), None]:
        true, predicted = (
            {e for e in s if kind in (e[-1], None)} for s in sets
        )
        scores = [
            f"{x:.4f}" for x in _precision_recall_f1(true, predicted).values()
        ]
        table.append([kind or "all", *scores, str(len(true))])
    return table


def confusion_table(
    labels: Sequence[str], predictions: Sequence[str], classes: Sequence[str]
) -> list[list[str]]:
    """Return the confusion matrix: labels in rows, predictions in columns."""
    counts = Counter(zip(labels, predictions, strict=True))
    return [
        ["label \\ prediction", *classes],
        *(
            [label, *(str(counts[label, predicted]) for predicted in classes)]
            for label in classes
        ),
    ]


ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)

# The marks that CMRC ignores. The official list also contains an ellipsis of
# two characters, but no single character equals it.
CMRC_MARKS = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# An ideograph, or a run of other characters.
PARTS = re.compile("[\u4e00-\u9fa5]|[^\u4e00-\u9fa5]+")
IDEOGRAPH = re.compile("[\u4e00-\u9fa5]")


def normalize_answer(text: str) -> str:
    """Return a text in lower case, without articles or punctuation."""
    text = text.lower().translate(PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", text).split())


def overlap_f1(common: int, predicted: int, expected: int) -> float:
    """Return the F1 score of the token overlap, or 0 if no token is shared."""
    if common == 0:
        return 0.0
    precision, recall = common / predicted, common / expected
    return 2 * precision * recall / (precision + recall)


def token_f1(answer: str, prediction: str) -> float:
    """Return the F1 score of words, as in SQuAD 1.1."""
    gold, guess = (normalize_answer(x).split() for x in (answer, prediction))
    common = Counter(gold) & Counter(guess)
    return overlap_f1(common.total(), len(guess), len(gold))


def token_f1_or_none(answer: str, prediction: str) -> float:
    """Return `token_f1`, or 1 if neither text has a word, as in SQuAD 2.0."""
    words = [normalize_answer(x).split() for x in (answer, prediction)]
    if not all(words):
        return float(words[0] == words[1])
    return token_f1(answer, prediction)


def exact(answer: str, prediction: str) -> float:
    """Return 1 if the normalized texts are equal, otherwise 0."""
    return float(normalize_answer(answer) == normalize_answer(prediction))


def mean(values: Sequence[float]) -> float:
    """Return the mean of values, or 0 if there are none."""
    return sum(values) / len(values) if values else 0.0


def squad1(
    answers: Sequence[Sequence[str]], predictions: Sequence[str]
) -> dict[str, float]:
    """Return SQuAD 1.1's `exact_match` and `f1`, maximized over the answers."""
    pairs = list(zip(answers, predictions, strict=True))
    return {
        "exact_match": mean([max(exact(a, p) for a in x) for x, p in pairs]),
        "f1": mean([max(token_f1(a, p) for a in x) for x, p in pairs]),
    }


def best_number(
    scores: Sequence[float],
    answered: Sequence[bool],
    predictions: Sequence[str],
    null_odds: Sequence[float],
) -> tuple[float, int]:
    """Return the best mean score and the number of questions to answer.

    The questions with the lowest null odds are answered; all other questions
    are predicted to be unanswerable.

    Args:
      scores: each question's score if the prediction is given as the answer.
      answered: whether each question has a reference answer.
      predictions: the best answer to each question.
      null_odds: see `squad2`.
    """
    # The gain from answering each question. Answering an unanswerable question
    # costs 1, unless the text is empty.
    costs = [float(bool(text)) for text in predictions]
    gains = np.where(answered, scores, np.negative(costs))
    order = np.argsort(null_odds, kind="stable")
    unanswered = len(answered) - np.sum(answered)
    totals = np.cumsum([unanswered, *gains[order]])
    number = int(totals.argmax())
    return float(totals[number]) / len(scores), number


def raw_scores(answers: Sequence[Sequence[str]], predictions: Sequence[str]):
    """Return SQuAD 2.0's exact and F1 scores for each question."""
    golds = [[a for a in x if normalize_answer(a)] or [""] for x in answers]
    pairs = list(zip(golds, predictions, strict=True))
    return (
        [max(exact(a, p) for a in gold) for gold, p in pairs],
        [max(token_f1_or_none(a, p) for a in gold) for gold, p in pairs],
    )


def decision_threshold(
    answers: Sequence[Sequence[str]],
    predictions: Sequence[str],
    null_odds: Sequence[float],
) -> float:
    """Return the threshold of the null odds with the best F1.

    The threshold is halfway between the odds of the last question to answer and
    the odds of the next question, so no answer depends on rounding. The
    official threshold equals the odds of the last question. If no question
    should be answered, the threshold is at most 0, and at least 1 below all
    odds. If all questions should be answered, it is at least 0, and at least 1
    above all odds.
    """
    answered = [bool(x) for x in answers]
    scores = raw_scores(answers, predictions)[1]
    _, number = best_number(scores, answered, predictions, null_odds)
    odds = sorted(null_odds)
    if not number:
        return min(0.0, odds[0] - 1.0)
    last = odds[number - 1]
    above = [x for x in odds[number:] if x > last]
    return (last + above[0]) / 2 if above else max(0.0, last + 1.0)


def squad2(
    answers: Sequence[Sequence[str]],
    predictions: Sequence[str],
    null_odds: Sequence[float],
    threshold: float | None = None,
) -> dict[str, float]:
    """Return the metrics of SQuAD 2.0.

    Args:
      answers: the answers to each question.
      predictions: the best answer to each question, assuming that it has one.
      null_odds: scores that are higher for less answerable questions.
      threshold: the null odds above which there is no answer; None means
        `decision_threshold`.
    """
    answered = np.array([bool(x) for x in answers])
    if threshold is None:
        threshold = decision_threshold(answers, predictions, null_odds)
    predicts_none = np.array(null_odds) > threshold
    all_questions = np.ones_like(answered)
    kinds = {"": all_questions, "HasAns_": answered, "NoAns_": ~answered}
    raw = raw_scores(answers, predictions)
    metrics = {}
    for name, scores in zip(("exact", "f1"), raw, strict=True):
        final = np.where(predicts_none, ~answered, scores)
        for kind, chosen in kinds.items():
            if chosen.any():
                metrics[f"{kind}{name}"] = mean(final[chosen].tolist())
        best, number = best_number(scores, answered, predictions, null_odds)
        # The odds of the last question to answer, as in the official search.
        last = sorted(null_odds)[number - 1] if number else 0.0
        metrics |= {f"best_{name}": best, f"best_{name}_thresh": last}
    return metrics


def latin_tokenizer():
    """Return NLTK's word tokenizer, with which CMRC splits Latin text.

    The tokenizer splits sentences without language data, which NLTK would have
    to download; the abbreviations in these data would not change the result.
    """
    need("Scoring CMRC 2018", "nltk")
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    words, sentences = NLTKWordTokenizer(), PunktSentenceTokenizer()

    def tokenize(text: str) -> list[str]:
        return [
            word
            for sentence in sentences.tokenize(text)
            for word in words.tokenize(sentence)
        ]

    return tokenize


def without_marks(text: str) -> str:
    """Return a text normalized for CMRC's exact match."""
    return "".join(c for c in text.lower().strip() if c not in CMRC_MARKS)


def cmrc_tokens(text: str, tokenize: Callable) -> list[str]:
    """Return a text's tokens: single ideographs, and the words between them."""
    tokens: list[str] = []
    for part in PARTS.findall(without_marks(text)):
        tokens += [part] if IDEOGRAPH.match(part) else tokenize(part)
    return tokens


def longest_run(first: list[str], second: list[str]) -> int:
    """Return the length of the longest run of tokens that both lists share."""
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    return matcher.find_longest_match().size


def cmrc(
    answers: Sequence[Sequence[str]], predictions: Sequence[str]
) -> dict[str, float]:
    """Return CMRC 2018's `exact_match`, `f1` and their `average`."""
    tokenize = latin_tokenizer()

    def run_f1(answer: str, prediction: str) -> float:
        gold, guess = (cmrc_tokens(x, tokenize) for x in (answer, prediction))
        return overlap_f1(longest_run(gold, guess), len(guess), len(gold))

    pairs = list(zip(answers, predictions, strict=True))
    f1 = mean([max(run_f1(a, p) for a in x) for x, p in pairs])
    em = mean(
        [float(without_marks(p) in map(without_marks, x)) for x, p in pairs]
    )
    return {"exact_match": em, "f1": f1, "average": (em + f1) / 2}
