"""Properties that the tokenizers have for any text."""

import functools
import re

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st
from properties import examples, texts
from vocabularies import TEXTS, WORDPIECES, WORDS, chinese, english, trained

from albert_tf.text import wordpiece
from albert_tf.text.added_pieces import with_pieces
from albert_tf.text.normalization import SURROGATE, TextConfig, normalize
from albert_tf.text.text_graph import TextGraph, offset_graph
from albert_tf.text.tokenizers import SentencePieceTokenizer


def with_bytes(**text):
    """Return a BPE tokenizer with byte fallback, which has no unknown pieces.

    The digit-comma rule is off, so pieces spell the normalized text.
    """
    content = trained(
        sentence_iterator=iter(["the cat sat at 1,000 cafés, 12, of"] * 9),
        model_type="bpe",
        byte_fallback=True,
        vocab_size=320,
    )
    config = TextConfig(digit_comma="none", **text)
    return SentencePieceTokenizer(content, config)


def added(make, **text):
    """Return a tokenizer with pieces added to its vocabulary."""
    pieces = ["[E1]", "New York"] if make is english else ["Covid", "É1"]
    return with_pieces(make(**text), pieces)


KINDS = {
    "english": functools.partial(added, english),
    "chinese": functools.partial(added, chinese),
    "english, cased, marks, quotes": functools.partial(
        english,
        do_lower_case=False,
        strip_accents=False,
        replace_quotes=True,
        digit_comma="strip",
    ),
    "bytes": with_bytes,
    "english, marks": functools.partial(
        english, strip_accents=False, digit_comma="none"
    ),
    "english, cased": functools.partial(english, do_lower_case=False),
    "chinese, cased": functools.partial(chinese, do_lower_case=False),
    "chinese, marks": functools.partial(chinese, strip_accents=False),
    "bytes, marks": functools.partial(with_bytes, strip_accents=False),
}
tokenizer_of = functools.cache(lambda kind: KINDS[kind]())

KNOWN = [
    *(piece.removeprefix("##") for piece in WORDPIECES[6:]),
    *(word.replace("▁", " ") for word in WORDS),
    *("1,000,", "2010, ", "b12,", " New York", "Covid", " É1", " ", "\u3000"),
]
TEXT = texts(
    *(*KNOWN, "[MASK]", "[CLS]", "<unk>", "``", "''", "[E1]"),
    *("a" * 200, "a" * 201, "é" * 201, "x" * 9000),
)
# Texts that particular rules affect.
RULES = (
    *("", " ", "the cat's café, 2010, 1,000,000, b12,", "  the  cat\u00a0 at "),
    *("``a'' \u00a0\u2028 ﬁ ½ ```", "```a'''' ''", "ﬁ ½ \ufdfa x"),
    *("中文the「文」 unaffable Un", "中!\u0301 中\u0301文 a\u00ad\u0301b"),
    "ΑΣ ΑΣ. ΑΣ.Α ΣΑ Σ οΣ\u00ad ο\u0301Σ\u0301 Σ",
    *("\ufeffa\ufeff \x00a\x00 a\x1ca\x0b", "[CLS] [MASK] <unk> <pad> ▁the"),
    "\U0001d157\U0001d165\U0001d16d\U0001d16e\U0001d165a",
    "\u0301the\u0301 caf\u0065\u0301\u0301 \u0301 naïve",
    *("a" * 200 + " " + "a" * 201, "x" * 10_000 + ", 1," * 1000),
)
each_kind = pytest.mark.parametrize("kind", KINDS)


@functools.cache
def graphs(kind):
    """Return a tokenizer's graph, and its graph for offsets."""
    graph = TextGraph(tokenizer_of(kind))
    return graph, offset_graph(tokenizer_of(kind), graph)


@functools.cache
def normalizer(content):
    """Return the normalizer of a SentencePiece model."""
    return sentencepiece.SentencePieceNormalizer(model_proto=content)


def normalized(tokenizer, text):
    """Normalize a text in Python; return it as its pieces should spell it."""
    if tokenizer.kind == "wordpiece":
        words = wordpiece.separated(text, tokenizer.config).split()
        return " ".join(words)
    model = normalizer(tokenizer.content)
    own = model.normalize(normalize(text, tokenizer.config))
    return " ".join(own.replace("▁", " ").split())


def squeezed(text):
    """Return a text without white space, and with one form of sigma."""
    return "".join(text.split()).replace("ς", "σ")


@pytest.mark.slow_after(1)
@each_kind
@examples(10)
@given(batch=st.lists(TEXT.map(str.encode) | st.binary(max_size=9), max_size=6))
@example(batch=[text.encode() for text in (*TEXTS, *RULES)])
def test_the_graph_is_python(kind, batch):
    """The graph returns the ids and offsets that Python returns.

    Bytes that are not UTF-8 count as in `decode(..., "replace")`.
    """
    tokenizer, (graph, offsets) = tokenizer_of(kind), graphs(kind)
    strings = tf.constant(batch, tf.string)
    batch = [data.decode("utf-8", "replace") for data in batch]
    ids = [row.tolist() for row in tokenizer.encode_batch(batch)]
    assert graph(strings).to_list() == ids
    rows = zip(*(ragged.to_list() for ragged in offsets(strings)), strict=True)
    for text, row in zip(batch, rows, strict=True):
        assert list(row) == list(tokenizer.encode_with_offsets(text)), text


@pytest.mark.slow_after(2)
@each_kind
@examples(5)
@given(batch=st.lists(st.lists(TEXT, min_size=1, max_size=3), max_size=4))
def test_masks_in_texts_are_alike(kind, batch):
    """`[MASK]` becomes the mask piece between any texts, as in the graph."""
    tokenizer, batch = tokenizer_of(kind), list(map("[MASK]".join, batch))
    rows = list(map(tokenizer.encode_masked, batch))
    for text, ids in zip(batch, rows, strict=True):
        assert ids.count(tokenizer.mask_id) == text.count("[MASK]")
    strings = tf.constant([text.encode() for text in batch], tf.string)
    assert graphs(kind)[0].encode_masked(strings).to_list() == rows


BYTE = re.compile("<0x..>")


@pytest.mark.slow_after(3)
@each_kind
@examples(40)
@given(text=TEXT)
@example(text=TEXTS[2])
@example(text="\x1b½")
def test_spans_have_the_text_of_their_pieces(kind, text):
    """Spans are in order; the text up to each span normalizes to its pieces."""
    tokenizer = tokenizer_of(kind)
    ids, starts, ends = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    bounds = [0, *np.stack([starts, ends], axis=1).ravel().tolist(), len(text)]
    assert bounds == sorted(bounds)
    pieces, so_far = tokenizer.pieces(ids), ""
    for id, piece, start, end in zip(ids, pieces, starts, ends, strict=True):
        if id in tokenizer.not_words or BYTE.fullmatch(piece):
            return
        so_far += piece.removeprefix("##").replace("▁", "")
        # If a character has several pieces, the first may also cover dropped
        # characters before it.
        if normalized(tokenizer, text[start:end]).strip():
            wanted = normalized(tokenizer, text[:end])
            assert squeezed(so_far) == squeezed(wanted)


@pytest.mark.slow_after(3)
@each_kind
@examples(40)
@given(text=st.lists(st.sampled_from(KNOWN)).map("".join))
def test_decoding_returns_the_normalized_text(kind, text):
    """Ids without an unknown piece decode to the text as it was split.

    The digit-comma rule adds spaces to numbers.
    """
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text)
    row = [tokenizer.cls_id, *ids, tokenizer.sep_id, tokenizer.pad_id]
    found, wanted = tokenizer.decode(row), normalized(tokenizer, text)
    if tokenizer.kind == "sentencepiece":
        found, wanted = squeezed(found), squeezed(wanted)
    if tokenizer.unk_id not in ids:
        assert found == wanted


def test_byte_pieces_are_decoded():
    """The byte pieces of a character are words, and decode to the character."""
    tokenizer = tokenizer_of("bytes")
    ids = tokenizer.encode("the 中 cat")
    assert {"<0xE4>", "<0xB8>", "<0xAD>"} <= {*tokenizer.pieces(ids)}
    assert tokenizer.decode(ids) == "the 中 cat"


@pytest.mark.parametrize("kind", ["english", "english, cased", "chinese"])
@examples(40)
@given(text=st.text(st.characters(exclude_categories=[]), max_size=9))
@example(text="\ud800a")
def test_lone_surrogates_count_as_one_character(kind, text):
    """Half of a UTF-16 pair counts as U+FFFD, with the same offsets."""
    tokenizer = tokenizer_of(kind)
    clean = SURROGATE.sub("\ufffd", text)
    assert tokenizer.encode(text) == tokenizer.encode(clean)
    spans = tokenizer.encode_with_offsets(text)
    assert spans == tokenizer.encode_with_offsets(clean)
