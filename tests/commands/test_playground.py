"""The command of the page says what it lacks."""

import importlib

import pytest

from albert_tf.base.errors import InputError
from albert_tf.serving import playground


def test_a_missing_library_is_named(monkeypatch):
    """Before anything is loaded."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"albert-tf\[demo\]"):
        playground.playground(saved_model="none")
