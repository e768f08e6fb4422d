"""The command names a missing library."""

import importlib

import pytest

from albert_tf.base.errors import InputError
from albert_tf.serving import playground


def test_a_missing_library_is_named(monkeypatch):
    """The error comes before anything is loaded."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"albert-tf\[demo\]"):
        playground.playground(saved_model="none")
