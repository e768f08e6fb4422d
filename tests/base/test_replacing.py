"""Folders are replaced only if programs wrote all of their files."""

import os
import shutil
import signal

import pytest

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.base.replacing import (
    Contents,
    atomic_folder,
    check_replaceable,
    check_unused,
    check_writable,
    folder_beside,
)

FORMS = (
    Contents(frozenset({"state"}), ("state", "ckpt-[0-9]*.json")),
    Contents(frozenset({"a/graph"}), ("a/graph", "a/part-*", "notes")),
    Contents(frozenset({"top/sub/graph"}), ("top/sub/graph",)),
    Contents(frozenset({"one", "two"}), ("one", "two", "more")),
)


def write(folder, *names):
    """Write files to a folder and return the folder's path.

    A name with a trailing slash becomes an empty folder.
    """
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_text(name)
    return str(folder)


def check(folder):
    check_replaceable("target", folder, FORMS, "`target` is in the way.")


@pytest.mark.parametrize(
    "names",
    [
        *((), ("state",), ("state", "ckpt-12.json")),
        *(("a/graph", "a/part-1"), ("top/sub/graph",), ("one", "two")),
    ],
)
def test_what_a_program_wrote_may_go(names, tmp_path):
    """The target folder of a program may be new, empty or an earlier output.

    Some of the files that a program writes are optional.
    """
    check(write(tmp_path, *names))
    check(str(tmp_path / "new"))


@pytest.mark.parametrize(
    ("names", "foreign"),
    [
        (("ckpt-12.json",), ["ckpt-12.json"]),
        (("one", "more"), ["more", "one"]),
        (("state", "ckpt-1/mine.json"), ["ckpt-1/mine.json"]),
        (("state", "b/state"), ["b/state"]),
        (("state", "mine/"), ["mine/"]),
        (("a/graph", "a/b/part-1"), ["a/b/part-1"]),
        (("state", "a/graph", "notes"), ["state"]),
        (("state", "x", "y", "z"), ["x", "y", "z"]),
    ],
)
def test_anything_else_stays(names, foreign, tmp_path):
    """The error lists the files that do not belong to the best-matching form.

    A form describes the files that a program writes. Its patterns match only
    paths of the same depth.
    """
    folder = write(tmp_path, *names)
    with pytest.raises(InputError) as error:
        check(folder)
    shown = f"target={folder} with {', '.join(foreign)}"
    assert str(error.value).endswith(shown)


def test_a_link_to_a_folder_is_foreign(tmp_path):
    """A link to a folder is foreign, because its target is not checked."""
    write(tmp_path / "mine", "ckpt-1.json")
    folder = write(tmp_path / "out", "state")
    os.symlink(tmp_path / "mine", f"{folder}/link")
    with pytest.raises(InputError, match="out with link$"):
        check(folder)


def test_few_of_many_are_listed(tmp_path):
    """The error lists three foreign paths and counts the other paths."""
    folder = write(tmp_path, "state", *"vwxyz")
    with pytest.raises(InputError, match="with v, w, x and 2 more$"):
        check(folder)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a subfolder that contains a file."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.txt").write_text("c")
    return tmp_path


def test_files_to_overwrite_are_named(folder):
    """The error names the setting, its folder and the files in the way.

    Hidden files are not in the way.
    """
    (folder / ".hidden.txt").write_text("")
    check_unused(str(folder), ["*.txt"])
    check_unused(str(folder), ["*.csv"])
    check_unused(f"{folder}/new", ["*.txt"])
    (folder / "a.txt").write_text("")
    message = "^`output_dir` must not contain files .* Received: "
    with pytest.raises(
        InputError, match=f"{message}output_dir={folder} with a.txt$"
    ):
        check_unused(str(folder), ["*.txt"])


def test_a_folder_replaces_another(folder):
    """The old folder is removed only when the new one is complete."""
    path = folder / "sub"
    with pytest.raises(RuntimeError):
        with atomic_folder(str(path), True) as temporary:
            files.write_bytes(f"{temporary}/new", b"")
            raise RuntimeError
    assert [p.name for p in path.iterdir()] == ["c.txt"]
    with atomic_folder(str(path), True) as temporary:
        files.write_bytes(f"{temporary}/new", b"")
    assert [p.name for p in path.iterdir()] == ["new"]
    assert os.path.dirname(temporary) == str(folder)  # renamed, not copied
    assert not list(folder.glob("sub.*"))


def test_a_folder_takes_nothing_of_a_killed_process(folder):
    """Files left by a killed process are not used, even if its ID is reused."""
    for kind in ("tmp", "old"):
        stale = folder / f"sub.{kind}{os.getpid()}"
        stale.mkdir()
        (stale / "stale").write_text("")
    with atomic_folder(str(folder / "sub"), True) as temporary:
        files.write_bytes(f"{temporary}/new", b"")
    assert files.names(str(folder / "sub")) == ["new"]


def test_folders_of_killed_processes_are_removed(folder):
    """Temporary folders of killed processes beside a new folder are removed.

    Folders of living processes, which are empty until they are locked, and
    folders with other names are kept.
    """
    path, end = str(folder / "sub"), ".tmp7-0123abcd"
    stale = [path + end, f"{path}.old{end}"]
    for name in (*stale, f"{path}2{end}", f"{path}.tmp7"):
        os.mkdir(name)
        files.write_bytes(f"{name}/file", b"")
    os.mkdir(f"{path}.tmp8-0123abcd")
    with atomic_folder(path, True) as living:
        files.write_bytes(f"{living}/file", b"")
        with atomic_folder(path, True):
            pass
        assert os.path.isdir(living)
        assert not any(map(os.path.exists, stale))
    left = sorted(p.name for p in folder.glob("sub*"))
    assert left == ["sub", "sub.tmp7", "sub.tmp8-0123abcd", f"sub2{end}"]


def test_a_folder_beside_a_file_goes_with_the_block(folder, monkeypatch):
    """The folder is on the file's disk, even if the block leaves the folder.

    Folders of killed processes are removed, too.
    """
    monkeypatch.chdir(folder)
    stale = folder / "a.txt.tmp7-0123abcd"
    stale.mkdir()
    (stale / "file").touch()
    with folder_beside("a.txt") as temporary:
        assert os.path.dirname(temporary) == str(folder)
        files.write_bytes(f"{temporary}/new", b"")
        os.chdir("sub")
    assert files.names(str(folder)) == ["sub"]


def test_nothing_is_removed_without_locks(folder, monkeypatch):
    """On a disk without locks, a process may be alive, so its folder stays."""

    def flock(number, operation):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", flock)
    other = folder / "sub.tmp7-0123abcd"
    other.mkdir()
    (other / "file").touch()
    with atomic_folder(str(folder / "sub"), True):
        pass
    assert sorted(folder.glob("sub*")) == [folder / "sub", other]


def test_a_folder_that_cannot_be_replaced_returns(folder, monkeypatch):
    """If the new folder cannot take its place, the old one is put back."""
    rename = os.replace

    def failing(path, to):
        if not path.endswith("sub"):
            monkeypatch.setattr(os, "replace", rename)
            raise OSError(122, "Disk quota exceeded")
        rename(path, to)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="quota"):
        with atomic_folder(str(folder / "sub"), True):
            pass
    assert [p.name for p in folder.glob("sub*")] == ["sub"]
    assert files.names(str(folder / "sub")) == ["c.txt"]


def test_nothing_is_left_after_sigterm(folder):
    """SIGTERM removes the temporary folder and keeps the old folder."""
    earlier = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended:
            with atomic_folder(str(folder / "sub"), True) as temporary:
                files.write_bytes(f"{temporary}/new", b"")
                os.kill(os.getpid(), signal.SIGTERM)
        assert ended.value.code == 143
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert files.names(str(folder / "sub")) == ["c.txt"]
    assert not list(folder.glob("sub.*"))


def test_a_place_that_cannot_be_written(folder, monkeypatch):
    """If a folder cannot be created, the error names the requested path."""
    (folder / "file").write_text("")
    with pytest.raises(InputError, match=f"existing file.*: {folder}/file$"):
        with atomic_folder(f"{folder}/file/new"):
            pass
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match=f"folder={folder}/new$"):
        with atomic_folder(f"{folder}/new"):
            pass

    with pytest.raises(InputError, match=f"be writable.*folder={folder}/sub$"):
        with atomic_folder(f"{folder}/sub", True):
            pytest.fail("the body began")

    def makedirs(path, exist_ok):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "makedirs", makedirs)
    with pytest.raises(InputError, match="Permission denied. Received: /x/y$"):
        files.make_folder("/x/y")


@pytest.mark.parametrize("path", ["sub", "new", "sub/new/new", "sub/c.txt"])
def test_the_folder_around_a_new_file_must_be_writable(
    folder, path, monkeypatch
):
    """The innermost folder that exists is checked; a pipe is not.

    A file is replaced, so its own permissions do not matter.
    """
    checked = []
    monkeypatch.setattr(os, "access", lambda *args: checked.append(args))
    with pytest.raises(InputError, match=f"`a` must be writable.*a={folder}"):
        check_writable("a", f"{folder}/{path}")
    inner = folder if path == "new" else folder / "sub"
    assert checked == [(os.path.realpath(inner), os.W_OK | os.X_OK)]
    os.mkfifo(folder / "pipe")
    check_writable("a", f"{folder}/pipe")
    check_writable("a", "gs://bucket/a")


@pytest.mark.parametrize("path", ["sub/", "new/", "link", "link/"])
def test_a_folder_may_end_in_a_slash_or_be_a_link(folder, path):
    """A folder can be replaced if its path ends in a slash or is a link.

    The content of the link's target is replaced, and the link remains.
    """
    (folder / "link").symlink_to(folder / "sub")
    with atomic_folder(f"{folder}/{path}", True) as temporary:
        files.write_bytes(f"{temporary}/new", b"")
    assert files.names(f"{folder}/{path}") == ["new"]
    assert (folder / "link").is_symlink()
    assert not [n for n in files.names(folder) if ".tmp" in n or ".old" in n]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("path.ismount", lambda path: path.endswith("sub")),
        ("access", lambda path, mode: path.endswith("sub")),
    ],
)
def test_a_folder_that_cannot_be_renamed_is_filled(
    name, answer, folder, monkeypatch
):
    """A folder that cannot be renamed, such as a mount, is not replaced.

    The new files are copied into the folder instead.
    """
    path = str(folder / "sub")

    def rename(name, to):
        assert path not in (name, to), "Device or resource busy"
        os.rename(name, to)

    monkeypatch.setattr(f"os.{name}", answer)
    monkeypatch.setattr(os, "replace", rename)
    with atomic_folder(path, True) as temporary:
        files.write_text(f"{temporary}/new/a", "")
    assert files.names(path) == ["new"] and files.names(f"{path}/new") == ["a"]


def test_nothing_goes_before_a_filled_folder_is_whole(folder, monkeypatch):
    """If the disk fills up while new files are copied, all old files remain.

    If all files are copied, the old files are removed. An old file with the
    name of a new one remains until the new one replaces it.
    """
    path, copied = folder / "sub", []
    (path / "inner").mkdir()
    (path / "inner" / "old").write_text("old")
    before = sorted(x for x in path.rglob("*"))

    def copy(name, to):
        if copied:
            raise OSError("No space left on device")
        copied.append(shutil.copyfile(name, to))

    monkeypatch.setattr("os.path.ismount", lambda mount: mount == str(path))
    monkeypatch.setattr(files, "copy", copy)
    with pytest.raises(OSError, match="No space"):
        with atomic_folder(str(path), True) as temporary:
            files.write_text(f"{temporary}/c.txt", "new")
            files.write_text(f"{temporary}/inner/new", "new")
    assert copied and sorted(x for x in path.rglob("*")) == before
    assert (path / "c.txt").read_text() == "c"
    monkeypatch.undo()
    monkeypatch.setattr("os.path.ismount", lambda mount: mount == str(path))
    replace = os.replace

    def failing(name, to):
        if to == str(path / "c.txt"):
            raise OSError("busy")
        replace(name, to)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="busy"):
        with atomic_folder(str(path), True) as temporary:
            files.write_text(f"{temporary}/c.txt", "new")
    assert (path / "c.txt").read_text() == "c"
    monkeypatch.undo()
    monkeypatch.setattr("os.path.ismount", lambda mount: mount == str(path))
    with atomic_folder(str(path), True) as temporary:
        files.write_text(f"{temporary}/c.txt", "new")
    assert [x.name for x in path.rglob("*")] == ["c.txt"]
    assert (path / "c.txt").read_text() == "new"


@pytest.mark.parametrize("path", ["", ".", "sub", "sub/..", "/", "//"])
def test_files_are_never_replaced_unasked(folder, path, monkeypatch):
    """Without `replace`, no folder with files is touched.

    The empty path, which the system takes for the current folder, raises an
    error.
    """
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="new or empty"):
        with atomic_folder(path):
            pytest.fail("the block must not run")
    assert files.names(str(folder)) == ["sub"]
    assert files.names(str(folder / "sub")) == ["c.txt"]


@pytest.mark.parametrize("inside", [False, True])
def test_files_that_appear_meanwhile_stay(folder, inside, monkeypatch):
    """If files appear in the folder while the block runs, they are kept."""
    path = folder / "new"
    path.mkdir()
    if inside:
        monkeypatch.chdir(path)
    with pytest.raises(InputError, match="new or empty"):
        with atomic_folder(str(path)) as temporary:
            files.write_text(f"{temporary}/ours", "")
            (path / "theirs").write_text("")
    assert files.names(str(path)) == ["theirs"]
    assert files.names(str(folder)) == ["new", "sub"]


def test_the_current_folder_is_filled(folder, monkeypatch):
    """Filling the current folder does not replace the folder itself."""
    path = folder / "new"
    path.mkdir()
    monkeypatch.chdir(path)
    with atomic_folder(".") as temporary:
        files.write_text(f"{temporary}/a/b", "ours")
    assert os.listdir() == ["a"] and os.path.samefile(".", path)


def test_a_folder_around_the_current_one_is_filled(folder, monkeypatch):
    """A program may stay in a subfolder of a folder that is replaced."""
    inner = folder / "sub" / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    with atomic_folder(str(folder / "sub"), True) as temporary:
        files.write_text(f"{temporary}/inner/new", "")
    assert os.listdir() == ["new"] and files.names(folder / "sub") == ["inner"]


@pytest.mark.parametrize("path", ["/", "//", "a/", "a//", "a"])
def test_the_root_keeps_its_slash(path):
    """Slashes at the end are removed, but `/` remains the root."""
    assert files.without_slash(path) == ("/" if path[0] == "/" else "a")
