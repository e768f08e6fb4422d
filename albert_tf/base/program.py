"""Programs: functions of settings, called with flags or keywords.

    @command(DescribeConfig, positional="config")
    def describe(c: DescribeConfig) -> None: ...

turns each setting into a flag of `describe.program.cli()` and a keyword of
`describe(config=...)`. Commands import the package inside `quiet_start()`. Only
this module uses absl.
"""

import atexit
import contextlib
import dataclasses
import functools
import gc
import inspect
import io
import itertools
import os
import pathlib
import re
import signal
import sys
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, TypeVar

from absl import app, flags, logging

from albert_tf.base import files, help_page, interrupts
from albert_tf.base.errors import (
    InputError,
    brief,
    first_line,
    input_errors,
    near,
    require,
)
from albert_tf.base.processes import without_collection
from albert_tf.base.removed_flags import absent_from, gone, without_removed
from albert_tf.base.settings import GROUPS, converted, group_of, types_of

# TensorFlow reads these variables when it is imported; values set by the user
# take precedence. Without oneDNN, which is off by default on AMD processors, a
# training step is a fifth slower.
ENVIRONMENT = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


# The names of the scripts next to the package, in the folder `CLONE`.
SCRIPTS = {"create_pretraining_data", "pretrain", "finetune"}
CLONE = pathlib.Path(__file__).resolve().parents[2]


def is_command() -> bool:
    """Return whether this process runs one of the package's commands."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec:  # python -m
        return spec.name.startswith("albert_tf.")
    script = pathlib.Path(sys.argv[0]).resolve()
    is_ours = script.stem in SCRIPTS and script.parent == CLONE
    return is_ours or script.name.startswith("albert-")


@contextlib.contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """End a command with a one-line message if Ctrl-C interrupts an import.

    Some libraries catch or print a `KeyboardInterrupt` during their import.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    numbers = [signal.SIGINT] * (is_default and is_command())
    with interrupts.handling(interrupts.end, *numbers):
        yield


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Make imports in the block faster and quieter.

    During the imports, Ctrl-C ends a command immediately.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with _ended_by_interrupt(), without_collection():
        yield


FLAGS = flags.FLAGS
UNREAD = 141  # exit status in shells after a closed pipe, such as `| head`
Result = TypeVar("Result")


# Characters that a terminal would obey, such as those of a damaged file.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _fail(message: str, status: int = 1) -> int:
    message = CONTROLS.sub(lambda match: repr(match[0])[1:-1], message)
    print(f"error: {message}", file=sys.stderr, flush=True)
    return status


def _prepare_streams() -> None:
    """Make every text printable, even if a standard stream is closed.

    The null device replaces a closed stream. Otherwise, the next file to be
    opened would get the stream's number, and libraries would print to the file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    # Escape names that the console cannot print.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _end_at_second_interrupt() -> Callable[[int], None]:
    """Return a signal callback that ends the program at the second Ctrl-C.

    Without the callback, Ctrl-C has no effect until a library's C++ code
    returns.
    """
    numbers = itertools.count(1)

    def handle(number: int) -> None:
        if number == signal.SIGINT and next(numbers) == 2:
            interrupts.end()

    return handle


BYTE_ORDER_MARK = "\ufeff"  # at the beginning of some files from Windows
# Flags that print our own help page: absl would group flags by module, which
# does not help users.
HELP = {"--help", "-help", "--helpshort", "-helpshort", "-h", "-?"}


def _with_flagfiles(
    arguments: Sequence[str], table: flags.FlagValues
) -> list[str]:
    """Return arguments with the lines of flagfiles in place of `--flagfile`.

    Raises:
      InputError: if any argument is a removed flag that has no equivalent.
    """
    read = table.read_flags_from_files(arguments, force_gnu=False)
    read = [
        line.removeprefix(BYTE_ORDER_MARK)
        for line in read
        if not re.match(f"{BYTE_ORDER_MARK}(#|//|$)", line)
    ]
    return without_removed(read, table)


def _parse(argv: Sequence[str], page: str = "") -> list[str]:
    """Parse flags as absl does; return the arguments that are not flags.

    Requests for help and removed flags are handled first.
    """
    if page and HELP & set(argv):
        print(page, flush=True)
        sys.exit()
    try:
        argv = [argv[0], *_with_flagfiles(argv[1:], FLAGS)]
    except flags.Error:
        pass  # absl finds the same error
    except InputError as error:
        sys.exit(_fail(str(error)))
    try:
        return FLAGS(argv)
    except ValueError as error:  # a value, as in `--notrain=true`
        sys.exit(_fail(f"{error}. `--help` lists the flags."))
    except flags.UnrecognizedFlagError as error:
        ours = FLAGS.flags_by_module_dict().get(__name__, ())
        hint = near(error.flagname, [flag.name for flag in ours])
        rule = f"There is no flag `--{error.flagname}`{hint}"
        sys.exit(_fail(f"{rule} `--help` lists the flags."))
    except flags.Error as error:
        sys.exit(_fail(f"{first_line(error)}. `--help` lists the flags."))


def run(
    main: Callable[[], None],
    positional: str | None = None,
    prepare: Callable[[], str] = str,
) -> None:
    """Run a script's `main` under absl; print a user error on one line.

    User errors, such as unreadable files, end the program with status 1. A
    second Ctrl-C ends it immediately.

    Args:
      main: the program, which reads the flags.
      positional: the flag that receives positional arguments, joined by commas;
        if None, positional arguments are an error.
      prepare: a function, called first, that defines the flags and returns the
        text of `--help`, or "" for absl's list of flags.
    """

    def guarded(argv: Sequence[str]) -> int:
        if len(argv) > 1 and positional and not FLAGS[positional].present:
            FLAGS[positional].value = ",".join(argv[1:])
        elif len(argv) > 1:
            return _fail(f"Unexpected arguments: {' '.join(argv[1:])}")
        try:
            main()
        except (InputError, UnicodeDecodeError, MemoryError) as error:
            return _fail(str(error) or "Memory ran out.")
        except KeyboardInterrupt:
            return _fail("interrupted", interrupts.STATUS)
        return 0

    _prepare_streams()
    # At exit, Python's garbage collector takes 1 s for TensorFlow's objects.
    atexit.register(gc.freeze)
    # Less severe messages, such as TensorFlow's, are noise.
    logging.set_verbosity(logging.WARNING)
    try:
        with interrupts.seen_at_once(_end_at_second_interrupt()):
            parse = functools.partial(_parse, page=prepare())
            app.run(guarded, flags_parser=parse)
    except UnicodeDecodeError as error:
        sys.exit(_fail(f"A flagfile must be UTF-8: {error}"))
    except KeyboardInterrupt:  # while flags were defined or parsed
        sys.exit(_fail("interrupted", interrupts.STATUS))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for the last flush
        sys.exit(UNREAD)
    except OSError as error:
        sys.exit(_fail(str(error)))


class _OrWord(flags.ArgumentParser):
    """A flag parser that treats a value rejected by another parser as a word.

    `check_setting` later checks that the word is legal.
    """

    def __init__(self, parser: flags.ArgumentParser):
        self.parser = parser

    def parse(self, argument):
        try:
            return self.parser.parse(argument)
        except (TypeError, ValueError):
            return argument


def _define_or_word(
    parser: flags.ArgumentParser,
    name: str,
    default: Any,
    help: str,
    flag_values: flags.FlagValues,
) -> None:
    is_switch = isinstance(parser, flags.BooleanParser)
    serializer = flags.ArgumentSerializer()
    flag = flags.Flag(
        _OrWord(parser), serializer, name, default, help, boolean=is_switch
    )
    flags.DEFINE_flag(flag, flag_values)


def _define_list(
    name: str, default: Any, help: str, flag_values: flags.FlagValues
) -> None:
    flags.DEFINE_list(name, list(default or ()), help, flag_values)


# {key of `settings.FLAG_TYPES`: a function that defines a flag of this kind}
DEFINERS: dict[tuple[type, ...], Callable] = {
    (bool,): flags.DEFINE_bool,
    (bool, str): functools.partial(_define_or_word, flags.BooleanParser()),
    (int,): flags.DEFINE_integer,
    (float,): flags.DEFINE_float,
    (str,): flags.DEFINE_string,
    (tuple,): _define_list,
    (float, str): functools.partial(_define_or_word, flags.FloatParser()),
}


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of settings, called from the command line or from Python.

    Attributes:
      function: the function that runs the program. Its arguments are an
        instance of each class, in order, and keyword arguments without a flag.
        The function may accept `set_by_user`, the names of the settings that
        the user set.
      classes: dataclasses of `setting` fields.
      positional: the flag that receives positional arguments, joined by
        commas; if None, positional arguments are an error.
      defaults: {setting: default in this program}.
      aliases: {alternative name of a flag: setting}.
      optional: settings that are required in other programs but not in this
        one.
      means: {setting: the meaning of its default in this program}.
    """

    function: Callable
    classes: tuple[type, ...]
    positional: str | None = None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    optional: tuple[str, ...] = ()
    means: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def fields(self) -> dict[str, dataclasses.Field]:
        """Return {name: field} for all settings."""
        table: dict[str, dataclasses.Field] = {}
        for cls in self.classes:
            for field in dataclasses.fields(cls):
                require(
                    field.name not in table,
                    "A setting must be declared only once. Received: "
                    f"`{field.name}` in {cls.__name__} and an earlier class",
                )
                table[field.name] = field
        return table

    def groups(self) -> dict[str, list[dataclasses.Field]]:
        """Return {heading: settings}, in the order of `GROUPS`."""
        table: dict[str, list[dataclasses.Field]] = {g: [] for g in GROUPS}
        for cls in self.classes:
            for field in dataclasses.fields(cls):
                table[group_of(cls, field)].append(field)
        return {group: fields for group, fields in table.items() if fields}

    def required(self, field: dataclasses.Field) -> bool:
        """Return whether a setting is required."""
        return field.metadata["required"] and field.name not in self.optional

    def default(self, field: dataclasses.Field) -> Any:
        """Return the default of a setting, or None if it is required."""
        if self.required(field):
            return None
        return self.defaults.get(field.name, field.default)

    def default_words(self, field: dataclasses.Field) -> str:
        """Return a setting's default as text, or "" if there is no default."""
        value = self.default(field)
        meaning = "" if field.name in self.defaults else field.metadata["means"]
        means = self.means.get(field.name, meaning)
        shown = "" if value is None else help_page.word(value)
        return ", ".join(filter(None, (shown, means)))

    def _define_in(self, table: flags.FlagValues) -> None:
        for name, field in self.fields().items():
            define = DEFINERS[types_of(field)]
            help = field.metadata["help"]
            define(name, self.default(field), help, flag_values=table)
        for alias, name in self.aliases.items():
            flags.DEFINE_alias(alias, name, table)

    def define_flags(self) -> None:
        """Define an absl flag for each setting."""
        self._define_in(FLAGS)
        for name in self.fields():
            FLAGS.register_key_flag_for_module(sys.argv[0], FLAGS[name])

    def with_flagfile(self, path: str | None, values: dict) -> dict[str, Any]:
        """Return keywords, with the settings in a flagfile as defaults.

        Args:
          path: the flagfile, or None.
          values: the keywords, which take precedence unless they are None.

        Raises:
          InputError: if the file cannot be read, or contains anything but flags
            of this program.
        """
        if path is None:
            return values
        table = flags.FlagValues()
        self._define_in(table)
        path = files.local_path("flagfile", str(path))
        arguments = [f"--flagfile={path}"]
        rule = "`flagfile` must contain flags of this program"
        with input_errors((flags.Error, ValueError), rule, flagfile=path):
            rest = table(["", *_with_flagfiles(arguments, table)])
        unexpected = brief(" ".join(rest[1:]))
        require(not unexpected, f"{rule}.", flagfile=f"{path}: {unexpected}")
        stored = {
            self.aliases.get(name, name): table[name].value
            for name in (*self.fields(), *self.aliases)
            if table[name].present
        }
        values = {k: x for k, x in values.items() if x is not None}
        for name in values:
            stored.pop(self.aliases.get(name, name), None)
        return stored | values

    def _configs(self, values: dict[str, Any]) -> list[Any]:
        for name, field in self.fields().items():
            absent = self.required(field) and values[name] in (None, "")
            require(not absent, f"`{name}` must be given. Received: none")
        values |= {
            name: files.local_path(name, values[name])
            for name, field in self.fields().items()
            if not field.metadata["literal"]
        }
        return [
            cls(**{f.name: values[f.name] for f in dataclasses.fields(cls)})
            for cls in self.classes
        ]

    def from_flags(self) -> list[Any]:
        """Return an instance of each class, built from the flags."""
        values = {name: FLAGS[name].value for name in self.fields()}
        lists = {k: tuple(v) for k, v in values.items() if isinstance(v, list)}
        return self._configs(values | lists)

    def set_by_user(self, names: Iterable[str]) -> dict[str, frozenset[str]]:
        """Return {"set_by_user": settings} if the function accepts it, else {}.

        Args:
          names: the names or aliases of the settings that the user set.
        """
        if "set_by_user" not in inspect.signature(self.function).parameters:
            return {}
        settings = (self.aliases.get(name, name) for name in names)
        return {"set_by_user": frozenset(settings)}

    def _execute(self) -> None:
        present = (name for name in self.fields() if FLAGS[name].present)
        self.function(*self.from_flags(), **self.set_by_user(present))

    def _prepare(self) -> str:
        """Define the flags; return the text of `--help`."""
        self.define_flags()
        script = sys.modules["__main__"].__doc__
        text, _, _ = (script or self.function.__doc__ or "").partition("Args:")
        return help_page.page(self, inspect.cleandoc(text))

    def cli(self) -> None:
        """Run the program from the command line."""
        run(self._execute, self.positional, self._prepare)

    def configs(self, **values: Any) -> list[Any]:
        """Return an instance of each class, built from keywords.

        Raises:
          InputError: if a keyword is unknown, missing or of the wrong type.
        """
        fields, passed = self.fields(), {}
        for keyword, value in values.items():
            name = self.aliases.get(keyword, keyword)
            if name not in fields and name in absent_from(fields):
                raise gone(name, value)
            if name not in fields:
                hint = near(keyword, [*fields, *self.aliases])
                rule = f"`{self.function.__name__}` has no keyword `{keyword}`"
                require(False, f"{rule}{hint}", **{keyword: brief(repr(value))})
            rule = f"`{name}` must be given only once, by one of its names."
            require(name not in passed, rule, **{keyword: value})
            absent = value is None and self.default(fields[name]) is None
            passed[name] = None if absent else converted(fields[name], value)
        defaults = {name: self.default(field) for name, field in fields.items()}
        return self._configs(defaults | passed)

    def signature(self) -> inspect.Signature:
        """Return the function's signature, with a keyword for each setting."""
        keyword = inspect.Parameter.KEYWORD_ONLY
        original = inspect.signature(self.function)
        parameters = [
            inspect.Parameter(
                name,
                keyword,
                default=inspect.Parameter.empty
                if self.required(field)
                else self.default(field),
                annotation=field.type,
            )
            for name, field in self.fields().items()
        ]
        parameters.append(
            inspect.Parameter(
                "flagfile", keyword, default=None, annotation=str | None
            )
        )
        extra = [
            p
            for p in original.parameters.values()
            if p.kind == keyword and p.name != "set_by_user"
        ]
        return original.replace(parameters=parameters + extra)


def command(
    *classes: type, **attributes: Any
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorate a function of settings to turn it into a program.

    The function then accepts keyword arguments named after the flags, and
    `flagfile`, a file with defaults for them; its `program` attribute is the
    command-line program.

    Args:
      *classes: dataclasses of `setting` fields.
      **attributes: other attributes of `Program`.
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        record = Program(function, classes, **attributes)
        signature = record.signature()
        settings = record.fields().keys()

        @functools.wraps(function)
        def call(*, flagfile=None, **values):
            values = record.with_flagfile(flagfile, values)
            names = signature.parameters.keys() - settings
            extra = {k: values.pop(k) for k in names & values.keys()}
            given = (k for k, value in values.items() if value is not None)
            extra |= record.set_by_user(given)
            return function(*record.configs(**values), **extra)

        call.program, call.__signature__ = record, signature
        return call

    return decorate
