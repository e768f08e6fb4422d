"""The exception for user errors, and helpers for error messages."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class InputError(ValueError):
    """A mistake in user input: a flag, a file, a config or a record.

    The message is self-contained: it states the rule, with names in backticks,
    and contains `Received: name=value`, the legal choices and, for data, the
    file and line. Command-line programs print the message as one line and exit
    with status 1.
    """


def _with_values(rule: str, received: Mapping[str, object]) -> str:
    values = ", ".join(f"{k}={v}" for k, v in received.items())
    values = " ".join(values.split("\n"))  # a table has several lines
    return f"{rule} Received: {values}" if values else rule


def require(condition: object, rule: str, /, **received: object) -> None:
    """Raise `InputError` unless a rule holds.

    Args:
      condition: whether the rule holds.
      rule: a sentence that states the rule, with names in backticks; for errors
        in data, it begins with the location.
      received: the invalid values, as {name that the user knows: value}.
    """
    if not condition:
        raise InputError(_with_values(rule, received))


def brief(value: Any) -> str:
    """Return at most 60 characters of a value's text, for an error message."""
    return str(value)[:60]


def first_line(error: BaseException, text: str | None = None) -> str:
    """Return the first line of an error's text, or its type if it has no text.

    The names of TensorFlow nodes and ops are omitted.

    Args:
      error: the error.
      text: the error's text, if it differs from `str(error)`.
    """
    lines = (str(error) if text is None else text).splitlines()
    first = lines[0] if lines else type(error).__name__
    return re.sub(r"\{\{.*?\}\} ?| ?\[Op:\w+\]", "", first)


@contextlib.contextmanager
def input_errors(
    kinds: type[Exception] | tuple, rule: str, /, **received: object
) -> Iterator[None]:
    """Convert errors from other code, such as a library, to `InputError`.

    Args:
      kinds: the types of errors to convert; an `InputError` is not changed.
      rule: the rule, without a period; the error's first line follows.
      received: as for `require`.
    """
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        rule = f"{rule}: {first_line(error).rstrip('.')}."
        raise InputError(_with_values(rule, received)) from None


@contextlib.contextmanager
def errors_in(where: str) -> Iterator[None]:
    """Prefix the message of an `InputError` with the location of the data."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def near(name: str, legal: Iterable[str]) -> str:
    """Return "; did you mean ...?" if legal names are similar, else ".".

    Apart from nearly equal names, names that contain all words of `name`, as
    `random_seed` contains `seed`, are closer than names with the same letters.
    """
    legal, words = list(legal), {*name.split("_")}
    matches = (
        difflib.get_close_matches(name, legal, 1, 0.9)
        or [x for x in legal if words <= {*x.split("_")}][:3]
        or difflib.get_close_matches(name, legal, 1)
    )
    names = " or ".join(f"`{x}`" for x in matches)
    return f"; did you mean {names}?" if matches else "."


class ForeignName:
    """Another library's name for an attribute, such as `from_pretrained`.

    Access raises an `AttributeError` that suggests this package's name.
    """

    def __init__(self, replacement: str):
        self.replacement = replacement

    def __set_name__(self, owner: type, name: str):
        self.name = name

    def __get__(self, model: Any, owner: type):
        raise AttributeError(
            f"`{owner.__name__}` has no `{self.name}`; use `{self.replacement}`"
        )
