"""How a program starts.

A command imports its room like this:

    with program.quiet_start():
        from albert_tf.serving.exporting import ExportConfig, export
"""

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator

from albert_tf.base import interrupts

# Read when TensorFlow is first imported; a user's values win. On AMD
# processors oneDNN is off by default, and a training step a fifth slower.
ENVIRONMENT = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


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
def _ended_by_interrupt() -> Iterator[None]:
    """Let Ctrl-C end a command with one line while the body imports.

    Some libraries catch or print a `KeyboardInterrupt` during their import.
    """

    def end(*_: object) -> None:
        interrupts.end()

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
    """Import libraries in the body with fewer messages, and faster.

    Ctrl-C ends a command at once.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with _ended_by_interrupt(), without_collection():
        yield
