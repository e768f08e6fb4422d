"""Rules compiled into SentencePiece models act like the rules in Python."""

import random
import unicodedata

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from vocabularies import TEXTS, english, trained

from albert_tf.text.normalization import TextConfig, normalize
from albert_tf.text.sentencepiece_models import (
    charsmap_keys,
    charsmap_of,
    expand,
)
from albert_tf.text.text_graph import TextGraph, offset_graph
from albert_tf.text.tokenizers import SentencePieceTokenizer

CONFIGS = [
    {},
    {"do_lower_case": False},
    {"strip_accents": False},
    {"replace_quotes": True, "digit_comma": "none"},
]

# Texts in which a character's neighbors matter.
SEQUENCES = [
    *TEXTS,
    *map(
        unicodedata.normalize,
        ["NFC", "NFD", "NFKD", "NFD"],
        [
            "Ấ Ο ΚΌΣΜΟΣ",
            "Tiếng Việt Đồng Йогурт",
            "안녕하세요 세계",
            "がぎ ヴ ｶﾞ",
        ],
    ),
    "``a'' '''b''' ```c``` ` '",
    "ΑΣ ΑΣ.Α ΣΑ Σ οΣ\u00ad ο\u0301Σ\u0301 Α\u302eΣ ΣΣ ΣΣΑ ΑΣ\n Α'Σ",
    "a\u0301 ",
    " \u0301a b",
    "a \u0301 b",
    "\u00a8a b\u00b4 c \u00b8",
    "কো কৌ ো கொ කෝ ㄱㅏ ﾡￂ ㉠",
    "a\u00a0b\u2003c\u3000d\u2028e\x85f\x1cg\x1fh\ufeffi\u200bj\u00adk",
    "İstanbul DİYARBAKIR ẞ ŉ ǅ ½ ™ ﷺ ﬃ Ⓐ 𝐀",
]


def reference(tokenizer, texts):
    """Return a list of the ids of each text, after normalization in Python."""
    proto = ModelProto.FromString(tokenizer.content)
    # Repeated spaces become one space, even spaces from a model's own map.
    proto.normalizer_spec.remove_extra_whitespaces = True
    model = sentencepiece.SentencePieceProcessor(
        model_proto=proto.SerializeToString()
    )
    normalized = [normalize(text, tokenizer.config) for text in texts]
    ids, ends = expand(model.encode(normalized), *tokenizer.expansion)
    return np.split(ids, ends[:-1])


def every_character():
    """Return texts with each character by itself, in words and next to sigmas.

    From U+20000 on, only three characters are used. Variants of the capital
    sigma, such as U+03F9, have no final form and are omitted.
    """
    codes = [*range(0xD800), *range(0xE000, 0x20000), 0x20000, 0x2F801, 0xE0020]
    characters = [
        c
        for c in map(chr, codes)
        if c == "Σ" or unicodedata.normalize("NFKD", c) != "Σ"
    ]
    return [
        "".join(f"{c} a{c}b A{c}Σ{c} " for c in characters[i : i + 20])
        for i in range(0, len(characters), 20)
    ]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("options", CONFIGS)
def test_compiled_rules_are_those_of_normalize(options):
    """With compiled rules, a text gets the ids of its normalized form.

    The texts contain nearly all characters, and special sequences.
    """
    tokenizer = english(**options)
    texts = [*SEQUENCES, *every_character()]
    found = tokenizer.encode_batch(texts)
    for text, a, b in zip(
        texts, found, reference(tokenizer, texts), strict=True
    ):
        assert a.tolist() == b.tolist(), ascii(text)


def of_other_kind(**settings):
    """Return a trained model of a different kind than the released model."""
    lines = [normalize(text, TextConfig()) for text in SEQUENCES] * 3
    lines = [line for line in lines if line]
    settings = {"vocab_size": 300, "character_coverage": 1.0} | settings
    return trained(sentence_iterator=iter(lines), **settings)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "bpe", "byte_fallback": True, "vocab_size": 600},
        {"normalization_rule_name": "identity"},
        {"normalization_rule_name": "nmt_nfkc_cf"},
        {"remove_extra_whitespaces": False},
        {"treat_whitespace_as_suffix": True},
        {"add_dummy_prefix": False},
        {"user_defined_symbols": ["THE", "the", "Σ", "é", "<br>"]},
    ],
)
def test_other_models(settings):
    """For models of other kinds, Python and the graph return equal results.

    The results are ids and offsets. The kinds are BPE models, and models with
    different settings of normalization, spaces or symbols.
    """
    content = of_other_kind(**settings)
    texts = [*SEQUENCES, "THE the Theé É <BR><br>"]
    for options in CONFIGS[::2]:
        tokenizer = SentencePieceTokenizer(content, TextConfig(**options))
        spanned = offset_graph(tokenizer, TextGraph(tokenizer))(
            tf.constant([text.encode() for text in texts])
        )
        rows = zip(*(x.to_list() for x in spanned), strict=True)
        wanted = reference(tokenizer, texts)
        for text, ids, row in zip(texts, wanted, rows, strict=True):
            assert row[0] == ids.tolist(), ascii(text)
            assert list(row) == list(tokenizer.encode_with_offsets(text)), text


def test_keys_of_a_map():
    """The keys that are read from a compiled map equal the original keys."""
    rng = random.Random(0)
    letters = "ab\u00e9\u0301\u4e00\U0001f600"
    table = {
        "".join(rng.choices(letters, k=rng.randint(1, 4))): "x"
        for _ in range(300)
    }
    keys = charsmap_keys(charsmap_of(table))
    assert len(keys) == len(table) and set(keys) == set(table)
    assert charsmap_keys(b"") == ()
