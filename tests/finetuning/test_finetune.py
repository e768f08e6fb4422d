"""Fine-tuning reads a model directory and writes a model directory."""

import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tiny_tasks
from tiny_runs import build, eagerly, predictions, read, refusal, run, weights

from albert_tf.base import files
from albert_tf.finetuning import finetune as finetuning_run
from albert_tf.finetuning import finetuning_trainer
from albert_tf.finetuning.evaluation import TaskEvaluator
from albert_tf.finetuning.finetuning_setup import prepare
from albert_tf.tasks.classification import Classification
from albert_tf.training import checkpoint_files, checkpoints
from albert_tf.training.distribution import make_strategy


def test_a_keyword_is_learned(finished):
    """A model learns labels that depend on one word.

    The exact accuracy depends on the processor and the version of TensorFlow.
    """
    _, metrics = finished
    assert metrics["eval"]["accuracy"] > 0.85
    assert metrics["predict"]["accuracy"] > 0.85
    assert metrics["eval"]["examples"] == 53


def test_what_a_run_leaves(finished, opinions):
    """The output is a model directory with all files for later runs.

    The flags include every setting that has a value, whichever class has it.
    """
    output, metrics = finished
    names = set(os.listdir(output))
    expected = (
        "albert_config.json vocab.txt tokenizer.json checkpoint best task.json "
        "metrics.json run.flags eval_predictions.tsv predictions.tsv "
        "history.jsonl curves.png"
    )
    assert set(expected.split()) <= names
    written = read(output)
    assert written.pop("model").startswith("step ")
    for split in ("eval", "predict"):
        assert written.pop(f"{split}_file") == opinions[f"{split}_file"]
    assert written == {"task": "classification", **metrics}
    assert not [name for name in names if ".tmp" in name]
    flags = pathlib.Path(output, "run.flags").read_text("utf-8").splitlines()
    fields = finetuning_run.finetune.program.fields().items()
    flags = {line.split("=")[0].removeprefix("--") for line in flags}
    assert flags >= {n for n, field in fields if field.default is not None}


def test_predictions_stand_beside_their_examples(finished, opinions):
    """Prediction files contain labels and ids in the order of the examples."""
    for name, flag in (
        ("eval_predictions.tsv", "eval_file"),
        ("predictions.tsv", "predict_file"),
    ):
        examples = predictions(opinions[flag])
        found = predictions(os.path.join(finished[0], name))
        assert [r["label"] for r in found] == [r["label"] for r in examples]
        assert [r["id"] for r in found] == [
            str(i) for i in range(len(examples))
        ]
        for row in found:
            p = {name: float(row[f"p({name})"]) for name in ("bad", "good")}
            assert sum(p.values()) == pytest.approx(1.0, abs=1e-5)
            assert row["prediction"] == max(p, key=p.get)


def test_a_model_directory_is_enough_to_predict(
    finished, opinions, copy, tmp_path
):
    """The model directory suffices to repeat the predictions."""
    output = tmp_path / "elsewhere"
    values = run(
        model_dir=str(copy),
        output_dir=str(output),
        do_predict=True,
        predict_file=opinions["predict_file"],
        max_seq_length=None,
    )
    with open(os.path.join(finished[0], "predictions.tsv")) as expected:
        assert (output / "predictions.tsv").read_text() == expected.read()
    assert values["predict"] == pytest.approx(finished[1]["predict"])
    assert not (output / "task.json").exists()


@eagerly()
def test_metrics_are_those_of_one_model(finished, opinions, copy, tmp_path):
    """Earlier metrics are kept only if they describe the same weights."""
    output, other = str(tmp_path / "results"), str(tmp_path / "other")
    shutil.copytree(copy, other)
    shutil.rmtree(os.path.join(other, "best"))
    state = 'model_checkpoint_path: "ckpt-20"\n'
    files.write_text(os.path.join(other, "checkpoint"), state)

    def measure(model_dir, **values):
        run(model_dir=model_dir, output_dir=output, **values)
        return read(output)

    evaluated = {"do_eval": True, "eval_file": opinions["eval_file"]}
    predicted = {"do_predict": True, "predict_file": opinions["predict_file"]}
    first = measure(finished[0], **evaluated)
    both = measure(str(copy), **predicted)  # the same weights elsewhere
    assert both.pop("predict") == pytest.approx(finished[1]["predict"])
    assert both.pop("predict_file") == opinions["predict_file"]
    assert both == first
    found = measure(other, **predicted)
    assert "eval" not in found and found["model"] != first["model"]


@eagerly()
def test_a_card_names_the_examples_of_its_metrics(finished, opinions, copy):
    """The card of a model that is evaluated in place names each split's file.

    The files may differ from the files in the run's flags.
    """
    other = opinions["train_file"]
    values = {"model_dir": str(copy), "output_dir": str(copy)}
    run(**values, do_eval=True, eval_file=other)
    lines = (copy / "README.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert f"| eval of `{other}` | examples | 300 |" in rows
    predicted = opinions["predict_file"]
    assert f"| predict of `{predicted}` | examples | 37 |" in rows
    assert not any(opinions["eval_file"] in row for row in rows)


@eagerly()
def test_unlabeled_examples_replace_labeled_ones(finished, opinions, tmp_path):
    """Metrics of earlier examples are not kept beside new predictions.

    A table that no evaluation wrote is kept.
    """
    output = tmp_path / "results"
    labeled = pathlib.Path(opinions["predict_file"])
    unlabeled = tmp_path / f"unlabeled{labeled.suffix}"
    lines = labeled.read_text().splitlines()
    at = lines[0].split("\t").index("label")
    rows = [line.split("\t") for line in lines[:5]]
    unlabeled.write_text(
        "".join("\t".join(r[:at] + r[at + 1 :]) + "\n" for r in rows)
    )
    values = {"model_dir": finished[0], "output_dir": str(output)}
    run(**values, do_eval=True, eval_file=opinions["eval_file"])
    (output / "errors.tsv").write_text("mine")
    run(**values, do_predict=True, predict_file=str(unlabeled))
    assert (output / "errors.tsv").read_text() == "mine"
    for file in (labeled, unlabeled):
        found = run(**values, do_predict=True, predict_file=str(file))
        is_labeled = file == labeled
        written = read(output)
        assert ("predict" in written) == ("predict" in found) == is_labeled
        assert (output / "confusion.tsv").exists() == is_labeled
    assert "eval" in written
    assert (output / "eval_confusion.tsv").exists()
    assert len(predictions(output / "predictions.tsv")) == 4


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(
    "name", "predictions_x.tsv metrics.json curves.png task.json".split()
)
def test_a_users_files_are_not_overwritten(
    pretrained, finished, opinions, tmp_path, trains, name
):
    """A run that would overwrite a user's file raises an error.

    The error names the file, and the folder is unchanged. A run that only
    predicts writes neither curves nor `task.json`.
    """
    if not trains and name in ("curves.png", "task.json"):
        return
    (tmp_path / "notes.txt").write_text("Mine.")
    (tmp_path / name).write_text('{"accuracy": 1}')
    message = refusal(
        model_dir=pretrained if trains else finished[0],
        output_dir=str(tmp_path),
        do_train=trains,
        do_predict=True,
        **opinions,
    )
    assert message.endswith(f"output_dir={tmp_path} with {name}")
    assert sorted(os.listdir(tmp_path)) == sorted(["notes.txt", name])
    assert (tmp_path / name).read_text() == '{"accuracy": 1}'


@eagerly()
def test_an_interrupted_prediction_can_be_repeated(
    finished, opinions, tmp_path, monkeypatch
):
    """A folder with a user's other files and earlier results is accepted.

    The results may come from an interrupted prediction.
    """
    (tmp_path / "notes.txt").write_text("Mine.")
    settings = {"model_dir": finished[0], "output_dir": str(tmp_path)}
    settings |= {"do_predict": True} | opinions

    def fail(self, path, *rest):
        pathlib.Path(f"{path}.tsv").write_text("id")
        raise OSError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(Classification, "write_predictions", fail)
        with pytest.raises(OSError, match="interrupted"):
            run(**settings)
    for _ in range(2):
        run(**settings)
    assert len(predictions(tmp_path / "predictions.tsv")) > 1


@pytest.mark.parametrize("labels", [(), ("", ""), ("bad", " ")])
@eagerly()
def test_texts_without_labels_can_be_predicted(copy, tmp_path, labels):
    """Texts without labels get predictions but no metrics."""
    columns = [("text", "a good film", "so awful it is")]
    columns += [("label", *labels)] if labels else []
    rows = zip(*columns, strict=True)
    path = tiny_tasks.write_tsv(tmp_path / "new.tsv", *rows)
    found = run(
        model_dir=str(copy),
        output_dir=str(tmp_path / "o"),
        do_predict=True,
        predict_file=path,
    )
    rows = predictions(tmp_path / "o" / "predictions.tsv")
    assert [row["prediction"] for row in rows] == ["good", "bad"]
    assert found == {} and "label" not in rows[0]


@pytest.mark.parametrize("size", [7, 64])
@eagerly()
def test_metrics_do_not_depend_on_the_batch(
    finished, opinions, tmp_path, size, monkeypatch
):
    """Metrics do not depend on the batch size.

    Evaluation does not prepare the recipe for training.
    """
    monkeypatch.setattr(finetuning_trainer, "with_recipe", None)
    metrics = run(
        model_dir=finished[0],
        output_dir=str(tmp_path),
        do_eval=True,
        eval_file=opinions["eval_file"],
        eval_batch_size=size,
    )
    assert metrics["eval"] == pytest.approx(finished[1]["eval"], rel=1e-5)


def evaluated(values, monkeypatch):
    """Make evaluations during training return the given accuracies."""
    sequence = iter(values)

    def metrics(self, splits):
        return {"accuracy": next(sequence)}

    monkeypatch.setattr(TaskEvaluator, "metrics", metrics)


@pytest.mark.slow
def test_the_best_weights_are_kept(pretrained, opinions, tmp_path, monkeypatch):
    """The best evaluation's weights are saved and used by later runs."""
    evaluated([0.5, 0.9, 0.7], monkeypatch)
    arguments = opinions | {"model_dir": pretrained, "num_train_steps": 3}
    arguments |= {"eval_steps": 1, "save_checkpoints_steps": 1}
    output = str(tmp_path / "output")
    found = run(do_train=True, do_eval=True, output_dir=output, **arguments)
    best = checkpoints.for_inference(output)
    assert best.endswith(os.path.join("best", "ckpt-2"))
    last = checkpoint_files.latest(output)
    assert last.endswith("ckpt-3")
    read = tf.train.load_checkpoint
    key = "variables/classifier.Skernel/.ATTRIBUTES/VARIABLE_VALUE"
    assert np.any(read(best).get_tensor(key) != read(last).get_tensor(key))
    monkeypatch.undo()
    again = run(
        model_dir=output,
        output_dir=str(tmp_path / "again"),
        do_eval=True,
        eval_file=opinions["eval_file"],
    )
    assert again["eval"] == found["eval"]


@pytest.mark.slow
def test_without_evaluation_the_last_weights_count(
    pretrained, opinions, tmp_path
):
    """After training without evaluation, later runs use the last weights."""
    output = str(tmp_path / "output")
    own = {k: opinions[k] for k in ("task", "train_file")}
    run(
        model_dir=pretrained,
        output_dir=output,
        do_train=True,
        num_train_steps=2,
        **own,
    )
    assert checkpoints.for_inference(output).endswith("ckpt-2")
    assert not os.path.exists(os.path.join(output, "best"))


@pytest.mark.slow
def test_the_last_weights_count_if_no_evaluation_is_of_them(
    pretrained, opinions, tmp_path, monkeypatch
):
    """If a resumed run is not evaluated, later runs use its last weights.

    If a finished run is repeated without evaluation, its best weights are kept.
    """
    values = {"model_dir": pretrained, "do_train": True, **opinions}
    values |= {"eval_steps": 1, "save_checkpoints_steps": 1}
    values |= {"num_train_steps": 3, "steps_per_loop": 1}

    def best(folder, **more):
        run(output_dir=str(tmp_path / folder), **values | more)
        return checkpoints.for_inference(str(tmp_path / folder))[-11:]

    evaluated([0.9, 0.5, 0.9, 0.5, 0.5], monkeypatch)
    assert best("a", do_eval=True, stop_step=2) == "best/ckpt-1"
    assert best("a") == "best/ckpt-3"
    assert best("b", do_eval=True, ema_decay=0.5) == "best/ckpt-1"
    assert best("b", ema_decay=0.5) == "best/ckpt-1"


def test_what_a_run_hands_on(pretrained, opinions, tmp_path, monkeypatch):
    """Flags determine the data order and the precision.

    Evaluation loads the weights that training saved.
    """
    orders, types = [], []

    def training_batches(features, **kwargs):
        orders.append(kwargs)

    def run_training(s, trainer, batches, *rest):
        batches(32, 2, 1, 8)
        checkpoints.save(s.run.output_dir, trainer.weights, 1)
        return False

    def build_model(self, config, dtype, albert=None):
        types.append(dtype)
        return made(self, config, dtype, albert)

    made = Classification.build_model
    monkeypatch.setattr(
        finetuning_trainer, "training_batches", training_batches
    )
    monkeypatch.setattr(finetuning_run, "run_training", run_training)
    monkeypatch.setattr(Classification, "build_model", build_model)
    values = {k: opinions[k] for k in ("task", "train_file", "eval_file")}
    values |= {"model_dir": pretrained, "dtype": "bfloat16", "random_seed": 5}
    values |= {"output_dir": str(tmp_path), "length_bucketing": "all"}
    assert run(do_train=True, **values) == {}
    (order,) = orders
    assert (order["seed"], order["group"]) == (5, 16)
    values |= {"model_dir": str(tmp_path), "output_dir": str(tmp_path / "x")}
    s = build(do_eval=True, **values)
    job = prepare(s.run, s.data, s.task)
    evaluator, _ = finetuning_run.load(s, job, make_strategy(s.devices))
    assert types == ["mixed_bfloat16"] * 2
    for name in ("classifier/kernel", "albert/pooler/kernel"):
        found = evaluator.weights[name].numpy()
        np.testing.assert_array_equal(found, weights(str(tmp_path), name))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("init", ["model_dir", "random"])
@eagerly()
def test_where_the_first_weights_come_from(
    pretrained, opinions, tmp_path, init, capsys
):
    """`init` selects the pretrained encoder or a random encoder.

    A run of a single step warns that warm-up takes longer.
    """
    output = str(tmp_path / "output")
    run(
        model_dir=pretrained,
        output_dir=output,
        do_train=True,
        init=init,
        num_train_steps=1,
        learning_rate=0.0,
        **opinions,
    )
    warning = "Warning: the learning rate reaches 0 after 5 steps of warm-up"
    assert warning in capsys.readouterr().out
    name = "albert/embeddings/word_embeddings"
    same = np.all(weights(output, name) == weights(pretrained, name))
    assert same == (init == "model_dir")


@pytest.mark.slow
def test_a_fine_tuned_model_is_a_start(finished, opinions, tmp_path):
    """The best encoder of a fine-tuned model can be used for another task.

    In the paper, RTE, STS-B and MRPC start from MNLI. The head is new.
    """
    path = tiny_tasks.write_tsv(
        tmp_path / "t.tsv",
        ("text", "label"),
        ("a", "x"),
        ("b", "y"),
        ("c", "z"),
    )
    output = str(tmp_path / "output")
    run(
        model_dir=finished[0],
        output_dir=output,
        do_train=True,
        num_train_steps=1,
        learning_rate=0.0,
        task="classification",
        train_file=path,
        train_batch_size=2,
    )
    best = os.path.join(finished[0], "best")
    for name in ("albert/embeddings/word_embeddings", "albert/pooler/kernel"):
        np.testing.assert_array_equal(
            weights(output, name), weights(best, name)
        )
    assert weights(output, "classifier/kernel").shape == (16, 3)
