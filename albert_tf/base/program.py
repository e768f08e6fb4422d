"""How a program starts: with its own lines on the console, and no others.

TensorFlow's C++ code logs while it is imported and when it first looks for
devices, straight to the file descriptor, whatever Python's loggers and
`TF_CPP_MIN_LOG_LEVEL` say. A program therefore lies in two files: what it does,
and a command that imports this by name.
"""

import contextlib
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

# Read when TensorFlow is first imported; a user's values win. On AMD
# processors oneDNN is off by default, and a training step a fifth slower.
ENVIRONMENT = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}

# Lines about the start itself: that logging begins, information, what the
# processor could do, and that a GPU was looked for and not found.
START_UP = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|I0000 |To enable the following instructions:"
    rb"|[EW]0000 .*(failed call to cuInit|Could not find cuda drivers"
    rb"|Unable to register cu\w+ factory)"
)


@contextlib.contextmanager
def without_start_up_lines() -> Iterator[None]:
    """Keep back what is written to stderr; then write all but such lines."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            kept.seek(0)
            lines = [line for line in kept if not START_UP.match(line)]
            os.write(2, b"".join(lines))


def load(module: str):
    """Import a program's module, with a quiet TensorFlow if it needs one."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with without_start_up_lines():
        loaded = importlib.import_module(module)
        if tensorflow := sys.modules.get("tensorflow"):
            tensorflow.config.list_physical_devices()
    return loaded


def run(module: str) -> None:
    """Run the command line of a module of this package, its `cli`."""
    load(f"albert_tf.{module}").cli()
