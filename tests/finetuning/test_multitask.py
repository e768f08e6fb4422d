"""Two tasks share an encoder: their batches, loss and directories."""

import dataclasses
import os
import pathlib
import shutil
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
import tiny_tasks
from tiny_runs import build, eagerly, predictions, read, refusal, run, weights

from albert_tf.base.errors import InputError
from albert_tf.finetuning import multitask
from albert_tf.finetuning.finetuning_setup import Job, Split, prepare
from albert_tf.finetuning.multitask import (
    MultitaskObjective,
    SharedModel,
    all_metrics,
    finetune_together,
    mixed_batches,
    part_of,
    portions,
    task_weights,
)
from albert_tf.finetuning.recipe import RecipeConfig
from albert_tf.serving.server import load_server
from albert_tf.serving.signatures import ServingConfig
from albert_tf.tasks.registry import TASKS, find
from albert_tf.training import checkpoint_files, checkpoints
from albert_tf.training.history import History

ONE_HOST = {"num_shards": 1, "shard": 0, "batch_size": 16}
ONE_DEVICE = tf.distribute.get_strategy()


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Return a folder with two tasks in their official layouts."""
    folder = tmp_path_factory.mktemp("glue")
    for part, number, seed in (("train", 120, 1), ("dev", 30, 2)):
        rows = tiny_tasks.opinions(number, seed)
        single = [(text, int(label == "good")) for text, label in rows]
        tiny_tasks.write_tsv(
            folder / "SST-2" / f"{part}.tsv", ("sentence", "label"), *single
        )
        names = {"good": "entailment", "bad": "not_entailment"}
        pairs = [
            (i, "it is so", text, names[label])
            for i, (text, label) in enumerate(rows[: number // 2])
        ]
        tiny_tasks.write_tsv(
            folder / "RTE" / f"{part}.tsv",
            ("index", "sentence1", "sentence2", "label"),
            *pairs,
        )
    return str(folder)


def arguments(data_dir, model_dir, output, **values):
    return {
        "model_dir": model_dir,
        "output_dir": str(output),
        "data_dir": data_dir,
        "task": "sst-2,rte",
        "do_train": True,
        "do_eval": True,
        **values,
    }


@pytest.fixture(scope="module")
def together(data_dir, finished, tmp_path_factory):
    """Return the folder and the metrics of a run of both tasks.

    The first of the run's two evaluations is forced to be the best.
    """
    output = tmp_path_factory.mktemp("together") / "o"
    values = arguments(data_dir, finished[0], output, num_train_steps=150)
    # With these values, the model learns both tasks from any of five seeds.
    values |= {"learning_rate": 0.005, "bias_correction": True, "beta_2": 0.98}
    worsen = iter([0.0, 1.0])

    def measured(jobs, evaluators):
        found = all_metrics(jobs, evaluators)
        return found | {"mean": found["mean"] - next(worsen)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multitask, "all_metrics", measured)
        s = build(**values, eval_steps=120)
        return str(output), finetune_together(s)


def test_portions_of_a_batch():
    """Weights determine each task's portion of a batch.

    A portion is a multiple of the given unit, and at least one unit. If no task
    needs that minimum, a portion differs from its share by less than one unit.
    """
    assert portions([0.25, 0.75], 8, 1) == [2, 6]
    assert portions([0.6, 0.2, 0.2], 40, 1) == [24, 8, 8]
    assert portions([0.98, 0.01, 0.01], 8, 1) == [6, 1, 1]
    assert portions([0.75, 0.25], 16, 1) == [12, 4]
    assert portions([0.99, 0.01], 16, 2) == [14, 2]
    assert portions([0.5, 0.3, 0.2], 32, 4) == [16, 8, 8]
    assert portions([0.6, 0.4], 8, 4) == [4, 4]
    with pytest.raises(InputError, match="train_batch_size=4"):
        portions([0.5, 0.5], 4, 4)


def prepared(values):
    """Return the settings and {task: job} for two tasks."""
    s = build(**values)
    jobs = {
        name: prepare(s.run, dataclasses.replace(s.data, task=name), s.task)
        for name in ("sst-2", "rte")
    }
    return s, jobs


def test_the_loss_is_the_weighted_mean_of_both(data_dir, pretrained, tmp_path):
    """The loss is the mean of the tasks' mean losses, weighted per task.

    Labels are smoothed as in the recipe.
    """
    s, jobs = prepared(arguments(data_dir, pretrained, tmp_path))
    tasks = {name: job.task for name, job in jobs.items()}
    batches = mixed_batches(jobs, [12, 4], s, ONE_DEVICE)
    batch = next(iter(batches(start=0, **ONE_HOST)))
    assert len(part_of(batch, "rte")["input_ids"]) == 4
    keras.utils.set_random_seed(1)
    config = dataclasses.replace(tiny.CONFIG, initializer_range=0.5)
    model = SharedModel(config, tasks, "float32")
    recipe = RecipeConfig(label_smoothing=0.3)
    objective = MultitaskObjective(tasks, [0.9, 0.1], recipe)
    sums, metrics = objective.losses(model, batch, None)
    divisors = objective.weights(batch)
    found = sum(float(sums[term] / divisors[term]) for term in objective.terms)
    means = []
    for name in tasks:
        part = part_of(batch, name)
        logits = model.models[name](
            part["input_ids"], part["input_mask"], part["segment_ids"]
        )
        loss = keras.losses.categorical_crossentropy(
            tf.one_hot(part["labels"], 2),
            logits,
            from_logits=True,
            label_smoothing=0.3,
        )
        means.append(float(tf.reduce_mean(loss)))
        assert float(metrics[f"{name}_accuracy"][1]) == len(loss)
    assert found == pytest.approx(0.9 * means[0] + 0.1 * means[1], rel=1e-5)


def test_a_resumed_run_sees_the_same_batches(data_dir, pretrained, tmp_path):
    """A resumed run reads the batches that would have followed, for each task.

    Tasks with the same examples read them in different orders.
    """
    s, jobs = prepared(arguments(data_dir, pretrained, tmp_path))
    run = dataclasses.replace(s.run, length_bucketing="all")
    s = dataclasses.replace(s, run=run)
    make = mixed_batches(jobs, [12, 4], s, ONE_DEVICE)
    whole = list(make(start=0, **ONE_HOST).take(9))[6:]
    tail = make(start=6 * 16, **ONE_HOST).take(3)
    for one, two in zip(whole, tail, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])
    twice = {"a": jobs["rte"], "b": jobs["rte"]}
    make = mixed_batches(twice, [8, 8], s, ONE_DEVICE)
    batch = next(iter(make(start=0, **ONE_HOST)))
    assert np.any(batch["a/input_ids"] != batch["b/input_ids"])


def test_weights_of_tasks(data_dir, pretrained, tmp_path):
    """Task weights add up to 1; by default, they are shares of the examples."""
    values = arguments(data_dir, pretrained, tmp_path)
    s, jobs = prepared(values)
    assert task_weights(s, jobs) == pytest.approx([120 / 180, 60 / 180])
    s = build(**values, task_weights=(1, 3))
    assert task_weights(s, jobs) == [0.25, 0.75]


def test_metrics_of_all_tasks():
    """Metrics are named after their tasks; the main metrics are averaged.

    If a task has several splits, the first split's main metric counts.
    """
    splits = tuple(Split(f"eval_{x}", (), None) for x in ("matched", "other"))
    jobs = {
        name: Job(find(name), None, None, (), own, ())
        for name, own in (("mnli", splits), ("cola", splits[:0]))
    }
    values = {
        "mnli": {"loss": 2.0, "matched_accuracy": 0.25, "other_accuracy": 0.5},
        "cola": {"loss": 3.0, "matthews": 0.75},
    }
    evaluators = {
        name: mock.Mock(metrics=lambda own, name=name: values[name])
        for name in jobs
    }
    assert all_metrics(jobs, evaluators) == {
        "mean": 0.5,
        "mnli_loss": 2.0,
        "mnli_matched_accuracy": 0.25,
        "mnli_other_accuracy": 0.5,
        "cola_loss": 3.0,
        "cola_matthews": 0.75,
    }


def test_portions_are_of_equal_parts(
    data_dir, pretrained, tmp_path, monkeypatch, capsys
):
    """A task has as many examples in one micro-batch as in any other.

    The same holds for replicas. An epoch has the examples of all tasks.
    A run of different tasks in the same folder is rejected.
    """
    found, output = [], tmp_path / "o"

    def train(s, jobs, weights, sizes, strategy):
        found.append((weights, sizes, s.training.num_train_steps))

    monkeypatch.setattr(multitask, "train", train)
    values = arguments(data_dir, pretrained, output, train_batch_size=24)
    values |= {"num_train_steps": None, "num_train_epochs": 2.0}
    values |= {"gradient_accumulation_steps": 3, "num_cpu_replicas": 2}
    s = build(**values)
    assert finetune_together(s) == {}
    # 360 examples of both tasks are 15 batches.
    assert found == [(pytest.approx([2 / 3, 1 / 3]), [18, 6], 15)]
    assert "A batch has 18 of sst-2, 6 of rte\n" in capsys.readouterr().out
    names = {"run.flags", "tokenizer.json", "rte/task.json", "sst-2/task.json"}
    left = contents(output)
    assert names <= left.keys()
    checkpoints.save(str(output), {"x": tf.Variable(1.0)}, 1)
    assert finetune_together(s) == {} and len(found) == 2
    os.remove(output / "rte" / "task.json")
    with pytest.raises(InputError, match="model of different tasks"):
        finetune_together(s)


def test_a_task_does_not_replace_another_run(data_dir, pretrained, tmp_path):
    """A run of several tasks rejects a folder with a single task's model.

    The run's models would replace that model, but later runs would still read
    the old weights in `best/`.
    """
    s, jobs = prepared(arguments(data_dir, pretrained, tmp_path))
    job, folder = jobs["rte"], str(tmp_path / "rte")
    checkpoints.create_model_dir(folder, job.config)
    job.task.save(folder)
    best = os.path.join(folder, checkpoints.BEST)
    checkpoints.save(best, {"x": tf.Variable(1.0)}, 1)
    before = contents(tmp_path)
    with pytest.raises(InputError, match="another run's model.*model=.*/rte"):
        finetune_together(s)
    assert contents(tmp_path) == before


def equal_tasks(dropout):
    """Return a model of two tasks with equal heads, its loss and a batch."""
    row = TASKS["classification"].updated(classifier_dropout=dropout)
    row = dataclasses.replace(row, labels=("x", "y"))
    tasks = {"a": row, "b": row}
    model = SharedModel(tiny.CONFIG, tasks, "float32")
    heads = (model.head_variables(name).values() for name in tasks)
    for one, two in zip(*heads, strict=True):
        two.assign(one)
    part = {
        "input_ids": np.arange(5, 21, dtype=np.int32).reshape(2, 8),
        "input_mask": np.ones((2, 8), np.int32),
        "segment_ids": np.zeros((2, 8), np.int32),
        "labels": np.array([0, 1], np.int32),
        "example_weights": np.ones(2, np.float32),
    }
    batch = {
        f"{task}/{name}": tf.constant(x)
        for task in tasks
        for name, x in part.items()
    }
    return model, MultitaskObjective(tasks, [0.5, 0.5], RecipeConfig()), batch


def test_tasks_drop_units_apart():
    """With equal heads and examples, losses differ only because of dropout."""
    model, objective, batch = equal_tasks(0.5)
    whole, _ = objective.losses(model, batch, None)
    assert float(whole["a_task"]) == float(whole["b_task"])
    seed = tf.constant([1, 2])
    first, _ = objective.losses(model, batch, seed)
    again, _ = objective.losses(model, batch, seed)
    assert float(first["a_task"]) != float(first["b_task"])
    assert float(first["b_task"]) == float(again["b_task"])


def test_the_model_has_one_encoder():
    """The shared model has the variables of one encoder and of each head."""
    labels = {"a": ("x", "y"), "b": ("x", "y", "z")}
    row = TASKS["classification"]
    tasks = {
        name: dataclasses.replace(row, labels=own)
        for name, own in labels.items()
    }
    model = SharedModel(tiny.CONFIG, tasks, "float32")
    names = checkpoints.named_variables(model)
    heads = {n: v.shape for n, v in names.items() if "classifier" in n}
    assert heads == {
        "a/classifier/kernel": (16, 2),
        "a/classifier/bias": (2,),
        "b/classifier/kernel": (16, 3),
        "b/classifier/bias": (3,),
    }
    encoder = {n for n in names if n.startswith("albert/")}
    assert encoder | heads.keys() == names.keys()
    assert len({id(v) for v in names.values()}) == len(names)


@pytest.mark.slow
def test_both_tasks_are_learned(together):
    """The shared model learns both tasks, in which one word sets the label."""
    metrics = together[1]
    assert metrics["sst-2_eval"]["accuracy"] > 0.75
    assert metrics["rte_eval"]["accuracy"] > 0.75
    assert read(together[0])["rte_eval"] == metrics["rte_eval"]
    rows = [r for r in History.read(together[0]).rows if r["split"] == "eval"]
    assert [r["step"] for r in rows] == [120, 150]
    row = rows[0]
    own = [row[f"{task}_accuracy"] for task in ("sst-2", "rte")]
    assert row["mean"] == pytest.approx(sum(own) / 2)
    assert metrics["rte_eval"]["accuracy"] == pytest.approx(own[1])
    assert metrics["rte_eval"]["loss"] == pytest.approx(row["rte_loss"])
    assert row["rte_loss"] != pytest.approx(rows[1]["rte_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sst-2", "rte"])
def test_each_task_has_a_model_directory(together, data_dir, tmp_path, task):
    """Each task's directory yields the run's metrics and can be served."""
    folder = os.path.join(together[0], task)
    found = run(
        model_dir=folder,
        output_dir=str(tmp_path),
        data_dir=data_dir,
        do_eval=True,
        max_seq_length=None,
    )
    assert found["eval"] == pytest.approx(together[1][f"{task}_eval"], rel=1e-5)
    one, two = (
        predictions(os.path.join(path, "eval_predictions.tsv"))
        for path in (folder, tmp_path)
    )
    assert [r["prediction"] for r in one] == [r["prediction"] for r in two]
    server = load_server(folder, ServingConfig())
    assert "classify" in server.signatures


@pytest.mark.slow
def test_both_directories_share_the_encoder(together):
    """Both tasks' directories have the best encoder, but different heads."""
    one, two = (os.path.join(together[0], t) for t in ("sst-2", "rte"))
    name = "albert/pooler/kernel"
    np.testing.assert_array_equal(weights(one, name), weights(two, name))
    best = os.path.join(together[0], checkpoints.BEST)
    np.testing.assert_array_equal(weights(one, name), weights(best, name))
    assert np.any(weights(one, name) != weights(together[0], name))
    head = "classifier/kernel"
    assert np.any(weights(one, head) != weights(two, head))


def contents(folder):
    return {
        os.path.relpath(path, folder): path.read_bytes()
        for path in pathlib.Path(folder).rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
@eagerly()
def test_a_run_of_several_tasks_that_ends_early(
    data_dir, shallow, tmp_path, monkeypatch
):
    """The mean metric determines the best weights and the end of a run.

    A stopped run has no metrics. A run that ended early is complete, so it
    rejects different settings. Each task's folder has the encoder and the
    task's head at the best step, and a card that names the first weights. The
    task's threshold, if any, is saved there, too.
    """
    means, thresholds = iter([0.5, 0.7, 0.6, 0.6]), []
    monkeypatch.setattr(
        multitask, "all_metrics", lambda *_: {"mean": next(means)}
    )
    monkeypatch.setattr(
        multitask,
        "save_threshold",
        lambda folder, one: thresholds.append((folder, one.task.name)),
    )
    output = tmp_path / "o"
    values = arguments(data_dir, shallow, output, num_train_steps=9)
    values |= {"eval_steps": 1, "early_stopping": 2}
    assert run(**values, stop_step=2) == {}
    assert not (output / "metrics.json").exists()
    assert "different task" in refusal(**values | {"max_seq_length": 9})
    metrics = run(**values)
    assert metrics.keys() == {"sst-2_eval", "rte_eval"}
    assert checkpoint_files.latest(str(output)).endswith("ckpt-4")
    assert read(output) == {"task": "sst-2,rte"} | metrics
    names = "sst-2", "rte"
    assert thresholds == [(str(output / name), name) for name in names]
    for task in names:
        folder = output / task
        prefix = checkpoints.for_inference(str(folder))
        assert prefix.endswith("ckpt-2")
        names = {*checkpoints.read_table(prefix)}
        heads = {name for name in names if not name.startswith("albert/")}
        assert heads == {"classifier/kernel", "classifier/bias"}
        assert read(folder)["model"] == checkpoints.fingerprint(prefix)
        card = (folder / "README.md").read_text("utf-8")
        assert f"- First weights: `{shallow}`\n" in card
    assert run(**values) == metrics
    before = contents(output)
    assert "completed run" in refusal(**values, label_smoothing=0.5)
    assert contents(output) == before


@pytest.mark.slow
@eagerly()
def test_metrics_of_several_tasks_are_of_the_current_weights(
    data_dir, shallow, tmp_path
):
    """A run that continues without an evaluation drops the earlier metrics.

    These metrics belong to other weights. The same applies to each task's
    folder. If a completed run is repeated without an evaluation, it keeps its
    metrics.
    """
    output = tmp_path / "o"
    values = arguments(data_dir, shallow, output, num_train_steps=1)
    metrics = run(**values)
    assert len(metrics) == 2
    assert read(output) == {"task": "sst-2,rte"} | metrics
    assert run(**values | {"do_eval": False}) == {}
    assert read(output) == {"task": "sst-2,rte"} | metrics
    assert run(**values | {"do_eval": False, "num_train_steps": 2}) == {}
    assert read(output) == {"task": "sst-2,rte"}
    assert read(output / "rte").keys() == {"task", "model"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["another model", "other lengths"])
def test_a_run_that_is_refused_changes_nothing(
    kind, together, data_dir, finished, tmp_path, capsys
):
    """A run that fails does not change the model in its output folder.

    The note on the learning rate is printed once, not for each task.
    """
    source, values, named = {
        "another model": (finished[0], {}, "must not contain a model"),
        "other lengths": (together[0], {"max_seq_length": 9}, "different task"),
    }[kind]
    output = shutil.copytree(source, tmp_path / "o")
    before = contents(output)
    with pytest.raises(InputError, match=named):
        run(**arguments(data_dir, finished[0], output, **values))
    assert contents(output) == before
    assert capsys.readouterr().out.count("Note: at learning rate 0.01") == 1


@pytest.mark.parametrize(
    "values, named",
    [
        ({"task": "rte, RTE"}, "a task twice"),
        ({"do_train": False}, "do_train"),
        ({"train_file": "x.tsv"}, "train_file"),
        ({"eval_file": "x.tsv"}, "eval_file"),
        ({"predict_file": "x.tsv"}, "predict_file"),
        ({"main_metric": "f1"}, "main_metric"),
        ({"teacher": "t"}, "teacher"),
        ({"num_seeds": 2}, "num_seeds"),
        ({"task_weights": ("1",)}, "task_weights=1"),
        ({"task_weights": ("1", "-1")}, "task_weights=1,-1"),
        ({"task_weights": ("1", "0")}, "task_weights=1,0"),
        ({"task_weights": ("1", "x")}, "task_weights=1,x"),
        ({"task_weights": ("1", "1", "1")}, "task_weights=1,1,1"),
        ({"train_batch_size": 1}, "train_batch_size=1"),
    ],
    ids=str,
)
def test_what_several_tasks_cannot_have(
    data_dir, pretrained, tmp_path, values, named
):
    """A setting that is unsupported for several tasks is named in an error.

    No folder is created.
    """
    wanted = arguments(data_dir, pretrained, tmp_path / "o") | values
    with pytest.raises(InputError, match=named):
        finetune_together(build(**wanted))
    assert not (tmp_path / "o").exists()
