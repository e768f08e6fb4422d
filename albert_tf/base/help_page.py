"""The text of `--help`: a program's flags, grouped by purpose."""

import dataclasses
import textwrap

from albert_tf.base.settings import types_of

WIDTH = 79

# {type: the placeholder for its values}; a switch has no placeholder.
VALUES = {int: "INTEGER", float: "NUMBER", str: "TEXT", tuple: "A,B,..."}
NUMBER_OR_WORD = (float, str)

FOOTER = (
    "--flagfile=FILE reads flags from a file, one per line, without quotes; "
    "a line that begins with # is a comment. If a flag occurs twice, the last "
    "value counts, so put --flagfile before the flags that differ from the "
    "file. --helpfull also prints the flags of absl and TensorFlow."
)


def value_of(field: dataclasses.Field) -> str:
    """Return the text after a flag's name, such as `=TEXT`; "" for a switch."""
    types = types_of(field)
    if types == NUMBER_OR_WORD:
        return f"=NUMBER or {' or '.join(field.metadata['choices'])}"
    names = [VALUES[t] for t in types if t in VALUES]
    return "=" + " or ".join(names) if names else ""


def word(value: object) -> str:
    """Format a value as it is written in a flag."""
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value}".lower() if isinstance(value, bool) else f"{value}"


def _filled(text: str, indent: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _entry(program, field: dataclasses.Field) -> str:
    """Return the help text for a setting's flag."""
    metadata, value = field.metadata, value_of(field)
    name = f"--{field.name}{value}" if value else f"--[no]{field.name}"
    aliases = [a for a, name in program.aliases.items() if name == field.name]
    text = metadata["help"]
    if metadata["choices"] and types_of(field) != NUMBER_OR_WORD:
        text += f" One of: {', '.join(map(word, metadata['choices']))}."
    if default := program.default_words(field):
        text += f" Default: {default}."
    if aliases:
        text += f" Also --{', --'.join(aliases)}."
    if program.required(field):
        text += " Required."
    return f"  {name}\n{_filled(text, ' ' * 6)}"


def page(program, description: str) -> str:
    """Return the text of `--help`.

    Args:
      program: a `Program`.
      description: the description of the program.
    """
    parts = [description]
    for title, fields in program.groups().items():
        entries = (_entry(program, field) for field in fields)
        parts.append("\n".join((f"{title}:", *entries)))
    return "\n\n".join(filter(None, (*parts, _filled(FOOTER, ""))))
