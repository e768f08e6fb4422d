"""Runs through several phases: what they read, and how they resume."""

import dataclasses
import pathlib
import shutil

import numpy as np
import pytest
from tiny_pretraining import run, values

from albert_tf.base.errors import InputError
from albert_tf.data.builder import build
from albert_tf.data.builder.build_config import BuildConfig
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.masking import MaskingConfig
from albert_tf.data.records import find, input_pipeline
from albert_tf.text.tokenizers import TokenizerConfig
from albert_tf.training import checkpoints
from albert_tf.training.history import History
from albert_tf.training.run import Hook

# Borders at the steps 2, 4 and 6 of 8.
SCHEDULE = {"depth_schedule": "1:0.25,2", "mask_schedule": "0.4:0.75,0.2"}
STEPS = {"num_train_steps": 8, "eval_steps": 100}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, data_dir, tokenizer_dir):
    """Return unmasked records of 8 and of 16 tokens."""
    folder = tmp_path_factory.mktemp("folders")
    for tokens in (8, 16):
        build.run(
            BuildConfig(
                input_file=str(pathlib.Path(data_dir).parent / "text.txt"),
                output_dir=str(folder / f"{tokens}"),
                eval_fraction=0.1,
                num_processes=1,
            ),
            TokenizerConfig(spm_model_file=str(tokenizer_dir / "spiece.model")),
            PairsConfig(max_seq_length=tokens),
            MaskingConfig(masking="dynamic"),
        )
    return folder


@pytest.fixture
def scheduled(folders, config, tmp_path):
    """Return a function that trains through all phases, or some."""

    def train(name, **changes):
        data_dir = f"{folders}/8:0.5,{folders}/16"
        values = {"data_dir": data_dir, **STEPS, **SCHEDULE, **changes}
        data_dir = values.pop("data_dir")
        return run(data_dir, config[0], tmp_path / name, **values)

    return train


def test_each_phase_reads_its_own(scheduled, folders, monkeypatch, capsys):
    """Folder, place, batch and prediction places, and the loss of each."""
    read, calls = input_pipeline.train_batches, []

    def batches(data_dir, metadata, *, start, batch_size, **kwargs):
        slots = metadata.max_predictions_per_seq
        calls.append((data_dir[-2:], slots, start, batch_size))
        return read(
            data_dir, metadata, start=start, batch_size=batch_size, **kwargs
        )

    monkeypatch.setattr(input_pipeline, "train_batches", batches)
    scheduled("model", data_dir=f"{folders}/8:0.5,{folders}/16:0.4,{folders}/8")
    assert calls == [
        *(("/8", 3, 0, 8), ("/8", 3, 16, 8)),
        *(("16", 6, 0, 4), ("16", 3, 8, 4)),
        ("/8", 2, 32, 8),
    ]
    out, said = capsys.readouterr()
    assert "0 to 2" in out and "7 to 8" in out
    assert f"step 2: batches of 8 x 8 tokens of {folders}/8, 2 layers" in said


def test_the_end_is_an_ordinary_checkpoint(scheduled, trained, tmp_path):
    """Variables and slots are those of a plain run, and all have moved."""
    scheduled("model")
    plain, found = values(trained[1]), values(tmp_path / "model")
    shapes = {name: value.shape for name, value in found.items()}
    assert shapes == {name: value.shape for name, value in plain.items()}
    assert all(
        found[name].any() for name in found if name.startswith("optimizer/")
    )


class Break(Hook):
    """Break a run in a step, as if its machine were lost."""

    every = 1

    def __init__(self, step):
        self.step = step

    def after(self, run, stretch):
        if run.step == self.step:
            raise KeyboardInterrupt


def test_every_step_resumes_exactly(scheduled, tmp_path):
    """At a border and on both sides, an unbroken run's bits come out."""
    scheduled("unbroken", save_checkpoints_steps=1, keep_checkpoint_max=9)
    expected = values(tmp_path / "unbroken")
    for step in range(1, 8):
        name = f"broken {step}"
        shutil.copytree(tmp_path / "unbroken", tmp_path / name)
        for path in (tmp_path / name).glob("ckpt-*"):
            if int(path.name.split("-")[1].split(".")[0]) > step:
                path.unlink()
        scheduled(name)
        found = values(tmp_path / name)
        for key in expected:
            np.testing.assert_array_equal(expected[key], found[key], key)


def test_a_lost_stretch_is_run_again(scheduled, tmp_path):
    """The checkpoint is from before the border, the break from behind it."""
    with pytest.raises(KeyboardInterrupt):
        scheduled("broken", save_checkpoints_steps=3, hooks=[Break(5)])
    assert checkpoints.latest(str(tmp_path / "broken")).endswith("ckpt-3")
    scheduled("broken")
    scheduled("unbroken")
    expected, found = (values(tmp_path / n) for n in ("unbroken", "broken"))
    for key in expected:
        np.testing.assert_array_equal(expected[key], found[key], key)


def test_another_schedule_is_said(scheduled, capsys):
    """With what it was; the same one is resumed without a word."""
    scheduled("model", stop_step=1)
    scheduled("model", stop_step=2)
    assert "Note" not in capsys.readouterr().err
    scheduled("model", stop_step=3, depth_schedule="1:0.5,2")
    (note,) = (
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("Note")
    )
    assert note.startswith("Note: phases was [[2, 8, 1, 0.4], [4, 8, 2, 0.4]")
    assert note.endswith("another schedule")


def test_the_held_out_records_are_the_last_folders(
    scheduled, folders, config, tmp_path
):
    """With as many layers as are trained: a shallower model's figures."""
    found = scheduled("model", stop_step=2, do_eval=True)
    (row,) = (
        row
        for row in History.read(str(tmp_path / "model")).rows
        if row["split"] == "eval"
    )
    assert row["step"] == 2 and row["loss"] == found["loss"]
    for layers, same in ((1, True), (2, False)):
        shallow = shutil.copytree(
            tmp_path / "model", tmp_path / f"{layers} layers"
        )
        other = dataclasses.replace(config[1], num_hidden_layers=layers)
        (shallow / "albert_config.json").write_text(other.to_json())
        metrics = run(
            f"{folders}/16",
            shallow / "albert_config.json",
            shallow,
            do_train=False,
            do_eval=True,
        )
        assert (metrics == pytest.approx(found, rel=1e-5)) is same
    whole = scheduled("model", do_train=False, do_eval=True)
    assert whole == pytest.approx(metrics, rel=1e-5)


def test_batches_fit_replicas_and_micro_batches(scheduled, tmp_path, capsys):
    """The nearest multiple of both to as many tokens."""
    scheduled(
        "model",
        train_batch_size=12,
        num_cpu_replicas=2,
        gradient_accumulation_steps=2,
        eval_batch_size=8,
    )
    rows = [
        line.split()[4:6]
        for line in capsys.readouterr().out.splitlines()
        if line.split()[1:2] == ["to"]
    ]
    assert rows == [["12", "8"], ["12", "8"], ["8", "16"], ["8", "16"]]
    assert values(tmp_path / "model")["optimizer/iterations"] == 8


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"depth_schedule": "1:0.5,3"}, "must end with `num_hidden_layers`"),
        ({"depth_schedule": "1:0.01,2"}, "must have a step"),
        ({"mask_schedule": "0.95:0.5,0.15"}, "must be at most 0.9"),
        ({"mask_schedule": "a:0.5,0.15"}, "VALUE:SHARE,VALUE:SHARE,VALUE"),
        ({"data_dir": "{short}:0.5,{short}/none"}, "data_dir=.*none"),
        ({"data_dir": "{short}:0.5,{static}"}, "one kind of masking.*static"),
        ({"data_dir": "{static}"}, "mask_schedule=0.4.*with masks"),
        ({"data_dir": "{short}:0.5,{other}"}, "tokenizer beside.*other"),
        ({"data_dir": "{short}:0.5,{long}"}, "max_seq_length=99"),
        ({"data_dir": "{short}:0.5,{bare}", "do_eval": True}, "held-out.*bare"),
        ({"data_dir": "{short}:0.5,{empty}"}, "must hold train records.*empty"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(
    scheduled, folders, data_dir, tmp_path, changes, message
):
    """Every folder is looked at, and nothing is written."""
    metadata = find.read_metadata(f"{folders}/16")
    places = {"short": f"{folders}/8", "static": tmp_path / "static"}
    shutil.copytree(data_dir, tmp_path / "static")
    damage = {
        "other": {"tokenizer_fingerprint": "other"},
        "long": {"max_seq_length": 99},
        "bare": {"splits": metadata.splits | {"eval": ()}},
        "empty": {"splits": metadata.splits | {"train": ()}},
    }
    for name, changed in damage.items():
        places[name] = shutil.copytree(f"{folders}/16", tmp_path / name)
        dataclasses.replace(metadata, **changed).write(str(places[name]))
    if "data_dir" in changes:
        data = changes["data_dir"].format(**places)
        changes = changes | {"data_dir": data}
    with pytest.raises(InputError, match=message):
        scheduled("model", **changes)
    assert not (tmp_path / "model").exists()
