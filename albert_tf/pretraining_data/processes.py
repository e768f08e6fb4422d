"""Work spread over processes, with results in order and bounded memory."""

import collections
import concurrent.futures
import itertools
import multiprocessing
import os
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


def ordered_map(
    function: Callable[[Any], Any], items: Iterable[Any], num_processes: int
) -> Iterator[Any]:
    """Yield `function(item)` for every item, in order.

    Args:
      function: can be pickled, like its argument and result.
      items: read only as far ahead as needed to keep the processes busy.
      num_processes: 1 works in this process.
    """
    if num_processes == 1:
        yield from map(function, items)
        return
    items = iter(items)
    with concurrent.futures.ProcessPoolExecutor(
        num_processes, _context()
    ) as pool:
        waiting = collections.deque(
            pool.submit(function, item)
            for item in itertools.islice(items, 2 * num_processes)
        )
        try:
            while waiting:
                result = waiting.popleft().result()
                for item in itertools.islice(items, 1):
                    waiting.append(pool.submit(function, item))
                yield result
        except concurrent.futures.process.BrokenProcessPool:
            raise ChildProcessError(
                "A process was killed, most likely for want of memory; run "
                "the same command again to go on, with a smaller "
                f"`num_processes`. Received: num_processes={num_processes}"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)
