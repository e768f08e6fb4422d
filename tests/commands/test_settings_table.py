"""All settings match `tests/testdata/settings.md` and `--help`."""

import dataclasses
import re

import pytest
import settings_table

from albert_tf.base import help_page
from albert_tf.base.errors import InputError
from albert_tf.base.removed_flags import without_removed


def test_settings_are_those_of_the_table():
    """No name, type, default, bound or choice changes unnoticed.

    `tests/settings_table.py` updates the table.
    """
    pytest.importorskip("gradio")
    recorded = settings_table.PATH.read_text("utf-8")
    assert settings_table.table().splitlines() == recorded.splitlines()


def test_help_has_each_flag_once_with_a_default_that_means_something():
    """`--help` lists every flag once and explains defaults such as -1."""
    pytest.importorskip("gradio")
    for program, name in settings_table.programs():
        page = help_page.page(program, "")
        found = re.findall(r"^  --(?:\[no\])?(\w+)", page, re.M)
        assert sorted(found) == sorted(program.fields()), name
        assert not re.search(r"Default: +(None|-\d+)\.\s", page), name


def test_every_class_of_settings_checks_every_value():
    """No class of settings can be created with a value of a wrong type."""
    pytest.importorskip("gradio")
    classes = {c for p, _ in settings_table.programs() for c in p.classes}
    assert len(classes) > 25
    for cls in classes:
        for field in dataclasses.fields(cls):
            with pytest.raises(InputError, match=f"`{field.name}` must be"):
                cls(**{field.name: object()})


@pytest.mark.parametrize("command", ["pretrain", "finetune", "shrink"])
def test_run_flags_written_before_flags_were_removed_replay(command):
    """Every flag in an old `run.flags` still exists or is listed as removed."""
    path = settings_table.PATH.parent / "run_flags" / f"{command}.flags"
    lines = path.read_text("utf-8").splitlines()
    (fields,) = (
        program.fields()
        for program, name in settings_table.programs()
        if name == command
    )
    remaining = without_removed(lines, fields)
    assert {line[2:].split("=")[0] for line in remaining} <= fields.keys()
    assert len(remaining) < len(lines)
