"""Each step of normalization has the intended effect."""

import string
import unicodedata

import numpy as np
import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from vocabularies import english, sentencepiece_model

from albert_tf.base.errors import InputError
from albert_tf.text import normalization, wordpiece
from albert_tf.text.sentencepiece_models import (
    NORMAL,
    UNUSED,
    USER_DEFINED,
    charsmap_keys,
    charsmap_of,
    load_model,
    map_function,
    piece_shares,
    read_model,
)
from albert_tf.text.tokenizers import tokenizer_of
from albert_tf.text.wordpiece import is_punctuation


def test_spaces_of_sentencepiece():
    """`SPACES` has white space and characters that become spaces.

    SentencePiece converts these characters to spaces. The exceptions are ▁,
    which is visible, and U+FFFD, which replaces text.
    """
    charsmap = read_model(english().content).normalizer_spec
    apply_map = map_function(charsmap.precompiled_charsmap)
    found = normalization.characters()
    mapped = normalization.of_each(apply_map, found)
    spaces = {
        c for c, x in zip(found, mapped, strict=True) if c.isspace() or x == " "
    }
    assert spaces - {"▁", "\ufffd"} == {*normalization.SPACES}


def test_the_characters_of_unicode():
    """`characters` covers the planes in use, except NUL and surrogates.

    The separator is also omitted. `changing_characters` covers no ideographs
    except compatibility ideographs.
    """
    assert normalization.ranges(normalization.characters()) == [
        *((0x1, 0x27FF), (0x2801, 0xD7FF), (0xE000, 0x3FFFF)),
        (0xE0000, 0xE01FF),
    ]
    assert normalization.ranges(normalization.changing_characters()) == [
        *((0x1, 0x27FF), (0x2801, 0x33FF), (0xA000, 0xD7FF)),
        *((0xE000, 0x1FFFF), (0x2F800, 0x2FA1F), (0xE0000, 0xE01FF)),
    ]


def test_a_function_is_applied_to_each_text():
    """A function is applied to each text separately.

    The function may even change the separator.
    """
    between = normalization.BETWEEN
    for function in (
        str.upper,
        lambda text: text.upper().replace(between, ""),
        lambda text: text.upper().replace(between, 2 * between),
    ):
        found = normalization.of_each(function, ["a", "", "bc"])
        assert found == ["A", "", "BC"]


def test_the_content_of_a_character_class():
    """In a character class, each run of characters becomes a range.

    A hyphen and a bracket are escaped.
    """
    found = normalization.character_class("cab-e]")
    assert found == r"\--\-\]-\]a-ce-e"


@pytest.mark.parametrize(
    ("text", "marks", "nonspacing"),
    [
        *(("e", False, False), ("中", False, False), ("é", True, True)),
        *(("e\u0301", True, True), ("\u0900", False, True)),
        ("\u302e", True, False),
    ],
)
def test_marks(text, marks, nonspacing):
    """SentencePiece drops marks that have a combining class.

    WordPiece drops marks of category Mn (nonspacing) instead.
    """
    assert normalization.has_marks(text) is marks
    assert wordpiece.has_marks(text) is nonspacing
    assert (normalization.drop_marks(text) != text) is marks


def test_punctuation():
    """Punctuation includes all ASCII symbols.

    Beyond ASCII, only characters in Unicode's punctuation categories count.
    """
    found = filter(is_punctuation, map(chr, range(256)))
    assert "".join(found) == "".join(sorted(string.punctuation)) + "¡§«¶·»¿"
    assert [*map(is_punctuation, "—「€▁中")] == [True, True] + [False] * 3
    assert unicodedata.category("€") == "Sc"


def test_symbols_that_normalized_text_lacks():
    """User-defined symbols that the rules change are disabled; others work.

    The model also collapses spaces, and its normal pieces remain.
    """
    proto = ModelProto.FromString(sentencepiece_model())
    names = ["THE", "é", "the", "▁a", "a▁", "▁▁"]
    for name in names:
        proto.pieces.add(piece=name, score=0.0, type=USER_DEFINED)
    proto.pieces.add(piece="ABC", score=-9.0, type=NORMAL)
    proto.normalizer_spec.remove_extra_whitespaces = False
    content = normalization.with_rules(
        proto.SerializeToString(), english().config
    )
    proto = ModelProto.FromString(content)
    assert proto.normalizer_spec.remove_extra_whitespaces
    kinds = {piece.piece: piece.type for piece in proto.pieces}
    gone = {name for name in names if kinds[name] == UNUSED}
    assert gone == {"THE", "é", "▁▁"}
    assert {kinds[x] for x in names} == {UNUSED, USER_DEFINED}
    assert kinds["ABC"] == NORMAL


MAP = charsmap_of({"ab": "c", "d": "é"})
SIZE = int.from_bytes(MAP[:4], "little")


def sized(size: int, content: bytes = MAP[4:]) -> bytes:
    """Return a character map whose header states this size for its array."""
    return size.to_bytes(4, "little") + content


@pytest.mark.parametrize(
    "charsmap",
    [
        sized(0, b"\0"),
        sized(SIZE + 2, MAP[4 : 4 + SIZE] + b"xx" + MAP[4 + SIZE :]),
        sized(1 << 20),
        MAP[:-1],
        MAP[:-2] + b"\xff\0",
        sized(SIZE, MAP[4:].replace("é".encode(), b"\xc3\0")),
    ],
    ids=["empty", "size", "short", "no end", "no text", "half a letter"],
)
def test_maps_that_are_cut(charsmap):
    """The error for a damaged map states the sizes of its array and the map."""
    size = int.from_bytes(charsmap[:4], "little")
    message = f"must be intact.*size={size}, bytes={len(charsmap)}$"
    with pytest.raises(InputError, match=message):
        charsmap_keys(charsmap)


def test_replacements_begin_with_a_letter():
    """A map with a replacement that begins inside a character is rejected.

    The same holds for a replacement that begins at or after the end of the map.
    """
    assert {*charsmap_keys(MAP)} == {"ab", "d"}
    units = np.frombuffer(MAP, "<u4", SIZE // 4, 4)
    leaves = np.flatnonzero(units >> 31)
    text = MAP[4 + SIZE :]
    inside = text.index("é".encode()) + 1
    for offset in (inside, len(text), len(text) + 1):
        for leaf in leaves:
            changed = units.copy()
            changed[leaf] = (1 << 31) | offset
            with pytest.raises(InputError, match="intact.*damaged entries"):
                charsmap_keys(MAP[:4] + changed.tobytes() + text)


def test_the_map_for_decoding_must_be_intact():
    """A model whose denormalizer has a damaged map raises an error."""
    proto = ModelProto.FromString(sentencepiece_model())
    proto.denormalizer_spec.precompiled_charsmap = MAP
    read_model(proto.SerializeToString())
    proto.denormalizer_spec.precompiled_charsmap = MAP[:-1]
    with pytest.raises(InputError, match="must be intact"):
        read_model(proto.SerializeToString())


@pytest.mark.parametrize("piece", ["", "a\0b", "ab" * 50_000])
def test_a_piece_that_would_crash_sentencepiece(piece):
    """An empty piece, a null character or a very long piece is rejected."""
    proto = ModelProto.FromString(sentencepiece_model())
    proto.pieces[-1].piece = "ab" * 1_000
    assert len(load_model(proto.SerializeToString())[1][-1]) == 2_000
    proto.pieces[-1].piece = piece
    with pytest.raises(InputError, match=f"characters={len(piece)}, number="):
        load_model(proto.SerializeToString())


class Scores(list):
    """A model with the given scores."""

    def get_score(self, ids):
        return [self[i] for i in ids]


def test_shares_of_pieces():
    """The shares of pieces follow from their scores, which are logarithms.

    If the scores are ranks, all shares are equal. Symbols, whose score is 0,
    have a share of 0.
    """
    found = piece_shares(Scores([0.0, np.log(0.25), np.log(0.5), 0.0]))
    np.testing.assert_allclose(found, [0, 1 / 3, 2 / 3, 0])
    found = piece_shares(Scores([0.0, -1.0, -2.0, -3.0, 0.0]))
    np.testing.assert_allclose(found, [0, 1 / 3, 1 / 3, 1 / 3, 0])
    assert piece_shares(Scores([0.0, 0.0])).tolist() == [0, 0]


def test_a_tokenizer_survives_json():
    """A tokenizer is rebuilt from its JSON values; None stays None."""
    tokenizer = english(digit_comma="strip")
    again = tokenizer_of(tokenizer.get_config())
    assert again.fingerprint() == tokenizer.fingerprint()
    assert tokenizer_of(None) is None
