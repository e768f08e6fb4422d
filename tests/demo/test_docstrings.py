"""Documents of Python files, which are parsed and never run."""

from albert_tf.demo.docstrings import Document, documents

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

add_newdoc("lib", "name", """
    The compiled function is described here.
    """)

class Silent:
    pass
'''


def test_a_document_is_a_module_or_a_class():
    """Functions stand with their module or class, in the file's order."""
    assert documents("lib/file.py", SOURCE) == [
        Document(
            "lib/file.py",
            (
                "This module is the first of them.",
                "The function belongs to the module.",
                "The compiled function is described here.",
            ),
        ),
        Document(
            "lib/file.py:Outer",
            (
                "The outer class has a docstring.",
                "The method comes after its class.",
            ),
        ),
        Document("lib/file.py:Outer.Inner", ("The inner class is by itself.",)),
    ]


def test_the_language_reference_is_one_document_per_topic():
    """`pydoc_data/topics.py` holds its texts as strings of a dict."""
    source = b"topics = {'while': 'It repeats while the test is true.\\n'}\n"
    [document] = documents("python/pydoc_data/topics.py", source)
    assert document == Document(
        "python/pydoc_data/topics.py:while",
        ("It repeats while the test is true.",),
    )


def test_what_is_not_python_is_passed_over():
    """Templates, old Python and null bytes give no document, no error."""
    for source in (b'"""a"""\nprint 1', b'"""a"""\0', b'"""\xff\xfe"""'):
        assert documents("lib/file.py", source) == []
