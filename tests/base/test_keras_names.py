"""Keras finds this package's classes, whatever is imported first."""

import os

import programs
import pytest
from tiny_corpus import ROOT

KERAS = """
import types
known = {}
saving = types.SimpleNamespace(get_custom_objects=lambda: known)
"""
FIND = "importlib.util.find_spec('keras')"  # does not import Keras


@pytest.mark.parametrize(
    "order",
    [
        "import albert_tf, keras",
        "import keras, albert_tf",
        f"import albert_tf; {FIND}; import keras",
        f"{FIND}; import albert_tf; {FIND}; {FIND}; import keras",
    ],
)
def test_names_are_there_once_keras_is(order, tmp_path):
    """Keras finds this package's classes once both packages are imported.

    The order of the imports does not matter.
    """
    (tmp_path / "keras.py").write_text(KERAS)
    code = f"import importlib.util; {order}; print(len(keras.known))"
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    assert int(programs.fresh("-c", code, env=os.environ | environment)) > 10
