"""Local file operations give the same results as TensorFlow, except `**`."""

import errno
import os
import subprocess
import sys
from unittest import mock

import pytest
import tensorflow as tf
from tiny_corpus import ROOT

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.library import embed
from albert_tf.tasks.tables import Columns, read_rows
from albert_tf.text.tokenizers import TokenizerConfig, build_tokenizer


@pytest.fixture
def folder(tmp_path):
    """Return a folder with two files, a hidden file and a subfolder."""
    for name in ("b.txt", "a.txt", ".hidden.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.txt").write_text("c")
    return tmp_path


def test_an_existing_path_is_not_split(tmp_path, monkeypatch):
    """Paths in a list lose spaces; an existing path keeps spaces and commas."""
    monkeypatch.chdir(tmp_path)
    for name in (" a", "b, c"):
        (tmp_path / name).touch()
        assert files.split_paths(name) == [name]
    assert files.split_paths(" b, c ,, d/*") == ["b", "c", "d/*"]


@pytest.mark.parametrize(
    "pattern", ["a.txt", "[a-z]*.txt", "*/c.txt", "s*", "no*", "no/*", "sub/"]
)
def test_matches_are_those_of_tensorflow(folder, pattern):
    """A pattern matches the paths that TensorFlow finds, in sorted order."""
    pattern = f"{folder}/{pattern}"
    assert files.matches(pattern) == sorted(tf.io.gfile.glob(pattern))


def test_two_stars_reach_every_depth(folder):
    """Unlike in TensorFlow, `**` matches files at any depth of a local folder.

    Brackets in the name of a folder are literal. In a remote path, `**` raises
    an error.
    """
    (folder / "sub" / "[x]" / "y").mkdir(parents=True)
    (folder / "sub" / "[x]" / "y" / "d.txt").touch()
    names = ["a.txt", "b.txt", "sub/[x]/y/d.txt", "sub/c.txt"]
    for pattern in (f"{folder}/**", f"{folder}/**/*", f"{folder}/**/*.txt"):
        paths = files.glob(pattern, "`input_file`")
        assert paths == [f"{folder}/{name}" for name in names]
    for first in ("s*", "?ub"):  # a pattern may precede the stars
        paths = files.matches(f"{folder}/{first}/**/*.txt")
        assert paths == [f"{folder}/{name}" for name in names[2:]]
    with pytest.raises(InputError, match="not `[*][*]`.*file://"):
        files.matches(f"file://{pattern}")


def test_links_between_folders_have_an_end(folder):
    """`**` follows links to folders, except back to a folder above the link.

    Each file is found once.
    """
    other = folder.parent / f"{folder.name}_other"
    other.mkdir()
    (other / "d.txt").touch()
    (folder / "to").symlink_to(other)
    (other / "back").symlink_to(folder)
    names = ["a.txt", "b.txt", "sub/c.txt", "to/d.txt"]
    for pattern in ("**", "**/*.txt", "**/[a-d].txt"):
        paths = files.matches(f"{folder}/{pattern}")
        assert paths == [f"{folder}/{name}" for name in names]


@pytest.mark.parametrize("scheme", ["{}", "file://{}"])
def test_a_folder_s_own_name_is_no_pattern(folder, scheme):
    """Brackets and stars in the name of the searched folder are literal."""
    inner = scheme.format(folder / "b[1]*?")
    files.write_text(files.join(inner, "a.txt"), "a")
    assert files.matches("*.txt", inner) == [files.join(inner, "a.txt")]


def test_hidden_files(folder):
    """Only a pattern with a leading dot matches hidden files, as in a shell."""
    assert files.matches(f"{folder}/*.txt") == [
        f"{folder}/a.txt",
        f"{folder}/b.txt",
    ]
    assert files.matches(f"{folder}/.*.txt") == [f"{folder}/.hidden.txt"]


@pytest.mark.parametrize("name", ["a.txt", "sub", "nothing", "sub/nothing"])
def test_what_stands_at_a_path(folder, name):
    """`exists` and `is_folder` return the values that TensorFlow returns.

    `is_file` is true only for files.
    """
    path = f"{folder}/{name}"
    assert files.exists(path) == tf.io.gfile.exists(path)
    assert files.is_folder(path) == tf.io.gfile.isdir(path)
    assert files.is_file(path) == (name == "a.txt")


@pytest.mark.parametrize("name", ["", "a", "\u00e4 b", "\udcff", "x" * 999])
def test_names_of_files(name):
    """A file name is a string without nulls that can be encoded as bytes.

    Python turns bytes that are not UTF-8 into characters such as U+DCFF.
    """
    assert files.is_name(name)
    assert not any(map(files.is_name, [f"{name}\0", f"{name}\ud800"]))
    assert not any(map(files.is_name, [None, 3, [name], os.fsencode(name)]))


@pytest.mark.parametrize("root", ["gs://bucket/", "", "/"])
@pytest.mark.parametrize("end", ["", "/"])
def test_what_is_inside_a_folder(root, end):
    """`out` and all paths that begin with `out/` are inside `out`.

    A path that begins with `out2/` is not.
    """
    output = f"{root}data/out{end}"
    inside = ["data/out", "data/out/a", "data/out/a/b.txt"]
    outside = ["data", "data/out2", "data/out2/a", "data/a/out", "out/a"]
    assert all(files.is_inside(root + path, output) for path in inside)
    assert not any(files.is_inside(root + path, output) for path in outside)


def test_a_link_leads_to_the_inside_of_a_folder(folder):
    """A path is inside a folder if a link leads there."""
    (folder / "link").symlink_to(folder / "sub")
    assert files.is_inside(f"{folder}/link/c.txt", f"{folder}/sub")
    assert not files.is_inside(f"{folder}/link/../sub2", f"{folder}/sub")


def test_what_is_in_a_folder(folder):
    """`walk` and `names` return the names that TensorFlow returns.

    Hidden files are included.
    """
    trees = [
        {path: sorted(names) for path, _, names in walk(str(folder))}
        for walk in (files.walk, tf.io.gfile.walk)
    ]
    assert trees[0] == trees[1]
    names = files.names(str(folder))
    assert names == sorted(tf.io.gfile.listdir(str(folder)))
    assert ".hidden.txt" in names and "sub" in names


def test_a_copy_takes_the_place_of_what_was_there(folder):
    """Copying overwrites an existing target and leaves the source intact."""
    files.copy(f"{folder}/sub/c.txt", f"{folder}/a.txt")
    assert files.read_bytes(f"{folder}/a.txt") == b"c"
    assert files.exists(f"{folder}/sub/c.txt")


def test_folders_are_made_and_removed(folder):
    """A folder can be created twice; removing it removes its contents."""
    for _ in range(2):
        files.make_folder(f"{folder}/x/y")
    files.write_bytes(f"{folder}/x/y/file", b"abc")
    assert files.size(f"{folder}/x/y/file") == 3
    files.remove_folder(f"{folder}/x")
    assert not files.exists(f"{folder}/x")


@pytest.mark.parametrize("path", ["a.txt", "a.txt/x"])
def test_a_folder_does_not_lie_where_a_file_is(folder, path):
    """Creating a folder at a file's path fails, and the file is kept."""
    with pytest.raises(InputError, match=f"existing file.*{path}"):
        files.make_folder(f"{folder}/{path}")
    assert files.is_file(f"{folder}/a.txt")


def test_json_may_begin_with_a_byte_order_mark(folder):
    """JSON may start with a BOM, which Windows editors write."""
    (folder / "x.json").write_text("\ufeff[1]", "utf-8")
    assert files.read_json(f"{folder}/x.json", "It") == [1]


def test_optional_json_of_no_folder_is_not_in_the_working_folder(
    folder, monkeypatch
):
    """A missing file, or a file of no folder, has no values."""
    (folder / "x.json").write_text('{"a": 1}')
    monkeypatch.chdir(folder)
    assert files.read_optional_json(str(folder), "x.json") == {"a": 1}
    assert files.read_optional_json(str(folder), "y.json") == {}
    assert files.read_optional_json("", "x.json") == {}


def test_json_that_cannot_be_read_is_explained(folder):
    """The error for unreadable JSON states the mistake.

    The error states the line of a syntax error, or the position of a byte that
    is not UTF-8. Too many nested levels, or a value that is not an object, also
    raise an error.
    """
    for text, message in (
        ('{\n"a": oops}', "It must be JSON: .*x.json, line 2$"),
        ("[" * 101 + "]" * 101, "JSON: too many levels. Received: .*x.json$"),
        ("[" * 100_000, "JSON: too many levels. Received: .*x.json$"),
        ('{"a":' * 100 + "{}" + "}" * 100, "too many levels"),
    ):
        (folder / "x.json").write_text(text)
        with pytest.raises(InputError, match=message):
            files.read_json(f"{folder}/x.json", "It")
    assert files.json_value("[" * 100 + "]" * 100)
    assert files.json_value('{"a":' * 99 + "{}" + "}" * 99)
    (folder / "x.json").write_text("[1]")
    with pytest.raises(InputError, match="a JSON object. Received: path=.*x.j"):
        files.read_json_object(f"{folder}/x.json", "It")
    (folder / "x.json").write_bytes(b"ab\xff")
    with pytest.raises(InputError, match="must be UTF-8: .*position 2.*json$"):
        files.read_text(f"{folder}/x.json", "It")


def test_a_file_with_several_paths_is_read_once(folder, capsys):
    """A file with several paths, such as hard links, is read once.

    A warning names one superfluous path and counts the other paths.
    """
    for name in ("d.txt", "e.txt"):
        os.link(folder / "a.txt", folder / name)
    paths = [str(folder / f"{name}.txt") for name in "baded"]
    assert files.distinct(paths[:2]) == paths[:2]
    assert capsys.readouterr().out == ""
    once = f"read once: {paths[2]} is {paths[1]}"
    assert files.distinct(paths[:3]) == paths[:2]
    assert capsys.readouterr().out.endswith(f"{once}\n")
    assert files.distinct(paths) == paths[:2]
    assert capsys.readouterr().out.endswith(f"{once} (and 1 more)\n")
    remote = ["gs://a/x", "gs://a/./x", "gs://a/y"]
    assert files.distinct(remote) == [remote[0], remote[2]]


def test_a_disk_without_locks_is_used_without_one(folder, monkeypatch):
    """If a disk does not support locks, its folders are used without a lock."""
    error = OSError("no locks available")
    monkeypatch.setattr(files.fcntl, "flock", mock.Mock(side_effect=error))
    with files.locked(str(folder / "new"), "output_dir"):
        assert (folder / "new").is_dir()


def test_an_error_unlocks_a_folder(tmp_path):
    """A lock ends with its block, even if an error ends the block.

    The lock reports that it is held.
    """
    for _ in range(2):
        with pytest.raises(RuntimeError):
            with files.locked(str(tmp_path), "output_dir") as is_locked:
                assert is_locked
                with pytest.raises(InputError, match="must not be in use"):
                    with files.locked(str(tmp_path), "output_dir"):
                        pass
                raise RuntimeError


def test_a_moved_folder_is_noticed(tmp_path):
    """A folder that was moved, replaced or removed raises an error.

    Once the folder is back, no error is raised. A remote folder, or a folder
    that was missing at first, never raises an error.
    """
    folder, moved = tmp_path / "model", tmp_path / "moved"
    missing = files.unmoved(str(folder))
    folder.mkdir()
    check = files.unmoved(str(folder))
    check()
    folder.rename(moved)
    moved_back = rf"move it back.*Received: output_dir={folder}$"
    with pytest.raises(InputError, match=moved_back):
        check()
    folder.mkdir()  # for instance, by another run
    with pytest.raises(InputError, match=moved_back):
        check()
    folder.rmdir()
    moved.rename(folder)
    for each in check, missing, files.unmoved("gs://a/b"):
        each()


def test_a_file_may_be_written_to_the_working_folder(folder, monkeypatch):
    """A file whose path names no folder is written to the working folder."""
    monkeypatch.chdir(folder)
    files.write_text("new.txt", "abc")
    assert (folder / "new.txt").read_text() == "abc"


def test_a_file_is_not_written_where_a_folder_is(folder):
    """Writing to the path of a folder raises an error before the block runs."""
    with pytest.raises(InputError, match="existing folder.*path=.*/sub"):
        with files.atomic_path(f"{folder}/sub"):
            pytest.fail("the body began")


def test_a_pipe_stays_a_pipe(folder):
    """Writing to a pipe such as `/dev/stdout` does not replace it with a file.

    The output can be read from the pipe.
    """
    os.mkfifo(folder / "pipe")
    end = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    files.write_text(f"{folder}/pipe", "abc")
    assert os.read(end, 9) == b"abc" and (folder / "pipe").is_fifo()
    os.close(end)


def test_output_can_be_redirected_to_a_file(folder):
    """Writing to `/dev/fd/1` or `/dev/stdout` writes the file it leads to.

    The path in `/dev`, which every process uses, is not replaced.
    """
    with open(folder / "new.txt", "w") as file:
        path = f"/dev/fd/{file.fileno()}"
        files.write_text(path, "abc")
        assert os.path.islink(path)
    assert (folder / "new.txt").read_text() == "abc"


def test_what_can_be_read_only_once(folder):
    """Standard input, pipes and devices are streams.

    Files, folders, missing paths and remote paths are not.
    """
    os.mkfifo(folder / "pipe")
    for path in ("-", "/dev/null", f"{folder}/pipe"):
        assert files.is_stream(path)
    for path in (f"{folder}/a.txt", str(folder), f"{folder}/none", "gs://a/-"):
        assert not files.is_stream(path)
    assert files.glob("-", "`input_file`") == ["-"]


def test_only_unfinished_files_are_left_out(folder):
    """Globs skip only unfinished files, not every name that contains `.tmp`."""
    for name in ("a.tmp", "a.tmp1", "a.tmp1-2"):
        (folder / name).write_text("")
    (folder / os.path.basename(files.unfinished("a"))).write_text("")
    paths = files.matches("a.tmp*", str(folder))
    assert [os.path.basename(path) for path in paths] == [
        *("a.tmp", "a.tmp1", "a.tmp1-2")
    ]


@pytest.mark.parametrize("name", ["a, b.txt", "a [1].txt", "a*.txt"])
def test_what_exists_by_its_name_is_no_pattern(folder, name):
    """An existing file's path is never a pattern, even with commas or stars."""
    (folder / name).touch()
    path = f"{folder}/{name}"
    assert files.glob(path, "`input_file`") == [path]
    if "," not in name:
        both = files.glob(f"{path},{folder}/b.txt", "`input_file`")
        assert both == sorted([path, f"{folder}/b.txt"])


def test_a_folder_with_a_comma_may_contain_matches(folder):
    """A pattern in an existing folder with a comma in its name is not split.

    Other commas separate patterns, even if some folder's name has a comma.
    """
    inner = folder / "x, y" / "z"
    inner.mkdir(parents=True)
    (inner / "c.txt").touch()
    for pattern in ("x, y/z/*", "x, y/*/c.txt", "x, y/z/?.txt"):
        found = files.glob(f"{folder}/{pattern}", "`input_file`")
        assert found == [f"{inner}/c.txt"]
    both = files.glob(f"{folder}/b*, {folder}/a.txt", "`input_file`")
    assert both == [f"{folder}/a.txt", f"{folder}/b.txt"]


def test_a_list_may_contain_a_path_with_a_comma(folder):
    """In a list, `?` matches a comma in a path; the error suggests `?`."""
    (folder / "x,y.txt").touch()
    found = files.glob(f"{folder}/x?y.txt,{folder}/b.txt", "`input_file`")
    assert found == [f"{folder}/b.txt", f"{folder}/x,y.txt"]
    with pytest.raises(InputError, match="comma, write `[?]` instead.*/x$"):
        files.glob(f"{folder}/x,y.txt,{folder}/b.txt", "`input_file`")


@pytest.mark.parametrize("name", ["a.txt", "new.txt"])
def test_a_file_is_written_whole_or_not_at_all(folder, name):
    """A failed write leaves the old file unchanged and adds no other file."""
    before = {path.name: path.is_file() for path in folder.iterdir()}
    with pytest.raises(RuntimeError):
        with files.atomic_path(f"{folder}/{name}") as temporary:
            files.write_bytes(temporary, b"half")
            raise RuntimeError
    assert {path.name: path.is_file() for path in folder.iterdir()} == before
    assert (folder / "a.txt").read_text() == "a.txt"
    files.write_bytes(f"{folder}/{name}", b"whole")
    assert (folder / name).read_bytes() == b"whole"


def test_a_full_disk_is_named_by_its_file(folder, monkeypatch):
    """If a disk is full, the error names the file, not the temporary one."""
    path = f"{folder}/new.txt"
    for error in (OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")):
        with pytest.raises(OSError) as raised:
            with files.atomic_path(path):
                raise error
        assert (path in str(raised.value)) == ("full" in str(error))


def test_glob_says_what_is_wrong(folder):
    """Folders, empty lists and patterns without matches raise errors."""
    both = files.glob(f"{folder}/b.txt, {folder}/*.txt,", "`input_file`")
    assert both == [f"{folder}/a.txt", f"{folder}/b.txt"]
    with pytest.raises(InputError, match="match at least one file.*no"):
        files.glob(f"{folder}/a.txt,{folder}/no*", "`input_file`")
    for pattern, hint in (("s*", "*/s*"), ("sub", "sub/*"), ("*", "*/*")):
        hint = f"{folder}/{hint}?".replace("*/", "**/")
        with pytest.raises(InputError) as error:
            files.glob(f"{folder}/{pattern}", "`input_file`")
        assert f"a folder: {folder}/sub (did you mean {hint})" in str(
            error.value
        )
    with pytest.raises(InputError, match=r"mean file://.*/sub/\*\?\)"):
        files.glob(f"file://{folder}/s*", "`input_file`")
    with pytest.raises(InputError, match="must not be empty"):
        files.glob(" ,", "`input_file`")


def test_a_caller_of_glob_selects_paths(folder):
    """A caller may permit folders, and leave out paths that match a pattern."""
    found = files.glob(
        f"{folder}/*,{folder}/b.txt",
        "`input_file`",
        legal_folder=lambda path: path.endswith("sub"),
        left_out=lambda pattern, path: "*" in pattern and "a.txt" in path,
    )
    assert found == [f"{folder}/b.txt", f"{folder}/sub"]


HOLD = """
import sys
from albert_tf.base import files
with files.locked(sys.argv[1], "output_dir"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_held_folder_is_refused_until_its_process_ends(tmp_path):
    """A folder stays locked until the process that locked it has ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(InputError, match="`output_dir` must not be in use"):
        with files.locked(str(tmp_path), "output_dir"):
            pass
    with files.locked(str(tmp_path.parent), "output_dir"):
        pass
    process.kill()
    process.communicate()
    for _ in range(2):
        with files.locked(str(tmp_path), "output_dir"):
            pass


def test_names_that_are_not_utf8_are_written(tmp_path):
    """File names that are not UTF-8 are escaped, and JSON restores them.

    Keys keep their order.
    """
    name = os.fsdecode(b"caf\xe9.txt")
    files.write_json(f"{tmp_path}/x.json", {name: 1})
    assert files.read_json(f"{tmp_path}/x.json", "It") == {name: 1}
    files.write_json(f"{tmp_path}/x.json", {"é": [1], "a": 2})
    text = (tmp_path / "x.json").read_text("utf-8")
    assert text == '{\n  "é": [\n    1\n  ],\n  "a": 2\n}\n'
    files.write_text(f"{tmp_path}/x.flags", f"--input_file={name}")
    assert files.read_text(f"{tmp_path}/x.flags", "It") == (
        "--input_file=caf\\udce9.txt"
    )


READERS = {
    "settings": lambda path: files.read_json(path, "The settings"),
    "table": lambda path: list(read_rows(path, Columns())),
    "text": lambda path: list(embed.read_texts(path)),
    "vocabulary": lambda path: build_tokenizer(
        TokenizerConfig(spm_model_file=path)
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_instead_of_a_file_is_listed(reader, tmp_path):
    """A folder in place of a file raises an error that lists its files.

    At most five files are listed.
    """
    read, folder = READERS[reader], tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    with pytest.raises(InputError, match="folder, a folder with no files"):
        read(str(folder))
    (folder / "spiece.model").touch()
    with pytest.raises(InputError, match="folder, a folder with spiece.model"):
        read(str(folder))
    with pytest.raises(InputError, match="existing file. Received: .*none$"):
        read(str(tmp_path / "none"))
    for name in "abcdef":
        (folder / name).touch()
    with pytest.raises(InputError, match="folder with a, b, c, d, e$"):
        read(str(folder))


def test_a_link_to_a_missing_file(tmp_path):
    """The error for a pattern that matches a broken link names the link."""
    (tmp_path / "a.txt").touch()
    (tmp_path / "c.txt").symlink_to(tmp_path / "gone")
    for pattern in ("*.txt", "**"):
        with pytest.raises(InputError, match="missing file.*link=.*c.txt$"):
            files.glob(f"{tmp_path}/{pattern}", "`input_file`")
