"""Examples into features: over several processes, and kept in a cache.

What is cached follows from its key alone: the content of the data file, the
tokenizer, the task and what stands in `FORMAT`.
"""

import dataclasses
import functools
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from albert_tf.base import files
from albert_tf.base.processes import ordered_map
from albert_tf.base.settings import setting, validate
from albert_tf.tasks.features import Features
from albert_tf.tasks.task import Task
from albert_tf.text.tokenizers import Tokenizer

FORMAT = 2  # to be raised when conversion changes
LEAST_CHUNK = 256  # examples that are worth a trip to another process
DAMAGE = (ValueError, KeyError, OSError, EOFError)  # of a cut or altered file
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ConversionConfig:
    """How examples become features."""

    feature_cache_dir: str | None = setting(
        None, "Folder that keeps converted features for later runs."
    )
    num_processes: int = setting(
        1, "Processes that convert examples; the result is the same.", minimum=1
    )

    def __post_init__(self):
        validate(self)


def content_hash(path: str) -> str:
    """Return the SHA-256 of a file, or of a folder's files and their names."""
    digest = hashlib.sha256()
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


class Cache:
    """Arrays on disk under a key; without a folder they are made anew."""

    def __init__(self, folder: str | None):
        self.folder = folder

    def path(self, key: dict) -> str:
        """Return the file of a key, whose values can be written as JSON."""
        text = json.dumps(key, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()
        return files.join(self.folder, f"features-{name[:40]}.npz")

    def get(self, key: dict, make: Callable[[], Arrays]) -> Arrays:
        """Return the arrays of a key, making what is missing or damaged."""
        if not self.folder:
            return make()
        path = self.path(key)
        if files.exists(path):
            try:
                return self._read(path)
            except (*DAMAGE, zipfile.BadZipFile) as error:
                print(f"Note: {path} is damaged and made anew: {error}")
        arrays = make()
        content = io.BytesIO()
        np.savez(content, **arrays)
        files.make_folder(self.folder)
        files.write_bytes(path, content.getvalue())
        return arrays

    @staticmethod
    def _read(path: str) -> Arrays:
        content = io.BytesIO(files.read_bytes(path))
        with np.load(content, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}


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


def convert_part(task: Task, tokenizer: Tokenizer, examples: Sequence):
    """Return the features of some examples, in any process."""
    return task.features(examples, tokenizer)


def convert(
    task: Task, examples: Sequence, tokenizer: Tokenizer, num_processes: int
) -> Features:
    """Return the features of examples, converted by several processes."""
    size = max(LEAST_CHUNK, -(-len(examples) // (8 * num_processes)))
    starts = range(0, len(examples), size)
    if num_processes == 1 or len(starts) == 1:
        return task.features(examples, tokenizer)
    chunks = [examples[start : start + size] for start in starts]
    work = functools.partial(convert_part, task, tokenizer)
    return Features.joined(list(ordered_map(work, chunks, num_processes)))


def key_of(
    task: Task, part: str, path: str, number: int, tokenizer: Tokenizer
) -> dict:
    """Return what the features of a file, or of a sample, follow from."""
    return {
        "format": FORMAT,
        "part": part,
        "content": content_hash(path),
        "examples": number,
        "tokenizer": tokenizer.fingerprint(),
        "task": task.identity(),
    }


def cached_features(
    task: Task,
    examples: Sequence,
    tokenizer: Tokenizer,
    config: ConversionConfig,
    part: str,
    path: str,
) -> Features:
    """Return the features of the examples of a file, from the cache if there.

    Args:
      task: what converts them.
      examples: those of the file.
      tokenizer: the model's.
      config: where the cache is, and how many processes to use.
      part: "train", "eval" or "predict".
      path: the file or folder that the examples were read from.
    """

    def make():
        found = convert(task, examples, tokenizer, config.num_processes)
        return to_arrays(found)

    cache = Cache(config.feature_cache_dir)
    key = {}
    if cache.folder:
        key = key_of(task, part, path, len(examples), tokenizer)
    return from_arrays(cache.get(key, make))
