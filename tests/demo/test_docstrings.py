"""Extraction of English sentences from docstrings, checked by hand."""

import inspect

import docstrings
import pytest
from docstrings import Document, documents

SOURCE = b'''
"""This module is the first of them."""
raise SystemExit("the file must not be run")

class Outer:
    """The outer class has a docstring."""

    def method(self):
        "The method comes after its class."

        def hidden():
            """A function in a function is not listed."""

    class Inner:
        """The inner class is by itself."""

async def function():
    """The function belongs to the module."""

class Silent:
    pass
'''


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
    mix : Mix the colors of two images.

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

    Returns:
      A [list](https://example.org/list) of the rows that were found.

    ```python
    this = code(of_the, example)
    ```

    Use it as follows::

        literal = block(of_the, text)
"""


def test_a_document_is_a_module_or_a_class():
    """Functions belong to the document of their module or class, in order."""
    assert documents("lib/file.py", SOURCE) == [
        Document(
            "lib/file.py",
            (
                "This module is the first of them.",
                "The function belongs to the module.",
            ),
        ),
        Document(
            "lib/file.py:Outer",
            (
                "The outer class has a docstring.",
                "The method comes after its class.",
            ),
        ),
        Document("lib/file.py:Outer:Inner", ("The inner class is by itself.",)),
    ]


def test_what_is_not_python_is_passed_over():
    """Templates, Python 2 code and null bytes yield nothing and no error."""
    for source in (b'"""a"""\nprint 1', b'"""a"""\0', b'"""\xff\xfe"""'):
        assert documents("lib/file.py", source) == []


def test_numpydoc_leaves_its_sentences():
    """Signatures, titles, types, doctests, lists and tables are removed."""
    assert docstrings.sentences(inspect.cleandoc(NUMPY_STYLE)) == [
        "Return the weighted mean of two compatible arrays.",
        "The result has the shape of x, e.g. a column.",
        "It is computed in the precision that lib.result_type gives for both "
        "of the inputs.",
        "Both of the inputs are left as they are.",
        "The arrays to be blended.",
        "They must broadcast against each other.",
        "How much of y is in the result.",
        "A weight of one gives the second array.",
        "As in and in the chapters that follow it.",
    ]


def test_google_style_leaves_its_sentences():
    """Argument names and fenced code are removed; links keep their text."""
    assert docstrings.sentences(inspect.cleandoc(GOOGLE_STYLE)) == [
        "Applies the rule to every batch of the data.",
        "(Optional) The number of the rows, which is kept between two calls.",
        "A list of the rows that were found.",
        "Use it as follows.",
    ]


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("The title\n---------\nThe text.", ["The title", "The text."]),
        ("The cell   and the next.\n\nThe text.", ["The text."]),
        ("```python\nThe text.", ["The text."]),
        ("size: The text that\n  goes on.", ["The text that goes on."]),
        ("size : int\n  The text.", ["size : int", "The text."]),
        (":param size: The text.\nMore.", ["The text. More."]),
        ("- The one\n  item.\n- The other.", ["The one item.", "The other."]),
        (".. note:: The text.", ["The text."]),
        ("The one\n\n\nThe other", ["The one", "The other"]),
    ],
)
def test_each_kind_of_block_is_taken_apart(docstring, expected):
    """A docstring consists of blocks; only the lines of a block are joined."""
    paragraphs = docstrings.paragraphs(docstring)
    assert [text for text in paragraphs if text] == expected


PROSE = (
    "The cat sat on the mat.",
    "Return True if the path_name is absolute (on this system).",
    "lib.blend returns the mean of its arguments.",
)
OTHERS = (
    "x = [1, 2, 3] + y.",
    "This is it.",
    "The a_b of c_d is in e_f for the x_y.",
    "foo bar baz qux quux.",
    "See https://example.org for the rest of it.",
    "The value of \\alpha is in the range.",
    "Die Katze sitzt auf der Matte.",
    "(1, 2) (3, 4) (5, 6) is the list.",
)


@pytest.mark.parametrize("text", PROSE + OTHERS)
def test_english_is_prose(text):
    """Code, addresses, formulas and lists of names are not prose."""
    assert docstrings.is_prose(text) == (text in PROSE)


def test_missing_capitals_and_stops_are_added():
    """Capitals and full stops are added, but no identifier is changed."""
    assert docstrings.whole_sentence("return the list:") == "Return the list."
    assert docstrings.whole_sentence("np.max is a name") == "np.max is a name."
    assert docstrings.whole_sentence("By Goyal et al..") == "By Goyal et al."
