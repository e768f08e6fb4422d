"""Texts and lengths that users pass are checked before rows are packed."""

import numpy as np
import pytest
import tensorflow as tf
from vocabularies import english

from albert_tf.base.errors import InputError
from albert_tf.text.packing import checked_texts, is_column, row_length


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        *(([], True), ((1,), True), (np.zeros(2), True), (iter("a"), True)),
        *(("a", False), (b"a", False), ({"a": 1}, False), ({1}, False)),
        *((3, False), (None, False)),
    ],
)
def test_columns_have_a_value_per_example(values, wanted):
    """Lists and arrays are columns, but texts, mappings and tables are not."""
    assert is_column(values) is wanted
    for name in ("columns", "column_names"):
        table = type("Table", (list,), {name: ()})
        assert not is_column(table())


@pytest.mark.parametrize(
    "values",
    [
        ["a", "\ufffd"],
        ("a", b"\xff"),
        np.array(["a", "\ufffd"]),
        tf.constant([b"a", b"\xff"]),
    ],
    ids=["list", "tuple", "array", "tensor"],
)
def test_texts_in_any_form(values):
    """Lists, arrays and tensors of strings or bytes become lists of strings."""
    assert checked_texts(values, "x") == ["a", "\ufffd"]


def test_texts_in_a_lazy_column():
    """A column of `datasets` in TensorFlow's format yields one tensor a row."""
    column = map(tf.constant, ["a", "b"])
    assert checked_texts(column, "x") == ["a", "b"]


def test_texts_in_chunks_of_arrow():
    """A column of a pyarrow table becomes a list of strings."""
    column = pytest.importorskip("pyarrow").chunked_array([["a"], ["b", "c"]])
    assert checked_texts(column, "x") == ["a", "b", "c"]


@pytest.mark.parametrize("form", [np.array, tf.constant])
def test_texts_may_have_a_spare_axis(form):
    """Texts [N, 1] are read as [N], like labels and weights.

    MLflow and scikit-learn convert a frame with a single column to such an
    array.
    """
    assert checked_texts(form([["a film"], ["b"]]), "x") == ["a film", "b"]
    with pytest.raises(InputError, match=r"Received: x\[0\]=\["):
        checked_texts(form([["a", "b"]]), "x")


@pytest.mark.parametrize(
    ("values", "received"),
    [
        ("a" * 99, f"x='{'a' * 59}"),
        (np.array("ab"), "x='ab'"),
        (["a", 3], r"x\[1\]=3"),
        (["a", "b", ["c" * 99]], rf"x\[2\]=\['{'c' * 58}"),
    ],
)
def test_values_that_are_no_texts(values, received):
    """The error quotes at most 60 characters of the first wrong value.

    The wrong value is a string instead of a list, or the first item that is not
    a string.
    """
    message = rf"`x` must be a list of strings. Received: {received}$"
    with pytest.raises(InputError, match=message):
        checked_texts(values, "x")


def test_the_shortest_row_has_three_tokens():
    """`max_length` must leave room for [CLS] and two [SEP].

    None means that there is no limit.
    """
    assert row_length(None) is None
    assert [row_length(n) for n in (3, np.int64(4))] == [3, 4]
    with pytest.raises(InputError, match="at least 3.*max_length=2"):
        row_length(2)
    with pytest.raises(InputError, match="`max_length` must be a whole"):
        row_length("3")


def test_inputs_for_texts_and_pairs():
    """Without `max_length`, rows are padded to the length of the longest row.

    With `max_length`, rows are padded or truncated to that length.
    """
    tokenizer = english()
    the, cat, at = (tokenizer.encode(text) for text in ("the", "cat", "at"))
    found = tokenizer(["the cat", "the"], ["", "at"])
    assert [*found] == ["input_ids", "input_mask", "segment_ids"]
    assert found["input_ids"].tolist() == [
        [2, *the, *cat, 3, 0, 0],
        [2, *the, 3, *at, 3],
    ]
    assert found["input_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    assert found["segment_ids"].tolist() == [[0] * 6, [0, 0, 0, 1, 1, 1]]
    assert {x.dtype for x in found.values()} == {np.dtype("int32")}
    with pytest.raises(InputError, match="texts=1, text_pairs=0$"):
        tokenizer(["the"], [])
    with pytest.raises(InputError, match="`text_pairs` must be a list"):
        tokenizer(["the"], "at")
    shapes = [
        tokenizer(["the cat"]),
        tokenizer(["the cat"], max_length=3),
        tokenizer(["the"], ["at"], max_length=9),
        tokenizer([]),
        tokenizer([], [], max_length=5),
    ]
    wanted = [(1, 4), (1, 3), (1, 9), (0, 3), (0, 5)]
    assert [found["input_ids"].shape for found in shapes] == wanted


def test_a_mask_in_a_text_is_the_mask():
    """`[MASK]` is a piece in either segment, unless `masks` is false."""
    tokenizer = english()
    text = "the [MASK] at"
    rows = tokenizer([text, "the"], ["[MASK]", ""])["input_ids"]
    ids = tokenizer.encode_masked(text)
    assert rows[0].tolist() == [2, *ids, 3, 4, 3] and 4 in ids
    assert rows[1].tolist()[:3] == [2, *tokenizer.encode("the"), 3]
    plain = tokenizer([text], masks=False)["input_ids"]
    assert plain.tolist() == [[2, *tokenizer.encode(text), 3]]
