"""LiteRT files are small, with the same outputs as the Python model."""

import dataclasses
import functools
import io
import json
import shutil
import sys
import types

import numpy as np
import programs
import pytest
import tensorflow as tf
from exporting import MASKED, TEXTS, close, finetuned, packed, written

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.serving import litert_runner
from albert_tf.serving.export import ExportConfig
from albert_tf.serving.litert_runner import (
    MODEL_FILE,
    Runner,
    RunnerConfig,
    answers,
)
from albert_tf.tasks.predictions import Predictor
from albert_tf.tasks.registry import KINDS, find
from albert_tf.tasks.tables import Columns
from albert_tf.tasks.task import Task
from albert_tf.text.packing import pack
from albert_tf.training import checkpoints

pytest.importorskip("ai_edge_litert")

LABELS = ("fair", "bad", "好")


exported = functools.partial(written, to="litert")


@pytest.fixture(scope="module")
def pretrained(pretrained_dir, tmp_path_factory):
    """Return the folder of a pretrained model, exported in float32."""
    return exported(pretrained_dir, tmp_path_factory.mktemp("lite") / "out")


@pytest.fixture(scope="module")
def classifier(pretrained_dir, tmp_path_factory):
    """Return a pair classifier's model directory and Python model."""
    folder = tmp_path_factory.mktemp("classifier") / "model"
    model = finetuned(folder, pretrained_dir, "classification", LABELS, "pair")
    return str(folder), model


def test_fills_masks_as_the_python_model(
    pretrained, pretrained_model, tokenizer
):
    """Each mask gets the same pieces as in Python, for any number of masks.

    A text with masks beyond the maximum length raises an error.
    """
    runner = Runner(pretrained)
    assert (runner.batch_size, runner.masks) == (1, 8)
    for text in MASKED:
        ids = tokenizer.encode_masked(text)
        inputs = pack(tokenizer, ids, [], runner.length)
        places = np.flatnonzero(inputs[0] == tokenizer.mask_id)
        if len(places) < ids.count(tokenizer.mask_id):
            with pytest.raises(InputError, match="of [16]0? beyond it"):
                runner.fill_mask(text, 3)
            continue
        found = runner.fill_mask(text, 3)
        assert len(found) == len(places)
        if not len(places):
            continue
        batch = [tf.constant(x[None], tf.int32) for x in (*inputs, places)]
        logits = pretrained_model(*batch)["mlm_logits"][0]
        for answer, p in zip(found, tf.nn.softmax(logits).numpy(), strict=True):
            best = np.argsort(-p)[:3]
            assert [piece for piece, _ in answer] == tokenizer.pieces(best)
            close([share for _, share in answer], p[best])


def test_scores_pairs_as_the_python_model(
    pretrained, pretrained_model, tokenizer
):
    """For texts and pairs, outputs equal those of the Python model."""
    runner = Runner(pretrained)
    found = runner.scores(TEXTS, TEXTS[::-1])
    inputs = packed(tokenizer, TEXTS, TEXTS[::-1])
    wanted = pretrained_model.albert(*map(tf.constant, inputs))
    close(found["pooled_output"], wanted["pooled_output"])
    logits = pretrained_model.sop(wanted["pooled_output"])
    close(found["sop_logits"], logits)
    alone = pretrained_model.albert(
        *map(tf.constant, packed(tokenizer, TEXTS[:3]))
    )
    found = runner.scores(TEXTS[:3])["pooled_output"]
    close(found, alone["pooled_output"])
    query = {"text": TEXTS[0], "text_pair": TEXTS[-1]}
    found = runner.answer(query, 5)["in_order"]
    close(found, tf.nn.softmax(logits)[0, 0])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [
        ("float32", 1e-5),
        ("dynamic_int8", 0.2),
        pytest.param("float16", 0.02, marks=pytest.mark.slow),
    ],
)
def test_precisions_of_a_classifier(
    classifier, tokenizer, tmp_path, precision, tolerance
):
    """At every precision, labels and probabilities match the Python model."""
    folder, model = classifier
    out = exported(folder, tmp_path / "out", precision=precision)
    inputs = packed(tokenizer, TEXTS, TEXTS[::-1], length=12)
    wanted = tf.nn.softmax(model(*map(tf.constant, inputs))).numpy()
    found = Runner(out).scores(TEXTS, TEXTS[::-1])["probabilities"]
    close(found, wanted, tolerance)
    query = json.dumps({"text": TEXTS[0], "text_pair": TEXTS[-1]})
    (answer,) = answers(RunnerConfig(model=out, text=query))
    close([answer[label] for label in LABELS], wanted[0], tolerance)


def test_a_score_is_the_number_of_the_model(tokenizer):
    """For regression, the score of a pair is the number that the model outputs.

    For a task with single texts, a second text raises an error.
    """
    query, asked = {"text": "a", "text_pair": "the river"}, []

    def run(features):
        asked.append(features.dense()["segment_ids"].sum())
        return {"logits": np.array([[1.25]], np.float32)}

    task = find("sts-b")
    assert Predictor(task, tokenizer, run)([query]) == [{"score": 1.25}]
    assert asked == [len(tokenizer.encode("the river")) + 1]
    alone = dataclasses.replace(task, columns=Columns())
    with pytest.raises(InputError, match="accepts pairs.*text_pair=the river"):
        Predictor(alone, tokenizer, run)([query])


def test_int8_needs_text(classifier, tmp_path):
    """Without a calibration file, int8 raises an error and writes no file.

    A SavedModel does not support int8, and dynamic_int8 accepts no calibration
    file.
    """
    with pytest.raises(InputError, match="calibration_file.*precision=int8"):
        exported(classifier[0], tmp_path / "out", precision="int8")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="precision.*to=saved_model"):
        ExportConfig("a", "b", precision="int8")
    with pytest.raises(InputError, match="precision=int8.*=dynamic_int8"):
        ExportConfig("a", "b", "litert", "dynamic_int8", calibration_file="c")


def test_weights_are_stored_once(pretrained, pretrained_model):
    """The file contains only one copy of the weights that layers share."""
    content = files.read_bytes(f"{pretrained}/{MODEL_FILE}")
    names = checkpoints.named_variables(pretrained_model)
    kernels = [names[n] for n in names if "/ffn_" in n and "kernel" in n]
    assert len(kernels) == 2
    for kernel in kernels:  # LiteRT stores kernels transposed
        assert content.count(kernel.numpy().T.tobytes()) == 1


def test_the_runner_writes_its_answers_alone(pretrained):
    """The runner prints JSON answers, and nothing else, to standard output."""
    flags = f"--model={pretrained}", "--text=[MASK]"
    done = programs.run("-m", "albert_tf.litert_runner", *flags)
    assert "fill_mask" in json.loads(done.stdout)


def test_half_of_a_surrogate_pair_is_written_as_a_mark(monkeypatch, capsys):
    """A lone surrogate is printed as `?`, and later queries are answered."""
    lines, asked = [{"text": "\ud800 好"}, {"text": "b"}], []

    def answers(config):
        asked.append(config.text)
        return lines

    monkeypatch.setattr(litert_runner, "answers", answers)
    litert_runner.ask(model="m", text="~/a")
    assert asked == ["~/a"]
    lines = capsys.readouterr().out.splitlines()
    assert lines == ['{"text": "? 好"}', '{"text": "b"}']


@pytest.mark.slow
def test_an_encoder_without_heads_gives_vectors(
    pretrained_dir, pretrained_model, tokenizer, tmp_path
):
    """An encoder without heads returns the vectors of the Python model."""
    folder = tmp_path / "model"
    ignore = shutil.ignore_patterns("*ckpt*", "check*")
    shutil.copytree(pretrained_dir, folder, ignore=ignore)
    weights = checkpoints.named_variables(pretrained_model)
    encoder = {k: x for k, x in weights.items() if k.startswith("albert/")}
    checkpoints.save(str(folder), encoder)
    out = exported(folder, tmp_path / "out")
    for query in ({"text": TEXTS[0]}, {"text": TEXTS[0], "text_pair": "a"}):
        inputs = packed(
            tokenizer, [query["text"]], [query.get("text_pair", "")]
        )
        wanted = pretrained_model.albert(*map(tf.constant, inputs))
        (found,) = answers(RunnerConfig(model=out, text=json.dumps(query)))
        close(found["pooled"], wanted["pooled_output"][0])
        tokens = wanted["sequence_output"][0][: inputs[1].sum()]
        close(found["mean"], tf.reduce_mean(tokens, axis=0))


@pytest.mark.slow
def test_a_file_and_its_task_belong_together(classifier, pretrained, tmp_path):
    """A missing `task.json`, or that of another model, raises an error."""
    out = exported(classifier[0], tmp_path / "out")
    task = (tmp_path / "out" / "task.json").read_text("utf-8")
    three = json.loads(task)
    two = json.dumps(three | {"labels": three["labels"][:2]})
    ours = dataclasses.replace(find("squad-1.1"), impossible=False)
    questions = json.dumps(ours.description())
    for folder, content in (
        (out, None),
        (out, two),
        (out, questions),
        (pretrained, task),
    ):
        folder = shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True)
        (folder / "task.json").unlink(missing_ok=True)
        if content:
            (folder / "task.json").write_text(content, "utf-8")
        with pytest.raises(InputError, match="task.json.*Received: .*outputs="):
            Runner(str(folder))


def fake(**values):
    """Return a runner with the given attributes, but no interpreter."""
    runner = Runner.__new__(Runner)
    vars(runner).update(values)
    return runner


BOTH = {"sequence_output": (1, 4, 16), "pooled_output": (1, 16)}


@pytest.mark.parametrize(
    ("kind", "outputs", "said"),
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
def test_the_outputs_of_a_file_must_fit_its_task(kind, outputs, said):
    """A model that lacks the outputs that its task needs raises an error.

    A classifier must have one logit for each label.
    """
    task = kind and find(kind)
    if kind == "classification":
        task = dataclasses.replace(task, labels=LABELS)
    runner = fake(task=task, outputs=outputs)
    if said is None:
        runner._check_task("folder")
        return
    with pytest.raises(InputError, match=f"Received: model=folder, .*{said}"):
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
    asked = []

    def call(inputs, positions):
        asked.append(positions.tolist())
        logits = np.zeros([2, 2, tokenizer.vocab_size])
        logits[0, 0, 7] = logits[0, 1, 8] = logits[1, :, 9] = 99.0
        return {"mlm_logits": logits}

    runner = fake(
        tokenizer=tokenizer, length=9, batch_size=2, masks=2, call=call
    )
    found = runner.fill_mask("[MASK][MASK][MASK]", 1)
    assert asked == [[[1, 2], [0, 0]], [[3, 0], [0, 0]]]
    pieces = tokenizer.pieces([7, 8, 7])
    assert [answer[0][0] for answer in found] == pieces


@pytest.mark.parametrize(
    ("masks", "order", "pair", "said"),
    [
        (2, True, "", "fill_mask"),
        (2, True, "b", "in_order"),
        (2, False, "b", "`text_pair` needs .* text_pair=b"),
        (0, True, "b", "in_order"),
        (0, True, "", "pooled"),
        (0, False, "b", "pooled"),
    ],
)
def test_the_heads_decide_what_is_answered(tokenizer, masks, order, pair, said):
    """The heads determine whether masks are filled or pairs are scored.

    Other texts become vectors.
    """
    outputs = {
        "sequence_output": np.array([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]]]),
        "pooled_output": np.array([[0.5, 0.25]]),
    }
    outputs |= {"sop_logits": np.log([[3.0, 1.0]])} if order else {}
    runner = fake(
        tokenizer=tokenizer,
        masks=masks,
        outputs=outputs,
        fill_mask=lambda text, top_k: (text, top_k),
        packed=lambda *ids: types.SimpleNamespace(lengths=[len(ids)]),
        run=lambda features: outputs,
    )
    if "needs" in said:
        with pytest.raises(InputError, match=said):
            runner._pretrained("a", pair, 4)
        return
    found = runner._pretrained("a", pair, 4)
    wanted = {
        "fill_mask": {"fill_mask": ("a", 4)},
        "in_order": {"in_order": pytest.approx(0.75)},
        "pooled": {"pooled": [0.5, 0.25], "mean": [2.0, 4.0]},
    }
    assert found == wanted[said]


@pytest.mark.parametrize("error", [ValueError, RuntimeError, KeyError])
def test_any_error_of_the_interpreter_names_the_file(
    error, pretrained, monkeypatch
):
    """If the interpreter raises any error, our error names the model file."""

    def fail(path, num_threads):
        raise error("no file")

    monkeypatch.setattr("ai_edge_litert.interpreter.Interpreter", fail)
    with pytest.raises(InputError, match="model.tflite: .*no file"):
        Runner(pretrained)


def test_foreign_folders_are_refused(pretrained, tmp_path):
    """The error names a folder that contains no LiteRT model."""
    with pytest.raises(InputError, match="--to=litert.*tokenizer.json"):
        Runner(str(tmp_path))
    for name in ("tokenizer.json", "spiece.model"):
        files.copy(f"{pretrained}/{name}", str(tmp_path / name))
    (tmp_path / "model.tflite").write_bytes(b"no model")
    with pytest.raises(InputError, match="must contain a LiteRT model"):
        Runner(str(tmp_path))


def test_a_plain_text_is_a_query():
    """A query that is not a JSON object is the value of the field `text`.

    If the model has no such field, the error quotes the start of the query.
    """
    fields = KINDS["regression"].fields
    for line in ("a good film", "[1]", "[[links]] {in} a text", "12"):
        wanted = {"text": line, "text_pair": ""}
        assert litert_runner.fields_of(line, fields) == wanted
    fields = KINDS["question_answering"].fields
    with pytest.raises(
        InputError, match=f"`context`. Received: query='{'x' * 59}$"
    ):
        litert_runner.fields_of("x" * 99, fields)


def test_a_model_of_pairs_needs_two_texts():
    """A missing second text raises an error; an empty one does not."""
    fields = KINDS["regression"].fields
    for line in ("a good film", '{"text": "a good film"}'):
        with pytest.raises(InputError, match="`text`, `text_pair`"):
            litert_runner.fields_of(line, fields, is_pair=True)
    line = '{"text": "a", "text_pair": ""}'
    found = litert_runner.fields_of(line, fields, is_pair=True)
    assert found == {"text": "a", "text_pair": ""}


def test_the_length_of_a_query_is_limited():
    """A query has at most 200,000 characters, as text or as JSON."""
    fields = KINDS["regression"].fields
    text = "x" * 200_000
    assert litert_runner.fields_of(text, fields)["text"] == text
    for line in (text + "x", json.dumps({"text": text})):
        rule = f"at most 200,000 characters. Received: characters={len(line)}"
        with pytest.raises(InputError, match=rule):
            litert_runner.fields_of(line, fields)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "a"', "Expecting ',' delimiter"),
        ("{good film}", "Expecting property name"),
        ("[" * 101 + "]" * 101, "too many levels"),
        ("[" * 100_000, "too many levels"),
    ],
)
def test_damaged_json_is_no_text(line, reason):
    """Queries that begin like objects or nest deeply must be valid JSON."""
    with pytest.raises(InputError, match=f"valid JSON: {reason}"):
        litert_runner.fields_of(line, KINDS["regression"].fields)


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


OF_CHOICE = {"question": "a", "context": "b", "choices": ["c"]}


@pytest.mark.parametrize(
    ("kind", "line", "named"),
    [
        ("embedding", '{"text": "a", "text_pair": "b"}', "text_pair='b'"),
        ("token_classification", '{"text": "a", "context": 2}', "context=2"),
        ("question_answering", '{"question": "a", "context": "b"}', None),
        ("regression", '{"text": "a", "number": 3}', "number=3"),
        (None, '{"text": "a", "bogus": 1}', "bogus=1"),
        ("multiple_choice", json.dumps(OF_CHOICE | {"b": []}), "b="),
    ],
)
def test_other_fields_are_an_error(kind, line, named):
    """A field that the model does not have raises an error, as in Python."""
    fields = KINDS[kind].fields if kind else Task.fields
    if named is None:
        assert {*litert_runner.fields_of(line, fields)} == {*fields}
        return
    with pytest.raises(InputError, match=f"no other fields.*{named}"):
        litert_runner.fields_of(line, fields)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": null}', "`text` must be a text. Received: query, text=None"),
        ('{"txt": "a"}', "have `text`. Received: query={'txt': 'a'}"),
        (json.dumps({"text": ["a" * 70]}), "query, text=['" + "a" * 58),
        ('{"text": "a"', "valid JSON: Expecting"),
        (json.dumps({"text": "a", "text_pair": "b" * 70}), "pair=" + "b" * 60),
    ],
)
def test_an_error_names_the_line_of_a_query(line, said, monkeypatch):
    """The answers to earlier lines are returned; the error names the line.

    The error also names the field whose value is wrong, and quotes at most 60
    characters of the value.
    """

    def answer(query, top_k):
        return task.example(**query).text

    task = find("sst-2")
    how = {"task": task, "fields": task.fields, "is_pair": False}
    runner = fake(answer=answer, **how)
    monkeypatch.setattr(litert_runner, "Runner", lambda *_: runner)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"good\n{line}\nbad\n"))
    found = answers(RunnerConfig("model"))
    assert next(found) == "good"
    with pytest.raises(InputError) as error:
        next(found)
    message = str(error.value)
    assert message.startswith("Standard input, line 2: ")
    assert said in message and len(message) < 190
    with pytest.raises(InputError, match="^`text`: "):
        next(answers(RunnerConfig("model", line)))
