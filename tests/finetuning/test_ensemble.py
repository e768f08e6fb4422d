"""Ensembles, runs with several seeds, and distillation."""

import dataclasses
import os
import shutil
from unittest import mock

import keras
import numpy as np
import pytest
import scipy.special
import tiny
import tiny_tasks
import vocabularies
from tiny_runs import build, eagerly, predictions, read, refusal, run, weights

from albert_tf.base.errors import InputError
from albert_tf.finetuning import evaluation
from albert_tf.finetuning import finetune as finetuning_run
from albert_tf.finetuning.finetune import for_ensemble, summary
from albert_tf.finetuning.finetuning_setup import Job, Split
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import find
from albert_tf.text.tokenizers import load_saved_tokenizer
from albert_tf.training import checkpoints
from albert_tf.training.distribution import DistributionConfig, make_strategy
from albert_tf.training.history import History

pytestmark = pytest.mark.usefixtures("quick_collections")


@pytest.fixture(scope="module")
def seeds(pretrained, opinions, tmp_path_factory):
    """Return the folder and metrics of a run with two seeds."""
    output = str(tmp_path_factory.mktemp("seeds") / "o")
    return output, run(
        model_dir=pretrained,
        output_dir=output,
        do_train=True,
        do_eval=True,
        num_seeds=2,
        random_seed=7,
        num_train_steps=12,
        eval_steps=6,
        **opinions,
    )


def members(seeds):
    return [os.path.join(seeds[0], f"seed_{n}") for n in (7, 8)]


@pytest.mark.slow
def test_a_run_of_several_seeds_is_several_runs(
    seeds, pretrained, opinions, tmp_path
):
    """The second seed's weights match a run with only that seed."""
    run(
        model_dir=pretrained,
        output_dir=str(tmp_path),
        do_train=True,
        do_eval=True,
        random_seed=8,
        num_train_steps=12,
        eval_steps=6,
        **opinions,
    )
    name = "albert/pooler/kernel"
    one, two = (weights(folder, name) for folder in members(seeds))
    np.testing.assert_array_equal(two, weights(str(tmp_path), name))
    assert np.any(one != two)


@pytest.mark.slow
def test_the_summary_of_several_seeds(seeds):
    """A summary has the scores' median and range, and the best run's folder."""
    output, metrics = seeds
    written = read(output)
    runs = [read(folder)["eval"] for folder in members(seeds)]
    scores = [run["accuracy"] for run in runs]
    assert metrics["eval_median"]["accuracy"] == pytest.approx(sum(scores) / 2)
    assert metrics["eval_min"]["accuracy"] == min(scores)
    assert metrics["eval_max"]["accuracy"] == max(scores)
    assert written["eval_median"] == metrics["eval_median"]
    assert written["runs"]["8"]["eval"] == runs[1]
    assert written["best"] == members(seeds)[int(np.argmax(scores))]


def test_medians_of_three():
    """Each metric has a separate median, spread and range over the seeds.

    The spread is the sample standard deviation, as in the tables of papers.
    """
    runs = {
        seed: {"eval": {"f1": x, "loss": 1 - x}}
        for seed, x in ((1, 0.5), (2, 0.9), (3, 0.6))
    }
    found = summary(runs)
    assert found["eval_median"] == {"f1": 0.6, "loss": 0.4}
    assert found["eval_min"]["f1"] == 0.5 and found["eval_max"]["f1"] == 0.9
    # The squares of -1/6, 7/30 and -1/15 sum to 13/150; divided by 2 runs.
    assert found["eval_std"]["f1"] == pytest.approx((13 / 300) ** 0.5)


def run_seeds(monkeypatch, tmp_path, run_job, number, **values):
    """Return the summary of runs from seed 7, with a function for one run."""
    monkeypatch.setattr(finetuning_run, "run_job", run_job)
    values |= {"output_dir": str(tmp_path), "do_train": True}
    s = build(model_dir="m", num_seeds=number, random_seed=7, **values)
    job = Job(find("classification"), None, None, (), (), ())
    strategy = make_strategy(DistributionConfig())
    return finetuning_run.run_seeds(s, job, strategy)


def test_the_best_seed_is_that_of_the_evaluation(tmp_path, monkeypatch):
    """The best seed does not depend on metrics of a labeled test set."""
    scores = {7: (0.9, 0.5), 8: (0.1, 0.6)}

    def run_job(s, job, strategy):
        seed = s.training.random_seed
        values = scores[seed]
        folder = str(tmp_path / f"seed_{seed}")
        assert (s.run.output_dir, s.run.num_seeds) == (folder, 1)
        metrics = {
            split: {"accuracy": value}
            for split, value in zip(("predict", "eval"), values, strict=True)
        }
        evaluation.write_metrics(folder, metrics)
        return metrics

    run_seeds(monkeypatch, tmp_path, run_job, 2)
    written = read(tmp_path)
    assert written["best"] == str(tmp_path / "seed_8")


def test_the_summary_is_of_what_each_seed_has(tmp_path, monkeypatch):
    """The summary covers the splits for which every seed has results.

    The results must be on the same file. Results of an earlier run count if
    they are in the seeds' folders; `write_report` drops results of earlier
    weights from these folders.
    """
    stored = {
        7: {"eval": {"accuracy": 0.5}, "predict": {"accuracy": 0.75}},
        8: {"eval": {"accuracy": 0.25}, "predict": {"accuracy": 1.0}},
        9: {"eval": {"accuracy": 0.0}},
    }

    def run_job(s, job, strategy):
        metrics = stored[s.training.random_seed]
        evaluation.write_metrics(s.run.output_dir, {"model": "m"} | metrics)
        return {}

    found = run_seeds(monkeypatch, tmp_path, run_job, 2)
    assert found["eval_median"] == {"accuracy": 0.375}
    assert found["predict_max"] == {"accuracy": 1.0}
    found = run_seeds(monkeypatch, tmp_path, run_job, 3)
    assert found["eval_median"] == {"accuracy": 0.25}
    assert not any(name.startswith("predict") for name in found)
    assert read(tmp_path)["best"] == str(tmp_path / "seed_7")
    stored[9]["eval_file"] = "other.tsv"  # evaluated alone
    found = run_seeds(monkeypatch, tmp_path, run_job, 3)
    assert not found and "best" not in read(tmp_path)
    stored |= dict.fromkeys(stored, {})  # trained further, without evaluation
    assert run_seeds(monkeypatch, tmp_path, run_job, 3) == {}
    runs = {"7": {}, "8": {}, "9": {}}
    expected = {"task": "classification", "seeds": [7, 8, 9], "runs": runs}
    assert read(tmp_path) == expected


def steps_of_seeds(monkeypatch, tmp_path, ends, **values):
    """Return the seeds whose runs start, given each run's hours and metrics."""
    begun = []

    def run_job(s, job, strategy):
        begun.append(s.training.random_seed)
        (limit,) = s.hooks
        hours, metrics = ends[len(begun) - 1]
        limit.start -= hours * 3600
        run = mock.Mock(stopped_by="", seconds={}, in_any_process=bool)
        run.stop = lambda reason: setattr(run, "stopped_by", reason)
        limit.after(run, mock.Mock(seconds=1.0))
        limit.end(run)
        return metrics

    run_seeds(monkeypatch, tmp_path, run_job, 3, **values)
    return begun


@pytest.mark.parametrize(
    "ends, values, begun",
    [
        ([(0.6, {})] * 3, {"max_hours": 1.0}, [7, 8]),
        ([(0.6, {})] * 3, {"max_hours": 2.0}, [7, 8, 9]),
        ([(0.0, None)] * 3, {"stop_step": 5}, [7, 8, 9]),
    ],
)
def test_hours_are_of_all_seeds_and_a_step_of_each(
    ends, values, begun, monkeypatch, tmp_path
):
    """`max_hours` limits all seeds together; `stop_step` limits each seed.

    There is a summary only if every seed's run is complete.
    """
    assert steps_of_seeds(monkeypatch, tmp_path, ends, **values) == begun
    is_complete = len(begun) == 3 and "stop_step" not in values
    assert (tmp_path / "metrics.json").exists() is is_complete


def test_steps_are_of_examples_not_of_rows(monkeypatch):
    """The number of steps follows from examples, even of several rows each."""
    rows = [(np.zeros(3, np.int32), 3)] * 6
    features = Features.from_rows(rows, {}, 0, 16, rows_per_example=2)
    split = Split("train", [None] * 3, features)
    job = Job(find("multiple_choice"), None, None, (split,), (), ())
    unlocked = mock.MagicMock()
    monkeypatch.setattr(checkpoints, "locked_model_dir", unlocked)
    monkeypatch.setattr(finetuning_run, "train", lambda s, *_: (s, ""))
    how = {"model_dir": "m", "output_dir": "o", "do_train": True}
    how |= {"num_train_steps": None, "num_train_epochs": 8.0}
    _, s, _ = finetuning_run.train_in_output_dir(build(**how), job, None)
    assert s.training.num_train_steps == 2  # 24 examples in batches of 16


def test_seeds_leave_another_model_alone(copy, pretrained, opinions):
    """Runs with several seeds cannot write to a model directory."""
    message = refusal(
        model_dir=pretrained,
        output_dir=str(copy),
        do_train=True,
        num_seeds=2,
        **opinions,
    )
    assert "must not be a model directory" in message


@pytest.mark.parametrize("part", ["do_train", "do_eval", "do_predict"])
def test_the_results_of_seeds_are_not_replaced(
    tmp_path, finished, opinions, part
):
    """A single run cannot replace the summary of several seeds."""
    path = tmp_path / "metrics.json"
    path.write_text('{"task": "classification", "seeds": [7, 8]}', "utf-8")
    where = {"model_dir": finished[0], "output_dir": str(tmp_path)}
    message = refusal(**where, **{part: True}, **opinions)
    assert "must not contain the results of several seeds" in message
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("values", [{}, {"num_seeds": 2}])
def test_the_results_of_tasks_are_not_replaced(
    tmp_path, finished, opinions, values
):
    """A run of one task cannot replace the summary of several tasks.

    The run can replace the results of another single task.
    """
    path = tmp_path / "metrics.json"
    path.write_text('{"task": "sst-2,rte"}', "utf-8")
    where = {"model_dir": finished[0], "output_dir": str(tmp_path)}
    message = refusal(**where, do_train=True, **opinions, **values)
    assert "results of several tasks" in message and "sst-2, rte" in message
    assert [*tmp_path.iterdir()] == [path]
    evaluation.check_results(str(tmp_path), ["rte", "sst-2"], False)
    for tasks in (["rte"], ["rte", "sst-2", "cola"]):
        with pytest.raises(InputError, match="results of several tasks"):
            evaluation.check_results(str(tmp_path), tasks, False)
    path.write_text('{"task": "sst-2"}', "utf-8")
    evaluation.check_results(str(tmp_path), [None], False)


def finetuned(folder, task, config, tokenizer, seed):
    """Write a fine-tuned model directory; return the model."""
    keras.utils.set_random_seed(seed)
    model = task.build_model(config, "float32")
    config.save(folder)
    task.save(folder)
    tokenizer.save(folder)
    checkpoints.save(folder, checkpoints.named_variables(model))
    return model


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("bucketing", ["evaluation", "none"])
@eagerly()
def test_an_ensemble_averages_logits(words, tmp_path, bucketing):
    """The mean logits of unequal members determine an ensemble's predictions.

    Batches may be sorted by length, but predictions are in the file's order.
    """
    task = dataclasses.replace(
        find("classification"), labels=("bad", "fair", "good")
    ).updated(max_seq_length=16)
    texts = ("a good film", "so awful it is", "bad", "the plot of " * 9)
    labels = ("good", "bad", "fair", "good")
    path = tiny_tasks.write_tsv(
        tmp_path / "e.tsv",
        ("text", "label"),
        *zip(texts, labels, strict=True),
    )
    features = task.features(task.read("eval", path), words)
    small = dataclasses.replace(tiny.CONFIG, initializer_range=0.5)
    # Layers share weights, so both models have variables of the same shapes.
    large = dataclasses.replace(
        small, num_hidden_layers=3, num_attention_heads=4
    )
    folders, logits = [], []
    for seed, config in enumerate((small, large)):
        folders.append(str(tmp_path / f"model{seed}"))
        model = finetuned(folders[-1], task, config, words, seed)
        logits.append(model(*features.dense().values()).numpy())
    assert np.abs(logits[0] - logits[1]).max() > 0.1
    output = str(tmp_path / "output")
    metrics = run(
        ensemble=tuple(folders),
        output_dir=output,
        do_eval=True,
        eval_file=path,
        eval_batch_size=2,
        max_seq_length=None,
        length_bucketing=bucketing,
    )
    expected = scipy.special.log_softmax(np.mean(logits, axis=0), axis=-1)
    rows = predictions(os.path.join(output, "eval_predictions.tsv"))
    found = [[float(row[f"p({x})"]) for x in task.labels] for row in rows]
    np.testing.assert_allclose(found, np.exp(expected), atol=1e-5)
    right = [row["label"] == row["prediction"] for row in rows]
    assert metrics["eval"]["accuracy"] == pytest.approx(np.mean(right))
    loss = -expected[range(4), features.arrays["labels"]].mean()
    assert metrics["eval"]["loss"] == pytest.approx(loss, abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("classification", [{"labels": tuple(x)} for x in ("xy", "xy", "yx")]),
        ("multiple_choice", [{"number": n} for n in (4, 4, 3)]),
    ],
)
def test_members_have_one_task(pretrained, tmp_path, kind, changes):
    """If a member's task differs, the error names it and the first member.

    The column of the examples' names may differ.
    """
    task = find(kind).updated(max_seq_length=16)
    folders = [str(tmp_path / name) for name in "abc"]
    for folder, fields in zip(folders, changes, strict=True):
        shutil.copytree(pretrained, folder)
        named = task.with_columns({"id_column": folder[-1]})
        dataclasses.replace(named, **fields).save(folder)
    job = Job(task, tiny.CONFIG, load_saved_tokenizer(pretrained), (), (), ())
    evaluation.check_members(folders[:2], job)
    other = f"same task.*ensemble={folders[0]},{folders[2]}$"
    for chosen in (folders, folders[::2]):
        with pytest.raises(InputError, match=other):
            evaluation.check_members(chosen, job)
    beam = dataclasses.replace(job, task=find("squad-2.0"))
    with pytest.raises(InputError, match="averaged.*task=squad-2.0"):
        evaluation.check_members(folders[:2], beam)


THRESHOLD = "null_score_diff_threshold"


def test_members_may_have_different_thresholds(pretrained, tmp_path):
    """Thresholds, which differ from model to model, do not matter."""
    task = find("squad-2.0").updated(max_seq_length=16, answer_head="simple")
    folders = [str(tmp_path / name) for name in "ab"]
    for folder, value in zip(folders, (1.0, 2.5), strict=True):
        shutil.copytree(pretrained, folder)
        task.replaced(null_score_diff_threshold=value).save(folder)
    job = Job(task, tiny.CONFIG, load_saved_tokenizer(pretrained), (), (), ())
    evaluation.check_members(folders, job)


@pytest.mark.parametrize(
    ("saved", "values", "expected"),
    [
        ((1.0, 4.0), {"do_predict": True}, 2.5),
        ((1.0, None), {"do_predict": True}, None),
        ((1.0, 4.0), {"do_eval": True}, None),
        ((1.0, 4.0), {"do_predict": True, THRESHOLD: 0.0}, 9.0),
    ],
)
def test_the_threshold_of_an_ensemble(
    saved, values, expected, tmp_path, monkeypatch
):
    """An ensemble's null-odds threshold is the mean of its members' thresholds.

    A tuned or given threshold takes precedence. If a member has no threshold,
    the ensemble has none.
    """
    monkeypatch.setattr(evaluation, "check_members", lambda *_: None)
    task = find("squad-2.0").replaced(null_score_diff_threshold=9.0)
    folders = tuple(str(tmp_path / name) for name in "ab")
    for folder, value in zip(folders, saved, strict=True):
        os.mkdir(folder)
        task.replaced(null_score_diff_threshold=value).save(folder)
    s = build(**values, ensemble=folders, output_dir=str(tmp_path / "o"))
    job = for_ensemble(s, Job(task, None, None, (), (), ()))
    assert job.task == task.replaced(null_score_diff_threshold=expected)


@pytest.mark.slow
def test_members_that_do_not_fit(seeds, opinions, pretrained, tmp_path):
    """Members must be fine-tuned for the same task and have the same pieces."""
    one, two = members(seeds)
    other = shutil.copytree(two, tmp_path / "other")
    text = (other / "task.json").read_text()
    (other / "task.json").write_text(text.replace('"good"', '"fine"'))
    values = {"output_dir": str(tmp_path / "o"), "do_eval": True}
    values |= {"eval_file": opinions["eval_file"], "max_seq_length": None}
    assert "same task" in refusal(ensemble=(one, str(other)), **values)
    words = shutil.copytree(two, tmp_path / "words")
    pieces = (words / "vocab.txt").read_text().split("\n")
    pieces[6], pieces[7] = pieces[7], pieces[6]
    vocabularies.exchange(words, pieces)
    assert "same tokenizer" in refusal(ensemble=(one, str(words)), **values)
    assert "fine-tuned" in refusal(ensemble=(one, pretrained), **values)
    assert "at least two" in refusal(ensemble=(one,), **values)


def log_probabilities(folder):
    """Return the logarithms of the predicted probabilities."""
    rows = predictions(os.path.join(folder, "predictions.tsv"))
    p = [[float(row[f"p({x})"]) for x in ("bad", "good")] for row in rows]
    return np.log(np.maximum(p, 1e-7))


@eagerly()
def test_the_teacher_is_in_the_loss(finished, opinions, tmp_path):
    """The loss is a weighted sum of the losses for the labels and the teacher.

    The only step uses all examples and a learning rate of 0, so the student
    does not change before it predicts.
    """
    file, output = opinions["predict_file"], str(tmp_path / "o")
    run(
        model_dir=finished[0],
        output_dir=output,
        task="classification",
        train_file=file,
        predict_file=file,
        do_train=True,
        do_predict=True,
        teacher=finished[0],
        distillation_weight=0.75,
        distillation_temperature=3.0,
        num_train_steps=1,
        train_batch_size=37,
        learning_rate=0.0,
        classifier_dropout=0.0,
    )
    student, teacher = (
        log_probabilities(folder) for folder in (output, finished[0])
    )
    rows = predictions(os.path.join(output, "predictions.tsv"))
    labels = [["bad", "good"].index(row["label"]) for row in rows]
    hard = -student[np.arange(37), labels]
    targets = scipy.special.softmax(teacher / 3, -1)
    soft = -(targets * scipy.special.log_softmax(student / 3, -1)).sum(-1)
    expected = (0.25 * hard + 0.75 * 9 * soft).mean()
    (row,) = (r for r in History.read(output).rows if r["split"] == "train")
    assert row["loss"] == pytest.approx(expected, rel=1e-3)
