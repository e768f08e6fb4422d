"""Rules of the `tokenizers` library are compiled to a character map."""

import base64
import re
import unicodedata

import pytest
import vocabularies
from hub_tokenizers import replace
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from albert_tf.conversion import text_rules
from albert_tf.conversion.text_rules import (
    MAKERS,
    NotExpressible,
    expand_pattern,
    flat,
    is_per_character,
    only_spaces,
    sequences,
    table_of,
)
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
PARTS = "e\u0302\u0323 e\u0323\u0302 \u1eb9\u0302 ê\u0323"  # ê with a dot


@pytest.mark.slow_after(6)
@pytest.mark.parametrize(
    ("rules", "function"),
    [
        ([NFKC], lambda text: unicodedata.normalize("NFKC", text)),
        ([{"type": "NFC"}], lambda text: unicodedata.normalize("NFC", text)),
        (
            [LOWER, regex(r"caf(é|e\u0301)", "bar")],
            lambda text: text.lower().replace("café", "bar"),
        ),
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
        ([{"type": "NFD"}], lambda text: unicodedata.normalize("NFD", text)),
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
    """A compiled map changes texts as equivalent Python functions do."""
    table, left_out = table_of(rules)
    assert not left_out
    normalize = map_function(charsmap_of(table))
    composes = rules[0]["type"] in ("NFC", "NFKC")
    for text in [*TEXTS, *[PARTS] * composes]:
        assert normalize(text) == function(text), text


@pytest.mark.parametrize("name", [name for name in BERT if name != "type"])
def test_flags_of_bert_may_be_texts(name):
    """A flag written as a string has the effect of the JSON Boolean."""
    text = "\x07É中"
    on, off, text_on, text_off = (
        MAKERS["BertNormalizer"](BERT | {name: flag})(text)
        for flag in (True, False, "true", "false")
    )
    assert (text_on, text_off) == (on, off) and on != off
    missing = {k: v for k, v in BERT.items() if k != name}
    assert MAKERS["BertNormalizer"](missing)(text) == on  # the default


def test_accents_stay_if_case_stays():
    """By default, `BertNormalizer` strips accents only if it lower-cases."""
    for lower, strip, wanted in (
        (True, None, "e"),
        (True, False, "é"),
        (False, None, "É"),
        (False, True, "E"),
    ):
        rule = BERT | {"lowercase": lower, "strip_accents": strip}
        assert MAKERS["BertNormalizer"](rule)("É") == wanted


def test_bert_cleans_as_the_library_does():
    """Tab, LF and CR become spaces; other control codes are dropped.

    Format characters, private-use characters and U+FFFD are also dropped.
    """
    function = MAKERS["BertNormalizer"](BERT)
    dropped = "\x0b\x0c\x1c\x85\u200b\ue000\ufffd"
    assert function(f"\t\n\rA{dropped}É") == "   ae"
    assert function("\u00a0\u2028\u3000中ΑΣ") == "    中 ασ"


def test_nmt_changes_the_characters_of_the_library():
    """`Nmt` drops 30 control characters and turns 15 characters into spaces."""
    function = MAKERS["Nmt"]({})
    changed = {c: function(c) for c in map(chr, range(1 << 16))}
    changed = {c: new for c, new in changed.items() if c != new}
    dropped = "\1\2\3\4\5\6\7\b\v\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18"
    dropped += "\x19\x1a\x1b\x1c\x1d\x1e\x1f\x7f\x8f\x9f"
    spaces = (
        "\t\n\f\r\u1680\u200b\u200c\u200d\u200e\u200f\u2028\u2029▁\ufeff\ufffd"
    )
    wanted = dict.fromkeys(dropped, "") | dict.fromkeys(spaces, " ")
    assert changed == wanted


@pytest.mark.slow
def test_bert_and_nmt():
    """`BertNormalizer` and `Nmt` become maps that drop control characters."""
    table, _ = table_of([BERT])
    assert map_function(charsmap_of(table))("É中x\x07\t\ufffdÀ") == "e 中 x a"
    table, _ = table_of([{"type": "Nmt"}])
    assert map_function(charsmap_of(table))("a\x07b\u200bc\ufffd") == "ab c "


@pytest.mark.slow
def test_a_map_within_the_rules_is_applied_too():
    """A precompiled map among the rules is applied with all of its keys."""
    content = vocabularies.sentencepiece_model()
    proto = ModelProto.FromString(content)
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
    """Rules that no map can express are omitted; their names are returned."""
    table, left_out = table_of([rule, LOWER])
    assert len(left_out) == 1 and re.search(name, left_out[0])
    assert table["A"] == "a"


def test_sequences_within_sequences():
    """Nested sequences of rules are flattened."""
    inner = {"type": "Sequence", "normalizers": [NFKC]}
    rules = {"type": "Sequence", "normalizers": [inner, LOWER]}
    assert list(flat(rules)) == [NFKC, LOWER]
    assert list(flat(None)) == []


def test_rules_of_other_kinds():
    """`Isolate`, `Prepend` and `Precompiled` rules become functions."""
    isolate = MAKERS["Isolate"]({"where": str.isdigit})
    assert isolate("a1b") == "a 1 b"
    assert MAKERS["Prepend"]({"prepend": "▁"})("a") == "a"
    charsmap = base64.b64encode(charsmap_of({"ab": "c", "d": "e"})).decode()
    rule = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    assert MAKERS["Precompiled"](rule)("abd") == "ce"
    assert sequences(rule) == ["ab"]
    empty = {"type": "Precompiled", "precompiled_charsmap": None}
    assert MAKERS["Precompiled"](empty)("abd") == "abd"
    assert sequences(empty) == sequences(LOWER) == []
    assert sequences(regex("a|bc", "x")) == ["bc"]


@pytest.mark.parametrize(
    ("kind", "content", "patterns", "wanted"),
    [
        ("String", "▁", [" ", "  ", "\n"], True),
        ("String", "", [" ", "  "], True),
        ("String", "x", [" "], False),
        ("String", "", [",", "1", "(", "a"], False),
        ("Regex", " ", [" {2,}", r"[ \s]+", r"^(?=[\x{61}])"], True),
        ("Regex", "▁", [r"[\x{9}-\x{d} ]+", r"[\x{9}-\x{d} ]"], True),
        ("Regex", "", [r"\s+$", " {2}", "[ ]+$"], True),
        ("Regex", "x", [r"\s+", r"^(?=[\x{61}])", "[ ]+"], False),
        ("Regex", " ", [r"[\x{9}-\x{e} ]", "[a-z]+", r"[\p{L}]"], False),
        ("Regex", " ", [r"[\x{d800}]", ",+", "12"], False),
        ("Regex", "", [r"^(?=[\x{61}])", ",+", "12", "[ s]", "[a-z]"], False),
    ],
)
def test_rules_that_only_change_spaces(kind, content, patterns, wanted):
    """`only_spaces` is true of rules that merely collapse or strip spaces."""
    for pattern in patterns:
        assert only_spaces({kind: pattern}, content) is wanted, pattern


@pytest.mark.parametrize(
    ("pattern", "content", "wanted"),
    [
        *(("[ab]", "x", True), ("a", "x", True), ("[^a]", "x", True)),
        *(("[ab]+", "", True), ("[ab]+", " ", True), ("[ab]+", "x", False)),
        *(("[ab]*", "", False), ("[ab]{2,}", "", False), ("ab", "", False)),
        *(("ab+", "", False), ("(a)", "", False), ("(?:ab)+", "", False)),
    ],
)
def test_rules_that_change_single_characters(pattern, content, wanted):
    """Rules for character classes change each character independently.

    The same holds for rules that replace a run of such characters with nothing
    or a space.
    """
    assert is_per_character(re.compile(pattern), content) is wanted


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("a[b-d]", ["ab", "ac", "ad"]),
        ("(ab|cd)e", ["abe", "cde"]),
        ("(?<=x)y", ["xy"]),
        ("y(?=z)", ["yz"]),
        ("ab{1,2}", ["ab", "abb"]),
        ("a{0,4}", ["", "a", "aa", "aaa", "aaaa"]),
        ("(?i)a1", ["A1", "a1"]),
        *(("a{1,5}", None), ("a+", None), ("a(?!b)", None), (".", None)),
        # 200 * 100 texts, and 177 * 113
        ("[\u0400-\u04c7][\u0400-\u0463]", 20_000),
        ("[\u0400-\u04b0][\u0400-\u0470]", None),
    ],
)
def test_patterns_are_written_out(pattern, wanted):
    """The texts that a pattern matches are listed if at most 20,000 exist.

    Repetitions of more than four, negative lookaheads and `.` cannot be
    expressed.
    """
    compiled = re.compile(pattern)
    if wanted is None:
        with pytest.raises(NotExpressible, match="Replace of"):
            expand_pattern(compiled)
    else:
        found = expand_pattern(compiled)
        assert found == wanted or len({*found}) == wanted


def test_texts_that_become_others_are_bounded():
    """All strings that become a given string are listed if at most 400 exist.

    The given string is one of them; if more exist, it is the only one listed.
    """
    others = dict.fromkeys(map(chr, range(0x4E00, 0x4E00 + 400)), "a")
    assert text_rules._sources(["a"], others) == {"a"}
    others.popitem()
    assert text_rules._sources(["a"], others) == {"a", *others}
    before = {"A": "a", "B": "b", "b": "b", "c": "d"}
    found = text_rules._sources(["ab"], before)
    assert found == {"ab", "Ab", "aB", "AB"}
