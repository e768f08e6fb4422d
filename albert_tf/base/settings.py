"""Settings, each declared once as a dataclass field.

A library module declares its settings in a frozen dataclass whose fields are
`setting(...)`. The class inherits from `Validated`. `program.py` creates flags
and keywords from the fields.
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
from albert_tf.base.errors import InputError, brief, require

FLAG_FILE = "run.flags"  # the settings that produced a model directory
TEXTS = (str, os.PathLike)


def plain(value: Any) -> Any:
    """Convert NumPy, pandas, pyarrow or TensorFlow values to plain Python.

    Scalars become numbers or strings. Arrays and columns become lists, in which
    missing pandas and pyarrow values are None. The entries of lists, tuples and
    dicts are converted; other values stay unchanged.
    """
    if isinstance(value, Mapping):
        return {plain(k): plain(x) for k, x in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if hasattr(value, "to_pylist"):
        return value.to_pylist()
    if hasattr(value, "isna") and hasattr(value, "tolist"):
        cells = zip(value.tolist(), value.isna(), strict=True)
        return [None if missing else x for x, missing in cells]
    if hasattr(value, "tolist"):
        return value.tolist()
    return plain(value.numpy()) if hasattr(value, "numpy") else value


# Headings of `--help`, in order. Each heading names the purpose of its flags.
GROUPS = (
    FILES := "Inputs and outputs",
    ACTIONS := "What to do",
    TASK := "Task",
    TABLE_COLUMNS := "Columns of your files",
    READING := "Reading text",
    TOKENIZER := "Tokenizer",
    EXAMPLES := "Training examples",
    MASKING := "Masked tokens",
    MODEL := "Model and initial weights",
    LENGTH := "Length of training and batch size",
    OPTIMIZER := "Optimizer and learning rate",
    TECHNIQUES := "Regularization and distillation",
    SAVING := "Evaluating, saving and resuming",
    DEVICES := "Devices, speed and memory",
    SERVING := "Requests and answers",
    REPRODUCING := "Reproducing results",
)


def setting(
    default: Any,
    help: str,
    *,
    group: str = "",
    means: str = "",
    choices: Sequence[str | bool] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    required: bool = False,
    change: str = "",
    convert: Callable[[str, Any], Any] | None = None,
    literal: bool = False,
) -> Any:
    """Return a dataclass field with its flag's help text and legal values.

    Args:
      default: the value when the flag is omitted; `None` means "not set".
      help: a description of the setting for `--help`, including the unit.
      group: the heading in `--help`, one of `GROUPS`. The default is the
        attribute `help_group` of the class, or else `FILES`.
      means: the meaning of the default, if the value does not explain itself.
      choices: the legal strings, usually the keys of a dispatch dict; for a
        switch that also accepts words, True, False and the words.
      minimum: the smallest legal number.
      maximum: the largest legal number.
      required: whether the user must set a value.
      change: how a new value affects a resumed run; empty if it does not affect
        the weights.
      convert: a function (name of the setting, value from Python code) ->
        converted value. If None, only values of the flag's type are legal.
      literal: whether the value is user text, in which `~/` is not expanded.
    """
    metadata = {
        "help": help,
        "group": group,
        "means": means,
        "choices": tuple(choices) if choices else None,
        "minimum": minimum,
        "maximum": maximum,
        "required": required,
        "change": change,
        "convert": convert,
        "literal": literal,
    }
    return dataclasses.field(default=default, metadata=metadata)


def variant(field: Any, default: Any = dataclasses.MISSING, **changes) -> Any:
    """Return a copy of a `setting` field for another class.

    Args:
      field: the field.
      default: the new default.
      **changes: other arguments of `setting`.
    """
    if default is dataclasses.MISSING:
        default = field.default
    metadata = field.metadata | changes
    return dataclasses.field(default=default, metadata=metadata)


def field_of(config: type, name: str) -> dataclasses.Field:
    """Return the field with a given name in a settings class."""
    return config.__dataclass_fields__[name]


def group_of(config: type, field: dataclasses.Field) -> str:
    """Return the heading under which `--help` lists a setting."""
    owner = next(
        c
        for c in config.__mro__
        if field.name in vars(c).get("__annotations__", ())
    )
    return field.metadata["group"] or vars(owner).get("help_group", FILES)


# Settings that several classes share.
MODEL_DIR = setting(
    "", "Model directory, pretrained or fine-tuned.", required=True
)
OUTPUT_DIR = setting(
    "",
    "Output folder; if it contains an interrupted run, the run is resumed.",
    required=True,
)
INPUT_FILE = setting(
    "",
    "Text file with one text per line; - reads standard input.",
    required=True,
)
OUTPUT_FILE = setting("", "Output file.", required=True)
DO_TRAIN = setting(False, "Train.", group=ACTIONS)
DO_EVAL = setting(False, "Evaluate.", group=ACTIONS)
MAX_SEQ_LENGTH = setting(
    None, "Maximum number of tokens; longer texts are truncated.", minimum=4
)
TOP_K = setting(
    5,
    "Number of pieces to return for each [MASK], or of answers to return for "
    "each question.",
    minimum=1,
)
LARGEST_SEED = 2**31 - 1
RANDOM_SEED = setting(
    12345,
    "Seed for all random numbers.",
    minimum=0,
    maximum=LARGEST_SEED,
    group=REPRODUCING,
)
COMPAT_FLAG = setting(
    "none",
    "google reproduces the released code, including its bugs.",
    choices=("none", "google"),
    group=REPRODUCING,
)


def _is(*types: type) -> Callable[[Any], bool]:
    """Return a type check that does not accept a boolean as a number."""
    return lambda x: (
        isinstance(x, types) and (bool in types or not isinstance(x, bool))
    )


def _is_list(value: Any) -> bool:
    """Return whether a value can be converted to a list of strings.

    The value must be a string, a path, or a list of strings, paths or numbers.
    """
    if isinstance(value, TEXTS):
        return True
    is_list = isinstance(value, Sequence) and not isinstance(value, bytes)
    return is_list and all(map(_is(*TEXTS, Real), value))


def _entries(value: Any) -> tuple[str, ...]:
    """Convert a comma-separated string, a path or a list to strings."""
    if isinstance(value, str):
        cells = next(csv.reader([value], strict=True), [])
        return tuple(cell.strip() for cell in cells)
    return tuple(map(str, [value] if isinstance(value, os.PathLike) else value))


class FlagType(NamedTuple):
    """The type of a setting: its legal values and their conversion."""

    legal: Callable[[Any], bool]  # whether a value is legal
    typed: Callable[[Any], Any]  # converts a legal value as the flag would
    words: str  # name of the type in errors


FLAG_TYPES: dict[tuple[type, ...], FlagType] = {
    (bool,): FlagType(_is(bool), bool, "True or False"),
    (bool, str): FlagType(
        _is(bool, str),
        lambda x: x if isinstance(x, str) else bool(x),
        "True, False or a word",
    ),
    (int,): FlagType(_is(Integral), int, "a whole number"),
    (float,): FlagType(_is(Real), float, "a number"),
    (str,): FlagType(_is(*TEXTS), os.fspath, "a string"),
    (tuple,): FlagType(_is_list, _entries, "a list of strings"),
    (float, str): FlagType(
        _is(Real, str),
        lambda x: x if isinstance(x, str) else float(x),
        "a number or a word",
    ),
}


def as_type(name: str, value: Any, *types: type) -> Any:
    """Convert a Python value to the type of a flag.

    Args:
      name: name of the setting or argument, for the error message.
      value: a Python, NumPy, pandas or TensorFlow value.
      *types: the types that form a key of `FLAG_TYPES`.

    Raises:
      InputError: if the value has a different type or cannot be converted.
    """
    kind, value = FLAG_TYPES[types], plain(value)
    rule = f"`{name}` must be {kind.words}."
    require(kind.legal(value), rule, **{name: brief(repr(value))})
    try:
        return kind.typed(value)
    except csv.Error as error:
        reading = f"Unable to parse the value {value!r} as {kind.words}"
        raise InputError(f"`{name}`: {reading}: {error}") from None
    except (ValueError, OverflowError) as error:
        raise InputError(f"`{name}`: {error}") from None


def types_of(field: dataclasses.Field) -> tuple[type, ...]:
    """Return a field's key in `FLAG_TYPES`: its types except None."""
    types = getattr(field.type, "__args__", (field.type,))
    return tuple(t for t in types if any(t in kind for kind in FLAG_TYPES))


def converted(field: dataclasses.Field, value: Any) -> Any:
    """Convert a value with the field's `convert`, or to the flag's type."""
    if convert := field.metadata["convert"]:
        return convert(field.name, value)
    return as_type(field.name, value, *types_of(field))


def check_setting(name: str, value: Any, metadata: Any) -> None:
    """Raise `InputError` if a value is outside its field's choices or range.

    Every number must be finite.
    """
    if value is None:
        return
    rule, values = f"`{name}` must be", {name: value}
    finite = not isinstance(value, float) or math.isfinite(value)
    require(finite, f"{rule} finite.", **values)
    choices = metadata.get("choices")
    low, high = metadata.get("minimum"), metadata.get("maximum")
    # If the field has a range, numbers are legal in addition to the choices.
    ranged = low is not None or high is not None
    number = ranged and isinstance(value, int | float)
    if choices and not number:
        kinds = f"one of {', '.join(map(str, choices))}"
        if ranged:  # the quotes show that the value is not a number
            kinds, values = f"a number or {kinds}", {name: repr(value)}
        require(value in choices, f"{rule} {kinds}.", **values)
        return
    require(low is None or value >= low, f"{rule} at least {low}.", **values)
    require(high is None or value <= high, f"{rule} at most {high}.", **values)


def positive(name: str, value: Any) -> int:
    """Convert an argument to an integer; raise an error if it is below 1."""
    number = as_type(name, value, int)
    check_setting(name, number, {"minimum": 1})
    return number


class Validated:
    """The base class of settings, which converts and checks new instances."""

    def __post_init__(self):
        """Convert and check every `setting` field."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                value = converted(field, value)
                object.__setattr__(self, field.name, value)
            check_setting(field.name, value, field.metadata)


class RunFact(NamedTuple):
    """The value of a setting that affects a run's weights, and the effect.

    See `change` in `setting`.
    """

    value: Any
    change: str


def facts(*configs: Any, change: str = "") -> dict[str, RunFact]:
    """Return {name: fact} for settings dataclasses, with JSON-ready values.

    Settings without a `change` are omitted unless the caller passes `change`.

    Args:
      *configs: dataclasses of `setting` fields.
      change: a value to use instead of the `change` of each field.
    """
    table = {}
    for config in configs:
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            value = list(value) if isinstance(value, tuple) else value
            meaning = change or field.metadata["change"]
            if meaning:
                table[field.name] = RunFact(value, meaning)
    return table


def _line(entries: tuple) -> str:
    """Return the flag value for a list; entries with commas are quoted."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(entries)
    return line.getvalue()


def _is_read_back(value: Any, text: str) -> bool:
    """Return whether a flagfile with this text restores the value.

    A line loses trailing white space, a list entry loses surrounding white
    space, and characters that UTF-8 cannot encode are written as escapes.
    """
    plain = isinstance(value, str | int | float | tuple)
    written = text.encode("utf-8", "backslashreplace").decode().rstrip()
    if not plain or text != written or {*"\r\n"} & {*text}:
        return False
    return not isinstance(value, tuple) or _entries(text) == value


def flagfile(*configs: Any) -> str:
    """Return a flagfile that reproduces the given settings.

    Settings that are None are omitted. Values that a flagfile cannot reproduce
    appear as comments: objects, and strings with line breaks, trailing white
    space, or characters that UTF-8 cannot encode.
    """
    lines = []
    for config in configs:
        for field in dataclasses.fields(config):
            name, value = field.name, getattr(config, field.name)
            text = _line(value) if isinstance(value, tuple) else str(value)
            if value is not None and _is_read_back(value, text):
                lines.append(f"--{name}={text}")
            elif value is not None:
                lines.append(f"# --{name}={value!r}")
    return "\n".join(lines) + "\n"


def write_flagfile(model_dir: str, *configs: Any) -> None:
    """Write settings to the flagfile of a model directory."""
    files.write_text(files.join(model_dir, FLAG_FILE), flagfile(*configs))
