"""Documents out of the docstrings of Python files, nothing imported.

A document is a module (its docstring and those of its functions) or a class
(its docstring and those of its methods), in the order of the file.
"""

import ast
import dataclasses
import inspect
import warnings
from collections.abc import Iterator

from albert_tf.demo.prose import sentences


@dataclasses.dataclass(frozen=True)
class Document:
    """The prose of one module or class; the name is `path/file.py:Class`."""

    name: str
    sentences: tuple[str, ...]


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _call_strings(node: ast.stmt) -> list[str]:
    """Return the strings of `add_newdoc(...)`, docs of compiled code."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return []
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    if name != "add_newdoc":
        return []
    constants = [n for n in ast.walk(call) if isinstance(n, ast.Constant)]
    return [c.value for c in constants if isinstance(c.value, str)]


def _docstrings(node: ast.Module | ast.ClassDef) -> list[str]:
    """Return a module's or class's docstring and its functions', in order."""
    found = [ast.get_docstring(node)]
    for child in node.body:
        if isinstance(child, _FUNCTIONS):
            found.append(ast.get_docstring(child))
        else:
            found += map(inspect.cleandoc, _call_strings(child))
    return [text for text in found if text]


def _topics(name: str, tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Yield the language reference that `pydoc_data/topics.py` holds."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for topic, text in ast.literal_eval(node.value).items():
                yield f"{name}:{topic}", [text]


def _module_and_classes(
    name: str, node: ast.Module | ast.ClassDef
) -> Iterator[tuple[str, list[str]]]:
    yield name, _docstrings(node)
    separator = ":" if isinstance(node, ast.Module) else "."
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from _module_and_classes(name + separator + child.name, child)


def docstrings(name: str, source: bytes) -> Iterator[tuple[str, list[str]]]:
    """Yield (document name, docstrings) for a module and each of its classes.

    Args:
      name: the file's name, the start of the documents' names.
      source: the file's bytes; a file that is not Python yields nothing.
    """
    # Parsing is slow. The last mark is for the strings of `pydoc_data`.
    if not any(mark in source for mark in (b'"""', b"'''", b"\\n")):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    if name.endswith("pydoc_data/topics.py"):
        yield from _topics(name, tree)
    yield from _module_and_classes(name, tree)


def documents(name: str, source: bytes) -> list[Document]:
    """Return the documents of a Python file that hold any prose."""
    found = []
    for title, texts in docstrings(name, source):
        prose = tuple(s for text in texts for s in sentences(text))
        if prose:
            found.append(Document(title, prose))
    return found
