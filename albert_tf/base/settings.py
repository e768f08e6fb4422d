"""Dataclass fields as the one home of settings.

A library module declares its settings as a frozen dataclass whose fields are
made by `setting(...)` and which is `Checked`, or has a `__post_init__` that
calls `validate(self)`; `command_line.py` makes flags and keywords of them.
"""

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from albert_tf.base import files
from albert_tf.base.errors import require

FLAG_FILE = "run.flags"  # in a model directory: how it was made


def setting(
    default: Any,
    help: str,
    *,
    choices: Sequence[str | bool] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    required: bool = False,
    change: str = "",
    convert: Callable[[str, Any], Any] | None = None,
    literal: bool = False,
) -> Any:
    """Return a dataclass field that carries its flag's help and legal values.

    Args:
      default: the value without the flag; `None` means "not given".
      help: one sentence for `--help`; name the unit.
      choices: the legal strings, normally the keys of a dispatch dict; True
        and False stand before the words that a switch takes too.
      minimum: the smallest legal number, itself legal.
      maximum: the largest legal number, itself legal.
      required: whether the flag must be given on the command line.
      change: what another value means for the rest of a resumed run; empty
        where its weights stay the same.
      convert: makes a value of what Python code passes, from the setting's
        name and that; None takes what its flag would.
      literal: whether it is a text of the user's, in which `~/` is no home.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices) if choices else None,
        "minimum": minimum,
        "maximum": maximum,
        "required": required,
        "change": change,
        "convert": convert,
        "literal": literal,
    }
    return dataclasses.field(default=default, metadata=metadata)


def check_setting(name: str, value: Any, metadata: Any) -> None:
    """Raise `InputError` if a value is outside its field's choices or range."""
    if value is None:
        return
    choices = metadata.get("choices")
    low, high = metadata.get("minimum"), metadata.get("maximum")
    # Where a range is given too, numbers are legal beside the choices.
    ranged = low is not None or high is not None
    number = ranged and isinstance(value, int | float)
    must, got = f"`{name}` must be", {name: value}
    if choices and not number:
        kinds = f"one of {', '.join(map(str, choices))}"
        kinds = f"a number or {kinds}" if ranged else kinds
        require(value in choices, f"{must} {kinds}.", **got)
        return
    infinite = number and abs(value) == math.inf
    # NaN is refused by either limit, for it is not within.
    require(not infinite, f"{must} finite.", **got)
    require(low is None or value >= low, f"{must} at least {low}.", **got)
    require(high is None or value <= high, f"{must} at most {high}.", **got)


def validate(config: Any) -> None:
    """Check every field of a dataclass made of `setting` fields."""
    for field in dataclasses.fields(config):
        check_setting(field.name, getattr(config, field.name), field.metadata)


class Checked:
    """A dataclass of settings that is checked when it is made."""

    def __post_init__(self):
        validate(self)


class Fact(NamedTuple):
    """What the weights of a run follow from, see `change` of `setting`."""

    value: Any
    change: str


def facts(config: Any, change: str = "") -> dict[str, Fact]:
    """Return {name: fact} of a settings dataclass, as JSON keeps values.

    Args:
      config: made of `setting` fields.
      change: of every field, instead of what the fields say.
    """
    table = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        value = list(value) if isinstance(value, tuple) else value
        meaning = change or field.metadata["change"]
        if meaning:
            table[field.name] = Fact(value, meaning)
    return table


def _line(entries: tuple) -> str:
    """Return a list as its flag reads it, commas of an entry in quotes."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(entries)
    return line.getvalue()


def flagfile(*configs: Any) -> str:
    """Return settings as the lines of a flagfile that replays them.

    An object that Python code passed is a comment.
    """
    lines = []
    for config in configs:
        for field in dataclasses.fields(config):
            name, value = field.name, getattr(config, field.name)
            if isinstance(value, tuple):
                value = _line(value)
            if value is not None:
                said = isinstance(value, str | int | float)
                lines.append(f"{'' if said else '# '}--{name}={value}")
    return "\n".join(lines) + "\n"


def write_flagfile(model_dir: str, *configs: Any) -> None:
    """Write settings as the flagfile of a model directory."""
    files.write_text(files.join(model_dir, FLAG_FILE), flagfile(*configs))
