"""The tokenizers in the graph, with where each piece stands in the text.

As `Tokenizer.encode_with_offsets`: offsets count characters of the string as
given. Rows of a batch are worked on as one flat sequence; an index into it is
called a place.

B batch, C characters of a text, N ids of a text.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.text.character_graph import (
    CharacterClass,
    is_space,
)
from albert_tf.text.tokenizer_graph import (
    SentencePieceGraph,
    TextGraph,
    WordPieceGraph,
)
from albert_tf.text.tokenizers import Tokenizer

SPACE = ord(" ")
TO_THE_END = 1 << 20  # a piece that is not split ends where its span does


class Spanned(NamedTuple):
    """Ids, and where each begins and ends in the text; ragged [B, N]."""

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


def next_place(where: tf.Tensor) -> tf.Tensor:
    """Return the first place from each one on where a flat bool is true.

    Where there is none, that is the number of places; one more place than
    there are, which has itself.
    """
    size = tf.size(where)
    places = tf.cast(tf.where(where)[:, 0], tf.int32)
    numbers = tf.searchsorted(places, tf.range(size + 1))
    return tf.gather(tf.concat([places, [size]], axis=0), numbers)


class Characters:
    """The characters of strings [B], end to end.

    Attributes:
      codes: their code points, ragged [B, C].
      starts: the place of each string's first one.
    """

    def __init__(self, strings: tf.Tensor):
        self.codes, first = tf.strings.unicode_decode_with_offsets(
            strings, "UTF-8"
        )
        self.starts = tf.cast(self.codes.row_starts(), tf.int32)
        lengths = tf.strings.length(strings)
        self._bytes = tf.cumsum(lengths, exclusive=True)
        rows = first.value_rowids()
        first = tf.cast(first.values, tf.int32)
        self._first = first + tf.gather(self._bytes, rows)

    def places(self, within: tf.RaggedTensor) -> tf.Tensor:
        """Return the places of bytes [B, N] of the strings, flat."""
        base = tf.gather(self._bytes, within.value_rowids())
        byte = tf.cast(within.values, tf.int32) + base
        return tf.searchsorted(self._first, byte)


class SentencePieceOffsets(tf.Module):
    """Ids and offsets of a `SentencePieceTokenizer`."""

    def __init__(self, graph: SentencePieceGraph, tokenizer: Tokenizer):
        super().__init__()
        self._graph = graph
        self._is_space = CharacterClass(is_space, tokenizer.config)
        spans = [
            bounds
            for i in range(tokenizer.vocab_size)
            for _, *bounds in tokenizer.splits.get(i, [(i, 0, TO_THE_END)])
        ]
        self._splits = tf.constant(tokenizer.expansion[1])
        columns = np.array(spans, np.int32).T
        self._first, self._last = map(tf.constant, columns)

    def __call__(self, strings: tf.Tensor) -> Spanned:
        """Return ids [B, N] and their offsets in strings [B]."""
        strings = self._graph.prepared(strings)
        ids, first, last = self._graph.model.tokenize_with_offsets(strings)
        text = Characters(strings)
        end = text.places(last)
        solid = next_place(self._is_space(text.codes.values) == 0)
        begin = tf.minimum(tf.gather(solid, text.places(first)), end)
        row_starts = tf.gather(text.starts, ids.value_rowids())
        return self._split(ids, begin - row_starts, end - row_starts)

    def _split(self, ids: tf.RaggedTensor, begin, end) -> Spanned:
        """Return the pieces that the digit-comma rule makes of ids."""
        low = tf.gather(self._splits, ids.values)
        number = tf.gather(self._splits, ids.values + 1) - low
        within = tf.ragged.range(low, low + number).values
        new = self._graph.expand(ids)
        begin, end = tf.repeat(begin, number), tf.repeat(end, number)
        last = tf.minimum(begin + tf.gather(self._last, within), end)
        first = tf.minimum(begin + tf.gather(self._first, within), last)
        return Spanned(new, new.with_values(first), new.with_values(last))


class WordPieceOffsets(tf.Module):
    """Ids and offsets of a `WordPieceTokenizer`."""

    def __init__(self, graph: WordPieceGraph, tokenizer: Tokenizer):
        super().__init__()
        self._graph = graph

    def __call__(self, strings: tf.Tensor) -> Spanned:
        """Return ids [B, N] and their offsets in strings [B]."""
        strings = self._graph.prepared(strings)
        parts, first, _ = self._graph.model.tokenize_with_offsets(strings)
        text = Characters(strings)
        begin, end, rows = self._spans(text, parts, first)
        words = self._graph.words(parts)
        ids, first, last = self._graph.pieces(words.values)
        word = ids.value_rowids()
        # A word that is too long is one piece.
        size = tf.gather(tf.strings.length(words.values), word)
        long = tf.gather(self._graph.is_long(words.values), word)
        last = tf.where(long, size, tf.cast(last.values, tf.int32))
        # Where parts, words and pieces stand, in bytes, if parts are joined.
        bounds = tf.pad(tf.cumsum(tf.strings.length(parts.values)), [[1, 0]])
        base = tf.gather(self._word_starts(parts, bounds), word)
        first = tf.cast(first.values, tf.int32) + base
        first = tf.searchsorted(bounds, first, side="right") - 1
        last = tf.searchsorted(bounds, last + base) - 1
        row_starts = tf.gather(text.starts, tf.gather(rows, first))
        merged = [
            words.with_values(ids.with_values(x)).merge_dims(1, 2)
            for x in (
                ids.values,
                tf.gather(begin, first) - row_starts,
                tf.gather(end, last) - row_starts,
            )
        ]
        return Spanned(*merged)

    @staticmethod
    def _spans(text: Characters, parts: tf.RaggedTensor, first):
        """Return where parts begin and end, in places, and their rows."""
        rows = parts.value_rowids()
        begin = text.places(first)
        # A part ends where the next part with another source begins.
        after = tf.searchsorted(begin, begin, side="right")
        end = tf.gather(tf.concat([begin, [tf.int32.max]], axis=0), after)
        limits = tf.cast(text.codes.row_limits(), tf.int32)
        return begin, tf.minimum(end, tf.gather(limits, rows)), rows

    @staticmethod
    def _word_starts(parts: tf.RaggedTensor, bounds: tf.Tensor) -> tf.Tensor:
        """Return the bounds at which words begin, flat."""
        solid = parts.values != " "
        rows = parts.value_rowids()
        before = tf.concat([[False], solid], axis=0)[:-1]
        before &= tf.concat([[-1], rows], axis=0)[:-1] == rows
        return tf.boolean_mask(bounds[:-1], solid & ~before)


OFFSETS = {
    SentencePieceGraph: SentencePieceOffsets,
    WordPieceGraph: WordPieceOffsets,
}


def offset_graph(tokenizer: Tokenizer, text_graph: TextGraph) -> tf.Module:
    """Return a function of strings [B] to `Spanned`.

    It uses the tables of the tokenizer's `TextGraph`.
    """
    graph = text_graph.graph
    return OFFSETS[type(graph)](graph, tokenizer)
