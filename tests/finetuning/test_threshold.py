"""SQuAD 2.0's null-odds threshold, from the best evaluation to the export."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tiny_tasks
from exporting import strings
from tiny_questions import write_squad
from tiny_runs import build, eagerly, read, refusal, run

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.finetuning.multitask import finetune_together
from albert_tf.serving.export import ExportConfig, export_model
from albert_tf.serving.litert_runner import Runner
from albert_tf.serving.server import load_server
from albert_tf.serving.signatures import ServingConfig
from albert_tf.tasks.question_answering import QuestionAnswering
from albert_tf.tasks.registry import load_task
from albert_tf.training import checkpoints

QUESTION = "is it"
F1 = [0.5, 0.9, 0.7, 0.6]  # in evaluations during training


def write_questions(path, number, seed, labeled, impossible=True):
    """Write questions about opinions; return the path.

    If both `labeled` and `impossible` are set, every third question has no
    answer.
    """
    rows = []
    for i, (text, _) in enumerate(tiny_tasks.opinions(number, seed)):
        answer = None
        if labeled:
            is_impossible = impossible and i % 3 == 0
            answer = "" if is_impossible else text.split()[-1]
        rows.append((text, answer))
    return write_squad(path, rows)


@pytest.fixture(scope="module")
def questions(tmp_path_factory, shallow):
    """Return the flags for a run on files of questions."""
    folder = tmp_path_factory.mktemp("questions")
    return {
        "task": "squad-2.0",
        "answer_head": "simple",
        "max_query_length": 3,
        "doc_stride": 5,
        "model_dir": shallow,
        "train_file": write_questions(folder / "t.json", 60, 1, True),
        "eval_file": write_questions(folder / "e.json", 40, 2, True),
        "predict_file": write_questions(folder / "p.json", 25, 3, False),
        "do_train": True,
        "do_eval": True,
        "do_predict": True,
        "num_train_steps": 4,
        "eval_steps": 1,
        "save_checkpoints_steps": 1,
        "eval_batch_size": 64,
        "random_seed": 1,  # the best weights then withhold some answers
    }


def forced_f1(values, monkeypatch):
    """Make the next evaluations report the given F1 values."""
    sequence, score = list(values), QuestionAnswering.score

    def chosen(self, examples, predictions):
        found = score(self, examples, predictions)
        return found | ({"f1": sequence.pop(0)} if sequence else {})

    monkeypatch.setattr(QuestionAnswering, "score", chosen)


@pytest.fixture(scope="module")
@eagerly()
def stopped(questions, tmp_path_factory):
    """Return the folder of a run that stopped after its best evaluation."""
    output = str(tmp_path_factory.mktemp("threshold") / "stopped")
    with pytest.MonkeyPatch.context() as monkeypatch:
        forced_f1(F1[:3], monkeypatch)
        assert run(output_dir=output, stop_step=3, **questions) == {}
    return output


@pytest.fixture(scope="module")
@eagerly()
def whole(questions, stopped):
    """Return the folder and metrics of the stopped run, resumed to its end."""
    output = shutil.copytree(stopped, os.path.dirname(stopped) + "/whole")
    with pytest.MonkeyPatch.context() as monkeypatch:
        forced_f1(F1[3:], monkeypatch)
        return output, run(output_dir=output, **questions)


def threshold(folder):
    return read(folder, "task")["config"]["null_score_diff_threshold"]


def middle(odds):
    """Return a threshold between the odds, close to their median."""
    return float(np.median(list(odds.values()))) + 1e-4


def between(value, odds, low):
    """Return whether a value separates the odds in the same way as `low`."""
    return sum(x <= value for x in odds) == sum(x <= low for x in odds)


def withheld(texts):
    return {name for name, text in texts.items() if not text}


@eagerly()
def test_the_threshold_is_that_of_the_best_weights(
    stopped, questions, tmp_path
):
    """The best weights' threshold is saved, and later runs use it.

    For the best weights' predictions, the official search finds the same
    threshold.
    """
    assert checkpoints.for_inference(stopped).endswith("ckpt-2")
    found = run(
        model_dir=stopped,
        output_dir=str(tmp_path),
        do_eval=True,
        eval_file=questions["eval_file"],
        eval_batch_size=64,
        max_seq_length=None,
    )["eval"]
    odds = read(tmp_path, "eval_null_odds").values()
    value = threshold(stopped)
    assert min(odds) < value < max(odds) and value != 0
    assert between(value, odds, found["best_f1_thresh"])
    assert found["f1"] == pytest.approx(found["best_f1"])


@eagerly()
def test_labels_to_predict_tune_no_threshold(stopped, tmp_path):
    """Labels do not affect predictions; the default threshold of 0 is used.

    The model's directory gets no threshold either.
    """
    model = str(shutil.copytree(stopped, tmp_path / "model"))
    load_task(model).replaced(null_score_diff_threshold=None).save(model)
    found = {}
    for known in (True, False):
        path = write_questions(tmp_path / f"{known}.json", 25, 3, known)
        metrics = run(
            model_dir=model,
            output_dir=model,
            do_predict=True,
            predict_file=path,
            eval_batch_size=64,
            max_seq_length=None,
        )
        found[known] = read(model, "predictions")
        assert bool(metrics) is known
    odds = read(model, "null_odds")
    assert found[True] == found[False]
    assert withheld(found[True]) == {k for k, x in odds.items() if x > 0}
    assert threshold(model) is None


@pytest.mark.slow
def test_predictions_of_the_same_run_use_it(whole, stopped):
    """The threshold also applies to questions without known answers."""
    output, metrics = whole
    assert checkpoints.for_inference(output).endswith("ckpt-2")
    assert threshold(output) == pytest.approx(threshold(stopped), abs=1e-5)
    assert metrics["eval"]["f1"] == pytest.approx(metrics["eval"]["best_f1"])
    for name in ("", "eval_"):
        odds = read(output, f"{name}null_odds")
        texts = read(output, f"{name}predictions")
        best = read(output, f"{name}nbest_predictions")
        above = {k for k, x in odds.items() if x > threshold(output)}
        assert withheld(texts) == above
        assert 0 < len(above) < len(texts)
        assert above != {k for k, x in odds.items() if x > 0}
        assert {k: best[k][0]["text"] for k in texts if texts[k]} == {
            k: text for k, text in texts.items() if text
        }


def contexts_of(questions):
    """Return {id: context} for the questions that are to be answered."""
    content = files.read_json(questions["predict_file"], "")
    paragraphs = content["data"][0]["paragraphs"]
    return {p["qas"][0]["id"]: p["context"] for p in paragraphs}


def test_what_is_served_answers_as_the_predictions(whole, questions):
    """A served model returns the answers in the predictions file."""
    contexts = contexts_of(questions)
    inputs = strings([QUESTION] * len(contexts)), strings(contexts.values())
    found = load_server(whole[0], ServingConfig()).call("answer", *inputs)[
        "answer"
    ]
    served = dict(zip(contexts, found.numpy(), strict=True))
    assert {k: x.decode() for k, x in served.items()} == read(
        whole[0], "predictions"
    )


@pytest.mark.slow
def test_litert_answers_as_the_predictions(whole, questions, tmp_path):
    """LiteRT uses the threshold in `task.json` unless the export sets one."""
    pytest.importorskip("ai_edge_litert")
    output, lite = whole[0], str(tmp_path / "lite")
    odds = read(output, "null_odds")
    other = middle(odds)
    config = ExportConfig(output, lite, to="litert")
    export_model(config, ServingConfig(null_score_diff_threshold=other))

    def answers():
        runner = Runner(lite)
        return {
            name: runner.answer({"question": QUESTION, "context": context}, 1)[
                "answer"
            ]
            for name, context in contexts_of(questions).items()
        }

    assert withheld(answers()) == {k for k, x in odds.items() if x > other}
    assert threshold(output) != other
    shutil.copy(os.path.join(output, "task.json"), lite)
    assert answers() == read(output, "predictions")


@pytest.mark.slow
def test_a_savedmodel_with_another_threshold(whole, questions, tmp_path):
    """A SavedModel uses the export's threshold and states it in `task.json`."""
    folder = str(tmp_path / "out")
    odds = read(whole[0], "null_odds")
    other = middle(odds)
    export_model(
        ExportConfig(whole[0], folder),
        ServingConfig(null_score_diff_threshold=other),
    )
    assert threshold(os.path.join(folder, "assets")) == other
    contexts = contexts_of(questions)
    found = tf.saved_model.load(folder).signatures["answer"](
        question=strings([QUESTION] * len(contexts)),
        context=strings(contexts.values()),
    )["answer"]
    texts = dict(zip(contexts, found.numpy(), strict=True))
    assert withheld(texts) == {k for k, x in odds.items() if x > other}


def test_thresholds_that_mean_nothing(shallow, finished):
    """A null-odds threshold is rejected for models of other tasks."""
    serving = ServingConfig(null_score_diff_threshold=1.0)
    for folder in (shallow, finished[0]):
        with pytest.raises(InputError, match="null_score_diff_threshold=1.0"):
            load_server(folder, serving)


@pytest.mark.slow
@eagerly()
def test_a_given_threshold_wins(whole, questions, tmp_path):
    """A given threshold applies in each run, but only training saves it."""
    output = shutil.copytree(whole[0], tmp_path / "o")
    odds = read(output, "null_odds")
    other = middle(odds)
    above = {k for k, x in odds.items() if x > other}
    tuned = threshold(output)
    assert above != withheld(read(output, "predictions"))
    predict = {
        "output_dir": str(output),
        "model_dir": str(output),
        "do_predict": True,
        "predict_file": questions["predict_file"],
        "eval_batch_size": 64,
    }
    run(**predict, null_score_diff_threshold=other)
    assert withheld(read(output, "predictions")) == above
    assert threshold(output) == tuned
    run(output_dir=str(output), null_score_diff_threshold=other, **questions)
    assert withheld(read(output, "predictions")) == above
    assert threshold(output) == other
    run(**predict)
    assert withheld(read(output, "predictions")) == above
    own = {"output_dir": str(output), "null_score_diff_threshold": tuned}
    message = refusal(**own, **questions | {"doc_stride": 6})
    assert "a different task" in message
    message = refusal(**own, **questions | {"random_seed": 2})
    assert "with other settings" in message
    assert threshold(output) == other


@eagerly()
def test_a_run_without_evaluation_uses_the_saved_threshold(
    whole, questions, tmp_path
):
    """A repeated run predicts as before, even if it no longer evaluates."""
    output = shutil.copytree(whole[0], tmp_path / "o")
    before = read(output, "predictions")
    odds = read(output, "null_odds")
    assert withheld(before) != {k for k, x in odds.items() if x > 0}
    (tmp_path / "o" / "predictions.json").unlink()
    run(output_dir=str(output), **questions | {"do_eval": False})
    assert read(output, "predictions") == before


@eagerly()
def test_evaluating_a_model_in_place_tunes_it(whole, questions, tmp_path):
    """Evaluating a model in place saves a threshold in the folder.

    The two paths to the folder may be spelled differently.
    """
    output = shutil.copytree(whole[0], tmp_path / "o")
    tuned = threshold(output)
    assert tuned is not None
    task = read(output, "task")
    task["config"]["null_score_diff_threshold"] = None
    files.write_json(str(output / "task.json"), task)
    values = {"model_dir": str(output), "eval_file": questions["eval_file"]}
    values["eval_batch_size"] = 64
    run(output_dir=str(tmp_path / "other"), do_eval=True, **values)
    assert threshold(output) is None
    run(output_dir=f"{output}{os.sep}", do_eval=True, **values)
    assert threshold(output) == pytest.approx(tuned, abs=1e-5)


@pytest.mark.slow
@eagerly()
def test_an_ensemble_has_the_mean_threshold(whole, questions, tmp_path):
    """By default, an ensemble has its members' mean threshold."""
    members = [str(tmp_path / name) for name in "ab"]
    odds = sorted(read(whole[0], "null_odds").values())
    for folder, value in zip(members, (odds[3], odds[-3] + 1.0), strict=True):
        shutil.copytree(whole[0], folder)
        task = read(folder, "task")
        task["config"]["null_score_diff_threshold"] = value
        files.write_json(os.path.join(folder, "task.json"), task)
    mean = (odds[3] + odds[-3] + 1.0) / 2
    output = str(tmp_path / "o")
    values = {"ensemble": tuple(members), "output_dir": output}
    values |= {k: questions[k] for k in ("eval_file", "predict_file")}
    run(**values, do_predict=True)
    texts, found = read(output, "predictions"), read(output, "null_odds")
    assert withheld(texts) == {k for k, x in found.items() if x > mean}
    metrics = run(**values, do_predict=True, do_eval=True)["eval"]
    assert metrics["f1"] == pytest.approx(metrics["best_f1"])
    # The mean of equal members equals each member.
    assert read(output, "predictions") == read(whole[0], "predictions")
    assert threshold(members[0]) == odds[3]


@pytest.mark.slow
@eagerly()
def test_a_task_of_several_has_its_threshold(questions, tmp_path):
    """In a run of several tasks, a task's folder contains its threshold."""
    folder, output = tmp_path / "squad", str(tmp_path / "o")
    for version, impossible in (("1.1", False), ("2.0", True)):
        for part, number in (("train", 40), ("dev", 30)):
            path = folder / f"{part}-v{version}.json"
            write_questions(path, number, number, True, impossible)
    values = {k: v for k, v in questions.items() if not k.endswith("_file")}
    values |= {"task": "squad-1.1,squad-2.0", "data_dir": str(tmp_path)}
    values |= {"output_dir": output, "do_predict": False}
    metrics = finetune_together(build(**values))["squad-2.0_eval"]
    assert metrics["f1"] == pytest.approx(metrics["best_f1"])
    own = os.path.join(output, "squad-2.0")
    odds = read(own, "eval_null_odds")
    value = threshold(own)
    assert between(value, odds.values(), metrics["best_f1_thresh"])
    above = {k for k, x in odds.items() if x > value}
    assert withheld(read(own, "eval_predictions")) == above
    assert threshold(os.path.join(output, "squad-1.1")) is None
