"""The start and end of programs."""

import gc
import os
import signal
import subprocess
import sys
from unittest import mock

import pytest

from albert_tf.base import processes, program


def test_messages_of_libraries_are_there_at_once(capfd):
    """Standard error is not redirected, so crashes in imports are visible."""
    with program.quiet_start():
        os.write(2, b"a library\n")
        assert capfd.readouterr().err == "a library\n"


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
    """At exit, no objects are left for the garbage collector."""
    code = (
        "import atexit, gc\n"
        "atexit.register(lambda: print(len(gc.get_objects())))\n"
        "from albert_tf.base import program\n"
        "program.run(lambda: None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert int(done.stdout) < 100, done


def test_a_users_environment_wins(monkeypatch):
    """A program keeps TensorFlow variables that the user has set."""
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    with program.quiet_start():
        assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1"
        assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"


# Imitates a library whose import is slow and swallows exceptions.
SLOW_LIBRARY = """
import os, time
os.write(1, b"importing\\n")
try:
    time.sleep(60)
except BaseException:
    pass
time.sleep(60)
"""
IN_PYTHON = """
try:
    import albert_tf
    albert_tf.{}
except KeyboardInterrupt:
    print("caught")
"""


def _interrupted(folder, library, arguments):
    """Return a process that Ctrl-C ended during an import, and its output."""
    (folder / library).mkdir()
    (folder / library / "__init__.py").write_text(SLOW_LIBRARY)
    places = os.pathsep.join([str(folder), os.getcwd()])
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": places},
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
    """Ctrl-C also ends installed commands with status 130."""
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


def test_an_interrupt_of_an_import_reaches_a_users_program(tmp_path):
    """In user code, Ctrl-C during an import raises KeyboardInterrupt."""
    library = "import os\nos.kill(os.getpid(), 2)\n"
    (tmp_path / "tensorflow.py").write_text(library)
    done = subprocess.run(
        [sys.executable, "-c", IN_PYTHON.format("export")],
        capture_output=True,
        text=True,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])},
    )
    assert (done.stdout, done.stderr) == ("caught\n", "")
