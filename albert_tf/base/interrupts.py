"""Signals, seen as soon as they come.

Python runs its handlers in the main thread, once that is back from C++. In
TensorFlow that may take minutes, in which several signals become one.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

STATUS = 130  # what a shell calls a program that Ctrl-C ended


def end(stderr: int = 2) -> None:
    """End this process at once, as Ctrl-C ends a command: with one line.

    Args:
      stderr: the file descriptor to write to.
    """
    os.write(stderr, b"error: interrupted\n")
    os._exit(STATUS)


def in_main_thread() -> bool:
    """Return whether Python lets this thread handle signals."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def seen_at_once(see: Callable[[int], None]) -> Iterator[None]:
    """Call a function for each signal that the process gets in the body.

    The body must run in the main thread. Blocks nest: the outer functions are
    called too.

    Args:
      see: called in another thread with the number of each signal that has a
        handler in Python.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    outer = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        while number := reader.recv(1):
            see(number[0])
            if outer >= 0:
                with contextlib.suppress(OSError):
                    os.write(outer, number)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(outer)
        writer.close()
        thread.join()
        reader.close()
