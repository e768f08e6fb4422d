"""The types of values in JSON documents."""

import dataclasses
import types
import typing
from typing import Any

from albert_tf.base.errors import brief, errors_in, require

# {type: (description in errors, types of the JSON value)}
KINDS = {
    bool: ("true or false", bool),
    str: ("a string", str),
    int: ("a whole number", int),
    float: ("a number", int | float),
    list: ("a list", list),
    tuple: ("a list", list | tuple),
    dict: ("an object", dict),
}
# Alternative spellings of booleans, which some programs write.
BOOLEANS = {
    **dict.fromkeys(("true", "1", "1.0"), True),
    **dict.fromkeys(("false", "0", "0.0"), False),
}


def _record(kind: Any, values: dict, name: str) -> Any:
    """Convert the object called `name` to a dataclass."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    other = sorted(values.keys() - fields.keys())
    rule = f"The keys of `{name}` must be {', '.join(fields)}."
    require(not other, rule, other=brief(other))
    hints = typing.get_type_hints(kind)
    return kind(
        **{
            key: typed(hints[key], values.get(key), key)
            for key, field in fields.items()
            if key in values or field.default is field.default_factory
        }
    )


def typed(kind: Any, value: Any, name: str) -> Any:
    """Convert a JSON value to a type.

    An object becomes a dataclass; it may lack keys that have a default. A list
    becomes a tuple, unless the type is `list`.

    Args:
      kind: a dataclass, or a type in `KINDS`, optionally with the types of its
        entries; or a union of such a type and None.
      value: the value.
      name: the value's name.

    Raises:
      InputError: if the value or a part of the value has a different type; the
        message names the innermost key.
    """
    parts = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return None if value is None else typed(parts[0], value, name)
    is_record = dataclasses.is_dataclass(kind)
    origin = dict if is_record else typing.get_origin(kind) or kind
    words, legal_types = KINDS[origin]
    legal = isinstance(value, legal_types)
    legal = legal and isinstance(value, bool) == (origin is bool)
    require(legal, f"`{name}` must be {words}.", **{name: f"{value!r:.60}"})
    if is_record:
        return _record(kind, value, name)
    if origin is dict and parts:
        return {k: typed(parts[1], x, name) for k, x in value.items()}
    if parts:
        value = (typed(parts[0], x, name) for x in value)
    return origin(value) if origin in (list, tuple) else value


def require_legal(legal: dict[str, bool], values: dict) -> None:
    """Raise `InputError` unless all values are legal.

    Args:
      legal: {key: whether its value is legal}.
      values: {key: value}, for the error message.
    """
    for name, is_legal in legal.items():
        received = {name: f"{values.get(name)!r:.60}"}
        require(is_legal, f"`{name}` must have a legal value.", **received)


def field(values: Any, name: str, kind: Any, where: str) -> Any:
    """Return a field of a JSON object, converted to a type.

    Args:
      values: the object; any other value counts as an object without fields.
      name: the name of the field.
      kind: the type, as for `typed`.
      where: the location of the object, for the error message.
    """
    value = values.get(name) if isinstance(values, dict) else None
    with errors_in(where):
        return typed(kind, value, name)


def flag_in(values: dict, name: str, where: str) -> bool | None:
    """Return a boolean field of a JSON object, or None if it is not set.

    The legal values are booleans, 0, 1 and their string forms, which some
    programs write: the string "false" means False. A field that is missing,
    null or "" is not set.

    Args:
      values: the object.
      name: the name of the field.
      where: the location of the object, for the error message.
    """
    value = values.get(name)
    if value is None or value == "":
        return None
    flag = BOOLEANS.get(str(value).strip().lower())
    rule = f"{where}: `{name}` must be true or false."
    require(flag is not None, rule, **{name: repr(value)[:60]})
    return flag
