"""Several processes produce the same results as a single process."""

import concurrent.futures
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import programs
import pytest

from albert_tf.base import processes
from albert_tf.base.processes import Workers, in_order


def square(n: int) -> tuple[int, int]:
    """Return n squared and the ID of the process that computes it."""
    time.sleep(0.01)
    return n * n, os.getpid()


def fail_at_three(n: int) -> int:
    if n >= 3:
        raise ValueError(f"item {n}")
    return n


def late_first(n: int) -> int:
    """Delay the first item so that later items finish before it."""
    time.sleep(0.3 * (n == 0))
    return fail_at_three(n)


def die_at_three(n: int) -> int:
    """Kill this process at item 3, as the system does if memory runs out."""
    if n == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


def work(function, items):
    """Yield the results of a function that two threads apply to items."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield from in_order(functools.partial(pool.submit, function), items, 4)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3])
def test_results_come_in_order_from_every_process(number):
    """Every worker computes some results, which are returned in item order."""
    with Workers(number, __name__) as workers:
        found = list(workers.map(square, range(300)))
        found += workers.map(square, range(300, 500))
    assert [value for value, _ in found] == [n * n for n in range(500)]
    workers = {pid for _, pid in found}
    assert len(workers) == number and os.getpid() not in workers


@pytest.mark.slow
def test_a_killed_process():
    """If a worker is killed, an error with advice follows the first results."""
    found = []
    with pytest.raises(ChildProcessError, match="smaller `num_processes`"):
        with Workers(2, __name__) as workers:
            for n in workers.map(die_at_three, range(500)):
                found.append(n)
    assert found == list(range(len(found))) and len(found) <= 3


def alive(pid: int) -> bool:
    """Return whether a process is running and is not a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    return False


def start(code: str, **settings) -> subprocess.Popen:
    """Start Python code that can import this module; return the process."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        **settings,
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="asks Linux")
def test_processes_end_with_the_one_that_uses_them():
    """A killed program leaves no worker processes behind."""
    code = (
        "import test_processes as here\n"
        "workers = here.Workers(2, here.__name__)\n"
        "for _, pid in workers.map(here.square, range(10**6)):\n"
        "    print(pid, flush=True)"
    )
    program = start(code)
    pids = {int(program.stdout.readline()) for _ in range(200)}
    assert pids and all(map(alive, pids))
    program.kill()
    program.wait()
    program.stdout.close()
    deadline = time.monotonic() + 30
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, pids))


def never(n: int) -> None:
    """Print a line, then run for longer than any test waits."""
    os.write(1, b"begun\n")  # at once, unlike `print`
    time.sleep(3600)


@pytest.mark.parametrize("whom", ["all", "the program"])
def test_an_interrupt_ends_all_processes_quietly(whom):
    """Ctrl-C ends busy workers, and only the main program prints a line.

    A terminal sends the signal to all processes; `kill` signals only one.
    """
    code = (
        "import test_processes as here\n"
        "from albert_tf.base import program\n"
        "def main():\n"
        "    with here.Workers(2, here.__name__) as workers:\n"
        "        list(workers.map(here.never, range(9)))\n"
        "program.run(main)"
    )
    program = start(
        code, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert [program.stdout.readline() for _ in "ab"] == ["begun\n"] * 2
    kill = os.killpg if whom == "all" else os.kill
    kill(program.pid, signal.SIGINT)
    errors = program.communicate(timeout=30)[
        1
    ]  # until all have closed the pipe
    assert (program.returncode, errors) == (130, "error: interrupted\n")


def test_an_interrupt_before_the_workers_start_is_quiet(tmp_path, monkeypatch):
    """Ctrl-C while the workers' module is being imported prints one line."""
    (tmp_path / "slow_import.py").write_text(
        "import os, time\nos.write(1, b'begun\\n')\ntime.sleep(1)"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code = (
        "import math\n"
        "from albert_tf.base import processes, program\n"
        "def main():\n"
        "    with processes.Workers(2, 'slow_import') as workers:\n"
        "        list(workers.map(math.sqrt, range(9)))\n"
        "program.run(main)"
    )
    program = start(
        code, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert program.stdout.readline() == "begun\n"
    os.killpg(program.pid, signal.SIGINT)
    errors = program.communicate(timeout=30)[1]
    assert (program.returncode, errors) == (130, "error: interrupted\n")


def test_a_users_script_needs_no_guard(tmp_path):
    """A script's top level, without a guard, runs once, not in each worker."""
    script = tmp_path / "script.py"
    script.write_text(
        "import math\n"
        "from albert_tf.base.processes import Workers\n"
        "with Workers(2, 'math') as workers:\n"
        "    print(sum(workers.map(math.sqrt, [4, 9, 16])))\n"
    )
    ended = programs.new(script)
    assert (ended.stdout, ended.stderr) == ("9.0\n", "")


@pytest.mark.parametrize("items, number", [(range(9), 1), ([5], 4), ([], 4)])
def test_one_process_is_this_one(items, number, monkeypatch):
    """With one item or `number=1`, the calling process computes all results.

    An empty list has no results.
    """
    if number == 1:
        monkeypatch.delattr(processes, "_context")
    with Workers(number, __name__) as workers:
        found = list(workers.map(square, items))
    assert found == [(n * n, os.getpid()) for n in items]


def test_a_pool_that_breaks_is_explained():
    """The error for a killed process names the setting to change."""
    workers = Workers.__new__(Workers)
    error = concurrent.futures.process.BrokenProcessPool
    workers.number, workers._first = 3, mock.Mock()
    workers._pool = mock.Mock(submit=mock.Mock(side_effect=error))
    with pytest.raises(ChildProcessError, match="Received: num_processes=3$"):
        list(workers.map(square, range(9)))


def test_every_worker_has_four_items():
    """When the first result is returned, four items per worker are submitted.

    With fewer items, workers would wait for the slowest worker.
    """
    workers, submitted = Workers.__new__(Workers), []

    def submit(function, item):
        submitted.append(item)
        future = concurrent.futures.Future()
        future.set_result(function(item))
        return future

    workers.number, workers._first = 3, mock.Mock()
    workers._pool = mock.Mock(submit=submit)
    results = workers.map(abs, range(-50, 0))
    assert next(results) == 50 and len(submitted) == 12
    assert [*results] == [*range(49, 0, -1)]


def test_items_that_nobody_waits_for_are_dropped():
    """After an error in the block, no further item is begun."""
    workers, begun = Workers.__new__(Workers), []

    def slow(n):
        begun.append(n)
        time.sleep(0.05 * (n > 0))

    workers.number, workers._first = 2, mock.Mock()
    workers._pool = concurrent.futures.ThreadPoolExecutor(2)
    with pytest.raises(RuntimeError):
        with workers:
            for _ in workers.map(slow, range(50)):
                raise RuntimeError
    assert 0 < len(begun) < 8


def test_processors_are_those_of_this_process(monkeypatch):
    """`available` counts only the processors that this process may use.

    If the system does not list them, the number of all processors is returned,
    or 1 if it is unknown.
    """
    few = {0: {2, 5, 7}}
    monkeypatch.setattr(os, "sched_getaffinity", few.__getitem__, raising=False)
    assert processes.available() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    for found, number in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda found=found: found)
        assert processes.available() == number


def test_results_come_in_order():
    """Results keep the order of items, even if the first item takes longest."""
    assert list(work(late_first, [0, 1, 2])) == [0, 1, 2]


def test_items_are_read_only_a_little_ahead():
    """When the first result is returned, only four items have been read."""
    read = []
    items = (read.append(n) or min(n, 1) for n in range(1000))
    next(work(late_first, items))
    assert len(read) == 4


def test_the_first_error_in_order_is_met():
    """The results of all items before the failed item precede its error."""
    found = []
    with pytest.raises(ValueError, match="item 3"):
        for n in work(late_first, range(9)):
            found.append(n)
    assert found == [0, 1, 2]
