"""Dataclass fields as the one home of settings, and absl flags made of them.

A library module declares its settings as a frozen dataclass whose fields are
made by `setting(...)` and whose `__post_init__` calls `validate(self)`. A
script calls `define_flags(TheDataclass)` once and `from_flags(TheDataclass)`
in its `main`. Only this module and the scripts know absl.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from absl import app, flags, logging

from albert_tf.base.errors import InputError

FLAGS = flags.FLAGS
FLAG_FILE = "run.flags"  # in a model directory: how it was made


def setting(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    required: bool = False,
    change: str = "",
) -> Any:
    """Return a dataclass field that carries its flag's help and legal values.

    Args:
      default: the value without the flag; `None` means "not given".
      help: one sentence for `--help`; name the unit.
      choices: the legal strings, normally the keys of a dispatch dict.
      minimum: the smallest legal number, itself legal.
      maximum: the largest legal number, itself legal.
      required: whether the flag must be given on the command line.
      change: what another value means for the rest of a resumed run; empty
        where its weights stay the same.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices) if choices else None,
        "minimum": minimum,
        "maximum": maximum,
        "required": required,
        "change": change,
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
    if choices and value not in choices and not number:
        raise InputError(
            f"`{name}` must be {'a number or ' if ranged else ''}one of "
            f"{', '.join(choices)}. Received: {name}={value}"
        )
    if choices and not number:
        return
    # `not >=` rather than `<`, so that NaN is refused too.
    if low is not None and not value >= low:
        raise InputError(
            f"`{name}` must be at least {low}. Received: {name}={value}"
        )
    if high is not None and not value <= high:
        raise InputError(
            f"`{name}` must be at most {high}. Received: {name}={value}"
        )


def validate(config: Any) -> None:
    """Check every field of a dataclass made of `setting` fields."""
    for field in dataclasses.fields(config):
        check_setting(field.name, getattr(config, field.name), field.metadata)


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


def _field_type(field: dataclasses.Field) -> Any:
    """Return the plain type of a field annotated `T` or `T | None`.

    A field annotated `float | str` holds a number or a word.
    """
    types = getattr(field.type, "__args__", (field.type,))
    kinds = tuple(t for t in types if t is not type(None))
    return kinds[0] if len(kinds) == 1 else kinds


def _define_list(name: str, default: Any, help: str) -> None:
    flags.DEFINE_list(name, list(default or ()), help)


class _NumberOrWord(flags.ArgumentParser):
    """Parses a number, and leaves a word for `check_setting` to judge."""

    def parse(self, argument):
        try:
            return float(argument)
        except ValueError:
            return argument


def _define_number_or_word(name: str, default: Any, help: str) -> None:
    serializer = flags.ArgumentSerializer()
    flags.DEFINE(_NumberOrWord(), name, default, help, serializer=serializer)


DEFINERS: dict[Any, Callable] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    tuple: _define_list,
    (float, str): _define_number_or_word,
}


def define_flags(*classes: type, optional: Sequence[str] = ()) -> None:
    """Define one absl flag for each field of the given dataclasses.

    Args:
      classes: made of `setting` fields.
      optional: required settings that this program can do without.
    """
    for cls in classes:
        for field in dataclasses.fields(cls):
            if field.name in FLAGS:
                raise InputError(
                    "A setting must have one home. Received: "
                    f"`{field.name}` in {cls.__name__} and an earlier class"
                )
            help = field.metadata["help"]
            if field.metadata["choices"]:
                help += f" One of: {', '.join(field.metadata['choices'])}."
            required = field.metadata["required"]
            required = required and field.name not in optional
            default = None if required else field.default
            DEFINERS[_field_type(field)](field.name, default, help)
            FLAGS.register_key_flag_for_module(sys.argv[0], FLAGS[field.name])
            if required:
                flags.mark_flag_as_required(field.name)


def from_flags(cls: type) -> Any:
    """Build a settings dataclass from the flags that `define_flags` made."""
    values = {}
    for field in dataclasses.fields(cls):
        value = FLAGS[field.name].value
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return cls(**values)


def flagfile(*configs: Any) -> str:
    """Return settings as the lines of a flagfile that replays them."""
    lines = []
    for config in configs:
        for name, value in dataclasses.asdict(config).items():
            if isinstance(value, tuple):
                value = ",".join(map(str, value))
            if value is not None:
                lines.append(f"--{name}={value}")
    return "\n".join(lines) + "\n"


def run(main: Callable[[], None], positional: str | None = None) -> None:
    """Run a script's `main` under absl; a user's mistake is one line, exit 1.

    Files that cannot be read or written (`OSError`) count as the user's.

    Args:
      main: reads the flags.
      positional: a flag that arguments without a flag are the value of,
        joined by commas; without it there must be none.
    """

    def guarded(argv: Sequence[str]) -> int:
        if len(argv) > 1 and positional and not FLAGS[positional].present:
            FLAGS[positional].value = ",".join(argv[1:])
        elif len(argv) > 1:
            return _fail(f"Unexpected arguments: {' '.join(argv[1:])}")
        try:
            main()
        except (InputError, OSError) as error:
            return _fail(str(error))
        return 0

    # The programs print; what TensorFlow logs at lower levels is noise.
    logging.set_verbosity(logging.WARNING)
    app.run(guarded)


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr, flush=True)
    return 1
