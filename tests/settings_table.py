"""The table of all settings: `PYTHONPATH=tests python -m settings_table`.

Without an argument, print the table; with `--write`, record it as
`tests/testdata/settings.md`.
"""

import ast
import dataclasses
import importlib
import math
import sys
from collections import defaultdict
from pathlib import Path

from project_file import PROJECT, ROOT

from albert_tf.base.settings import types_of
from albert_tf.model.config import AlbertConfig

PATH = Path(__file__).parent / "testdata" / "settings.md"
ABOUT = """\
# All settings

{} definitions. A change of a default or of a bound is a change for users:
look at the difference, then record the table anew with
`PYTHONPATH=tests python -m settings_table --write`.

"""
HEADS = "setting", "type", "default", "legal values", "required", "commands"
CONFIG = "albert_config.json"  # in place of a command


def definitions() -> int:
    """Return the number of calls of `setting` in the package."""
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "setting"
        for path in (ROOT / "albert_tf").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    )


def shown(value: object) -> str:
    """Return a default as a cell."""
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value in (None, "") else f"{value}"


def legal(field: dataclasses.Field) -> str:
    """Return a setting's choices and range as a cell."""
    metadata = field.metadata
    low, high = metadata["minimum"], metadata["maximum"]
    words = [", ".join(map(str, metadata["choices"] or ()))]
    if (low, high) != (None, None):
        words.append(f"{-math.inf if low is None else low} to {high or 'inf'}")
    return "; ".join(filter(None, words))


def cells(field: dataclasses.Field, default: object, required: bool) -> tuple:
    """Return a row of the table, without the commands."""
    kind = " or ".join(t.__name__ for t in types_of(field))
    needed = "yes" if required else ""
    return field.name, kind, shown(default), legal(field), needed


def rows() -> list[tuple[str, ...]]:
    """Return a row for each setting, or several if commands differ."""
    found = defaultdict(list)
    for field in dataclasses.fields(AlbertConfig):
        found[cells(field, field.default, False)].append(CONFIG)
    for place in PROJECT["scripts"].values():
        module = importlib.import_module(place.removesuffix(":cli"))
        program = module.cli.__self__
        command = place.removeprefix("albert_tf.").removesuffix(":cli")
        for field in program.fields().values():
            row = cells(field, program.default(field), program.required(field))
            found[row].append(command)
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
