"""Checkpoints on disk: whole ones are found, damaged ones are not."""

import shutil
import zlib

import pytest
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.training import checkpoint_files, checkpoints


def variables(value=0.0):
    return {"a/kernel": tf.Variable([[value] * 50] * 50)}


@pytest.fixture
def folder(tmp_path):
    """A folder with the checkpoints of steps 1 to 3."""
    saver = checkpoints.Saver(str(tmp_path), variables(), keep=3)
    for step in (1, 2, 3):
        saver.save(step, {"replicas": step})
    return tmp_path


def newest(folder):
    found = checkpoint_files.latest(str(folder))
    return found and checkpoint_files.number(found)


def test_the_manifest_has_size_and_crc_of_each_file(folder):
    """They are those of zlib over the file, and facts are kept beside."""
    manifest = checkpoint_files.files.read_json(str(folder / "ckpt-2.json"), "")
    assert set(manifest["files"]) == {
        "ckpt-2.index",
        "ckpt-2.data-00000-of-00001",
    }
    for name, entry in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert entry == {"bytes": len(content), "crc32": zlib.crc32(content)}
    assert checkpoint_files.about(str(folder / "ckpt-2")) == {"replicas": 2}


def cut_data(folder):
    path = folder / "ckpt-3.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-1])


def flip_index(folder):
    path = folder / "ckpt-3.index"
    content = bytearray(path.read_bytes())
    content[5] ^= 255
    path.write_bytes(content)


def spoil_manifest(folder):
    (folder / "ckpt-3.json").write_text('{"files":')


def drop_index(folder):
    (folder / "ckpt-3.index").unlink()


def drop_data_and_manifest(folder):
    (folder / "ckpt-3.data-00000-of-00001").unlink()
    (folder / "ckpt-3.json").unlink()


@pytest.mark.parametrize(
    "damage, why",
    [
        (cut_data, "bytes instead of"),
        (flip_index, "another checksum"),
        (spoil_manifest, "ckpt-3.json is damaged"),
        (drop_index, "ckpt-3.index is missing"),
        (drop_data_and_manifest, "a data file is missing"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_and_named(folder, capsys, damage, why):
    """The one before is taken, and the warning says which and why."""
    damage(folder)
    assert newest(folder) == 2
    told = capsys.readouterr().out
    assert "ckpt-3 is damaged" in told and why in told
    assert "ckpt-2 instead" in told


def test_no_whole_checkpoint_is_an_error(folder):
    """A run must not begin anew over what is left of another."""
    for path in folder.glob("ckpt-*.data*"):
        path.write_bytes(b"")
    with pytest.raises(InputError, match="(?s)begin anew.*ckpt-3.*ckpt-1"):
        newest(folder)


@pytest.mark.parametrize("content", [None, "", "model_checkpoint_path: "])
def test_a_lost_state_file_loses_nothing(folder, content):
    """Without a readable `checkpoint` file the manifests tell."""
    (folder / "checkpoint").unlink()
    if content is not None:
        (folder / "checkpoint").write_text(content)
    assert newest(folder) == 3


def test_a_checkpoint_without_a_manifest_is_read(folder):
    """Those that an earlier version wrote have none."""
    (folder / "ckpt-3.json").unlink()
    assert newest(folder) == 3
    assert checkpoint_files.about(str(folder / "ckpt-3")) == {}


def test_a_checkpoint_without_a_manifest_must_have_all_its_data(folder):
    """Files count by the whole number in their names, as 1 beside 10."""
    for path in list(folder.glob("ckpt-3*")):
        shutil.copy(path, folder / path.name.replace("ckpt-3", "ckpt-30"))
    for path in list(folder.glob("*.json")):
        path.unlink()
    for step in ("3", "30"):
        assert checkpoint_files.fault(str(folder / f"ckpt-{step}")) == ""
    data = folder / "ckpt-30.data-00000-of-00001"
    data.rename(folder / "ckpt-30.data-00000-of-00002")
    wrong = checkpoint_files.fault(str(folder / "ckpt-30"))
    assert wrong == "a data file is missing"


def test_checkpoints_after_the_newest_are_not_taken(folder):
    """The `checkpoint` file decides where a run goes on."""
    names = [f'all_model_checkpoint_paths: "ckpt-{n}"' for n in (1, 2, 3)]
    lines = ['model_checkpoint_path: "ckpt-2"', *names]
    (folder / "checkpoint").write_text("\n".join(lines))
    found = checkpoint_files.listed(str(folder))
    assert list(map(checkpoint_files.number, found)) == [2, 1]


def test_a_kill_before_the_state_file_leaves_the_earlier_one(folder, tmp_path):
    """Files of a checkpoint that is not named yet do not count."""
    for path in folder.glob("ckpt-3*"):
        shutil.copy(path, folder / path.name.replace("ckpt-3", "ckpt-4"))
    (folder / "ckpt-5_temp").mkdir()
    assert newest(folder) == 3


def test_the_newest_are_kept(tmp_path):
    """Of four checkpoints the last two."""
    saver = checkpoints.Saver(str(tmp_path), variables(), keep=2)
    for step in (1, 2, 3, 4):
        saver.save(step)
    names = {path.name.split(".")[0] for path in tmp_path.iterdir()}
    assert names == {"ckpt-3", "ckpt-4", "checkpoint"}


def test_saving_removes_old_lost_and_unfinished_ones(folder):
    """Kept are the newest up to the step; later ones are of a lost stretch."""
    (folder / "ckpt-9_temp").mkdir()
    (folder / "ckpt-9_temp" / "part").write_text("x")
    (folder / "notes.txt").write_text("mine")
    checkpoints.Saver(str(folder), variables(1.0), keep=2).save(2)
    names = {path.name.split(".")[0] for path in folder.iterdir()}
    assert names == {"ckpt-1", "ckpt-2", "checkpoint", "notes"}
    read = checkpoints.reader(str(folder / "ckpt-2"))
    assert (read("a/kernel") == 1.0).all()
