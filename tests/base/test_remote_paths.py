"""TensorFlow handles paths with `://`; unreachable paths raise errors."""

import gzip
import re

import programs
import pytest
import tensorflow as tf
from tiny_corpus import ROOT

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.base.replacing import atomic_folder


@pytest.mark.parametrize(
    "touch",
    [
        files.exists,
        files.size,
        files.names,
        files.matches,
        files.read_bytes,
        files.make_folder,
        files.remove,
        files.remove_folder,
        lambda path: files.rename(path, path + "s"),
        lambda path: files.copy(path, "/tmp/x"),
        lambda path: files.copy(__file__, path),
        lambda path: files.write_bytes(path, b"x"),
    ],
)
def test_an_unreachable_path_is_the_users_mistake(touch):
    """The one-line error for an unreachable path states the path."""
    path = "nowhere://folder/file"
    with pytest.raises(InputError) as caught:
        touch(path)
    assert isinstance(caught.value, OSError)  # as for local files
    message = str(caught.value)
    assert re.search(f"(not implemented|not find).*Received: .*{path}", message)
    assert "\n" not in message


def test_a_permission_may_be_denied_while_reading(tmp_path, monkeypatch):
    """The error of a failed read names TensorFlow's exception.

    The exception's own message may be empty.
    """
    path = tmp_path / "a"
    path.write_bytes(b"abc\ndef\n")
    with files.opened(f"file://{path}", "rb") as file:
        assert file.readline() == b"abc\n"

    def read(self, size):
        raise tf.errors.PermissionDeniedError(None, None, "")

    with files.opened(f"file://{path}", "rb") as file:
        monkeypatch.setattr(tf.io.gfile.GFile, "read", read)
        with pytest.raises(InputError, match="PermissionDenied.*Received"):
            file.read()


@pytest.mark.parametrize("scheme", ["file://{}", "ram://{}"])
def test_a_remote_folder_is_made_on_the_disk(scheme, tmp_path):
    """A remote folder is built locally; on success, it replaces the old one."""
    path = scheme.format(tmp_path / "made")
    files.write_text(f"{path}/old", "old")
    with pytest.raises(RuntimeError):
        with atomic_folder(path, replace=True):
            raise RuntimeError
    assert files.names(path) == ["old"]
    with atomic_folder(path, replace=True) as folder:
        assert not files.is_remote(folder)
        files.write_text(files.join(folder, "a"), "1")
        files.write_text(files.join(folder, "b", "c"), "2")
    assert files.names(path) == ["a", "b"]
    assert files.read_bytes(f"{path}/b/c") == b"2"


def test_a_remote_file_is_a_python_file(tmp_path):
    """A remote file opened for reading supports partial reads and seeking.

    The file can also be read line by line. A file opened for writing is not
    seekable.
    """
    path = tmp_path / "a.gz"
    lines = [f"line {i}\n".encode() for i in range(5000)]
    with files.opened(f"file://{path}", "wb") as file:
        can = file.raw.readable(), file.raw.writable(), file.raw.seekable()
        assert can == (False, True, False)
        file.write(gzip.compress(b"".join(lines), mtime=0))
    with files.opened(f"file://{path}", "rb") as file:
        can = file.raw.readable(), file.raw.writable(), file.raw.seekable()
        assert can == (True, False, True)
        assert file.read(2) == b"\x1f\x8b"
        file.seek(0)
        assert list(gzip.GzipFile(fileobj=file)) == lines
        assert file.tell() == path.stat().st_size


def test_remote_paths_go_through_tensorflow(tmp_path):
    """Paths with `://` can be written, read, listed, copied and removed."""
    remote = f"file://{tmp_path}/sub"
    files.make_folder(remote)
    for text in ("earlier", "naïve"):
        files.write_text(files.join(remote, "a.txt"), text)
    assert (tmp_path / "sub" / "a.txt").read_text("utf-8") == "naïve"
    assert files.read_text(f"{remote}/a.txt", "It") == "naïve"
    assert files.size(f"{remote}/a.txt") == 6
    assert [p.rsplit("/")[-1] for p in files.matches(f"{remote}/*")] == [
        "a.txt"
    ]
    for path in (f"{tmp_path}/b.txt", f"file://{tmp_path}/b.txt"):
        files.copy(f"{remote}/a.txt", path)
        assert (tmp_path / "b.txt").read_text("utf-8") == "naïve"
    with files.locked(remote, "output_dir") as first:
        with files.locked(remote, "other") as second:
            assert not first and not second  # remote folders are not locked
    assert files.is_file(f"{remote}/a.txt") and files.is_folder(remote)
    assert [names for _, _, names in files.walk(remote)] == [["a.txt"]]
    files.remove(f"{remote}/a.txt")
    files.remove_folder(remote)
    assert not (tmp_path / "sub").exists()


def test_local_files_need_no_tensorflow(tmp_path):
    """Writing and listing local files does not import TensorFlow."""
    code = (
        "import sys; from albert_tf.base import files\n"
        f"files.write_text({str(tmp_path / 'x' / 'a')!r}, 'a')\n"
        f"files.glob({str(tmp_path / '*' / 'a')!r}, '')\n"
        "print('tensorflow' in sys.modules)"
    )
    assert programs.fresh("-c", code, cwd=ROOT) == "False\n"
