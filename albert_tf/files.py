"""Files written whole or not at all, on local disks and on `gs://`."""

import contextlib
import json
import os
import posixpath
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from albert_tf.errors import InputError


def join(directory: str, *names: str) -> str:
    """Join path parts; `gs://` paths keep their forward slashes."""
    path = posixpath if "://" in directory else os.path
    return path.join(directory, *names)


@contextlib.contextmanager
def atomic_path(path: str) -> Iterator[str]:
    """Yield a temporary name that becomes `path` only if the body succeeds."""
    temporary = f"{path}.tmp{os.getpid()}"
    try:
        yield temporary
        tf.io.gfile.rename(temporary, path, overwrite=True)
    except BaseException:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.remove(temporary)
        raise


@contextlib.contextmanager
def atomic_folder(path: str) -> Iterator[str]:
    """Yield a temporary folder that replaces `path` if the body succeeds."""
    temporary, old = f"{path}.tmp{os.getpid()}", f"{path}.old{os.getpid()}"
    try:
        tf.io.gfile.makedirs(temporary)
        yield temporary
        if tf.io.gfile.exists(path):
            tf.io.gfile.rename(path, old)
        tf.io.gfile.rename(temporary, path)
    finally:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.rmtree(temporary)
    if tf.io.gfile.exists(old):
        tf.io.gfile.rmtree(old)


def write_text(path: str, text: str) -> None:
    """Write a text file atomically, making its folder if it is missing."""
    tf.io.gfile.makedirs(os.path.dirname(path) or ".")
    with atomic_path(path) as temporary:
        with tf.io.gfile.GFile(temporary, "w") as file:
            file.write(text)


def read_text(path: str, what: str) -> str:
    """Read a UTF-8 text file; `what` names it in the error if it is missing."""
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        raise InputError(f"{what} must be an existing file. Received: {path}")
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read().decode("utf-8")
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
        matches = sorted(tf.io.gfile.glob(pattern))
        if not matches:
            raise InputError(
                f"{what} must match at least one file. Received: {pattern}"
            )
        for match in matches:
            if tf.io.gfile.isdir(match):
                raise InputError(
                    f"{what} must name files. Received a directory: {match} "
                    f"(did you mean {join(match, '*')}?)"
                )
        found += matches
    if not found:
        raise InputError(f"{what} must not be empty. Received: {patterns!r}")
    return sorted(set(found))
