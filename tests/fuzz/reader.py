"""The class of readers, and functions that write valid files for readers.

A reader reads a folder as the program does. It either accepts the files or
raises an `InputError`. If another library defines the format, the reader may
also raise one of its `refusals`.
"""

import dataclasses
import fnmatch
import functools
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import tiny
import tiny_tasks
import vocabularies
from fuzz.mutators import Mutator


@dataclasses.dataclass(frozen=True)
class Reader:
    """A reader to test, with functions that write and read its files.

    Attributes:
      make: a function that writes valid files to a folder.
      targets: {pattern of file names to damage: {name: mutator}}.
      read: a function that reads a folder in which the named file is damaged.
      refusals: exceptions that another library documents for its format.
      quick: whether the quick tests include the reader, with fixed seeds.
    """

    make: Callable[[pathlib.Path], None]
    targets: dict[str, dict[str, Mutator]]
    read: Callable[[pathlib.Path, str], None]
    refusals: tuple[type[Exception], ...] = ()
    quick: bool = True

    def names(self, folder: pathlib.Path) -> list[str]:
        """Return the paths, relative to the folder, of the files to damage."""
        paths = (p for p in folder.rglob("*") if p.is_file())
        names = (path.relative_to(folder) for path in paths)
        return sorted(str(x) for x in names if self.mutators(str(x)))

    def mutators(self, name: str) -> dict[str, Mutator]:
        """Return the mutators of a file, or {} if the file must stay intact."""
        return next(
            (m for p, m in self.targets.items() if fnmatch.fnmatch(name, p)), {}
        )


class Refused(Exception):
    """An exception: a program ended with an error message."""


@functools.cache
def words():
    """Return a WordPiece tokenizer."""
    pieces = [*tiny_tasks.PIECES, *"bcd"]
    content = "\n".join(pieces).encode()
    config = vocabularies.TextConfig()
    return vocabularies.WordPieceTokenizer(content, config)


def write_json(path: pathlib.Path, value: Any) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value))


def write_lines(path: pathlib.Path, values: Iterable[Any]) -> None:
    """Write values as JSON lines."""
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


@functools.cache
def _model_files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        tokenizer = tiny_tasks.make_tokenizer(folder)
        (folder / "words.txt").unlink()
        config = dataclasses.replace(tiny.CONFIG, num_hidden_layers=1)
        tiny_tasks.write_model(folder, config, tokenizer)
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def model_dir(folder: pathlib.Path) -> None:
    """Write a model directory with one layer."""
    for name, content in _model_files().items():
        (folder / name).write_bytes(content)


def beside(folder: pathlib.Path, make=model_dir) -> str:
    """Fill a new folder next to `folder` with `make`; return the new path."""
    made = folder.with_name(f"{folder.name}.made")
    made.mkdir()
    make(made)
    return str(made)
