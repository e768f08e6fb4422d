"""Intact checkpoints are found, and damaged checkpoints are skipped."""

import shutil

import pytest
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.conversion.tf1 import open_checkpoint
from albert_tf.training import checkpoint_files, checkpoints


def variables(value=0.0):
    return {"a/kernel": tf.Variable([[value] * 50] * 50)}


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the checkpoints of steps 1 to 3."""
    for step in (1, 2, 3):
        facts = {"replicas": step}
        checkpoints.save(str(tmp_path), variables(), step, 3, facts)
    return tmp_path


def newest(folder):
    found = checkpoint_files.latest(str(folder))
    return found and checkpoint_files.number(found)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(position):
    def damage(path):
        content = bytearray(path.read_bytes())
        content[position * len(content) // 10] ^= 4
        path.write_bytes(content)

    return damage


def drop(path):
    path.unlink()


@pytest.mark.parametrize("damage", [cut, drop, *map(flip, (0, 3, 6))])
@pytest.mark.parametrize("file", ["index", "data-00000-of-00001"])
def test_a_damaged_checkpoint_is_skipped_and_named(
    folder, capsys, file, damage
):
    """A warning names a damaged checkpoint; the previous checkpoint is used.

    The damaged checkpoint may lack its `.json` file, as do checkpoints of
    earlier versions.
    """
    damage(folder / f"ckpt-3.{file}")
    assert newest(folder) == 2
    warning = capsys.readouterr().out
    assert "ckpt-3 is damaged" in warning and "ckpt-2 instead" in warning
    (folder / "ckpt-3.json").unlink()
    assert newest(folder) == 2


def test_a_checkpoint_without_read_permission_is_not_damaged(folder):
    """A checkpoint without read permission raises an error.

    Such a checkpoint does not count as damaged, so no older checkpoint is used.
    """

    def read(prefix):
        with checkpoint_files.damage_named(prefix):
            message = f"{prefix}.index; Permission denied"
            raise tf.errors.UnknownError(None, None, message)

    with pytest.raises(InputError, match="readable. Received: .*ckpt-3$"):
        checkpoint_files.latest(str(folder), read)


def test_a_size_that_no_memory_holds(folder, capsys):
    """An impossible size in an index is reported as damage.

    A footer of 48 bytes locates two blocks by their offsets and sizes (varints)
    and ends with a fixed number.
    """
    path = folder / "ckpt-3.index"
    content = path.read_bytes()
    handles = bytes([0, 8, 0, *[255] * 6, 127]).ljust(40, b"\0")  # 2**49 bytes
    path.write_bytes(content[:-48] + handles + content[-8:])
    assert newest(folder) == 2
    assert "ckpt-3 is damaged: " in capsys.readouterr().out
    for read in (checkpoints.reader, checkpoints.read_table, open_checkpoint):
        with pytest.raises(InputError, match="The checkpoint is damaged: "):
            read(str(folder / "ckpt-3"))


def test_a_resume_reads_what_it_takes_once(folder, monkeypatch, capsys):
    """If restoring detects damage, the previous checkpoint is restored.

    No file is read in advance to detect damage. An intact checkpoint of a
    different model raises an error and is not skipped.
    """
    monkeypatch.setattr(checkpoint_files, "read_all", None)
    state = variables(5.0)
    checkpoints.save(str(folder), variables(2.0), 2, 3)
    checkpoints.save(str(folder), variables(3.0), 3, 3)
    flip(6)(folder / "ckpt-3.data-00000-of-00001")
    taken = checkpoints.restore_latest(str(folder), state)
    assert taken == str(folder / "ckpt-2")
    assert (state["a/kernel"].numpy() == 2.0).all()
    assert "ckpt-3 is damaged: TensorBundle" in capsys.readouterr().out
    with pytest.raises(InputError, match="must match the model.*\n.*missing b"):
        checkpoints.restore_latest(str(folder), {"b": state["a/kernel"]})


def test_a_name_without_a_step_has_none():
    """A checkpoint's step is the number at the end of its name, or else -1."""
    prefixes = ("a/ckpt-12", "a/ckpt-0", "a/ckpt", "ckpt-3/a")
    assert [*map(checkpoint_files.number, prefixes)] == [12, 0, -1, -1]


def test_a_list_with_other_names_keeps_the_checkpoints_steps(folder):
    """`adopt` drops listed checkpoints whose names contain no step.

    The stated reason for damage is the first line of the error message, without
    TensorFlow's annotations such as `{{node a}}`.
    """
    (folder / "checkpoint").write_text(
        'model_checkpoint_path: "ckpt-2"\n'
        'all_model_checkpoint_paths: "/elsewhere/ckpt-2"\n'
        'all_model_checkpoint_paths: "/elsewhere/model"\n'
    )
    checkpoint_files.adopt(str(folder), 3, 5)
    lines = (folder / "checkpoint").read_text().splitlines()
    assert [line.split()[1] for line in lines] == [
        *('"ckpt-3"', '"ckpt-2"', '"ckpt-3"')
    ]


def test_no_whole_checkpoint_is_an_error(folder):
    """If all checkpoints are damaged, an error names them."""
    for path in folder.glob("ckpt-*.data*"):
        path.write_bytes(b"")
    with pytest.raises(InputError, match="(?s)start over.*ckpt-3.*ckpt-1"):
        newest(folder)


def test_a_run_may_replace_what_is_read(tmp_path):
    """If a run replaces a checkpoint while it is read, the new one is read."""
    checkpoints.save(str(tmp_path), variables(), 1)

    def read(prefix):
        if checkpoint_files.number(prefix) == 1:
            checkpoints.save(str(tmp_path), variables(), 2)
        checkpoint_files.read_all(prefix)

    assert checkpoint_files.latest(str(tmp_path), read).endswith("ckpt-2")


@pytest.mark.parametrize("content", [None, "", "model_checkpoint_path: "])
def test_a_lost_state_file_loses_nothing(folder, content):
    """Without a valid `checkpoint` file, `.json` files identify checkpoints."""
    (folder / "checkpoint").unlink()
    if content is not None:
        (folder / "checkpoint").write_text(content)
    assert newest(folder) == 3


def test_facts_are_kept_beside(folder):
    """Each checkpoint has a `.json` file, but is intact without this file.

    A `.json` file that cannot be read counts as damage.
    """
    assert checkpoint_files.read_facts(str(folder / "ckpt-2")) == {
        "replicas": 2
    }
    (folder / "ckpt-3.json").unlink()
    assert checkpoint_files.read_facts(str(folder / "ckpt-3")) == {}
    assert newest(folder) == 3
    for text in ('{"about":', '{"more": {}}', "[]"):
        (folder / "ckpt-3.json").write_text(text)
        assert newest(folder) == 2


def test_a_lost_connection_is_not_damage(folder, monkeypatch):
    """If remote storage fails, no earlier checkpoint is used instead."""

    def read(self, size=None):
        raise tf.errors.UnavailableError(None, None, "connection reset")

    monkeypatch.setattr(tf.io.gfile.GFile, "read", read)
    with pytest.raises(InputError, match=r"connection reset.*ckpt-3\.json"):
        checkpoint_files.fault(f"file://{folder}/ckpt-3", lambda prefix: None)


def test_checkpoints_after_the_newest_are_not_taken(folder):
    """Checkpoints later than the one that `checkpoint` names are ignored.

    If the file names the checkpoint of step 11, only the checkpoints of steps
    11, 10 and 9 are found, in this order.
    """
    names = [f'all_model_checkpoint_paths: "ckpt-{n}"' for n in range(9, 13)]
    lines = ['model_checkpoint_path: "ckpt-11"', *names]
    (folder / "checkpoint").write_text("\n".join(lines))
    found = checkpoint_files.listed(str(folder))
    assert list(map(checkpoint_files.number, found)) == [11, 10, 9]


def test_a_kill_before_the_state_file_leaves_the_earlier_one(folder, tmp_path):
    """A checkpoint that the `checkpoint` file does not list yet is ignored."""
    for path in folder.glob("ckpt-3*"):
        shutil.copy(path, folder / path.name.replace("ckpt-3", "ckpt-4"))
    (folder / "ckpt-5_temp").mkdir()
    assert newest(folder) == 3


def test_the_newest_are_kept(tmp_path):
    """With `keep=2`, the last two of four checkpoints are kept."""
    for step in (8, 9, 10, 11):
        checkpoints.save(str(tmp_path), variables(), step, keep=2)
    names = {path.name.split(".")[0] for path in tmp_path.iterdir()}
    assert names == {"ckpt-10", "ckpt-11", "checkpoint"}


def test_saving_removes_old_lost_and_unfinished_ones(folder):
    """Saving removes later and unfinished checkpoints, but no other files.

    A checkpoint of the same step is replaced.
    """
    (folder / "ckpt-9_temp").mkdir()
    (folder / "ckpt-9_temp" / "part").write_text("x")
    (folder / "notes.txt").write_text("mine")
    checkpoints.save(str(folder), variables(1.0), 2, keep=2)
    names = {path.name.split(".")[0] for path in folder.iterdir()}
    assert names == {"ckpt-1", "ckpt-2", "checkpoint", "notes"}
    read = checkpoints.reader(str(folder / "ckpt-2"))
    assert (read("a/kernel") == 1.0).all()


def test_a_folder_whose_checkpoints_tensorflow_would_not_find(tmp_path):
    """A path with a bracket raises an error.

    TensorFlow could not load a checkpoint from such a path.
    """
    folder = tmp_path / "run[1]"
    with pytest.raises(InputError, match="must not contain `\\["):
        checkpoints.restore_latest(str(folder), variables())
    variable = tf.Variable(1.0)
    prefix = tf.train.Checkpoint(a=variable).write(str(folder / "ckpt-1"))
    with pytest.raises(tf.errors.NotFoundError):
        tf.train.load_checkpoint(prefix)
