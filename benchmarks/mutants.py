"""Draw faults at random with Cosmic Ray, and see which the tests notice.

    pip install -e '.[test]' cosmic-ray
    python benchmarks/mutants.py [--number=200] [--seed=1] [--rooms base text]

Lines of the package are drawn, each as likely as any other, and one of Cosmic
Ray's mutants of each (a changed number, comparison, operator, truth value,
loop, exception or decorator); what changes annotations alone is left out. The
tests that mirror a mutant's room judge it in a copy of the last commit, those
of its module first. "Survived" is an upper bound: other tests may notice.
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
    """Takes the annotations away, which do nothing when the code runs."""

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
    """Return what texts that do the same have in common."""
    return ast.dump(Bare().visit(ast.parse(code)))


@functools.cache
def mutations(path: Path) -> dict[int, list[tuple[str, int]]]:
    """Return the operators and their occurrences on each line of a module."""
    lines = collections.defaultdict(list)
    nodes = list(ast_nodes(get_ast(path.read_text())))
    for name in plugins.operator_names():
        if not (make := plugins.get_operator(name)).arguments():
            places = (p for n in nodes for p in make().mutation_positions(n))
            for occurrence, ((line, _), _) in enumerate(places):
                lines[line].append((name, occurrence))
    return lines


def draw(paths: list[Path], seed: int) -> Iterator[tuple[Path, int, str]]:
    """Yield mutants: the file, the line and the file's new text."""
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
            # Cosmic Ray takes the `*` of a signature for a product, and knows
            # no `except` with a dotted name.
            with contextlib.suppress(SyntaxError, AttributeError):
                operator = plugins.get_operator(name)()
                changed = mutate_code(code, operator, occurrence)
                if meaning(changed) != meaning(code):
                    yield path, line, changed


def room(path: Path) -> str:
    """Return the room of a module, of which `tests` has a folder."""
    return path.parts[1] if len(path.parts) > 2 else "commands"


def judge(path: Path, code: str, seconds: float) -> str:
    """Return what the tests of its module and its room make of a new text."""
    old, tests = path.read_text(), Path("tests", room(path))
    path.write_text(code)
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
    command += [*map(str, tests.glob(f"test_{path.stem}.py")), str(tests)]
    outcome, said = run_tests(" ".join(command), seconds)
    path.write_text(old)
    return said if said == TIMED_OUT else outcome.value


def main() -> None:
    """Print the mutants that survive, and the counts of each room."""
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
