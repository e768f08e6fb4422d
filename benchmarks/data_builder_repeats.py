"""Tables of whether the data builder makes the same files, come what may."""

import hashlib
import importlib.util
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from data_builder_builds import (
    BenchmarkConfig,
    configs,
    folder,
    small,
    start,
    timed_build,
)

from albert_tf.describe import table

KILLS = 20


def checksums(output: Path) -> dict[str, str]:
    """Return a hash of every file of a folder."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(output.iterdir())
    }


def kill(config: BenchmarkConfig) -> None:
    """Kill builds at random moments, and compare what is made in the end."""
    rng = random.Random(config.seed)
    with folder() as output:
        text = small(config, output)

        def arguments(name):
            return configs(
                config,
                text,
                output / name,
                num_shards=4,
                dupe_factor=10,
                num_processes=2,
            )

        began = time.perf_counter()
        start(arguments("whole")).wait()
        seconds = time.perf_counter() - began
        whole, killed, equal, builds = checksums(output / "whole"), 0, 0, 0
        while killed < KILLS:
            builds += 1
            finished = False
            while not finished and killed < KILLS:
                process = start(arguments(f"build{builds}"))
                try:
                    process.wait(rng.uniform(0, seconds))
                    finished = True
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    killed += 1
            start(arguments(f"build{builds}")).wait()
            equal += checksums(output / f"build{builds}") == whole
    print(
        f"{killed} SIGKILLs at random moments of {seconds:.1f} s, in "
        f"{builds} builds: {equal} of {builds} byte-identical to an unbroken "
        f"one, {len(whole)} files each"
    )


def repeated(config: BenchmarkConfig, text, made, **settings) -> float:
    """Build what is compared into the folder `made`; return the seconds."""
    settings |= {"num_shards": 4, "dupe_factor": 2}
    seconds, _ = timed_build(configs(config, text, made, **settings))
    return seconds


def processes(config: BenchmarkConfig) -> None:
    """Compare checksums of builds with 1, 2 and 3 processes."""
    rows = [["processes", "SHA-256 of all files"]]
    with folder() as output:
        text = small(config, output)
        for number in (1, 2, 3):
            made = output / str(number)
            repeated(config, text, made, num_processes=number)
            every = repr(sorted(checksums(made).items())).encode()
            rows.append([str(number), hashlib.sha256(every).hexdigest()])
    print(*table(rows), sep="\n")
    print(f"identical: {len({row[1] for row in rows[1:]}) == 1}")


def beam(config: BenchmarkConfig) -> None:
    """Compare a build by Beam's DirectRunner with a local one."""
    if not importlib.util.find_spec("apache_beam"):
        print("Apache Beam is not installed")
        return
    with folder() as output:
        text, found = small(config, output), {}
        for runner in (None, "DirectRunner"):
            made = output / str(runner)
            seconds = repeated(
                config, text, made, num_processes=1, runner=runner
            )
            found[runner] = checksums(made)
            print(f"{runner or 'local'}: {seconds['all'][0]:.1f} s")
        print(
            f"{len(found[None])} files, byte-identical: "
            f"{found[None] == found['DirectRunner']}"
        )
