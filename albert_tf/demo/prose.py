"""English sentences out of a docstring.

Code, doctests, tables, signatures and section titles go; what stays is
stripped of its markup and split into sentences.
"""

import re
from collections.abc import Callable

# --- From a docstring to paragraphs -----------------------------------------


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _next_line(lines: list[str], i: int) -> str:
    return lines[i + 1] if i + 1 < len(lines) else ""


def _block_end(lines: list[str], i: int) -> int:
    """Return where the lines that are indented deeper than line i end."""
    depth = _indent(lines[i])
    end = i + 1
    while end < len(lines) and (
        not lines[end].strip() or _indent(lines[end]) > depth
    ):
        end += 1
    return end


def _drop_fences(lines: list[str]) -> list[str]:
    """Blank out Markdown code between ``` or ~~~ lines."""
    kept, inside = [], False
    for line in lines:
        fence = line.lstrip().startswith(("```", "~~~"))
        inside ^= fence
        kept.append("" if fence or inside else line)
    return kept


def _drop_doctests(lines: list[str]) -> list[str]:
    """Blank out `>>>` lines and what they print, up to an empty line."""
    kept, inside = [], False
    for line in lines:
        inside = bool(line.strip()) and (
            inside or line.lstrip().startswith((">>>", "In [", "$ "))
        )
        kept.append("" if inside else line)
    return kept


_DIRECTIVE = re.compile(r"\s*\.\. ?([\w|\[\]: -]*?)::\s*(.*)$")
_FOOTNOTE = re.compile(r"\s*\.\. ")
_PROSE_DIRECTIVES = frozenset("note warning tip important caution hint".split())


def _drop_directives(lines: list[str]) -> list[str]:
    """Blank out reST directives, footnotes and literal blocks with their body.

    The text of notes and warnings stays.
    """
    kept: list[str] = []
    i = 0
    while i < len(lines):
        line, end = lines[i], i + 1
        directive = _DIRECTIVE.match(line)
        if directive and directive[1] in _PROSE_DIRECTIVES:
            line = directive[2]
        elif directive or _FOOTNOTE.match(line):
            line, end = "", _block_end(lines, i)
        elif line.rstrip().endswith("::") or (
            line.rstrip().endswith(":") and not _next_line(lines, i).strip()
        ):
            line, end = line.rstrip(": "), _block_end(lines, i)
            line = f"{line}:" if line else ""
        kept.append(line)
        kept += [""] * (end - i - 1)
        i = end
    return kept


_UNDERLINE = re.compile(r"\s*([-=~^*#+\"'])\1{2,}\s*$")
_NAME_LISTS = frozenset(["See Also", "See also", "References", "Methods"])


def _drop_titles(lines: list[str]) -> list[str]:
    """Blank out underlined titles, and whole sections of mere names."""
    kept, skipping = list(lines), False
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        if line.lstrip().startswith("# "):
            kept[i] = ""
        if _UNDERLINE.match(_next_line(lines, i)):
            skipping = line.strip() in _NAME_LISTS
            kept[i] = kept[i + 1] = ""
        elif skipping:
            kept[i] = ""
    return kept


# A table's rule, a row between bars, or columns set apart by spaces.
_TABLE = re.compile(r"\s*([-=+]{3}|[|+])|.*\|\s*$|\s*\S.*[^\s.?!:] {2,}\S")
_SIGNATURE = re.compile(
    r"\s*[\w.\[\]]+\(.*\)(\s*(->|--|=|:).*)?$|\s*:(r?type|raises?)\b.*|\s*@\w+"
)


def _drop_tables(lines: list[str]) -> list[str]:
    return [
        "" if _TABLE.match(line) or _SIGNATURE.match(line) else line
        for line in lines
    ]


def _is_heading(lines: list[str], i: int) -> bool:
    """Say whether line i is `name : type`, `Args:` or such, above its text."""
    line, below = lines[i], _next_line(lines, i)
    if re.match(r"\s*[\w*, `.]+ : ", line + " "):
        return True
    above = lines[i - 1] if i else ""
    starts = not above.strip() or _indent(above) > _indent(line)
    stands_above = bool(below.strip()) and _indent(below) > _indent(line)
    # After `name:` two words are a type, more are the text.
    argument = re.match(r"\s*[\w*`]+( \(.*?\))?: \S", line)
    return (
        starts
        and stands_above
        and len(line.split()) <= (3 if argument else 6)
        and not re.match(r"\s*([-*+•]|\d+[.)]) |.*\.\s*$", line)
    )


def _drop_headings(lines: list[str]) -> list[str]:
    return [
        "" if line.strip() and _is_heading(lines, i) else line
        for i, line in enumerate(lines)
    ]


FILTERS: tuple[Callable[[list[str]], list[str]], ...] = (
    _drop_fences,
    _drop_doctests,
    _drop_directives,
    _drop_titles,
    _drop_tables,
    _drop_headings,
)

# What may stand before the text of a list item, an argument or a field.
_ITEM = re.compile(
    r"\s*(?:[-*+•]\s+|\(?(?:\d+|[a-zA-Z])[.)]\s+|:\w+[^:]*:\s+|[\w*]+ --? "
    r"|[`*]*[A-Za-z_][\w.]*[`*]*(?:\s*\([^)]*\))?\s*:\s+(?=\S))"
)


def paragraphs(docstring: str) -> list[str]:
    """Return the running text of a docstring, one string per paragraph."""
    lines = docstring.expandtabs().split("\n")
    for drop in FILTERS:
        lines = drop(lines)
    found, current = [], []
    for line in [*lines, ""]:
        item = _ITEM.match(line)
        if item or not line.strip():
            found.append(" ".join(current))
            current = []
        text = line[item.end() :] if item else line
        current += text.split()
    return [text for text in found if text]


# --- From a paragraph to sentences ------------------------------------------

_MARKUP: tuple[tuple[re.Pattern, str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"!?\[([^\]]+)\]\(\S*?\)", r"\1"),  # [text](address)
        (r"`+([^`<]+?)\s*<[^>]*>`+_*", r"\1"),  # `text <address>`_
        (r":[\w:+-]+:`+[~!.]*([^`]*)`+", r"\1"),  # :class:`~name`
        (r"`+([^`]*)`+_*", r"\1"),  # `name` and ``name``
        (r"(?<![\w*])(\*\*?)(?=\w)([^*]+?)(?<=\S)\1(?!\w)", r"\2"),  # *term*
        (r"\\[()]|\$", ""),
        (r"</?\w+/?>", ""),
        (r"\b([Ii]n|[Ss]ee|by|of|from|to) \[\d+\]_", r"\1 the references"),
        (r"\[\d+\]_|\|(\w+)\|", r"\1"),  # [1]_ and |name|
        (r"\s+([.,;:!?])(?=\s|$)", r"\1"),
        (r"[“”]", '"'),
        (r"[‘’]", "'"),
        (r"\s*(–|—|---?)\s*", " - "),
        (r"^\([^()]{2,30}\)[:,.]? ", ""),  # (int, optional)
        (r"\s+", " "),
    ]
)


def plain_text(paragraph: str) -> str:
    """Return a paragraph without reST and Markdown markup."""
    for pattern, replacement in _MARKUP:
        paragraph = pattern.sub(replacement, paragraph)
    return paragraph.strip()


# A dot after these, or after an initial, does not end a sentence.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"])(?:[A-Z]|[eE]\.g|[iI]\.e|etc|[cC]f|vs|resp|approx|[Ff]ig"
    r"|[Ee]qs?|[Ss]ec|[Rr]efs|[Nn]os|[Vv]ol|pp?|Dr|Mr|al|St|viz|[Cc]h|Inc)\.$"
)
_BREAK = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])")


def split_sentences(paragraph: str) -> list[str]:
    """Split at `.`, `!` or `?` before a capital, but not after `e.g.`."""
    found, start = [], 0
    for match in _BREAK.finditer(paragraph):
        if _ABBREVIATION.search(paragraph[start : match.start()]):
            continue
        found.append(paragraph[start : match.end()].strip())
        start = match.end()
    return [*found, paragraph[start:].strip()]


_COMMON_WORDS = frozenset(
    """a an the of to in on at by for from with as into and or but if when
    while that which this these those it its is are was be been has have can
    may will should must not no all each any only than then where there how
    what whether until after before so such also other same more""".split()
)
_WORD = re.compile(r"[\"'(\[]*[A-Za-z][A-Za-z'’-]*[.,;:!?\"')\]]*")
_NEVER = re.compile(r"https?:|[\\{}]|\.\.\.|--")
_ENDS = (".", "!", "?", '."', ".)", ".'", '?"', "?)", '!"')


def whole_sentence(text: str) -> str:
    """Return a sentence with its capital and its end, which docs leave out."""
    if re.match(r"[a-z][a-z'-]*,?\s", text):
        text = text[0].upper() + text[1:]
    text = re.sub(r"\.\.$", ".", text.rstrip(":;, "))
    return text if text.endswith(_ENDS) else text + "."


def is_prose(sentence: str) -> bool:
    """Say whether a sentence reads as English: words, not symbols or names."""
    words = sentence.split()
    if not 4 <= len(words) <= 80 or _NEVER.search(sentence):
        return False
    if not re.match(r"[\"'(]?[A-Za-z]", sentence):
        return False
    plain = sum(_WORD.fullmatch(word) is not None for word in words)
    common = sum(word.lower() in _COMMON_WORDS for word in words)
    symbols = len(re.findall(r"[^\w\s.,;:!?'\"()-]", sentence))
    return (
        plain >= 0.75 * len(words)
        and common >= max(1, 0.12 * len(words))
        and symbols <= 0.03 * len(sentence)
        and sentence.isascii()
    )


def sentences(docstring: str) -> list[str]:
    """Return the English sentences of a docstring, in order."""
    found = []
    for paragraph in paragraphs(docstring):
        for sentence in split_sentences(plain_text(paragraph)):
            sentence = whole_sentence(sentence)
            if is_prose(sentence):
                found.append(sentence)
    return found
