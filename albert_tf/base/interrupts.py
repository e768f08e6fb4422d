"""Handle signals immediately.

Python runs signal handlers in the main thread, and only after C++ code returns.
A call to TensorFlow can take minutes, during which repeated signals are merged
into one. `seen_at_once` therefore watches for signals in another thread.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

STATUS = 130  # exit status of a program ended by Ctrl-C
TERMINATED = 143  # exit status of a program ended by SIGTERM


def end(*_: object) -> None:
    """Exit immediately with the message and status for Ctrl-C.

    The arguments are ignored, so the function can be a signal handler.
    """
    os.write(2, b"error: interrupted\n")
    os._exit(STATUS)


def in_main_thread() -> bool:
    """Return whether the current thread is the main thread."""
    return threading.current_thread() is threading.main_thread()


def _exit(number: int, frame: object) -> NoReturn:
    raise SystemExit(TERMINATED)


@contextlib.contextmanager
def handling(
    handler: Callable[[int, Any], object], *numbers: int
) -> Iterator[None]:
    """Handle signals while the block runs, if it runs in the main thread.

    Only the main thread can set handlers. Afterwards, the earlier handlers are
    restored, except handlers set in C, which Python cannot restore.
    """
    numbers = numbers if in_main_thread() else ()
    earlier = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in earlier.items():
            signal.signal(number, before or signal.SIG_DFL)


@contextlib.contextmanager
def cleaning_up() -> Iterator[None]:
    """Make SIGTERM raise `SystemExit` while the block runs.

    By default, SIGTERM ends a process without running its `finally` blocks. If
    the process has set a handler, that handler stays in place.
    """
    default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with handling(_exit, *[signal.SIGTERM] * default):
        yield


@contextlib.contextmanager
def seen_at_once(callback: Callable[[int], None]) -> Iterator[None]:
    """Call a function as soon as a signal arrives, while the block runs.

    The block must run in the main thread. If blocks are nested, the functions
    of the outer blocks are also called.

    Args:
      callback: a function that another thread calls with the number of each
        signal for which Python has a handler.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    outer = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        while number := reader.recv(1):
            callback(number[0])
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
