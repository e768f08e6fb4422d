"""A flagfile reproduces the settings of each program."""

import contextlib
import importlib

import programs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from project_file import PROJECT
from properties import examples, texts

from albert_tf.base import program
from albert_tf.base.errors import InputError
from albert_tf.base.settings import flagfile, types_of

# Programs that write a flagfile; they come first in `MODULES`.
WRITERS = [f"albert_tf.{name}" for name in ("pretrain", "finetune", "shrink")]
OTHERS = {place.partition(":")[0] for place in PROJECT["scripts"].values()}
MODULES = [*WRITERS, *sorted(OTHERS - {*WRITERS})]
# Settings that other settings require.
NEEDED = {"model_dir": "m", "do_eval": True}
ENDINGS = {"output_file": ".npy"}
WORDS = ["a,b", '"', "a b", "--x", "#", "=", "1e-5", "true", "None", "~/", "é"]
TEXT = texts(*WORDS, without="\n\r\0", most=4).map(str.strip)


def numbers(field, kind):
    """Return a strategy for the legal numbers of a field."""
    low, high = field.metadata["minimum"], field.metadata["maximum"]
    if kind is int:
        return st.integers(low, high)
    return st.floats(low, high, allow_nan=False, allow_infinity=False)


def values_of(field):
    """Return a strategy for values that pass a setting's own checks."""
    types, choices = types_of(field), field.metadata["choices"]
    legal = [st.sampled_from(choices)] if choices else []
    for kind in types:
        if kind is bool:
            legal.append(st.booleans())
        elif kind in (int, float):
            legal.append(numbers(field, kind))
        elif kind is str and not choices:
            legal.append(TEXT)
        elif kind is tuple:
            entries = st.sampled_from(WORDS) | TEXT
            legal.append(st.lists(entries, max_size=3).map(tuple))
    return st.one_of(legal)


@contextlib.contextmanager
def defined(record):
    """Define the flags of a program while the block runs."""
    with programs.temporary_flags():
        record.define_flags()
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return the path of a flagfile."""
    return tmp_path_factory.mktemp("flags") / "run.flags"


@pytest.mark.slow_after(len(WRITERS))
@pytest.mark.parametrize("module", MODULES)
@examples(10)
@given(data=st.data())
def test_a_flagfile_replays_any_settings(module, path, data):
    """Settings with any legal values survive being written and read."""
    record = importlib.import_module(module).cli.__self__
    fields = record.fields()
    required = [n for n, f in fields.items() if record.required(f)]
    # Few settings are lists, but they have the most rules.
    lists = [n for n, f in fields.items() if types_of(f) == (tuple,)]
    some = st.sampled_from([*fields, *lists * 5])
    optional = st.lists(some, max_size=4, unique=True)
    names = {*required, *data.draw(optional, "settings")}
    values = {name: x for name, x in NEEDED.items() if name in fields}
    for name in sorted(names):
        values[name] = data.draw(values_of(fields[name]), name)
        if name in ENDINGS:
            values[name] += ENDINGS[name]
    try:
        configs = record.configs(**values)
    except InputError:  # settings that contradict each other
        assume(False)
    lines = flagfile(*configs)
    assert "\n#" not in f"\n{lines}"
    path.write_text(lines, encoding="utf-8", newline="")
    with defined(record):
        program._parse(["program", f"--flagfile={path}"])
        assert record.from_flags() == configs
