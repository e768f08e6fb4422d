"""Work spread over processes is the work of one."""

import concurrent.futures
import os
import threading
import time

import pytest

from albert_tf.pretraining_data.processes import _work, ordered_map


def square(n: int) -> tuple[int, int]:
    """Return n squared and who worked it out."""
    time.sleep(0.01)
    return n * n, os.getpid()


def fail_at_three(n: int) -> int:
    if n >= 3:
        raise ValueError(f"item {n}")
    return n


def late_first(n: int) -> int:
    """Be slow with the first item, so that others are done before it."""
    time.sleep(0.3 * (n == 0))
    return fail_at_three(n)


def work(function, items):
    """Yield what this thread and another one, ready at once, make."""
    ready = threading.Thread()  # never started: not alive
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield from _work(function, iter(items), pool, 2, ready)


@pytest.mark.slow
def test_results_come_in_order_from_every_process():
    """Order and number do not depend on who is faster; this process works."""
    found = list(ordered_map(square, range(1500), 3))
    assert [value for value, _ in found] == [n * n for n in range(1500)]
    workers = {pid for _, pid in found}
    assert os.getpid() in workers and len(workers) > 1


def test_results_come_in_order():
    """An item that takes long holds the later ones back."""
    assert list(work(late_first, [0, 1, 2])) == [0, 1, 2]


def test_items_are_read_only_a_little_ahead():
    """While the first item takes long, only a few are worked on."""
    read = []
    items = (read.append(n) or min(n, 1) for n in range(1000))
    next(work(late_first, items))
    assert len(read) <= 6


def test_the_first_error_in_order_is_met():
    """What came before an error is given, whoever made the error."""
    found = []
    with pytest.raises(ValueError, match="item 3"):
        for n in work(late_first, range(9)):
            found.append(n)
    assert found == [0, 1, 2]
