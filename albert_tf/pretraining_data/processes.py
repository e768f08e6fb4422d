"""Work spread over processes, with results in order and bounded memory."""

import collections
import concurrent.futures
import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def available() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _context() -> multiprocessing.context.BaseContext:
    """Return a way to start processes that is safe after TensorFlow ran.

    The server imports TensorFlow once; its children are forked from there.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["albert_tf.pretraining_data.build"])
    return context


def _done(function: Callable, item) -> concurrent.futures.Future:
    """Return what came of an item, an error too, to be met in its turn."""
    future = concurrent.futures.Future()
    try:
        future.set_result(function(item))
    except Exception as error:
        future.set_exception(error)
    return future


def _work(
    function: Callable, items: Iterator, pool, most: int, starting
) -> Iterator:
    """Yield the results in order; this process works while it would wait.

    Args:
      function: what is done.
      items: the arguments.
      pool: the other processes.
      most: items that the pool has at a time; twice as many may wait.
      starting: a thread that ends when the pool is ready.
    """
    waiting = collections.deque()
    while True:
        if not starting.is_alive():
            given = sum(not future.done() for future in waiting)
            for item in itertools.islice(items, most - given):
                waiting.append(pool.submit(function, item))
        ready = waiting and waiting[0].done()
        own = ()
        if not ready and len(waiting) < 2 * most:
            own = tuple(itertools.islice(items, 1))
        if own:
            waiting.append(_done(function, *own))
        elif waiting:
            yield waiting.popleft().result()
        else:
            return


def ordered_map(
    function: Callable[[Any], Any], items: Iterable[Any], num_processes: int
) -> Iterator[Any]:
    """Yield `function(item)` for every item, in order.

    Args:
      function: can be pickled, like its argument and result.
      items: read only as far ahead as needed to keep the processes busy.
      num_processes: including this one.
    """
    items = iter(items)
    first = list(itertools.islice(items, 2))
    items = itertools.chain(first, items)
    if num_processes == 1 or len(first) < 2:
        yield from map(function, items)
        return
    others = num_processes - 1
    with concurrent.futures.ProcessPoolExecutor(others, _context()) as pool:
        # Waits until TensorFlow is imported there.
        starting = threading.Thread(target=pool.submit, args=(os.getpid,))
        starting.start()
        try:
            yield from _work(function, items, pool, 2 * others, starting)
        except concurrent.futures.process.BrokenProcessPool:
            raise ChildProcessError(
                "A process was killed, most likely for want of memory; run "
                "the same command again to go on, with a smaller "
                f"`num_processes`. Received: num_processes={num_processes}"
            ) from None
        finally:
            starting.join()
            pool.shutdown(cancel_futures=True)
