"""How a program starts: with its own lines on the console, and no others.

TensorFlow's C++ code logs while it is imported and when it first looks for
devices, straight to the file descriptor, whatever Python's loggers and
`TF_CPP_MIN_LOG_LEVEL` say. So a command imports its room like this:

    with program.quiet_start():
        from albert_tf.serving.exporting import ExportConfig, export
"""

import contextlib
import gc
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator

from albert_tf.base import interrupts

# Read when TensorFlow is first imported; a user's values win. On AMD
# processors oneDNN is off by default, and a training step a fifth slower.
ENVIRONMENT = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}

# Lines about the machine: that logging begins, information, what the
# processor could do, and that a GPU was looked for and not found. They begin
# with a letter and four zeros, or with a date and a letter.
START_UP = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|To enable the following instructions:"
    rb"|INFO: Created TensorFlow Lite XNNPACK delegate"
    rb"|(I0000|\d{4}-\d\d-\d\d \S+: I) "
    rb"|([EW]0000|\d{4}-\d\d-\d\d \S+: [EW]) .*(failed call to cuInit"
    rb"|Could not find cuda drivers|Unable to register cu\w+ factory"
    rb"|oneDNN supports DT_INT64 only)"
)


def without_start_up_lines(stderr: bytes) -> bytes:
    """Return what else was written than TensorFlow's start-up lines."""
    lines = stderr.splitlines(keepends=True)
    return b"".join(line for line in lines if not START_UP.match(line))


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Look for no cycles in the body, which makes many objects that stay.

    A quarter of TensorFlow's import is such looking.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# Scripts beside the package.
SCRIPTS = {"create_pretraining_data", "pretrain", "finetune"}


def is_command() -> bool:
    """Return whether this process runs one of the package's commands."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec:  # python -m
        return spec.name.startswith("albert_tf.")
    name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    return name in SCRIPTS or name.startswith("albert-")


@contextlib.contextmanager
def _ended_by_interrupt(stderr: int) -> Iterator[None]:
    """Let Ctrl-C end a command with one line while the body imports.

    Some libraries catch or print a `KeyboardInterrupt` during their import.

    Args:
      stderr: the file descriptor to write to.
    """

    def end(*_: object) -> None:
        interrupts.end(stderr)

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not (usual and interrupts.in_main_thread() and is_command()):
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Import TensorFlow, and let it look for devices, without those lines.

    All else that is written to stderr comes when the body ends. Ctrl-C ends
    a command at once.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            with _ended_by_interrupt(stderr):
                with without_collection():
                    yield
                if tensorflow := sys.modules.get("tensorflow"):
                    tensorflow.config.list_physical_devices()
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            kept.seek(0)
            os.write(2, without_start_up_lines(kept.read()))
