"""Draw faults at random, and see which of them the default tests notice.

    pip install -e '.[test]' cosmic-ray pytest-cov
    python benchmarks/mutants.py cover --map=map.json
    python benchmarks/mutants.py run --map=map.json --output=mutants.jsonl \
        [--number=200] [--seed=1] [--tests=tests]

`cover` runs the default suite once and notes which test runs which line, and
how long it takes. `run` draws lines of the package, each as likely as any
other, and one of Cosmic Ray's mutants of each (a changed number, comparison,
operator, truth value, loop, exception or decorator); annotations are left
alone. Each mutant gets a copy of the tree and tests: those that run its line,
then others that use its module, its own tests before its callers' and the
quick before the slow, up to a limit of time, so that "survived" is an upper
bound. TensorFlow is imported once; the tests of a mutant run in a fork of that
process.
"""

import argparse
import collections
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import coverage
import pytest
from mutants_drawn import PACKAGE, ROOT, Mutant, draw
from scipy.stats import binomtest

IMPORTED_ONCE = """tensorflow tensorflow_text keras matplotlib.pyplot
scipy.sparse sentencepiece sklearn.linear_model""".split()


class Notes:
    """A pytest plugin: seconds of each test, and the fixtures it shares."""

    def __init__(self, path: str):
        self.path = path
        self.seconds = collections.Counter()
        self.failed, self.shared = set(), {}

    def pytest_collection_modifyitems(self, items):
        for item in items:
            definitions = item._fixtureinfo.name2fixturedefs
            self.shared[item.nodeid] = [
                name
                for name, found in definitions.items()
                if found[-1].scope != "function" and not name.startswith("_")
            ]

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self):
        tests = {
            name: {"seconds": self.seconds[name], "shared": shared}
            for name, shared in self.shared.items()
            if name in self.seconds and name not in self.failed
        }
        Path(self.path).write_text(json.dumps(tests))


def cover(path: str, tests: list[str]) -> None:
    """Write {"tests": what `Notes` tells, "lines": {file: {line: tests}}}."""
    with tempfile.TemporaryDirectory() as folder:
        notes, data = f"{folder}/notes.json", f"{folder}/coverage"
        Path(folder, "rc").write_text(f"[run]\ndata_file = {data}\n")
        options = [f"--cov={PACKAGE}", "--cov-context=test", "--cov-report="]
        options += [f"--cov-config={folder}/rc", "-p", "no:cacheprovider"]
        pytest.main([*options, "-q", *tests], plugins=[Notes(notes)])
        covered = coverage.CoverageData(data)
        covered.read()
        told = {"tests": json.loads(Path(notes).read_text()), "lines": {}}
        for file in covered.measured_files():
            lines = covered.contexts_by_lineno(file)
            name = os.path.relpath(file, ROOT)
            told["lines"][name] = {n: sorted(c) for n, c in lines.items()}
    Path(path).write_text(json.dumps(told))


def users_of(contexts: Iterable[str], tests: dict) -> set[str]:
    """Return the tests that coverage's contexts name.

    A fixture that several tests share is run by the first of them: the others
    count as running its lines too.
    """
    names, fixtures = set(), set()
    for context in filter(None, contexts):
        name, _, phase = context.rpartition("|")
        names.add(name)
        if phase == "setup" and name in tests:
            fixtures |= set(tests[name]["shared"])
    names |= {n for n, t in tests.items() if fixtures & set(t["shared"])}
    return names & tests.keys()


def chosen_tests(mutant: Mutant, told: dict, limit: float) -> list[str]:
    """Return the tests of a mutant, the likeliest to notice it first.

    Coverage does not see all of what is run, such as a line on import or in a
    graph that an earlier test traced: so the module's other tests follow.
    """
    tests = told["tests"]
    lines = told["lines"].get(mutant.file, {})
    names = users_of(lines.get(str(mutant.line), ()), tests)
    others = users_of(set().union(*lines.values()), tests)
    path = Path(mutant.file)
    of_module = (f"test_{path.stem}", f"test_{path.parent.name}_{path.stem}")

    def rank(name):
        stem = Path(name.split("::")[0]).stem
        apart = name not in names, not stem.startswith(of_module)
        return *apart, tests[name]["seconds"]

    chosen, spent = [], 0.0
    for name in sorted(names | others, key=rank):
        spent += tests[name]["seconds"]
        if chosen and spent > limit:
            break
        chosen.append(name)
    return chosen


class Tree:
    """A copy of the tracked files, in which one mutant lives at a time."""

    def __init__(self, folder: str):
        self.folder = Path(folder)
        command = ["git", "ls-files", "-co", "--exclude-standard"]
        names = subprocess.check_output(command, cwd=ROOT, text=True)
        for name in names.splitlines():
            if (ROOT / name).exists():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.folder / name)

    def start(self, mutant: Mutant, tests: list[str]) -> int:
        """Run tests on a mutant in a fork; return its process."""
        (self.folder / mutant.file).write_text(mutant.code)
        process = os.fork()
        if not process:
            self._test(tests)
        return process

    def _test(self, tests: list[str]) -> None:
        os.setsid()
        os.chdir(self.folder)
        log = os.open("mutant.log", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ["PYTHONPATH"] = sys.path[0] = str(self.folder)
        options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
        options.append(f"--basetemp={self.folder}.tmp")
        code = 3
        with contextlib.suppress(BaseException):
            code = pytest.main([*options, *tests])
        os._exit(code)

    def finish(self, mutant: Mutant) -> str:
        """Put the file back; return the end of what pytest said."""
        shutil.copy(ROOT / mutant.file, self.folder / mutant.file)
        log = (self.folder / "mutant.log").read_text(errors="replace")
        return "\n".join(log.strip().splitlines()[-2:])


def outcome(process: int, end: float) -> str | None:
    """Return what became of a mutant, None while its tests run."""
    finished, status = os.waitpid(process, os.WNOHANG)
    if not finished:
        if time.monotonic() < end:
            return None
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
        return "timeout"
    return "survived" if status == 0 else "killed"


def rows_of(path: str) -> list[dict]:
    """Return the rows of an earlier run, which are not tested again."""
    if not os.path.exists(path):
        return []
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def run(arguments: argparse.Namespace) -> None:
    """Test every mutant; write a line of JSON for each."""
    from albert_tf.base import program

    with program.quiet_start():
        for name in IMPORTED_ONCE:
            __import__(name)
    for name in [n for n in sys.modules if n.split(".")[0] == PACKAGE]:
        del sys.modules[name]
    told = json.loads(Path(arguments.map).read_text())
    done = rows_of(arguments.output)
    known = {(row["file"], row["line"]) for row in done}
    drawn = draw(arguments.number, arguments.seed)
    waiting = [m for m in drawn if (m.file, m.line) not in known]
    with contextlib.ExitStack() as stack:
        folders = [
            stack.enter_context(tempfile.TemporaryDirectory())
            for _ in range(arguments.processes)
        ]
        free, busy = [Tree(folder) for folder in folders], {}
        output = stack.enter_context(open(arguments.output, "a"))
        while waiting or busy:
            while waiting and free:
                mutant = waiting.pop(0)
                tests = chosen_tests(mutant, told, arguments.limit)
                if tests:
                    tree, now = free.pop(), time.monotonic()
                    process = tree.start(mutant, tests)
                    busy[process] = tree, mutant, now, len(tests)
                else:
                    done.append(record(output, mutant, "not run", "", 0, 0.0))
            for process, (tree, mutant, start, count) in list(busy.items()):
                end = start + 6 * arguments.limit + 60
                if what := outcome(process, end):
                    del busy[process]
                    said, took = tree.finish(mutant), time.monotonic() - start
                    free.append(tree)
                    row = record(output, mutant, what, said, count, took)
                    done.append(row)
            time.sleep(0.1)
    table(done)


def record(output, mutant, what, said, count, took) -> dict:
    """Write and return one mutant's row."""
    row = {
        "file": mutant.file,
        "line": mutant.line,
        "operator": mutant.operator,
        "outcome": what,
        "tests": count,
        "seconds": round(took, 1),
        "difference": mutant.difference(),
        "said": said,
    }
    output.write(json.dumps(row) + "\n")
    output.flush()
    return row


def room(file: str) -> str:
    """Return the folder of the package, or the package for a command."""
    return "/".join(Path(file).parts[:-1][:2])


def table(rows: list[dict]) -> None:
    """Print the outcomes by room, and every mutant that was not noticed."""
    outcomes = ("killed", "timeout", "survived", "not run")
    counts = collections.defaultdict(collections.Counter)
    for row in rows:
        for name in (room(row["file"]), "all"):
            counts[name][row["outcome"]] += 1
    print("| room | " + " | ".join(outcomes) + " | noticed |")
    print("|---|" + "---|" * (len(outcomes) + 1))
    for name in sorted(counts):
        count = counts[name]
        test = binomtest(count["killed"] + count["timeout"], count.total())
        low, high = test.proportion_ci(method="wilson")
        cells = [str(count[o]) for o in outcomes]
        share = f"{test.statistic:.0%} ({low:.0%} to {high:.0%})"
        print(f"| {name} | {' | '.join(cells)} | {share} |")
    for row in rows:
        if row["outcome"] in ("survived", "not run"):
            print(f"\n{row['file']}:{row['line']}: {row['outcome']}")
            print(row["difference"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("cover", "run", "table"))
    parser.add_argument("--map", default="map.json")
    parser.add_argument("--output", default="mutants.jsonl")
    parser.add_argument("--tests", nargs="*", default=["tests"])
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=40.0, help="seconds")
    arguments = parser.parse_args()
    if arguments.what == "cover":
        cover(arguments.map, arguments.tests)
    elif arguments.what == "run":
        run(arguments)
    else:
        table(rows_of(arguments.output))


if __name__ == "__main__":
    main()
