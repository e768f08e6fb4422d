"""File access with atomic writes, on local disks and in remote storage.

Local paths use the standard library. Paths with `://` use TensorFlow, which is
imported when the first such path is used. Code that accesses only local files
does not need TensorFlow.
"""

import contextlib
import errno
import fcntl
import io
import itertools
import json
import os
import posixpath
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from glob import escape
from typing import Any, BinaryIO

from albert_tf.base.errors import InputError, input_errors, require
from albert_tf.base.local_patterns import local_glob
from albert_tf.base.remote_files import RawRemoteFile, remote, remote_glob

STANDARD_INPUT = "-"  # file name that means standard input
DRIVE = re.compile(r"(^|,\s*)[A-Za-z]:[\\/](?!/)")
HOME = re.compile(r"(^|,\s*)~/")
FULL_DISK = errno.ENOSPC, errno.EDQUOT, errno.EFBIG


def expanded(paths: str) -> str:
    """Expand `~/` to the home directory in paths separated by commas.

    Shells expand `~/` only at the start of a word, not in `--output_dir=~/new`.
    """
    home = os.path.expanduser("~/")
    return HOME.sub(lambda match: match[1] + home, paths)


def local_path(name: str, value: Any) -> Any:
    """Return a user's path or paths with `~/` expanded.

    Args:
      name: the name of the setting or argument.
      value: a path, several paths separated by commas, or a tuple of these;
        other values are returned unchanged.

    Raises:
      InputError: if a path begins with a Windows drive letter, or with `~/`
        without a home directory. Either would become an ordinary name.
    """
    if isinstance(value, tuple):
        return tuple(local_path(name, x) for x in value)
    if not isinstance(value, str):
        return value
    rule = (
        "A path must not begin with a drive letter; in WSL, `C:/` is `/mnt/c/`."
    )
    require(not DRIVE.search(value), rule, **{name: value})
    paths = expanded(value)
    rule = "`~/` requires a home directory; set the environment variable HOME."
    require(not HOME.search(paths), rule, **{name: value})
    return paths


def is_remote(path: str) -> bool:
    """Return whether a path is remote, such as a `gs://` path."""
    return "://" in os.fspath(path)


def join(directory: str, *names: str) -> str:
    """Join the parts of a path; use forward slashes in remote paths."""
    path = posixpath if is_remote(directory) else os.path
    return path.join(directory, *names)


def is_name(value: object) -> bool:
    """Return whether a value, such as one from JSON, can be a file name."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def absolute(path: str) -> str:
    """Return a path that stays valid if the current folder changes."""
    return path if is_remote(path) else os.path.abspath(path)


def exists(path: str) -> bool:
    """Return whether a path is an existing file or folder."""
    return remote("exists", path) if is_remote(path) else os.path.exists(path)


def is_folder(path: str) -> bool:
    """Return whether a path is a folder."""
    return remote("isdir", path) if is_remote(path) else os.path.isdir(path)


def is_file(path: str) -> bool:
    """Return whether a path exists and is not a folder."""
    return exists(path) and not is_folder(path)


def is_stream(path: str) -> bool:
    """Return whether a path can be read only once: `-`, a pipe or a device."""
    if path == STANDARD_INPUT:
        return True
    local = not is_remote(path) and os.path.exists(path)
    return local and not os.path.isfile(path) and not os.path.isdir(path)


def is_inside(path: str, folder: str) -> bool:
    """Return whether a path is the given folder or lies inside it."""
    if not is_remote(path):
        path, folder = os.path.realpath(path), os.path.realpath(folder)
    return f"{path}/".startswith(join(folder, ""))


def size(path: str) -> int:
    """Return the size of a file in bytes."""
    if is_remote(path):
        return remote("stat", path).length
    return os.path.getsize(path)


def unfinished(path: str) -> str:
    """Return a unique temporary name for a file or folder to be written.

    The process ID alone is not unique: workers on different machines, or
    successive runs in containers, may have the same ID.
    """
    return f"{path}.tmp{os.getpid()}-{secrets.token_hex(4)}"


def is_unfinished(path: str) -> bool:
    """Return whether a file name was created by `unfinished`."""
    return bool(re.search(r"\.tmp\d+-[0-9a-f]{8}$", path))


def matches(pattern: str, folder: str = "") -> list[str]:
    """Return the sorted paths that match a glob pattern.

    The pattern is relative to `folder`, which is taken literally. Unfinished
    files are omitted. On a local disk, `**` matches any number of folders, and
    a hidden file matches only if the pattern contains its leading dot.
    """
    pattern = join(escape(folder), pattern)
    paths = (remote_glob if is_remote(pattern) else local_glob)(pattern)
    if "**" in pattern:  # `**` also matches the folders themselves
        paths = [path for path in paths if not os.path.isdir(path)]
    return sorted({path for path in paths if not is_unfinished(path)})


def require_tensorflow_path(name: str, path: str) -> None:
    """Raise `InputError` if TensorFlow could not read weights from a path.

    TensorFlow treats the path of weights as a pattern in UTF-8.

    Args:
      name: the name of the setting, or a description of the path.
      path: the path.
    """
    rule = f"{name} must be UTF-8, and must not contain `[` or a backslash, "
    rule += "because TensorFlow treats the path of weights as a pattern."
    legal = not re.search(r"[\[\\\ud800-\udfff]", path)
    require(legal, rule, path=path)


def walk(path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a local or remote folder tree, like `os.walk`."""
    return remote("walk", path) if is_remote(path) else os.walk(path)


def names(path: str) -> list[str]:
    """Return the sorted names of the entries in a folder."""
    entries = remote("listdir", path) if is_remote(path) else os.listdir(path)
    return sorted(name.rstrip("/") for name in entries)


def without_slash(folder: str) -> str:
    """Return a folder's path without trailing slashes; `/` stays `/`."""
    return folder.rstrip("/") or folder[:1]


def is_free(path: str) -> bool:
    """Return whether a path does not exist or is an empty folder.

    The empty path is not free, because it can mean the current folder.
    """
    if not path:
        return False
    return not exists(path) or (is_folder(path) and not names(path))


def opened(path: str, mode: str) -> BinaryIO:
    """Open a file; `mode` is `rb` or `wb`."""
    if not is_remote(path):
        return open(path, mode)
    raw = RawRemoteFile(path, mode)
    return (io.BufferedReader if mode == "rb" else io.BufferedWriter)(raw)


def make_folder(path: str) -> None:
    """Create a folder and any missing parents."""
    if is_remote(path):
        remote("makedirs", path)
        return
    try:
        os.makedirs(path, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        rule = "An output folder must not be, or be inside, an existing file. "
        raise InputError(f"{rule}Received: {path}") from None
    except (FileNotFoundError, PermissionError) as error:
        raise InputError(
            f"An output folder must be in a writable folder: {error.strerror}. "
            f"Received: {path}"
        ) from None


def rename(path: str, to: str) -> None:
    """Rename a file or folder, overwriting an existing file."""
    if is_remote(path):
        remote("rename", path, to, overwrite=True)
    else:
        os.replace(path, to)


def copy(path: str, to: str) -> None:
    """Copy a file, overwriting an existing file."""
    if is_remote(path) or is_remote(to):
        remote("copy", path, to, overwrite=True)
    else:
        shutil.copyfile(path, to)


def remove(path: str) -> None:
    """Remove a file."""
    remote("remove", path) if is_remote(path) else os.remove(path)


def remove_folder(path: str) -> None:
    """Remove a folder and its contents."""
    remote("rmtree", path) if is_remote(path) else shutil.rmtree(path)


@contextlib.contextmanager
def atomic_path(path: str) -> Iterator[str]:
    """Yield a temporary path; rename it to `path` only if the block succeeds.

    For a pipe or a device, such as `/dev/stdout`, yield `path` itself. If
    `/dev/stdout` is redirected to a file, replace this file, not the device.
    """
    rule = "An output file must not be an existing folder."
    require(not os.path.isdir(path), rule, path=path)
    if os.path.abspath(path).startswith(("/dev/", "/proc/")):
        path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        yield path
        return
    temporary = unfinished(path)
    try:
        yield temporary
        rename(temporary, path)
    except BaseException as error:
        if getattr(error, "errno", None) in FULL_DISK and not error.filename:
            error.filename = path
        with contextlib.suppress(OSError):
            remove(temporary)
        raise


@contextlib.contextmanager
def locked(folder: str, name: str) -> Iterator[bool]:
    """Lock a local folder while the block runs; yield whether it is locked.

    The system releases the lock when the process ends for any reason. Remote
    storage, such as `gs://`, and some network disks do not support locks;
    there, the block runs without a lock.

    Args:
      folder: the folder, created if missing.
      name: the setting that names the folder, for the error message.

    Raises:
      InputError: if another process has locked the folder.
    """
    make_folder(folder)
    if is_remote(folder):
        yield False
        return
    number = os.open(folder, os.O_RDONLY)
    is_locked = False
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_locked = True
    except BlockingIOError:
        os.close(number)
        raise InputError(
            f"`{name}` must not be in use: another run is still writing to it. "
            f"Received: {name}={folder}"
        ) from None
    except OSError:
        pass  # the disk does not support locks
    try:
        yield is_locked
    finally:
        os.close(number)


def unmoved(folder: str) -> Callable[[], None]:
    """Return a function that fails unless `output_dir` is still in place.

    Without this check, a program would continue in a new, incomplete folder.
    The function never fails if the folder is remote, or is missing when
    `unmoved` is called.
    """

    def identity() -> tuple[int, int] | None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = os.stat(folder)
            return status.st_dev, status.st_ino

    first = identity()

    def check() -> None:
        rule = "`output_dir` was moved, replaced or removed while a run was "
        rule += "writing to it; to resume, move it back and repeat the command."
        with contextlib.suppress(OSError):  # the disk may be unavailable
            require(first in (None, identity()), rule, output_dir=folder)

    return check


def read_bytes(path: str) -> bytes:
    """Return the content of a file as bytes."""
    with opened(path, "rb") as file:
        return file.read()


def write_bytes(path: str, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_path(path) as temporary:
        with opened(temporary, "wb") as file:
            file.write(content)


def write_text(path: str, text: str) -> None:
    """Write a text file atomically, creating its folder if it is missing.

    Surrogates, which represent non-UTF-8 bytes in file names, are written as
    escapes. JSON decodes these escapes to the same characters.
    """
    make_folder(os.path.dirname(path) or ".")
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def require_file(is_present: bool, what: str, path: str) -> None:
    """Raise `InputError` unless a file exists.

    If the path is a folder, the error lists up to five of its files.

    Args:
      is_present: whether the file exists.
      what: the description of the file in the error message.
      path: the path, which may be the path of a folder by mistake.
    """
    rule = f"{what} must be an existing file. Received: {path}"
    if not is_present and is_folder(path):
        inside = (n for n in sorted(names(path)) if is_file(join(path, n)))
        shown = ", ".join(itertools.islice(inside, 5))
        rule += f", a folder with {shown or 'no files'}"
    require(is_present, rule)


def read_text(path: str, what: str) -> str:
    """Return the text of a UTF-8 file; error messages call it `what`."""
    require_file(is_file(path), what, path)
    with input_errors(UnicodeDecodeError, f"{what} must be UTF-8", file=path):
        return read_bytes(path).decode("utf-8")


def write_json(path: str, value: Any) -> None:
    """Write an indented JSON file atomically, preserving the order of keys."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


JSON_LEVELS = 100  # maximum depth, because value conversions are recursive
TOO_DEEP = "too many levels"


def json_value(text: str | bytes) -> Any:
    """Parse JSON text.

    Raises:
      ValueError: if the text is malformed or nested too deeply, or contains an
        integer with too many digits.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    level = [value]
    for _ in range(JSON_LEVELS):
        nested = (x for x in level if isinstance(x, dict | list))
        parts = (x.values() if isinstance(x, dict) else x for x in nested)
        level = list(itertools.chain.from_iterable(parts))
        if not level:
            return value
    raise ValueError(TOO_DEEP)


def parse_json(text: str, path: str, what: str) -> Any:
    """Parse the text of a JSON file; errors name the file and line."""
    try:
        return json_value(text.removeprefix("\ufeff"))
    except ValueError as error:
        location = f", line {error.lineno}" if hasattr(error, "lineno") else ""
        reason = getattr(error, "msg", str(error))
        raise InputError(
            f"{what} must be JSON: {reason}. Received: {path}{location}"
        ) from None


def read_json(path: str, what: str) -> Any:
    """Return the value in a JSON file; syntax errors name the file and line."""
    return parse_json(read_text(path, what), path, what)


def read_json_object(path: str, what: str) -> dict:
    """Return the object in a JSON file; any other value raises `InputError`."""
    values = read_json(path, what)
    rule = f"{what} must be a JSON object."
    require(isinstance(values, dict), rule, path=path)
    return values


def read_optional_json(folder: str, name: str) -> dict:
    """Return the object in a folder's JSON file; {} if the file is missing."""
    path = join(folder, name)
    is_present = folder and exists(path)
    return read_json_object(path, f"`{name}`") if is_present else {}


def split_paths(paths: str) -> list[str]:
    """Return the entries of a comma-separated list of paths or patterns.

    Entries lose surrounding spaces. A string stays as it is if it is the path
    of an existing file or folder, or a pattern in a folder whose name contains
    a comma.
    """
    folder = posixpath.dirname(re.split(r"[*?[]", paths, maxsplit=1)[0])
    is_single = exists(paths) or ("," in folder and is_folder(folder))
    entries = (entry.strip() for entry in paths.split(","))
    return [paths] if is_single else [entry for entry in entries if entry]


def distinct(paths: Iterable[str]) -> list[str]:
    """Return one path per file, in order; warn if a file has several paths."""
    first: dict[Any, str] = {}
    duplicates = []
    for path in dict.fromkeys(paths):
        key: Any = posixpath.normpath(path)
        if not is_remote(path) and os.path.exists(path):
            status = os.stat(path)
            key = (status.st_dev, status.st_ino)
        if first.setdefault(key, path) != path:
            duplicates.append(f"{path} is {first[key]}")
    if duplicates:
        rest = f" (and {len(duplicates) - 1} more)" if duplicates[1:] else ""
        print(
            "Warning: a file with several paths is read once: "
            f"{duplicates[0]}{rest}",
            flush=True,
        )
    return list(first.values())


def glob(
    patterns: str,
    what: str,
    legal_folder: Callable = lambda path: False,
    left_out: Callable = lambda pattern, path: False,
) -> list[str]:
    """Return the sorted files matching a comma-separated list of patterns.

    Args:
      patterns: the list, in which `-` means standard input.
      what: the description of the list in error messages.
      legal_folder: a function that returns whether a matching folder is legal.
      left_out: a function (pattern, matching path) that returns whether to omit
        the path.

    Raises:
      InputError: if the list is empty, if a pattern has no match, or if a match
        is an illegal folder or a broken link.
    """
    paths: list[str] = []
    entries = split_paths(patterns)
    require(entries, f"{what} must not be empty. Received: {patterns!r}")
    for pattern in entries:
        is_literal = pattern == STANDARD_INPUT or exists(pattern)
        matched = [pattern] if is_literal else matches(pattern)
        hint = "; in a path with a comma, write `?` instead" * ("," in patterns)
        rule = f"{what} must match at least one file{hint}. Received: {pattern}"
        require(matched, rule)
        matched = [path for path in matched if not left_out(pattern, path)]
        for path in matched:
            folder, name = posixpath.split(pattern)
            direct = is_literal or is_remote(path)
            inside = (path, "*") if direct else (folder, "**", name)
            hint = f"{path} (did you mean {join(*inside)}?)"
            rule = f"{what} must name files. Received a folder: {hint}"
            require(legal_folder(path) or not is_folder(path), rule)
            broken = os.path.islink(path) and not exists(path)
            rule = f"{what} must not match a link to a missing file; remove "
            require(not broken, f"{rule}it or restore the file.", link=path)
        paths += matched
    return distinct(sorted(paths))
