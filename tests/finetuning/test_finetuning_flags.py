"""Errors and notes about flags, the script and the presets."""

import contextlib
import json
import os
import pathlib
import shutil

import programs
import pytest
import tiny_tasks
from tiny_runs import ROOT, build, eagerly, read, refusal, run

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.base.settings import check_setting
from albert_tf.finetuning.finetuning_setup import FinetuningConfig, Settings
from albert_tf.tasks.registry import find


@eagerly()
def test_the_automatic_rate_fits_the_batch(pretrained, opinions, tmp_path):
    """`learning_rate=auto` becomes LAMB's rate; AdamW has no such rule."""
    how = opinions | {
        "model_dir": pretrained,
        "output_dir": str(tmp_path / "output"),
        "do_train": True,
        "learning_rate": "auto",
    }
    assert "optimizer=adamw" in refusal(**how)
    run(**how, optimizer="lamb", num_train_steps=1, num_warmup_steps=0)
    flags = (tmp_path / "output" / "run.flags").read_text("utf-8")
    assert "--learning_rate=0.00011\n" in flags  # 0.00176 sqrt(16 / 4096)


def test_flags_that_do_not_fit(pretrained, opinions, finished, tmp_path):
    """Each unsuitable flag raises an error before a folder is created."""
    base = opinions | {
        "model_dir": pretrained,
        "output_dir": str(tmp_path / "o"),
    }
    train = base | {"do_train": True}
    assert "do_train" in refusal(**base)
    assert "output_dir" in refusal(**train | {"output_dir": pretrained})
    assert "max_position" in refusal(**train, max_seq_length=17)
    assert "`task`" in refusal(**train | {"task": None})
    assert "fine-tuned model" in refusal(**base, do_predict=True)
    foreign = base | {"model_dir": str(tmp_path), "do_predict": True}
    assert "convert_checkpoint" in refusal(**foreign)
    assert "rte" in refusal(**train | {"task": "nothing"})
    assert "train_file" in refusal(**train | {"train_file": None})
    assert "kind" in refusal(
        **base | {"task": "regression", "model_dir": finished[0]}, do_eval=True
    )
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "Exactly one of"),
        ({"model_dir": "m", "ensemble": ("a", "b")}, "Exactly one of"),
        ({"ensemble": ("a",)}, "at least two different"),
        ({"ensemble": ("a", "b"), "do_train": True}, "cannot be used"),
        ({"ensemble": ("a", "b", "./a")}, "different .*=a,b,./a, "),
        ({"model_dir": "m", "num_seeds": 2}, "`num_seeds` needs"),
        ({"model_dir": "m", "do_eval": False}, "At least one of"),
        ({"model_dir": "./o", "do_train": True}, "must differ"),
    ],
)
def test_actions_that_do_not_fit(values, message):
    """The error for unsuitable models or actions states the broken rule."""
    how = {"output_dir": "o", "do_eval": True}
    with pytest.raises(InputError, match=message):
        FinetuningConfig(**how | values)
    assert FinetuningConfig(**how, ensemble=("a", "b")).source_dir == "a"
    FinetuningConfig(**how, model_dir="m", do_train=True, num_seeds=2)


def test_the_last_seed_may_be_the_largest():
    """The last of several seeds may be the largest legal seed."""
    how = {"model_dir": "m", "output_dir": "o", "do_train": True}
    build(**how, num_seeds=3, random_seed=2**31 - 3).check()


def test_the_flags_of_training_can_be_repeated():
    """Without training, recipes have no effect and cannot be unsuitable."""
    how = {"model_dir": "m", "output_dir": "o", "init": "random"}
    how |= {"early_stopping": 2, "plateau_patience": 1, "freeze": ("pooler",)}
    build(**how, do_train=False, do_predict=True).check()
    with pytest.raises(InputError, match="`early_stopping` needs `do_eval`"):
        build(**how, do_train=True, do_predict=True).check()


FILES = dict.fromkeys(("train_file", "eval_file", "predict_file"), "rows.tsv")
EVALUATES = {"do_train": False, "do_eval": True}


@pytest.mark.parametrize(
    "changes, notes",
    [
        ({"learning_rate": 3e-4}, ["rate 0.0003, try"]),
        ({"learning_rate": 3e-4, "bias_correction": True}, []),
        ({"learning_rate": 3e-4, **EVALUATES}, []),
        ({"learning_rate": 1e-4}, ["rate 0.0001, try"]),
        ({"learning_rate": 9e-5}, []),
        ({"model_dir": "finished"}, ["with a new task head"]),
        ({"model_dir": "finished", "init": "random"}, []),
        ({"model_dir": "finished", **EVALUATES}, []),
        (
            {**FILES, **EVALUATES},
            [
                "`train_file` is not read without `do_train`",
                "`predict_file` is not read without `do_predict`",
            ],
        ),
    ],
)
def test_settings_with_surprising_effects_are_noted(
    changes, notes, finished, capsys
):
    """Notes warn of forgetting, of a new head and of files that are not read.

    At a high rate without bias correction, a model may forget its pretraining.
    """
    values = {"learning_rate": 1e-5, "model_dir": "m", "output_dir": "o"}
    values |= {"task": "sst-2", "do_train": True} | changes
    if values["model_dir"] == "finished":
        values["model_dir"] = finished[0]
    build(**values).advise()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(notes)
    for line, note in zip(lines, notes, strict=True):
        assert line.startswith("Note: ") and note in line


@pytest.mark.parametrize(
    "values, named",
    [
        ({"freeze": ("top",)}, "freeze=top"),
        ({"freeze": ("encoder_1",)}, "freeze=encoder_1"),
        ({"freeze": ("encoder_0x",)}, "freeze=encoder_0x"),
        ({"freeze": ("encoder_00",)}, "freeze=encoder_00"),
        ({"freeze": ("encoder",), "init": "random"}, "init=random"),
        ({"early_stopping": 2}, "early_stopping=2"),
        ({"plateau_patience": 2, "do_eval": True}, "schedule=corrected"),
        ({"label_smoothing": 0.1, "teacher": "t"}, "label_smoothing=0.1"),
        ({"teacher": "nowhere"}, "teacher=nowhere"),
        ({"distillation_temperature": 3.0}, "temperature=3.0, distill"),
        ({"distillation_weight": 0.4}, "distillation_weight=0.4"),
        ({"num_train_epochs": 0.0}, "num_train_epochs=0.0"),
        ({"ensemble": ("a", "b")}, "ensemble=a,b"),
        ({"task_weights": ("1", "2")}, "task_weights"),
        ({"task": "regression", "label_smoothing": 0.1}, "label_smoothing"),
        (
            {"task": "regression", "class_weights": ("balanced",)},
            "regression. Received: class_weights=balanced",
        ),
        ({"class_weights": ("ugly:2",)}, "bad, good, or a number below 2. Rec"),
        ({"class_weights": ("good:2", "1:3")}, "each label once, by name"),
        (
            {"num_seeds": 3, "random_seed": 2**31 - 2},
            "at most 2147483647. Received: random_seed=2147483646, num_seeds=3",
        ),
    ],
    ids=str,
)
def test_recipes_that_make_no_sense(
    pretrained, opinions, tmp_path, values, named
):
    """The error for an unsuitable recipe names the setting.

    No folder is created.
    """
    arguments = opinions | {
        "model_dir": pretrained,
        "output_dir": str(tmp_path / "o"),
        "do_train": True,
    }
    if values.get("task") == "regression":
        path = tiny_tasks.write_tsv(
            tmp_path / "r.tsv", ("text", "label"), ("a", "1.5"), ("b", "2")
        )
        arguments |= {"train_file": path}
    assert named in refusal(**arguments | values)
    assert not (tmp_path / "o").exists()


def test_a_tokenizer_that_does_not_fit(pretrained, opinions, tmp_path):
    """A tokenizer with more pieces than the model is rejected.

    If a tokenizer's file is missing, the error names the file.
    """
    model_dir = shutil.copytree(pretrained, tmp_path / "m")
    train = opinions | {"model_dir": str(model_dir), "do_train": True}
    train["output_dir"] = str(tmp_path / "o")
    with open(model_dir / "vocab.txt", "a") as file:
        file.write("more\n")
    path = model_dir / "tokenizer.json"
    values = json.loads(path.read_text())
    del values["vocabulary_sha256"]
    path.write_text(json.dumps(values))
    assert "pieces=51, vocab_size=50" in refusal(**train)
    os.remove(path)
    assert "tokenizer.json" in refusal(**train)


def test_an_unknown_label_to_evaluate(pretrained, opinions, tmp_path):
    """The error for a label that was not in training states the line."""
    path = tiny_tasks.write_tsv(
        tmp_path / "e.tsv", ("text", "label"), ("a", "good"), ("b", "ugly")
    )
    message = refusal(
        model_dir=pretrained,
        output_dir=str(tmp_path / "o"),
        do_train=True,
        do_eval=True,
        **opinions | {"eval_file": path},
    )
    assert "e.tsv:3" in message and "ugly" in message


@pytest.mark.slow
def test_the_output_of_another_task(pretrained, opinions, copy, tmp_path):
    """A run fails if its output folder contains another task's model.

    The tasks have different labels.
    """
    path = tiny_tasks.write_tsv(
        tmp_path / "t.tsv", ("text", "label"), ("a", "x"), ("b", "y")
    )
    message = refusal(
        model_dir=pretrained,
        output_dir=str(copy),
        do_train=True,
        **opinions | {"train_file": path},
    )
    assert "a different task, labels" in message


def test_the_output_of_a_pretrained_model(pretrained, opinions, tmp_path):
    """A run never writes to a pretrained model, however its path is spelled."""
    folder = shutil.copytree(pretrained, tmp_path / "m")
    before = sorted(os.listdir(folder))
    rules = {pretrained: "must be fine-tuned", f"{folder}/": "must differ from"}
    for source, rule in rules.items():
        message = refusal(
            model_dir=source, output_dir=str(folder), do_train=True, **opinions
        )
        assert rule in message
    assert sorted(os.listdir(folder)) == before


@pytest.mark.slow
def test_the_script(finished, opinions, tmp_path):
    """The script accepts the released flag names and replays `run.flags`."""
    done = programs.run(
        os.path.join(ROOT, "finetune.py"),
        f"--flagfile={finished[0]}/run.flags",
        f"--output_dir={tmp_path}",
        f"--model_dir={finished[0]}",
        "--nodo_train",
        "--nodo_predict",
        "--task_name=classification",
        f"--dev_file={opinions['eval_file']}",
    )
    assert done.returncode == 0, done.stderr
    accuracy = finished[1]["eval"]["accuracy"]
    assert f"eval accuracy = {accuracy:.6g}" in done.stdout
    assert read(tmp_path)["eval"] == pytest.approx(finished[1]["eval"])


def test_presets():
    """Every preset names an existing task and has only legal settings."""
    folder = pathlib.Path(ROOT) / "configs" / "finetuning"
    presets = sorted(folder.glob("*.flags"))
    assert presets
    for path in presets:
        lines = path.read_text().splitlines()
        flags = [x.split("=") for x in lines if not x.startswith("#")]
        values = {name.removeprefix("--"): text for name, text in flags}
        assert path.stem.startswith(find(values["task"]).name)
        fields = albert_tf.finetune.program.fields()
        for name in fields.keys() & values.keys():
            text = values.pop(name)
            with contextlib.suppress(ValueError):
                text = float(text)
            check_setting(name, text, fields[name].metadata)
        assert not values, path


def test_the_names_of_the_released_scripts():
    """Names of the released scripts set the settings with the same meaning."""
    configs = albert_tf.finetune.program.configs(
        model_dir="m",
        output_dir="o",
        do_train=True,
        task_name="rte",
        dev_file="d.tsv",
        dropout_prob=0.25,
        train_step=70,
        warmup_step=30,
    )
    s = Settings(*configs)
    assert (s.data.task, s.data.eval_file) == ("rte", "d.tsv")
    assert s.task.classifier_dropout == 0.25
    assert s.training.num_train_steps == 70
    assert s.optimizer.num_warmup_steps == 30
