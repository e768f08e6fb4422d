"""The graphs of tokenizers return the ids and offsets that Python returns."""

import numpy as np
import pytest
import tensorflow as tf
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from vocabularies import TEXTS, chinese, english

from albert_tf.base.errors import InputError
from albert_tf.text.normalization import TextConfig
from albert_tf.text.packing import INPUTS, pack
from albert_tf.text.sentencepiece_models import NORMAL, charsmap_of
from albert_tf.text.text_graph import CharacterClass, TextGraph, offset_graph
from albert_tf.text.tokenizers import (
    SentencePieceTokenizer,
    WordPieceTokenizer,
)
from albert_tf.text.wordpiece import is_punctuation


def encoded(texts):
    """Return texts as a tensor of UTF-8 strings."""
    return tf.constant([text.encode() for text in texts])


def graph_of(make, **options):
    """Return the `TextGraph` of a new tokenizer."""
    return TextGraph(make(**options))


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


@pytest.mark.parametrize("predicate", [str.isspace, is_punctuation])
def test_the_classes_of_graphs_have_all_characters(predicate):
    """Classes of characters agree with Python on all characters."""
    codes = [*range(0xD800), *range(0xE000, 0x110000)]
    found = CharacterClass(predicate)(tf.constant(codes)).numpy()
    assert found.tolist() == [predicate(chr(code)) for code in codes]


@pytest.mark.slow
def test_all_characters_in_words():
    """The graph cleans, folds and splits each code point as Python does."""
    tokenizer = chinese()
    texts = all_characters()
    found = graph_of(chinese)(encoded(texts)).to_list()
    for text, ids, wanted in zip(
        texts, found, tokenizer.encode_batch(texts), strict=True
    ):
        assert ids == wanted.tolist(), ascii(text)


AROUND_MASKS = {
    "the [MASK].": ["▁the", "[MASK]", "."],
    "the [MASK] .": ["▁the", "[MASK]", "▁", "."],
    "[MASK]\u00a0, [MASK]": ["[MASK]", "▁", ",", "[MASK]"],
    "[MASK][MASK]'[MASK]-": ["[MASK]", "[MASK]", "'", "[MASK]", "-"],
    ". [MASK]the": ["▁", ".", "[MASK]", "▁the"],
    "[MASK]\u200c,": ["[MASK]", "▁", ","],
    "[MASK]\u0301,": ["[MASK]", ","],
}


@pytest.mark.parametrize("text", AROUND_MASKS)
def test_no_word_begins_behind_a_mask_without_a_space(text):
    """A word begins after `[MASK]` only if white space separates them."""
    tokenizer = english()
    ids = tokenizer.encode_masked(text)
    assert tokenizer.pieces(ids) == AROUND_MASKS[text]
    assert graph_of(english).encode_masked(encoded([text])).to_list() == [ids]


@pytest.mark.parametrize(
    "charsmap", [b"", charsmap_of({"\u200c": "x", "\u200e": ""})]
)
def test_a_character_that_is_kept_or_dropped_is_no_space(charsmap):
    """If a vocabulary keeps a joiner, or drops it, no word begins there."""
    proto = ModelProto.FromString(english().content)
    proto.normalizer_spec.precompiled_charsmap = charsmap
    proto.pieces.add(piece="\u200c", score=-9.0, type=NORMAL)
    content = proto.SerializeToString()
    tokenizer = SentencePieceTokenizer(content, TextConfig())
    text = "[MASK]\u200cs [MASK]\u200e."
    ids = tokenizer.encode_masked(text)
    assert "▁" not in tokenizer.pieces(ids)
    found = TextGraph(tokenizer).encode_masked(encoded([text]))
    assert found.to_list() == [ids]


def test_special_pieces_may_have_any_ids():
    """Rows have the vocabulary's ids for [CLS], [SEP] and [PAD]."""
    pieces = "the kitten [MASK] [SEP] [UNK] [CLS] [PAD] at".split()
    content = "\n".join(pieces).encode()
    tokenizer = WordPieceTokenizer(content, TextConfig())
    rows = [[5, 0, 1, 3, 7, 3], [5, 0, 3, 6, 6, 6]]
    texts, pairs = ["the kitten", "the"], ["at", ""]
    assert tokenizer(texts, pairs)["input_ids"].tolist() == rows
    graph = TextGraph(tokenizer)
    ids = [graph(encoded(x)) for x in (texts, pairs)]
    found = graph.pack(*ids, max_seq_length=6)
    assert found["input_ids"].numpy().tolist() == rows
    masks = [[1] * 6, [1] * 3 + [0] * 3]
    assert found["input_mask"].numpy().tolist() == masks
    assert tokenizer.decode(rows[1]) == "the"
    assert tokenizer.encode_masked("kitten [MASK] the") == [1, 2, 0]
    masked = graph.encode_masked(encoded(["kitten [MASK] the"]))
    assert masked.to_list() == [[1, 2, 0]]


@pytest.mark.parametrize("length", [3, 4, 9, 16])
@pytest.mark.parametrize("fixed", [True, False])
def test_pack(length, fixed):
    """For two segments of any lengths, the graph packs rows as Python does."""
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
    width = length if fixed else max(mask.sum() for _, mask, _ in rows)
    for name, wanted in zip(INPUTS, zip(*rows, strict=True), strict=True):
        assert found[name].dtype == tf.int32
        np.testing.assert_array_equal(
            found[name], np.stack(wanted)[:, :width], name
        )


def test_pack_one_segment_and_no_rows():
    """The graph packs rows with one segment, and batches without rows."""
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


@pytest.mark.parametrize("make", [english, chinese])
def test_an_empty_batch_has_no_pieces(make):
    """An empty batch of strings produces empty ragged tensors."""
    graph = offset_graph(make(), graph_of(make))
    found = graph(encoded(["a"])[:0])
    assert [ragged.nrows() for ragged in found] == [0, 0, 0]


@pytest.mark.parametrize("options", [{}, {"do_lower_case": False}])
def test_word_pieces_of_the_graph(options):
    """The graph's ids and offsets equal Python's, even for long words.

    Words of two-byte letters are not longer than others. Bytes that are not
    UTF-8 count as in `decode(..., "replace")`.
    """
    tokenizer = chinese(**options)
    texts = [
        *(
            *TEXTS,
            "unaffable Un,able 中!\u0301 文",
            "x\x00a\u00ad\u0301 ΑΣ ΑΣΑ",
        ),
        *("a" * 200 + " " + "é" * 200, "a" * 201 + "," + "é" * 201 + " a"),
        *(" \u3000a", "「中」 a", "\u0301", "un" * 120, "ο" * 200),
    ]
    damaged = [b"un\xed\xa0\x80 a\xc3\xf0\x9f\x98 the", b"un\xe4\xb8"]
    batch = tf.constant([*(text.encode() for text in texts), *damaged])
    texts += [data.decode("utf-8", "replace") for data in damaged]
    graph = TextGraph(tokenizer)
    ids = [row.tolist() for row in tokenizer.encode_batch(texts)]
    assert graph(batch).to_list() == ids
    spans = offset_graph(tokenizer, graph)(batch)
    rows = zip(*(ragged.to_list() for ragged in spans), strict=True)
    for text, row in zip(texts, rows, strict=True):
        assert list(row) == list(tokenizer.encode_with_offsets(text)), text
    masked = ["[MASK] a", "un [MASK][MASK].", ""]
    assert graph.encode_masked(encoded(masked)).to_list() == [
        tokenizer.encode_masked(text) for text in masked
    ]
