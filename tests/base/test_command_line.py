"""A program's keyword arguments behave like its flags."""

import collections
import dataclasses
import inspect
import os
import pathlib
import subprocess
import sys

import numpy as np
import programs
import pytest
from absl import flags

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.base.program import command
from albert_tf.base.settings import Validated, flagfile, setting
from albert_tf.data.table_sources import InMemoryTable, as_source


@dataclasses.dataclass(frozen=True)
class Kinds(Validated):
    """Settings of every type."""

    model_dir: str = setting("", "A folder.", required=True)
    steps: int | None = setting(None, "A number.", minimum=1)
    rate: float = setting(0.5, "A number.")
    depth: int = setting(4, "A number that the program leaves open.")
    policy: float | str = setting(
        "auto", "Either.", minimum=0, choices=["auto"]
    )
    train: bool = setting(False, "A switch.")
    header: bool | None = setting(None, "A switch or nothing.")
    names: tuple = setting((), "A list.")
    table: str | InMemoryTable | None = setting(None, "-", convert=as_source)
    text: str = setting("", "A text.", literal=True)


def collect(config, *, hooks=()):
    """Return the settings and the hooks that a program receives."""
    return config, hooks


program = command(
    Kinds,
    defaults={"rate": 2.0, "depth": None},
    aliases={"train_step": "steps"},
)(collect)


SCRIPT = """
import test_command_line as t
from albert_tf.base.program import Program
program = t.program.program
show = lambda *configs: print(t.collect(*configs))
Program(show, program.classes, None, program.defaults, program.aliases).cli()
"""


def run_script(*arguments):
    """Run the program that has the settings `Kinds`."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return programs.new("-c", SCRIPT, *arguments, env=environment)


def test_keywords_become_what_flags_would_be(tmp_path):
    """Keywords have the same types, defaults and aliases as flags."""
    config, hooks = program(
        model_dir=tmp_path,
        train_step=np.int64(3),
        names=["a", 2],
        policy=1,
        hooks=[1],
    )
    words = [f"--model_dir={tmp_path}", "--train_step=3", "--names=a,2"]
    done = run_script(*words, "--policy=1")
    assert done.stdout.strip() == repr((config, ())), done.stderr
    assert hooks == [1] and type(config.steps) is int and config.rate == 2.0


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("--noeither", False),
        ("--either", True),
        ("--either=false", False),
        ("--either=auto", "auto"),
    ],
)
def test_a_switch_may_take_a_word(word, value):
    """A setting can be True, False or `auto`, as a flag and as a keyword.

    Other keyword values raise an error.
    """

    @dataclasses.dataclass(frozen=True)
    class Either(Validated):
        either: bool | str = setting(True, "-", choices=(True, False, "auto"))

    switch = command(Either)(lambda config: config)
    with programs.temporary_flags():
        switch.program.define_flags()
        flags.FLAGS(["program", word])
        assert switch.program.from_flags() == [Either(value)]
    assert switch(either=value) == Either(value)
    for wrong, message in (("never", "one of True, False, auto"), (3, "word")):
        with pytest.raises(InputError, match=message):
            switch(either=wrong)


def test_home_is_found_in_every_path(monkeypatch):
    """In keywords and flags, `~/` at the start of a path is the home folder.

    The path may also follow a comma in a list of paths, and spaces. `~`
    elsewhere, and `~/` in a setting for texts, are unchanged.
    """
    monkeypatch.setenv("HOME", "/home/me")
    values = {
        "names": ["~/a,~/b", "~c", "a, ~/b"],
        "table": "x~/y,~/z",
        "text": "~/,~/",
    }
    config, _ = program(model_dir=pathlib.Path("~/m"), **values)
    assert (
        config.model_dir == "/home/me/m" and config.table == "x~/y,/home/me/z"
    )
    assert config.names == ("/home/me/a,/home/me/b", "~c", "a, /home/me/b")
    assert config.text == "~/,~/"
    with programs.temporary_flags():
        program.program.define_flags()
        flags.FLAGS(["program", "--model_dir=~/m", "--names=~/a,b"])
        (config,) = program.program.from_flags()
    assert (config.model_dir, config.names) == (
        "/home/me/m",
        ("/home/me/a", "b"),
    )


@pytest.mark.parametrize("path", ["~/m", "a, ~/m"])
def test_a_home_that_is_unknown_is_an_error(monkeypatch, path):
    """Without a home directory, `~/` does not name a folder called `~`."""
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(InputError, match=f"HOME. Received: table={path}"):
        program(model_dir="m", table=path)


@pytest.mark.parametrize(
    "values",
    [
        {"table": r"C:\Users\me"},
        {"table": "a,d:/b"},
        {"names": ["a", "c:/b"]},
        {"model_dir": "C:/m"},
    ],
)
def test_a_windows_path_is_an_error(values):
    """A Windows path is an error, because it would name a new folder.

    Texts, addresses and names with a colon are unchanged.
    """
    (name,) = values
    with pytest.raises(InputError, match=f"/mnt/c/.* Received: {name}="):
        program(**{"model_dir": "m"} | values)
    legal = {"table": "c:d", "text": "C:/", "names": ["gs://a", "x://b"]}
    config, _ = program(model_dir="m:0.5,n", **legal)
    assert (config.table, config.text) == ("c:d", "C:/")


def test_a_program_may_ask_what_was_given():
    """A program can receive the names of the settings that its caller passed.

    The caller may pass flags or keywords. For an alias, the program receives
    the name of the setting. None means that a setting is not set.
    """
    received = []

    def report(config, *, hooks=(), set_by_user=frozenset()):
        received.append(set_by_user)
        return set_by_user

    reporting = command(Kinds, aliases={"train_step": "steps"})(report)
    assert reporting(model_dir="m", train_step=3) == {"model_dir", "steps"}
    assert reporting(model_dir="m", train_step=None) == {"model_dir"}
    assert "set_by_user" not in inspect.signature(reporting).parameters
    with programs.temporary_flags():
        reporting.program.define_flags()
        flags.FLAGS(["program", "--model_dir=m", "--train_step=3"])
        reporting.program._execute()
    assert received[-1] == {"model_dir", "steps"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"modl_dir": "x"},
            "`collect` has no keyword `modl_dir`; did you mean `mode",
        ),
        ({"train_stp": 1}, "did you mean `train_step`?"),
        (
            {"verbose": 1},
            "`collect` has no keyword `verbose`. Received: verbose=1",
        ),
        ({}, "`model_dir` must be given."),
        ({"model_dir": ""}, "`model_dir` must be given."),
        ({"model_dir": None}, "`model_dir` must be given. Received: none"),
        ({"model_dir": 3}, "must be a string. Received: model_dir=3"),
        ({"steps": "3"}, "`steps` must be a whole number. Received: steps='3'"),
        ({"steps": True}, "steps=True"),
        ({"steps": 2.5}, "steps=2.5"),
        ({"steps": 0}, "`steps` must be at least 1"),
        ({"rate": "fast"}, "`rate` must be a number. Received: rate='fast'"),
        ({"rate": None}, "rate=None"),
        ({"rate": 10**400}, "`rate`: int too large to convert to float"),
        (
            {"policy": "3e-4"},
            "a number or one of auto. Received: policy='3e-4'",
        ),
        ({"policy": [1]}, "`policy` must be a number or a word. Received"),
        ({"train": 1}, "`train` must be True or False. Received: train=1"),
        ({"names": 3}, "`names` must be a list of strings. Received: names=3"),
        ({"names": [None]}, "names=[None]"),
        ({"names": b"ab"}, "names=b'ab'"),
        ({"names": '"a'}, "`names`: Unable to parse the value '\"a' as"),
        (
            {"steps": 1, "train_step": 2},
            "`steps` must be given only once, by one of its names. Rec",
        ),
        ({"table": 3}, "`table` must be a path, a pandas DataFrame"),
    ],
    ids=str,
)
def test_a_wrong_keyword_is_named(values, message):
    """The error for a wrong keyword states the rule and the received value."""
    base = {"model_dir": "m"} if values and "model_dir" not in values else {}
    with pytest.raises(InputError) as error:
        program(**base | values)
    assert message in str(error.value)


@pytest.mark.parametrize("keyword", ["model_dir", "steps", "texts"])
def test_the_error_for_a_wrong_keyword_is_short(keyword):
    """The error is one line, even if the value is a list or table of texts."""
    for value in (["a text"] * 999, np.ones([99, 9])):
        with pytest.raises(InputError) as error:
            program(**{"model_dir": "m", keyword: value})
        message = str(error.value)
        assert f"Received: {keyword}=" in message
        assert len(message) < 150 and "\n" not in message


def test_a_similar_flag_is_suggested():
    """An unknown flag is a one-line error, which names a flag with its words.

    Flags of absl, such as `--log_dir`, are not suggested.
    """
    for flag, hint in [
        ("--dir", "; did you mean `model_dir`?"),
        ("--nams=a", "; did you mean `names`?"),
        ("--log_di", "."),
    ]:
        found = run_script("--model_dir=x", flag)
        name = flag.partition("=")[0]
        wanted = f"error: There is no flag `{name}`{hint} `--help` lists the"
        assert found.stderr.splitlines()[-1] == f"{wanted} flags."
        assert (found.returncode, found.stdout) == (1, "")


def test_wrong_flags_are_one_line_errors():
    """Missing flags and flags with wrong values cause errors of one line."""
    lists = "`--help` lists the flags."
    for arguments, wanted in [
        ([], "`model_dir` must be given. Received: none"),
        (["data.csv"], "Unexpected arguments: data.csv"),
        (["--model_dir"], f"Missing value for flag --model_dir. {lists}"),
    ]:
        found = run_script(*arguments)
        assert found.stderr.splitlines()[-1].startswith(f"error: {wanted}")
        assert "FATAL" not in found.stderr
        assert (found.returncode, found.stdout) == (1, "")


def test_a_flagfile_is_utf_8(tmp_path):
    """A flagfile that is not UTF-8, as from a Windows shell, is rejected."""
    path = tmp_path / "run.flags"
    path.write_text("--steps=1\n", "utf-16")
    code = "from albert_tf.base.program import run; run(print)"
    ended = programs.new("-c", code, f"--flagfile={path}")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: A flagfile must be UTF-8: ")
    assert ended.returncode == 1 and not ended.stdout


def test_a_negated_flag_has_no_value(tmp_path):
    """A flag such as `--notrain=true` causes an error of one line."""
    flag = "--notrain=true"
    wrong = f"{flag} does not take an argument"
    ended = run_script("--model_dir=x", flag)
    line = ended.stderr.splitlines()[-1]
    assert line == f"error: {wrong}. `--help` lists the flags."
    assert (ended.returncode, ended.stdout) == (1, "")
    path = tmp_path / "run.flags"
    path.write_text(f"--model_dir=x\n{flag}\n", "utf-8")
    with pytest.raises(InputError, match=f"flags of this program.*{wrong}"):
        program(flagfile=str(path))


def test_a_reader_may_leave_early():
    """If a program's output pipe is closed early, the program prints no error.

    The exit status is 141, as is usual in shells.
    """
    code = (
        "from albert_tf.base import program\n"
        "def say(): print('x\\n' * 100000, 'y', sep='', flush=True)\n"
        "program.run(say)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 141


def test_a_text_is_the_list_that_the_flag_would_have():
    """A list setting accepts a string, which is split at commas as in a flag.

    An empty string means an empty list.
    """
    wanted = {"a, b": ("a", "b"), "": (), "a": ("a",)}
    for text, names in wanted.items():
        config, _ = program(model_dir="m", names=text, depth=None)
        assert config.names == names and config.depth is None


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (pathlib.Path("a,b"), ("a,b",)),
        ([pathlib.Path("a"), pathlib.Path("~/b")], ("a", "/home/me/b")),
        (collections.UserList(["a,b", 3]), ("a,b", "3")),
    ],
)
def test_a_list_may_be_of_paths(monkeypatch, paths, names):
    """A list setting accepts paths and any sequence, such as OmegaConf's list.

    Entries are not split at commas.
    """
    monkeypatch.setenv("HOME", "/home/me")
    config, _ = program(model_dir="m", names=paths, depth=None)
    assert config.names == names


def test_the_signature_has_the_settings():
    """A program's signature lists its settings, with defaults.

    `flagfile` and the function's own keywords follow.
    """
    parameters = inspect.signature(program).parameters
    settings = program.program.fields()
    assert [*parameters] == [*settings, "flagfile", "hooks"]
    assert parameters["rate"].default == 2.0
    assert parameters["model_dir"].default is inspect.Parameter.empty


@pytest.mark.parametrize(
    "first", ["--text=b", "# text\n--text=b", "\n--text=b"]
)
def test_a_flagfile_may_begin_with_a_byte_order_mark(tmp_path, first):
    """A byte-order mark at the start of a flagfile is ignored.

    Some Windows editors write such a mark.
    """
    path = tmp_path / "run.flags"
    path.write_text(f"{first}\n", "utf-8-sig")
    ended = run_script("--model_dir=m", f"--flagfile={path}")
    assert "text='b'" in ended.stdout and not ended.stderr


def test_a_setting_has_one_home():
    """Two settings classes of a program must not declare the same name."""
    with pytest.raises(InputError, match="declared only once.*`model_dir`"):
        command(Kinds, Kinds)(collect)


def test_the_last_value_of_a_flag_counts(tmp_path):
    """If a flag occurs twice, also in a flagfile, the last value counts.

    `--help` states this rule, because a flagfile contains the output folder.
    """
    path = tmp_path / "run.flags"
    path.write_text("--model_dir=m\n--steps=3\n")
    file = f"--flagfile={path}"
    assert "steps=5" in run_script(file, "--steps=4", "--steps=5").stdout
    assert "steps=3" in run_script("--steps=5", file).stdout
    assert "the last value counts" in " ".join(
        run_script("--help").stdout.split()
    )


def test_a_flagfile_in_python(tmp_path):
    """Keywords take precedence over the lines of `flagfile`.

    A keyword that is None is not set. Settings in the file count as set by the
    user.
    """
    path = tmp_path / "run.flags"
    lines = "# a comment", "--steps=3", "--names=a,b", "--notrain", "--rate=1"
    path.write_text("\n".join(lines))
    how = {"flagfile": str(path), "model_dir": "m"}
    config, hooks = program(**how, rate=0.25, names=None, hooks=[1])
    wanted = Kinds("m", steps=3, rate=0.25, depth=None, names=("a", "b"))
    assert (config, hooks) == (wanted, [1])
    assert program(**how, train_step=5)[0].steps == 5

    @command(Kinds)
    def reporting(config, *, set_by_user):
        return set_by_user

    names = {"steps", "names", "train", "rate", "model_dir"}
    assert reporting(**how) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--typo=3", "Unknown command line flag 'typo'"),
        ("--steps=x", "steps"),
        ("words", "run.flags: words$"),
        ("--steps=0", "`steps` must be at least 1"),
    ],
)
def test_a_wrong_flagfile_in_python(tmp_path, text, message):
    """A line that is not a flag of the program is an error in Python too."""
    path = tmp_path / "run.flags"
    path.write_text(text)
    for file, rule in ((path, message), (f"{path}.txt", "run.flags.txt$")):
        with pytest.raises(InputError, match=rule):
            program(model_dir="m", flagfile=file)


def test_a_flagfile_says_what_it_cannot(tmp_path):
    """In a flagfile, values that no flag can express become comments."""
    table = as_source("table", {"a": [1]})
    config = Kinds(model_dir="m", table=table, names=("a", "b"), train=True)
    lines = flagfile(config).splitlines()
    assert "# --table=table (dict)" in lines
    assert {"--model_dir=m", "--names=a,b", "--train=True"} <= set(lines)
    for value in ("a ", "a\n", "a\nb", "a\x1d", "a\rb", "\udcff"):
        text = flagfile(Kinds(model_dir="m", text=value))
        assert f"\n# --text={value!r}\n" in text
    for names in (("a ",), (" a", "b"), ("a\nb",)):
        text = flagfile(Kinds(model_dir="m", names=names))
        assert f"\n# --names={names!r}\n" in text


@pytest.mark.parametrize(
    "names", [("yes, sir", "no"), ('"a" b', "c"), ("",), ()], ids=str
)
def test_a_flagfile_replays_lists(names):
    """A flagfile restores lists, even with empty entries, commas or quotes."""
    lines = flagfile(Kinds(model_dir="m", names=names)).splitlines()
    (flag,) = (x[8:] for x in lines if x.startswith("--names="))
    assert tuple(flags.ListParser().parse(flag)) == names


@pytest.mark.parametrize("name", ["pretrain", "finetune"])
def test_hooks_must_be_hooks(name):
    """A hook that is a class or an unrelated object raises an error."""
    values = {"albert_config_file": "x", "data_dir": "x"}
    if name == "finetune":
        values = {"model_dir": "x", "do_train": True}
    with pytest.raises(InputError, match="`hooks` must be .*hooks=Hook, int"):
        getattr(albert_tf, name)(
            output_dir="y", hooks=[albert_tf.Hook, 3], **values
        )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_names_that_the_console_cannot_print(encoding):
    """Names that the console cannot print are escaped in output and errors."""
    name = "a é 文 \udce9"
    code = (
        "from albert_tf.base import program\n"
        "from albert_tf.base.errors import InputError\n"
        "def main():\n"
        f"    print({name!r})\n"
        f"    raise InputError({name!r})\n"
        "program.run(main)"
    )
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    ended = programs.new("-c", code, text=False, env=environment)
    printed = name.encode(encoding, "backslashreplace")
    assert ended.stdout == printed + b"\n" and ended.returncode == 1
    assert ended.stderr == b"error: " + printed + b"\n"
