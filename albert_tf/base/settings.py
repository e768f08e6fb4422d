"""Dataclass fields as the one home of settings.

A library module declares its settings as a frozen dataclass whose fields are
made by `setting(...)` and which is `Checked`, or has a `__post_init__` that
calls `validate(self)`; `program.py` makes flags and keywords of them.
"""

import csv
import dataclasses
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

from albert_tf.base import files
from albert_tf.base.errors import InputError, require

FLAG_FILE = "run.flags"  # in a model directory: how it was made
TEXTS = (str, os.PathLike)


def plain(value: Any) -> Any:
    """Convert values of NumPy, pandas or TensorFlow to plain Python.

    Scalars become numbers or strings, and arrays become lists. Lists, tuples
    and dicts are converted entry by entry; other values are not changed.
    """
    if isinstance(value, Mapping):
        return {plain(k): plain(x) for k, x in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if hasattr(value, "tolist"):
        return value.tolist()
    return plain(value.numpy()) if hasattr(value, "numpy") else value


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
      choices: the legal strings, normally the keys of a dispatch dict; for a
        switch that also takes words, True and False come first.
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


def _is(*types: type) -> Callable[[Any], bool]:
    """Return a test for values of some types; a boolean is not a number."""
    return lambda x: (
        isinstance(x, types) and (bool in types or not isinstance(x, bool))
    )


def _is_list(value: Any) -> bool:
    """Return whether a value is a text or path, or a list of entries."""
    entries = isinstance(value, list | tuple)
    return _is(*TEXTS)(value) or entries and all(map(_is(*TEXTS, Real), value))


def _entries(value: Any) -> tuple[str, ...]:
    """Return a list as its flag would have it, of texts, paths or numbers."""
    if isinstance(value, str):
        cells = next(csv.reader([value], strict=True), [])
        return tuple(cell.strip() for cell in cells)
    return tuple(map(str, [value] if isinstance(value, os.PathLike) else value))


class Kind(NamedTuple):
    """A kind of setting: which values are legal, and how they are converted."""

    legal: Callable[[Any], bool]  # whether a value is legal
    typed: Callable[[Any], Any]  # converts a legal value as its flag would
    words: str  # names the kind in errors


KINDS: dict[tuple[type, ...], Kind] = {
    (bool,): Kind(_is(bool), bool, "True or False"),
    (bool, str): Kind(
        _is(bool, str),
        lambda x: x if isinstance(x, str) else bool(x),
        "True, False or a word",
    ),
    (int,): Kind(_is(Integral), int, "a whole number"),
    (float,): Kind(_is(Real), float, "a number"),
    (str,): Kind(_is(*TEXTS), os.fspath, "a text"),
    (tuple,): Kind(_is_list, _entries, "a list of texts"),
    (float, str): Kind(
        _is(Real, str),
        lambda x: x if isinstance(x, str) else float(x),
        "a number or a word",
    ),
}


def as_type(name: str, value: Any, *types: type) -> Any:
    """Convert a value passed from Python as its flag would.

    Args:
      name: of the setting or argument, for the message.
      value: of Python, NumPy, pandas or TensorFlow.
      *types: a key of `KINDS`.

    Raises:
      InputError: the value is of another type.
    """
    kind, value = KINDS[types], plain(value)
    rule = f"`{name}` must be {kind.words}."
    require(kind.legal(value), rule, **{name: repr(value)})
    try:
        return kind.typed(value)
    except csv.Error as error:
        reading = f"Unable to parse the value {value!r} as {kind.words}"
        raise InputError(f"`{name}`: {reading}: {error}") from None
    except (ValueError, OverflowError) as error:
        raise InputError(f"`{name}`: {error}") from None


def types_of(field: dataclasses.Field) -> tuple[type, ...]:
    """Return a field's key in `KINDS`: the types that flags can have."""
    types = getattr(field.type, "__args__", (field.type,))
    return tuple(t for t in types if any(t in kind for kind in KINDS))


def typed(field: dataclasses.Field, value: Any) -> Any:
    """Convert a field's value, with its own `convert` if it has one."""
    if convert := field.metadata["convert"]:
        return convert(field.name, value)
    return as_type(field.name, value, *types_of(field))


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
    """Convert and check every field of a dataclass of `setting` fields."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is not None:
            value = typed(field, value)
            object.__setattr__(config, field.name, value)
        check_setting(field.name, value, field.metadata)


class Checked:
    """A dataclass of settings, converted and checked when it is made."""

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
