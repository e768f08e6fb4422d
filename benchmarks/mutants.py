"""Insert random faults with Cosmic Ray, and count those that tests detect.

    pip install -e '.[test]' cosmic-ray pytest-cov
    python benchmarks/mutants.py [--number=200] [--seed=1] [--rooms base text]

Lines of the package are drawn with equal probability, and for each line one of
Cosmic Ray's mutants (a changed number, comparison, operator, truth value, loop,
exception or decorator). Mutants that change only annotations are skipped.

In a copy of the last commit the default suite runs once under coverage, to find
the tests that execute each line. These run on the mutant: first those of its
module, then those of its room, then one of each other file. Coverage does not
see what runs at import or in AutoGraph's copy of a function, so for such lines
the tests that execute any line of the module, and all tests of the room, run.
"Survived" is an upper bound: other tests may detect a mutant.
"""

import argparse
import ast
import collections
import contextlib
import difflib
import functools
import itertools
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.testing import run_tests
from coverage import CoverageData

PACKAGE, TIMED_OUT = "albert_tf", "timeout"
# {file: {line: tests}}, tests as pytest names them.
Covering = dict[Path, dict[int, set[str]]]


class Bare(ast.NodeTransformer):
    """Removes annotations, which have no effect at run time."""

    def visit_arg(self, node):
        node.annotation = None
        return node

    def visit_FunctionDef(self, node):
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node):
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def meaning(code: str) -> str:
    """Return a normal form, equal for sources that behave the same."""
    return ast.dump(Bare().visit(ast.parse(code)))


@functools.cache
def mutations(path: Path) -> dict[int, list[tuple[str, int]]]:
    """Return {line: [(operator, occurrence)]} for a module."""
    lines = collections.defaultdict(list)
    nodes = list(ast_nodes(get_ast(path.read_text())))
    for name in plugins.operator_names():
        if not (make := plugins.get_operator(name)).arguments():
            places = (p for n in nodes for p in make().mutation_positions(n))
            for occurrence, ((line, _), _) in enumerate(places):
                lines[line].append((name, occurrence))
    return lines


def draw(paths: list[Path], seed: int) -> Iterator[tuple[Path, int, str]]:
    """Yield mutants: the file, the line and the new source of the file."""
    rng = random.Random(seed)
    places = [
        (path, line)
        for path in paths
        for line, _ in enumerate(path.read_text().splitlines(), 1)
    ]
    rng.shuffle(places)
    for path, line in places:
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
    """Return the room of a module, which is also a folder in `tests`."""
    return path.parts[1] if len(path.parts) > 2 else "commands"


def covering_tests(processes: int) -> Covering:
    """Run the default suite in this folder; return the tests of each line.

    What a fixture executes counts for all tests of the file that first used it.
    """
    command = f"-m pytest -q -n {processes} --dist loadfile --cov-report="
    options = f"--cov={PACKAGE} --cov-context=test"
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
    """Return the tests for a mutant, those most likely to detect it first."""
    lines, own = covering.get(path, {}), f"tests/{room(path)}/"
    tests = lines.get(line) or {own}.union(*lines.values())
    others = {t.split("::")[0]: t for t in sorted(tests) if own not in t}
    chosen = {t for t in tests if own in t} | set(others.values())
    whole = {t for t in chosen if "::" not in t}
    chosen = whole | {t for t in chosen if t.split("::")[0] not in whole}
    return sorted(chosen, key=lambda t: (path.stem not in t, own not in t, t))


def enter_copy(root: Path) -> None:
    """Make a copy of the last commit, and work in it."""
    folder = tempfile.mkdtemp()
    subprocess.run(["git", "clone", "-q", root, folder], check=True)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = folder


def outcome(path: Path, code: str, tests: list[str], seconds: float) -> str:
    """Run tests on a mutant; return `killed`, `survived` or `timeout`."""
    old, names = path.read_text(), Path("tests.txt")
    path.write_text(code)
    names.write_text("\n".join(tests))
    command = f"{sys.executable} -m pytest -qx -p no:cacheprovider @{names}"
    result, printed = run_tests(command, seconds)
    path.write_text(old)
    return printed if printed == TIMED_OUT else result.value


def main() -> None:
    """Print the surviving mutants, and the counts for each room."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooms", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=float, default=900, help="for one")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    root = Path(__file__).parents[1]
    enter_copy(root)
    covering = covering_tests(asked.processes)
    paths = [
        path
        for path in sorted(Path(PACKAGE).rglob("*.py"))
        if not asked.rooms or room(path) in asked.rooms
    ]
    drawn = list(itertools.islice(draw(paths, asked.seed), asked.number))
    counts = collections.defaultdict(collections.Counter)
    with ProcessPoolExecutor(
        asked.processes, initializer=enter_copy, initargs=[root]
    ) as pool:
        running = [
            pool.submit(
                outcome, path, code, select(path, line, covering), asked.seconds
            )
            for path, line, code in drawn
        ]
        for (path, line, code), future in zip(drawn, running, strict=True):
            counts[room(path)][future.result()] += 1
            print(f"{path}:{line}: {future.result()}", flush=True)
            if future.result() != "killed":
                old = path.read_text().split("\n")
                changed = difflib.unified_diff(old, code.split("\n"), n=0)
                print(*list(changed)[3:], sep="\n")
    for name, count in sorted(counts.items()):
        print(f"{name}: {', '.join(f'{n} {o}' for o, n in count.items())}")


if __name__ == "__main__":
    main()
