"""What a program writes and does when it starts, and when it ends."""

import gc
import os
import signal
import subprocess
import sys

import pytest

from albert_tf.base import program

LINES = """WARNING: All log messages before absl::InitializeLog() is called
I0000 00:00:1.2 3 cudart_stub.cc:31] Could not find cuda drivers
To enable the following instructions: AVX2 FMA, in other operations
E0000 00:00:1.2 3 cuda_platform.cc:52] failed call to cuInit: INTERNAL
2026-11-23 20:15:55.8: I cpu_feature_guard.cc:210] This TensorFlow binary is
2026-11-23 20:15:55.8: E cuda_platform.cc:51] failed call to cuInit: INTERNAL
E0000 00:00:1.2 3 gpu_device.cc:9] out of memory
a warning of another library
W0000 00:00:1.2 3 service.cc:1] a device is slow
2026-11-23 20:15:55.8: E gpu_device.cc:9] out of memory
"""
KEPT = "".join(LINES.splitlines(keepends=True)[6:])


def test_only_lines_about_the_start_are_dropped(capfd):
    """Errors and warnings come through, in order, also from C code."""
    with program.quiet_start():
        os.write(2, LINES.encode())
    assert capfd.readouterr().err == KEPT


def test_nothing_is_lost_when_the_start_fails(capfd):
    """What was written before an error is there, and stderr is itself."""
    with pytest.raises(ImportError), program.quiet_start():
        os.write(2, LINES.encode())
        raise ImportError
    print("after", file=sys.stderr)
    assert capfd.readouterr().err == KEPT + "after\n"


@pytest.mark.parametrize("enabled", [True, False])
def test_collector_rests_while_libraries_are_imported(enabled):
    """It is as before afterwards, also after an error."""
    (gc.enable if enabled else gc.disable)()
    try:
        with program.quiet_start():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
        with pytest.raises(ImportError), program.without_collection():
            raise ImportError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_nothing_is_collected_at_the_end():
    """All objects are then out of the collector's sight."""
    code = (
        "import atexit, gc\n"
        "atexit.register(lambda: print(len(gc.get_objects())))\n"
        "from albert_tf.base import command_line\n"
        "command_line.run(lambda: None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert int(done.stdout) < 100, done


@pytest.mark.parametrize(
    "command",
    ["export", pytest.param("describe", marks=pytest.mark.slow)],
)
def test_programs_start_without_a_word(command):
    """Where a program stops at its flags, its own line is the only one."""
    result = subprocess.run(
        [sys.executable, "-m", f"albert_tf.{command}", "--unknown=1"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert "0000" not in result.stderr and "WARNING" not in result.stderr
    assert result.stderr.startswith("FATAL Flags parsing error")


def test_a_users_environment_wins(monkeypatch):
    """What a program sets for TensorFlow is set where a user did not."""
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    with program.quiet_start():
        assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1"
        assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"


# A stand-in for a library whose import is slow and swallows exceptions.
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
    """Return a process that Ctrl-C ended while it imported a library."""
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
    """Ctrl-C while a command imports ends it at once, with 130 and no trace."""
    process, _, stderr = _interrupted(tmp_path, library, arguments)
    assert (process.returncode, stderr) == (130, "error: interrupted\n")


def test_an_installed_command_is_one_too(tmp_path):
    """The scripts that pip installs end like the others."""
    script = tmp_path / "albert-export"
    script.write_text("from albert_tf.export import cli\ncli()\n")
    process, _, stderr = _interrupted(tmp_path, "tensorflow", [str(script)])
    assert (process.returncode, stderr) == (130, "error: interrupted\n")


def test_an_interrupt_of_an_import_reaches_a_users_program(tmp_path):
    """A user's own program gets the exception that Python raises."""
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
