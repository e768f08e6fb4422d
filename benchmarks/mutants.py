"""Insert random faults with Cosmic Ray; count the faults that tests detect.

    pip install -e '.[test]' cosmic-ray pytest-cov
    python benchmarks/mutants.py [--number=200] [--seed=1] [--rooms base text]

The program draws lines of the package with equal probability, and for each
line, one of Cosmic Ray's mutants (a changed number, comparison, operator, truth
value, loop, exception or decorator). It skips mutants that have no effect on
correct code (see `Bare`), and mutants of the package `tpu` if JAX, which some
of its tests need, is not installed.

In a copy of the last commit, the default suite runs once under coverage, to
find the tests that execute each line. The tests of the mutant's line then run
on the mutant: first the tests of its module, then the tests of its package,
then one test of each other file and the tests that inspect the whole package,
and then the remaining tests.
Coverage does not record lines that run at import or in AutoGraph's copy of a
function. For such lines, all tests of the package run, and all tests that
execute any line of the module; other tests may detect some of the survivors.

Each mutant's tests run in a process forked after the import of TensorFlow. The
process ends when a test has used more processor time than any test needs on
intact code, so a busy machine does not cause timeouts. Results are printed as
they arrive, in the order in which the mutants are drawn. To continue an
interrupted run, pass the same `--folder`, and the number of printed results as
`--start`.
"""

import argparse
import ast
import collections
import contextlib
import difflib
import functools
import importlib.util
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from coverage import CoverageData

PACKAGE = "albert_tf"
# Tests that inspect every module.
INSPECTIONS = ("tests/test_layout.py", "tests/commands/test_settings_table.py")
KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"
BROKEN = "not tested"
FAILED = Path("failed.txt")
CPU_SECONDS = 300  # for one test; the slowest test takes 15
HANG = 3600  # seconds after which a mutant's tests count as hanging
# {file: {line: pytest's names of tests}}
Covering = dict[Path, dict[int, set[str]]]


class Bare(ast.NodeTransformer):
    """A transformer that removes syntax that does not affect correct code.

    It removes annotations, `abstractmethod` and the argument `strict` of `zip`.
    In comparisons with a constant, it replaces identity with equality, which
    has the same result unless the constant is a number or a string that Python
    does not intern.
    """

    def visit_arg(self, node):
        node.annotation = None
        return node

    def visit_FunctionDef(self, node):
        node.returns = None
        node.decorator_list = [
            x
            for x in node.decorator_list
            if "abstractmethod" not in ast.dump(x)
        ]
        return self.generic_visit(node)

    def visit_Compare(self, node):
        same = {ast.Is: ast.Eq(), ast.IsNot: ast.NotEq()}
        compared = (node.left, *node.comparators)
        if any(
            isinstance(x, ast.Constant) or ast.unparse(x).isupper()
            for x in compared
        ):
            node.ops = [same.get(type(op), op) for op in node.ops]
        return self.generic_visit(node)

    def visit_Call(self, node):
        if isinstance(node.func, ast.Name) and node.func.id == "zip":
            node.keywords = []
        return self.generic_visit(node)

    def visit_AnnAssign(self, node):
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def meaning(code: str) -> str:
    """Return a normal form of source text, without what `Bare` removes."""
    return ast.dump(Bare().visit(ast.parse(code)))


@functools.cache
def mutations(path: Path) -> dict[int, list[tuple[str, int]]]:
    """Return {line: [(operator, occurrence)]} for a module."""
    lines = collections.defaultdict(list)
    nodes = list(ast_nodes(get_ast(path.read_text())))
    for name in plugins.operator_names():
        if not (make := plugins.get_operator(name)).arguments():
            found = (p for n in nodes for p in make().mutation_positions(n))
            for occurrence, ((line, _), _) in enumerate(found):
                lines[line].append((name, occurrence))
    return lines


def draw(paths: list[Path], seed: int) -> Iterator[tuple[Path, int, str]]:
    """Yield each mutant as the file, the line number and the new source."""
    rng = random.Random(seed)
    lines = [
        (path, line)
        for path in paths
        for line, _ in enumerate(path.read_text().splitlines(), 1)
    ]
    rng.shuffle(lines)
    for path, line in lines:
        if choices := mutations(path).get(line):
            name, occurrence = rng.choice(choices)
            code = path.read_text()
            # Cosmic Ray mistakes the `*` in a signature for a product, and does
            # not support `except` with a dotted name.
            with contextlib.suppress(SyntaxError, AttributeError):
                operator = plugins.get_operator(name)()
                changed = mutate_code(code, operator, occurrence)
                if meaning(changed) != meaning(code):
                    yield path, line, changed


def room(path: Path) -> str:
    """Return the package of a module, which is also a folder in `tests`."""
    return path.parts[1] if len(path.parts) > 2 else "commands"


def covering_tests(processes: int) -> Covering:
    """Run the default suite in this folder; return the tests of each line.

    A second call reads the result of the first call. Lines that a fixture
    executes are attributed to all tests of the file that first used the
    fixture.
    """
    command = f"-m pytest -q -n {processes} --dist loadfile --cov-report="
    options = f"--cov={PACKAGE} --cov-context=test"
    if not Path(".coverage").exists():
        subprocess.run([sys.executable, *command.split(), *options.split()])
    data, covering = CoverageData(".coverage"), {}
    data.read()
    for name in data.measured_files():
        lines = covering[Path(name).relative_to(Path.cwd())] = {}
        for line, contexts in data.contexts_by_lineno(name).items():
            ran = [c.rsplit("|", 1) for c in contexts if "|" in c]
            lines[line] = {
                test if stage == "run" else test.split("::")[0]
                for test, stage in ran
            }
    return covering


def select(path: Path, line: int, covering: Covering) -> list[str]:
    """Return the tests for a mutant, with the most relevant tests first."""
    lines, own = covering.get(path, {}), f"tests/{room(path)}/"
    tests = lines.get(line) or {own}.union(*lines.values())
    first = {t for t in tests if own in t}.union(
        {t.split("::")[0]: t for t in sorted(tests) if own not in t}.values(),
        INSPECTIONS,
    )
    whole = {t for t in tests.union(first) if "::" not in t}
    chosen = whole | {t for t in tests if t.split("::")[0] not in whole}

    def rank(test: str) -> tuple[bool | str, ...]:
        return path.stem not in test, own not in test, test not in first, test

    return sorted(chosen, key=rank)


def copy_commit(root: Path, folder: Path) -> None:
    """Clone the repository unless the folder exists; change to the folder."""
    if not folder.exists():
        subprocess.run(["git", "clone", "-q", root, folder], check=True)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)


def start_worker(folder: Path) -> None:
    """Change to a copy of a folder, and import modules that load slowly."""
    copy = Path(tempfile.mkdtemp()) / folder.name
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".git"))
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    # Otherwise, Python could reuse the bytecode of a file for a mutant that has
    # the same size and is written in the same second.
    sys.dont_write_bytecode = True
    for name in ("tensorflow", "tensorflow_text", "hypothesis", "h5py"):
        importlib.import_module(name)


class Watch:
    """A pytest plug-in that ends slow tests, and records failures."""

    def __init__(self):
        self.failed = FAILED.resolve()  # tests may change the directory

    def pytest_runtest_logstart(self, nodeid, location):
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.write_text(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport


def run_tests(tests: list[str], *options: str) -> tuple[int, str]:
    """Run tests in a forked process until one fails.

    Returns:
      The exit status, which is negative if the process was killed, and the test
      or the file that failed.
    """
    FAILED.unlink(missing_ok=True)
    process = os.fork()
    if not process:
        os.setsid()
        log = os.open("mutant.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        options = ("-qx", "-p", "no:cacheprovider", *options)
        os._exit(pytest.main([*options, *tests], plugins=[Watch()]))
    end = time.monotonic() + HANG
    while not (ended := os.waitpid(process, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(process, signal.SIGPROF)
        time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)  # programs that tests started
    failed = FAILED.read_text() if FAILED.exists() else ""
    return os.waitstatus_to_exitcode(ended[1]), failed


def outcome(path: Path, code: str, tests: list[str]) -> str:
    """Run tests on a mutant; return the outcome.

    A test that fails on the intact code too, for example because it depends on
    other tests, does not count.
    """
    old, options = path.read_text(), []
    while True:
        path.write_text(code)
        status, failed = run_tests(tests, *options)
        path.write_text(old)
        if status in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            return SURVIVED
        if status == -signal.SIGPROF:
            return TIMEOUT
        again = [failed] if failed else [*tests, "--collect-only"]
        if not run_tests(again)[0]:
            return KILLED
        if not failed:
            return BROKEN
        options.append(f"--deselect={failed}")


def interval(noticed: int, number: int, z: float = 1.96) -> tuple[float, float]:
    """Return the limits of the Wilson interval of a share; z=1.96 means 95%."""
    share, square = noticed / number, z * z / number
    middle, width = share + square / 2, share * (1 - share) + square / 4
    spread = z * (width / number) ** 0.5
    return (middle - spread) / (1 + square), (middle + spread) / (1 + square)


def show(path: Path, line: int, code: str, result: str) -> None:
    """Print a mutant's result, and its change unless a test failed."""
    print(f"{path}:{line}: {result}", flush=True)
    if result != KILLED:
        old = path.read_text().split("\n")
        changed = difflib.unified_diff(old, code.split("\n"), n=0)
        print(*list(changed)[3:], sep="\n", flush=True)


def print_counts(counts: dict[str, Counter]) -> None:
    """Print the results of each package, and the share of detected mutants."""
    for name, count in sorted(counts.items()):
        print(f"{name}: {', '.join(f'{n} {o}' for o, n in count.items())}")
    total = sum(counts.values(), Counter())
    noticed, number = total[KILLED] + total[TIMEOUT], total.total()
    low, high = interval(noticed, number)
    share = f"{noticed / number:.0%} (95%: {low:.0%} to {high:.0%})"
    print(f"{noticed} of {number} detected: {share}", flush=True)


def main() -> None:
    """Print the surviving mutants, and the counts for each package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="mutants to skip")
    parser.add_argument("--rooms", nargs="*", help="default: all")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="for the copy; kept")
    args = parser.parse_args()
    folder = (args.folder or Path(tempfile.mkdtemp()) / "copy").resolve()
    copy_commit(Path(__file__).resolve().parents[1], folder)
    covering = covering_tests(args.processes)
    skipped = set() if importlib.util.find_spec("jax") else {"tpu"}
    rooms = set(args.rooms or map(room, Path(PACKAGE).rglob("*.py"))) - skipped
    paths = [p for p in sorted(Path(PACKAGE).rglob("*.py")) if room(p) in rooms]
    mutants = draw(paths, args.seed)
    counts = collections.defaultdict(Counter)
    with ProcessPoolExecutor(
        args.processes, initializer=start_worker, initargs=[folder]
    ) as pool:
        running = {}
        for mutant in itertools.islice(mutants, args.start, args.number):
            path, line, code = mutant
            tests = select(path, line, covering)
            running[pool.submit(outcome, path, code, tests)] = mutant
        for future, (path, line, code) in running.items():
            counts[room(path)][future.result()] += 1
            show(path, line, code, future.result())
    print_counts(counts)


if __name__ == "__main__":
    main()
