"""Python functions that the threads of an input pipeline call.

A thread that waits for Python while the interpreter shuts down never returns.
If its pipeline is destroyed then, the process hangs.
"""

import atexit
import threading
import time
import weakref
from collections.abc import Callable

# After so long without a call, the buffers of a pipeline are full.
QUIET_SECONDS = 0.1


class Called:
    """A function that pipelines call; the interpreter waits for quiet."""

    def __init__(self, function: Callable):
        self.function = function
        self.running: set[int] = set()  # threads
        self.last_call = 0.0
        atexit.register(_wait, weakref.ref(self))

    def __call__(self, *args):
        """Call the function."""
        thread = threading.get_ident()
        self.running.add(thread)
        try:
            return self.function(*args)
        finally:
            self.last_call = time.monotonic()
            self.running.discard(thread)

    def is_quiet(self) -> bool:
        """Return whether no pipeline calls the function any more."""
        quiet = time.monotonic() - self.last_call > QUIET_SECONDS
        return quiet and not self.running


def _wait(reference: "weakref.ref[Called]") -> None:
    while (called := reference()) and not called.is_quiet():
        time.sleep(QUIET_SECONDS / 10)
