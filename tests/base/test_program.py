"""How programs start and end: messages, signals and exit status."""

import dataclasses
import gc
import os
import signal
import subprocess
import sys
import types
from unittest import mock

import programs
import pytest

from albert_tf.base import processes, program
from albert_tf.base.errors import InputError
from albert_tf.base.settings import Validated, setting


@pytest.mark.parametrize("enabled", [True, False])
def test_collector_rests_while_libraries_are_imported(enabled):
    """Garbage collection is off during imports, and restored afterwards."""
    (gc.enable if enabled else gc.disable)()
    try:
        with program.quiet_start():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
        with pytest.raises(ImportError), processes.without_collection():
            raise ImportError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_nothing_is_collected_at_the_end():
    """At exit, the garbage collector tracks fewer than 100 objects."""
    code = (
        "import atexit, gc\n"
        "atexit.register(lambda: print(len(gc.get_objects())))\n"
        "from albert_tf.base import program\n"
        "program.run(lambda: None)"
    )
    assert int(programs.fresh("-c", code)) < 100


def test_a_users_environment_wins(monkeypatch):
    """A program does not override environment variables that the user set."""
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    with program.quiet_start():
        assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1"
        assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"


# Imitates a library whose import is slow and swallows exceptions. Python runs a
# handler only after a call of `sleep` if the signal arrives just before it.
SLOW_LIBRARY = """
import os, time
def wait():
    for _ in range(600):
        time.sleep(0.1)
os.write(1, b"importing\\n")
try:
    wait()
except BaseException:
    pass
wait()
"""
IN_PYTHON = """
try:
    import albert_tf
    albert_tf.{}
except KeyboardInterrupt:
    print("caught")
"""


def _interrupted(folder, library, arguments):
    """Return a process that Ctrl-C ended during an import, with its output.

    The output consists of two strings, `stdout` and `stderr`.
    """
    (folder / library).mkdir()
    (folder / library / "__init__.py").write_text(SLOW_LIBRARY)
    paths = os.pathsep.join([str(folder), os.getcwd()])
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    return process, *process.communicate(timeout=30)


@pytest.mark.parametrize(
    "library, arguments",
    [
        ("tensorflow", ["pretrain.py"]),
        ("tensorflow", ["finetune.py"]),
        ("tensorflow", ["-m", "albert_tf.export"]),
        ("numpy", ["create_pretraining_data.py"]),
        ("sentencepiece", ["-m", "albert_tf.train_tokenizer"]),
        ("numpy", ["-m", "albert_tf.inspect_records"]),
    ],
)
def test_an_interrupt_of_the_start_is_one_line(tmp_path, library, arguments):
    """Ctrl-C during a command's imports ends it immediately with status 130."""
    process, _, stderr = _interrupted(tmp_path, library, arguments)
    assert (process.returncode, stderr) == (130, "error: interrupted\n")


def test_an_installed_command_is_one_too(tmp_path):
    """Ctrl-C during an installed command's imports ends it with status 130."""
    script = tmp_path / "albert-export"
    script.write_text("from albert_tf.export import cli\ncli()\n")
    process, _, stderr = _interrupted(tmp_path, "tensorflow", [str(script)])
    assert (process.returncode, stderr) == (130, "error: interrupted\n")


def test_an_interrupt_of_the_parsing_of_flags_is_one_line(capsys):
    """Ctrl-C during the parsing of flags ends a command with status 130."""
    interrupted = mock.patch.object(
        program, "_parse", side_effect=KeyboardInterrupt
    )
    with interrupted, pytest.raises(SystemExit) as ended:
        program.run(lambda: None)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_only_interrupts_are_counted(monkeypatch):
    """The second Ctrl-C ends a program, even after other signals."""
    ends = []
    monkeypatch.setattr(program.interrupts, "end", lambda: ends.append(1))
    handle = program._end_at_second_interrupt()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        handle(number)
    assert not ends
    handle(signal.SIGINT)
    assert ends == [1]


@dataclasses.dataclass(frozen=True)
class Words(Validated):
    """Settings that consist of a list with a default."""

    words: tuple = setting(("x", "y"), "Words.")


@pytest.fixture
def started(monkeypatch):
    """Return a function that runs a program with arguments.

    The function returns the exit status and, if the program ran, its words.
    """

    def start(*arguments, positional=None, error=None):
        found = []

        def main(config):
            found.append(config.words)
            if error:
                raise error

        record = program.Program(main, (Words,), positional)
        monkeypatch.setattr(sys, "argv", ["program", *arguments])
        with programs.temporary_flags(), pytest.raises(SystemExit) as ended:
            record.cli()
        return ended.value.code, *found

    return start


def test_a_flag_may_take_the_arguments_without_a_name(started, capsys):
    """Arguments without a flag name set a program's positional list, if any.

    Without such arguments, the list keeps its default. If the list's flag is
    given as well, or if the program has no positional list, an error is raised.
    """
    assert started() == (0, ("x", "y"))
    assert started("--words=a") == (0, ("a",))
    assert started("a", "b", positional="words") == (0, ("a", "b"))
    assert started(positional="words") == (0, ("x", "y"))
    assert capsys.readouterr().err == ""
    for positional, more in (("words", ["--words=c"]), (None, [])):
        assert started("a", "b", *more, positional=positional) == (1,)
        message = "error: Unexpected arguments: a b\n"
        assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (InputError("`n` must be 1."), 1, "`n` must be 1."),
        (OSError("no such file"), 1, "no such file"),
        (UnicodeDecodeError("utf-8", b"a", 0, 1, "odd"), 1, "'utf-8' codec"),
        (MemoryError(), 1, "Memory ran out.\n"),
        (MemoryError("Unable to allocate"), 1, "Unable to allocate\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_an_error_of_the_user_is_a_line(error, status, text, started, capsys):
    """A user's mistake, a lack of memory or Ctrl-C is reported on one line.

    The exit status is 130 for Ctrl-C, and otherwise 1.
    """
    assert started(error=error) == (status, ("x", "y"))
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {text}") and printed.count("\n") == 1


def test_an_error_does_not_control_the_terminal(started, capsys):
    """Control characters in names from a file are printed as escapes."""
    started(error=InputError("a\x1b[31m\0\x9b\r\tü\nb"))
    printed = capsys.readouterr().err
    assert printed == "error: a\\x1b[31m\\x00\\x9b\\r\tü\nb\n"


WITHOUT_STREAMS = """
import os, sys
from albert_tf.base import program
def main():
    assert not sys.stderr.isatty()
    file = os.open("file", os.O_CREAT | os.O_WRONLY)
    os.write(2, b"printed by a library")
    os.write(file, b"content")
program.run(main)
"""


@pytest.mark.parametrize("closed", ["2", "012"])
def test_a_program_runs_without_standard_streams(closed, tmp_path):
    """If streams are closed, the output of libraries never goes to a file."""
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_STREAMS],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        preexec_fn=lambda: [os.close(int(number)) for number in closed],
    )
    assert process.wait() == 0
    assert (tmp_path / "file").read_text() == "content"


WITH_OUTPUT = """
from albert_tf.base import program
program.run(lambda: print("done"), prepare=lambda: "Do the work.")
"""


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_output_that_nobody_reads_is_no_error(arguments):
    """If the reader of the output ends, as with `| head`, so does a program.

    The program prints no error, and ends with the status of a closed pipe.
    """
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [sys.executable, "-u", "-c", WITH_OUTPUT, *arguments],
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    assert (process.returncode, process.stderr) == (program.UNREAD, b"")


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_output_that_cannot_be_written_is_a_line(arguments):
    """If the output cannot be written, a program prints one line."""
    with open(os.devnull, "rb") as unwritable:
        done = subprocess.run(
            [sys.executable, "-u", "-c", WITH_OUTPUT, *arguments],
            env=os.environ | {"PYTHONPATH": os.getcwd()},
            stdout=unwritable,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 1 and done.stderr.startswith(b"error: [Errno")
    assert done.stderr.count(b"\n") == 1


def test_a_mistake_in_the_code_is_not_hidden(started):
    """An exception that reveals a mistake in the code is raised unchanged."""
    with pytest.raises(ZeroDivisionError):
        started(error=ZeroDivisionError())


def test_flags_that_cannot_be_parsed_end_a_program(capsys):
    """Missing flagfiles and removed flags are errors with status 1."""
    for flag, message in (
        ("--flagfile=/none", "/none"),
        ("--layer_decay=0.5", "error: `layer_decay` was removed"),
    ):
        with pytest.raises(SystemExit) as ended:
            program._parse(["program", flag])
        assert ended.value.code == 1
        printed = capsys.readouterr()
        assert message in printed.out + printed.err


@pytest.mark.parametrize("script", ["Use it so.", None])
def test_help_begins_with_the_purpose(script, monkeypatch):
    """The docstring of the script, or else of the function, begins the help."""

    def run(config):
        """Do the work.

        Args:
          config: the settings.
        """

    record = program.Program(run, (Words,))
    main = types.ModuleType("__main__", script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    with programs.temporary_flags():
        page = record._prepare()
    assert page.partition("\n\n")[0] == (script or "Do the work.")


@pytest.mark.parametrize("name", ["finetune.py", "mine.py"])
def test_an_interrupt_of_an_import_reaches_a_users_program(tmp_path, name):
    """In user code, Ctrl-C during an import raises KeyboardInterrupt.

    The user's script may have the name of one of our scripts.
    """
    library = "import os\nos.kill(os.getpid(), 2)\n"
    (tmp_path / "tensorflow.py").write_text(library)
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    (tmp_path / name).write_text(IN_PYTHON.format("export"))
    done = programs.new(
        str(tmp_path / name), env=os.environ | {"PYTHONPATH": path}
    )
    assert (done.stdout, done.stderr) == ("caught\n", "")
