"""A folder may be replaced only if programs wrote all of its files."""

import os

import pytest

from albert_tf.base.errors import InputError
from albert_tf.base.replacing import Contents, check_replaceable

FORMS = (
    Contents(frozenset({"state"}), ("state", "ckpt-[0-9]*.json")),
    Contents(frozenset({"a/graph"}), ("a/graph", "a/part-*", "notes")),
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
    [(), ("state",), ("state", "ckpt-12.json"), ("a/graph", "a/part-1")],
)
def test_what_a_program_wrote_may_go(names, tmp_path):
    """A folder may be replaced if it is new, empty, or written by a program.

    Some files of such a folder are optional.
    """
    check(write(tmp_path, *names))
    check(str(tmp_path / "new"))


@pytest.mark.parametrize(
    ("names", "foreign"),
    [
        (("ckpt-12.json",), ["ckpt-12.json"]),
        (("state", "ckpt-1/mine.json"), ["ckpt-1/mine.json"]),
        (("state", "b/state"), ["b/state"]),
        (("state", "mine/"), ["mine/"]),
        (("a/graph", "a/b/part-1"), ["a/b/part-1"]),
        (("state", "a/graph", "notes"), ["state"]),
        (("state", "x", "y", "z"), ["x", "y", "z"]),
    ],
)
def test_anything_else_stays(names, foreign, tmp_path):
    """The error lists the files that do not belong to the best-matching kind.

    The kinds are forms of folders that programs write. A pattern of a form does
    not match inside subfolders.
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
    """The error lists three foreign paths and the number of other ones."""
    folder = write(tmp_path, "state", *"vwxyz")
    with pytest.raises(InputError, match="with v, w, x and 2 more$"):
        check(folder)
