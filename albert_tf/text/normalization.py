"""Text as the models saw it: what happens before pieces are made of it."""

import dataclasses
import re
import unicodedata

from albert_tf.base.settings import Checked, setting

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
