"""The names in `albert_tf`, and the cost of importing the package."""

import ast
import copy
import importlib
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import albert_tf

PAGE = Path(__file__).parent.parent / "docs/python.md"


def test_the_names_are_those_of_the_page():
    """The public names are exactly the documented names."""
    documented = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(albert_tf.PUBLIC)
    assert albert_tf.__all__ == sorted(albert_tf.PUBLIC)
    assert set(albert_tf.PUBLIC) <= set(dir(albert_tf))


@pytest.mark.parametrize("name", albert_tf.PUBLIC)
def test_every_name_loads(name):
    """Each public name refers to a documented object in its module."""
    value = getattr(albert_tf, name)
    module = importlib.import_module(albert_tf.PUBLIC[name])
    assert value is getattr(module, name)
    assert value.__doc__


def test_type_checkers_see_the_names(tmp_path):
    """The built package has a stub that imports every name from its module.

    The package also has the marker file `py.typed`.
    """
    setup = [sys.executable, "setup.py", "-q", "build_py", f"-d{tmp_path}"]
    subprocess.run(setup, check=True, cwd=PAGE.parents[1], capture_output=True)
    tree = ast.parse((tmp_path / "albert_tf/__init__.pyi").read_text())
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
    assert albert_tf.PUBLIC == {n.names[0].asname: n.module for n in imports}
    assert (tmp_path / "albert_tf/py.typed").exists()


def test_an_unknown_name_is_missing():
    """An unknown name raises AttributeError, as in other modules."""
    with pytest.raises(AttributeError, match="no attribute 'AlbertMobel'"):
        albert_tf.AlbertMobel  # noqa: B018


def test_an_input_error_is_a_value_error():
    """`InputError` is a subclass of `ValueError`."""
    assert issubclass(albert_tf.InputError, ValueError)


def test_a_command_does_not_hide_a_name(monkeypatch):
    """Importing a command's module does not hide a function with its name."""
    monkeypatch.delitem(sys.modules, "albert_tf.describe", raising=False)
    monkeypatch.setitem(albert_tf.PUBLIC, "describe", "albert_tf.base.errors")
    function = lambda: None  # noqa: E731
    monkeypatch.setattr(albert_tf, "describe", function, raising=False)
    importlib.import_module("albert_tf.describe")
    assert albert_tf.describe is function


def test_the_package_is_pickled_by_name():
    """The module can be pickled and copied like an ordinary module.

    Otherwise, cloudpickle cannot send functions that use `albert_tf` to other
    processes.
    """
    assert pickle.loads(pickle.dumps(albert_tf)) is albert_tf
    assert copy.deepcopy({"module": albert_tf})["module"] is albert_tf


def test_the_import_alone_does_nothing():
    """`import albert_tf` changes no environment variable.

    The import loads neither TensorFlow nor Keras nor NumPy.
    """
    program = (
        "import os, sys; before = dict(os.environ); import albert_tf;"
        "assert dict(os.environ) == before;"
        "albert_tf.InputError;"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
