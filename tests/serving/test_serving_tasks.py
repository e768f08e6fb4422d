"""Answers, choices and entities from raw text equal those in Python."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf
from exporting import (
    close,
    concrete,
    model_dir,
    question_task,
    server_of,
    strings,
    with_threshold,
)

from albert_tf.library.models import MultipleChoice, QuestionAnswerer, Tagger
from albert_tf.serving.entities import Entities
from albert_tf.serving.questions import Answers
from albert_tf.tasks.conll import entity_spans
from albert_tf.tasks.numerics import NO_ANSWER
from albert_tf.tasks.registry import find
from albert_tf.tasks.squad import probabilities
from albert_tf.tasks.task_config import TaskConfig
from albert_tf.text.normalization import TextConfig

CONTEXTS = (
    "The teacher reads letters in the small garden over the river. " * 3,
    "He painted houses and bridges, 1,000 in 2010, in the Naïve Café's street.",
    "",
    "  Music 😀 played\u00a0all   night\u200c‘slowly’\u200cthen.\u200f",
    "walked",
    "she walked. " * 20,
    "a\u200c\U0001f600",
)
QUESTIONS = (
    *("who reads", "what is painted in the streets", "a", "", "she", "?"),
    "who",
)


def texts_of(predictions):
    """Return the texts of the answers to each question."""
    return [[answer.text for answer in p.best] for p in predictions]


def assert_answers(row, prediction, context, threshold):
    """Assert that the served answers to a question equal a prediction."""
    ranked = prediction.best[: len(row["answers"])]
    missing = len(row["answers"]) - len(ranked)
    texts = [x.decode() for x in row["answers"]]
    assert texts == [a.text for a in ranked] + [""] * missing
    close(row["probabilities"], probabilities(ranked) + [0.0] * missing)
    spans = list(zip(row["starts"], row["ends"], strict=True))
    assert spans == [a.span for a in ranked] + [(0, 0)] * missing
    best = prediction.best[0]
    if best.text:
        close(row["scores"][0], best.score, 1e-4)
    begin, end = row["byte_starts"][0], row["byte_ends"][0]
    assert context.encode()[begin:end].decode() == best.text
    odds = prediction.null_odds
    close(row["null_odds"], odds, 1e-4 + 1e-6 * abs(odds))
    answer = "" if odds > threshold else best.text
    assert row["answer"].decode() == answer
    unreal = row["scores"] <= 2 * NO_ANSWER
    for name in ("starts", "ends"):
        assert not row[name][unreal].any()
    assert not row["probabilities"][1:][unreal[1:]].any()


@pytest.mark.parametrize(
    "head", ["simple", pytest.param("beam", marks=pytest.mark.slow)]
)
def test_answers_equal_the_task_in_python(pretrained_dir, tmp_path, head):
    """Answers have the same texts, offsets and probabilities as in Python.

    Some texts have many windows and repeat the words of an answer. A piece of
    the last text consists of a character without width, which is no answer. The
    threshold and the limit on the length of answers come from `task.json`.
    """
    folder, task = tmp_path / "model", question_task(head)
    model_dir(folder, pretrained_dir, task)
    model = QuestionAnswerer.load(folder)
    wanted = model.predictions(QUESTIONS, CONTEXTS)
    for longest in (1, 3):
        model.task = task.updated(max_answer_length=longest)
        other = model.predictions(QUESTIONS, CONTEXTS)
        assert texts_of(other) != texts_of(wanted)
    task = with_threshold(task, [p.null_odds for p in wanted])
    task.save(str(folder))
    threshold = task.config.null_score_diff_threshold
    server = server_of(folder)
    served = concrete(server, "answer")["answer"]
    found = served(question=strings(QUESTIONS), context=strings(CONTEXTS))
    found = {k: v.numpy() for k, v in found.items()}
    # The outputs have `top_k` columns even if `n_best_size` is smaller.
    assert found["scores"].shape == (len(QUESTIONS), 5)
    for i, prediction in enumerate(wanted):
        row = {name: values[i] for name, values in found.items()}
        assert_answers(row, prediction, CONTEXTS[i], threshold)
    none = served(question=strings([]), context=strings([]))
    assert all(value.shape[0] == 0 for value in none.values())
    # A batch of two questions has more rows than questions.
    encoder = server.encoder
    encoder.config = dataclasses.replace(encoder.config, batch_size=2)
    two = server.call("answer", strings(QUESTIONS[:2]), strings(CONTEXTS[:2]))
    close(two["null_odds"], found["null_odds"][:2], 1e-4)
    answers = server.signatures["answer"].call
    inputs, _ = answers._rows(strings(["who"]), strings(["she"]))
    assert inputs["input_ids"].shape[1] < 20
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="same number of rows"
    ):
        served(question=strings(["who", "what"]), context=strings(["a"]))


@pytest.mark.parametrize(
    ("threshold", "answers"),
    [(None, [b"", b"b", b"c"]), (0.6, [b"a", b"b", b"c"])],
)
def test_without_a_threshold_the_odds_decide(threshold, answers):
    """A question has no answer if its null odds exceed the threshold.

    The default threshold is 0. The odds of a question are the smallest odds of
    its windows.
    """
    task = types.SimpleNamespace(
        impossible=True,
        odds_are_relative=False,
        no_answer=tf.constant,
        config=types.SimpleNamespace(null_score_diff_threshold=threshold),
    )
    windows = types.SimpleNamespace(texts=tf.constant([0, 1, 1, 2]))
    model = types.SimpleNamespace(task=task)
    found = {"answer": tf.constant(["a", "b", "c"])}
    odds = [0.5, 0.7, -0.5, 0.0]
    found = Answers._null(model, windows, odds, found)
    assert found["answer"].numpy().tolist() == answers
    close(found["null_odds"], np.array([0.5, -0.5, 0.0], "f4"))
    task.impossible = False
    assert Answers._null(model, windows, odds, found) == {}


@pytest.mark.slow
def test_shorter_inputs_answer_as_the_task_in_python(pretrained_dir, tmp_path):
    """For shorter inputs, windows and questions are cut as in Python.

    With the settings of fine-tuning, parts of the context would be skipped.
    """
    folder, task = tmp_path / "model", question_task("simple", False)
    model_dir(folder, pretrained_dir, task)
    model = QuestionAnswerer.load(folder, max_length=7)
    wanted = model.predictions(QUESTIONS, CONTEXTS)
    server = server_of(folder, max_seq_length=7)
    assert server.task.config == model.task.config
    assert server.task.config.doc_stride < task.config.doc_stride
    found = server.call("answer", strings(QUESTIONS), strings(CONTEXTS))
    answers = [text.decode() for text in found["answer"].numpy()]
    assert answers == [prediction.best[0].text for prediction in wanted]


def test_choices_equal_the_task_in_python(pretrained_dir, tmp_path):
    """Probabilities equal those in Python, with blanks and absent choices."""
    config = TaskConfig(max_seq_length=24, max_qa_length=8)
    task = dataclasses.replace(find("race"), number=3).updated(**vars(config))
    folder = tmp_path / "model"
    model_dir(folder, pretrained_dir, task)
    questions = ("he ___ the letter _", "who walked", "a __ a")
    choices = (
        ("writes", "paints", "reads"),
        ("a teacher", "the river", ""),
        ("night", "day", "a long walk over the bridge and the river"),
    )
    present = [[text for text in row if text] for row in choices]
    model = MultipleChoice.load(folder)
    wanted = model.predict(CONTEXTS[:3], questions, present, verbose=0)
    found = server_of(folder).call(
        "choose",
        strings(CONTEXTS[:3]),
        strings(questions),
        tf.constant(choices),
    )
    close(found["probabilities"], wanted)
    empty = model.predict(CONTEXTS[:3], questions, choices, verbose=0)
    close(empty, wanted)
    best = wanted.argmax(axis=1)
    np.testing.assert_array_equal(found["choice"], best)
    texts = [row[i] for row, i in zip(choices, best, strict=True)]
    assert [text.decode() for text in found["text"].numpy()] == texts


TAGS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG")
TAGGED = "O'Neil's 12 houses, (she) walks  quickly—over bridges!  " * 3
WORDS = "O ' Neil ' s 12 houses , ( she ) walks quickly — over bridges !"


def test_classes_of_words_mark_no_entities():
    """Part-of-speech tags mark no entities, even with names such as E."""
    tokenizer = types.SimpleNamespace(config=TextConfig())
    encoder = types.SimpleNamespace(tokenizer=tokenizer, graphs=[])
    for labels, marks in ((TAGS, 4), (("NOUN", "E", "S", "O", "VERB"), 0)):
        task = dataclasses.replace(find("conll2003"), labels=labels)
        graph = Entities(encoder, None, task)
        assert np.count_nonzero(graph.kind_of) == marks
        assert np.count_nonzero(graph.begins) == marks / 2
        assert not np.any(graph.ends)


def test_a_word_without_pieces_is_an_unknown_piece():
    """A word without pieces is encoded as the unknown piece.

    The pieces of all words are split into windows, which overlap.
    """
    ids = tf.ragged.constant([[7, 8], [], [9]])
    tokenizer = types.SimpleNamespace(config=TextConfig(), unk_id=1)
    encoder = types.SimpleNamespace(
        tokenizer=tokenizer,
        graphs=[],
        segment=lambda texts: ids,
        pack=lambda rows: rows,
    )
    task = dataclasses.replace(find("conll2003"), labels=TAGS)
    task = task.updated(max_seq_length=5, doc_stride=1)
    graph = Entities(encoder, None, task)
    rows, words = graph._rows(strings(["walks \u200b by"]))
    assert rows.to_list() == [[7, 8, 1], [8, 1, 9]]
    assert words.pieces.numpy().tolist() == [0, 2, 3]


@pytest.mark.slow
def test_entities_equal_the_task_in_python(pretrained_dir, tmp_path):
    """Tags equal those in Python, and entities are the spans of these tags."""
    task = dataclasses.replace(find("conll2003"), labels=TAGS, scheme="BIO")
    task = task.updated(max_seq_length=14, doc_stride=5)
    folder = tmp_path / "model"
    model_dir(folder, pretrained_dir, task)
    served = concrete(server_of(folder), "entities")["entities"]
    tagged = {
        k: v.numpy() for k, v in served(strings(["", TAGGED, "she"])).items()
    }
    words = WORDS.split() * 3
    assert [w.decode() for w in tagged["words"][1]] == words
    (wanted,) = Tagger.load(folder).predictions([words])
    tags = [tag.decode() for tag in tagged["tags"][1]]
    assert tags == list(wanted.tags)
    close(tagged["tag_probabilities"][1], wanted.probabilities)
    starts, ends = tagged["word_starts"][1], tagged["word_ends"][1]
    assert [TAGGED[a:b] for a, b in zip(starts, ends, strict=True)] == words
    spans = [[starts[a], ends[b], kind] for a, b, kind in entity_spans(tags)]
    assert spans and list(tagged["entity_count"][:2]) == [0, len(spans)]
    for i, span in enumerate(spans):
        row = {k: v[1, i] for k, v in tagged.items() if v.ndim == 2}
        start, end, kind = span
        assert [row["starts"], row["ends"], row["kinds"].decode()] == span
        assert row["entities"].decode() == TAGGED[start:end]
        byte_span = slice(row["byte_starts"], row["byte_ends"])
        assert TAGGED.encode()[byte_span].decode() == TAGGED[start:end]
