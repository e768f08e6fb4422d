"""Examples may have any number of choices, singly or in batches."""

import dataclasses

import pytest
import tensorflow as tf
from exporting import close, model_dir, server_of, strings
from tiny_records import serialized

from albert_tf.library.models import MultipleChoice
from albert_tf.serving.questions import choice_rows, likeliest_choices
from albert_tf.tasks.registry import find
from albert_tf.tasks.task_config import TaskConfig

CONTEXTS = ("the teacher reads letters over the river", "music", "she walked")
QUESTIONS = ("he _ a letter", "who walked", "what")
CHOICES = (("writes", "paints", "reads"), ("a teacher", "the river"), ())


@pytest.fixture(scope="module")
def folder(pretrained_dir, tmp_path_factory):
    """Return a model directory for multiple choice, with random weights."""
    config = TaskConfig(max_seq_length=24, max_qa_length=8)
    folder = tmp_path_factory.mktemp("choices") / "model"
    model_dir(folder, pretrained_dir, find("race").updated(**vars(config)))
    return str(folder)


def test_examples_have_any_number_of_choices(folder):
    """An example's answer does not depend on other examples in the batch.

    Examples may have any number of choices, even none.
    """
    server = server_of(folder)
    rows = list(zip(CONTEXTS, QUESTIONS, CHOICES, strict=True))
    examples = [
        serialized(context=[context], question=[question], choices=choices)
        for context, question, choices in (*rows, ("a", "b", ()))
    ]
    found = server.call("tf_example", tf.constant(examples[:3]))
    for i, (context, question, choices) in enumerate(rows[:2]):
        one = strings([context]), strings([question]), tf.constant([choices])
        alone = server.call("choose", *one)
        shares = found["probabilities"][i]
        close(shares[: len(choices)], alone["probabilities"][0])
        close(tf.reduce_sum(shares[len(choices) :]), 0.0)
        assert found["choice"][i] == alone["choice"][0]
        assert found["text"][i] == alone["text"][0]
    assert found["text"][2] == b""
    encoder = server.encoder
    request = server.task, strings(["a"]), strings(["b"]), CHOICES[:1]
    inputs = choice_rows(encoder, *request)
    assert inputs["input_ids"].shape[0] == 3
    assert inputs["input_ids"].shape[1] < 24
    usual = encoder.config
    encoder.config = dataclasses.replace(usual, fixed_length=True)
    rows = choice_rows(encoder, *request)["input_ids"]
    assert rows.shape == (3, 24)
    encoder.config = usual
    none = server.call("tf_example", tf.constant(examples[3:]))
    assert none["probabilities"].shape == [1, 1]
    assert none["choice"].numpy() == [0] and none["text"].numpy() == [b""]
    # The only choice is chosen, regardless of its logit.
    one = likeliest_choices(
        {"logits": tf.constant([[-5.0]])}, tf.constant([["x"]])
    )
    assert one["text"].numpy() == [b"x"] and one["probabilities"] == [[1.0]]
    encoder.config = dataclasses.replace(encoder.config, batch_size=2)
    table = tf.constant([CHOICES[0], CHOICES[0]])
    two = server.call(
        "choose", *map(strings, (CONTEXTS[:2], QUESTIONS[:2])), table
    )
    close(two["probabilities"][0], found["probabilities"][0])


def test_empty_choices_have_the_probability_that_is_served(folder):
    """Python and the SavedModel agree on empty choices.

    An empty choice has probability 0. If all choices are empty, they are
    equally likely.
    """
    server, model = server_of(folder), MultipleChoice.load(folder)
    for choices in (("a", ""), ("", "a teacher"), ("", "")):
        query = dict(context="music", question="what", choices=choices)
        (found,) = model.predictor()([query])
        request = strings(["music"]), strings(["what"]), tf.constant([choices])
        wanted = server.call("choose", *request)
        close(found["probabilities"], wanted["probabilities"][0])
        assert found["choice"] == wanted["choice"][0]
        assert found["text"] == choices[found["choice"]]
        shares = [float(bool(choice)) for choice in choices]
        assert found["probabilities"] == (shares if any(shares) else [0.5, 0.5])


def test_a_request_has_at_least_one_choice(folder):
    """A request whose questions have no choices raises an error."""
    one, none = strings(["a"]), tf.zeros([1, 0], tf.string)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="at least one choice"
    ):
        server_of(folder).call("choose", one, one, none)


def test_rows_must_agree(folder):
    """Any unequal numbers of contexts, questions and rows raise an error."""
    server = server_of(folder)
    for a, b, c in ((2, 2, 1), (2, 1, 2), (1, 2, 2)):
        texts = strings(CONTEXTS[:a]), strings(QUESTIONS[:b])
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="same number of rows"
        ):
            server.call("choose", *texts, tf.constant([["a"]] * c))
