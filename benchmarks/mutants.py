"""Insert random faults with Cosmic Ray, and count those that tests detect.

    pip install -e '.[test]' cosmic-ray
    python benchmarks/mutants.py [--number=200] [--seed=1] [--rooms base text]

Lines of the package are drawn with equal probability, and for each line one of
Cosmic Ray's mutants (a changed number, comparison, operator, truth value, loop,
exception or decorator). Mutants that change only annotations are skipped. In a
copy of the last commit, the tests of the mutant's room run, starting with those
of its module. "Survived" is an upper bound: other tests may detect a mutant.
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
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.testing import run_tests

PACKAGE, TIMED_OUT = "albert_tf", "timeout"


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


def judge(path: Path, code: str, seconds: float) -> str:
    """Run the tests of a mutant's module and room; return the outcome."""
    old, tests = path.read_text(), Path("tests", room(path))
    path.write_text(code)
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
    command += [*map(str, tests.glob(f"test_{path.stem}.py")), str(tests)]
    outcome, said = run_tests(" ".join(command), seconds)
    path.write_text(old)
    return said if said == TIMED_OUT else outcome.value


def main() -> None:
    """Print the surviving mutants, and the counts for each room."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooms", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=float, default=900, help="for one")
    asked = parser.parse_args()
    root = Path(__file__).parents[1]
    counts = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "-q", root, folder], check=True)
        os.chdir(folder)
        os.environ["PYTHONPATH"] = folder
        paths = [
            path
            for path in sorted(Path(PACKAGE).rglob("*.py"))
            if not asked.rooms or room(path) in asked.rooms
        ]
        drawn = itertools.islice(draw(paths, asked.seed), asked.number)
        for path, line, code in drawn:
            old = path.read_text().split("\n")
            outcome = judge(path, code, asked.seconds)
            counts[room(path)][outcome] += 1
            print(f"{path}:{line}: {outcome}", flush=True)
            if outcome == "survived":
                difference = difflib.unified_diff(old, code.split("\n"), n=0)
                print(*list(difference)[3:], sep="\n")
    for name, count in sorted(counts.items()):
        print(f"{name}: {', '.join(f'{n} {o}' for o, n in count.items())}")


if __name__ == "__main__":
    main()
