"""Requirements for models that teach other models."""

import dataclasses
import shutil

import pytest
import tiny
import vocabularies

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.finetuning.finetuning_setup import Job
from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.finetuning.soft_targets import check_targets, load_teacher
from albert_tf.tasks.registry import find
from albert_tf.tasks.task_config import TaskConfig
from albert_tf.text.tokenizers import load_tokenizer

SHORT = TaskConfig(max_seq_length=16)


def tagging(*labels):
    task = find("token_classification").updated(**vars(SHORT))
    return dataclasses.replace(task, labels=labels, scheme="BIO")


def choosing(number):
    task = find("multiple_choice")
    task = task.updated(max_seq_length=16, max_qa_length=9)
    return dataclasses.replace(task, number=number)


def classes(*labels):
    task = find("classification").updated(**vars(SHORT))
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
    tokenizer = load_tokenizer(model_dir)
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
    """A teacher must be fine-tuned, with matching kind, pieces and length."""
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
    config = TaskConfig(
        max_seq_length=16, max_query_length=4, doc_stride=3, answer_head="beam"
    )
    beam = find("squad-2.0").updated(**vars(config))
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
