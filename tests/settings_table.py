"""The table of all settings: `PYTHONPATH=tests python -m settings_table`.

Without an argument, the program prints the table; with `--write`, it records
the table as `tests/testdata/settings.md`.
"""

import ast
import dataclasses
import importlib
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from project_file import PROJECT, ROOT

from albert_tf.base.program import Program
from albert_tf.base.settings import types_of
from albert_tf.model.config import AlbertConfig

PATH = Path(__file__).parent / "testdata" / "settings.md"
ABOUT = """\
# All settings

{} definitions. A changed default or bound affects users: check the
difference, then update the table with
`PYTHONPATH=tests python -m settings_table --write`.

"""
HEADS = "setting", "type", "default", "legal values", "required", "commands"


def definitions() -> int:
    """Return the number of calls to `setting` in the package's source."""
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "setting"
        for path in (ROOT / "albert_tf").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    )


def legal(field: dataclasses.Field) -> str:
    """Return the table cell for a setting's choices and range."""
    metadata = field.metadata
    low, high = metadata["minimum"], metadata["maximum"]
    words = [", ".join(map(str, metadata["choices"] or ()))]
    if (low, high) != (None, None):
        words.append(f"{low} to {math.inf if high is None else high}")
    return "; ".join(filter(None, words))


def cells(program: Program, field: dataclasses.Field) -> tuple[str, ...]:
    """Return the cells of a setting's row, except the commands."""
    kind = " or ".join(t.__name__ for t in types_of(field))
    default, needed = program.default_words(field), program.required(field)
    return field.name, kind, default, legal(field), "yes" if needed else ""


def programs() -> Iterator[tuple[Program, str]]:
    """Yield (program, name) for the model's config and for each command."""
    yield Program(AlbertConfig, (AlbertConfig,)), "albert_config.json"
    for target in PROJECT["scripts"].values():
        module = importlib.import_module(target.removesuffix(":cli"))
        yield module.cli.__self__, module.__name__.removeprefix("albert_tf.")


def rows() -> list[tuple[str, ...]]:
    """Return a row for each setting.

    A setting has several rows if its type, its default, its legal values or
    whether it is required differs between commands.
    """
    found = defaultdict(list)
    for program, name in programs():
        for field in program.fields().values():
            found[cells(program, field)].append(name)
    return sorted((*row, ", ".join(names)) for row, names in found.items())


def table() -> str:
    """Return the table as Markdown."""
    lines = [HEADS, ("---",) * len(HEADS), *rows()]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{ABOUT.format(definitions())}{text}\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PATH.write_text(table(), "utf-8")
    else:
        print(table(), end="")
