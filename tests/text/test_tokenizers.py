"""Tokenizers follow the rules of the release."""

import random
import unicodedata

import numpy as np
import pytest
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from vocabularies import (
    WORDPIECES,
    chinese,
    english,
    sentencepiece_model,
)

from albert_tf.base.errors import InputError
from albert_tf.text import wordpiece
from albert_tf.text.normalization import DIGIT_COMMA, TextConfig, normalize
from albert_tf.text.packing import pack, truncate_pair
from albert_tf.text.sentencepiece_models import CONTROL, NORMAL, UNUSED
from albert_tf.text.tokenizers import (
    SentencePieceTokenizer,
    Tokenizer,
    WordPieceTokenizer,
)
from albert_tf.text.vocabulary import Vocabulary

# A text, and its pieces under each variant of the digit-comma rule.
DIGIT_COMMA_TABLE = (
    ("1,000,", "▁1 , ▁000 ,", "▁1 , 000 ,", "▁1, 000,"),
    ("2010, the", "▁2010 , ▁the", "▁2010 , ▁the", "▁2010, ▁the"),
    ("b9,", "▁ b ▁9 ,", "▁ b 9 ,", "▁ b 9,"),
    # "12" without ▁ is not a piece.
    ("b12,", "▁ b ▁12 ,", "▁ b <unk> ,", "▁ b 12,"),
    # "7" has its own ▁.
    ("b7,", "▁ b ▁ 7 ,", "▁ b 7 ,", "▁ b 7,"),
    ("10,", "▁1 ▁0 ,", "▁1 0 ,", "▁1 0,"),
    ("a5,", "▁ a 5 ,", "▁ a 5 ,", "▁ a 5 ,"),
)


@pytest.mark.parametrize("column", range(3))
def test_digit_comma_table(column):
    """Numbers before commas are split as in a table worked out by hand."""
    tokenizer = english(digit_comma=DIGIT_COMMA[column])
    for text, *pieces in DIGIT_COMMA_TABLE:
        ids = tokenizer.encode(text)
        assert tokenizer.pieces(ids) == pieces[column].split(), text


def released_ids(model, text, strip):
    """Return a text's ids, computed like the release's `encode_pieces`."""
    ids = []
    for piece in model.encode(text, out_type=str):
        if piece[-1] != "," or len(piece) < 2 or not piece[-2].isdigit():
            ids.append(model.piece_to_id(piece))
            continue
        parts = model.encode(piece[:-1].replace("▁", ""), out_type=str)
        if strip and piece[0] != "▁" and parts[0][0] == "▁":
            parts[0] = parts[0][1:]
        ids += [model.piece_to_id(p) for p in parts if p]
        ids.append(model.piece_to_id(","))
    return ids


@pytest.mark.parametrize("variant", ["released", "strip"])
def test_digit_comma_equals_the_loop_over_pieces(variant):
    """The digit-comma rule yields the ids of the release's loop over pieces."""
    model = sentencepiece.SentencePieceProcessor()
    model.load_from_serialized_proto(sentencepiece_model())
    tokenizer = english(digit_comma=variant)
    rng = random.Random(0)
    texts = [
        "".join(rng.choices("0012,,9a ", k=rng.randint(0, 20)))
        for _ in range(500)
    ]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        wanted = released_ids(model, text.strip(), variant == "strip")
        assert ids.tolist() == wanted, text


@pytest.mark.parametrize("lower", [True, False])
def test_normalize_equals_the_released_formula(lower):
    """Normalized text is NFKD without marks and, if chosen, in lower case."""
    config = TextConfig(do_lower_case=lower)
    codes = [*range(0xD800), *range(0xE000, 0x30000)]
    for start in range(0, len(codes), 100):
        text = "x".join(map(chr, codes[start : start + 100]))
        wanted = unicodedata.normalize("NFKD", " ".join(text.strip().split()))
        wanted = "".join(c for c in wanted if not unicodedata.combining(c))
        wanted = wanted.lower() if lower else wanted
        assert normalize(text, config) == wanted


@pytest.mark.parametrize(
    ("text", "options", "wanted"),
    [
        ("  Über \u00a0\u3000 Ça\u2028\t", {}, "uber ca"),
        ("a  b", {}, "a b"),
        ("Über", {"do_lower_case": False}, "Uber"),
        ("Über ﬁ", {"strip_accents": False}, "über ﬁ"),
        ("``a'' ```", {}, "``a'' ```"),
        ("``a'' ```", {"replace_quotes": True}, '"a" "`'),
        ("ΣΑΣ Σ. ΑΣ'Α", {}, "σας σ. ασ'α"),
        ("a\ud800b", {}, "a\ufffdb"),
    ],
)
def test_normalize_options(text, options, wanted):
    """Normalized texts equal results worked out by hand, for each option."""
    config = TextConfig(**options)
    assert normalize(text, config) == wanted


def spans(tokenizer, text):
    """Return pairs of a piece and the text that it covers."""
    ids, starts, ends = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    pieces = tokenizer.pieces(ids)
    return [
        (piece, text[a:b])
        for piece, a, b in zip(pieces, starts, ends, strict=True)
    ]


def test_sentencepiece_offsets():
    """Offsets refer to the original text, even with accents and ligatures."""
    assert spans(english(), " Cafe\u0301  CAFÉ,\u3000in 2010, x ") == [
        *(("▁cafe", "Cafe\u0301"), ("▁cafe", "CAFÉ"), (",", ",")),
        *(("▁", ""), ("i", "i"), ("n", "n")),
        *(("▁2010", "2010"), (",", ","), ("▁", ""), ("x", "x")),
    ]
    assert spans(english(), "b12, ﬁ") == [
        *(("▁", ""), ("b", "b"), ("▁12", "12"), (",", ",")),
        *(("▁", ""), ("f", ""), ("i", "ﬁ")),
    ]
    assert spans(english(), "10,") == [("▁1", "1"), ("▁0", "0"), (",", ",")]
    quotes = spans(english(replace_quotes=True), "``a''")
    assert quotes == [("▁", ""), ('"', "``"), ("a", "a"), ('"', "''")]


def test_wordpiece_offsets():
    """Offsets refer to the original text, even if characters are dropped."""
    assert spans(chinese(), "Un\u200baffable cafe\u0301,中") == [
        *(("un", "Un\u200b"), ("##aff", "aff"), ("##able", "able")),
        *(("cafe", "cafe\u0301"), (",", ","), ("中", "中")),
    ]
    assert spans(chinese(), "a\0a") == [("a", "a\0"), ("##a", "a")]
    separated = spans(chinese(), "un\u2028a\u2029the\u3000cafe")
    assert separated == [(x, x) for x in ("un", "a", "the", "cafe")]


@pytest.mark.parametrize(
    ("text", "options", "wanted"),
    [
        ("unaffable Café", {}, "un ##aff ##able cafe"),
        ("Un", {}, "un"),
        ("Un", {"do_lower_case": False}, "Un"),
        ("café", {"strip_accents": False}, "caf ##é"),
        ("中文the「文」", {}, "中 文 the 「 文 」"),
        ("the,the-un!", {}, "the , the - un !"),
        ("theun", {}, "[UNK]"),
        ("a\tb\u2028a\u00a0a", {}, "a [UNK] a a"),
        ("caﬁ", {}, "[UNK]"),  # ligatures are not decomposed
        ("a\u00ada\x00a\ufffda\x1ca", {}, "a ##a ##a ##a ##a"),
        ("a\ud800a", {}, "a ##a"),
        ("a" * 200, {}, " ".join(["a"] + ["##a"] * 199)),
        ("a" * 201 + ",a", {}, "[UNK] , a"),
        ("οΣ Σο", {}, "ο ##ς σ ##ο"),
        ("100 [MASK] ##a", {}, "10 ##0 [ mask ] [UNK] [UNK] a"),
        ("", {}, ""),
    ],
)
def test_wordpiece_table(text, options, wanted):
    """Pieces match a table worked out by hand from the released rules."""
    tokenizer = chinese(**options)
    assert tokenizer.pieces(tokenizer.encode(text)) == wanted.split()


def test_words_are_cached_within_a_limit(monkeypatch):
    """The cache of words stays small, and ids do not depend on it."""
    monkeypatch.setattr(wordpiece, "MAX_CACHED_WORDS", 2)
    tokenizer, text = chinese(), "the cafe un the 中 cafe a the"
    assert tokenizer.pieces(tokenizer.encode(text)) == text.split()
    assert 0 < len(tokenizer._model._cache) <= 2


def test_special_ids_are_the_released_ones():
    """The special pieces of both vocabularies have the released ids."""
    t = english()
    special = [t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id]
    assert special == [0, 1, 2, 3, 4] == t.not_words.tolist()
    t = chinese()
    special = [t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id]
    assert special == [0, 2, 3, 4, 5]
    assert t.not_words.tolist() == [0, 1, 2, 3, 4, 5]


def test_kinds_of_tokenizers_are_complete():
    """A tokenizer class that lacks a required method cannot be instantiated."""
    methods = {"_compile", "_starts_word", "_unused", "decode"}
    methods |= {"encode_joined", "encode_with_offsets"}
    assert Tokenizer.__abstractmethods__ == methods
    assert Vocabulary.__abstractmethods__ == {"fingerprint", "stored_in"}


def test_word_starts():
    """Word starts follow the English rule or, in WordPiece, `##`."""
    t = english()
    starts = dict(
        zip(t.pieces(range(t.vocab_size)), t.word_starts, strict=True)
    )
    yes = "▁the ▁ <unk> [CLS] [SEP] 1 0, 000 ' e's . ( [ é Σ"
    no = "s at the x [cls] Ed"
    assert [starts[p] for p in yes.split()] == [True] * len(yes.split())
    assert [starts[p] for p in no.split()] == [False] * len(no.split())
    # The first byte of a character that is not ASCII begins a word.
    assert [*map(t._starts_word, ("<0xC3>", "<0xA9>"))] == [True, False]
    t = chinese()
    wanted = [not p.startswith("##") for p in WORDPIECES]
    assert t.word_starts.tolist() == wanted


@pytest.mark.parametrize("make", [english, chinese])
@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda t: t.encode(["a"]), "`text` must be a string.*text=\\['a'\\]"),
        (lambda t: t.encode_masked(None), "`text` must be a string"),
        (lambda t: t.encode_with_offsets(["a"]), "`text` must be a string"),
        (lambda t: t.encode_batch("abc"), "`texts` must be a list"),
        (lambda t: t.pieces("the"), "`ids` must be one row.*ids='the'"),
        (lambda t: t.pieces([-1]), "ids from 0 to .*ids\\[0\\]=-1"),
        (lambda t: t.pieces([1.5]), "ids\\[0\\]=1.5"),
        (lambda t: t.pieces(["the"]), "ids\\[0\\]=the"),
        (lambda t: t.decode(np.array([[5], [6]])), "one row.*ids\\[0\\]="),
        (lambda t: t.decode([5, -100]), "ids\\[1\\]=-100"),
        (lambda t: t.decode([t.vocab_size]), "ids from 0 to .*ids\\[0\\]="),
        (lambda t: t.decode(5), "`ids` must be one row.*ids=5"),
    ],
)
def test_wrong_arguments_are_named(make, action, message):
    """An error states which argument is not a text or a row of ids."""
    with pytest.raises(InputError, match=message):
        action(make())


def test_ids_may_be_arrays_and_texts_bytes():
    """Ids may be arrays or tuples of any integer type; a text may be bytes."""
    t = english()
    ids = t.encode("the at")
    assert t.encode(b"the at") == ids
    for row in (np.array(ids), np.array(ids, np.int64), tuple(np.int32(ids))):
        assert t.pieces(row) == t.pieces(ids)
        assert t.decode(row) == "the at"


def test_pieces_without_text_are_not_words():
    """Control pieces, unused pieces and special pieces are not words."""
    proto = ModelProto.FromString(english().content)
    size = len(proto.pieces)
    proto.pieces.add(piece="<s>", type=CONTROL)
    proto.pieces.add(piece="new", type=NORMAL)
    proto.pieces.add(piece="old", type=UNUSED)
    t = SentencePieceTokenizer(proto.SerializeToString(), TextConfig())
    assert t.not_words.tolist() == [*range(5), size, size + 2]


def test_words_that_look_like_unused_pieces():
    """In WordPiece, only `[unused` and a number, in brackets, is unused.

    A piece continues a word only if it begins with `##`.
    """
    pieces = [*WORDPIECES, "[unused99]", "[unused]", "unused9", "#", "#a"]
    t = WordPieceTokenizer("\n".join(pieces).encode(), TextConfig())
    assert t.not_words.tolist() == [*range(6), len(WORDPIECES)]
    assert t.word_starts[len(WORDPIECES) :].all()


@pytest.mark.parametrize("make", [english, chinese])
def test_ids_without_text_are_not_decoded(make):
    """Special and unused ids, the mask and unknown words decode to nothing."""
    t = make()
    ids = t.encode("the cafe")
    for id in t.not_words:
        assert t.decode([id, ids[0], id, *ids[1:], id]) == "the cafe"


def test_truncate_pair_equals_popping():
    """Truncation equals removing tokens of the longer segment one by one."""
    for max_tokens in range(20):
        for wanted in np.ndindex(15, 15):
            a, b = wanted
            while a + b > max_tokens:
                a, b = (a - 1, b) if a > b else (a, b - 1)
            assert truncate_pair(*wanted, max_tokens) == (a, b)


def test_pack():
    """`pack` returns ids with special pieces, the mask and segment ids."""
    t = english()
    ids, mask, segments = pack(t, [7, 8, 9], [10, 11], 7)
    assert ids.tolist() == [2, 7, 8, 3, 10, 11, 3]
    assert mask.tolist() == [1] * 7
    assert segments.tolist() == [0, 0, 0, 0, 1, 1, 1]
    ids, mask, segments = pack(t, [7, 8, 9], [], 6)
    assert ids.tolist() == [2, 7, 8, 9, 3, 0]
    assert mask.tolist() == [1, 1, 1, 1, 1, 0]
    assert segments.tolist() == [0] * 6
    assert pack(t, [7, 8, 9], [], 4)[0].tolist() == [2, 7, 8, 3]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (0x3400, 0x4DBF),
        (0x4E00, 0x9FFF),
        (0xF900, 0xFAFF),
        (0x20000, 0x2A6DF),
        (0x2A700, 0x2CEAF),
        (0x2F800, 0x2FA1F),
    ],
)
def test_ideographs_stand_alone(first, last):
    """The blocks of ideographs equal the blocks in the release."""
    for code in (first, last):
        assert wordpiece.clean_character(chr(code)) == f" {chr(code)} "
    for code in (first - 1, last + 1):
        assert " " not in wordpiece.clean_character(chr(code))
