"""The number of examples for property tests, and unusual texts.

`make properties` sets HYPOTHESIS_PROFILE=thorough, which tries twenty times as
many examples, and different examples in every run.
"""

import os

from hypothesis import settings
from hypothesis import strategies as st

COMMON = {"deadline": None, "database": None, "print_blob": True}
QUICK = 20
settings.register_profile(
    "quick", max_examples=QUICK, derandomize=True, **COMMON
)
settings.register_profile("thorough", max_examples=20 * QUICK, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def examples(number: int) -> settings:
    """Return settings for `number` examples in the quick profile."""
    return settings(
        max_examples=number * settings.default.max_examples // QUICK
    )


# Letters with and without case, accents whose order matters, ligatures, white
# space, marks of SentencePiece and WordPiece, quotes, ideographs, emoji with
# joiners, right-to-left scripts, and characters without a width or a meaning.
SPECIAL = [
    *"aAzéÉıİßẞΣσς'\"`.,;-_01½²ǅŉﬁﬃ中文「」か゚ガ각ㄱㅏ▁#[]{}<>()|\\/~",
    *" \t\r\n\x0b\x1c\x85\u00a0\u1680\u2003\u2028\u2029\u3000",
    *"\u0301\u0302\u0345\u302e\u302f\u0f71\U0001d165\U0001d16d\U0001d16e",
    *"\x00\x01\x1f\x7f\u00ad\u061c\u200b\u200d\u200e\u202e\u2060\ufeff",
    *"\ufffd\ufffe\uffff\ue000\U000e0041\U0010ffff\u2800\u037e\ufdfa",
    *"שלוםمرحباहिन्दीไทย😀👩\u200d👩\u200d👧🏽🇩🇪𝐀\uf900\U0002f801\u1bf2",
]


def texts(*words: str, without: str = "", most: int = 12) -> st.SearchStrategy:
    """Return a strategy for texts of unusual characters and given words.

    Args:
      *words: the words.
      without: characters that the texts do not contain.
      most: the largest number of words and characters.
    """
    special = [c for c in (*words, *SPECIAL) if not {*c} & {*without}]
    others = st.characters(
        exclude_categories=["Cs"], exclude_characters=without
    )
    parts = st.one_of(st.sampled_from(special), others)
    return st.lists(parts, max_size=most).map("".join)
