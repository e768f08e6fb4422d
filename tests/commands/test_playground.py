"""The command of the page says what it lacks."""

import pytest

from albert_tf import playground


@pytest.mark.parametrize("there", [None, object()])
def test_a_missing_library_is_named(monkeypatch, there):
    """Before anything is loaded, and only where it is missing."""
    monkeypatch.setattr(
        playground.importlib.util, "find_spec", lambda name: there
    )
    if there:
        playground.check_packages()
    else:
        with pytest.raises(playground.InputError, match=r"albert-tf\[demo\]"):
            playground.check_packages()
