"""Processes that take turns, so that a slow moment of the machine hits all.

Each process imports only what its library needs: this file needs nothing but
Python.
"""

import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

CORES = len(os.sched_getaffinity(0))


class Worker:
    """A process that works when it is asked to.

    Args:
      name: of its row in a table.
      script: a file beside this one, which calls `serve`.
      arguments: of the script.
      python: to run it with.

    Attributes:
      seconds: of each piece of work.
      last: what the process told of the last one; at first, of its start.
    """

    def __init__(
        self,
        name: str,
        script: str,
        arguments: list[str],
        python: str = sys.executable,
    ):
        self.name = name
        self.seconds: list[float] = []
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [python, os.path.join(os.path.dirname(__file__), script)]
            + arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.last = self.hello = self._read()

    def _read(self) -> dict:
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        return {"missing": (lines or ["it ended"])[-1]}

    def work(self, what: str = "step") -> None:
        """Have it do a piece of work and keep its time."""
        print(what, file=self.process.stdin, flush=True)
        self.last = self._read()
        if "missing" in self.last:
            raise SystemExit(f"{self.name}: {self.last['missing']}")
        self.seconds.append(self.last["seconds"])

    @property
    def median(self) -> float:
        """The median of its seconds."""
        return statistics.median(self.seconds)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def present(workers: list[Worker]) -> list[Worker]:
    """Return the workers that started; say why others did not."""
    for worker in workers:
        if "missing" in worker.hello:
            print(f"{worker.name}: skipped, {worker.hello['missing']}")
    return [w for w in workers if "missing" not in w.hello]


def take_turns(workers: list[Worker], rounds: int, warmup: int = 0) -> None:
    """Have each work once a round; times count after the rounds of warm-up."""
    for _ in range(warmup + rounds):
        for worker in workers:
            worker.work()
    for worker in workers:
        worker.seconds = worker.seconds[warmup:]


def machine(*packages: str) -> str:
    """Return where something is measured, and with which versions."""
    versions = [
        f"{name} {importlib.metadata.version(name)}" for name in packages
    ]
    return ", ".join([platform.machine(), f"{CORES} cores", *versions])


def megabytes() -> float:
    """Return the largest memory of a GPU so far, or else of the process."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve(make: Callable[[], Callable[[str], dict]]) -> None:
    """Be a worker, until standard input ends.

    Args:
      make: returns what works, given a line; it returns what there is to tell
        beside time and memory. Its first line is "first", which is not timed.
    """
    answers, sys.stdout = sys.stdout, sys.stderr

    def tell(**values) -> None:
        print(json.dumps(values), file=answers, flush=True)

    start = time.perf_counter()
    try:
        work = make()
        told = work("first")
    except ImportError as error:
        tell(missing=str(error))
        return
    tell(first=time.perf_counter() - start, **told)
    for line in sys.stdin:
        start, cpu = time.perf_counter(), time.process_time()
        told = work(line.strip())
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        tell(seconds=seconds, cpu=cpu, megabytes=megabytes(), **told)
