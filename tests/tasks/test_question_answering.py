"""Question answering: rows, windows, both heads, answers and files."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
import tiny
from tiny_questions import CONTEXT, EXAMPLES, asked, make_task, write_squad

from albert_tf.base.errors import InputError
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.question_answering import label, question_windows
from albert_tf.tasks.registry import find
from albert_tf.tasks.squad import Answer, AnswerPrediction, Question


def test_labels_are_the_words_of_the_answer(words):
    """In each row with a label, the pieces from start to end are the answer."""
    features = make_task().features(EXAMPLES, words)
    found = {}
    rows = np.split(features.tokens, features.row_splits[1:-1])
    names = np.repeat([q.id for q in EXAMPLES], features.notes["rows"])
    for name, row, (start, end) in zip(
        names, rows, features.arrays["labels"], strict=True
    ):
        if start:
            answer = " ".join(words.pieces(row[start : end + 1]))
            found.setdefault(name, set()).add(answer)
        else:
            assert end == 0
    expected = {
        "a": {"plot of this"},
        "b": {"good film"},
        "d": {"one"},
        "e": {"poor in it"},
    }
    assert found == expected


@pytest.mark.parametrize(
    ("window", "expected"),
    [((0, 5), (7, 8)), ((3, 9), (4, 5)), ((0, 4), (0, 0)), ((4, 9), (0, 0))],
)
def test_a_window_has_all_of_an_answer_or_none(window, expected):
    """Only windows with the whole answer, tokens 3 to 4, have a label."""
    context = np.stack([np.arange(12), np.arange(12), np.arange(1, 13)])
    question = Question("a", "", "abcdefghijkl", ("de",), (3, 5))
    assert label(question, context, slice(*window), 4) == expected


def test_an_answer_that_the_tokenizer_drops():
    """An answer between two tokens is labeled with only the next token."""
    context = np.array([[7, 8], [0, 4], [2, 6]])  # ids, starts and ends
    question = Question("a", "", "ab\u200b\u200bcd", ("\u200b",), (2, 3))
    assert label(question, context, slice(0, 2), 3) == (4, 4)


def test_rows_are_question_and_window(words):
    """A row is [CLS] question [SEP] window [SEP]; the window is segment 1."""
    task = make_task()
    features = task.features(EXAMPLES, words)
    row = features.tokens[: features.row_splits[1]]
    cls, sep = words.cls_id, words.sep_id
    query = words.encode("is it good")
    context = words.encode(CONTEXT)
    assert row.tolist() == [cls, *query, sep, *context[: 16 - 6], sep]
    assert features.second_starts[0] == 5
    # A question that is too long is truncated at the end.
    long = task.features([asked("x", "is it so very good", "one")], words)
    assert long.tokens[:6].tolist()[1:5] == words.encode("is it so very")
    assert long.second_starts[0] == 6
    # Its windows are as long as those of the truncated question.
    short = task.features([asked("x", "is it so very", "one")], words)
    np.testing.assert_array_equal(long.tokens, short.tokens)


def test_windows_know_their_place_in_the_text(words):
    """The offsets in each row yield the row's words."""
    features = make_task().features(EXAMPLES, words)
    questions = question_windows(features)
    assert [len(rows) for rows in questions] == features.notes["rows"].tolist()
    for question, rows in zip(EXAMPLES, questions, strict=True):
        best = 0
        for row, window in rows:
            ids = features.tokens[slice(*features.row_splits[row : row + 2])]
            for i, piece in enumerate(words.pieces(ids[window.position : -1])):
                text = question.context[window.starts[i] : window.ends[i]]
                assert piece in (text.lower(), "[UNK]")
            best += window.is_best.sum()
        assert best == len(words.encode(question.context))


def label_logits(features, examples, question_score=9.0):
    """Return the logits of a model that always predicts the labels."""
    shape = [len(features), features.max_seq_length]
    logits = {n: np.zeros(shape, np.float32) for n in ("start", "end")}
    for row, (start, end) in enumerate(features.arrays["labels"]):
        logits["start"][row, start] = logits["end"][row, end] = 5.0
        # Text in the question cannot be an answer.
        logits["start"][row, 1] = logits["end"][row, 2] = question_score
    return {f"{n}_logits": x for n, x in logits.items()}


def answered(words, **config):
    """Return a task and its predictions, given `label_logits`."""
    task = make_task(**config)
    features = task.features(EXAMPLES, words)
    return task, task.predictions(
        EXAMPLES, label_logits(features, EXAMPLES), features
    )


def test_answers_are_slices_of_the_context(words):
    """If the positions are right, predictions are the exact answers."""
    task, found = answered(words)
    for question, prediction in zip(EXAMPLES, found, strict=True):
        if question.answers:
            best = prediction.best[0]
            assert best.text == question.answers[0]
            assert question.context[slice(*best.span)] == best.text
            assert prediction.null_odds < 0
        else:
            assert prediction.null_odds > 0
        texts = [answer.text for answer in prediction.best]
        assert len(set(texts)) == len(texts) <= 20
    assert task.score(EXAMPLES, found)["f1"] == 1.0
    for number in (1, 3):
        _, found = answered(words, n_best_size=number)
        assert {len(prediction.best) for prediction in found} == {number}


def test_answers_against_all_pairs(words):
    """The best answer is the best legal pair of positions over all windows."""
    task = make_task(n_best_size=400, max_answer_length=2)
    features = task.features(EXAMPLES, words)
    rng = np.random.default_rng(0)
    shape = [len(features), 16]
    start, end = (rng.normal(size=shape).astype(np.float32) for _ in "se")
    outputs = {"start_logits": start, "end_logits": end}
    found = task.predictions(EXAMPLES, outputs, features)
    for question, rows, prediction in zip(
        EXAMPLES, question_windows(features), found, strict=True
    ):
        scores = [
            (start[row, w.position + i] + end[row, w.position + j], i, j, w)
            for row, w in rows
            for i in range(len(w.starts))
            for j in range(i, min(i + 2, len(w.starts)))
            if w.is_best[i]
        ]
        score, i, j, window = max(scores, key=lambda s: s[0])
        best = prediction.best[0]
        assert best.score == pytest.approx(float(score))
        text = question.context[window.starts[i] : window.ends[j]]
        assert best.text == text
        null = min(start[row, 0] + end[row, 0] for row, _ in rows)
        assert prediction.null_odds == pytest.approx(null - best.score)


def first_batch(task, words):
    features = task.features(EXAMPLES, words)
    return features, next(iter(evaluation_batches(features, len(features))))


@pytest.mark.parametrize("head", ["simple", "beam"])
def test_both_heads_answer(words, head):
    """Outputs of the simple and the beam head become answers with null odds.

    For the beam head, a question's null odds are the lowest answer logit of its
    rows.
    """
    task = make_task(head, start_n_top=2, end_n_top=3)
    features, batch = first_batch(task, words)
    model = task.build_model(tiny.SHALLOW, "float32")
    outputs = task.objective.measured_outputs(model, batch)
    outputs = {k: v.numpy() for k, v in outputs.items()}
    assert outputs.pop("task_loss").shape == (len(features),)
    assert not any(
        name.endswith("log_probs") and "top" not in name for name in outputs
    )
    found = task.predictions(EXAMPLES, outputs, features)
    for question, rows, prediction in zip(
        EXAMPLES, question_windows(features), found, strict=True
    ):
        assert prediction.best[0].text in question.context
        assert np.isfinite(prediction.null_odds)
        if head == "beam":
            logits = outputs["answer_logits"][[row for row, _ in rows]]
            assert prediction.null_odds == logits.min()
    if head == "beam":
        ends = outputs["end_top_index"]  # 3 for each of 2 starts
        assert ends.shape == (len(features), 2, 3)


def test_loss_of_the_simple_head():
    """The loss is the mean of cross entropies for start and end."""
    rng = np.random.default_rng(1)
    start, end = rng.normal(size=(2, 3, 5)).astype(np.float32)
    labels = np.array([[1, 2], [0, 0], [4, 4]], np.int32)
    losses = make_task().objective.example_losses(
        {"start_logits": start, "end_logits": end}, {"labels": labels}
    )

    def nll(logits, label):
        return np.log(np.exp(logits).sum()) - logits[label]

    expected = [
        (nll(s, a) + nll(e, b)) / 2
        for s, e, (a, b) in zip(start, end, labels, strict=True)
    ]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_loss_of_the_beam_head():
    """The loss is half the sum of the start, end and answer-class losses."""
    start, end = np.log(np.full([2, 2, 4], 0.25, np.float32))
    labels = np.array([[2, 3], [0, 0]], np.int32)
    logits = np.array([1.5, -0.5], np.float32)
    losses = make_task("beam").objective.example_losses(
        {
            "start_log_probs": start,
            "end_log_probs": end,
            "answer_logits": logits,
        },
        {"labels": labels},
    )
    classes = [np.log1p(np.exp(1.5)), np.log1p(np.exp(0.5))]
    expected = [np.log(4) + x / 2 for x in classes]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_files(words, tmp_path):
    """Predictions, n-best lists and null odds have their official formats."""
    task, found = answered(words, null_score_diff_threshold=0.0)
    task = dataclasses.replace(task, submission="own.json")
    task.write_predictions(str(tmp_path / "predictions"), EXAMPLES, found)
    task.write_predictions(str(tmp_path / "eval_predictions"), EXAMPLES, found)
    read = {p.name: p.read_text() for p in tmp_path.iterdir()}
    texts = json.loads(read["predictions.json"])
    assert texts == {q.id: q.answers[0] if q.answers else "" for q in EXAMPLES}
    assert json.loads(read["own.json"]) == texts
    assert json.loads(read["eval_predictions.json"]) == texts
    entries = json.loads(read["nbest_predictions.json"])["a"]
    names = ["text", "probability", "start_log_prob", "end_log_prob"]
    assert list(entries[0]) == names and entries[0]["text"] == texts["a"]
    assert sum(e["probability"] for e in entries) == pytest.approx(1)
    odds = json.loads(read["null_odds.json"])
    assert odds["a"] < 0 < odds["c"]
    assert read["errors.tsv"].count("\n") == 1  # the header only
    assert "eval_own.json" not in read


def test_the_given_threshold_decides(words, tmp_path):
    """A low threshold withholds every answer; a high threshold, none.

    A given threshold is not tuned, even if it is 0. The best possible scores
    do not depend on it.
    """
    for threshold, number in ((-99.0, 0), (99.0, len(EXAMPLES))):
        task, found = answered(words, null_score_diff_threshold=threshold)
        task.write_predictions(str(tmp_path / "predictions"), EXAMPLES, found)
        texts = json.loads((tmp_path / "predictions.json").read_text())
        assert sum(map(bool, texts.values())) == number
        scores = task.score(EXAMPLES, found)
        assert (scores["NoAns_exact"] == 1.0) is (number == 0)
        assert scores["best_exact"] == scores["best_f1"] == 1.0
        assert task.threshold(EXAMPLES, found) == threshold
    found = [dataclasses.replace(p, null_odds=p.null_odds + 3) for p in found]
    assert make_task().threshold(EXAMPLES, found) == 3.0
    task = task.replaced(null_score_diff_threshold=0.0)
    assert task.threshold(EXAMPLES, found) == 0.0


def test_without_a_threshold_the_sign_of_the_odds_decides():
    """The default threshold for withholding an answer is 0."""
    task, best = make_task(), [Answer("x", 2.0, 1.0, (0, 1))]
    given = task.replaced(null_score_diff_threshold=1.0)
    for odds, text, other in ((-0.5, "x", "x"), (0.5, "", "x"), (1.5, "", "")):
        prediction = AnswerPrediction(best, odds)
        assert task.value(prediction) == text
        assert given.value(prediction) == other


def test_unknown_answers(words, tmp_path):
    """If any answer is unknown, there are predictions, but no error table."""
    unknown = list(EXAMPLES)
    unknown[2] = dataclasses.replace(unknown[2], answers=None)
    task = make_task()
    features = task.features(unknown, words)
    assert not features.arrays
    outputs = label_logits(task.features(EXAMPLES, words), EXAMPLES)
    found = task.predictions(unknown, outputs, features)
    assert task.threshold(unknown, found) == 0.0
    written = task.write_predictions(
        str(tmp_path / "predictions"), unknown, found
    )
    assert not [name for name in written if "errors" in name]


def test_an_empty_context(words):
    """A question with an empty context has one row, and the answer is "".

    Logits end with the longest row if batches are sorted by length.
    """
    task = make_task()
    empty = [Question("x", "is it", "", ())]
    features = task.features(empty, words)
    outputs = {
        n: np.zeros([1, 5], np.float32) for n in ("start_logits", "end_logits")
    }
    (found,) = task.predictions(empty, outputs, features)
    assert found.best == [Answer("", -1e6, -1e6, (0, 0))]


def test_own_questions_say_whether_all_have_answers(tmp_path):
    """If any question is unanswerable, the metrics are SQuAD 2.0's.

    A task of SQuAD 1.1 does not accept such a question.
    """
    own = find("question_answering")
    path = write_squad(tmp_path / "f.json", [("a film", "film"), ("a", "")])
    answers = [question.answers for question in own.read("train", path)]
    assert answers == [("film",), ()]
    with pytest.raises(InputError, match="question q1: .*squad-2.0"):
        find("squad-1.1").read("train", path)
    assert own.fitted(EXAMPLES).scoring == "squad2"
    fitted = own.fitted(EXAMPLES[:2])
    assert (fitted.scoring, fitted.impossible) == ("squad1", False)
    with pytest.raises(InputError, match="answer_head"):
        own.updated(answer_head="beam").fitted(EXAMPLES[:2])
    given = own.updated(null_score_diff_threshold=1.5).fitted(EXAMPLES)
    assert given.config.null_score_diff_threshold == 1.5


def test_models_of_one_task_on_another():
    """Models of SQuAD 2.0 can be used for SQuAD 1.1, but not the reverse."""
    learned = make_task("beam")
    other = find("squad-1.1").for_model(learned)
    assert (other.impossible, other.scoring) == (False, "squad1")
    assert other.config == learned.config
    own = find("question_answering").for_model(learned)
    assert (own.impossible, own.scoring) == (True, "squad2")
    with pytest.raises(InputError, match="unanswerable"):
        learned.for_model(find("squad-1.1"))


def test_models_that_may_learn_to_withhold_answers():
    """`reopened` lets only a task scored as SQuAD 1.1 change its scoring."""
    task = find("squad-1.1").reopened()
    assert (task.impossible, task.scoring) == (None, "")
    for name in ("squad-2.0", "cmrc2018", "question_answering"):
        assert find(name).reopened() == find(name)


def test_the_loss_reaches_every_variable(words):
    """Every variable of the beam head has a gradient.

    Biases that shift all logits of a softmax are exceptions.
    """
    task = make_task("beam")
    _, batch = first_batch(task, words)
    model = task.build_model(tiny.SHALLOW, "float32")
    with tf.GradientTape() as tape:
        sums, _ = task.objective.losses(model, batch, tf.constant([1, 2]))
    variables = [
        v
        for v in model.trainable_variables
        if "albert/" not in v.path
        and not v.path.endswith(("start/bias", "end/bias", "beta"))
    ]
    gradients = tape.gradient(sums["task"], [v.value for v in variables])
    assert len(variables) == 8
    assert all(np.abs(g).max() > 1e-6 for g in gradients)
