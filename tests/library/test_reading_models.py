"""Models learn answers, tags and choices from raw strings."""

import exporting
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_fits
import tiny_tasks
from tiny_fits import compiled

from albert_tf.base.errors import InputError
from albert_tf.library.models import MultipleChoice, QuestionAnswerer, Tagger
from albert_tf.tasks.registry import find
from albert_tf.tasks.task_config import TaskConfig

QUESTIONS = ["film", "plot"] * 8
CONTEXTS = [
    "the plot was good and the film was bad",
    "a film is very poor in this one but the plot is so fine and great",
] * 8
ANSWERS = ["bad", "fine"] * 8


def agree(model, path, *x):
    """Assert that a saved and loaded model makes the same predictions.

    The model is saved to a `.keras` file and to a folder.
    """
    wanted = model.predict(*x, verbose=0)
    model.save(path / "model.keras")
    model.save(path / "model")
    files = keras.models.load_model(path / "model.keras")
    for again in (files, type(model).load(path / "model")):
        np.testing.assert_array_equal(again.predict(*x, verbose=0), wanted)


@pytest.mark.parametrize(
    "head", ["simple", pytest.param("beam", marks=pytest.mark.slow)]
)
def test_answers_are_learned_from_a_data_set(shallow, head):
    """The loss is the same for questions from a data set and from memory."""
    model = compiled(
        QuestionAnswerer, shallow, answer_head=head, classifier_dropout=0.0
    )
    data = (QUESTIONS, CONTEXTS), ["bad", ""] * 8
    stream = tf.data.Dataset.from_tensor_slices(data).batch(16)
    losses = model.fit(stream, verbose=0).history["loss"]
    wanted = model.evaluate(*data, batch_size=99, verbose=0)
    assert losses == pytest.approx([wanted], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["simple", "beam"])
def test_answers_are_learned(tmp_path, head):
    """After training, a model predicts the examples' answers.

    The answer to an unanswerable question is "".
    """
    answers = ANSWERS if head == "simple" else ["bad", ""] * 8
    keras.utils.set_random_seed(1)
    folder = tiny_tasks.make_model_dir(tmp_path, initializer_range=0.2)
    how = {"answer_head": head, "classifier_dropout": 0.0}
    model = QuestionAnswerer.load(folder, **how)
    model.compile(tiny_fits.optimizer(60))
    how = {"epochs": 30, "batch_size": 8, "verbose": 0}
    losses = model.fit((QUESTIONS, CONTEXTS), answers, **how).history["loss"]
    assert losses[-1] < 0.3 * losses[0]
    assert model.predict(QUESTIONS[:2], CONTEXTS[:2], verbose=0) == answers[:2]
    scores = model.score((QUESTIONS, CONTEXTS), answers)
    assert scores["f1"] == 1.0
    if head == "simple":
        agree(model, tmp_path, QUESTIONS[:2], CONTEXTS[:2])


def test_answers_of_squad_have_places(shallow):
    """Answers as texts, or as dicts with offsets, lead to the same labels."""
    model = QuestionAnswerer.load(shallow)
    with_offsets = [
        {"text": [a], "answer_start": [c.index(a)]}
        for a, c in zip(ANSWERS, CONTEXTS, strict=True)
    ]
    x = (QUESTIONS, CONTEXTS)
    first, second = (
        model.features(model.examples(x, y, "train")).arrays["labels"]
        for y in (ANSWERS, with_offsets)
    )
    np.testing.assert_array_equal(first, second)
    rows = [
        {"question": q, "context": c, "answers": a}
        for q, c, a in zip(*x, ANSWERS, strict=True)
    ]
    tables = [rows, pytest.importorskip("pandas").DataFrame(rows)]
    for table in tables:
        third = model.features(model.examples(table, None, "train"))
        np.testing.assert_array_equal(third.arrays["labels"], first)
    with pytest.raises(InputError, match="There must be at least one example"):
        model.predict(tables[1][:0])
    with pytest.raises(InputError, match="an answer must be in its context"):
        model.examples(x, ["music"] * 16, "train")


def test_a_question_without_an_answer_may_come_late(shallow):
    """Unanswerable questions may first occur in later training data."""
    model = QuestionAnswerer.load(shallow)
    model.examples((QUESTIONS[:1], CONTEXTS[:1]), ["bad"], "train")
    assert model.task.scoring == "squad1"
    model.examples((QUESTIONS, CONTEXTS), ["bad", ""] * 8, "train")
    model.examples((QUESTIONS[:1], CONTEXTS[:1]), ["bad"], "train")
    assert model.task.impossible and model.task.scoring == "squad2"


WORDS = [["the", "good", "film"], ["so", "bad", "and", "poor"]] * 8
TAGS = [["O", "B-GOOD", "O"], ["O", "B-BAD", "O", "B-BAD"]] * 8
KINDS = ["O", "B-GOOD", "B-BAD"]


@pytest.mark.slow
def test_tags_are_learned(shallow, tmp_path):
    """After training, words get the examples' tags; accuracy is per word."""
    keras.utils.set_random_seed(1)
    model = Tagger.load(shallow, KINDS)
    model.compile(tiny_fits.optimizer(60), metrics=["accuracy"])
    history = model.fit(WORDS, TAGS, epochs=15, batch_size=4, verbose=0)
    assert history.history["accuracy"][-1] > 0.9
    assert model.predict(WORDS[:2], verbose=0) == TAGS[:2]
    both = model.words_and_tags(["", "the good film", " "])
    assert both == [[], list(zip(WORDS[0], TAGS[0], strict=True)), []]
    assert model.score(WORDS, TAGS)["f1"] == 1.0
    numbers = [[KINDS.index(tag) for tag in tags] for tags in TAGS]
    how = {"verbose": 0, "batch_size": 4}
    wanted = model.evaluate(WORDS, TAGS, **how)
    assert model.evaluate(WORDS, numbers, **how) == wanted
    stream = tf.data.Dataset.from_tensor_slices(
        (tf.ragged.constant(WORDS), tf.ragged.constant(TAGS))
    )
    found = model.evaluate(stream.batch(4), verbose=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for data in (stream, stream.batch(4)):
        assert model.score(data) == model.score(WORDS, TAGS)
    model.save(tmp_path / "tagger")
    again = Tagger.load(tmp_path / "tagger")
    assert again.predict(WORDS[:2], verbose=0) == TAGS[:2]
    with pytest.raises(InputError, match="every word must have a tag"):
        model.fit(WORDS, [tags[1:] for tags in TAGS])


def test_outputs_have_the_order_of_the_texts(shallow):
    """Outputs have the order of the texts, for any batches."""
    model = compiled(Tagger, shallow, KINDS)
    kernel = model.named_weights()["classifier/kernel"]
    kernel.assign(1000 * kernel)  # so that texts differ
    texts = ["a film", "the plot was so very good", "bad", "it is", "a film so"]
    features = model.features(model.examples(texts, None, "predict"))
    found = model._outputs(features, 2, verbose=0)["logits"]
    ids = features.dense()
    wanted, mask = model(ids).numpy(), ids["input_mask"] > 0
    rows = [
        row[real].round(2).tobytes()
        for row, real in zip(wanted, mask, strict=True)
    ]
    assert len({*rows}) == 5
    np.testing.assert_allclose(found[mask], wanted[mask], atol=1e-3)


def test_texts_are_divided_wherever_they_stand(shallow):
    """Texts are split into words in lists, columns, rows and frames."""
    model = Tagger.load(shallow, KINDS)
    texts = [" ".join(WORDS[0]), WORDS[1]]
    column = {"tokens": texts}
    frame = pytest.importorskip("pandas").DataFrame(column)
    for x in (texts, column, [{"tokens": text} for text in texts], frame):
        examples = model.examples(x, None, "predict")
        assert [list(example.words) for example in examples] == WORDS[:2]
    for x in ([], frame[:0]):
        with pytest.raises(
            InputError, match="at least one|must be at least one example"
        ):
            model.predict(x)


@pytest.mark.slow
def test_choices_are_learned(shallow, tmp_path):
    """Examples may differ in their number of choices.

    Absent choices get probability 0.
    """
    contexts = ["the film was good", "the film was bad"] * 8
    questions = ["film is"] * 16
    choices = [["good", "bad"], ["good", "poor", "bad"]] * 8
    labels = [0, 2] * 8
    x = contexts, questions, choices
    keras.utils.set_random_seed(1)
    model = MultipleChoice.load(shallow)
    model.compile(tiny_fits.optimizer(12), metrics=["accuracy"])
    losses = model.fit(x, labels, epochs=12, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    shares = model.predict(*x, verbose=0)
    assert shares.shape == (16, 3)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    assert np.abs(shares[::2, 2]).max() < 1e-6
    right = np.mean(shares.argmax(axis=1) == labels)
    assert model.score(x, labels)["accuracy"] == pytest.approx(right)
    assert model.evaluate(x, labels, verbose=0)[1] == pytest.approx(right)
    agree(model, tmp_path, *x)
    more = [[*c, "so", "not"] for c in choices]
    shares = model.predict(contexts, questions, more, verbose=0)
    assert shares.shape == (16, 5)
    logs = np.log(np.array([row[:2] for row in shares[1::2]]))
    first = np.log([row[:2] for row in model.predict(*x, verbose=0)[1::2]])
    np.testing.assert_allclose(np.diff(logs), np.diff(first), atol=1e-4)


def test_a_model_of_race_takes_texts(pretrained_dir, tmp_path):
    """A RACE model accepts columns of texts, not only RACE's articles."""
    config = TaskConfig(max_seq_length=12, max_qa_length=6)
    task = find("race").updated(**vars(config))
    exporting.model_dir(tmp_path / "model", pretrained_dir, task)
    model = MultipleChoice.load(tmp_path / "model")
    x = ["she walks"], ["where"], [["night", "river", "bridge", "house"]]
    assert model.predict(x).shape == (1, 4)
    assert model.score(x, [2])
