"""Compare the losses of short runs with recorded losses, or record them.

A change that claims not to affect any computation must leave every trace
bit-identical. If a change is meant to affect a trace, record the trace again in
a separate commit that states the reason.
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import sys

from traces import comparison, processes


def record(name: str, measured: comparison.Recorded) -> bool:
    """Record a run's trace; return True."""
    measured.save(name)
    print(f"{name}: recorded", flush=True)
    return True


def compare(name: str, measured: comparison.Recorded) -> bool:
    """Print how a run differs from its record; return whether it matches."""
    if not comparison.is_recorded(name):
        print(f"{name}: not recorded", flush=True)
        return False
    recorded = comparison.read(name)
    exact = recorded.machine == measured.machine
    near = "within the tolerances for other machines"
    how = "bit-identical" if exact else near
    difference = comparison.first_difference(recorded, measured)
    print(f"{name}: {difference or how}", flush=True)
    return difference is None


def main(arguments: list[str]) -> int:
    """Compare or record runs; return the exit status."""
    parser = argparse.ArgumentParser("traces", description=__doc__)
    parser.add_argument("names", nargs="*", help="default: all runs")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    os.environ.update(processes.ENVIRONMENT)
    executor = concurrent.futures.ProcessPoolExecutor(
        options.processes,
        multiprocessing.get_context("spawn"),
        max_tasks_per_child=1,  # each run is independent of earlier runs
    )
    passed = []
    with executor:
        names = options.names or executor.submit(processes.all_names).result()
        for name, measured in zip(
            names, executor.map(processes.run, names), strict=True
        ):
            passed.append(
                (record if options.record else compare)(name, measured)
            )
    print(f"{sum(passed)} of {len(passed)} traces match")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
