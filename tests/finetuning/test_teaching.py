"""Distillation: a student's loss for every kind of task.

Expected values are computed row by row from the row's tokens, without padding.
"""

import dataclasses

import exporting
import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit, log_softmax, softmax
from tiny_questions import asked

from albert_tf.finetuning.finetuning_setup import Job, Split
from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.finetuning.soft_targets import TEACHER, SoftTargets, teach
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.classification import Example
from albert_tf.tasks.multiple_choice import Choices
from albert_tf.tasks.registry import find
from albert_tf.tasks.tagged_words import Sentence
from albert_tf.training import checkpoints
from albert_tf.training.distribution import DistributionConfig, make_strategy

T = 2.5  # the temperature
TEXTS = (
    "she walks slowly over the small bridge in the evening",
    "music",
    "he reads a letter",
    "they played in the streets",
    "the window",
)


def sentences(kind, *labels):
    """Return a sentence task and examples with the given labels."""
    task = find(kind).updated(max_seq_length=16)
    if task.has_classes:
        task = dataclasses.replace(task, labels=("x", "y", "z"))
    pairs = zip(TEXTS, labels, strict=True)
    return task, [Example("", text, "", label) for text, label in pairs]


def words():
    """Return a tagging task and sentences; some words have several pieces."""
    task = find("token_classification")
    task = task.updated(max_seq_length=16)
    task = dataclasses.replace(task, labels=("O", "B-X", "I-X"), scheme="BIO")
    tags = ("O", "B-X", "O")
    lines = ("she walks slowly", "zqx naïve café", "a the a", "1,000 a a")
    return task, [Sentence(tuple(x.split()), tags, "", 1) for x in lines]


def choices():
    """Return a multiple-choice task, and examples with up to three choices."""
    task = find("multiple_choice").updated(max_seq_length=20, max_qa_length=8)
    task = dataclasses.replace(task, number=3)
    lists = (("music", "a letter"), ("the",), ("he", "she", "they walk"))
    rows = zip(TEXTS, lists, strict=False)
    return task, [Choices("", text, "who", c, 0) for text, c in rows]


def questions():
    """Return a task, and questions about contexts of different lengths."""
    task = exporting.question_task("simple")
    texts = ("the river", "", "he reads")
    contexts = (TEXTS[0] + " " + TEXTS[3], TEXTS[1], TEXTS[2])
    answers = ("small bridge", "", "a letter")
    rows = zip(texts, answers, contexts, strict=True)
    return task, [asked("", *row) for row in rows]


KINDS = {
    "classification": lambda: sentences("classification", *"xyzxy"),
    "multilabel": lambda: sentences(
        "multilabel", ("x",), (), ("y", "z"), ("z",), ("x", "y")
    ),
    "regression": lambda: sentences("regression", 1.0, 2.0, 0.5, -1.0, 3.0),
    "token_classification": words,
    "multiple_choice": choices,
    "question_answering": questions,
}


def of_classes(teacher, student):
    """Return T^2 times the cross entropy, over the last axis."""
    p, log_q = softmax(teacher / T, -1), log_softmax(student / T, -1)
    return -(p * log_q).sum(-1) * T**2


def of_sets(teacher, student):
    """Return T^2 times the mean of the classes' cross entropies."""
    p, q = expit(teacher / T), expit(student / T)
    return -(p * np.log(q) + (1 - p) * np.log(1 - q)).mean(-1) * T**2


def of_tokens(teacher, student):
    """Return the mean loss of start and end, given logits [1, tokens, 2]."""
    both = zip(np.split(teacher, 2, -1), np.split(student, 2, -1), strict=True)
    return np.mean([of_classes(t[..., 0], s[..., 0]) for t, s in both])


DISTANCES = {
    "classification": of_classes,
    "multilabel": of_sets,
    "regression": lambda teacher, student: (teacher - student) ** 2,
    "token_classification": of_classes,
    "multiple_choice": of_classes,
    "question_answering": of_tokens,
}


def alone(model, features, row):
    """Return a model's logits for a single row without padding."""
    first, last = features.row_splits[row : row + 2]
    ids = features.tokens[None, first:last]
    segments = np.arange(last - first)[None] >= features.second_starts[row]
    inputs = [ids, np.ones_like(ids), segments.astype(np.int32)]
    if features.rows_per_example > 1:
        return model(*[x[None] for x in inputs]).numpy()[0]
    found = model(*inputs)
    if isinstance(found, dict):
        names = ("start_logits", "end_logits")
        return np.stack([found[name] for name in names], -1)
    return found.numpy()


def expected(kind, features, teacher, student):
    """Return a student's mean loss, computed from rows without padding."""
    losses = []
    for i in range(len(features)):
        rows = [i]
        if kind == "multiple_choice":
            number = int(features.arrays["choice_mask"][i].sum())
            rows = [3 * i + j for j in range(number)]
        both = [
            np.concatenate([alone(m, features, row) for row in rows], -1)
            for m in (teacher, student)
        ]
        loss = DISTANCES[kind](*both)
        if kind == "token_classification":
            row = slice(*features.row_splits[i : i + 2])
            loss = loss[:, features.token_arrays["labels"][row] >= 0]
        losses.append(loss.mean())
    return np.mean(losses)


def soft_loss(objective, student, features, bucketed):
    """Return the mean loss over all examples, and its gradients."""
    variables = [v.value for v in student.trainable_variables]
    total, weight = 0.0, 0.0
    with tf.GradientTape() as tape:
        for batch in evaluation_batches(features, 4, bucketed):
            sums, _ = objective.losses(student, batch, None)
            total += sums["task"]
            weight += objective.weights(batch)["task"]
        loss = total / weight
    gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
    return loss.numpy(), [tf.convert_to_tensor(g).numpy() for g in gradients]


def taught_by(folder, task, features, config, tokenizer, examples):
    """Return the recipe and the features with the outputs of a teacher.

    The job has the fingerprint of the teacher's weights.
    """
    recipe = RecipeConfig(
        teacher=folder, distillation_weight=1.0, distillation_temperature=T
    )
    strategy = make_strategy(DistributionConfig(num_cpu_replicas=1))
    train = (Split("train", examples, features),)
    job = teach(
        Job(task, config, tokenizer, train, (), ()), recipe, strategy, 2, True
    )
    weights = checkpoints.for_inference(folder)
    assert job.teacher == checkpoints.fingerprint(weights)
    return recipe, job.train[0].features


@pytest.mark.parametrize("kind", ["classification", "token_classification"])
def test_a_teacher_with_labels_in_another_order(
    kind, pretrained_dir, tokenizer, tmp_path
):
    """A teacher's outputs are in the order of the student's labels."""
    task, examples = KINDS[kind]()
    folder = str(tmp_path / "teacher")
    teacher = exporting.model_dir(folder, pretrained_dir, task, layers=1)
    inputs = task.features(examples, tokenizer), teacher.albert.config
    found = []
    for labels in (task.labels, (*task.labels[1:], task.labels[0])):
        dataclasses.replace(task, labels=labels).save(folder)
        _, features = taught_by(folder, task, *inputs, tokenizer, examples)
        arrays = features.arrays | features.token_arrays
        found.append(arrays[f"{TEACHER}logits"])
    np.testing.assert_array_equal(found[1], np.roll(found[0], 1, axis=-1))


@pytest.fixture(scope="module", params=KINDS)
def taught(request, pretrained_dir, tokenizer, tmp_path_factory):
    """Return the kind, objective, teacher and features with teacher outputs."""
    kind = request.param
    task, examples = KINDS[kind]()
    folder = str(tmp_path_factory.mktemp(kind) / "teacher")
    teacher = exporting.model_dir(folder, pretrained_dir, task, layers=2)
    features = task.features(examples, tokenizer)
    config = AlbertConfig.from_model_dir(folder)
    config = dataclasses.replace(config, num_hidden_layers=1)  # for the student
    arguments = folder, task, features, config, tokenizer, examples
    recipe, features = taught_by(*arguments)
    return kind, SoftTargets(task, recipe), teacher, features


@pytest.mark.slow_after(1)
def test_a_teacher_equal_to_its_student(taught):
    """If both models are equal, the loss is an entropy, and its gradient is 0.

    Rows and the last batch are padded, and some choices are absent. For
    regression, the loss is 0.
    """
    kind, objective, teacher, features = taught
    loss, gradients = soft_loss(objective, teacher, features, False)
    entropy = expected(kind, features, teacher, teacher)
    np.testing.assert_allclose(loss, entropy, rtol=1e-4, atol=1e-6)
    assert max(np.abs(g).max() for g in gradients) < 1e-4


@pytest.mark.slow_after(1)
def test_a_smaller_student(taught):
    """A smaller student's loss equals the mean loss of rows without padding."""
    kind, objective, teacher, features = taught
    config = dataclasses.replace(teacher.albert.config, num_hidden_layers=1)
    keras.utils.set_random_seed(5)
    student = objective.objective.task.build_model(config, "float32")
    loss, gradients = soft_loss(objective, student, features, True)
    distance = expected(kind, features, teacher, student)
    np.testing.assert_allclose(loss, distance, rtol=1e-4)
    assert max(np.abs(g).max() for g in gradients) > 1e-3
