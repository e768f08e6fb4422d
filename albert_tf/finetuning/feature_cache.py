"""Features of examples, kept in a cache.

What is cached follows from its key alone: the content of the data file, the
tokenizer, the task and what stands in `FORMAT`.
"""

import dataclasses
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from albert_tf.base import files
from albert_tf.data.table_sources import TableObject, rows_of
from albert_tf.tasks.features import Features
from albert_tf.tasks.task import Task
from albert_tf.text.tokenizers import Tokenizer

FORMAT = 4  # to be raised when conversion changes
DAMAGE = (ValueError, KeyError, OSError, EOFError)  # of a cut or altered file
Arrays = dict[str, np.ndarray]


def content_hash(path: str | TableObject) -> str:
    """Return the SHA-256 of a file, or of a folder's files and their names.

    Of a table in memory, that of its rows.
    """
    digest = hashlib.sha256()
    if isinstance(path, TableObject):
        for row in rows_of(path):
            digest.update(json.dumps(row.values, default=str).encode() + b"\n")
        return digest.hexdigest()
    paths = [path]
    if files.is_folder(path):
        paths = sorted(
            files.join(folder, name)
            for folder, _, names in files.walk(path)
            for name in names
        )
    for name in paths:
        digest.update(name.removeprefix(path).encode() + b"\0")
        with files.opened(name, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def cached(
    folder: str | None, key: Callable[[], dict], make: Callable[[], Arrays]
) -> Arrays:
    """Return the arrays of a key, making what is missing or damaged.

    Args:
      folder: where they are kept; None makes them anew.
      key: returns what they follow from, for JSON.
      make: returns them.
    """
    if not folder:
        return make()
    text = json.dumps(key(), sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()
    path = files.join(folder, f"features-{name[:40]}.npz")
    if files.exists(path):
        try:
            with np.load(io.BytesIO(files.read_bytes(path))) as stored:
                return dict(stored)
        except (*DAMAGE, zipfile.BadZipFile) as error:
            print(f"Note: {path} is damaged and made anew: {error}")
    arrays, content = make(), io.BytesIO()
    np.savez(content, **arrays)
    files.make_folder(folder)
    files.write_bytes(path, content.getvalue())
    return arrays


def to_arrays(features: Features) -> Arrays:
    """Return features as one flat table, for `from_arrays`."""
    table = {}
    for field in dataclasses.fields(features):
        value = getattr(features, field.name)
        if isinstance(value, dict):
            table |= {
                f"{field.name}/{k}": np.asarray(v) for k, v in value.items()
            }
        else:
            table[field.name] = np.asarray(value)
    return table


def from_arrays(table: Arrays) -> Features:
    """Return the features that `to_arrays` made a table of."""
    values: dict[str, Any] = {"arrays": {}}
    for name, value in table.items():
        field, slash, key = name.partition("/")
        if slash:
            values.setdefault(field, {})[key] = value
        else:
            values[field] = value if value.ndim else value.item()
    return Features(**values)


def checksum(features: Features) -> int:
    """Return what tells features from others."""
    crc = 0
    for name, value in sorted(to_arrays(features).items()):
        crc = zlib.crc32(name.encode() + value.tobytes(), crc)
    return crc


def key_of(task: Task, part: str, path: str, tokenizer: Tokenizer) -> dict:
    """Return what the features of a file follow from."""
    return {
        "format": FORMAT,
        "part": part,
        "content": content_hash(path),
        "tokenizer": tokenizer.fingerprint(),
        "task": task.identity(),
    }


def cached_features(
    task: Task,
    examples: Sequence,
    tokenizer: Tokenizer,
    folder: str | None,
    part: str,
    path: str,
) -> Features:
    """Return the features of the examples of a file, from the cache if there.

    Args:
      task: what converts them.
      examples: those of the file.
      tokenizer: the model's.
      folder: where the cache is; None for none.
      part: "train", "eval" or "predict".
      path: the file or folder that the examples were read from.
    """
    table = cached(
        folder,
        lambda: key_of(task, part, path, tokenizer),
        lambda: to_arrays(task.features(examples, tokenizer)),
    )
    return from_arrays(table)
