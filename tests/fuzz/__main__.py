"""Read damaged files of every kind for a given time, and print the outcomes.

Every file must be read or rejected within the time and memory limits in
`trials`, and no file may change. Trials are numbered; repeat a failed trial
with `--seed="READER NUMBER"`.
"""

import argparse
import pathlib
import sys
import tempfile
import time
from collections import Counter, defaultdict

from albert_tf.base import program

with program.quiet_start():
    from fuzz import trials


def show(outcome: trials.Outcome, seed: str) -> None:
    """Print an outcome, with the seed that repeats it."""
    what = f"{outcome.file}, {outcome.how}, {outcome.seconds:.1f} s"
    print(f"{outcome.kind}: --seed={seed!r} ({what})")
    print(f"{outcome.note}\n", flush=True)


def attack(name: str, folder: pathlib.Path, end: float, options) -> Counter:
    """Run trials of one reader until a deadline; count their outcomes."""
    counts: Counter = Counter()
    sandbox = trials.Sandbox(name, folder)
    for seed in trials.seeds(name, options.start):
        if time.monotonic() > end or counts.total() == options.most:
            break
        outcome = sandbox.run(seed)
        counts[outcome.kind] += 1
        if outcome.kind == trials.FAILED or options.verbose:
            show(outcome, seed)
    sandbox.end()
    return counts


def print_table(table: dict[str, Counter]) -> None:
    """Print the numbers of inputs and of each outcome, for each reader."""
    kinds = trials.REFUSED, trials.ACCEPTED, trials.FAILED
    total = sum(table.values(), Counter())
    print(f"{'reader':26}{'inputs':>9}" + "".join(f"{k:>10}" for k in kinds))
    for name, counts in [*table.items(), ("all", total)]:
        cells = "".join(f"{counts[kind]:10}" for kind in kinds)
        print(f"{name:26}{counts.total():9}{cells}")


def main(arguments: list[str]) -> int:
    """Run the fuzzing; return the exit status."""
    parser = argparse.ArgumentParser("fuzz", description=__doc__)
    parser.add_argument("readers", nargs="*", help="default: all readers")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--start", type=int, default=0, help="first trial")
    parser.add_argument(
        "--most", type=int, default=-1, help="trials of each reader"
    )
    parser.add_argument("--seed", help="repeat one trial in this process")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args(arguments)
    names = options.readers or [*trials.READERS]
    if options.seed:
        names = [options.seed.rpartition(" ")[0]]
    table: dict[str, Counter] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name in names:
            try:
                trials.in_child(trials.make, name, folder)
            except ChildProcessError:
                table[name][trials.FAILED] += 1
                continue
            if options.seed:
                reader = trials.READERS[name]
                valid = trials.valid_folder(name, folder)
                show(trials.trial(reader, valid, options.seed), options.seed)
                return 0
            end = time.monotonic() + options.seconds / len(names)
            table[name] = attack(name, folder, end, options)
    print_table(table)
    return 1 if sum(table.values(), Counter())[trials.FAILED] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
