"""Docstrings in, English sentences out; expectations written by hand."""

import inspect

import pytest

from albert_tf.demo import prose

NUMPY_STYLE = """
    blend(x, y, weight=0.5)

    Return the weighted mean of two *compatible* arrays.

    The result has the shape of ``x``, e.g. a column. It is computed in the
    precision that :func:`~lib.result_type` gives for both of the inputs.

    .. versionadded:: 1.2
       Not a sentence of the text.

    .. note:: Both of the inputs are left as they are.

    Parameters
    ----------
    x, y : array_like, optional
        The arrays to be blended. They must broadcast against each other.
    weight : float
        How much of `y` is in the result.

    See Also
    --------
    mix : Mix the colours of two images.

    Examples
    --------
    A weight of one gives the second array:

    >>> blend(x, y, 1)
    This is what the doctest prints as its result.

    as in [1]_ and in the chapters that follow it.

    =====  =================
    name   The cell of a table is not a sentence.
    =====  =================
"""

GOOGLE_STYLE = """Applies the rule to every batch of the data

    Args:
      size: (Optional) The number of the rows, which is kept
        between two calls.
      name: str
        The name that is shown in the `progress` bar.

    Returns:
      A [list](https://example.org/list) of the rows that were found.

    ```python
    this = code(of_the, example)
    ```

    Use it as follows::

        This is a literal block of the text.
"""


def test_numpydoc_leaves_its_sentences():
    """Signatures, titles, types, doctests, lists of names and tables go."""
    assert prose.sentences(inspect.cleandoc(NUMPY_STYLE)) == [
        "Return the weighted mean of two compatible arrays.",
        "The result has the shape of x, e.g. a column.",
        "It is computed in the precision that lib.result_type gives for both "
        "of the inputs.",
        "Both of the inputs are left as they are.",
        "The arrays to be blended.",
        "They must broadcast against each other.",
        "How much of y is in the result.",
        "A weight of one gives the second array.",
        "As in the references and in the chapters that follow it.",
    ]


def test_google_style_leaves_its_sentences():
    """Names of arguments, fences and literal blocks go; links keep a text."""
    assert prose.sentences(inspect.cleandoc(GOOGLE_STYLE)) == [
        "Applies the rule to every batch of the data.",
        "The number of the rows, which is kept between two calls.",
        "The name that is shown in the progress bar.",
        "A list of the rows that were found.",
        "Use it as follows.",
    ]


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("```\nThe code.\n```\nThe text.", ["The text."]),
        (">>> code()\nThe output.\n\nThe text.", ["The text."]),
        ("The title\n---------\nThe text.", ["The text."]),
        ("See Also\n--------\nThe name.\n\nThe other.", []),
        ("The cell   and the next.\n\nThe text.", ["The text."]),
        ("+-----+\n| The |\n+-----+\nThe text.", ["The text."]),
        ("name(the, rest) -> the result\nThe text.", ["The text."]),
        ("size: int\n  The text.", ["The text."]),
        ("size: The text that\n  goes on.", ["The text that goes on."]),
        ("size : int, the default is 1\nThe text.", ["The text."]),
        (":param size: The text.\n:rtype: The type.", ["The text."]),
        ("- The one\n  item.\n- The other.", ["The one item.", "The other."]),
        (".. math::\n   The formula.\n\nThe text.", ["The text."]),
        ("So it is::\n\n  The code.\n\nThe text.", ["So it is:", "The text."]),
    ],
)
def test_each_kind_of_block_is_taken_out(docstring, expected):
    """What is not running text goes; what stands around it stays whole."""
    assert prose.paragraphs(docstring) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It works. So does this.", ["It works.", "So does this."]),
        ("See J. Smith, i.e. The author.", ["See J. Smith, i.e. The author."]),
        ('He said "no." Then he left.', ['He said "no."', "Then he left."]),
        ("Of version 2.5 only. 3 are left.", None),
        ("Is it? Yes! (Of course.)", ["Is it?", "Yes!", "(Of course.)"]),
        (
            "Use tf.data or np.max. it fails.",
            ["Use tf.data or np.max. it fails."],
        ),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text, expected):
    """Sentences end at stops, not in numbers, names or abbreviations."""
    expected = expected or ["Of version 2.5 only.", "3 are left."]
    assert prose.split_sentences(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "The cat sat on the mat.",
        "Return True if the path_name is absolute (on this system).",
        "lib.blend returns the mean of its arguments.",
    ],
)
def test_english_is_prose(text):
    """Sentences with a few identifiers in them pass."""
    assert prose.is_prose(text)


@pytest.mark.parametrize(
    "text",
    [
        "x = [1, 2, 3] + y.",
        "This is it.",
        "The a_b of c_d is in e_f for the x_y.",
        "foo bar baz qux quux.",
        "See https://example.org for the rest of it.",
        "The value of \\alpha is in the range.",
        "Die Katze sitzt auf der Matte.",
        "(1, 2) (3, 4) (5, 6) is the list.",
    ],
)
def test_code_and_names_are_not_prose(text):
    """Code, addresses, formulas and mere lists of names do not pass."""
    assert not prose.is_prose(text)


def test_missing_capitals_and_stops_are_added():
    """A summary without its stop becomes a sentence; identifiers stay."""
    assert prose.whole_sentence("return the list:") == "Return the list."
    assert prose.whole_sentence("np.max is a name") == "np.max is a name."
    assert prose.whole_sentence("By Goyal et al..") == "By Goyal et al."
