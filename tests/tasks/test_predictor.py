"""Answers to queries, given outputs that are written by hand."""

import dataclasses

import numpy as np
import pytest

from albert_tf.base.errors import InputError
from albert_tf.tasks.predictions import (
    Predictor,
    number_text,
    sibling,
    submission_path,
)
from albert_tf.tasks.registry import find


def test_absent_choices_are_never_chosen(words):
    """In one call, queries may differ in their number of choices.

    A choice that a query lacks is never chosen.
    """

    def run(features):
        rows = np.arange(len(features.lengths), dtype=np.float32)
        return {"logits": rows[:, None]}  # each example's last row is the best

    predictor = Predictor(find("multiple_choice"), words, run)
    query = {"question": "is it", "context": "the film"}
    lists = ["good", "bad"], ["good", "bad", "so so"]
    found = predictor([query | {"choices": x} for x in lists])
    for choices, answer in zip(lists, found, strict=True):
        assert answer["text"] == choices[-1]
        assert answer["choice"] == len(choices) - 1
        assert len(answer["probabilities"]) == len(choices)
        assert sum(answer["probabilities"]) == pytest.approx(1.0)


def test_absent_choices_have_no_rows(words):
    """A query with two choices needs two rows, even if the model has four."""
    rows = []

    def run(features):
        rows.append(len(features.lengths))
        return {"logits": np.zeros([rows[-1], 1], np.float32)}

    task = dataclasses.replace(find("multiple_choice"), number=4)
    query = {"question": "is it", "context": "the", "choices": ["good", "bad"]}
    (found,) = Predictor(task, words, run)([query])
    assert rows == [2] and len(found["probabilities"]) == 2


def test_a_text_without_words_has_no_tags(words):
    """A text without words has no tags, even in a batch with words.

    An entity ends with its last word, which may be a punctuation mark.
    """
    task = find("token_classification")
    task = dataclasses.replace(task, labels=("O", "B-A", "I-A"))

    def run(features):
        logits = np.zeros([len(features.lengths), 128, 3], np.float32)
        logits[..., 2] = 1.0
        logits[:, 1, 1] = 2.0
        return {"logits": logits}

    predictor = Predictor(task, words, run)
    nothing = {"entities": [], "words": []}
    assert predictor([{"text": " \n"}]) == [nothing]
    empty, full = predictor([{"text": ""}, {"text": "the  film."}])
    assert empty == nothing
    entity = {"text": "the  film.", "kind": "A", "start": 0, "end": 10}
    assert full["entities"] == [entity]
    assert [(x["text"], x["tag"]) for x in full["words"]] == [
        ("the", "B-A"),
        ("film", "I-A"),
        (".", "I-A"),
    ]


def test_the_number_of_answers_is_limited(words):
    """`top`, or 5 by default, limits the answers; the likeliest come first.

    Null odds above the threshold withhold the answer.
    """
    task = find("squad-2.0").updated(
        answer_head="simple", null_score_diff_threshold=2.5
    )

    def run(features):
        logits = np.zeros([1, features.max_seq_length], np.float32)
        logits[0, features.second_starts[0] + 1] = 3.0
        return {"start_logits": logits, "end_logits": logits}

    query = {"question": "what", "context": "the film good"}
    predictor = Predictor(task, words, run)
    (answer,) = predictor([query], top=2)
    assert [x["text"] for x in answer["answers"]][0] == "film"
    assert len(answer["answers"]) == 2
    assert len(predictor([query])[0]["answers"]) == 5  # of six spans
    assert (answer["answer"], answer["null_odds"]) == ("film", -6.0)
    predictor.task = task.updated(null_score_diff_threshold=-7.0)
    assert predictor([query])[0]["answer"] == ""


def test_classes_are_in_the_order_of_their_probabilities(words):
    """The likeliest class comes first; numbers come with their names."""
    logits = np.log(np.float32([[0.2, 0.5, 0.3]]))
    found = []
    for kind in ("classification", "regression"):
        task = dataclasses.replace(find(kind), labels=("x", "y", "z"))
        predictor = Predictor(task, words, lambda _: {"logits": logits})
        found += predictor([{"text": "a"}])
    classes, numbers = found
    assert list(classes) == ["y", "z", "x"]
    assert classes == pytest.approx({"x": 0.2, "y": 0.5, "z": 0.3})
    assert numbers == {"score": tuple(*logits), "labels": ["x", "y", "z"]}


def test_a_second_text_needs_a_task_of_pairs(words):
    """A second text is rejected unless the task is for pairs."""
    predictor = Predictor(find("sst-2"), words, None)
    with pytest.raises(InputError, match="accepts pairs.*text_pair=b"):
        predictor([{"text": "a", "text_pair": "b"}])


QUESTION = {"question": "a", "context": "b"}
GOOD = {
    "rte": {"text": "a", "text_pair": "b"},
    "squad-2.0": QUESTION,
    "multiple_choice": QUESTION | {"choices": ["a", "b"]},
}


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("sst-2", {}),
        ("sst-2", {"txt": "a"}),
        ("sst-2", {"text": "a", "label": "b"}),
        ("sst-2", {"text": None}),
        ("sst-2", {"text": 3}),
        ("sst-2", {"text": ["a"]}),
        ("sst-2", "text"),
        ("sst-2", None),
        ("rte", {"text": "a"}),
        ("rte", {"text": "a", "text_pair": None}),
        ("squad-2.0", {"question": "a"}),
        ("squad-2.0", QUESTION | {"context": 3.5}),
        ("multiple_choice", QUESTION),
        ("multiple_choice", QUESTION | {"choices": "ab"}),
        ("multiple_choice", QUESTION | {"choices": [None]}),
        ("token_classification", {"text": ["a", "b"]}),
    ],
)
def test_other_fields_and_values_are_errors(words, name, query):
    """A query with missing, unknown or illegal fields raises an error.

    The error names the query by its index.
    """
    predictor = Predictor(find(name), words, None)
    queries = [GOOD.get(name, {"text": "a"}), query]
    with pytest.raises(InputError, match=r"queries\[1\]|choices"):
        predictor(queries)


@pytest.mark.parametrize("top", [0, -1, 1.5, True])
def test_at_least_one_answer_is_returned(words, top):
    """The number of answers is a positive integer."""
    predictor = Predictor(find("squad-2.0"), words, None)
    with pytest.raises(InputError, match=f"`top` must be .*top={top}"):
        predictor([QUESTION], top=top)


@pytest.mark.parametrize("queries", ["a", {"text": "a"}, None, 3])
def test_queries_are_a_list(words, queries):
    """A query outside a list raises an error; an empty list has no answers.

    An iterator counts as a list.
    """
    predictor = Predictor(find("sst-2"), words, None)
    with pytest.raises(InputError, match="list of dicts"):
        predictor(queries)
    assert predictor([]) == predictor(iter([])) == []


def test_where_the_files_of_a_split_lie():
    """Files of a split lie beside its predictions, in a folder of any name."""
    path = "predictions/of_predictions/eval_predictions"
    assert sibling(path, "errors") == "predictions/of_predictions/eval_errors"
    names = {"": "X.tsv", "mismatched": "X-mm.tsv"}
    path = "of_predictions/predictions"
    assert submission_path(path, names) == "of_predictions/X.tsv"
    path += "_mismatched"
    assert submission_path(path, names) == "of_predictions/X-mm.tsv"
    assert submission_path("eval_predictions", names) == ""


def test_numbers_in_files_are_exact():
    """The text of a float32 number is read as the same number."""
    numbers = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    found = np.array([number_text(x) for x in numbers]).astype(np.float32)
    np.testing.assert_array_equal(found, numbers)
