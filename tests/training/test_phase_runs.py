"""Runs with several phases: the records that they read, and resumption."""

import dataclasses
import json
import pathlib
import shutil

import pytest
import tiny_pretraining
from tiny_pretraining import Look, assert_same_bits, run, values
from tiny_runs import eagerly
from tiny_training import Crash

from albert_tf.base.errors import InputError
from albert_tf.data.records import input_pipeline
from albert_tf.data.records.metadata import read_metadata
from albert_tf.training.history import History

RATE = {"learning_rate": 0.1}  # so high that each layer makes a difference


@pytest.fixture(scope="module")
def folders(tmp_path_factory, data_dir, tokenizer_dir):
    """Return {name: folder} of short, long and dynamic records."""
    folder = tmp_path_factory.mktemp("folders")
    text = pathlib.Path(data_dir).parent / "text.txt"
    model = tokenizer_dir / "spiece.model"
    tiny_pretraining.build_records(text, folder / "short", model, 8)
    how = {"masking": "dynamic"}
    tiny_pretraining.build_records(text, folder / "dynamic", model, 16, **how)
    names = {name: str(folder / name) for name in ("short", "dynamic")}
    return names | {"long": data_dir}


@pytest.fixture
def train(folders, deep_config, tmp_path):
    """Return a function that trains in phases.

    By default, a run trains one layer for two steps, then two layers for one
    step, and then reads the longer records.
    """

    def train(name, data_dir="{short}:0.5,{long}", **changes):
        values = {
            "num_train_steps": 6,
            "eval_steps": 100,
            "depth_schedule": "1:0.34,2",
            **RATE,
            **changes,
        }
        data_dir = data_dir.format(**folders)
        return run(data_dir, deep_config[0], tmp_path / name, **values)

    return train


@pytest.fixture
def reads(monkeypatch):
    """Return a list of (tokens, predictions, start, batch size) per phase."""
    read, calls = input_pipeline.train_batches, []

    def batches(data_dir, metadata, *, start, batch_size, **kwargs):
        slots = metadata.max_predictions_per_seq
        calls.append((metadata.max_seq_length, slots, start, batch_size))
        arguments = {"start": start, "batch_size": batch_size}
        return read(data_dir, metadata, **arguments, **kwargs)

    monkeypatch.setattr(input_pipeline, "train_batches", batches)
    return calls


@pytest.mark.slow
def test_each_phase_reads_its_own(train, reads, capsys):
    """Phases read batches of different sizes from different folders.

    If a folder is repeated, reading continues where it stopped.
    """
    train("model", "{short}:0.5,{long}:0.2,{short}")
    assert reads == [(8, 1, 0, 8), (8, 1, 16, 8), (16, 2, 0, 4), (8, 1, 24, 8)]
    out, err = capsys.readouterr()
    rows = [x.split()[:6] for x in out.splitlines()]
    table = "0 to 2 1 8 8", "2 to 3 2 8 8", "3 to 4 2 4 16", "4 to 6 2 8 8"
    assert [" ".join(row) for row in rows if row[1:2] == ["to"]] == [*table]
    assert "step 3: batches of 4 x 16 tokens from" in err


@pytest.mark.slow
def test_every_border_resumes_exactly(train, trained, tmp_path, capsys):
    """Resuming a run between phases does not change a single bit of its result.

    No note reports a change. The checkpoint has the variables and the slots of
    a run without schedules, and no slot is 0 everywhere.
    """
    whole = tmp_path / "unbroken"
    train("unbroken", save_checkpoints_steps=1, keep_checkpoint_max=9)
    plain, found = values(trained[1]), values(whole)
    shapes = {name: value.shape for name, value in found.items()}
    assert shapes == {name: value.shape for name, value in plain.items()}
    slots = [name for name in found if name.startswith("optimizer/")]
    assert all(found[name].any() for name in slots)
    for step in (2, 3):
        broken = shutil.copytree(whole, tmp_path / f"broken at {step}")
        for path in broken.glob("ckpt-*"):
            if int(path.name.split("-")[1].split(".")[0]) > step:
                path.unlink()
        train(broken.name)
        assert_same_bits(whole, broken)
    assert "Note" not in capsys.readouterr().err


@pytest.mark.slow
@eagerly()
def test_moved_records_continue(train, folders, reads, tmp_path):
    """A run continues records at another path after the last example read."""
    how = {"depth_schedule": None, "train_batch_size": 8}
    train("model", "{short}", stop_step=2, **how)
    moved = shutil.copytree(folders["short"], tmp_path / "moved")
    how["train_batch_size"] = 4
    train("model", str(moved), stop_step=3, **how)
    train("model", "{short}", stop_step=4, **how)
    assert [start for _, _, start, _ in reads] == [0, 16, 20]


@pytest.mark.slow
def test_masks_change_and_resume(train, reads, tmp_path):
    """The mask rate of a phase determines its number of predictions.

    Steps that are repeated after a resume mask the same words.
    """
    how = {
        "data_dir": "{dynamic}",
        "depth_schedule": None,
        "mask_schedule": "0.4:0.5,0.15",
    }
    train("unbroken", **how)
    assert reads == [(16, 6, 0, 8), (16, 2, 24, 8)]
    with pytest.raises(KeyboardInterrupt):
        hooks = [Crash(4, every=1)]
        train("broken", save_checkpoints_steps=2, hooks=hooks, **how)
    checkpoint = tmp_path / "broken" / "ckpt-4.index"
    assert not checkpoint.exists()
    train("broken", **how)
    assert reads[-2:] == [(16, 6, 16, 8), (16, 2, 24, 8)]
    assert_same_bits(tmp_path / "unbroken", tmp_path / "broken")


@pytest.mark.slow
@eagerly()
def test_another_schedule_is_said(train, capsys, tmp_path):
    """If a run resumes with new phases, a note states the old phases.

    In the facts of a checkpoint, `schedule` still denotes the learning-rate
    schedule.
    """
    train("model", stop_step=1)
    train("model", stop_step=2, depth_schedule="1:0.5,2")
    lines = capsys.readouterr().err.splitlines()
    (note,) = (line for line in lines if line.startswith("Note"))
    assert note.startswith(
        "Note: schedule of phases was (to step 2: 1 layer, batches"
    )
    assert note.endswith("): later steps use the new one")
    facts = json.loads((tmp_path / "model" / "ckpt-2.json").read_text())
    assert facts["about"]["schedule"] == "corrected"


@pytest.mark.slow
def test_the_held_out_records_are_the_last_folders(
    train, folders, deep_config, tmp_path
):
    """Evaluation uses the last folder's records and the current phase's layers.

    Without training, evaluation uses all layers and ignores a mask schedule.
    """
    found = train("model", stop_step=2, do_eval=True)
    rows = History.read(str(tmp_path / "model")).rows
    (row,) = (row for row in rows if row["split"] == "eval")
    assert row["step"] == 2 and row["loss"] == found["loss"]
    for layers in (1, 2):
        copy = shutil.copytree(tmp_path / "model", tmp_path / f"{layers}")
        other = dataclasses.replace(deep_config[1], num_hidden_layers=layers)
        path = copy / "albert_config.json"
        path.write_text(other.to_json())
        how = {"do_train": False, "do_eval": True}
        metrics = run(folders["long"], path, copy, **how)
        same = metrics == pytest.approx(found, rel=1e-5)
        assert same is (layers == 1)
    whole = train("model", mask_schedule="0.4:0.5,0.2", **how)
    assert whole == pytest.approx(metrics, rel=1e-5)


def test_batches_fit_replicas_and_micro_batches(train):
    """Each phase's batch divides evenly into replicas' micro-batches."""
    phases = []
    train(
        "model",
        hooks=[Look(lambda run: phases.extend(run.phases))],
        train_batch_size=12,
        num_cpu_replicas=2,
        gradient_accumulation_steps=2,
    )
    assert [phase.batch_size for phase in phases] == [12, 12, 8]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"depth_schedule": "1:0.5,3"}, "must end with `num_hidden_layers`"),
        ({"depth_schedule": "1:0.01,2"}, "must have at least one step"),
        ({"data_dir": "{short}:0.5,{short}/none"}, "data_dir=.*none"),
        ({"data_dir": "{short}:0.5,{dynamic}"}, "kind of masking.*dynamic"),
        ({"mask_schedule": "0.4:0.5,0.2"}, "mask_schedule=0.4.*with masks"),
        ({"positions": 8}, "max_seq_length=16"),
        ({"data_dir": "{short}:0.5,{bare}", "do_eval": True}, "held-out.*bare"),
        (
            {"data_dir": "{short}:0.5,{empty}"},
            "must contain train records.*empty",
        ),
        ({"data_dir": "{dynamic}:0.5,{other}"}, "unmasked records must"),
        (
            {"data_dir": "{dynamic}", "mask_schedule": "0.95:0.5,0.15"},
            "must be at most 0.9",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(
    train, folders, deep_config, tmp_path, changes, message
):
    """Unsuitable folders or schedules cause errors before a file is written."""
    damage = {
        "bare": ("long", {"splits": {"eval": ()}}),
        "empty": ("long", {"splits": {"train": ()}}),
        "other": ("dynamic", {"tokenizer_fingerprint": "other"}),
    }
    data_dir = changes.get("data_dir", "")
    for name, (source, changed) in damage.items():
        if name in data_dir:
            shutil.copytree(folders[source], tmp_path / name)
            metadata = read_metadata(folders[source])
            if "splits" in changed:
                changed["splits"] = metadata.splits | changed["splits"]
            metadata = dataclasses.replace(metadata, **changed)
            metadata.write(str(tmp_path / name))
        data_dir = data_dir.replace(f"{{{name}}}", str(tmp_path / name))
    changes = changes | ({"data_dir": data_dir} if data_dir else {})
    positions = changes.pop("positions", 16)
    other = dataclasses.replace(
        deep_config[1], max_position_embeddings=positions
    )
    pathlib.Path(deep_config[0]).write_text(other.to_json())
    with pytest.raises(InputError, match=message):
        train("model", **changes)
    assert not (tmp_path / "model").exists()
