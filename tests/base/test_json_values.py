"""JSON values have the types that the code declares."""

import dataclasses

import pytest

from albert_tf.base.errors import InputError
from albert_tf.base.json_values import field, flag_in, typed


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a document."""

    size: int


@dataclasses.dataclass(frozen=True)
class Document:
    """A document with values of all types."""

    parts: dict[str, tuple[Part, ...]]
    rate: float
    names: list[str]
    flag: bool | None = None
    others: dict = dataclasses.field(default_factory=dict)


VALUES = {"parts": {"a": [{"size": 3}]}, "rate": 1, "names": ["x"]}


def test_a_document_becomes_a_dataclass():
    """Objects become dataclasses, lists become tuples, and defaults apply."""
    assert typed(Document, VALUES, "x") == Document(
        {"a": (Part(3),)}, 1, ["x"], None, {}
    )
    flags = typed(Document, VALUES | {"flag": True, "others": {"a": 1}}, "x")
    assert (flags.flag, flags.others) == (True, {"a": 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": [3]}, "`parts` must be an object. Received: parts=[3]"),
        ({"parts": {"a": 3}}, "`parts` must be a list. Received: parts=3"),
        ({"parts": {"a": ["b"]}}, "`parts` must be an object. Received: par"),
        ({"parts": {"a": [{"size": 3.0}]}}, "`size` must be a whole number"),
        ({"parts": {"a": [{"size": True}]}}, "`size` must be a whole number"),
        ({"parts": {"a": [{}]}}, "`size` must be a whole number. Received: si"),
        ({"rate": "1"}, "`rate` must be a number. Received: rate='1'"),
        ({"rate": False}, "`rate` must be a number. Received: rate=False"),
        ({"names": "x"}, "`names` must be a list. Received: names='x'"),
        ({"names": ["x", None]}, "`names` must be a string. Received: names="),
        ({"flag": 1}, "`flag` must be true or false. Received: flag=1"),
        ({"more": 1}, "The keys of `x` must be parts, rate, names, flag, oth"),
        ({"": 1}, "The keys of `x` must be parts, rate, names, flag, others."),
    ],
)
def test_wrong_types_are_named(changes, message):
    """The error names the innermost key whose value has another type."""
    with pytest.raises(InputError) as error:
        typed(Document, VALUES | changes, "x")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("values", [{"b": 1}, {"a": "1"}, {"a": True}, [1], 1])
def test_a_field_must_have_its_type(values):
    """The error for a field begins with the location of its object."""
    assert field({"a": 1}, "a", int, "x.json") == 1
    with pytest.raises(InputError, match="^x.json: `a` must be a whole numb"):
        field(values, "a", int, "x.json")


def test_flags_in_json_may_be_strings():
    """In JSON, true and false may be numbers or strings, such as 1 or "true".

    A missing, empty or null value is None; other values raise an error.
    """
    values = {"a": "False", "b": " TRUE ", "c": 1, "d": 0.0, "e": "", "f": None}
    found = [flag_in(values, name, "x.json") for name in "abcdefg"]
    assert found == [False, True, True, False, None, None, None]
    numbers = [flag_in({"a": x}, "a", "x.json") for x in ("0", "1", 0)]
    assert numbers == [False, True, False]
    for value, shown in ((2, "2"), ("no", "'no'"), ([0], "[0]")):
        with pytest.raises(InputError) as error:
            flag_in({"a": value}, "a", "x.json")
        rule = "x.json: `a` must be true or false. Received: a="
        assert str(error.value) == rule + shown
    with pytest.raises(InputError, match=f"a='{'x' * 59}$"):
        flag_in({"a": "x" * 99}, "a", "x.json")
