"""Parallel work in processes, with ordered results and bounded memory."""

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
from multiprocessing import connection, forkserver, resource_tracker
from typing import Any

# Maximum number of items per process that are queued, running, or finished out
# of order.
WINDOW = 4


def available() -> int:
    """Return the number of CPUs available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _context(module: str) -> multiprocessing.context.BaseContext:
    """Return a context that can start processes safely while threads run.

    A fork server starts immediately and imports the module; workers are forked
    from this server. The server and the workers ignore Ctrl-C, because the
    parent process ends them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    # When this process starts, some versions of Python unblock SIGINT.
    resource_tracker.ensure_running()
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
    return context


@contextlib.contextmanager
def _main_left_out() -> Iterator[None]:
    """Prevent processes started in the block from importing the user's script.

    Workers do not need the script, and a script without a guard on `__name__`
    would start more processes.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _exit_on_message(receiver: connection.Connection) -> None:
    """Exit this process when a message arrives or the parent process exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ends = [receiver, multiprocessing.parent_process().sentinel]

    def watch():
        connection.wait(ends)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def in_order(
    submit: Callable[[Any], concurrent.futures.Future],
    items: Iterable[Any],
    limit: int,
) -> Iterator[Any]:
    """Yield the results of submitted items in order.

    Args:
      submit: a function that starts the computation for an item.
      items: the items, which are read one at a time as needed.
      limit: maximum number of submitted items with results that have not been
        yielded.
    """
    waiting = collections.deque()
    for item in items:
        waiting.append(submit(item))
        if len(waiting) == limit:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


class Workers:
    """Worker processes, started when the first item arrives.

    Args:
      number: number of processes; with 1, this process processes all items.
      module: name of a module whose import loads all code that the workers
        need.
    """

    def __init__(self, number: int, module: str):
        self.number = number
        if number > 1:
            context = _context(module)
            # This process starts as soon as the server has imported the module.
            self._first = context.Process(target=int)
            receiver, self._sender = context.Pipe(duplex=False)
            self._pool = concurrent.futures.ProcessPoolExecutor(
                number, context, _exit_on_message, (receiver,)
            )

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        if self.number > 1:
            if kind is KeyboardInterrupt:
                self._sender.send(None)  # unread, so every worker sees it
            self._pool.shutdown(cancel_futures=True)

    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any]
    ) -> Iterator[Any]:
        """Yield `function(item)` for every item, in order.

        Args:
          function: a module-level function, or a `functools.partial` of such a
            function. The function, its argument and its result must be
            picklable.
          items: the arguments, read just far enough ahead to keep the workers
            busy.

        Raises:
          ChildProcessError: if a worker process was killed.
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

        # If the server is still importing the module when Ctrl-C ends this
        # process, workers start too late and print errors.
        if not self._first.pid:
            with _main_left_out():
                self._first.start()
        try:
            yield from in_order(submit, items, WINDOW * self.number)
        except concurrent.futures.process.BrokenProcessPool:
            raise ChildProcessError(
                "A worker process was killed, most likely because memory ran "
                "out; run the same command again with a smaller "
                "`num_processes` to continue. Received: "
                f"num_processes={self.number}"
            ) from None


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Suspend garbage collection while a block creates long-lived objects.

    Garbage collection accounts for a quarter of TensorFlow's import time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
