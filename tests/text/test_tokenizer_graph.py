"""The tokenizers in the graph against the Python ones."""

import random

import numpy as np
import pytest
import tensorflow as tf
from vocabularies import chinese, english

from albert_tf.base.errors import InputError
from albert_tf.text.packing import pack
from albert_tf.text.text_graph import TextGraph

OPTIONS = (
    (english, {}),
    (english, {"do_lower_case": False, "digit_comma": "strip"}),
    (english, {"strip_accents": False, "digit_comma": "none"}),
    (english, {"replace_quotes": True}),
    (english, {"do_lower_case": False, "strip_accents": False}),
    (chinese, {}),
    (chinese, {"do_lower_case": False}),
    (chinese, {"strip_accents": False}),
)

TEXTS = (
    "",
    " ",
    "the cat's café, 2010, 1,000,000, b12,",
    "``a'' \u00a0\u2028 ﬁ ½ ```",
    "中文the「文」 unaffable Un",
    "ΑΣ ΑΣ. ΑΣ.Α ΣΑ Σ οΣ\u00ad ο\u0301Σ\u0301 Σ",
    "\ufeffa\ufeff \x00a\x00 a\x1ca\x0b",
    "a" * 200 + " " + "a" * 201,
    "[CLS] [MASK] <unk> <pad> ▁the",
    "\u1d157\U0001d165\U0001d16d\U0001d16e\U0001d165a",
    "x" * 10_000 + ", 1," * 1000,
)

# Characters with special rules, among them marks with an order.
ALPHABET = [
    *"aAΣ'.01, \u0301\u0345\u302e\u302f中\u00ad\u200dİIﬁ각\u2028\x00\ufffd",
    *"\ufeff`",
    *map(chr, (0x1BF2, 0x16FF0, 0x1D165, 0x1D16D, 0x1D16E, 0xF900, 0x37E)),
]


def encoded(texts):
    """Return texts as a tensor of strings."""
    return tf.constant([text.encode() for text in texts])


def random_texts(count=400):
    """Return random texts of characters from `ALPHABET`."""
    rng = random.Random(0)
    return [
        "".join(rng.choices(ALPHABET, k=rng.randint(0, 12)))
        for _ in range(count)
    ]


def graph_of(make, **options):
    """Return the graph of a tokenizer."""
    return TextGraph(make(**options))


@pytest.mark.slow_after(4)
@pytest.mark.parametrize(("make", "options"), OPTIONS)
def test_ids_equal_the_python_tokenizer(make, options):
    """Texts with all special rules have the same ids in the graph."""
    tokenizer = make(**options)
    texts = [*TEXTS, *random_texts()]
    ids = graph_of(make, **options)(encoded(texts))
    assert ids.dtype == tf.int32
    for text, a, b in zip(
        texts, ids.to_list(), tokenizer.encode_batch(texts), strict=True
    ):
        assert a == b.tolist(), text


def all_characters():
    """Return texts with each character next to letters and sigmas."""
    codes = [
        *range(0xD800),
        *range(0xE000, 0x32000),
        *range(0xE0000, 0xE0200),
        *range(0x10FF00, 0x110000),
    ]
    texts = []
    for start in range(0, len(codes), 16):
        characters = map(chr, codes[start : start + 16])
        texts.append("".join(f"A{c}Σ{c} Σ{c}a " for c in characters))
    return texts


@pytest.mark.slow
def test_all_characters_in_words():
    """Every code point is cleaned, folded and split as in Python."""
    tokenizer = chinese()
    texts = all_characters()
    found = graph_of(chinese)(encoded(texts)).to_list()
    for text, ids, wanted in zip(
        texts, found, tokenizer.encode_batch(texts), strict=True
    ):
        assert ids == wanted.tolist(), ascii(text)


@pytest.mark.parametrize("make", [english, chinese])
def test_bad_utf8(make):
    """Bytes that are not UTF-8 count as in `decode(..., "replace")`."""
    rng = random.Random(0)
    likely = [0xE2, 0x80, 0xA8, 0xF0, 0x9F, 0xC2, 0xA0, 0xED, 0xF4, 0xC0, 0x61]
    texts = [
        bytes(rng.choices([*range(256), *likely * 20], k=rng.randint(0, 8)))
        for _ in range(500)
    ]
    tokenizer = make()
    found = graph_of(make)(tf.constant(texts)).to_list()
    for text, ids in zip(texts, found, strict=True):
        assert ids == tokenizer.encode(text.decode("utf-8", "replace")), text


AROUND_MASKS = {
    "the [MASK].": ["▁the", "[MASK]", "."],
    "the [MASK] .": ["▁the", "[MASK]", "▁", "."],
    "[MASK]\u00a0, [MASK]": ["[MASK]", "▁", ",", "[MASK]"],
    "[MASK][MASK]'[MASK]-": ["[MASK]", "[MASK]", "'", "[MASK]", "-"],
    ". [MASK]the": ["▁", ".", "[MASK]", "▁the"],
    "[MASK]\u0301,": ["[MASK]", ","],
}


@pytest.mark.parametrize("make", [english, chinese])
def test_encode_masked(make):
    """`[MASK]` becomes that piece, as in Python."""
    tokenizer = make()
    texts = ["", "[MASK]", "the [MASK] at[MASK][MASK]", "the", "[mask] [MASK"]
    texts += ["", *AROUND_MASKS, "[MASK]\ufeff,"]
    found = graph_of(make).encode_masked(encoded(texts))
    assert found.to_list() == [tokenizer.encode_masked(t) for t in texts]


@pytest.mark.parametrize("text", AROUND_MASKS)
def test_no_word_begins_behind_a_mask_without_a_space(text):
    """A word mark alone follows `[MASK]` only if white space does."""
    tokenizer = english()
    ids = tokenizer.encode_masked(text)
    assert tokenizer.pieces(ids) == AROUND_MASKS[text]
    assert graph_of(english).encode_masked(encoded([text])).to_list() == [ids]


@pytest.mark.parametrize("length", [3, 4, 9, 16])
@pytest.mark.parametrize("fixed", [True, False])
def test_pack(length, fixed):
    """Rows of any two lengths are packed as in Python."""
    tokenizer = english()
    pairs = [(a, b) for a in range(12) for b in range(12)]
    first = [list(range(10, 10 + a)) for a, _ in pairs]
    second = [list(range(50, 50 + b)) for _, b in pairs]
    found = graph_of(english).pack(
        tf.ragged.constant(first, dtype=tf.int32),
        tf.ragged.constant(second, dtype=tf.int32),
        length,
        fixed,
    )
    rows = [
        pack(tokenizer, a, b, length)
        for a, b in zip(first, second, strict=True)
    ]
    names = ("input_ids", "input_mask", "segment_ids")
    width = length if fixed else max(mask.sum() for _, mask, _ in rows)
    for name, wanted in zip(names, zip(*rows, strict=True), strict=True):
        assert found[name].dtype == tf.int32
        np.testing.assert_array_equal(
            found[name], np.stack(wanted)[:, :width], name
        )


def test_pack_one_segment_and_no_rows():
    """Rows may have one segment, and a batch may be empty."""
    tokenizer = english()
    graph = graph_of(english)
    ids = graph(tf.constant(["the cat", ""]))
    found = graph.pack(ids, None, 6)
    for i, text in enumerate(["the cat", ""]):
        wanted = pack(tokenizer, tokenizer.encode(text), [], 6)
        np.testing.assert_array_equal(found["input_ids"][i], wanted[0])
        np.testing.assert_array_equal(found["input_mask"][i], wanted[1])
    for fixed, width in ((True, 6), (False, 1)):
        empty = graph(tf.constant([], tf.string))
        found = graph.pack(empty, empty, 6, fixed)
        assert {tuple(t.shape) for t in found.values()} == {(0, width)}
    with pytest.raises(InputError, match="max_seq_length=2"):
        graph.pack(ids, None, 2)
