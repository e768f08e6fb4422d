"""Mutants of the package: lines drawn at random, and faults of Cosmic Ray."""

import ast
import contextlib
import dataclasses
import difflib
import random
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).parent.parent
PACKAGE = "albert_tf"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault: a file, the line that it changes, and the file's new text."""

    file: str
    line: int
    operator: str
    code: str

    def difference(self) -> str:
        """Return the lines that change, without context."""
        texts = ((ROOT / self.file).read_text(), self.code)
        lines = difflib.unified_diff(*(t.split("\n") for t in texts), n=0)
        return "\n".join(list(lines)[3:])


class _Bare(ast.NodeTransformer):
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
    return ast.dump(_Bare().visit(ast.parse(code)))


def mutated(code: str, name: str, occurrence: int) -> str | None:
    """Return a text with one fault, None where it does what it did.

    None also where Cosmic Ray fails: it takes the `*` of a signature for a
    product, and knows no `except` with a dotted name.
    """
    operator = plugins.get_operator(name)()
    with contextlib.suppress(SyntaxError, AttributeError):
        changed = mutate_code(code, operator, occurrence)
        if meaning(changed) != meaning(code):
            return changed
    return None


def family(operator: str) -> str:
    """Return an operator's kind: `+` has many replacements, `0` has few."""
    return operator.split("/")[-1].split("_")[0]


def operators() -> dict[str, object]:
    """Return the operators that need no arguments, by name."""
    classes = {n: plugins.get_operator(n) for n in plugins.operator_names()}
    return {
        name: cls()
        for name, cls in classes.items()
        if not cls.arguments() and "no_op" not in name.lower()
    }


def lines_of(operator, nodes: list) -> list[int]:
    """Return the line of each occurrence of an operator."""
    return [
        start[0]
        for node in nodes
        for start, _ in operator.mutation_positions(node)
    ]


def draw_on(rng: random.Random, code: str, nodes: list, line: int):
    """Return a mutant of a line, its operator and text; None without one."""
    here = [node for node in nodes if node.start_pos[0] == line]
    fit = {n: o for n, o in operators().items() if line in lines_of(o, here)}
    if not fit:
        return None
    kind = rng.choice(sorted({family(name) for name in fit}))
    name = rng.choice([name for name in fit if family(name) == kind])
    lines = lines_of(fit[name], nodes)
    occurrence = rng.choice([i for i, at in enumerate(lines) if at == line])
    changed = mutated(code, name, occurrence)
    return changed and (name, changed)


def draw(number: int, seed: int) -> list[Mutant]:
    """Return so many mutants, each on a line of its own."""
    rng = random.Random(seed)
    texts = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted((ROOT / PACKAGE).rglob("*.py"))
    }
    places = [
        (file, line)
        for file, code in texts.items()
        for line in range(1, len(code.splitlines()) + 1)
    ]
    rng.shuffle(places)
    nodes, drawn = {}, []
    for file, line in places:
        if file not in nodes:
            nodes[file] = list(ast_nodes(get_ast(texts[file])))
        if mutant := draw_on(rng, texts[file], nodes[file], line):
            drawn.append(Mutant(file, line, *mutant))
        if len(drawn) == number:
            break
    return drawn
