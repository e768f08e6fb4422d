"""The tokenizers as TensorFlow graphs: strings in, the same ids out.

B batch, N and M ids of a text, T tokens of a row.
"""

import tensorflow as tf
import tensorflow_text as tf_text

from albert_tf.base.errors import require
from albert_tf.text.normalization import WHITE_SPACE
from albert_tf.text.tokenizers import MASK_TEXT, Tokenizer
from albert_tf.text.wordpiece import DROPPED, MAX_WORD_CHARACTERS

# A word that is too long becomes one that is in no vocabulary: a character that
# cleaning drops.
UNKNOWN_WORD = "\0"


def valid(strings: tf.Tensor) -> tf.Tensor:
    """Return strings in which U+FFFD stands for bytes that are not UTF-8."""
    return tf.strings.unicode_transcode(
        strings, "UTF-8", "UTF-8", errors="replace"
    )


def with_final_sigma(strings: tf.Tensor, pattern: str | None) -> tf.Tensor:
    """Return strings, capital sigmas that match a pattern in their form."""
    if pattern is None:
        return strings
    return tf.cond(
        tf.reduce_any(tf.strings.regex_full_match(strings, "(?s).*Σ.*")),
        lambda: tf.strings.regex_replace(strings, pattern, r"\1ς\2"),
        lambda: strings,
    )


class SentencePieceGraph(tf.Module):
    """The graph of a `SentencePieceTokenizer`."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__()
        self._sigma = tokenizer.final_sigma
        self.model = tf_text.SentencepieceTokenizer(
            tokenizer.with_rules, out_type=tf.int32
        )
        values, splits = tokenizer.expansion
        self._expansion = tf.RaggedTensor.from_row_splits(values, splits)

    def prepared(self, strings: tf.Tensor) -> tf.Tensor:
        """Return strings [B] for the model, of as many characters each."""
        return with_final_sigma(valid(strings), self._sigma)

    def begins_with_space(self, strings: tf.Tensor) -> tf.Tensor:
        """Return whether strings [B] begin with white space, bool [B]."""
        stripped = tf.strings.regex_replace(strings, f"^{WHITE_SPACE}", "")
        return stripped != strings

    def __call__(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Return the ids [B, N] of strings [B]."""
        return self.expand(self.model.tokenize(self.prepared(strings)))

    def expand(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Return ids [B, N] by the digit-comma rule [B, N']."""
        return tf.gather(self._expansion, ids).merge_dims(1, 2)


class WordPieceGraph(tf.Module):
    """The graph of a `WordPieceTokenizer`."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__()
        self._sigma = tokenizer.final_sigma
        self.model = tf_text.SentencepieceTokenizer(
            tokenizer.with_rules, out_type=tf.string
        )
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        self._ids = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                pieces, tf.range(len(pieces), dtype=tf.int64)
            ),
            default_value=-1,
        )
        self._wordpiece = tf_text.WordpieceTokenizer(
            self._ids,
            unknown_token=pieces[tokenizer.unk_id],
            max_bytes_per_word=4 * MAX_WORD_CHARACTERS,
            token_out_type=tf.int32,
        )

    def prepared(self, strings: tf.Tensor) -> tf.Tensor:
        """Return strings [B] for the model, of as many characters each."""
        strings = tf.strings.regex_replace(valid(strings), r"\x00", DROPPED)
        return with_final_sigma(strings, self._sigma)

    def words(self, parts: tf.RaggedTensor) -> tf.RaggedTensor:
        """Return the words [B, words] of the parts of texts [B, P]."""
        return tf.strings.split(tf.strings.reduce_join(parts, axis=-1))

    def is_long(self, words: tf.Tensor) -> tf.Tensor:
        """Return whether words [W] are too long to be cut, bool [W]."""
        length = tf.strings.length(words, unit="UTF8_CHAR")
        return length > MAX_WORD_CHARACTERS

    def pieces(self, words: tf.Tensor) -> list[tf.RaggedTensor]:
        """Return ids of words [W], and their first and last bytes [W, N]."""
        short = tf.where(self.is_long(words), UNKNOWN_WORD, words)
        return self._wordpiece.tokenize_with_offsets(short)

    def __call__(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Return the ids [B, N] of strings [B]."""
        words = self.words(self.model.tokenize(self.prepared(strings)))
        ids = self.pieces(words.values)[0]  # [B * words, N]
        return words.with_values(ids).merge_dims(1, 2)


GRAPHS = {"sentencepiece": SentencePieceGraph, "wordpiece": WordPieceGraph}


def _first(rows: tf.RaggedTensor, keep: tf.Tensor) -> tf.RaggedTensor:
    """Return the first `keep` [B] of each row; no row is shorter than that."""
    lengths = rows.row_lengths()
    within = tf.ragged.range(lengths).values
    values = rows.values[within < tf.repeat(keep, lengths)]
    return tf.RaggedTensor.from_row_lengths(values, keep, validate=False)


def _without_first(rows: tf.RaggedTensor, cut: tf.Tensor) -> tf.RaggedTensor:
    """Return rows, without their first value where `cut` [B] says so."""
    lengths, cut = rows.row_lengths(), tf.cast(cut, tf.int64)
    within = tf.ragged.range(lengths).values
    values = rows.values[within >= tf.repeat(cut, lengths)]
    return tf.RaggedTensor.from_row_lengths(
        values, lengths - cut, validate=False
    )


def pair_lengths(
    length_a: tf.Tensor, length_b: tf.Tensor, max_tokens: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return `packing.truncate_pair` of tensors of lengths [B]."""
    keep_b = tf.maximum(max_tokens // 2, max_tokens - length_a)
    keep_b = tf.minimum(length_b, keep_b)
    return tf.minimum(length_a, max_tokens - keep_b), keep_b


class TextGraph(tf.Module):
    """Raw strings to ids and to a model's inputs, as the tokenizer does.

    A SavedModel that holds it loads where `tensorflow` and `tensorflow_text`
    are. Bytes that are not UTF-8 count as U+FFFD, as in
    `bytes.decode("utf-8", "replace")`.

    It lasts until the next `tf.random.set_seed`, with which TensorFlow frees
    the SentencePiece model; one that was saved and loaded lasts.
    """

    def __init__(self, tokenizer: Tokenizer):
        super().__init__()
        self.graph = GRAPHS[tokenizer.kind](tokenizer)
        self._pad_id = tokenizer.pad_id
        self._cls_id = tokenizer.cls_id
        self._sep_id = tokenizer.sep_id
        self._mask_id = tokenizer.mask_id
        self._lone_mark = list(tokenizer.lone_mark)

    def __call__(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Return the ids [B, N] of strings [B], int32."""
        return self.graph(strings)

    def encode_masked(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Return the ids [B, N] of strings in which `[MASK]` is that piece.

        As `Tokenizer.encode_masked`.
        """
        parts = tf.strings.split(strings, MASK_TEXT)  # [B, parts]
        ids = self(parts.values)
        if self._lone_mark:
            later = tf.ragged.range(parts.row_lengths()).values > 0
            glued = later & ~self.graph.begins_with_space(parts.values)
            first = ids[:, :1].to_tensor(-1, shape=[None, 1])[:, 0]
            ids = _without_first(ids, glued & (first == self._lone_mark[0]))
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
        """Return `[CLS] a [SEP] b [SEP]` as `packing.pack` does.

        Args:
          a: ids [B, N] of the first segments.
          b: ids [B, M] of the second ones; `None` or an empty row for none.
          max_seq_length: most tokens of a row.
          fixed: whether T is `max_seq_length`, or as many tokens as the
            longest row has, 1 if there is no row.

        Returns:
          input_ids, input_mask and segment_ids, int32 [B, T].
        """
        require(
            max_seq_length >= 3,
            "`max_seq_length` must be at least 3.",
            max_seq_length=max_seq_length,
        )
        if b is None:
            b = _first(a, tf.zeros_like(a.row_lengths()))
        pair = tf.cast(b.row_lengths() > 0, tf.int64)
        room = max_seq_length - 2 - pair
        keep_a, keep_b = pair_lengths(a.row_lengths(), b.row_lengths(), room)
        rows = self._joined(_first(a, keep_a), _first(b, keep_b), pair)
        shape = [None, max_seq_length if fixed else None]
        ids = rows.to_tensor(self._pad_id, shape=shape)
        if not fixed:
            missing = tf.maximum(1 - tf.shape(ids)[1], 0)
            ids = tf.pad(ids, [[0, 0], [0, missing]])
        shape = tf.shape(ids)
        used = keep_a + keep_b + 2 + pair
        mask, first = (
            tf.reshape(tf.sequence_mask(ends, shape[1], tf.int32), shape)
            for ends in (used, keep_a + 2)
        )
        return {
            "input_ids": ids,
            "input_mask": mask,
            "segment_ids": mask - first,
        }

    def _joined(self, a, b, pair: tf.Tensor) -> tf.RaggedTensor:
        """Return rows with special tokens; `pair` [B] is 1 where b counts."""
        cls, sep = (
            tf.fill([tf.size(pair), 1], id)
            for id in (self._cls_id, self._sep_id)
        )
        last = tf.RaggedTensor.from_tensor(sep, lengths=pair)
        return tf.concat([cls, a, sep, b, last], axis=1)
