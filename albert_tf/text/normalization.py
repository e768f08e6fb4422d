"""Rules that change text before it is cut into pieces.

They are compiled into the map of characters of a SentencePiece model. The
model replaces the longest sequence of characters that its map contains, then
continues behind it. It does so in C++, alike in Python and TensorFlow, and
knows the position in the text of every character.
"""

import dataclasses
import functools
import io
import os
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from albert_tf.base.settings import Checked, setting
from albert_tf.text.sentencepiece_rules import WORD_MARK

# What becomes of a piece that ends in a digit and a comma ("2010,"):
# "released": the number is encoded anew and the comma follows. The new
#   encoding begins with the word mark, even inside a word ("1,000,"). The
#   default, because released models must get the released code's ids.
# "strip": as "released", but a number inside a word loses the mark, as in
#   Hugging Face's slow tokenizer. The released code has a branch for it that
#   compares text with bytes and so never runs.
# "none": the piece stays, as in plain SentencePiece.
DIGIT_COMMA = ("released", "strip", "none")

# The value of a setting that the text, or its vocabulary, decides.
AUTO = "auto"

# Half of a UTF-16 pair is no character; UTF-8 cannot hold it.
SURROGATE = re.compile("[\ud800-\udfff]")
REPLACEMENT = "\ufffd"


# White space as in `str.isspace`, for regular expressions.
WHITE_SPACE = (
    "[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
)


@dataclasses.dataclass(frozen=True)
class TextConfig(Checked):
    """How text is normalised; kept in `tokenizer.json` beside the vocabulary.

    The defaults are those of the released English models. A tokenizer replaces
    `auto` with True or False.
    """

    do_lower_case: bool = setting(True, "Whether to lower-case the text.")
    strip_accents: bool | str = setting(
        True,
        "Whether to decompose characters and drop accents and other marks, "
        "which tell words apart in many languages; WordPiece does so only "
        "when it lower-cases. auto follows the tokenizer.json beside the "
        "vocabulary or, without one, keeps marks if a piece has any; a new "
        "vocabulary keeps them if its text has more than a few.",
        choices=(True, False, AUTO),
    )
    replace_quotes: bool = setting(
        False, "Whether `` and '' become \", as in Hugging Face's tokenizer."
    )
    digit_comma: str = setting(
        "released",
        "How SentencePiece pieces like `1,` are split; `released` gives the "
        "ids of the released code.",
        choices=DIGIT_COMMA,
    )


def drop_marks(text: str) -> str:
    """Return text decomposed (NFKD) without characters that combine."""
    text = unicodedata.normalize("NFKD", text)
    marks = map(ord, filter(unicodedata.combining, set(text)))
    return text.translate(dict.fromkeys(marks))


def has_marks(text: str) -> bool:
    """Return whether `drop_marks` would drop any character of a text."""
    return not text.isascii() and any(
        map(unicodedata.combining, unicodedata.normalize("NFKD", text))
    )


def normalize(text: str, config: TextConfig) -> str:
    """Return text as the SentencePiece models saw it.

    White space is collapsed, quotes replaced, accents dropped, letters
    lowered. Source: google-research/albert `preprocess_text`; `isspace` is
    its white space. Lone surrogates become U+FFFD.
    """
    text = text.strip()
    # Of white space, only a plain space can be printed.
    if not text.isprintable() or "  " in text:
        text = " ".join(text.split())
    if config.replace_quotes:
        text = text.replace("``", '"').replace("''", '"')
    if not text.isascii():
        text = SURROGATE.sub(REPLACEMENT, text)
        text = drop_marks(text) if config.strip_accents else text
    return text.lower() if config.do_lower_case else text


Function = Callable[[str], str]
# A blank that no rule changes or joins to its neighbors.
BETWEEN = "\u2800"

# Keys that spell a Hangul syllable by three letters of several forms (usual,
# compatibility, half-width, in brackets). Maps by NFKC contain 190,000 of
# these, which no text uses.
LETTERS, COMPATIBLE, HALF = "\u1100-\u11ff", "\u3130-\u318f", "\uffa0-\uffdc"
MIXED_FORMS = re.compile(
    f"(?![{LETTERS}]*$|[{COMPATIBLE}]*$|[{HALF}]*$)"
    f"[{LETTERS}{COMPATIBLE}{HALF}\u3200-\u327f]{{3,}}"
)


@functools.cache
def characters() -> list[str]:
    """Return the characters that Unicode may assign, without surrogates."""
    codes = [*range(1, 0xD800), *range(0xE000, 0x40000)]
    every = map(chr, [*codes, *range(0xE0000, 0xE0200)])
    return [character for character in every if character != BETWEEN]


@functools.cache
def changing_characters() -> list[str]:
    """Return all characters but ideographs, which no rule of case or marks has.

    Those that Unicode keeps for compatibility are among them.
    """
    ideographs = "[\u3400-\u9fff\U00020000-\U0002f7ff\U0002fa20-\U0003ffff]"
    outside = re.compile(ideographs)
    return [c for c in characters() if not outside.match(c)]


def of_each(function: Function, texts: list[str]) -> list[str]:
    """Apply a function to each text, with a single call if possible."""
    found = function(BETWEEN.join(["", *texts, ""])).split(BETWEEN)[1:-1]
    return found if len(found) == len(texts) else list(map(function, texts))


def map_function(charsmap: bytes) -> Function:
    """Return the function of text that a compiled map describes."""
    proto = sentencepiece_model_pb2.ModelProto()
    spec = proto.normalizer_spec
    spec.precompiled_charsmap = charsmap
    spec.add_dummy_prefix = spec.escape_whitespaces = False
    spec.remove_extra_whitespaces = False
    proto.pieces.add(piece="<unk>", type=2)
    normalizer = sentencepiece.SentencePieceNormalizer(
        model_proto=proto.SerializeToString()
    )
    return normalizer.normalize


def charsmap_keys(charsmap: bytes) -> list[str]:
    """Return the texts that a compiled map of characters replaces.

    The map is the size of a double array, the array itself
    (https://github.com/s-yata/darts-clone), and the replacements.
    """
    if not charsmap:
        return []
    size = int.from_bytes(charsmap[:4], "little")
    units = np.frombuffer(charsmap, "<u4", size // 4, 4)
    labels = units & 0x800000FF
    bases = np.arange(len(units)) ^ (units >> 10 << ((units & 512) >> 6))
    inner = np.flatnonzero((labels > 0) & (labels < 256))
    parents = inner ^ labels[inner]  # the base of the node above
    order = np.argsort(parents)
    inner, parents = inner[order], parents[order]
    found, nodes, paths = [], np.array([0]), np.zeros([1, 0], np.uint8)
    while len(nodes):
        first = np.searchsorted(parents, bases[nodes], side="left")
        last = np.searchsorted(parents, bases[nodes], side="right")
        rows = np.repeat(np.arange(len(nodes)), last - first)
        shift = last - np.cumsum(last - first)
        nodes = inner[np.arange(len(rows)) + shift[rows]]
        paths = np.column_stack([paths[rows], labels[nodes].astype(np.uint8)])
        ends = (units[nodes] & 256) > 0
        text = np.pad(paths[ends], [[0, 0], [0, 1]]).tobytes().decode()
        found += text.split("\0")[:-1]
    return found


def charsmap_of(table: dict[str, str]) -> bytes:
    """Return a table compiled into the map of a SentencePiece model."""

    def codes(text: str) -> str:
        return " ".join([f"{ord(c):X}" for c in text])

    if not table:
        return b""
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rules.tsv")
        with open(path, "w", encoding="utf-8") as file:
            for text, new in sorted(table.items()):
                file.write(f"{codes(text)}\t{codes(new)}\n")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a"]),
            model_writer=model,
            model_type="char",
            vocab_size=4,
            hard_vocab_limit=False,
            bos_id=-1,
            eos_id=-1,
            normalization_rule_tsv=path,
            minloglevel=2,
        )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


@functools.lru_cache(maxsize=8)
def normalizing_map(charsmap: bytes, config: TextConfig) -> bytes:
    """Return the map that does what `normalize` and then a map does.

    Neighbors matter only to a capital sigma (`final_sigma`) and to the
    sequences that the map treats as a whole.
    """
    own = map_function(charsmap)

    def found(texts: list[str]) -> Iterator[tuple[str, str]]:
        before = of_each(lambda text: normalize(text, config), texts)
        return zip(texts, of_each(own, before), strict=True)

    keys = charsmap_keys(charsmap)
    singles = {*changing_characters(), *(key for key in keys if len(key) == 1)}
    table = {c: new for c, new in found([*singles]) if c != new}
    several = [k for k in keys if len(k) > 1 and not MIXED_FORMS.fullmatch(k)]
    for key, new in found([*several, "``", "''"]):
        if new != "".join([table.get(c, c) for c in key]):
            table[key] = new
    return charsmap_of(table)


def with_rules(content: bytes, config: TextConfig) -> bytes:
    """Return a SentencePiece model that also does what `normalize` does.

    Its own symbols come before its map, so those that `normalize` changes,
    which no normalised text contains, must not be found.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(content)
    spec = proto.normalizer_spec
    spec.precompiled_charsmap = normalizing_map(
        spec.precompiled_charsmap, config
    )
    spec.remove_extra_whitespaces = True
    kinds = proto.SentencePiece
    for piece in proto.pieces:
        if piece.type == kinds.USER_DEFINED:
            text = BETWEEN + piece.piece.replace(WORD_MARK, " ") + BETWEEN
            if normalize(text, config) != text:
                piece.type = kinds.UNUSED
    return proto.SerializeToString()


def character_class(characters: Iterable[str]) -> str:
    """Return characters as the inside of a class in a regular expression."""
    codes = np.array(sorted(map(ord, characters)))
    runs = np.split(codes, np.flatnonzero(np.diff(codes) > 1) + 1)
    ends = [[re.escape(chr(run[i])) for i in (0, -1)] for run in runs]
    return "".join(map("-".join, ends))


@functools.lru_cache(maxsize=8)
def final_sigma(
    rule: Callable[[str, TextConfig], str], config: TextConfig
) -> str:
    """Return a regular expression of a capital sigma at the end of a word.

    Its groups are what stands before and after. The end is where a cased
    character comes before and none comes after, the ignored ones aside
    (Unicode's Final_Sigma, as in `str.lower`).

    Args:
      rule: lowers a text, and does what comes before that.
      config: for the rule.
    """
    every = changing_characters()

    def with_letter(letter: str, before: str, after: str) -> set[str]:
        texts = [before + c + after for c in every]
        found = of_each(lambda text: rule(text, config), texts)
        return {c for c, x in zip(every, found, strict=True) if letter in x}

    cased = with_letter("ς", "", "Σ")
    ignored = with_letter("ς", "A", "Σ") - cased
    goes_on = with_letter("σ", "AΣ", "A")
    cased, ignored, goes_on = map(character_class, (cased, ignored, goes_on))
    return f"([{cased}][{ignored}]*)Σ([{ignored}]*(?:[^{goes_on}]|$))"
