"""The tokenizers as TensorFlow graphs, which return ids and offsets.

Ids and offsets equal the results of `Tokenizer.encode_with_offsets`; offsets
count characters of the original string. The graphs use the character classes of
Python, because ICU may use an older version of Unicode. The graphs process the
rows of a batch as one flat sequence.

Shapes: B batch, C characters per text, N and M ids per text, T tokens per row.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.base.packages import need
from albert_tf.text.normalization import characters
from albert_tf.text.packing import MASK_TEXT
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.text.wordpiece import DROPPED, MAX_WORD_CHARACTERS


@functools.cache
def changes(predicate: Callable[[str], bool]) -> np.ndarray:
    """Return the int32 code points at which a predicate's value changes.

    The predicate is false for the first character, NUL.
    """
    values = np.fromiter(map(predicate, characters()), bool)
    codes = np.array([*map(ord, characters())], np.int32)
    return codes[np.diff(values, prepend=False)]


class CharacterClass(tf.Module):
    """TensorFlow ops that apply a predicate to characters."""

    def __init__(self, predicate: Callable[[str], bool]):
        super().__init__()
        self._changes = tf.constant(changes(predicate))

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        """Return whether the predicate holds for each code, bool [...]."""
        return tf.searchsorted(self._changes, codes, side="right") % 2 == 1


def decode(strings: tf.Tensor) -> tf.RaggedTensor:
    """Return the code points [B, C]; bytes that are not UTF-8 become U+FFFD."""
    return tf.strings.unicode_decode(
        strings, "UTF-8", errors="replace", replacement_char=0xFFFD
    )


# This character replaces a word that is too long. No vocabulary contains the
# character, because cleaning drops it.
UNKNOWN_WORD = "\0"


def valid(strings: tf.Tensor) -> tf.Tensor:
    """Return strings with U+FFFD in place of bytes that are not UTF-8."""
    return tf.strings.unicode_transcode(
        strings, "UTF-8", "UTF-8", errors="replace"
    )


def with_final_sigma(strings: tf.Tensor, pattern: str | None) -> tf.Tensor:
    """Return strings with a final sigma (ς) wherever the pattern matches.

    Args:
      strings: string [B].
      pattern: `Tokenizer.final_sigma`; None leaves the strings unchanged.
    """
    if pattern is None:
        return strings
    return tf.cond(
        tf.reduce_any(tf.strings.regex_full_match(strings, "(?s).*Σ.*")),
        lambda: tf.strings.regex_replace(strings, pattern, r"\1ς\2"),
        lambda: strings,
    )


class SentencePieceGraph(tf.Module):
    """A graph that computes the ids of a `SentencePieceTokenizer`."""

    def __init__(self, tokenizer: Tokenizer, table: None = None):
        import tensorflow_text as tf_text

        super().__init__()
        self._sigma = tokenizer.final_sigma
        self.model = tf_text.SentencepieceTokenizer(
            tokenizer.with_rules, out_type=tf.int32
        )
        self._space = f"^[{''.join(tokenizer.spaces)}]"
        values, splits = tokenizer.expansion
        self._expansion = tf.RaggedTensor.from_row_splits(values, splits)

    def prepared(self, strings: tf.Tensor) -> tf.Tensor:
        """Replace invalid bytes and final sigmas in strings [B].

        The number of characters in each string stays the same.
        """
        return with_final_sigma(valid(strings), self._sigma)

    def begins_with_space(self, strings: tf.Tensor) -> tf.Tensor:
        """Return whether each of the strings [B] begins with white space."""
        stripped = tf.strings.regex_replace(strings, self._space, "")
        return stripped != strings

    def __call__(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Return the ids [B, N] of strings [B]."""
        return self.expand(self.model.tokenize(self.prepared(strings)))

    def expand(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Expand ids [B, N] by the digit-comma rule; return ids [B, N']."""
        return tf.gather(self._expansion, ids).merge_dims(1, 2)


def piece_table(tokenizer: Tokenizer) -> tf.lookup.StaticHashTable | None:
    """Return {piece: id} for WordPiece; SentencePiece needs no table."""
    if tokenizer.kind != "wordpiece":
        return None
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    ids = tf.range(len(pieces), dtype=tf.int64)
    initializer = tf.lookup.KeyValueTensorInitializer(pieces, ids)
    return tf.lookup.StaticHashTable(initializer, default_value=-1)


class WordPieceGraph(tf.Module):
    """A graph that computes the ids of a `WordPieceTokenizer`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        table: tf.lookup.StaticHashTable | None = None,
    ):
        import tensorflow_text as tf_text

        super().__init__()
        self._sigma = tokenizer.final_sigma
        self.model = tf_text.SentencepieceTokenizer(
            tokenizer.with_rules, out_type=tf.string
        )
        self._ids = piece_table(tokenizer) if table is None else table
        (unknown,) = tokenizer.pieces([tokenizer.unk_id])
        self._wordpiece = tf_text.WordpieceTokenizer(
            self._ids,
            unknown_token=unknown,
            max_bytes_per_word=4 * MAX_WORD_CHARACTERS,
            token_out_type=tf.int32,
        )

    def prepared(self, strings: tf.Tensor) -> tf.Tensor:
        """Replace invalid bytes, NUL and final sigmas in strings [B].

        The number of characters in each string stays the same.
        """
        strings = tf.strings.regex_replace(valid(strings), r"\x00", DROPPED)
        return with_final_sigma(strings, self._sigma)

    def words(self, parts: tf.RaggedTensor) -> tf.RaggedTensor:
        """Return the words [B, words] of texts.

        Args:
          parts: string [B, P], the pieces into which `model` splits the texts.
        """
        return tf.strings.split(tf.strings.reduce_join(parts, axis=-1))

    def is_long(self, words: tf.Tensor) -> tf.Tensor:
        """Return whether each of the words [W] is too long to split."""
        length = tf.strings.length(words, unit="UTF8_CHAR")
        return length > MAX_WORD_CHARACTERS

    def pieces(self, words: tf.Tensor) -> list[tf.RaggedTensor]:
        """Return each word's pieces: ids, start bytes and end bytes [W, N]."""
        short = tf.where(self.is_long(words), UNKNOWN_WORD, words)
        return self._wordpiece.tokenize_with_offsets(short)

    def __call__(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Return the ids [B, N] of strings [B]."""
        words = self.words(self.model.tokenize(self.prepared(strings)))
        ids = self.pieces(words.values)[0]  # [B * words, N]
        return words.with_values(ids).merge_dims(1, 2)


GRAPHS = {"sentencepiece": SentencePieceGraph, "wordpiece": WordPieceGraph}


def first_of(rows: tf.RaggedTensor, keep: tf.Tensor) -> tf.RaggedTensor:
    """Truncate each row to `keep` [B] values; no row may be shorter."""
    indices = tf.ragged.range(rows.row_starts(), rows.row_starts() + keep)
    return tf.gather(rows.values, indices)


def pair_lengths(
    length_a: tf.Tensor, length_b: tf.Tensor, max_tokens: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the result of `packing.truncate_pair` for lengths [B]."""
    keep_b = tf.maximum(max_tokens // 2, max_tokens - length_a)
    keep_b = tf.minimum(length_b, keep_b)
    return tf.minimum(length_a, max_tokens - keep_b), keep_b


class TextGraph(tf.Module):
    """A graph that converts strings to ids and model inputs.

    Loading a SavedModel that contains the graph requires `tensorflow` and
    `tensorflow_text`. Bytes that are not UTF-8 become U+FFFD, as in
    `bytes.decode("utf-8", "replace")`.

    A call to `tf.random.set_seed` makes the graph unusable, because TensorFlow
    then frees the SentencePiece model. A graph that was loaded from a
    SavedModel is not affected.

    Args:
      tokenizer: the tokenizer.
      table: the result of `piece_table`, which several graphs may share; None
        for a new table.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        table: tf.lookup.StaticHashTable | None = None,
    ):
        super().__init__()
        need("A graph with string inputs", "tensorflow_text")
        self.graph = GRAPHS[tokenizer.kind](tokenizer, table)
        self._pad_id = tokenizer.pad_id
        self._cls_id = tokenizer.cls_id
        self._sep_id = tokenizer.sep_id
        self._mask_id = tokenizer.mask_id
        self._lone_mark = list(tokenizer.lone_mark)

    def __call__(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Return the int32 ids [B, N] of strings [B]."""
        return self.graph(strings)

    def encode_masked(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Return the ids [B, N] of strings [B], where `[MASK]` is one piece.

        See `Tokenizer.encode_masked`.
        """
        parts = tf.strings.split(strings, MASK_TEXT)  # [B, parts]
        ids = self(parts.values)
        if self._lone_mark:
            later = tf.ragged.range(parts.row_lengths()).values > 0
            continues = later & ~self.graph.begins_with_space(parts.values)
            first = ids[:, :1].to_tensor(-1, shape=[None, 1])[:, 0]
            dropped = continues & (first == self._lone_mark[0])
            starts = ids.row_starts() + tf.cast(dropped, tf.int64)
            indices = tf.ragged.range(starts, ids.row_limits())
            ids = tf.gather(ids.values, indices)
        mask = tf.fill([ids.nrows(), 1], self._mask_id)
        ids = tf.concat([mask, ids], axis=1)
        return parts.with_values(ids).merge_dims(1, 2)[:, 1:]

    def pack(
        self,
        a: tf.RaggedTensor,
        b: tf.RaggedTensor | None,
        max_seq_length: int,
        fixed: bool = True,
    ) -> dict[str, tf.Tensor]:
        """Return rows `[CLS] a [SEP] b [SEP]`, as `packing.pack` does.

        Args:
          a: ids [B, N] of the first segments.
          b: ids [B, M] of the second segments. A row is empty if there is no
            second segment; `None` means that all rows are empty.
          max_seq_length: maximum number of tokens in a row.
          fixed: whether T is `max_seq_length`; otherwise T is the length of the
            longest row, or 1 if there is no row.

        Returns:
          input_ids, input_mask and segment_ids, int32 [B, T].
        """
        require(
            max_seq_length >= 3,
            "`max_seq_length` must be at least 3.",
            max_seq_length=max_seq_length,
        )
        if b is None:
            b = a[:, :0]
        pair = tf.cast(b.row_lengths() > 0, tf.int64)
        room = max_seq_length - 2 - pair
        keep_a, keep_b = pair_lengths(a.row_lengths(), b.row_lengths(), room)
        segments = first_of(a, keep_a), first_of(b, keep_b)
        return self.rows(*segments, pair, max_seq_length if fixed else None)

    def rows(
        self,
        a: tf.RaggedTensor,
        b: tf.RaggedTensor,
        pair: tf.Tensor,
        length: int | None,
    ) -> dict[str, tf.Tensor]:
        """Return rows of segments without truncation; see `pack`.

        Args:
          a, b: ids [B, N] and [B, M].
          pair: int64 [B], 1 for each row that ends with a second [SEP], else 0.
          length: T, or None for the length of the longest row.
        """
        cls, sep = (
            tf.fill([tf.size(pair), 1], id)
            for id in (self._cls_id, self._sep_id)
        )
        last = tf.RaggedTensor.from_tensor(sep, lengths=pair)
        rows = tf.concat([cls, a, sep, b, last], axis=1)
        ids = rows.to_tensor(self._pad_id, shape=[None, length])
        if length is None:
            missing = tf.maximum(1 - tf.shape(ids)[1], 0)
            ids = tf.pad(ids, [[0, 0], [0, missing]])
        shape = tf.shape(ids)
        mask, first = (
            tf.reshape(tf.sequence_mask(ends, shape[1], tf.int32), shape)
            for ends in (rows.row_lengths(), a.row_lengths() + 2)
        )
        return {
            "input_ids": ids,
            "input_mask": mask,
            "segment_ids": mask - first,
        }


TO_THE_END = 1 << 20  # the end of a piece that is not split; exceeds any span


class TokenSpans(NamedTuple):
    """Ids [B, N], and each id's start and end in its text, in characters."""

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


def next_true(where: tf.Tensor) -> tf.Tensor:
    """Return the index of the nearest true value at or after each index.

    If there is no such value, the index is n, the number of values. The result
    has n + 1 entries; the last entry is n.
    """
    size = tf.size(where)
    indices = tf.cast(tf.where(where)[:, 0], tf.int32)
    nearest = tf.searchsorted(indices, tf.range(size + 1))
    return tf.gather(tf.concat([indices, [size]], axis=0), nearest)


class Characters:
    """The characters of strings [B], concatenated.

    Attributes:
      codes: code points, ragged [B, C].
      starts: index of each string's first character in the concatenation.
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

    def indices(self, offsets: tf.RaggedTensor) -> tf.Tensor:
        """Convert byte offsets [B, N] to indices of characters.

        The offsets count from the beginning of each string, and the indices
        from the beginning of the concatenation.
        """
        base = tf.gather(self._bytes, offsets.value_rowids())
        byte = tf.cast(offsets.values, tf.int32) + base
        return tf.searchsorted(self._first, byte)


class SentencePieceOffsets(tf.Module):
    """A graph that computes a `SentencePieceTokenizer`'s ids and offsets."""

    def __init__(self, graph: SentencePieceGraph, tokenizer: Tokenizer):
        super().__init__()
        self._graph = graph
        self._is_space = CharacterClass(str.isspace)
        spans = [
            bounds
            for i in range(tokenizer.vocab_size)
            for _, *bounds in tokenizer.splits.get(i, [(i, 0, TO_THE_END)])
        ]
        self._splits = tf.constant(tokenizer.expansion[1])
        columns = np.array(spans, np.int32).T
        self._first, self._last = map(tf.constant, columns)

    def __call__(self, strings: tf.Tensor) -> TokenSpans:
        """Return ids [B, N] and their offsets in strings [B]."""
        strings = self._graph.prepared(strings)
        ids, first, last = self._graph.model.tokenize_with_offsets(strings)
        text = Characters(strings)
        end = text.indices(last)
        next_visible = next_true(~self._is_space(text.codes.values))
        begin = tf.minimum(tf.gather(next_visible, text.indices(first)), end)
        row_starts = tf.gather(text.starts, ids.value_rowids())
        return self._split(ids, begin - row_starts, end - row_starts)

    def _split(self, ids: tf.RaggedTensor, begin, end) -> TokenSpans:
        """Apply the digit-comma rule to ids; return the new ids and offsets."""
        low = tf.gather(self._splits, ids.values)
        number = tf.gather(self._splits, ids.values + 1) - low
        within = tf.ragged.range(low, low + number).values
        new = self._graph.expand(ids)
        begin, end = tf.repeat(begin, number), tf.repeat(end, number)
        last = tf.minimum(begin + tf.gather(self._last, within), end)
        first = tf.minimum(begin + tf.gather(self._first, within), last)
        return TokenSpans(new, new.with_values(first), new.with_values(last))


class WordPieceOffsets(tf.Module):
    """A graph that computes a `WordPieceTokenizer`'s ids and offsets."""

    def __init__(self, graph: WordPieceGraph, tokenizer: Tokenizer):
        super().__init__()
        self._graph = graph

    def __call__(self, strings: tf.Tensor) -> TokenSpans:
        """Return ids [B, N] and their offsets in strings [B]."""
        strings = self._graph.prepared(strings)
        parts, first, _ = self._graph.model.tokenize_with_offsets(strings)
        text = Characters(strings)
        begin, end, rows = self._spans(text, parts, first)
        words = self._graph.words(parts)
        ids, first, last = self._graph.pieces(words.values)
        word = ids.value_rowids()
        # A word that is too long is a single piece.
        size = tf.gather(tf.strings.length(words.values), word)
        long = tf.gather(self._graph.is_long(words.values), word)
        last = tf.where(long, size, tf.cast(last.values, tf.int32))
        # Byte offsets of parts, words and pieces in the concatenated parts.
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
        return TokenSpans(*merged)

    @staticmethod
    def _spans(text: Characters, parts: tf.RaggedTensor, first):
        """Return the start, the end and the row of each part in `parts`.

        The start and the end are indices into `text`, and the row is the index
        of the string that contains the part.
        """
        rows = parts.value_rowids()
        begin = text.indices(first)
        # A part ends where the next part with a different source begins.
        after = tf.searchsorted(begin, begin, side="right")
        end = tf.gather(tf.concat([begin, [tf.int32.max]], axis=0), after)
        limits = tf.cast(text.codes.row_limits(), tf.int32)
        return begin, tf.minimum(end, tf.gather(limits, rows)), rows

    @staticmethod
    def _word_starts(parts: tf.RaggedTensor, bounds: tf.Tensor) -> tf.Tensor:
        """Return each word's start, in bytes of the concatenated parts.

        Args:
          parts: string [B, P].
          bounds: the start of each part and the end of the last part, in the
            same unit.
        """
        visible = parts.values != " "
        rows = parts.value_rowids()
        before = tf.concat([[False], visible], axis=0)[:-1]
        before &= tf.concat([[-1], rows], axis=0)[:-1] == rows
        return tf.boolean_mask(bounds[:-1], visible & ~before)


OFFSETS = {
    SentencePieceGraph: SentencePieceOffsets,
    WordPieceGraph: WordPieceOffsets,
}


def offset_graph(tokenizer: Tokenizer, text_graph: TextGraph) -> tf.Module:
    """Return a graph that converts strings [B] to `TokenSpans`.

    The graph shares the model and the tables of `text_graph`, which must have
    been made from the same tokenizer.
    """
    graph = text_graph.graph
    return OFFSETS[type(graph)](graph, tokenizer)
