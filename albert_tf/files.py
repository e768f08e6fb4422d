"""Files written whole or not at all, on local disks and on `gs://`."""

import contextlib
import json
import os
import posixpath
import secrets
from collections.abc import Iterator
from typing import Any

from albert_tf.errors import InputError


def gfile():
    """Return TensorFlow's file system, imported when a file is touched.

    So modules that only may read files work where TensorFlow is not installed.
    """
    import tensorflow as tf

    return tf.io.gfile


def join(directory: str, *names: str) -> str:
    """Join path parts; `gs://` paths keep their forward slashes."""
    path = posixpath if "://" in directory else os.path
    return path.join(directory, *names)


@contextlib.contextmanager
def atomic_path(path: str) -> Iterator[str]:
    """Yield a temporary name that becomes `path` only if the body succeeds.

    Workers on several machines may have the same process number.
    """
    temporary = f"{path}.tmp{os.getpid()}-{secrets.token_hex(4)}"
    try:
        yield temporary
        gfile().rename(temporary, path, overwrite=True)
    except BaseException:
        if gfile().exists(temporary):
            gfile().remove(temporary)
        raise


@contextlib.contextmanager
def atomic_folder(path: str) -> Iterator[str]:
    """Yield a temporary folder that replaces `path` if the body succeeds."""
    temporary, old = f"{path}.tmp{os.getpid()}", f"{path}.old{os.getpid()}"
    try:
        gfile().makedirs(temporary)
        yield temporary
        if gfile().exists(path):
            gfile().rename(path, old)
        gfile().rename(temporary, path)
    finally:
        if gfile().exists(temporary):
            gfile().rmtree(temporary)
    if gfile().exists(old):
        gfile().rmtree(old)


def is_file(path: str) -> bool:
    """Return whether a file, not a folder, stands at a path."""
    return gfile().exists(path) and not gfile().isdir(path)


def read_bytes(path: str) -> bytes:
    """Read a whole file."""
    with gfile().GFile(path, "rb") as file:
        return file.read()


def write_bytes(path: str, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_path(path) as temporary:
        with gfile().GFile(temporary, "wb") as file:
            file.write(content)


def write_text(path: str, text: str) -> None:
    """Write a text file atomically, making its folder if it is missing."""
    gfile().makedirs(os.path.dirname(path) or ".")
    with atomic_path(path) as temporary:
        with gfile().GFile(temporary, "w") as file:
            file.write(text)


def read_text(path: str, what: str) -> str:
    """Read a UTF-8 text file; `what` names it in the error if it is missing."""
    if not is_file(path):
        raise InputError(f"{what} must be an existing file. Received: {path}")
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{what} must be UTF-8. Received: {path}, byte {error.start}"
        ) from None


def write_json(path: str, value: Any) -> None:
    """Write a JSON file atomically, indented, keys in the given order."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: str, what: str) -> Any:
    """Read a JSON file; a syntax error names the file and the line."""
    text = read_text(path, what)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{what} must be JSON: {error.msg}. "
            f"Received: {path}, line {error.lineno}"
        ) from None


def glob(patterns: str, what: str) -> list[str]:
    """Return the sorted files of a comma-separated list of glob patterns."""
    found: list[str] = []
    for pattern in filter(None, (p.strip() for p in patterns.split(","))):
        matches = sorted(gfile().glob(pattern))
        if not matches:
            raise InputError(
                f"{what} must match at least one file. Received: {pattern}"
            )
        for match in matches:
            if gfile().isdir(match):
                raise InputError(
                    f"{what} must name files. Received a directory: {match} "
                    f"(did you mean {join(match, '*')}?)"
                )
        found += matches
    if not found:
        raise InputError(f"{what} must not be empty. Received: {patterns!r}")
    return sorted(set(found))
