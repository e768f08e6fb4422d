"""Smoothed labels, and requirements for models that teach other models."""

import dataclasses
import shutil

import numpy as np
import pytest
import scipy.special
import tensorflow as tf
import tiny
import vocabularies

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.finetuning.finetuning_setup import Job
from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.finetuning.soft_targets import (
    SoftTargets,
    check_targets,
    load_teacher,
    with_teacher,
)
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import find
from albert_tf.text.tokenizers import load_saved_tokenizer

LOGITS = np.random.default_rng(4).normal(size=(6, 3)).astype("f4")
LABELS = np.array([0, 1, 2, 2, 1, 0], np.int32)


def test_absent_choices_have_no_share():
    """Label smoothing assigns no probability to absent choices."""
    recipe = RecipeConfig(label_smoothing=0.3)
    objective = SoftTargets(find("multiple_choice"), recipe)
    mask = np.array([[1, 1, 0], [1, 1, 1]], "f4")
    batch = {"labels": LABELS[:2], "choice_mask": mask}
    outputs = {"logits": tf.where(mask > 0, LOGITS[:2], -1e30)}
    found = objective.example_losses(outputs, batch).numpy()
    for i, number in enumerate((2, 3)):
        of_labels = -scipy.special.log_softmax(LOGITS[i, :number].astype("f8"))
        expected = 0.7 * of_labels[LABELS[i]] + 0.3 * of_labels.mean()
        np.testing.assert_allclose(found[i], expected, rtol=1e-5)


@pytest.mark.parametrize("bucketed", [False, True])
def test_outputs_of_tokens_stand_beside_them(bucketed):
    """Sorting by length keeps a teacher's outputs together with their tokens.

    Padding has the given fill value.
    """
    lengths = [3, 20, 9]
    rows = [(np.arange(1, n + 1, dtype=np.int32), n) for n in lengths]
    features = Features.from_rows(rows, {}, 0, 24)
    tags = np.zeros([3, 20, 2], "f4")
    for i, n in enumerate(lengths):
        tags[i, :n] = np.arange(1, n + 1)[:, None] * [1, 10] + i / 4
    outputs = {"tags": tags, "logits": np.arange(6).reshape(3, 2)}
    taught = with_teacher(features, outputs, {"tags": -7.0})
    for batch in evaluation_batches(taught, 1, bucketed):
        i = int(batch["example_numbers"][0])
        n = lengths[i]
        found = batch["teacher_tags"][0].numpy()
        np.testing.assert_array_equal(found[:n], tags[i, :n])
        assert np.all(found[n:] == -7.0)
        assert found.shape == (batch["input_ids"].shape[1], 2)
        assert batch["teacher_logits"].numpy().tolist() == [[2 * i, 2 * i + 1]]


def tagging(*labels):
    task = find("token_classification").updated(max_seq_length=16)
    return dataclasses.replace(task, labels=labels, scheme="BIO")


def choosing(number):
    task = find("multiple_choice")
    task = task.updated(max_seq_length=16, max_qa_length=9)
    return dataclasses.replace(task, number=number)


def classes(*labels):
    task = find("classification").updated(max_seq_length=16)
    return dataclasses.replace(task, labels=labels)


@pytest.fixture
def teacher(pretrained, tmp_path):
    """Return a function that creates a model directory for a task."""

    def make(task):
        folder = str(tmp_path / "teacher")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(pretrained, folder)
        task.save(folder)
        return folder

    return make


def job_of(task, model_dir):
    tokenizer = load_saved_tokenizer(model_dir)
    return Job(task, tiny.CONFIG, tokenizer, (), (), ())


@pytest.mark.parametrize(
    "own, other",
    [
        (tagging("O", "B-X"), tagging("O", "B-Y")),
        (choosing(3), choosing(4)),
        (classes("a", "b"), classes("a", "c")),
        (classes("a", "b"), classes("b", "a", "c")),
    ],
)
def test_a_teacher_knows_the_same_labels(pretrained, teacher, own, other):
    """A teacher must have the student's labels."""
    job = job_of(own, pretrained)
    assert load_teacher(teacher(own), job) == own
    with pytest.raises(InputError, match="labels"):
        load_teacher(teacher(other), job)


def test_models_that_cannot_teach(pretrained, teacher, tmp_path):
    """A teacher must be fine-tuned; its kind, pieces and length must fit."""
    own = classes("a", "b")
    job = job_of(own, pretrained)
    with pytest.raises(InputError, match="fine-tuned"):
        load_teacher(pretrained, job)
    with pytest.raises(InputError, match="kind"):
        load_teacher(teacher(choosing(2)), job)
    folder = teacher(own)
    words = files.read_text(f"{folder}/vocab.txt", "").split("\n")
    words[6], words[7] = words[7], words[6]
    vocabularies.exchange(folder, words)
    with pytest.raises(InputError, match="same tokenizer"):
        load_teacher(folder, job)
    folder = teacher(own)
    dataclasses.replace(tiny.CONFIG, max_position_embeddings=8).save(folder)
    with pytest.raises(InputError, match="max_position"):
        load_teacher(folder, job)


def test_a_beam_cannot_teach_logits(pretrained, teacher):
    """A model with a beam head cannot teach a model with a simple head."""
    beam = find("squad-2.0").updated(
        max_seq_length=16, max_query_length=4, doc_stride=3, answer_head="beam"
    )
    simple = beam.updated(answer_head="simple")
    assert load_teacher(teacher(simple), job_of(simple, pretrained)) == simple
    with pytest.raises(InputError, match="answer_head=beam"):
        load_teacher(teacher(beam), job_of(simple, pretrained))


@pytest.mark.parametrize(
    ("name", "smooths", "teaches"),
    [
        ("classification", True, True),
        ("multilabel", True, True),
        ("multiple_choice", True, True),
        ("token_classification", True, True),
        ("regression", False, True),
        ("squad-1.1", False, True),
        ("squad-2.0", False, False),
        ("embedding", False, False),
    ],
)
def test_tasks_without_soft_targets(name, smooths, teaches):
    """Numbers, spans and vectors allow no label smoothing.

    A beam head and vectors allow no teacher.
    """
    for values, is_legal in (
        ({"label_smoothing": 0.1}, smooths),
        ({"teacher": "t"}, teaches),
    ):
        recipe, ((key, value),) = RecipeConfig(**values), values.items()
        if is_legal:
            check_targets(recipe, find(name))
            continue
        with pytest.raises(InputError, match=f"{key}={value}"):
            check_targets(recipe, find(name))
