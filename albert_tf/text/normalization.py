"""Rules for normalizing text before it is split into pieces.

The rules are compiled into the character map of a SentencePiece model. At each
position, the model replaces the longest sequence of characters that is in the
map, and continues after that sequence. The same C++ code applies the map in
Python and in TensorFlow, and tracks the position of every character.
"""

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from albert_tf.base.settings import TOKENIZER, Validated, setting
from albert_tf.text.sentencepiece_models import (
    UNUSED,
    USER_DEFINED,
    WORD_MARK,
    charsmap_keys,
    charsmap_of,
    map_function,
)

# How to split a piece that ends in a digit and a comma ("2010,"):
# "released": encode the number again and append the comma. The new encoding
#   begins with ▁, even inside a word ("1,000,"). This is the default, because
#   released models need the released code's ids.
# "strip": like "released", but a number inside a word loses its ▁, as in
#   Hugging Face's slow tokenizer. The released code has a branch for this case,
#   but the branch compares text with bytes and therefore never runs.
# "none": keep the piece, as in plain SentencePiece.
DIGIT_COMMA = ("released", "strip", "none")

# With this value, the text or the vocabulary determines the setting.
AUTO = "auto"

# Surrogates, the halves of UTF-16 pairs, are not characters, and UTF-8 cannot
# encode them.
SURROGATE = re.compile("[\ud800-\udfff]")
REPLACEMENT = "\ufffd"


# White space as in `str.isspace`, and zero-width characters that SentencePiece
# turns into spaces, such as the non-joiner in Persian.
SPACES = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003"
    "\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
    "\u200b\u200c\u200e\u200f\ufeff"
)
WHITE_SPACE = f"[{SPACES}]"  # for regular expressions


@dataclasses.dataclass(frozen=True)
class TextConfig(Validated):
    """Settings for text normalization, which `tokenizer.json` stores.

    The defaults are the settings of the released English models. A tokenizer
    replaces `auto` with True or False.
    """

    help_group = TOKENIZER

    do_lower_case: bool = setting(True, "Lower-case the text.")
    strip_accents: bool | str = setting(
        True,
        "Decompose characters, and drop accents and other marks. In many "
        "languages, marks distinguish words. WordPiece drops marks only if it "
        "lower-cases text. auto uses the value in the tokenizer.json next to "
        "the vocabulary; without this file, it preserves marks if any "
        "piece contains one. For a new vocabulary, auto preserves marks if the "
        "text contains more than a few.",
        choices=(True, False, AUTO),
    )
    replace_quotes: bool = setting(
        False, "Replace `` and '' with \", as Hugging Face's tokenizer does."
    )
    digit_comma: str = setting(
        "released",
        "How to split SentencePiece pieces like `1,`; `released` returns the "
        "ids of the released code.",
        choices=DIGIT_COMMA,
    )


def drop_marks(text: str) -> str:
    """Decompose a text (NFKD) and drop marks that have a combining class."""
    text = unicodedata.normalize("NFKD", text)
    marks = map(ord, filter(unicodedata.combining, set(text)))
    return text.translate(dict.fromkeys(marks))


def has_marks(text: str) -> bool:
    """Return whether `drop_marks` would drop any character of a text."""
    return not text.isascii() and any(
        map(unicodedata.combining, unicodedata.normalize("NFKD", text))
    )


def normalize(text: str, config: TextConfig) -> str:
    """Normalize text as the released code does before SentencePiece.

    The function collapses white space, as defined by `str.isspace`, and turns
    lone surrogates into U+FFFD. Depending on the settings, it also replaces
    quotes, drops accents and lower-cases letters. Source:
    google-research/albert `preprocess_text`.
    """
    text = text.strip()
    # The only printable white-space character is a plain space.
    if not text.isprintable() or "  " in text:
        text = " ".join(text.split())
    if config.replace_quotes:
        text = text.replace("``", '"').replace("''", '"')
    if not text.isascii():
        text = SURROGATE.sub(REPLACEMENT, text)
        text = drop_marks(text) if config.strip_accents else text
    return text.lower() if config.do_lower_case else text


Function = Callable[[str], str]
# A separator that no rule changes or merges with its neighbors.
BETWEEN = "\u2800"

# Keys that spell a Hangul syllable with three letters in different forms
# (standard, compatibility, half-width, bracketed). NFKC maps contain 190,000
# such keys, which do not occur in real text.
LETTERS, COMPATIBLE, HALF = "\u1100-\u11ff", "\u3130-\u318f", "\uffa0-\uffdc"
MIXED_FORMS = re.compile(
    f"(?![{LETTERS}]*$|[{COMPATIBLE}]*$|[{HALF}]*$)"
    f"[{LETTERS}{COMPATIBLE}{HALF}\u3200-\u327f]{{3,}}"
)


def text_of(*ranges: tuple[int, int]) -> str:
    """Return the characters in ranges of code points, except `BETWEEN`."""
    codes = np.concatenate([np.arange(*ends, dtype="<u4") for ends in ranges])
    return codes.tobytes().decode("utf-32-le").replace(BETWEEN, "")


@functools.cache
def characters() -> str:
    """Return all characters that Unicode assigns or may assign.

    NUL, surrogates and the separator `BETWEEN` are omitted.
    """
    return text_of((1, 0xD800), (0xE000, 0x40000), (0xE0000, 0xE0200))


@functools.cache
def changing_characters() -> str:
    """Return all characters that rules for case or marks may change.

    The result omits ideographs, except compatibility ideographs.
    """
    return text_of(
        (1, 0x3400),
        (0xA000, 0xD800),
        (0xE000, 0x20000),
        (0x2F800, 0x2FA20),
        (0xE0000, 0xE0200),
    )


def of_each(function: Function, texts: Iterable[str]) -> list[str]:
    """Apply a function to each text; call it only once if possible."""
    results = function(BETWEEN.join(["", *texts, ""])).split(BETWEEN)[1:-1]
    return results if len(results) == len(texts) else list(map(function, texts))


@functools.lru_cache(maxsize=8)
def normalizing_map(charsmap: bytes, config: TextConfig) -> bytes:
    """Return a map equivalent to `normalize` followed by `charsmap`.

    The map replaces single characters, and the sequences that `charsmap` or
    `normalize` treats as a unit. Of all other characters, only a capital sigma
    depends on its neighbors; `final_sigma` handles this case.
    """
    apply_map = map_function(charsmap)

    def rules(texts: Iterable[str]) -> list[str]:
        return of_each(lambda text: normalize(text, config), texts)

    def mapped(texts: list[str]) -> Iterator[tuple[str, str]]:
        return zip(texts, of_each(apply_map, rules(texts)), strict=True)

    keys = charsmap_keys(charsmap)
    candidates = changing_characters()
    changed = {
        c
        for c, new in zip(candidates, rules(candidates), strict=True)
        if c != new
    }
    singles = changed.union(key for key in keys if len(key) == 1)
    table = {c: new for c, new in mapped([*singles]) if c != new}
    mixed = MIXED_FORMS.fullmatch
    sequences = [k for k in keys if len(k) > 1 and not mixed(k)]
    one_by_one = str.maketrans(table)
    for key, new in mapped([*sequences, "``", "''"]):
        if new != key.translate(one_by_one):
            table[key] = new
    return charsmap_of(table)


def with_rules(content: bytes, config: TextConfig) -> bytes:
    """Return a SentencePiece model that also applies `normalize`.

    The model finds user-defined symbols before it applies its map. Symbols that
    `normalize` changes cannot occur in normalized text, so these symbols are
    marked as unused.
    """
    proto = ModelProto.FromString(content)
    spec = proto.normalizer_spec
    spec.precompiled_charsmap = normalizing_map(
        spec.precompiled_charsmap, config
    )
    spec.remove_extra_whitespaces = True
    for piece in proto.pieces:
        if piece.type == USER_DEFINED:
            text = BETWEEN + piece.piece.replace(WORD_MARK, " ") + BETWEEN
            if normalize(text, config) != text:
                piece.type = UNUSED
    return proto.SerializeToString()


def ranges(characters: Iterable[str]) -> list[tuple[int, int]]:
    """Return the first and last code points of runs of adjacent characters."""
    codes = np.unique([*map(ord, characters)])
    runs = np.split(codes, np.flatnonzero(np.diff(codes) > 1) + 1)
    return [(int(run[0]), int(run[-1])) for run in runs]


def character_class(characters: Iterable[str]) -> str:
    """Return a character class for a regular expression, without brackets."""
    ends = [map(re.escape, map(chr, run)) for run in ranges(characters)]
    return "".join(map("-".join, ends))


@functools.lru_cache(maxsize=8)
def final_sigma(
    rule: Callable[[str, TextConfig], str], config: TextConfig
) -> str:
    """Return a regular expression for a capital sigma that ends a word.

    The groups match the text before and after the sigma. A sigma ends a word if
    a cased character precedes it and no cased character follows, disregarding
    case-ignorable characters (Unicode's Final_Sigma, as in `str.lower`).

    Args:
      rule: a function that normalizes and lower-cases a text.
      config: the rule's second argument.
    """
    candidates = changing_characters()

    def with_letter(letter: str, before: str, after: str) -> set[str]:
        texts = [before + c + after for c in candidates]
        results = of_each(lambda text: rule(text, config), texts)
        return {
            c for c, x in zip(candidates, results, strict=True) if letter in x
        }

    cased = with_letter("ς", "", "Σ")
    ignored = with_letter("ς", "A", "Σ") - cased
    extends = with_letter("σ", "AΣ", "A")
    cased, ignored, extends = map(character_class, (cased, ignored, extends))
    return f"([{cased}][{ignored}]*)Σ([{ignored}]*(?:[^{extends}]|$))"
