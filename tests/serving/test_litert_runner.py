"""The LiteRT runner reads queries, runs batches and checks the model."""

import dataclasses
import io
import json
import sys
import types

import numpy as np
import pytest

from albert_tf.base.errors import InputError
from albert_tf.serving import litert_runner
from albert_tf.serving.litert_runner import (
    Runner,
    RunnerConfig,
    answers,
    fields_of,
)
from albert_tf.tasks.predictions import Predictor
from albert_tf.tasks.registry import KINDS, find
from albert_tf.tasks.tables import Columns
from albert_tf.tasks.task import Task

BOTH = {"sequence_output": (1, 4, 16), "pooled_output": (1, 16)}


def fake(**values):
    """Return a runner with the given attributes, but no interpreter."""
    runner = Runner.__new__(Runner)
    vars(runner).update(values)
    return runner


def test_a_score_is_the_number_of_the_model(tokenizer):
    """For regression, the score of a pair is the number that the model outputs.

    Several numbers come with their names. For a task with single texts, a
    second text raises an error.
    """
    query, tokens = {"text": "a", "text_pair": "the river"}, []

    def run(features):
        tokens.append(features.dense()["segment_ids"].sum())
        return {"logits": np.array([[1.25, 2.5][:number]], np.float32)}

    task, number, model = find("sts-b"), 1, (tokenizer, run)
    assert Predictor(task, *model)([query]) == [{"score": 1.25}]
    assert tokens == [len(tokenizer.encode("the river")) + 1]
    number, names = 2, ("joy", "fear")
    several = dataclasses.replace(task, labels=names)
    (answer,) = Predictor(several, *model)([query])
    assert answer == {"score": (1.25, 2.5), "labels": [*names]}
    single = dataclasses.replace(task, columns=Columns())
    with pytest.raises(InputError, match="accepts pairs.*text_pair=the river"):
        Predictor(single, *model)([query])


def test_half_of_a_surrogate_pair_is_written_as_a_mark(monkeypatch, capsys):
    """A lone surrogate is printed as `?`, and later queries are answered."""
    lines, texts = [{"text": "\ud800 好"}, {"text": "b"}], []

    def answers(config):
        texts.append(config.text)
        return lines

    monkeypatch.setattr(litert_runner, "answers", answers)
    litert_runner.ask(model="m", text="~/a")
    assert texts == ["~/a"]
    lines = capsys.readouterr().out.splitlines()
    assert lines == ['{"text": "? 好"}', '{"text": "b"}']


@pytest.mark.parametrize(
    ("kind", "outputs", "message"),
    [
        (None, BOTH, None),
        (None, BOTH | {"sop_logits": (1, 2)}, None),
        (None, {"pooled_output": (1, 16)}, "task=none, no task.json, outputs="),
        ("classification", {"logits": (1, 3)}, None),
        ("classification", {"logits": (1, 2)}, "task=classification"),
        ("classification", BOTH, "outputs=sequence_output, pooled_output$"),
        ("regression", {"logits": (1, 1)}, None),
    ],
)
def test_the_outputs_of_a_file_must_fit_its_task(kind, outputs, message):
    """A model that lacks the outputs that its task needs raises an error.

    A classifier must have one logit for each label.
    """
    task = kind and find(kind)
    if kind == "classification":
        task = dataclasses.replace(task, labels=("a", "b", "c"))
    runner = fake(task=task, outputs=outputs)
    if message is None:
        runner._check_task("folder")
        return
    with pytest.raises(
        InputError, match=f"Received: model=folder, .*{message}"
    ):
        runner._check_task("folder")


def test_copies_of_the_last_row_fill_a_batch():
    """A batch that is not full is filled with copies of the last row.

    The outputs of the copies are dropped.
    """
    calls = []

    def call(inputs):
        calls.append(inputs["input_ids"][:, 0].tolist())
        return {"double": 2 * inputs["input_ids"]}

    features = types.SimpleNamespace(
        lengths=[1] * 4, dense=lambda: {"input_ids": np.arange(4)[:, None]}
    )
    found = fake(batch_size=3, call=call).run(features)
    assert calls == [[0, 1, 2], [3, 3, 3]]
    assert found["double"][:, 0].tolist() == [0, 2, 4, 6]


def test_masks_of_a_text_are_in_the_first_row_of_a_batch(tokenizer):
    """If the batch size is above 1, only the first row has masks to fill."""
    calls = []

    def call(inputs, positions):
        calls.append(positions.tolist())
        logits = np.zeros([2, 2, tokenizer.vocab_size])
        logits[0, 0, 7] = logits[0, 1, 8] = logits[1, :, 9] = 99.0
        return {"mlm_logits": logits}

    runner = fake(
        tokenizer=tokenizer, length=9, batch_size=2, masks=2, call=call
    )
    found = runner.fill_mask("[MASK][MASK][MASK]", 1)
    assert calls == [[[1, 2], [0, 0]], [[3, 0], [0, 0]]]
    pieces = tokenizer.pieces([7, 8, 7])
    assert [answer[0][0] for answer in found] == pieces


FILLED = {"fill_mask": ("a", 4)}
ORDER = {"in_order": pytest.approx(0.75)}
VECTORS = {"pooled": [0.5, 0.25], "mean": [2.0, 4.0]}


@pytest.mark.parametrize(
    ("masks", "order", "pair", "answer"),
    [
        (2, True, "", FILLED),
        (2, True, "b", ORDER),
        (2, False, "b", None),
        (0, True, "b", ORDER),
        (0, True, "", VECTORS),
        (0, False, "b", VECTORS),
    ],
)
def test_the_heads_decide_what_is_answered(
    tokenizer, masks, order, pair, answer
):
    """The heads determine whether masks are filled or pairs are scored.

    Other texts become vectors.
    """
    outputs = {"pooled_output": np.array([[0.5, 0.25]])}
    outputs |= {"sop_logits": np.log([[3.0, 1.0]])} if order else {}

    def run(features):
        states = np.full([1, 9, 2], 9.0)
        states[0, : features.lengths[0]] = [2.0, 4.0]  # the rest is padding
        states[0, 0] += 1.0, -1.0
        states[0, 1] -= 1.0, -1.0
        return outputs | {"sequence_output": states}

    runner = fake(
        tokenizer=tokenizer,
        length=9,
        masks=masks,
        outputs=outputs,
        fill_mask=lambda text, top_k: (text, top_k),
        run=run,
    )
    if answer is None:
        with pytest.raises(InputError, match="`text_pair` needs .*pair=b"):
            runner._pretrained("a", pair, 4)
    else:
        assert runner._pretrained("a", pair, 4) == answer


LONGEST = "x" * 200_000
CHOICES = {"question": "a", "context": "b", "choices": ["c"]}


@pytest.mark.parametrize(
    ("kind", "is_pair", "line", "values"),
    [
        ("regression", False, "a good film", ("a good film", "")),
        ("regression", False, "[1]", ("[1]", "")),
        ("regression", False, "[[links]] {in} it", ("[[links]] {in} it", "")),
        ("regression", False, "12", ("12", "")),
        ("regression", False, LONGEST, (LONGEST, "")),
        ("regression", True, '{"text": "a", "text_pair": ""}', ("a", "")),
        (
            "question_answering",
            False,
            '{"question": "a", "context": "b"}',
            ("a", "b"),
        ),
    ],
)
def test_a_query_is_an_object_or_a_text(kind, is_pair, line, values):
    """A query that is not a JSON object is the value of the field `text`."""
    fields = KINDS[kind].fields
    wanted = dict(zip(fields, values, strict=True))
    assert fields_of(line, fields, is_pair) == wanted


@pytest.mark.parametrize(
    ("kind", "is_pair", "line", "message"),
    [
        # The error quotes the start of the query.
        ("question_answering", False, "x" * 99, f"xt`.*query='{'x' * 59}$"),
        ("regression", True, "a good film", "`text`, `text_pair`"),
        ("regression", True, '{"text": "a"}', "`text`, `text_pair`"),
        ("regression", False, f"{LONGEST}x", "200,000 .*characters=200001"),
        ("regression", False, f'{{"text": "{LONGEST}"}}', "characters=200012"),
        # Queries that begin like objects or nest deeply must be valid JSON.
        ("regression", False, '{"text": "a"', "JSON: Expecting ',' delimiter"),
        ("regression", False, "{good film}", "JSON: Expecting property name"),
        ("regression", False, "[" * 101 + "]" * 101, "JSON: too many levels"),
        ("regression", False, "[" * 100_000, "JSON: too many levels"),
        # The model must have all fields of the query.
        (
            "embedding",
            False,
            '{"text": "a", "text_pair": "b"}',
            "no other fields.*text_pair='b'",
        ),
        (
            "token_classification",
            False,
            '{"text": "a", "context": 2}',
            "no other fields.*context=2",
        ),
        (
            "regression",
            False,
            '{"text": "a", "number": 3}',
            "no other fields.*number=3",
        ),
        (None, False, '{"text": "a", "bogus": 1}', "no other fields.*bogus=1"),
        (
            "multiple_choice",
            False,
            json.dumps(CHOICES | {"b": []}),
            "no other fields.*b=",
        ),
    ],
)
def test_a_query_that_is_not_legal_is_refused(kind, is_pair, line, message):
    """The error states the rule that a query breaks."""
    fields = KINDS[kind].fields if kind else Task.fields
    with pytest.raises(InputError, match=message):
        fields_of(line, fields, is_pair)


@pytest.mark.parametrize(
    ("kind", "masks", "legal"),
    [
        ("classification", 0, False),
        ("multiple_choice", 0, False),
        ("question_answering", 0, True),
        (None, 8, True),
        (None, 0, False),
    ],
)
def test_top_k_needs_masks_or_questions(kind, masks, legal, monkeypatch):
    """Only models that fill masks or answer questions accept `top_k`.

    All models accept the default.
    """
    runner = fake(
        task=kind and find(kind),
        masks=masks,
        answer=lambda query, top_k: top_k,
        fields=Task.fields,
        is_pair=False,
    )
    monkeypatch.setattr(litert_runner, "Runner", lambda *_: runner)
    assert [*answers(RunnerConfig("model", "a"))] == [5]
    if legal:
        assert [*answers(RunnerConfig("model", "a", 6))] == [6]
        return
    with pytest.raises(InputError, match="`top_k` needs.*top_k=6"):
        next(answers(RunnerConfig("model", "a", 6)))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": null}', "`text` must be a string. Received: query, text"),
        ('{"txt": "a"}', "have `text`. Received: query={'txt': 'a'}"),
        (json.dumps({"text": ["a" * 70]}), "query, text=['" + "a" * 58),
        ('{"text": "a"', "valid JSON: Expecting"),
        (json.dumps({"text": "a", "text_pair": "b" * 70}), "pair=" + "b" * 60),
    ],
)
def test_an_error_names_the_line_of_a_query(line, reason, monkeypatch):
    """The answers to earlier lines are returned; the error names the line.

    The error also names the field whose value is wrong, and quotes at most 60
    characters of the value.
    """

    def answer(query, top_k):
        return task.example(**query).text

    task = find("sst-2")
    settings = {"task": task, "fields": task.fields, "is_pair": False}
    runner = fake(answer=answer, **settings)
    monkeypatch.setattr(litert_runner, "Runner", lambda *_: runner)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"good\n{line}\nbad\n"))
    found = answers(RunnerConfig("model"))
    assert next(found) == "good"
    with pytest.raises(InputError) as error:
        next(found)
    message = str(error.value)
    assert message.startswith("Standard input, line 2: ")
    assert reason in message and len(message) < 190
    with pytest.raises(InputError, match="^`text`: "):
        next(answers(RunnerConfig("model", line)))
