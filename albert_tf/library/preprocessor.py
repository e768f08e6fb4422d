"""A Keras layer that converts strings to the model's inputs.

Shapes: B batch, T = max_length tokens.
"""

from typing import Any

import keras
import tensorflow as tf

from albert_tf.base.errors import ForeignName, require
from albert_tf.conversion.tokenizer_loading import load_tokenizer
from albert_tf.model.layers import registered
from albert_tf.text.packing import INPUTS, row_length
from albert_tf.text.symbols import SymbolTable
from albert_tf.text.text_graph import TextGraph, piece_table
from albert_tf.text.tokenizers import Tokenizer, tokenizer_in, tokenizer_of
from albert_tf.text.vocabulary import OF_WORDS

# `Dataset.map` passes labels as a further argument.
COLUMNS = "The arguments must be texts, or texts and their pairs. Labels stay "
COLUMNS += "outside: `dataset.map(lambda x, y: (preprocessor(x), y))`."


def is_pair(texts: Any) -> bool:
    """Return whether one argument contains both columns of text pairs.

    Such an argument is a tuple, or a list of two tensors or arrays from Keras.
    """
    if isinstance(texts, tuple):
        return True
    parts = texts if isinstance(texts, list) and len(texts) == 2 else [None]
    return all(len(getattr(x, "shape", ())) > 0 for x in parts)


def column(texts: Any) -> Any:
    """Convert a single text, or texts [B] or [B, 1], to texts [B]."""
    if isinstance(texts, str | bytes):
        return [texts]
    shape = getattr(texts, "shape", None)
    if shape is not None and (len(shape) == 0 or list(shape[1:]) == [1]):
        return tf.reshape(texts, [-1])
    if isinstance(texts, list) and all(
        isinstance(x, list | tuple) and len(x) == 1 for x in texts
    ):
        return [x[0] for x in texts]
    return texts


class KeepsTokenizer:
    """A mixin for objects whose `get_config` includes the `tokenizer`.

    A phoneme model has `symbols` instead.
    """

    tokenizer: Tokenizer | None = None
    symbols: SymbolTable | None = None
    from_pretrained, from_preset = ForeignName("load"), ForeignName("load")

    def need_tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raise `InputError` if there is none."""
        is_legal = self.tokenizer or not self.symbols
        require(is_legal, OF_WORDS, tokenizer=None)
        rule = "`tokenizer` must be set: load weights that have a vocabulary "
        rule += "next to them, or assign a tokenizer. Received: none"
        require(self.tokenizer, rule)
        return self.tokenizer

    def load_assets(self, dir_path: str | None) -> None:
        """Read the tokenizer from a `.keras` file of an earlier version."""
        if dir_path:
            self.tokenizer = tokenizer_in(dir_path) or self.tokenizer


@registered
class Preprocessor(KeepsTokenizer, keras.layers.Layer):
    """A layer that converts strings or pairs of strings to the model's inputs.

    Strings, or both members of pairs, have the shape [B] or [B, 1]. The result
    is {name: int32 [B, T]}, or {name: int32 [T]} for a single string. `[MASK]`
    is treated as ordinary text, as in task data.

    Call the layer with lists, map it over a `tf.data.Dataset`, before or after
    `batch`, or apply it to `keras.Input((), dtype="string")`. `.keras` files
    include the vocabulary.

    Args:
      tokenizer: the tokenizer, or None if it will be loaded later.
      max_length: T; longer texts are truncated.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        max_length: int = 128,
        **kwargs,
    ):
        super().__init__(**{"trainable": False} | kwargs)
        # Otherwise, Keras would convert lists to tensors and check their types.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.tokenizer, self.max_length = tokenizer, row_length(max_length)
        self._table = self._table_of = None
        self.built = True

    @property
    def compute_dtype(self) -> str:
        """The dtype that `keras.Sequential` uses for its input."""
        return "string"

    variable_dtype = compute_dtype

    @classmethod
    def load(cls, path: str, max_length: int = 128) -> "Preprocessor":
        """Create a layer with the tokenizer at a path; see `load_tokenizer`."""
        return cls(load_tokenizer(path), max_length)

    def call(self, texts, text_pairs=None):
        columns = [*texts] if is_pair(texts) else [texts]
        columns += [] if text_pairs is None else [text_pairs]
        require(0 < len(columns) < 3, COLUMNS, columns=len(columns))
        texts, text_pairs = [*columns, None][:2]
        if not tf.is_symbolic_tensor(texts):
            return self._of_values(texts, text_pairs)
        # A graph has its own SentencePiece model, which survives a reset of
        # TensorFlow's eager state.
        graph = TextGraph(self.need_tokenizer(), self._piece_table())
        is_single = texts.shape.rank == 0
        columns = [tf.convert_to_tensor(x) for x in columns]
        types = [x.dtype.name for x in columns]
        require({*types} == {"string"}, COLUMNS, types=", ".join(types))
        pieces = [graph(tf.reshape(x, [-1])) for x in columns]
        rows = graph.pack(*(*pieces, None)[:2], self.max_length)
        return {k: x[0] if is_single else x for k, x in rows.items()}

    def _piece_table(self):
        """Return the table that all graphs of the layer share, or None.

        The layer owns the table because a SavedModel can contain only tables
        that belong to one of its objects.
        """
        if self._table_of is not self.tokenizer:
            with tf.init_scope():
                self._table = piece_table(self.tokenizer)
            self._table_of = self.tokenizer
        return self._table

    def _of_values(self, texts, text_pairs):
        """Return the model's inputs for strings, lists and eager tensors."""
        is_single = isinstance(texts, str) or getattr(texts, "ndim", 1) == 0
        texts = column(texts)
        text_pairs = None if text_pairs is None else column(text_pairs)
        tokenizer = self.need_tokenizer()
        rows = tokenizer(texts, text_pairs, self.max_length, masks=False)
        return {
            k: tf.convert_to_tensor(x[0] if is_single else x)
            for k, x in rows.items()
        }

    def compute_output_spec(self, texts, text_pairs=None):
        first = texts[0] if is_pair(texts) else texts
        shape = (*first.shape[:1], self.max_length)
        return {name: keras.KerasTensor(shape, "int32") for name in INPUTS}

    def get_config(self):
        return super().get_config() | {
            "tokenizer": self.tokenizer and self.tokenizer.get_config(),
            "max_length": self.max_length,
        }

    @classmethod
    def from_config(cls, config):
        # In files of earlier versions, the tokenizer is an asset.
        tokenizer = tokenizer_of(config.get("tokenizer"))
        return super().from_config(config | {"tokenizer": tokenizer})
