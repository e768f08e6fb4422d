"""What stands on the console when a program starts."""

import os
import subprocess
import sys

from albert_tf.base import program

LINES = """WARNING: All log messages before absl::InitializeLog() is called
I0000 00:00:1.2 3 cudart_stub.cc:31] Could not find cuda drivers
To enable the following instructions: AVX2 FMA, in other operations
E0000 00:00:1.2 3 cuda_platform.cc:52] failed call to cuInit: INTERNAL
E0000 00:00:1.2 3 gpu_device.cc:9] out of memory
a warning of another library
W0000 00:00:1.2 3 service.cc:1] a device is slow
"""
KEPT = LINES.splitlines(keepends=True)[4:]


def test_only_lines_about_the_start_are_dropped(capfd):
    """Errors and warnings come through, in order, also from C code."""
    with program.without_start_up_lines():
        os.write(2, LINES.encode())
    assert capfd.readouterr().err == "".join(KEPT)


def test_nothing_is_lost_when_the_start_fails(capfd):
    """What was written before an error is there, and stderr is itself."""
    try:
        with program.without_start_up_lines():
            os.write(2, LINES.encode())
            raise ImportError
    except ImportError:
        print("after", file=sys.stderr)
    assert capfd.readouterr().err == "".join(KEPT) + "after\n"


def test_tensorflow_starts_without_a_word():
    """A program that imports TensorFlow and asks for devices is quiet."""
    code = "from albert_tf.base import program; program.load('tensorflow')"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
