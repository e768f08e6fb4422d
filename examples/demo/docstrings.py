"""Extract English sentences from docstrings without importing the modules.

A document consists of the docstrings of a module and its functions, or of a
class and its methods, in file order.
"""

import ast
import dataclasses
import re
import warnings
from collections.abc import Iterator

import sentencex


@dataclasses.dataclass(frozen=True)
class Document:
    """The prose of a module or class, whose name is `path/file.py:Class`."""

    name: str
    sentences: tuple[str, ...]


# A rule of a table, an underline of a title, a code fence, or a row of columns
# separated by spaces.
RULE = re.compile(r"\s*([-=~^*#+`|])\1\1.*|.*[^\s.?!:] {2,}\S.*")
# The markup before the text of a list item, an argument or a note.
ITEM = re.compile(
    r"\s*([-*+•] |\(?\w{1,2}[.)] |\.\. \w+:: |:\w[^:]*: "
    r"|[`*]*\w[\w.]*[`*]*( ?\([^)]*\))?: (?=\S))\s*"
)
CODE = (">>>", "...", "$ ", "In [", "@", "#")

MARKUP = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"!?\[([^\]]+)\]\(\S*?\)", r"\1"),  # [text](address)
        (r" ?<https?:[^>]*>", ""),  # `text <address>`_
        (r":[\w:+-]+:`[~!.]*", ""),  # :class:`~name`
        (r"`+_*|(?<!\w)\*+(?=\w)|(?<=[\w.])\*+(?!\w)|</?\w+/?>", ""),
        (r"\[\d+\]_", ""),
        (r"\s+", " "),
        (r" (?=[.,;:](\s|$))", ""),
    )
)

COMMON_WORDS = frozenset(
    """a an the of to in on at by for from with as into and or but if when
    while that which this these those it its is are was be been has have can
    may will should must not no all each any only than then where there how
    what whether until after before so such also other same more""".split()
)
WORD = re.compile(r"[\"'(\[]*[A-Za-z][A-Za-z'-]*[.,;:!?\"')\]]*")
NEVER = re.compile(r"https?:|[\\{}]|\.\.\.|--|::|^[a-z]\w*:")
ENDS = (".", "!", "?", '."', ".)", ".'", '?"', "?)", '!"')


def paragraphs(docstring: str) -> Iterator[str]:
    """Yield paragraphs, which end at a blank line, item or new indentation."""
    current, depth = [], None
    for line in [*docstring.expandtabs().split("\n"), ""]:
        indent = len(line) - len(line.lstrip())
        item = ITEM.match(line)
        apart = not line.strip() or RULE.fullmatch(line)
        if apart or item or depth not in (None, indent):
            yield " ".join(current)
            current = []
        # Continuation lines of an item may have any deeper indentation.
        depth = None if apart or item else indent
        if not apart:
            current.append(line[item.end() :] if item else line.strip())


def whole_sentence(text: str) -> str:
    """Add the capital letter and full stop that docstrings may omit."""
    text = text.strip()
    if re.match(r"[a-z][a-z'-]*,?\s", text):
        text = text[0].upper() + text[1:]
    text = re.sub(r"\.\.$", ".", text.rstrip(":;, "))
    return text if text.endswith(ENDS) else text + "."


def is_prose(sentence: str) -> bool:
    """Return whether a sentence is English prose, not symbols or names."""
    words = sentence.split()
    if not 4 <= len(words) <= 80 or NEVER.search(sentence):
        return False
    plain = sum(WORD.fullmatch(word) is not None for word in words)
    common = sum(word.lower() in COMMON_WORDS for word in words)
    symbols = len(re.findall(r"[^\w\s.,;:!?'\"()-]", sentence))
    return (
        plain >= 0.75 * len(words)
        and common >= max(1, 0.12 * len(words))
        and symbols <= 0.03 * len(sentence)
        and sentence.isascii()
        and re.match(r"[\"'(]?[A-Za-z]", sentence) is not None
    )


def sentences(docstring: str) -> list[str]:
    """Return the English sentences in a docstring, in order."""
    found = []
    for text in paragraphs(docstring):
        if not text or text.startswith(CODE):
            continue
        for pattern, plain in MARKUP:
            text = pattern.sub(plain, text)
        # A segment without a space at its end was cut inside a name, such as
        # `tf.data.Dataset`.
        segments = sentencex.segment("en", text)
        ends = [s + "\n" if s[-1].isspace() else s for s in segments if s]
        found += [whole_sentence(s) for s in "".join(ends).splitlines()]
    return [sentence for sentence in found if is_prose(sentence)]


def docstrings(name: str, node: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the docstrings of a module and of each class in it."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    speaking = [n for n in node.body if isinstance(n, functions)]
    yield name, [ast.get_docstring(n) or "" for n in (node, *speaking)]
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from docstrings(f"{name}:{child.name}", child)


def documents(name: str, source: bytes) -> list[Document]:
    """Return a file's documents with prose, or [] if it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    found = [
        Document(title, tuple(s for text in texts for s in sentences(text)))
        for title, texts in docstrings(name, tree)
    ]
    return [document for document in found if document.sentences]
