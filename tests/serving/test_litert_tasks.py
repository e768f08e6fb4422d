"""LiteRT models and SavedModels agree on answers, choices and entities."""

import dataclasses
import functools
import io
import sys
import types

import numpy as np
import programs
import pytest
import tensorflow as tf
from exporting import (
    close,
    model_dir,
    question_task,
    server_of,
    strings,
    with_threshold,
    written,
)

from albert_tf.base.errors import InputError
from albert_tf.serving.litert_runner import Runner, RunnerConfig, answers
from albert_tf.serving.signatures import ServingConfig
from albert_tf.tasks.registry import find
from albert_tf.tasks.task_config import TaskConfig

pytest.importorskip("ai_edge_litert")

TAGS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG")
CONTEXTS = (
    "The teacher reads letters in the small garden over the river. " * 2,
    "  Music 😀 played\u00a0all   night ‘slowly’.",
    "",
)
QUESTIONS = ("who reads", "", "what is painted in the streets")


def exported(folder, pretrained_dir, task):
    """Return a server and a runner for a model with random weights."""
    model_dir(folder / "model", pretrained_dir, task)
    return server_of(folder / "model"), Runner(converted(folder))


def converted(folder):
    """Convert the subfolder `model` for batches of two; return a new folder."""
    two = ServingConfig(batch_size=2)
    return written(folder / "model", folder / "lite", two, to="litert")


@pytest.fixture(scope="module")
def questions(pretrained_dir, tmp_path_factory):
    """Return a cached function that exports a question-answering model.

    The function returns the folder, the SavedModel's answers and the threshold.
    """

    @functools.cache
    def make(head):
        task, folder = question_task(head), tmp_path_factory.mktemp(head)
        model_dir(folder / "model", pretrained_dir, task)
        server = server_of(folder / "model")
        wanted = server.call("answer", strings(QUESTIONS), strings(CONTEXTS))
        wanted = {name: value.numpy() for name, value in wanted.items()}
        task = with_threshold(task, wanted["null_odds"])
        task.save(str(folder / "model"))
        threshold = task.config.null_score_diff_threshold
        return converted(folder), wanted, threshold

    return make


@pytest.mark.parametrize(
    "head", ["simple", pytest.param("beam", marks=pytest.mark.slow)]
)
def test_answers_are_those_of_the_savedmodel(questions, head):
    """Texts, offsets, scores and odds equal the SavedModel's.

    One of the contexts has several windows. The threshold in `task.json`
    decides whether there is an answer.
    """
    folder, wanted, threshold = questions(head)
    runner = Runner(folder)
    for i, (question, context) in enumerate(
        zip(QUESTIONS, CONTEXTS, strict=True)
    ):
        query = {"question": question, "context": context}
        found = runner.answer(query, 3)
        best = found["answers"][0]
        assert best["text"] == wanted["answers"][i, 0].decode()
        withheld = wanted["null_odds"][i] > threshold
        assert found["answer"] == ("" if withheld else best["text"])
        odds = wanted["null_odds"][i]
        close(found["null_odds"], odds, 1e-4 + 1e-5 * abs(odds))
        if best["text"]:
            assert best["start"] == wanted["starts"][i, 0]
            assert best["end"] == wanted["ends"][i, 0]
            close(best["score"], wanted["scores"][i, 0], 1e-4)
        scores = [a["score"] for a in found["answers"]]
        assert scores == sorted(scores, reverse=True)
        assert len({a["text"] for a in found["answers"]}) == len(scores) <= 3
        more = runner.answer(query, 50)["answers"]
        assert [a["text"] for a in more[:3]] == [
            a["text"] for a in found["answers"]
        ]
        shares = [a["probability"] for a in found["answers"]]
        weights = np.exp(np.array(scores) - scores[0])
        close(shares, weights / weights.sum())


@pytest.mark.parametrize(
    ("labels", "found"),
    [(("O", "B-E", "I-E"), ["two"]), (("NOUN", "E", "VERB"), [])],
)
def test_classes_of_words_mark_no_entities(labels, found):
    """Part-of-speech tags mark no entities, even with names such as E."""
    task = dataclasses.replace(find("conll2003"), labels=labels)
    prediction = types.SimpleNamespace(
        tags=(labels[0], labels[1]), probabilities=np.array([0.75, 0.5])
    )
    answer = task.answer({"text": "one two"}, prediction, 1)
    assert [span["text"] for span in answer["entities"]] == found
    assert [word["tag"] for word in answer["words"]] == [*labels[:2]]


@pytest.mark.slow
def test_shorter_files_answer_as_the_savedmodel(pretrained_dir, tmp_path):
    """A LiteRT model and the SavedModel agree on answers for short inputs.

    The inputs are shorter than in fine-tuning.
    """
    model_dir(tmp_path / "model", pretrained_dir, question_task("simple"))
    short = ServingConfig(max_seq_length=7)
    out = written(tmp_path / "model", tmp_path / "lite", short, to="litert")
    runner, server = (
        Runner(out),
        server_of(tmp_path / "model", max_seq_length=7),
    )
    assert runner.task.config == server.task.config
    wanted = server.call("answer", strings(QUESTIONS), strings(CONTEXTS))
    for i, (question, context) in enumerate(
        zip(QUESTIONS, CONTEXTS, strict=True)
    ):
        query = {"question": question, "context": context}
        best = runner.answer(query, 1)["answers"][0]
        assert best["text"] == wanted["answers"][i, 0].numpy().decode()


@pytest.mark.slow
def test_choices_are_those_of_the_savedmodel(pretrained_dir, tmp_path):
    """Probabilities and the chosen text equal the SavedModel's.

    Choices fill blanks, long texts are truncated, and the probability of an
    empty choice is 0.
    """
    config = TaskConfig(max_seq_length=24, max_qa_length=8)
    task = find("race").updated(**vars(config))
    server, runner = exported(tmp_path, pretrained_dir, task)
    questions = ("he _ the letter _", "who walked", "")
    long = "a long walk over the bridge and the river"
    choices = ("writes", "", long, "a")
    table = tf.constant([choices] * 3)
    request = strings(CONTEXTS), strings(questions), table
    wanted = server.call("choose", *request)
    for i, (question, context) in enumerate(
        zip(questions, CONTEXTS, strict=True)
    ):
        query = {"question": question, "context": context, "choices": choices}
        found = runner.answer(query, 5)
        close(found["probabilities"], wanted["probabilities"][i])
        assert found["choice"] == wanted["choice"][i]
        assert found["probabilities"][1] == 0
        assert found["text"] == choices[found["choice"]]
    with pytest.raises(InputError, match="choices"):
        runner.answer(query | {"choices": []}, 5)


@pytest.mark.slow
def test_entities_are_those_of_the_savedmodel(pretrained_dir, tmp_path):
    """Words, tags and spans equal those of SavedModels, even in long texts."""
    task = dataclasses.replace(find("conll2003"), labels=TAGS, scheme="BIO")
    task = task.updated(max_seq_length=14, doc_stride=5)
    server, runner = exported(tmp_path, pretrained_dir, task)
    assert (runner.batch_size, runner.length) == (2, 14)
    texts = [
        "O'Neil's 12 houses, (she) walks  quickly—over bridges!  " * 3,
        " 中文 she\x00walks\u3000",
        "",
        "she \u0301",  # a word without pieces
    ]
    wanted = {
        name: value.numpy()
        for name, value in server.call("entities", strings(texts)).items()
    }
    for i, text in enumerate(texts):
        found = runner.answer({"text": text}, 5)
        number = wanted["word_count"][i]
        words = found["words"]
        assert len(words) == number
        for name, ours in (("words", "text"), ("tags", "tag")):
            theirs = [x.decode() for x in wanted[name][i, :number]]
            assert [word[ours] for word in words] == theirs
        shares = wanted["tag_probabilities"][i, :number]
        close([word["probability"] for word in words], shares)
        spans = found["entities"]
        assert len(spans) == wanted["entity_count"][i]
        for j, span in enumerate(spans):
            assert span["text"] == text[span["start"] : span["end"]]
            assert span["text"] == wanted["entities"][i, j].decode()
            assert span["kind"] == wanted["kinds"][i, j].decode()
            assert span["start"] == wanted["starts"][i, j]
    assert wanted["entity_count"][0] > 1


FRESH = """
import sys
from albert_tf.serving.litert_runner import RunnerConfig, answers
print(*answers(RunnerConfig(*sys.argv[1:3])))
print([m for m in sys.modules if m.split(".")[0] in sys.argv[3:]])
"""


def test_questions_are_asked_without_tensorflow(questions, monkeypatch):
    """The runner answers queries from a flag or JSON lines without TensorFlow.

    The error for a query that lacks a field lists the required fields.
    """
    folder, _, _ = questions("simple")
    # Users who follow the runner's documentation lack these packages.
    foreign = "tensorflow", "keras", "sklearn", "scipy"
    query = '{"question": "who", "context": "she reads a letter"}'
    output = programs.fresh("-c", FRESH, folder, query, *foreign)
    answer, modules = output.splitlines()
    assert modules == "[]"
    monkeypatch.setattr(sys, "stdin", io.StringIO(query))
    assert str(*answers(RunnerConfig(folder))) == answer
    for line in ("who", '{"question": "who"}', '["a"]', '{"context": 5}'):
        with pytest.raises(InputError, match="have `question`, `cont"):
            list(answers(RunnerConfig(folder, line)))
