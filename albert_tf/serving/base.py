"""What every exported ALBERT serves: ids, texts, pieces and embeddings.

Shapes: B batch, T tokens, H hidden width.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from albert_tf.model import AlbertModel
from albert_tf.settings import setting, validate
from albert_tf.text_graph import TextGraph
from albert_tf.tokenization import Tokenizer

Tensors = dict[str, tf.Tensor]

ENCODED = ("sequence_output", "pooled_output")


@dataclasses.dataclass(frozen=True)
class ServingConfig:
    """What is fixed when a model is exported."""

    max_seq_length: int | None = setting(
        None,
        "Most tokens of an input; longer texts are cut as in training. "
        "Default: that of fine-tuning, or else the model's positions.",
        minimum=3,
    )
    fixed_length: bool = setting(
        False,
        "Pad every input to max_seq_length, for compilers that want one "
        "shape; otherwise to the longest of the batch.",
    )
    batch_size: int | None = setting(
        None, "The only batch size to take. Default: any.", minimum=1
    )
    top_k: int = setting(
        5, "Pieces that fill_mask gives for each mask.", minimum=1
    )

    def __post_init__(self):
        validate(self)


def function(body: Callable, inputs: list[tf.TensorSpec]):
    """Return a function as a graph for the given inputs."""
    return tf.function(body, input_signature=inputs, autograph=False)


def check_shapes(
    ids: tf.Tensor, mask: tf.Tensor, segments: tf.Tensor, limit: int
) -> list[tf.Operation]:
    """Return assertions on the shapes of a model's inputs.

    They must come before the model: fused kernels do not look, and would read
    beyond the end of a mask that is too short.
    """
    same = "`input_ids`, `input_mask` and `segment_ids` must have one shape"
    length = f"`input_ids` must have 1 to {limit} tokens"
    return [
        tf.debugging.assert_equal(ids, mask, same),
        tf.debugging.assert_equal(ids, segments, same),
        tf.debugging.assert_positive(ids[1], length),
        tf.debugging.assert_less_equal(ids[1], limit, length),
    ]


class Server:
    """An ALBERT with its tokenizer, and the functions that it serves.

    A served function is a method with the name of its signature; `inputs`
    lists them. Kinds of models are subclasses, which add the outputs of their
    heads and functions of their own.

    Args:
      albert: the encoder.
      weights: {name: variable} of all that the functions use.
      config: `max_seq_length` must be given.
      tokenizer: None for a model that takes ids alone.
    """

    def __init__(
        self,
        albert: AlbertModel,
        weights: dict[str, tf.Variable],
        config: ServingConfig,
        tokenizer: Tokenizer | None,
    ):
        self.albert, self.weights, self.config = albert, weights, config
        self.tokenizer = tokenizer
        if tokenizer:
            self.text_graph = TextGraph(tokenizer)
            self.vocabulary = tf.constant(
                tokenizer.pieces(range(tokenizer.vocab_size))
            )
            self.segment = function(self.text_graph, self.text_inputs())
        # A function that others call is stored once.
        self.encode = function(self._encode, self.inputs()["ids"])

    def inputs(self) -> dict[str, list[tf.TensorSpec]]:
        """Return {name: inputs} of the served functions."""
        batch, length = self.config.batch_size, None
        if self.config.fixed_length:
            length = self.config.max_seq_length
        ids = [
            tf.TensorSpec([batch, length], tf.int32, name)
            for name in ("input_ids", "input_mask", "segment_ids")
        ]
        if not self.tokenizer:
            return {"ids": ids}
        text, pair = self.text_inputs(), self.text_inputs("text_pair")
        return {
            "ids": ids,
            "text": text,
            "text_pair": pair,
            "tokenize": text,
            "tokenize_pair": pair,
            "embed": text,
        }

    def text_inputs(self, *more: str) -> list[tf.TensorSpec]:
        """Return the inputs of a function of `text` and further strings."""
        shape = [self.config.batch_size]
        return [tf.TensorSpec(shape, tf.string, n) for n in ("text", *more)]

    def default(self) -> str:
        """Return the name of the function that `serving_default` is."""
        return "text" if self.tokenizer else "ids"

    def heads(self, encoded: Tensors) -> Tensors:
        """Return the outputs of the heads for `AlbertModel`'s outputs."""
        return {}

    def _encode(self, input_ids, input_mask, segment_ids) -> Tensors:
        limit = self.albert.config.max_position_embeddings
        shapes = map(tf.shape, (input_ids, input_mask, segment_ids))
        with tf.control_dependencies(check_shapes(*shapes, limit)):
            input_ids = tf.identity(input_ids)
        encoded = self.albert(input_ids, input_mask, segment_ids)
        encoded = {name: encoded[name] for name in ENCODED}
        return encoded | self.heads(encoded)

    def pack(
        self, a: tf.RaggedTensor, b: tf.RaggedTensor | None = None
    ) -> Tensors:
        """Return the inputs [B, T] of the model for ids [B, N] of segments."""
        config = self.config
        inputs = self.text_graph.pack(
            a, b, config.max_seq_length, fixed=config.fixed_length
        )
        if config.fixed_length:
            return inputs
        # A batch of no text has no longest one; the model needs a token.
        missing = tf.maximum(1 - tf.shape(inputs["input_ids"])[1], 0)
        return {
            name: tf.pad(value, [[0, 0], [0, missing]])
            for name, value in inputs.items()
        }

    def pack_pair(self, text: tf.Tensor, text_pair: tf.Tensor) -> Tensors:
        """Return the inputs [B, T] of the model for pairs of strings [B]."""
        tf.debugging.assert_equal(
            tf.shape(text),
            tf.shape(text_pair),
            "`text` and `text_pair` must have as many strings",
        )
        return self.pack(self.segment(text), self.segment(text_pair))

    def with_pieces(self, inputs: Tensors) -> Tensors:
        """Return inputs [B, T] and their pieces as strings [B, T]."""
        pieces = tf.gather(self.vocabulary, inputs["input_ids"])
        return inputs | {"pieces": pieces}

    def ids(self, input_ids, input_mask, segment_ids) -> Tensors:
        """Serve the encoder and the heads for a batch of ids."""
        return self.encode(input_ids, input_mask, segment_ids)

    def text(self, text) -> Tensors:
        """Serve the encoder and the heads for strings [B]."""
        return self.encode(**self.pack(self.segment(text)))

    def text_pair(self, text, text_pair) -> Tensors:
        """Serve the encoder and the heads for pairs of strings [B]."""
        return self.encode(**self.pack_pair(text, text_pair))

    def tokenize(self, text) -> Tensors:
        """Serve the ids, and the pieces, that `text` gives to the model."""
        return self.with_pieces(self.pack(self.segment(text)))

    def tokenize_pair(self, text, text_pair) -> Tensors:
        """Serve the ids, and the pieces, that `text_pair` gives."""
        return self.with_pieces(self.pack_pair(text, text_pair))

    def embed(self, text) -> Tensors:
        """Serve embeddings of strings [B]: pooled, mean and of every piece.

        The mean goes over all tokens, [CLS] and [SEP] too, without padding.
        """
        inputs = self.pack(self.segment(text))
        outputs = self.encode(**inputs)
        tokens = outputs["sequence_output"]  # [B, T, H]
        weights = tf.cast(inputs["input_mask"], tf.float32)[..., None]
        total = tf.reduce_sum(tokens * weights, axis=1)
        return {
            "pooled": outputs["pooled_output"],
            "mean": total / tf.reduce_sum(weights, axis=1),
            "tokens": tokens,
            "input_mask": inputs["input_mask"],
            "pieces": self.with_pieces(inputs)["pieces"],
        }

    def signatures(self) -> dict:
        """Return {name: concrete function} of what is served."""
        made = {
            name: function(getattr(self, name), specs).get_concrete_function()
            for name, specs in self.inputs().items()
        }
        return {"serving_default": made[self.default()], **made}
