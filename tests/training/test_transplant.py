"""Embedding tables for new vocabularies equal tables written by hand."""

import dataclasses
import json
import random

import keras
import numpy as np
import pytest
import tiny
import vocabularies

from albert_tf.data.records.metadata import PIECE_COUNTS_FILE
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.phonemes import AlbertForPhonemes
from albert_tf.text.normalization import TextConfig
from albert_tf.text.symbols import SymbolTable
from albert_tf.text.tokenizers import WordPieceTokenizer
from albert_tf.training import checkpoints
from albert_tf.training.pretraining import warm_start
from albert_tf.training.pretraining.warm_start import (
    Transplant,
    origins,
    read_transplant,
)

# {piece of the Chinese vocabulary: the pieces of the English vocabulary from
# which it is made}
FROM_ENGLISH = {
    "[MASK]": "[MASK]",
    "[PAD]": "<pad>",
    "[unused1]": "",
    "the": "▁the",
    "##a": "a",
    "a": "a",
    "un": "u n",
    "Un": "u n",
    "cafe": "▁cafe",
    "##aff": "a f f",
    "##é": "é",
    "##ς": "ς",
    ",": ",",
    "[": "[",
    "10": "10",
    "中": "",
}
# The same in the other direction.
FROM_CHINESE = {
    "<unk>": "[UNK]",
    "▁the": "the",
    "the": "the",
    "at": "",
    "▁cafe": "cafe",
    ",": ",",
    "1": "",
    "e": "##e",
    "▁": "",
    "a": "##a",
    "Σ": "##σ",
    "▁naïve": "",
}


@pytest.mark.parametrize(
    "old, new, expected",
    [
        (vocabularies.english(), vocabularies.chinese(), FROM_ENGLISH),
        (vocabularies.chinese(), vocabularies.english(), FROM_CHINESE),
    ],
    ids=["english-chinese", "chinese-english"],
)
def test_pieces_are_made_of_the_old_ones(old, new, expected):
    """Pieces of SentencePiece and WordPiece are matched in both directions.

    The pieces include word-boundary markers, accents, capitals, special pieces
    and scripts.
    """
    made = origins(old, new)
    pieces = new.pieces(range(new.vocab_size))
    table = {
        piece: " ".join(old.pieces(ids))
        for piece, ids in zip(pieces, made, strict=True)
    }
    assert {piece: table[piece] for piece in expected} == expected


def test_a_vocabulary_is_made_of_itself():
    """If vocabularies are equal, every piece keeps its row."""
    for tokenizer in (vocabularies.english(), vocabularies.chinese()):
        itself = [[i] for i in range(tokenizer.vocab_size)]
        assert origins(tokenizer, tokenizer) == itself


ORIGINS = [[3], [0, 2], []]
OLD, NEW = np.arange(8.0).reshape(4, 2) ** 2, np.full((3, 2), -1.0)


def test_rows_are_kept_meant_or_new():
    """A new piece's row is an old row, a mean of old rows, or random."""
    rows = Transplant(ORIGINS, None).means(OLD, NEW)
    np.testing.assert_array_equal(rows, [[36, 49], [8, 13], [-1, -1]])
    assert Transplant([*ORIGINS, [1]], None).describe() == (
        "4 pieces: 2 from the old vocabulary, 1 composed of its pieces, 1 new"
    )


@pytest.mark.parametrize(
    "counts, expected",
    [
        (None, [8, 3, 4]),
        # The kept bias is 8 - log(7 / 13) above its log frequency.
        ([6, 3, 1], [8, 8 + np.log(4 / 7), 8 + np.log(2 / 7)]),
        ([1, 3, 6], np.log([2 / 13, 4 / 13, 7 / 13])),
        ([5, 3, 2], np.log([6 / 13, 4 / 13, 3 / 13])),
    ],
)
def test_biases_follow_frequencies(counts, expected):
    """New biases follow log frequencies; if few pieces are kept, all biases do.

    Without counts, a new bias is a mean of old biases.
    """
    counts = counts and np.array(counts)
    biases = Transplant(ORIGINS, counts).biases(
        np.array([1.0, 2.0, 5.0, 8.0]), np.zeros(3, np.float32)
    )
    np.testing.assert_allclose(biases, expected, rtol=1e-6)


def permuted(tokenizer):
    """Return a tokenizer with the same pieces in a different order."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    random.Random(1).shuffle(pieces)
    return WordPieceTokenizer("\n".join(pieces).encode(), TextConfig())


def test_another_order_of_pieces_is_the_same_model(tmp_path):
    """Reordering a vocabulary reorders the logits and changes nothing else."""
    old = vocabularies.chinese()
    new = permuted(old)
    config = dataclasses.replace(
        tiny.CONFIG, vocab_size=old.vocab_size, initializer_range=0.3
    )
    keras.utils.set_random_seed(1)
    source, target = AlbertForPretraining(config), AlbertForPretraining(config)
    source.mlm.output_bias.assign(np.random.rand(old.vocab_size))
    config.save(str(tmp_path))
    old.save(str(tmp_path))
    checkpoints.save(str(tmp_path), checkpoints.named_variables(source))
    counts = list(range(old.vocab_size))
    (tmp_path / PIECE_COUNTS_FILE).write_text(json.dumps(counts))
    folder = str(tmp_path)
    transplant = read_transplant(folder, new, folder, config.vocab_size)
    lines = warm_start.start_weights(target, folder, config, transplant)
    assert f"{len(counts)} from the old vocabulary, 0 composed" in lines[-1]
    index_of = {p: i for i, p in enumerate(new.pieces(range(new.vocab_size)))}
    order = [index_of[p] for p in old.pieces(range(old.vocab_size))]
    order = np.array(order, np.int32)
    ids = np.arange(12, dtype=np.int32).reshape(2, 6)
    logits = target(order[ids])["mlm_logits"].numpy()[..., order]
    expected = source(ids)["mlm_logits"].numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert (order != np.arange(len(order))).any()


def test_symbols_are_those_of_the_same_name(tmp_path):
    """Rows and the head of symbols are matched by symbol.

    New symbols are listed. The head of words is kept if the words are the same.
    """
    words = ("one", "two")
    old = SymbolTable({"$": 0, "M": 1, " ": 2, "a": 3, "b": 4}).with_words(
        words
    )
    new = SymbolTable({"$": 0, "b": 1, " ": 2, "ç": 3, "a": 4, "M": 5})
    sizes = {"initializer_range": 0.3, "vocab_size": 8}
    config = dataclasses.replace(tiny.CONFIG, **sizes)
    source = AlbertForPhonemes(config, 4)
    source.symbols.bias.assign(np.arange(8.0))
    source.config.save(str(tmp_path))
    old.save(str(tmp_path))
    checkpoints.save(str(tmp_path), checkpoints.named_variables(source))

    def start(new):
        model = AlbertForPhonemes(config, len(new.words))
        moved = read_transplant(str(tmp_path), new, str(tmp_path), 8)
        weights = str(tmp_path), config, moved
        return model, warm_start.start_weights(model, *weights, new)

    model, lines = start(new.with_words(words))
    ids, mask = np.array([[3, 2, 4, 1]], np.int32), np.ones((1, 4), np.int32)
    moved = np.array([[4, 2, 1, 5]], np.int32)
    before = source(ids, mask, 0 * ids)["symbol_logits"].numpy()
    after = model(moved, mask, 0 * ids)["symbol_logits"].numpy()
    assert np.std(before) > 0.1
    np.testing.assert_allclose(
        after[..., [0, 5, 2, 4, 1]], before[..., :5], atol=1e-5
    )
    np.testing.assert_array_equal(model.words.kernel, source.words.kernel)
    assert lines[-1].endswith("3 new: ç")
    assert "a new words head" in "".join(start(new.with_words(["one"]))[1])
