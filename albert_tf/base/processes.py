"""Work spread over processes, with results in order and bounded memory."""

import collections
import concurrent.futures
import contextlib
import gc
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import connection, forkserver
from typing import Any

# Items of each process that wait, are worked on, or are done out of turn.
WINDOW = 4


def available() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _context(module: str) -> multiprocessing.context.BaseContext:
    """Return a way to start processes that is safe where threads run.

    A server, which starts at once, imports a module; its children are forked
    there. They ignore Ctrl-C: the program that uses them ends them.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
    return context


@contextlib.contextmanager
def _main_left_out() -> Iterator[None]:
    """Let no process that starts in the body run the user's script again.

    Nothing of it is needed there, and what it calls without asking for its
    `__name__` would start processes once more.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _end_when_told(told: connection.Connection) -> None:
    """End this process when it is told to, or when its user ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ends = [told, multiprocessing.parent_process().sentinel]

    def watch():
        connection.wait(ends)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def in_order(
    submit: Callable[[Any], concurrent.futures.Future],
    items: Iterable[Any],
    most: int,
) -> Iterator[Any]:
    """Yield the results of items in order, with so many of them at a time."""
    waiting = collections.deque()
    for item in items:
        waiting.append(submit(item))
        if len(waiting) == most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


class Workers:
    """Processes that work through items; they start with the first.

    Args:
      number: of processes; one is this process, several are others.
      module: the name of one that imports all that they need.
    """

    def __init__(self, number: int, module: str):
        self.number = number
        if number > 1:
            context = _context(module)
            told, self._tell = context.Pipe(duplex=False)
            self._pool = concurrent.futures.ProcessPoolExecutor(
                number, context, _end_when_told, (told,)
            )

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        if self.number > 1:
            if kind is KeyboardInterrupt:
                self._tell.send(None)  # never read, so every process sees it
            self._pool.shutdown(cancel_futures=True)

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any]
    ) -> Iterator[Any]:
        """Yield `function(item)` for every item, in order.

        Args:
          function: can be pickled, like its argument and result; a function
            of a module, or a `functools.partial` of one.
          items: read only as far ahead as needed to keep the processes busy.
        """
        items = iter(items)
        first = list(itertools.islice(items, 2))
        items = itertools.chain(first, items)
        if self.number == 1 or len(first) < 2:
            yield from map(function, items)
            return

        def submit(item):
            with _main_left_out():
                return self._pool.submit(function, item)

        try:
            yield from in_order(submit, items, WINDOW * self.number)
        except concurrent.futures.process.BrokenProcessPool:
            raise ChildProcessError(
                "A process was killed, most likely for want of memory; run "
                "the same command again to go on, with a smaller "
                f"`num_processes`. Received: num_processes={self.number}"
            ) from None


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
