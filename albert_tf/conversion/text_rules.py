"""Compilation of the `tokenizers` library's rules for a SentencePiece model.

The normalizers in a `tokenizer.json` become functions of text. The effects of
these functions on every character, and on the few sequences that they treat as
a unit, form a character map. The SentencePiece model applies this map in Python
and in a graph.
"""

import base64
import functools
import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator

from albert_tf.conversion.tokenizer_files import flag_of
from albert_tf.text.normalization import BETWEEN, Function, characters, of_each
from albert_tf.text.sentencepiece_models import (
    WORD_MARK,
    charsmap_keys,
    map_function,
)
from albert_tf.text.wordpiece import IDEOGRAPH

try:
    import re._parser as regex_parser
except ImportError:  # Python 3.10
    import sre_parse as regex_parser


MOST_TEXTS = 20_000  # maximum number of texts that one pattern can match
MOST_SOURCES = 400  # maximum number of texts that become the same text
# A pattern made up of these parts can only collapse or strip white space.
SPACE_PATTERN = re.compile(
    r"(?:\\[sAzZtnr]|\[ (?:\\s)?\]|[ ^$+*?|()\t\r\n]|\{\d*,?\d*\})*"
)
NMT_DROPPED = {*range(1, 9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F}
NMT_SPACES = {
    *(0x9, 0xA, 0xC, 0xD, 0x1680, *range(0x200B, 0x2010)),
    *(0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD),
}
NMT = dict.fromkeys(NMT_DROPPED) | dict.fromkeys(NMT_SPACES, " ")


class NotExpressible(Exception):
    """A rule that no character map can express; the message names the rule."""


def drop_nonspacing(text: str) -> str:
    """Remove nonspacing marks from a text; keep precomposed characters."""
    return "".join(c for c in text if unicodedata.category(c) != "Mn")


def python_pattern(pattern: dict) -> re.Pattern:
    """Compile the pattern of a `Replace` rule as a regular expression."""
    if "String" in pattern:
        return re.compile(re.escape(pattern["String"]))
    text = re.sub(
        r"\\x\{([0-9a-fA-F]+)\}",
        lambda match: f"\\U{int(match[1], 16):08x}",
        pattern["Regex"],
    )
    try:
        return re.compile(text.replace(r"\z", r"\Z"))
    except re.error as error:
        raise NotExpressible(f"Replace of {text!r} ({error})") from None


def only_spaces(pattern: dict, content: str) -> bool:
    """Return whether a `Replace` rule changes only spaces.

    Our tokenizers can ignore such a rule, because they make the same changes to
    all texts.
    """
    content = content.replace(WORD_MARK, " ")  # equivalent to a space
    if content not in ("", " "):
        return False
    if "String" in pattern:
        return not pattern["String"].strip()
    text = pattern["Regex"]
    if content and text.startswith("^(?=["):
        return True  # inserts a ▁ before the first letter, as our rules do
    if content and re.fullmatch(r"\[.*\]\+?", text):
        try:
            matches = python_pattern(pattern).findall(
                BETWEEN.join(characters())
            )
        except NotExpressible:
            return False
        return bool(matches) and all(map(str.isspace, matches))
    return bool(SPACE_PATTERN.fullmatch(text))


def _bert(rule: dict) -> Function:
    lower = flag_of(rule, "lowercase", True)
    strip = flag_of(rule, "strip_accents", lower)
    cleans = flag_of(rule, "clean_text", True)
    isolates_chinese = flag_of(rule, "handle_chinese_chars", True)

    def clean(character: str) -> str:
        if character in "\t\n\r":
            return " "
        category = unicodedata.category(character)
        if category.startswith("C") or character == "\ufffd":
            return ""
        return " " if character.isspace() else character

    def function(text: str) -> str:
        if cleans:
            text = "".join(map(clean, text))
        if isolates_chinese:
            text = IDEOGRAPH.sub(r" \g<0> ", text)
        if strip:
            text = drop_nonspacing(unicodedata.normalize("NFD", text))
        return _lower(text) if lower else text

    return function


def _lower(text: str) -> str:
    """Convert a text to lower case, character by character."""
    return text.replace("Σ", "σ").lower()  # even at the end of a word


def charsmap_in(rule: dict) -> bytes:
    """Return the compiled character map in a rule, or b"" if it has none."""
    return base64.b64decode(rule.get("precompiled_charsmap") or "")


def _replace(rule: dict) -> Function:
    pattern, content = rule["pattern"], rule["content"]
    if only_spaces(pattern, content):
        return str
    compiled = python_pattern(pattern)
    return lambda text: compiled.sub(lambda _: content, text)


def _isolate(rule: dict) -> Function:
    """Return a function that adds spaces around the rule's characters."""
    predicate = rule["where"]
    return lambda text: "".join(f" {c} " if predicate(c) else c for c in text)


def _prepend(rule: dict) -> Function:
    if rule["prepend"] != WORD_MARK:
        raise NotExpressible(f"Prepend of {rule['prepend']!r}")
    return str


MAKERS: dict[str, Callable[[dict], Function]] = {
    **{
        form: lambda rule: functools.partial(
            unicodedata.normalize, rule["type"]
        )
        for form in ("NFC", "NFD", "NFKC", "NFKD")
    },
    "Lowercase": lambda rule: _lower,
    "StripAccents": lambda rule: drop_nonspacing,
    "Strip": lambda rule: str,  # every text is stripped anyway
    "Nmt": lambda rule: lambda text: text.translate(NMT),
    "Replace": _replace,
    "Isolate": _isolate,
    "Prepend": _prepend,
    "BertNormalizer": _bert,
    "Precompiled": lambda rule: map_function(charsmap_in(rule)),
}


def flat(rule: dict | None) -> Iterator[dict]:
    """Yield the rules of a normalizer or pre-tokenizer, flattened."""
    if not rule:
        return
    rules = rule.get("normalizers", rule.get("pretokenizers"))
    if rules is None:
        yield rule
        return
    for inner in rules:
        yield from flat(inner)


def is_per_character(pattern: re.Pattern, content: str) -> bool:
    """Return whether a `Replace` rule changes each character independently.

    A rule for a character class has this property. A rule that replaces a run
    of such characters with nothing or a space also has it, because repeated
    spaces collapse.
    """
    parts = list(regex_parser.parse(pattern.pattern))
    if len(parts) == 1 and str(parts[0][0]) == "MAX_REPEAT":
        minimum, _, inner = parts[0][1]
        parts = list(inner) if minimum == 1 and content in ("", " ") else []
    classes = ("IN", "NOT_LITERAL", "LITERAL")
    return len(parts) == 1 and str(parts[0][0]) in classes


def expand_pattern(pattern: re.Pattern) -> list[str]:
    """Return all texts that a pattern matches, including lookahead text.

    Raises:
      NotExpressible: if the pattern has an unsupported part or matches too many
        texts.
    """
    ignore_case = re.search(r"\(\?[a-z]*i", pattern.pattern)

    def cases_of(letter: str) -> list[str]:
        cases = {letter, letter.lower(), letter.upper()}
        return sorted(cases) if ignore_case else [letter]

    def product(items: Iterable) -> list[str]:
        texts = [""]
        for item in items:
            suffixes = expand(*item)
            if len(texts) * len(suffixes) > MOST_TEXTS:
                raise NotExpressible(f"Replace of {pattern.pattern!r}")
            texts = [a + b for a in texts for b in suffixes]
        return texts

    def expand(kind, value) -> list[str]:
        name = str(kind)
        if name == "LITERAL":
            return cases_of(chr(value))
        if name == "RANGE":
            return [
                c
                for i in range(value[0], value[1] + 1)
                for c in cases_of(chr(i))
            ]
        if name == "IN":
            return [text for item in value for text in expand(*item)]
        if name == "SUBPATTERN":
            return product(value[-1])
        if name == "BRANCH":
            return [text for branch in value[1] for text in product(branch)]
        if name == "ASSERT":
            return product(value[1])
        if name == "MAX_REPEAT" and value[1] <= 4:
            inner = list(value[2])
            numbers = range(value[0], value[1] + 1)
            return [text for n in numbers for text in product(inner * n)]
        raise NotExpressible(f"Replace of {pattern.pattern!r}")

    return product(regex_parser.parse(pattern.pattern))


def _compositions() -> Iterator[str]:
    """Yield sequences that Unicode composes into a single character."""
    decomposed = functools.partial(unicodedata.normalize, "NFD")
    for parts in of_each(decomposed, characters()):
        if len(parts) > 1:
            yield parts
            if len(parts) > 2:
                # The same sequence with its beginning composed, with its marks
                # reversed, and with its last mark composed.
                yield unicodedata.normalize("NFC", parts[:-1]) + parts[-1]
                yield parts[0] + parts[:0:-1]
                first = unicodedata.normalize("NFC", parts[0] + parts[-1])
                yield first + parts[1:-1]


def sequences(rule: dict) -> list[str]:
    """Return the sequences of characters that a rule treats as a unit."""
    kind = rule["type"]
    if kind in ("NFC", "NFKC"):
        return list(_compositions())
    if kind == "Precompiled":
        return [key for key in charsmap_keys(charsmap_in(rule)) if len(key) > 1]
    if kind == "Replace" and not only_spaces(rule["pattern"], rule["content"]):
        pattern = python_pattern(rule["pattern"])
        if is_per_character(pattern, rule["content"]):
            return []
        texts = expand_pattern(pattern)
        return [text for text in texts if len(text) > 1]
    return []


def _sources(texts: list[str], replacements: dict[str, str]) -> set[str]:
    """Return texts and their sources: texts that earlier rules turn into them.

    The sources of a text are omitted if there are more than `MOST_SOURCES`.

    Args:
      texts: the texts that a rule treats as units.
      replacements: {character: its replacement by the earlier rules}.
    """
    targets, originals = set("".join(texts)), {}
    for character, replacement in replacements.items():
        if replacement in targets and replacement != character:
            originals.setdefault(replacement, []).append(character)
    sources = set(texts)
    for text in texts:
        options = [[c, *originals.get(c, ())] for c in text]
        if math.prod(map(len, options)) <= MOST_SOURCES:
            sources.update(map("".join, itertools.product(*options)))
    return sources


def table_of(rules: Iterable[dict]) -> tuple[dict[str, str], list[str]]:
    """Return the replacements that rules make, and the omitted rules.

    Args:
      rules: rules of the `tokenizers` library, in order.

    Returns:
      {text: its replacement}, and the names of rules without an equivalent.
    """
    functions: list[Function] = []
    multi_chars: set[str] = set()
    unsupported = []
    single_chars = {c: c for c in characters()}
    for rule in rules:
        try:
            if rule["type"] not in MAKERS:
                raise NotExpressible(rule["type"])
            function, texts = MAKERS[rule["type"]](rule), sequences(rule)
        except NotExpressible as error:
            unsupported.append(str(error))
            continue
        multi_chars |= (
            _sources(texts, single_chars) if "pattern" in rule else {*texts}
        )
        functions.append(function)
        texts = of_each(function, list(single_chars.values()))
        single_chars = dict(zip(single_chars, texts, strict=True))
    table = {c: text for c, text in single_chars.items() if text != c}
    texts = keys = list(multi_chars)
    for function in functions:
        texts = of_each(function, texts) if texts else []
    for key, text in zip(keys, texts, strict=True):
        if text != "".join(single_chars.get(c, c) for c in key):
            table[key] = text
    return table, unsupported
