"""All settings against `tests/testdata/settings.md`."""

import pytest
import settings_table


def test_settings_are_those_of_the_table():
    """No name, type, default, bound or choice changes unnoticed.

    `tests/settings_table.py` records the table anew.
    """
    pytest.importorskip("gradio")
    recorded = settings_table.PATH.read_text("utf-8")
    assert settings_table.table().splitlines() == recorded.splitlines()
