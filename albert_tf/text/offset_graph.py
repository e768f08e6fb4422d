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
    decode,
    encode,
    is_space,
)
from albert_tf.text.normalization import TextConfig
from albert_tf.text.tokenizer_graph import (
    SentencePieceGraph,
    TextGraph,
    WordPieceGraph,
)
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.text.wordpiece import MAX_WORD_CHARACTERS, clean_character, fold

SPACE = ord(" ")
TO_THE_END = 1 << 20  # a piece that is not split ends where its span does


class Spanned(NamedTuple):
    """Ids, and where each begins and ends in the text; ragged [B, N]."""

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


def byte_lengths(codes: tf.Tensor) -> tf.Tensor:
    """Return how many bytes UTF-8 has for code points."""
    limits = tf.constant([0x80, 0x800, 0x10000])
    return 1 + tf.searchsorted(limits, codes, side="right")


def shifted(values: tf.Tensor, fill: int) -> tf.Tensor:
    """Return what comes after each of flat values, `fill` after the last."""
    return tf.concat([values[1:], tf.fill([1], fill)], axis=0)[
        : tf.size(values)
    ]


def next_place(where: tf.Tensor) -> tf.Tensor:
    """Return the first place from each one on where a flat bool is true.

    Where there is none, that is the number of places; one more place than
    there are, which has itself.
    """
    size = tf.size(where)
    places = tf.cast(tf.where(where)[:, 0], tf.int32)
    numbers = tf.searchsorted(places, tf.range(size + 1))
    return tf.gather(tf.concat([places, [size]], axis=0), numbers)


def running_maximum(index: tf.Tensor) -> tf.Tensor:
    """Return the largest so far of flat values that are -1 or their place."""
    there = index >= 0
    places = tf.cast(tf.where(there)[:, 0], tf.int32)
    seen = tf.cumsum(tf.cast(there, tf.int32))
    return tf.gather(tf.concat([[-1], places], axis=0), seen)


class Sources(NamedTuple):
    """Where the characters of a changed text come from.

    Attributes:
      text: the changed code points, ragged [B, C].
      starts: flat, the start of each one's source in the original text.
      ends: flat, the end.
    """

    text: tf.RaggedTensor
    starts: tf.Tensor
    ends: tf.Tensor

    def places(self, units, first, last) -> list[tf.Tensor]:
        """Return the places of first and last bytes of pieces, each flat.

        Args:
          units: [U] the places at which texts, or words, begin.
          first, last: ragged [U, N], counted in bytes from there.
        """
        lengths = byte_lengths(self.text.flat_values)
        bounds = tf.concat([[0], tf.cumsum(lengths)], axis=0)
        begins = tf.gather(tf.gather(bounds, units), first.value_rowids())
        return [
            tf.searchsorted(bounds, begins + tf.cast(within.values, tf.int32))
            for within in (first, last)
        ]

    def spans(self, begin, end, rows) -> tuple[tf.Tensor, tf.Tensor]:
        """Return starts and ends in the original of places begin to end.

        An empty span stands where its row goes on, or ends.
        """
        row_ends = tf.cast(self.text.row_limits(), tf.int32)
        row_starts = tf.cast(self.text.row_starts(), tf.int32)
        ends = tf.concat([[0], self.ends], axis=0)  # the end before a place
        last = tf.where(row_ends > row_starts, tf.gather(ends, row_ends), 0)
        starts = tf.concat([self.starts, [0]], axis=0)
        at_end = begin >= tf.gather(row_ends, rows)
        first = tf.where(
            at_end, tf.gather(last, rows), tf.gather(starts, begin)
        )
        return first, tf.where(end > begin, tf.gather(ends, end), first)


def with_dropped(
    text: tf.RaggedTensor, counts: tf.Tensor, ends: tf.Tensor, joins: tf.Tensor
) -> tf.Tensor:
    """Return where units of a text end, flat, with those dropped after them.

    Args:
      text: the units, ragged [B, U].
      counts: flat, how many characters each became.
      ends: flat, where each ends in the original.
      joins: flat bool, whether a unit that became nothing belongs to the
        character before it.
    """
    size = tf.size(counts)
    rows = tf.cast(text.value_rowids(), tf.int32)
    row_ends = tf.gather(tf.cast(text.row_limits(), tf.int32), rows)
    later = tf.minimum(next_place(counts > 0)[1:], row_ends)
    # The last unit before the next one that is kept, of those that join.
    index = tf.where(joins & (counts == 0), tf.range(size), -1)
    last = tf.concat([[-1], running_maximum(index)], axis=0)
    before = tf.gather(last, later)
    longer = before > tf.range(size)
    return tf.where(longer, tf.gather(ends, tf.maximum(before, 0)), ends)


def _joins(character: str, config: TextConfig) -> bool:
    """Return whether folding drops a character that cleaning does not."""
    cleaned = clean_character(character).strip()
    return bool(cleaned) and not fold(cleaned, config)


def _stands_alone(character: str, config: TextConfig) -> bool:
    return clean_character(character).startswith(" ")


class SentencePieceOffsets(tf.Module):
    """Ids and offsets of a `SentencePieceTokenizer`."""

    def __init__(self, graph: SentencePieceGraph, tokenizer: Tokenizer):
        super().__init__()
        self._graph = graph
        self._is_space = CharacterClass(is_space, tokenizer.config)
        self._quotes = tokenizer.config.replace_quotes
        spans = [
            bounds
            for i in range(tokenizer.vocab_size)
            for _, *bounds in tokenizer.splits.get(i, [(i, 0, TO_THE_END)])
        ]
        self._splits = tf.constant(tokenizer.expansion[1])
        columns = np.array(spans, np.int32).T
        self._first, self._last = map(tf.constant, columns)

    def _without_spaces(self, text: tf.RaggedTensor):
        """Return units [B, U], white space being one, and their bounds."""
        codes = text.flat_values
        rows = tf.cast(text.value_rowids(), tf.int32)
        row_starts = tf.cast(text.row_starts(), tf.int32)
        row_ends = tf.gather(tf.cast(text.row_limits(), tf.int32), rows)
        place = tf.range(tf.size(codes))
        solid = self._is_space(codes) == 0
        after_solid = tf.concat([[False], solid], axis=0)[:-1]
        after_solid &= place > tf.gather(row_starts, rows)
        goes_on = next_place(solid)[:-1] < row_ends
        keep = solid | (after_solid & goes_on)
        end = tf.where(solid, place + 1, next_place(solid)[:-1])
        codes = tf.where(solid, codes, SPACE)
        within = tf.gather(row_starts, rows)
        units = tf.ragged.boolean_mask(
            text.with_values(codes), text.with_values(keep)
        )
        return units, (place - within)[keep], (end - within)[keep]

    def _with_quotes(self, units: tf.RaggedTensor, start, end):
        """Return units in which a pair of quotes is one."""
        codes = units.flat_values
        size = tf.size(codes)
        rows = tf.cast(units.value_rowids(), tf.int32)
        before = tf.concat([[-1], codes], axis=0)[:-1]
        row_before = tf.concat([[-1], rows], axis=0)[:-1]
        quote = (codes == ord("`")) | (codes == ord("'"))
        run = ~quote | (codes != before) | (rows != row_before)
        begins = running_maximum(tf.where(run, tf.range(size), -1))
        odd = (tf.range(size) - begins) % 2 == 1
        paired = shifted(tf.cast(odd, tf.int32), 0) == 1
        paired &= ~odd & (shifted(begins, -1) == begins)
        codes = tf.where(paired, ord('"'), codes)
        end = tf.where(paired, end + 1, end)
        kept = tf.ragged.boolean_mask(
            units.with_values(codes), units.with_values(~odd)
        )
        return kept, start[~odd], end[~odd]

    def normalized(self, strings: tf.Tensor) -> Sources:
        """Return strings [B] as `normalization.align` does."""
        units, start, end = self._without_spaces(decode(strings))
        if self._quotes:
            units, start, end = self._with_quotes(units, start, end)
        counts = self._graph.table.counts(units)
        joins = tf.ones_like(counts, tf.bool)
        longer = with_dropped(units, counts, end, joins)
        source = tf.repeat(tf.range(tf.size(counts)), counts)
        ends = tf.where(
            shifted(source, -1) != source,  # the last that a unit became
            tf.gather(longer, source),
            tf.gather(end, source),
        )
        text = self._graph.fold(units)
        return Sources(text, tf.gather(start, source), ends)

    def __call__(self, strings: tf.Tensor) -> Spanned:
        """Return ids [B, N] and their offsets in strings [B]."""
        source = self.normalized(strings)
        ids, first, last = self._graph.model.tokenize_with_offsets(
            encode(source.text)
        )
        rows = tf.cast(ids.value_rowids(), tf.int32)
        begin, end = source.places(source.text.row_starts(), first, last)
        solid = next_place(source.text.flat_values != SPACE)
        begin = tf.minimum(tf.gather(solid, begin), end)
        return self._split(source, ids, begin, end, rows)

    def _split(self, source, ids, begin, end, rows) -> Spanned:
        """Return the pieces that the digit-comma rule makes of ids."""
        low = tf.gather(self._splits, ids.values)
        number = tf.gather(self._splits, ids.values + 1) - low
        within = tf.ragged.range(low, low + number).values
        new = self._graph.expand(ids)
        begin, end = tf.repeat(begin, number), tf.repeat(end, number)
        last = tf.minimum(begin + tf.gather(self._last, within), end)
        first = tf.minimum(begin + tf.gather(self._first, within), last)
        starts, ends = source.spans(first, last, tf.repeat(rows, number))
        return Spanned(new, new.with_values(starts), new.with_values(ends))


class WordPieceOffsets(tf.Module):
    """Ids and offsets of a `WordPieceTokenizer`."""

    def __init__(self, graph: WordPieceGraph, tokenizer: Tokenizer):
        super().__init__()
        self._graph = graph
        self._joins = CharacterClass(_joins, tokenizer.config)
        self._alone = CharacterClass(_stands_alone, tokenizer.config)

    def folded(self, strings: tf.Tensor) -> Sources:
        """Return the text of folded words of strings [B], spaces between."""
        text = decode(strings)
        codes = text.flat_values
        counts = self._graph.table.counts(text)
        within = tf.ragged.range(text.row_lengths()).flat_values
        within = tf.cast(within, tf.int32)
        longer = with_dropped(text, counts, within + 1, self._joins(codes) > 0)
        longer = tf.where(self._alone(codes) > 0, within + 1, longer)
        source = tf.repeat(tf.range(tf.size(counts)), counts)
        folded = self._graph.fold(text)
        is_last = shifted(source, -1) != source
        is_last |= shifted(folded.flat_values, SPACE) == SPACE
        start = tf.gather(within, source)
        ends = tf.where(is_last, tf.gather(longer, source), start + 1)
        return Sources(folded, start, ends)

    def __call__(self, strings: tf.Tensor) -> Spanned:
        """Return ids [B, N] and their offsets in strings [B]."""
        source = self.folded(strings)
        codes = source.text.flat_values
        row_ends = tf.cast(source.text.row_limits(), tf.int32)
        place_rows = tf.cast(source.text.value_rowids(), tf.int32)
        solid = codes != SPACE
        before = tf.concat([[False], solid], axis=0)[:-1]
        same_row = tf.concat([[-1], place_rows], axis=0)[:-1] == place_rows
        word = tf.cast(tf.where(solid & ~(before & same_row))[:, 0], tf.int32)
        rows = tf.gather(place_rows, word)
        word_end = tf.minimum(
            tf.gather(next_place(~solid), word), tf.gather(row_ends, rows)
        )
        words = tf.strings.split(encode(source.text))
        ids, first, last = self._graph.pieces(words.values)
        of = tf.cast(ids.value_rowids(), tf.int32)
        begin, end = source.places(word, first, last)
        long = word_end - word > MAX_WORD_CHARACTERS
        end = tf.where(tf.gather(long, of), tf.gather(word_end, of), end)
        starts, ends = source.spans(begin, end, tf.gather(rows, of))
        merged = [
            words.with_values(ids.with_values(x)).merge_dims(1, 2)
            for x in (ids.values, starts, ends)
        ]
        return Spanned(*merged)


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
