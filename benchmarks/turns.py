"""Run processes in turns so that fluctuations in speed affect all equally.

This module has no dependencies, so a process needs only the dependencies of the
library that it measures.
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
    """A process that runs a script and answers requests.

    Args:
      name: the name of the process's row in the table.
      script: a file in this folder that calls `serve`.
      arguments: the arguments of the script.
      python: the interpreter that runs the script.

    Attributes:
      seconds: the duration of each request.
      hello: the message that the process sent at startup.
      last: the reply to the last request, or `hello` before the first request.
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
        return {"missing": (lines or ["the process ended"])[-1]}

    def work(self, what: str = "step") -> None:
        """Send a request, and record its duration."""
        print(what, file=self.process.stdin, flush=True)
        self.last = self._read()
        if "missing" in self.last:
            raise SystemExit(f"{self.name}: {self.last['missing']}")
        self.seconds.append(self.last["seconds"])

    @property
    def median(self) -> float:
        """The median duration of the requests, in seconds."""
        return statistics.median(self.seconds)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def present(workers: list[Worker]) -> list[Worker]:
    """Return the workers that started; print why the other workers did not."""
    for worker in workers:
        if "missing" in worker.hello:
            print(f"{worker.name}: skipped, {worker.hello['missing']}")
    return [w for w in workers if "missing" not in w.hello]


def take_turns(workers: list[Worker], rounds: int, warmup: int = 0) -> None:
    """Send each worker a request per round; discard times of warm-up rounds."""
    for _ in range(warmup + rounds):
        for worker in workers:
            worker.work()
    for worker in workers:
        worker.seconds = worker.seconds[warmup:]


def machine(*packages: str) -> str:
    """Return a description of the machine and the versions of packages."""
    versions = [
        f"{name} {importlib.metadata.version(name)}" for name in packages
    ]
    return ", ".join([platform.machine(), f"{CORES} cores", *versions])


def megabytes() -> float:
    """Return the GPU's peak memory in MB, or else the process's in MiB."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve(make: Callable[[], Callable[[str], dict]]) -> None:
    """Act as a worker until standard input ends.

    Args:
      make: a function that returns the worker's function, which answers a
        request with a dict of results. `serve` adds time and memory to the
        results. The first request is "first", and its time includes the call of
        `make`.
    """
    answers, sys.stdout = sys.stdout, sys.stderr

    def tell(**values) -> None:
        print(json.dumps(values), file=answers, flush=True)

    start = time.perf_counter()
    try:
        work = make()
        result = work("first")
    except ImportError as error:
        tell(missing=str(error))
        return
    tell(first=time.perf_counter() - start, **result)
    for line in sys.stdin:
        start, cpu = time.perf_counter(), time.process_time()
        result = work(line.strip())
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        tell(seconds=seconds, cpu=cpu, megabytes=megabytes(), **result)
