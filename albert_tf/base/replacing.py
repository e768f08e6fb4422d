"""Atomic replacement of folders, and checks that no user file is lost."""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from albert_tf.base import files, interrupts
from albert_tf.base.errors import InputError, require


def matches(path: str, pattern: str) -> bool:
    """Return whether a path matches a pattern with as many slashes."""
    depths = path.count("/"), pattern.count("/")
    return depths[0] == depths[1] and fnmatchcase(path, pattern)


def names_like(patterns: Iterable[str], folder: str) -> list[str]:
    """Return the names in a folder that match any pattern.

    Hidden files do not match. If the folder does not exist, return [].
    """
    names = files.names(folder) if files.is_folder(folder) else []
    shown = (name for name in names if not name.startswith("."))
    return [n for n in shown if any(fnmatchcase(n, p) for p in patterns)]


class Contents(NamedTuple):
    """The files that a program writes to a folder.

    Attributes:
      needed: files that every such folder contains.
      patterns: patterns of all files that the folder may contain, including the
        needed files; `*` does not match a slash.
    """

    needed: frozenset[str]
    patterns: tuple[str, ...]

    def is_complete(self, folder: str) -> bool:
        """Return whether a folder contains all needed files."""
        needed = (files.join(folder, name) for name in self.needed)
        return all(map(files.exists, needed))

    def foreign(self, paths: list[str]) -> list[str]:
        """Return the paths that match none of the patterns."""
        return [
            path
            for path in paths
            if not any(matches(path, pattern) for pattern in self.patterns)
        ]


def paths_in(folder: str) -> list[str]:
    """Return the relative paths of files, links and empty subfolders."""
    paths = []
    for root, folders, names in files.walk(folder):
        root = files.join(root.rstrip("/"), "")
        inner = root.removeprefix(files.join(folder, ""))
        # `walk` lists a link to a folder as a folder but does not follow it.
        links = [x for x in folders if os.path.islink(root + x)]
        paths += [inner + name for name in (*names, *links)]
        if inner and not (folders or names):
            paths.append(inner)
    return sorted(paths)


def _require_none(paths: list[str], name: str, folder: str, rule: str) -> None:
    """Raise `InputError` if there are any paths; list up to three paths."""
    rest = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    received = f"{folder} with {', '.join(paths[:3])}{rest}"
    require(not paths, rule, **{name: received})


def check_replaceable(
    name: str, folder: str, forms: Iterable[Contents], rule: str
) -> None:
    """Raise `InputError` if a folder contains files that we did not write.

    The error lists up to three files that do not match the most similar form.

    Args:
      name: the setting that names the folder.
      folder: the folder to be replaced; it may be new or empty.
      forms: the alternative contents that our programs may write.
      rule: the requirement, for the error message.
    """
    if files.is_free(folder):
        return
    require(files.is_folder(folder), rule, **{name: folder})
    complete = [form for form in forms if form.is_complete(folder)]
    # Other folders can be large, so only their top level is listed.
    paths = paths_in(folder) if complete else files.names(folder)
    foreign = min((x.foreign(paths) for x in complete), key=len, default=paths)
    _require_none(foreign, name, folder, rule)


def check_unused(folder: str, patterns: Iterable[str]) -> None:
    """Raise `InputError` if `output_dir` has files that match any pattern.

    Args:
      folder: the folder to which a program is about to write; it may be new.
      patterns: patterns of the names of the program's files.
    """
    used = names_like(patterns, folder)
    rule = "`output_dir` must not contain files that this program would "
    rule += "overwrite; choose another folder."
    _require_none(used, "output_dir", folder, rule)


def check_writable(name: str, path: str) -> None:
    """Raise `InputError` if a local file or folder could not be written.

    A program calls this function before it computes the content. For a file or
    a path that does not exist, the folder around it must be writable.

    Args:
      name: the setting that names the path.
      path: the path.
    """
    if files.is_remote(path) or files.is_stream(path):
        return
    folder = os.path.realpath(path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    writable = os.access(folder, os.W_OK | os.X_OK)
    require(writable, f"`{name}` must be writable.", **{name: path})


def _upload(folder: str, path: str) -> None:
    """Replace the contents of `path` with the contents of a local folder.

    All new files are copied under temporary names before old files are removed.
    """
    uploads: dict[str, str] = {}  # {temporary name: name}
    try:
        for root, _, file_names in os.walk(folder):
            target = path + root.removeprefix(folder)
            files.make_folder(target)
            for name in file_names:
                temporary = files.unfinished(files.join(target, name))
                uploads[temporary] = files.join(target, name)
                files.copy(files.join(root, name), temporary)
    except BaseException:
        for temporary in filter(files.exists, uploads):
            files.remove(temporary)
        raise
    for root, _, file_names in list(files.walk(path)):
        old = {files.join(root, name) for name in file_names}
        for name in old - {*uploads, *uploads.values()}:
            files.remove(name)
    for name in {*files.names(path)} - {*os.listdir(folder)}:
        if files.is_folder(files.join(path, name)):
            files.remove_folder(files.join(path, name))
    for temporary, name in uploads.items():
        files.rename(temporary, name)


def _is_fixed(path: str) -> bool:
    """Return whether a folder must be filled instead of being replaced.

    Remote storage, such as `gs://`, cannot rename a folder atomically, and not
    every library can write to remote storage. A mount point, such as a
    container's volume, cannot be replaced; neither can a folder whose parent is
    not writable. The current folder is not replaced either, because programs
    running in it would be left in a deleted folder.
    """
    if files.is_remote(path):
        return True
    parent = os.path.dirname(os.path.realpath(path))
    fixed = os.path.isdir(path) and not os.access(parent, os.W_OK)
    return fixed or files.is_inside(os.getcwd(), path) or os.path.ismount(path)


def _remove_leftovers(path: str) -> None:
    """Remove the temporary folders that killed processes left beside a folder.

    A process locks its temporary folder until the process ends. Empty folders
    are not removed, because a process may be about to lock them. On a disk that
    does not support locks, nothing is removed.
    """
    parent, name = os.path.split(path)
    kinds = (f"{name}.tmp", f"{name}.old.tmp")
    for other in filter(files.is_unfinished, files.names(parent)):
        folder = files.join(parent, other)
        if not other.startswith(kinds) or not os.path.isdir(folder):
            continue
        with (
            contextlib.suppress(InputError, OSError),
            files.locked(folder, "folder") as is_locked,
        ):
            if is_locked and os.listdir(folder):
                files.remove_folder(folder)


@contextlib.contextmanager
def folder_beside(path: str) -> Iterator[str]:
    """Yield a temporary folder beside a local path, which may not exist.

    Unless the block renames the folder, it is removed after the block or, if
    the process is killed, by the next call.
    """
    path = os.path.abspath(path)
    temporary = files.unfinished(path)
    with interrupts.cleaning_up():
        try:
            with files.locked(temporary, "folder"):
                yield temporary
        finally:
            if files.exists(temporary):
                files.remove_folder(temporary)
    _remove_leftovers(path)


@contextlib.contextmanager
def atomic_folder(path: str, replace: bool = False) -> Iterator[str]:
    """Yield a temporary folder that becomes `path` if the block succeeds.

    The temporary folder is renamed or, if `path` is fixed (see `_is_fixed`),
    copied from a local disk.

    Args:
      path: the folder.
      replace: whether to replace a folder that contains files. The caller must
        check these files.

    Raises:
      InputError: if `replace` is False and `path` is not free (see
        `files.is_free`) before or after the block, or if the parent of a new
        folder is not writable.
    """
    rule = "The folder must be new or empty; its files were left unchanged."
    require(replace or files.is_free(path), rule, folder=path)
    if _is_fixed(path):
        check_writable("folder", path)
        with (
            interrupts.cleaning_up(),
            tempfile.TemporaryDirectory() as temporary,
        ):
            yield temporary
            require(replace or files.is_free(path), rule, folder=path)
            _upload(temporary, files.without_slash(path))
        return
    path = os.path.realpath(path)
    parent = os.path.dirname(path)
    files.make_folder(parent)
    writable = os.access(parent, os.W_OK)
    require(writable, "A new folder's parent must be writable.", folder=path)
    old = files.unfinished(f"{path}.old")
    with folder_beside(path) as temporary:
        yield temporary
        require(replace or files.is_free(path), rule, folder=path)
        try:
            if files.exists(path):
                files.rename(path, old)
            files.rename(temporary, path)
        finally:
            if files.exists(old) and not files.exists(path):
                files.rename(old, path)
        if files.exists(old):
            files.remove_folder(old)
