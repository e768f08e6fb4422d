"""Fine-tuning from a model directory to a model directory."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tiny
import tiny_tasks

from albert_tf import checkpoints, finetuning
from albert_tf.distribution import DistributionConfig
from albert_tf.errors import InputError
from albert_tf.finetuning import finetune, planned
from albert_tf.finetuning_job import FinetuningConfig
from albert_tf.history import History
from albert_tf.optimization import OptimizerConfig
from albert_tf.settings import check_setting
from albert_tf.tasks.base import DataConfig, TaskConfig
from albert_tf.tasks.registry import find
from albert_tf.tasks.tables import Columns, read_rows
from albert_tf.training import TrainingConfig

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATA = {"task": "classification"}
DEFAULTS = {
    OptimizerConfig: {
        "optimizer": "adamw",
        "learning_rate": 0.01,
        "num_warmup_steps": 5,
    },
    TrainingConfig: {
        "num_train_steps": 60,
        "train_batch_size": 16,
        "eval_batch_size": 16,
        "eval_steps": 20,
        "save_checkpoints_steps": 20,
        "steps_per_loop": 20,
    },
    TaskConfig: {"max_seq_length": 16},
}
CONFIGS = (
    FinetuningConfig,
    DataConfig,
    TaskConfig,
    OptimizerConfig,
    TrainingConfig,
    DistributionConfig,
)


def build(**values):
    """Return all settings, from values of any of them."""
    configs = []
    for cls in CONFIGS:
        names = {field.name for field in dataclasses.fields(cls)}
        own = {k: values.pop(k) for k in list(values) if k in names}
        configs.append(cls(**(DEFAULTS.get(cls, {}) | own)))
    assert not values
    return configs


def run(**values):
    return finetune(*build(**values))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    return tiny_tasks.make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return the flags of a learnable data set of the user's own."""
    folder = tmp_path_factory.mktemp("data")
    return DATA | {
        "train_file": tiny_tasks.write_opinions(folder / "t.tsv", 300, 1),
        "eval_file": tiny_tasks.write_opinions(folder / "e.tsv", 53, 2),
        "predict_file": tiny_tasks.write_opinions(folder / "p.tsv", 37, 3),
    }


@pytest.fixture(scope="module")
def finished(pretrained, data, tmp_path_factory):
    """Return the output directory and the metrics of a whole run."""
    output = str(tmp_path_factory.mktemp("run") / "output")
    metrics = run(
        model_dir=pretrained,
        output_dir=output,
        do_train=True,
        do_eval=True,
        do_predict=True,
        **data,
    )
    return output, metrics


@pytest.fixture
def copy(finished, tmp_path):
    """Return a copy of the finished output directory."""
    return shutil.copytree(finished[0], tmp_path / "copy")


def predictions(path):
    return [row.values for row in read_rows(str(path), Columns())]


def test_a_keyword_is_learnt(finished):
    """A label that follows from one word is predicted for unseen texts."""
    _, metrics = finished
    assert metrics["eval"]["accuracy"] > 0.97
    assert metrics["predict"]["accuracy"] > 0.97
    assert metrics["eval"]["examples"] == 53


def test_what_a_run_leaves(finished):
    """The output is a model directory with all that a later run needs."""
    output, metrics = finished
    names = set(os.listdir(output))
    expected = (
        "albert_config.json vocab.txt tokenizer.json checkpoint best task.json "
        "metrics.json run.flags eval_predictions.tsv predictions.tsv "
        "history.jsonl curves.png"
    )
    assert set(expected.split()) <= names
    with open(os.path.join(output, "metrics.json")) as file:
        assert json.load(file) == {"task": "classification", **metrics}
    assert not [name for name in names if ".tmp" in name]


def test_predictions_stand_beside_their_examples(finished, data):
    """Lines keep the order of the file, and hold labels and probabilities."""
    for name, flag in (
        ("eval_predictions.tsv", "eval_file"),
        ("predictions.tsv", "predict_file"),
    ):
        given = predictions(data[flag])
        found = predictions(os.path.join(finished[0], name))
        assert [r["label"] for r in found] == [r["label"] for r in given]
        assert [r["id"] for r in found] == [str(i) for i in range(len(given))]
        for row in found:
            p = {name: float(row[f"p({name})"]) for name in ("bad", "good")}
            assert sum(p.values()) == pytest.approx(1.0, abs=1e-5)
            assert row["prediction"] == max(p, key=p.get)


def test_a_model_directory_is_enough_to_predict(finished, data, copy, tmp_path):
    """Labels, columns and length come from `task.json`, weights from best."""
    output = tmp_path / "elsewhere"
    values = run(
        model_dir=str(copy),
        output_dir=str(output),
        do_predict=True,
        predict_file=data["predict_file"],
        max_seq_length=None,
    )
    with open(os.path.join(finished[0], "predictions.tsv")) as expected:
        assert (output / "predictions.tsv").read_text() == expected.read()
    assert values["predict"] == finished[1]["predict"]
    assert not (output / "task.json").exists()


def test_texts_without_labels_can_be_predicted(copy, tmp_path):
    """Without labels there are predictions and no metrics."""
    path = tiny_tasks.write_tsv(
        tmp_path / "new.tsv", ("text",), ("a good film",), ("so awful it is",)
    )
    found = run(
        model_dir=str(copy),
        output_dir=str(tmp_path / "o"),
        do_predict=True,
        predict_file=path,
    )
    rows = predictions(tmp_path / "o" / "predictions.tsv")
    assert [row["prediction"] for row in rows] == ["good", "bad"]
    assert found == {} and "label" not in rows[0]


@pytest.mark.parametrize("size", [1, 7, 64])
def test_metrics_do_not_depend_on_the_batch(finished, data, tmp_path, size):
    """Padding of the last batch counts for nothing."""
    metrics = run(
        model_dir=finished[0],
        output_dir=str(tmp_path),
        do_eval=True,
        eval_file=data["eval_file"],
        eval_batch_size=size,
    )
    assert metrics["eval"] == pytest.approx(finished[1]["eval"], rel=1e-5)


def evaluated(values, monkeypatch):
    """Make evaluations while training return the given main metrics."""
    sequence = iter(values)

    def metrics(self, splits):
        return {"accuracy": next(sequence)}

    monkeypatch.setattr(finetuning.Judge, "metrics", metrics)


def test_the_best_weights_are_kept(pretrained, data, tmp_path, monkeypatch):
    """Weights of the best evaluation end in `best/` and make predictions."""
    evaluated([0.5, 0.9, 0.7], monkeypatch)
    arguments = data | {"model_dir": pretrained, "num_train_steps": 3}
    arguments |= {"eval_steps": 1, "save_checkpoints_steps": 1}
    output = str(tmp_path / "output")
    found = run(do_train=True, do_eval=True, output_dir=output, **arguments)
    best = checkpoints.for_inference(output)
    assert best.endswith(os.path.join("best", "ckpt-2"))
    last = checkpoints.latest(output)
    assert last.endswith("ckpt-3")
    read = checkpoints.tf.train.load_checkpoint
    key = "variables/classifier.Skernel/.ATTRIBUTES/VARIABLE_VALUE"
    assert np.any(read(best).get_tensor(key) != read(last).get_tensor(key))
    monkeypatch.undo()
    again = run(
        model_dir=output,
        output_dir=str(tmp_path / "again"),
        do_eval=True,
        eval_file=data["eval_file"],
    )
    assert again["eval"] == found["eval"]


def test_without_evaluation_the_last_weights_count(pretrained, data, tmp_path):
    """Training alone needs no other file and leaves a usable model."""
    output = str(tmp_path / "output")
    own = {k: data[k] for k in ("task", "train_file")}
    run(
        model_dir=pretrained,
        output_dir=output,
        do_train=True,
        num_train_steps=2,
        **own,
    )
    assert checkpoints.for_inference(output).endswith("ckpt-2")
    assert not os.path.exists(os.path.join(output, "best"))


def test_a_finished_run_is_not_repeated(copy, pretrained, data, finished):
    """The same command again evaluates, and trains no further."""
    before = History(str(copy), 60).rows
    metrics = run(
        model_dir=pretrained,
        output_dir=str(copy),
        do_train=True,
        do_eval=True,
        **data,
    )
    assert metrics["eval"] == finished[1]["eval"]
    assert History(str(copy), 60).rows == before


def weights(model_dir, name):
    prefix = checkpoints.latest(model_dir)
    key = f"variables/{name.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"
    return checkpoints.tf.train.load_checkpoint(prefix).get_tensor(key)


@pytest.mark.parametrize("init", ["model_dir", "random"])
def test_where_the_first_weights_come_from(pretrained, data, tmp_path, init):
    """`init` decides between the pretrained encoder and a random one."""
    output = str(tmp_path / "output")
    run(
        model_dir=pretrained,
        output_dir=output,
        do_train=True,
        init=init,
        num_train_steps=1,
        learning_rate=0.0,
        **data,
    )
    name = "albert/embeddings/word_embeddings"
    same = np.all(weights(output, name) == weights(pretrained, name))
    assert same == (init == "model_dir")


def test_dropout_of_the_encoder_can_be_set(pretrained):
    """The flags replace the config's dropout."""
    found = FinetuningConfig(
        model_dir=pretrained,
        output_dir="o",
        do_train=True,
        hidden_dropout_prob=0.25,
        attention_probs_dropout_prob=0.1,
    ).encoder()
    assert found == dataclasses.replace(
        tiny.CONFIG, hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.1
    )


def test_two_replicas_learn_the_same(pretrained, data, tmp_path):
    """A batch on two replicas and on one give the same weights."""
    outputs = []
    for number in (1, 2):
        outputs.append(str(tmp_path / str(number)))
        run(
            model_dir=pretrained,
            output_dir=outputs[-1],
            do_train=True,
            do_eval=True,
            num_train_steps=3,
            classifier_dropout=0.0,
            num_cpu_replicas=number,
            **data,
        )
    for name in ("classifier/kernel", "albert/pooler/kernel"):
        one, two = (weights(output, name) for output in outputs)
        np.testing.assert_allclose(one, two, atol=1e-6)
    files_read = [
        predictions(os.path.join(output, "eval_predictions.tsv"))
        for output in outputs
    ]
    assert [r["id"] for r in files_read[0]] == [r["id"] for r in files_read[1]]


def test_steps_follow_from_epochs():
    """Steps, warm-up and evaluation follow from the number of examples."""
    configs = build(
        model_dir="m",
        output_dir="o",
        do_train=True,
        num_train_steps=None,
        num_warmup_steps=None,
        eval_steps=None,
        num_train_epochs=2.5,
    )
    optimizer, training = planned(configs[0], configs[3], configs[4], 100)
    assert training.num_train_steps == 16  # 250 examples in batches of 16
    assert training.eval_steps == 7
    assert optimizer.num_warmup_steps == 1


def refusal(**values):
    with pytest.raises(InputError) as error:
        run(**values)
    return str(error.value)


def test_flags_that_do_not_fit(pretrained, data, finished, tmp_path):
    """Each mistake is named before anything is trained."""
    base = data | {"model_dir": pretrained, "output_dir": str(tmp_path / "o")}
    train = base | {"do_train": True}
    assert "do_train" in refusal(**base)
    assert "output_dir" in refusal(**train | {"output_dir": pretrained})
    assert "max_position" in refusal(**train, max_seq_length=17)
    assert "`task`" in refusal(**train | {"task": None})
    assert "fine-tuned model" in refusal(**base, do_predict=True)
    assert "rte" in refusal(**train | {"task": "nothing"})
    assert "train_file" in refusal(**train | {"train_file": None})
    assert "kind" in refusal(
        **base | {"task": "regression", "model_dir": finished[0]}, do_eval=True
    )
    assert not (tmp_path / "o").exists()


def test_a_model_directory_without_a_tokenizer(pretrained, data, tmp_path):
    """The file that is missing is named."""
    model_dir = shutil.copytree(pretrained, tmp_path / "m")
    os.remove(model_dir / "tokenizer.json")
    message = refusal(
        model_dir=str(model_dir),
        output_dir=str(tmp_path / "o"),
        do_train=True,
        **data,
    )
    assert "tokenizer.json" in message


def test_a_tokenizer_of_another_model(pretrained, data, tmp_path):
    """Pieces beyond the model's table are refused."""
    model_dir = shutil.copytree(pretrained, tmp_path / "m")
    with open(model_dir / "vocab.txt", "a") as file:
        file.write("more\n")
    message = refusal(
        model_dir=str(model_dir),
        output_dir=str(tmp_path / "o"),
        do_train=True,
        **data,
    )
    assert "vocab_size=50" in message and "51 pieces" in message


def test_an_unknown_label_to_evaluate(pretrained, data, tmp_path):
    """A label that no training example has names its line."""
    path = tiny_tasks.write_tsv(
        tmp_path / "e.tsv", ("text", "label"), ("a", "good"), ("b", "ugly")
    )
    message = refusal(
        model_dir=pretrained,
        output_dir=str(tmp_path / "o"),
        do_train=True,
        do_eval=True,
        **data | {"eval_file": path},
    )
    assert "e.tsv:3" in message and "ugly" in message


def test_the_output_of_another_task(pretrained, data, copy, tmp_path):
    """A folder with a model of other labels is not written over."""
    path = tiny_tasks.write_tsv(
        tmp_path / "t.tsv", ("text", "label"), ("a", "x"), ("b", "y")
    )
    message = refusal(
        model_dir=pretrained,
        output_dir=str(copy),
        do_train=True,
        **data | {"train_file": path},
    )
    assert "another task, or other labels" in message


def script(*arguments):
    return subprocess.run(
        [sys.executable, os.path.join(ROOT, "finetune.py"), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )


def test_the_script(finished, data, tmp_path):
    """The script takes released names, and its flagfile replays."""
    done = script(
        f"--flagfile={finished[0]}/run.flags",
        f"--output_dir={tmp_path}",
        f"--model_dir={finished[0]}",
        "--nodo_train",
        "--nodo_predict",
        "--task_name=classification",
        f"--dev_file={data['eval_file']}",
    )
    assert done.returncode == 0, done.stderr
    accuracy = finished[1]["eval"]["accuracy"]
    assert f"eval accuracy = {accuracy:.6g}" in done.stdout
    with open(tmp_path / "metrics.json") as file:
        assert json.load(file)["eval"] == pytest.approx(finished[1]["eval"])


def test_presets():
    """Each flagfile is of a known task and holds only legal settings."""
    folder = pathlib.Path(ROOT) / "configs" / "finetuning"
    presets = sorted(folder.glob("*.flags"))
    assert presets
    for path in presets:
        lines = path.read_text().splitlines()
        flags = [x.split("=") for x in lines if not x.startswith("#")]
        values = {name.removeprefix("--"): text for name, text in flags}
        assert find(values["task"]).name == path.stem
        for cls in CONFIGS:
            fields = {f.name: f for f in dataclasses.fields(cls)}
            for name in fields.keys() & values.keys():
                text = values.pop(name)
                with contextlib.suppress(ValueError):
                    text = float(text)
                check_setting(name, text, fields[name].metadata)
        assert not values, path
