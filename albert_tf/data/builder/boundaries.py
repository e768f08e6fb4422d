"""Boundaries of words and sentences, and counts of non-English letters.

The user chooses one of several rules for finding words. The default settings
suit English. The value `auto` selects settings by the letters of the text or
the vocabulary. Settings that do not suit the letters of a text cause warnings.

Glossary: N tokens, S sentences, V vocabulary.
"""

import functools
import itertools
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from albert_tf.base.errors import require
from albert_tf.base.packages import need
from albert_tf.text.normalization import AUTO, drop_marks
from albert_tf.text.sentencepiece_models import ENGLISH, WORD_MARK
from albert_tf.text.tokenizers import Tokenizer

# The ids [N] int32 of concatenated sentences, the number of tokens in each
# sentence [S] int32, and whether each token begins a word [N] bool.
Encoded = tuple[np.ndarray, np.ndarray, np.ndarray]

# Kinds of characters for the Unicode rule. A run of LETTERS (and digits) is one
# word, and so is a run of KATAKANA. An ALONE character is a word by itself; a
# JOINED character belongs to the character before it. Words begin only at the
# borders of pieces, so a piece is never cut.
ALONE, LETTERS, KATAKANA, JOINED = range(4)

# A byte piece. The bytes of a character become pieces if the vocabulary does
# not contain the character.
BYTE = re.compile("<0x([0-9A-F]{2})>")

# Scripts without spaces between words, identified by the first word of the
# Unicode names of their letters. Each character counts as a word, as in UAX
# #29.
UNSPACED = frozenset(
    """CJK HIRAGANA BOPOMOFO YI THAI LAO KHMER MYANMAR TAI NEW TANGUT NUSHU
    KHITAN""".split()
)

# Pieces that end a sentence in the Latin, Chinese, Devanagari and Arabic
# scripts.
ENDINGS = frozenset(". ! ? \u2026 \u3002 \uff01 \uff1f \u0964 \u061f".split())


def _encode(tokenizer: Tokenizer, lines: Sequence[str]) -> Encoded:
    """Encode lines, and find word starts from the ids of the tokens."""
    ids, ends = tokenizer.encode_joined(lines)
    sizes = np.diff(ends, prepend=0).astype(np.int32)
    return ids, sizes, tokenizer.word_starts[ids]


def character_kind(character: str) -> int:
    """Classify a character for the Unicode rule, for example as `LETTERS`."""
    category = unicodedata.category(character)
    script = unicodedata.name(character, "").split(" ")[0].split("-")[0]
    if category[0] == "M" or category == "Cf":
        return JOINED
    if script == "KATAKANA":
        return KATAKANA
    if category in ("Lo", "Lm", "Nl") and script in UNSPACED:
        return ALONE
    if category[0] == "L" or category in ("Nd", "Nl", "Pc"):
        return LETTERS
    return ALONE


def _character_of_byte(match: re.Match) -> str:
    """Return a character of the kind that the Unicode rule assigns to a byte.

    For an ASCII byte, this is the encoded character. In longer sequences, the
    first byte counts as a letter, and each further byte as a mark. Characters
    from U+2000 to U+9FFF and from U+F000 on do not count as letters, because
    most of them are punctuation, symbols, kana and ideographs.
    """
    byte = int(match[1], 16)
    if byte < 0x80:
        return chr(byte)
    if byte < 0xC0:
        return "\u0301"
    return "。" if 0xE2 <= byte <= 0xE9 or byte >= 0xEF else "a"


@functools.lru_cache(2)
def _kinds(tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three arrays [V] that describe the pieces of a vocabulary.

    The first is true for marked pieces; the others are the kinds of each
    piece's first and last characters. A marked piece has no text, or is marked
    as the start of a word (in WordPiece, by the absence of `##`). The last
    character is the last one that is not `JOINED`.
    """
    first = np.full(tokenizer.vocab_size, ALONE, np.int8)
    last = first.copy()
    marked = np.ones(tokenizer.vocab_size, bool)
    wordpiece = tokenizer.kind == "wordpiece"
    for i, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size))):
        text = piece.removeprefix("##" if wordpiece else WORD_MARK)
        if not text:
            continue
        marked[i] = (text == piece) == wordpiece
        text = BYTE.sub(_character_of_byte, text)
        kinds = [character_kind(character) for character in text]
        first[i] = kinds[0]
        last[i] = next((k for k in kinds[::-1] if k != JOINED), LETTERS)
    return marked, first, last


def _begins_sentence(piece: str, kind: str) -> bool:
    """Return whether a piece may begin a sentence; a lone `WORD_MARK` may not.

    With SentencePiece, a space must precede the piece. In scripts without
    spaces, such as Chinese, any letter may begin a sentence. With WordPiece,
    whose pieces do not include spaces, any piece that begins with a letter may
    begin a sentence.
    """
    if kind == "sentencepiece" and piece.startswith(WORD_MARK):
        return piece != WORD_MARK
    return piece[:1].isalpha() and (
        kind == "wordpiece" or character_kind(piece[0]) in (ALONE, KATAKANA)
    )


@functools.lru_cache(2)
def _sentence_tables(tokenizer: Tokenizer) -> tuple[np.ndarray, ...]:
    """Return masks of pieces: sentence ends, possible starts and lone spaces.

    Each of the three masks is bool [V].
    """
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    ends = [piece.lstrip(WORD_MARK) in ENDINGS for piece in pieces]
    begins = [_begins_sentence(piece, tokenizer.kind) for piece in pieces]
    only_space = [piece == WORD_MARK for piece in pieces]
    return np.array(ends), np.array(begins), np.array(only_space)


def sentence_breaks(ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Return the indices, in ids [N], of tokens that begin a new sentence.

    A piece that is only a space belongs to the sentence of the next piece. The
    exception is a space before an ending, as in an ellipsis with spaces.
    """
    ends, begins, only_space = _sentence_tables(tokenizer)
    next_ends = np.append(ends[ids[1:]], True)
    starts = begins[ids] | only_space[ids] & ~next_ends
    return 1 + np.flatnonzero(ends[ids[:-1]] & starts[1:])


def _encode_unicode(tokenizer: Tokenizer, lines: Sequence[str]) -> Encoded:
    """Encode lines, and find word starts by the Unicode rule."""
    ids, sizes, _ = _encode(tokenizer, lines)
    marked, first, last = (table[ids] for table in _kinds(tokenizer))
    inside = np.isin(first, (LETTERS, KATAKANA)) & (first == np.roll(last, 1))
    starts = marked | ~(inside | (first == JOINED))
    # A piece that is only a space belongs to the next word.
    only_space = _sentence_tables(tokenizer)[2][ids]
    starts[1:] &= ~only_space[:-1]
    starts[(np.cumsum(sizes) - sizes)[sizes > 0]] = True
    return ids, sizes, starts


def _encode_by_words(
    words_of: Callable[[str], Iterable[str]],
    tokenizer: Tokenizer,
    lines: Sequence[str],
) -> Encoded:
    """Encode lines, and mark the first token in each word.

    Args:
      words_of: a function that cuts a line into words without dropping
        characters.
      tokenizer: the tokenizer that encodes the lines.
      lines: the text.
    """
    ids, sizes, starts = [], [], []
    for line in lines:
        line_ids, begins, _ = tokenizer.encode_with_offsets(line)
        ends = list(itertools.accumulate(map(len, words_of(line))))
        word = np.searchsorted(ends, begins, side="right")
        ids += line_ids
        sizes.append(len(line_ids))
        starts.append(np.diff(word, prepend=-1) != 0)
    return (
        np.array(ids, np.int32),
        np.array(sizes, np.int32),
        np.concatenate(starts),
    )


def chinese(line: str) -> Iterable[str]:
    """Split a line into Chinese words, without dropping characters."""
    import jieba

    jieba.setLogLevel(logging.WARNING)
    return jieba.cut(line)


# The choices of `--word_boundaries`.
RULES: dict[str, Callable[[Tokenizer, Sequence[str]], Encoded]] = {
    "english": _encode,
    "wordpiece": _encode,
    "unicode": _encode_unicode,
    "chinese": functools.partial(_encode_by_words, chinese),
    "segmented": functools.partial(
        _encode_by_words, re.compile(r"\s*\S+|\s+$").findall
    ),
}

# The English rule does not suit a text if a larger share of its letters and
# marks, or of its pieces, begins a word only under this rule.
MANY_BEYOND = 0.01

# {kind of vocabulary: the released code's rule}
RELEASED = {"sentencepiece": "english", "wordpiece": "wordpiece"}


def beyond_english(character: str) -> bool:
    """Return whether a character begins a word only under the English rule.

    This is true of letters and marks that are not in `ENGLISH`, if the Unicode
    rule allows them to continue a word.
    """
    letter = unicodedata.category(character)[0] in "LM"
    if not letter or character.lower() in ENGLISH:
        return False
    return character_kind(character) in (LETTERS, KATAKANA, JOINED)


def resolve_rule(rule: str | None, tokenizer: Tokenizer) -> str | None:
    """Resolve `auto`; return a word rule, or None for the default rule."""
    if rule != AUTO or tokenizer.kind != "sentencepiece":
        return None if rule == AUTO else rule
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    beyond = np.array([any(map(beyond_english, piece)) for piece in pieces])
    shares = tokenizer.piece_shares()
    return "unicode" if shares[beyond].sum() > MANY_BEYOND else None


def check_word_rule(rule: str | None, tokenizer: Tokenizer) -> None:
    """Raise `InputError` if a word rule cannot be used.

    The rule must suit the tokenizer, and the rule's package must be installed.
    """
    released = RELEASED[tokenizer.kind]
    require(
        rule == released or rule not in RELEASED.values(),
        f"`word_boundaries` must not be {rule} with a {tokenizer.kind} "
        f"vocabulary; use {released} instead.",
        word_boundaries=rule,
    )
    if rule == "chinese":
        need("`word_boundaries`", "jieba", word_boundaries=rule)


def encode(
    tokenizer: Tokenizer, rule: str | None, lines: Sequence[str]
) -> Encoded:
    """Encode lines, and find the first token of each word.

    If `rule` is None, the rule of the released code is used.
    """
    if not lines:
        empty = np.zeros(0, np.int32)
        return empty, empty, empty > 0
    return RULES[rule or RELEASED[tokenizer.kind]](tokenizer, lines)


# If a larger share of letters has a mark, marks distinguish words. The share is
# 0.04% in English (Wikipedia), and 0.7% in Italian, a language with few
# marks.
MANY_MARKS = 0.002

BUFFER = 1 << 20  # number of characters counted at a time


@functools.cache
def _letter_kinds(
    character: str, has_marks: Callable[[str], bool], strip: bool
) -> tuple[bool, bool, bool]:
    """Classify a character for `Letters.counts`.

    The results are whether it is a letter, whether it has a mark, and whether
    it is `beyond_english`. Marks count as letters. If `strip` is true, marks
    are removed before the last check.
    """
    letter = unicodedata.category(character)[0] in "LM"
    marked = letter and has_marks(character)
    seen = drop_marks(character) if strip and marked else character
    return letter, marked, any(map(beyond_english, seen))


class Letters:
    """A counter of the letters in texts.

    Args:
      has_marks: a function that returns whether a text has accents that the
        tokenizer can strip.
      strip: whether the tokenizer strips accents.
    """

    def __init__(self, has_marks: Callable[[str], bool], strip: bool):
        self._letter_args = has_marks, strip
        self._pending: list[str] = []
        self._size = 0
        self._counts: Counter = Counter()

    def add(self, text: str) -> None:
        """Count the letters in a text."""
        self._pending.append(text)
        self._size += len(text)
        if self._size >= BUFFER:
            self.counts()

    def counts(self) -> Counter:
        """Return the counts of `letters`, `marked` and `beyond_english`.

        `marked` counts letters with accents that the tokenizer can strip;
        `beyond_english` counts letters that begin a word only under the English
        rule.
        """
        text = "".join(self._pending).encode("utf-32-le")
        numbers = np.bincount(np.frombuffer(text, np.uint32))
        for code in np.flatnonzero(numbers).tolist():
            letter, marked, beyond = _letter_kinds(
                chr(code), *self._letter_args
            )
            number = int(numbers[code])
            self._counts["letters"] += letter * number
            self._counts["marked"] += marked * number
            self._counts["beyond_english"] += beyond * number
        self._pending.clear()
        self._size = 0
        return self._counts


def letter_shares(counts: Counter) -> tuple[float, float]:
    """Return the shares of `marked` and `beyond_english` letters."""
    letters = max(counts["letters"], 1)
    return counts["marked"] / letters, counts["beyond_english"] / letters


def has_many_marks(counts: Counter) -> bool:
    """Return whether a text has so many marks that they distinguish words."""
    return letter_shares(counts)[0] > MANY_MARKS


def letter_warnings(dropped: float, beyond: float) -> Iterator[str]:
    """Yield warnings if settings for English do not suit the text.

    Args:
      dropped: the share of letters that lose a mark.
      beyond: the share of letters that begin a word only under the English
        rule.
    """
    if dropped > MANY_MARKS:
        yield (
            f"{dropped:.1%} of the letters lose an accent or another mark, "
            "which distinguishes words in many languages; to keep marks, pass "
            "--strip_accents=auto to train_tokenizer and then to the builder, "
            "where auto removes marks if the vocabulary contains none"
        )
    if beyond > MANY_BEYOND:
        yield (
            f"{beyond:.1%} of the letters are outside a to z and join into "
            "words; under the English rule, each piece with such a letter "
            "begins a word, so whole words are not masked; make the records "
            "with --word_boundaries=unicode or, in a language without spaces "
            "such as Japanese, with a segmenter (docs/other_languages.md)"
        )
