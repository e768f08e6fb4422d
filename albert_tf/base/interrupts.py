"""Handle signals immediately.

Python runs signal handlers in the main thread, and only after C++ code returns.
A call to TensorFlow can take minutes, during which repeated signals are merged
into one. `seen_at_once` therefore watches for signals in another thread.
"""

import contextlib
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

STATUS = 130  # exit status of a program ended by Ctrl-C


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
    raise SystemExit(128 + number)


def _heeded(numbers: Iterable[int]) -> list[int]:
    """Return the signals that this process does not ignore.

    A script's background job ignores Ctrl-C, and `nohup` makes a program ignore
    SIGHUP. SIGTERM is always included, because TensorFlow ignores it while it
    connects workers, and does not restore the earlier handler.
    """
    return [
        number
        for number in numbers
        if number == signal.SIGTERM
        or signal.getsignal(number) != signal.SIG_IGN
    ]


def _leave_terminal() -> None:
    """Discard further output to a terminal; writing to a closed one fails."""
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                devnull = os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, stream)
                os.close(devnull)


@contextlib.contextmanager
def handling(
    handler: Callable[[int, Any], object], *numbers: int
) -> Iterator[None]:
    """Handle signals while the block runs, if it runs in the main thread.

    Only the main thread can set handlers. Signals that the process ignores stay
    ignored. Afterwards, the earlier handlers are restored, except handlers set
    in C, which Python cannot restore.
    """

    def handle(number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            _leave_terminal()
        handler(number, frame)

    numbers = _heeded(numbers) if in_main_thread() else ()
    earlier = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, before in earlier.items():
            signal.signal(number, before or signal.SIG_DFL)


@contextlib.contextmanager
def cleaning_up() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise `SystemExit` while the block runs.

    By default, they end a process without running its `finally` blocks. If the
    process has set a handler, that handler stays in place.
    """
    numbers = (signal.SIGTERM, signal.SIGHUP)
    default = (n for n in numbers if signal.getsignal(n) == signal.SIG_DFL)
    with handling(_exit, *default):
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
            if number[0] == signal.SIGHUP:
                _leave_terminal()
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
