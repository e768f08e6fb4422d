"""Token classification: first pieces, long sentences, scores and files."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tiny
from scipy.special import log_softmax
from tiny_runs import eagerly

from albert_tf.base.errors import InputError
from albert_tf.data.table_sources import InMemoryTable
from albert_tf.finetuning.evaluation import TaskEvaluator
from albert_tf.finetuning.finetuning_setup import Split
from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.finetuning.soft_targets import SoftTargets
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.registry import find
from albert_tf.tasks.tagged_words import Sentence
from albert_tf.tasks.task import with_settings
from albert_tf.tasks.task_config import DataConfig
from albert_tf.tasks.token_classification import default_stride
from albert_tf.training.evaluator import Evaluator

# Words with full stops have several pieces, and one word has none.
WORDS = "so the film good.it.is plot of.a \u200b this one and very bad it.is is"
WORDS = WORDS.split(" ")
TAGS = "O O B-A I-A O O B-B O O O O B-A O O".split()
EXAMPLES = [
    Sentence(tuple(WORDS), tuple(TAGS), "f", 1),
    Sentence(("good", "good.the", "film"), ("B-B", "I-B", "O"), "f", 20),
]


def make_task(length=8, **config):
    task = find("token_classification")
    return task.updated(max_seq_length=length, **config).fitted(EXAMPLES)


def test_the_usual_stride_is_three_quarters():
    """By default, windows overlap by a quarter, and a stride is at least 1."""
    strides = [default_stride(size) for size in (1, 2, 3, 8, 126)]
    assert strides == [1, 1, 2, 6, 94]


@pytest.mark.parametrize("length", [4, 5, 8, 16])
def test_every_word_counts_once(words, length):
    """In rows of any length, each word has one label, at its first piece."""
    task = make_task(length)
    features = task.features(EXAMPLES, words)
    labels = features.token_arrays["labels"]
    found = labels[labels >= 0]
    expected = [tag for sentence in EXAMPLES for tag in sentence.tags]
    assert sorted(task.labels[i] for i in found) == sorted(expected)
    tokens = features.tokens[labels >= 0]
    # A word without pieces gets the unknown piece.
    first = [
        (words.encode(word) or [words.unk_id])[0]
        for sentence in EXAMPLES
        for word in sentence.words
    ]
    assert sorted(tokens.tolist()) == sorted(first)
    assert features.lengths.max() <= length


def label_logits(task, features):
    """Return the logits of a model that always predicts the labels."""
    shape = [len(features), features.max_seq_length, len(task.labels)]
    logits = np.zeros(shape, np.float32)
    for row, begin in enumerate(features.row_splits[:-1]):
        end = features.row_splits[row + 1]
        for i, label in enumerate(features.token_arrays["labels"][begin:end]):
            if label >= 0:
                logits[row, i, label] = 9.0
    return {"logits": logits}


def tagged(words, length=8):
    """Return a task and its predictions, given `label_logits`."""
    task = make_task(length)
    features = task.features(EXAMPLES, words)
    outputs = label_logits(task, features)
    return task, task.predictions(EXAMPLES, outputs, features)


@pytest.mark.parametrize("length", [4, 8, 16])
def test_predictions_stand_at_their_words(words, length):
    """If the logits match the labels, words get their tags, in order."""
    task, found = tagged(words, length)
    assert [p.tags for p in found] == [s.tags for s in EXAMPLES]
    assert all((p.probabilities > 0.99).all() for p in found)
    assert task.score(EXAMPLES, found)["f1"] == 1.0


def test_a_batch_has_labels_at_first_pieces(words):
    """Tokens that are not the first piece of a word have the label -1."""
    task = make_task(16)
    features = task.features(EXAMPLES[1:], words)
    batch = next(iter(evaluation_batches(features, 1)))
    number = {tag: i for i, tag in enumerate(task.labels)}
    pieces = [len(words.encode(w)) for w in EXAMPLES[1].words]
    expected = [-1]
    for tag, count in zip(EXAMPLES[1].tags, pieces, strict=True):
        expected += [number[tag], *[-1] * (count - 1)]
    expected += [-1] * (16 - len(expected))
    assert batch["labels"].numpy()[0].tolist() == expected


def test_the_loss_is_the_mean_over_words():
    """The loss is a mean over words; other tokens have no effect."""
    task = make_task()
    logits = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("f4")
    labels = np.array([[-1, 2, -1, 0], [-1, 1, -1, -1], [-1, 3, 4, 0]])
    names = "input_ids", "input_mask", "segment_ids"
    batch = dict.fromkeys(names) | {
        "labels": tf.constant(labels, tf.int32),
        "example_weights": tf.constant([1.0, 1.0, 0.0]),
    }
    log_p = log_softmax(logits, -1)
    words = [(0, 1, 2), (0, 3, 0), (1, 1, 1)]  # row, position, tag
    hits = [
        logits[row, position].argmax() == tag for row, position, tag in words
    ]
    for objective, share in (
        (task.objective, 0.0),
        (SoftTargets(task, RecipeConfig(label_smoothing=0.3)), 0.3),
    ):
        sums, metrics = objective.losses(lambda *_, **__: logits, batch, None)
        loss = [
            -(1 - share) * log_p[word] - share * log_p[word[:2]].mean()
            for word in words
        ]
        found = sums["task"] / objective.weights(batch)["task"]
        np.testing.assert_allclose(found, np.mean(loss), rtol=1e-5)
        right, number = metrics["accuracy"]
        np.testing.assert_allclose([right, number], [sum(hits), 3], rtol=1e-5)


@eagerly()
def test_the_loss_of_an_evaluation_is_the_mean_over_words(words):
    """Over windows of any length, the loss is the mean over words."""
    task = make_task()
    features = task.features(EXAMPLES, words)
    evaluator = Evaluator(
        tf.distribute.get_strategy(),
        lambda: task.build_model(tiny.SHALLOW, "float32"),
        task.objective,
        3,
    )

    def batches():
        return evaluation_batches(features, 3)

    outputs = evaluator.predict(batches, task.objective.outputs)
    log_p = log_softmax(outputs["logits"], -1)
    labels = features.token_arrays["labels"]
    inside = np.arange(8) < features.lengths[:, None]
    losses = -log_p[inside][np.arange(len(labels)), labels][labels >= 0]
    assert len(losses) == 17
    split = Split("eval", EXAMPLES, features)
    measured = TaskEvaluator(evaluator, task, bucketed=False)
    found, predictions = measured.evaluate(split)
    assert [len(p.tags) for p in predictions] == [14, 3]
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert evaluator.evaluate(batches)["loss"] == pytest.approx(found["loss"])


def test_files(words, tmp_path):
    """Prediction files contain words, tags and predictions.

    A second file contains the precision and recall of each type.
    """
    task, found = tagged(words)
    task.write_predictions(str(tmp_path / "eval_predictions"), EXAMPLES, found)
    lines = (tmp_path / "eval_predictions.conll").read_text().split("\n")
    assert lines[2] == "film\tB-A\tB-A" and lines[14] == ""
    assert lines[15] == "good\tB-B\tB-B"
    table = (tmp_path / "eval_entities.tsv").read_text()
    assert "A\t1.0000\t1.0000\t1.0000\t2" in table
    tags = (*TAGS[:11], "O", "O", "O")  # one of two entities of type A
    found[0] = dataclasses.replace(found[0], tags=tags)
    task.write_predictions(str(tmp_path / "predictions"), EXAMPLES, found)
    lines = (tmp_path / "predictions.conll").read_text().split("\n")
    assert lines[11] == "bad\tB-A\tO"
    table = (tmp_path / "entities.tsv").read_text()
    assert "A\t1.0000\t0.5000\t0.6667\t2" in table
    scores = task.score(EXAMPLES, found)
    assert (scores["precision"], scores["recall"]) == (1.0, 0.75)


def test_the_file_of_sentences_of_which_one_has_tags(words, tmp_path):
    """If any sentence lacks tags, the file has only words and predictions.

    The features then have no labels.
    """
    task, found = tagged(words)
    unknown = dataclasses.replace(EXAMPLES[0], tags=None)
    sentences = [unknown, EXAMPLES[1]]
    names = task.write_predictions(str(tmp_path / "p"), sentences, found)
    assert names == [str(tmp_path / "p.conll")]
    lines = (tmp_path / "p.conll").read_text().split("\n")
    assert lines[2] == "film\tB-A" and lines[15] == "good\tB-B"
    assert not task.features(sentences[::-1], words).token_arrays


def read(tmp_path, text, task, part="train"):
    path = tmp_path / "t.txt"
    path.write_text(text)
    return task.read(part, str(path))


def test_columns_that_are_not_given_stay(tmp_path):
    """A new name for one column leaves the names of the others.

    All of these columns are read.
    """
    task = find("ner").updated(text_column="w", label_column=("g",))
    task = task.updated(id_column="n").updated(label_column=("h",))
    columns = task.word_column, task.tag_column, task.id_column
    assert columns == ("w", "h", "n")
    text = "n\tg\tw\th\n1\tO\t10 0\tB-X\n1\tO\tb\tI-X\n"
    (found,) = read(tmp_path, text, task)
    assert (found.words, found.tags) == (("10 0", "b"), ("B-X", "I-X"))


def test_tags_of_other_files(tmp_path):
    """A tag that was not in training raises an error; indices are accepted."""
    task = make_task()
    assert read(tmp_path, "a B-A\nb I-A\n", task, "eval")
    numbers = [str(task.labels.index(tag)) for tag in ("B-A", "O")]
    (found,) = read(tmp_path, "a {}\nb {}\n".format(*numbers), task, "eval")
    assert found.tags == ("B-A", "O")
    with pytest.raises(InputError, match="t.txt:4.*'B-C'"):
        read(tmp_path, "a O\n\na O\nb B-C\n", task, "eval")
    with pytest.raises(InputError, match="t.txt:1.*a number below 5.*'5'"):
        read(tmp_path, "a 5\n", task, "eval")
    fresh = find("ner")
    with pytest.raises(InputError, match="two different tags"):
        fresh.fitted(read(tmp_path, "a O\n", fresh))


def test_the_tags_of_another_data_set_are_the_models():
    """On other data sets, the model's tags and scheme apply.

    The same holds if training continues on other examples.
    """
    trained = make_task()
    assert trained.fitted(EXAMPLES[1:]) == trained
    task = find("ner").for_model(trained)
    assert task.labels == trained.labels != ()
    assert task.scheme == trained.scheme != ""


def test_broken_tags_are_counted_in_one_note(tmp_path, capsys):
    """Illegal tags are kept, and a single note reports them.

    The note states how many there are and where the first one is. The rules are
    those of the model's tags, if there is a model. A batch in memory causes no
    note.
    """
    fresh = find("ner")
    text = "a B-A\nb I-A\nc O\nd I-A\n\ne O\nf I-B\n"
    sentences = read(tmp_path, text, fresh)
    assert sentences[1].tags == ("O", "I-B")
    note = capsys.readouterr().out
    assert "2 tags cannot follow" in note and "BIO, the first at" in note
    assert "t.txt:4" in note and note.count("\n") == 1
    for legal in ("a I-A\nb B-A\n", "a B-A\nb M-A\nc E-A\nd S-B\n", "a NN\n"):
        read(tmp_path, legal, fresh)
        assert not capsys.readouterr().out
    read(tmp_path, "a B-A\nb E-A\nc S-A\n\nd B-A\n\ne S-A\n", fresh)
    assert "BIOES, the first at " in (note := capsys.readouterr().out)
    assert "t.txt:5; " in note  # the entity's last word
    bioes = Sentence(("a", "b", "c"), ("B-A", "E-A", "S-A"), "f", 1)
    read(tmp_path, "a B-A\nb O\n", fresh.fitted([bioes]), "eval")
    assert "1 tags cannot follow" in capsys.readouterr().out
    words, tags = [["a", "b", "c"]], [["B-A", "O", "I-A"]]
    for is_batch in (True, False):
        data = {"tokens": words, "ner_tags": tags}
        fresh.read("train", InMemoryTable(data, "x", is_batch=is_batch))
        assert bool(capsys.readouterr().out) is not is_batch
    read(tmp_path, "a B-A\nb I-A\nc X\nd O\n", fresh)
    assert "1 tags mark no entity; the first is X at" in capsys.readouterr().out


def test_tags_without_prefixes_are_classes(words, tmp_path, capsys):
    """Tags without prefixes are scored by accuracy and a confusion table."""
    task = find("token_classification")
    text = "so ADV\nthe DET\nfilm -LRB-\n\ngood S-x\nfilm NOUN\n"
    examples = read(tmp_path, text, task)
    assert not capsys.readouterr().out
    task = task.fitted(examples)
    assert task.labels == ("-LRB-", "ADV", "DET", "NOUN", "S-x")
    assert task.main_metric == "accuracy"
    recall = DataConfig(main_metric="recall")
    with pytest.raises(InputError, match="must be accuracy .*=recall"):
        with_settings(find("ner"), recall).fitted(examples)
    before = dataclasses.replace(task, main_metric="f1")  # its default
    assert before.identity() == task.identity()
    features = task.features(examples, words)
    found = task.predictions(examples, label_logits(task, features), features)
    answer = task.answer({"text": "good film"}, found[1], 1)
    assert answer["entities"] == [] and answer["words"][0]["tag"] == "S-x"
    wrong = dataclasses.replace(found[0], tags=("ADV", "ADV", "-LRB-"))
    found = [wrong, *found[1:]]
    assert task.score(examples, found) == {"accuracy": 0.8}
    names = task.write_predictions(
        str(tmp_path / "predictions"), examples, found
    )
    assert names[1:] == [str(tmp_path / "confusion.tsv")]
    assert "DET\t0\t1\t0\t0\t0" in (tmp_path / "confusion.tsv").read_text()
    # Most likely, these are entities too, without prefixes or without names.
    for tag, other in (("person", "O"), ("3", "0")):
        read(tmp_path, f"a {tag}\nb {other}\n", find("ner"))
        note = capsys.readouterr().out
        assert f"tags such as {tag} count as classes" in note
