"""Rules of the `tokenizers` library are compiled to a character map."""

import base64
import re
import unicodedata

import pytest
import vocabularies
from hub_tokenizers import replace
from sentencepiece import sentencepiece_model_pb2

from albert_tf.conversion.text_rules import MAKERS, flat, table_of
from albert_tf.text.sentencepiece_models import (
    charsmap_keys,
    charsmap_of,
    map_function,
)


def regex(pattern: str, content: str) -> dict:
    return {
        "type": "Replace",
        "pattern": {"Regex": pattern},
        "content": content,
    }


NFKC, LOWER = {"type": "NFKC"}, {"type": "Lowercase"}
BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
TEXTS = [
    "The Café, ﬁne ½ Ⅷ ＡＢ",
    unicodedata.normalize("NFD", "Élève Việt Nam 한국 が"),
    "বাংলা: কো ৌ a: b",
    "a\u200bb\u00a0c\x07d\ufeff",
    "`` x'' ''y'' ' ` …",
]


@pytest.mark.slow_after(6)
@pytest.mark.parametrize(
    ("rules", "function"),
    [
        ([NFKC], lambda text: unicodedata.normalize("NFKC", text)),
        ([{"type": "NFC"}], lambda text: unicodedata.normalize("NFC", text)),
        ([{"type": "NFD"}], lambda text: unicodedata.normalize("NFD", text)),
        (
            [NFKC, LOWER],
            lambda text: unicodedata.normalize("NFKC", text).lower(),
        ),
        (
            [replace("``", '"'), replace("''", '"')],
            lambda text: text.replace("``", '"').replace("''", '"'),
        ),
        (
            [regex(r"(?<=[\u0980-\u09ff]):", "\u0983"), LOWER],
            lambda text: text.replace("\u09be:", "\u09be\u0983").lower(),
        ),
        (
            [LOWER, regex(r"caf(é|e\u0301)", "bar")],
            lambda text: text.lower().replace("café", "bar"),
        ),
        ([regex(" {2,}", " "), regex(r"\s+$", "")], str),
        ([regex(" {2,}", "\u2581")], str),
        (
            [regex("(?i)the caf", "x"), regex(r"\d", "0")],
            lambda text: re.sub(r"\d", "0", re.sub("(?i)the caf", "x", text)),
        ),
        (
            [LOWER, regex("[^a-z ]", "")],
            lambda text: re.sub("[^a-z ]", "", text.lower()),
        ),
        (
            [regex("[^A-Za-z`' ]+", "")],
            lambda text: re.sub("[^A-Za-z`' ]+", "", text),
        ),
    ],
)
def test_a_map_does_what_the_rules_do(rules, function):
    """A compiled map changes texts as Python's functions do."""
    table, left_out = table_of(rules)
    assert not left_out
    normalize = map_function(charsmap_of(table))
    for text in TEXTS:
        assert normalize(text) == function(text), text


@pytest.mark.parametrize("name", [name for name in BERT if name != "type"])
def test_flags_of_bert_may_be_texts(name):
    """A flag written as a string equals the JSON Boolean."""
    text = "\x07É中"
    on, off, text_on, text_off = (
        MAKERS["BertNormalizer"](BERT | {name: flag})(text)
        for flag in (True, False, "true", "false")
    )
    assert (text_on, text_off) == (on, off) and on != off
    missing = {k: v for k, v in BERT.items() if k != name}
    assert MAKERS["BertNormalizer"](missing)(text) == on  # the default


@pytest.mark.slow
def test_bert_and_nmt():
    """Control characters vanish, spaces are unified, ideographs are split."""
    table, _ = table_of([BERT])
    assert map_function(charsmap_of(table))("É中x\x07\t\ufffdÀ") == "e 中 x a"
    table, _ = table_of([{"type": "Nmt"}])
    assert map_function(charsmap_of(table))("a\x07b\u200bc\ufffd") == "ab c "


@pytest.mark.slow
def test_a_map_within_the_rules_is_applied_too():
    """A precompiled map among the rules is applied with all of its keys."""
    content = vocabularies.sentencepiece_model()
    proto = sentencepiece_model_pb2.ModelProto.FromString(content)
    charsmap = proto.normalizer_spec.precompiled_charsmap
    keys = charsmap_keys(charsmap)
    assert "ﬁ" in keys and "e\u0301" in keys and len(keys) > 9_000
    own = base64.b64encode(charsmap).decode()
    rule = {"type": "Precompiled", "precompiled_charsmap": own}
    table, _ = table_of([LOWER, rule])
    normalize, before = (
        map_function(charsmap_of(table)),
        map_function(charsmap),
    )
    for text in TEXTS:
        assert normalize(text) == before(text.lower()), text


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ({"type": "ByteLevel"}, "ByteLevel"),
        (regex("a+b*", "c"), r"a\+b\*"),
        (regex(r"\p{L}", "c"), r"\\p"),
        (regex("^x", "y"), r"\^x"),
        (regex(r"[\p{L}]", " "), r"\\p"),
        (regex("(?!a)b", "y"), r"\(\?!a\)b"),
        ({"type": "Prepend", "prepend": "x"}, "Prepend of 'x'"),
    ],
)
def test_what_no_map_does_is_named(rule, name):
    """Rules that no map can express are omitted, and their names returned."""
    table, left_out = table_of([rule, LOWER])
    assert len(left_out) == 1 and re.search(name, left_out[0])
    assert table["A"] == "a"


def test_sequences_within_sequences():
    """Nested sequences of rules are flattened."""
    inner = {"type": "Sequence", "normalizers": [NFKC]}
    rules = {"type": "Sequence", "normalizers": [inner, LOWER]}
    assert list(flat(rules)) == [NFKC, LOWER]
    assert list(flat(None)) == []
