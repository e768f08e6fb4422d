"""The project's layout rules, checked on the source code."""

import ast
import contextlib
import graphlib
import importlib
import inspect
import re
from pathlib import Path

import pytest
from project_file import PROJECT, ROOT

PACKAGE = ROOT / "albert_tf"
SCRIPTS = ("create_pretraining_data", "pretrain", "finetune")
MAX_LINES = 550
MAX_FUNCTION_LINES = 50

# A module imports from its own package and from packages to its left. A module
# directly in `albert_tf` is a command, which may import from all packages.
ROOMS = """base text model data training tasks conversion finetuning serving tpu
library""".split()


def room(module: str) -> str:
    """Return a module's package in `albert_tf`, or "" for a command."""
    return module.rpartition(".")[0].split(".")[0]


def height(module: str) -> int:
    """Return the number of packages below a module's own package.

    Commands are above all packages.
    """
    name = room(module)
    return ROOMS.index(name) if name else len(ROOMS)


def module_files() -> dict[str, Path]:
    """Return {name: path} for the library's modules, except `__*__`."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
        if not path.name.startswith("__")
    }


MODULES = module_files()
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imported(tree: ast.Module) -> set[str]:
    """Return the full names that a file imports, even inside functions."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_imports(tree: ast.Module) -> set[str]:
    """Return the modules of `albert_tf` that a file imports."""
    names = {n.removeprefix("albert_tf.") for n in imported(tree)}
    return names & MODULES.keys()


COMMANDS = sorted(name for name in MODULES if not room(name))


def test_a_file_in_the_package_is_a_command():
    """A file directly in `albert_tf` does nothing but run one module's `cli`.

    All other modules are in the packages that `ROOMS` lists.
    """
    for name in COMMANDS:
        assert len(own_imports(TREES[name]) - {"base.program"}) == 1
        kinds = [type(node) for node in TREES[name].body]
        assert kinds == [ast.Expr, ast.ImportFrom, ast.With, ast.If]
    assert {room(name) for name in MODULES} - {""} == set(ROOMS)


def test_no_two_modules_of_rooms_have_one_name():
    """Modules of different packages have different names.

    Only a command may have the name of a module.
    """
    names = [n.rpartition(".")[2] for n in MODULES if n not in COMMANDS]
    assert sorted(set(names)) == sorted(names)


def test_imports_point_down():
    """No module imports from a higher package or a command."""
    upward = [
        f"{name} imports {other}"
        for name, tree in TREES.items()
        if room(name)
        for other in sorted(own_imports(tree))
        if height(other) > height(name)
    ]
    assert upward == []


def test_tests_mirror_the_rooms():
    """Each folder of test files is named after a package, or is an exception.

    The exceptions are `commands` and `demo`.
    """
    folders = {p.parent.name for p in (ROOT / "tests").rglob("test_*.py")}
    assert folders - {"tests"} <= {*ROOMS, "commands", "demo"}


def test_imports_make_no_circle():
    """The imports in the library form no cycle."""
    graph = {name: own_imports(tree) for name, tree in TREES.items()}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(
        MODULES
    )


def test_the_library_does_not_import_scripts():
    """No module imports the command-line scripts."""
    users = [n for n, t in TREES.items() if imported(t) & set(SCRIPTS)]
    assert users == []


def test_only_one_module_knows_absl():
    """Only `base.program` imports absl, so no other module reads flags."""
    users = [
        name
        for name, tree in TREES.items()
        if any(other.split(".")[0] == "absl" for other in imported(tree))
    ]
    assert users == ["base.program"]


def test_modules_are_short():
    """Modules and scripts have about 500 lines, and at most 550."""
    paths = [*MODULES.values(), *ROOT.glob("*.py")]
    lengths = {p.name: len(p.read_text().splitlines()) for p in paths}
    assert {k: n for k, n in lengths.items() if n > MAX_LINES} == {}


def test_functions_are_short():
    """Functions and methods of the package have at most 50 lines."""
    long = {
        f"{name}.{node.name}": node.end_lineno - node.lineno + 1
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    }
    assert long == {}


def test_the_library_does_not_assert():
    """The library has no `assert`, because `python -O` removes it."""
    users = [
        name
        for name, tree in TREES.items()
        if any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    ]
    assert users == []


def test_decorated_functions_keep_their_names():
    """Decorated functions in modules keep their qualified names."""
    hidden = set()
    for name in MODULES:
        with contextlib.suppress(ImportError):  # an optional package
            module = importlib.import_module(f"albert_tf.{name}")
            functions = inspect.getmembers(module, inspect.isfunction)
            hidden |= {
                f"{name}.{function}"
                for function, value in functions
                if value.__module__ == module.__name__
                and "<locals>" in value.__qualname__
            }
    assert hidden == set()


# Dataclasses that record the progress of a run.
MUTABLE = {"Pace", "Clock", "BudgetClock", "Window"}


def test_values_do_not_change():
    """Every dataclass is frozen, except those that record progress."""
    mutable = {
        node.name
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for decorator in map(ast.unparse, node.decorator_list)
        if decorator.startswith("dataclasses.dataclass")
        and "frozen=True" not in decorator
    }
    assert mutable == MUTABLE


def test_every_test_states_its_property():
    """Every test function has a docstring."""
    silent = [
        f"{path.name}: {node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def defined(path: Path) -> set[str]:
    """Return the names that a file defines, at any level."""
    return {
        getattr(node, "name", getattr(node, "id", ""))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_tables_of_the_code_name_what_exists(page):
    """The last cells of tables name files, and names that the code defines.

    The names are defined in the package or in a file that the cell names.
    """
    package = set().union(*map(defined, PACKAGE.rglob("*.py")))
    package |= {f"{p.name}/" for p in PACKAGE.rglob("*") if p.is_dir()}
    rows = (ROOT / page).read_text().splitlines()
    cells = [row.split("|")[-2] for row in rows if row.startswith("| ")]
    for cell in cells:
        words = re.findall("`([^-.` ][^` ]*)`", cell)
        paths = [p / word for p in (PACKAGE, ROOT) for word in words]
        files = [p for p in paths if p.is_file() and p.suffix == ".py"]
        names = package.union(*map(defined, files))
        for word in words:
            is_path = any(p.exists() for p in (PACKAGE / word, ROOT / word))
            name = word.partition("(")[0].rpartition(".")[2]
            assert is_path or name in names, word
    assert len(cells) > 10


@pytest.mark.parametrize(("command", "target"), PROJECT["scripts"].items())
def test_console_scripts_exist(command, target):
    """Each installed command refers to an existing function."""
    module, function = target.split(":")
    path = ROOT / (module.replace(".", "/") + ".py")
    assert path.exists(), command
    assert f"{function}\n" in path.read_text()
