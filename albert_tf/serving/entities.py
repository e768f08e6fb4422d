"""The signature that finds the entities in a text and tags every word.

Text is split into words: single punctuation marks, single ideographs, and runs
of other characters without white space. Shapes: B texts, W words per text, E
entities per text, R rows (windows over a text), T tokens, C tags.
"""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.serving.signatures import (
    Encoder,
    Signature,
    Tensors,
    Windows,
    cut,
    make_windows,
)
from albert_tf.tasks.conll import OUTSIDE, split_tag
from albert_tf.tasks.task import Task
from albert_tf.text.text_graph import CharacterClass, decode, next_true
from albert_tf.text.wordpiece import clean_character, is_punctuation


def _is_whole_word(character: str) -> bool:
    cleaned = clean_character(character)
    return is_punctuation(character) or cleaned.startswith(" ")


class WordGraph(tf.Module):
    """A graph that finds the start and end of each word in raw text."""

    def __init__(self):
        super().__init__()
        self._space = CharacterClass(str.isspace)
        self._single = CharacterClass(_is_whole_word)

    def __call__(
        self, strings: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Return the character offsets [B, W] at which words start and end."""
        text = decode(strings)
        codes = text.flat_values
        rows = tf.cast(text.value_rowids(), tf.int32)
        space = self._space(codes)
        single = self._single(codes) & ~space
        # A word of several characters ends before a space or a single-character
        # word, or at the end of its row.
        same_row = tf.concat([[-1], rows], axis=0)[:-1] == rows
        is_boundary = space | single
        after_boundary = (
            tf.concat([[True], is_boundary], axis=0)[:-1] | ~same_row
        )
        begins = ~space & (single | after_boundary)
        size = tf.size(codes)
        row_ends = tf.gather(tf.cast(text.row_limits(), tf.int32), rows)
        next_boundary = tf.gather(next_true(is_boundary), tf.range(1, size + 1))
        ends = tf.where(single, tf.range(size) + 1, next_boundary)
        ends = tf.minimum(ends, row_ends)
        base = tf.gather(tf.cast(text.row_starts(), tf.int32), rows)
        is_start = text.with_values(begins)
        return tuple(
            tf.ragged.boolean_mask(text.with_values(x - base), is_start)
            for x in (tf.range(size), ends)
        )


class Words(NamedTuple):
    """The words of texts, and the positions of their pieces.

    Attributes:
      text: strings [B].
      starts, ends: offsets in characters, ragged [B, W].
      texts: the text of each word, as a flat tensor.
      pieces: the index of each word's first piece among all pieces, as a flat
        tensor.
      windows: the windows over the pieces of each text.
    """

    text: tf.Tensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor
    texts: tf.Tensor
    pieces: tf.Tensor
    windows: Windows


class Entities:
    """The function of the signature that finds entities and tags every word.

    Args:
      encoder: the model's encoder, with a tokenizer.
      compute: a function that returns the logits of every token.
      task: the task, with its tags and the size of windows.
    """

    def __init__(self, encoder: Encoder, compute, task: Task):
        self.encoder, self.compute, self.task = encoder, compute, task
        self.words = WordGraph()
        encoder.graphs.append(self.words)
        split = [(OUTSIDE, "")] * len(task.labels)
        if task.marks_entities:
            split = list(map(split_tag, task.labels))
        kinds = sorted({kind for _, kind in split if kind})
        # For each tag: the number of its kind, counted from 1, or 0 if it has
        # no kind, and whether the tag begins or ends an entity.
        number = {kind: i for i, kind in enumerate(kinds, 1)}
        self.kinds = tf.constant(["", *kinds])
        self.kind_of = tf.constant([number.get(k, 0) for _, k in split])
        self.begins = tf.constant([p in ("B", "S") for p, _ in split])
        self.ends = tf.constant([p in ("E", "S") for p, _ in split])

    def __call__(self, text: tf.Tensor) -> Tensors:
        """Return the entities in strings [B], and a tag for every word.

        The outputs are `entities` and `kinds` [B, E], with `starts` and `ends`
        in characters, `byte_starts` and `byte_ends` in the original text, and
        `entity_count` [B]; `words`, `tags`, `tag_probabilities`, `word_starts`
        and `word_ends` [B, W], and `word_count` [B]. Shorter rows are padded
        with "" (strings), 0 (probabilities) or -1 (positions).
        """
        inputs, words = self._rows(text)
        outputs = self.encoder.run(self.compute, inputs, one_row_per_text=False)
        return self._decode(outputs["logits"], words)

    def _rows(self, text: tf.Tensor) -> tuple[Tensors, Words]:
        starts, ends = self.words(text)
        rows = starts.value_rowids()
        texts, _, _ = cut(text, rows, starts.values, ends.values)
        ids = self.encoder.segment(texts)
        unknown = tf.fill([ids.nrows(), 1], self.encoder.tokenizer.unk_id)
        # A word without pieces is encoded as the unknown piece.
        ids = tf.concat([ids, unknown], axis=1)
        lengths = tf.maximum(ids.row_lengths() - 1, 1)
        indices = tf.ragged.range(ids.row_starts(), ids.row_starts() + lengths)
        ids = tf.gather(ids.values, indices)
        pieces = starts.with_values(ids).merge_dims(1, 2)
        size, stride = self.task.window
        size = tf.fill([pieces.nrows()], tf.cast(size, tf.int64))
        windows = make_windows(pieces, size, stride)
        inputs = self.encoder.pack(
            tf.gather(pieces.values, windows.token_indices)
        )
        words = Words(text, starts, ends, texts, ids.row_starts(), windows)
        return inputs, words

    def _decode(self, logits: tf.Tensor, words: Words) -> Tensors:
        text, starts, ends, texts, _, _ = words
        best, share = self._tags(logits, words)
        spans = self._texts(text, *self._spans(starts, ends, best))
        labels = tf.gather(tf.constant(self.task.labels), best)

        def dense(values, fill):
            return starts.with_values(values).to_tensor(fill)

        return spans | {
            "words": dense(texts, ""),
            "tags": dense(labels, ""),
            "tag_probabilities": dense(share, 0.0),
            "word_starts": starts.to_tensor(-1),
            "word_ends": ends.to_tensor(-1),
            "word_count": tf.cast(starts.row_lengths(), tf.int32),
        }

    def _tags(self, logits: tf.Tensor, words: Words):
        """Return the tags of all words and their probabilities as flat tensors.

        Args:
          logits: [R, T, C].
          words: the words of the request.
        """
        windows = words.windows
        # The row and position of each token in its best window. Later tokens
        # have the same or a later best window, so tokens stay in order.
        columns = (
            tf.ragged.range(windows.token_indices.row_lengths()).values + 1
        )
        rows = windows.token_indices.value_rowids()
        best = windows.is_best.values
        positions = tf.stack([rows[best], columns[best]], axis=1)
        positions = tf.gather(positions, words.pieces)
        probabilities = self.task.probabilities(tf.gather_nd(logits, positions))
        tags = tf.argmax(probabilities, axis=1, output_type=tf.int32)
        return tags, tf.reduce_max(probabilities, axis=1)

    def _spans(self, starts, ends, tags):
        """Return the starts, ends and kinds of entities, ragged [B, E]."""
        rows = tf.cast(starts.value_rowids(), tf.int32)
        kind = tf.gather(self.kind_of, tags)
        previous_kind = tf.concat([[0], kind], axis=0)[:-1]
        previous_row = tf.concat([[-1], rows], axis=0)[:-1]
        closed = tf.concat([[True], tf.gather(self.ends, tags)], axis=0)[:-1]
        begins = tf.gather(self.begins, tags) | (kind != previous_kind) | closed
        begins = (kind > 0) & (begins | (rows != previous_row))
        continues = (kind > 0) & ~begins
        # An entity ends at the last word before a word that does not continue
        # it.
        after = next_true(~continues)[1:]
        last = tf.gather(
            tf.pad(ends.values, [[1, 0]]), tf.boolean_mask(after, begins)
        )
        first = tf.ragged.boolean_mask(starts, starts.with_values(begins))
        return (
            first,
            first.with_values(last),
            first.with_values(tf.boolean_mask(kind, begins)),
        )

    def _texts(self, text, starts, ends, kinds) -> Tensors:
        rows = starts.value_rowids()
        texts, first, last = cut(text, rows, starts.values, ends.values)
        names = tf.gather(self.kinds, kinds.values)
        return {
            "entities": starts.with_values(texts).to_tensor(""),
            "kinds": starts.with_values(names).to_tensor(""),
            "starts": starts.to_tensor(-1),
            "ends": ends.to_tensor(-1),
            "byte_starts": starts.with_values(first).to_tensor(-1),
            "byte_ends": starts.with_values(last).to_tensor(-1),
            "entity_count": tf.cast(starts.row_lengths(), tf.int32),
        }


def entity_signature(encoder: Encoder, compute, task: Task) -> Signature:
    """Return the signature that finds entities."""
    return Signature(
        encoder.string_specs("text"), Entities(encoder, compute, task)
    )
