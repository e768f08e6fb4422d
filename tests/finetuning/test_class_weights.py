"""Weights for unbalanced classes equal weights computed by hand."""

import collections
import dataclasses
import os

import keras
import numpy as np
import pytest
import tiny
import tiny_tasks
from scipy.special import log_expit, log_softmax
from tiny_runs import build, eagerly, predictions, run

from albert_tf.base.errors import InputError
from albert_tf.finetuning.finetuning_setup import Job, Split
from albert_tf.finetuning.finetuning_trainer import prepare_jobs
from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.finetuning.soft_targets import objective_of, with_class_weights
from albert_tf.tasks.batches import evaluation_batches, training_batches
from albert_tf.tasks.classification import Example
from albert_tf.tasks.registry import find
from albert_tf.tasks.tagged_words import Sentence
from albert_tf.training.history import History
from albert_tf.training.trainer import cut

CONFIG = dataclasses.replace(tiny.SHALLOW, initializer_range=0.5)
TEXTS = [
    " ".join(tiny_tasks.FILLERS[i : i + 2 + i % 4]) for i in range(0, 16, 2)
]
GOOD = "good good bad good good good bad good".split()
SETS = ["xz", "z", "yz", "xyz", "z", "yz", "yz", "z"]
TAGS = ["B-A" if i % 5 == 0 else "O" for i in range(99)]
SHARE = 0.3  # label smoothing


def examples_of(kind):
    """Return eight different examples of a kind of task."""
    if kind == "token_classification":
        words = [tuple(text.split()) for text in TEXTS]
        return [
            Sentence(w, tuple(TAGS[len(w) : 2 * len(w)]), "f", 1) for w in words
        ]
    labels = GOOD if kind == "classification" else map(tuple, SETS)
    rows = zip(TEXTS, labels, strict=True)
    return [Example(str(i), text, "", x) for i, (text, x) in enumerate(rows)]


def expected_loss(kind, examples, rows):
    """Return the mean of smoothed losses, with weights computed by hand.

    Args:
      kind: the kind of task.
      examples: the labeled examples.
      rows: the logits of each example, [T, C] or [C].
    """
    if kind == "multilabel":
        yes = np.array([[c in e.label for c in "xyz"] for e in examples])
        # Of eight examples, two have class x, four have y, and all have z.
        weights = np.where(yes, [2, 1, 1], [8 / 12, 1, 1])
        target = (1 - SHARE) * yes + SHARE / 2
        rows = np.stack(rows)
        loss = -target * log_expit(rows) - (1 - target) * log_expit(-rows)
        return (weights * loss).sum() / weights.sum()
    if kind == "classification":
        labels, logits = GOOD, rows
        classes, weight = ["bad", "good"], {"bad": 2.0, "good": 8 / 12}
    else:
        labels = [tag for sentence in examples for tag in sentence.tags]
        # After [CLS], every word is one piece.
        logits = [
            row[i + 1]
            for sentence, row in zip(examples, rows, strict=True)
            for i in range(len(sentence.words))
        ]
        counts = collections.Counter(labels)
        classes = ["O", "B-A", "I-A"]  # the last class does not occur
        weight = {t: len(labels) / (2 * n) for t, n in counts.items()}
    log_p = log_softmax(np.stack(logits), axis=-1)
    weights = np.array([weight[label] for label in labels])
    hard = -log_p[np.arange(len(labels)), [classes.index(x) for x in labels]]
    loss = (1 - SHARE) * hard - SHARE * log_p.mean(-1)
    return (weights * loss).sum() / weights.sum()


def job_of(kind, words, entries=("balanced",)):
    """Return a job with class weights."""
    examples = examples_of(kind)
    task = find(kind).updated(max_seq_length=12, classifier_dropout=0.0)
    task = task.fitted(examples)
    split = Split("train", examples, task.features(examples, words))
    job = Job(task, CONFIG, words, (split,), (), ())
    return with_class_weights(job, entries)


KINDS = ("classification", "multilabel", "token_classification")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_weighted(kind, words):
    """The weighted loss over four micro-batches equals a loss computed by hand.

    Accuracy is not weighted: labels count equally in its sums.
    """
    job = job_of(kind, words)
    examples, features = job.train[0].examples, job.train[0].features
    keras.utils.set_random_seed(1)
    model = job.task.build_model(CONFIG, "float32")
    ordered = next(iter(evaluation_batches(features, 8)))
    rows = job.task.objective.outputs(model, ordered)["logits"].numpy()
    objective = objective_of(job.task, RecipeConfig(label_smoothing=SHARE))
    batch = next(iter(training_batches(features, batch_size=8, seed=1)))
    pieces = [cut(batch, 4, i) for i in range(4)]
    both = [objective.losses(model, x, None) for x in pieces]
    sums = [losses["task"] for losses, _ in both]
    weights = [objective.weights(x)["task"] for x in pieces]
    found = float(sum(sums) / sum(weights))
    expected = expected_loss(kind, examples, rows)
    assert found == pytest.approx(expected, rel=1e-5)
    one = float(sums[0] / weights[0])
    assert one != pytest.approx(expected, rel=1e-3)
    hits, counts = np.array([metrics["accuracy"] for _, metrics in both]).T
    labels = features.token_arrays.get("labels", np.zeros(8))
    assert counts.sum() == np.sum(labels >= 0)
    np.testing.assert_allclose(hits, np.round(hits), atol=1e-6)
    assert 0 < hits.sum() < counts.sum()


@pytest.mark.parametrize(
    ("kind", "entries", "weights", "printed"),
    [
        (
            "classification",
            ("balanced",),
            {"bad": 2, "good": 8 / 12},
            "bad 2, good 0.6667",
        ),
        (
            "classification",
            ("good:3.5",),
            {"bad": 1, "good": 3.5},
            "bad 1, good 3.5",
        ),
        (
            "multilabel",
            ("balanced",),
            # Pairs of weights without and with the class; z is in every set.
            {"x": (8 / 12, 2), "y": (1, 1), "z": (1, 1)},
            "x 2 (no 0.6667), y 1 (no 1), z 1 (no 1)",
        ),
        (
            "multilabel",
            ("y:3.5",),
            {"x": (1, 1), "y": (1, 3.5), "z": (1, 1)},
            "x 1 (no 1), y 3.5 (no 1), z 1 (no 1)",
        ),
        (
            "token_classification",
            ("balanced",),
            # Of 21 words, 18 have the tag O, and three have B-A.
            {"O": 21 / 36, "B-A": 21 / 6, "I-A": 1},
            "O 0.5833, B-A 3.5, I-A 1",
        ),
        (
            "token_classification",
            ("B-A:0.5",),
            {"O": 1, "B-A": 0.5, "I-A": 1},
            "O 1, B-A 0.5, I-A 1",
        ),
    ],
)
def test_each_label_has_a_weight(
    kind, entries, weights, printed, words, capsys
):
    """Balanced weights are n / (k n_c), as in scikit-learn.

    There are n labels, of which n_c are of class c, and k classes occur. Other
    classes, and classes without a named weight, have weight 1; tokens without
    a tag have weight 0.
    """
    job = job_of(kind, words, entries)
    assert capsys.readouterr().out == f"Class weights: {printed}\n"
    features, examples = job.train[0].features, job.train[0].examples
    if kind == "token_classification":
        found = features.token_arrays["label_weights"]
        labels = features.token_arrays["labels"]
        assert not found[labels < 0].any()
        found = found[labels >= 0]
        expected = [weights[tag] for e in examples for tag in e.tags]
        assert features.fills["label_weights"] == 0
    else:
        found = features.arrays["label_weights"]
        expected = [
            [weights[c][c in e.label] for c in "xyz"]
            if kind == "multilabel"
            else weights[e.label]
            for e in examples
        ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("entries", "weights"),
    [
        (("balanced",), {"good": 16 / 24, "bad": 16 / 8}),
        pytest.param(
            ("bad:3.5",), {"good": 1.0, "bad": 3.5}, marks=pytest.mark.slow
        ),
    ],
)
@eagerly()
def test_a_run_weighs_its_training_labels_alone(
    pretrained_dir, tmp_path, entries, weights
):
    """`class_weights` weights the training loss, not the evaluation loss."""
    labels = ["good"] * 3 + ["bad"]
    texts = [f"the river {word}" for word in "a and on in under".split()]
    texts = [texts[i % 5] + " the" * (i // 5) for i in range(16)]
    rows = [(text, labels[i % 4]) for i, text in enumerate(texts)]
    path = tiny_tasks.write_tsv(tmp_path / "t.tsv", ("text", "label"), *rows)
    output = str(tmp_path / "output")
    metrics = run(
        task="classification",
        model_dir=pretrained_dir,
        output_dir=output,
        train_file=path,
        eval_file=path,
        do_train=True,
        do_eval=True,
        num_train_steps=1,
        learning_rate=0.0,
        classifier_dropout=0.0,
        class_weights=entries,
    )
    table = predictions(os.path.join(output, "eval_predictions.tsv"))
    losses = [-np.log(float(row[f"p({row['label']})"])) for row in table]
    assert np.ptp(losses) > 0.3
    assert metrics["eval"]["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    found = History.read(output).column("train", "loss")[1]
    each = [weights[row["label"]] for row in table]
    expected = np.average(losses, weights=each)
    assert found == [pytest.approx(expected, rel=1e-4)]


def test_every_task_of_several_is_balanced(shallow, tmp_path):
    """Each task's labels determine the task's class weights."""
    labels = {"SST-2": [0, 1, 1, 1], "CoLA": [1, 0, 0, 0]}
    sst = [("so it is", label) for label in labels["SST-2"]]
    cola = [("x", label, "", "so it is") for label in labels["CoLA"]]
    tiny_tasks.write_tsv(
        tmp_path / "SST-2" / "train.tsv", ("sentence", "label"), *sst
    )
    tiny_tasks.write_tsv(tmp_path / "CoLA" / "train.tsv", *cola)
    s = build(
        task="sst-2,cola",
        data_dir=str(tmp_path),
        model_dir=shallow,
        output_dir=str(tmp_path / "o"),
        do_train=True,
        class_weights=("balanced",),
    )
    _, jobs = prepare_jobs(s, ["sst-2", "cola"])
    for job in jobs:
        found = job.train[0].features.arrays["label_weights"].tolist()
        assert found == pytest.approx([2, 2 / 3, 2 / 3, 2 / 3])


@pytest.mark.parametrize(
    "entries",
    [("good",), ("good:x",), ("good:-1",), ("good:inf",), (":2",)]
    + [("good:2", "good:3"), ("balanced", "good:2")],
    ids=str,
)
def test_weights_that_are_none(entries):
    """Malformed class weights raise an error."""
    with pytest.raises(InputError, match="balanced, or label:weight"):
        RecipeConfig(class_weights=entries)
