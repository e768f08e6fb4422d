"""What every exported ALBERT serves: ids, texts, pieces and embeddings.

Shapes: B batch, T tokens, H hidden width.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from albert_tf.base.settings import setting, validate
from albert_tf.model.albert import AlbertModel
from albert_tf.serving.blocks import Tensors, block_rows, in_blocks
from albert_tf.text.tokenizer_graph import TextGraph
from albert_tf.text.tokenizers import Tokenizer

ENCODED = ("sequence_output", "pooled_output")
IDS = ("input_ids", "input_mask", "segment_ids")


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
    jit_compile: bool = setting(
        False,
        "Have XLA compile the encoder of a SavedModel, once for each shape of "
        "its inputs: fix the length, or the batch too.",
    )
    top_k: int = setting(
        5, "Pieces that fill_mask gives for each mask.", minimum=1
    )
    null_score_diff_threshold: float | None = setting(
        None,
        "A question with null odds above this has no answer. Default: that "
        "of the fine-tuned model.",
    )

    def __post_init__(self):
        validate(self)


def function(body: Callable, inputs: list[tf.TensorSpec]):
    """Return a function as a graph for the given inputs."""
    return tf.function(body, input_signature=inputs, autograph=False)


def check_shapes(inputs: Tensors, limit: int) -> list[tf.Operation]:
    """Return assertions on the shapes of a model's inputs.

    They must come before the model: fused kernels do not look, and would read
    beyond the end of a mask that is too short.
    """
    ids, mask, segments = (tf.shape(inputs[name]) for name in IDS)
    same = "`input_ids`, `input_mask` and `segment_ids` must have one shape"
    length = f"`input_ids` must have 1 to {limit} tokens"
    return [
        tf.debugging.assert_equal(ids, mask, same),
        tf.debugging.assert_equal(ids, segments, same),
        tf.debugging.assert_positive(ids[1], length),
        tf.debugging.assert_less_equal(ids[1], limit, length),
    ]


def as_many(**inputs: tf.Tensor) -> list[tf.Tensor]:
    """Return tensors [B, ...], refused unless each has as many rows.

    What is computed from them waits for the check, or it may fail first, of
    shapes that say nothing to a caller.
    """
    rows = [tf.shape(values)[0] for values in inputs.values()]
    names = " and ".join(f"`{name}`" for name in inputs)
    message = f"{names} must have as many rows"
    checks = [
        tf.debugging.assert_equal(rows[0], other, message) for other in rows[1:]
    ]
    with tf.control_dependencies(checks):
        return [tf.identity(values) for values in inputs.values()]


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
        self.graphs: list[tf.Module] = []  # what holds a SavedModel's tables
        if tokenizer:
            self.text_graph = TextGraph(tokenizer)
            self.graphs.append(self.text_graph)
            self.vocabulary = tf.constant(
                tokenizer.pieces(range(tokenizer.vocab_size))
            )
            strings = tf.TensorSpec([None], tf.string, "text")
            self.segment = function(self.text_graph, [strings])
        self.encoder = albert
        if config.jit_compile:
            self.encoder = tf.function(albert, jit_compile=True)
        # A function that others call is stored once.
        self.encode = self.body(self._encode)
        self.outputs = self.body(self._outputs)

    def id_inputs(self, any_number: bool = False) -> list[tf.TensorSpec]:
        """Return the inputs of a function of ids."""
        config = self.config
        length = config.max_seq_length if config.fixed_length else None
        shape = [None if any_number else config.batch_size, length]
        return [tf.TensorSpec(shape, tf.int32, name) for name in IDS]

    def body(
        self,
        compute: Callable,
        more: tuple[tf.TensorSpec, ...] = (),
        any_number: bool = False,
    ):
        """Return a function of ids, and of more, as a graph for `run`.

        Args:
          compute: the function.
          more: inputs beside ids, mask and segments.
          any_number: whether the rows are not the texts of the batch.
        """
        ids = self.id_inputs(any_number)
        inputs = {spec.name: spec for spec in (*ids, *more)}
        graph = tf.function(compute, autograph=False)
        return graph.get_concrete_function(**inputs)

    def inputs(self) -> dict[str, list[tf.TensorSpec]]:
        """Return {name: inputs} of the served functions."""
        if not self.tokenizer:
            return {"ids": self.id_inputs()}
        text, pair = self.text_inputs(), self.text_inputs("text_pair")
        return {
            "ids": self.id_inputs(),
            "text": text,
            "text_pair": pair,
            "tokenize": text,
            "tokenize_pair": pair,
            "embed": text,
            "attention": pair,
            "tf_example": [
                tf.TensorSpec([self.config.batch_size], tf.string, "examples")
            ],
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
        encoded = self.encoder(input_ids, input_mask, segment_ids)
        return {name: encoded[name] for name in ENCODED}

    def _outputs(self, **inputs) -> Tensors:
        encoded = self.encode(**inputs)
        return encoded | self.heads(encoded)

    def run(self, body, inputs: Tensors, most_rows=None) -> Tensors:
        """Return the outputs of a `body` for a batch, in blocks of rows.

        Args:
          body: what `self.body` returned.
          inputs: those of the model [B, T], and further ones [B, ...].
          most_rows: most rows at a time, if the length alone does not tell.
        """
        limit = self.albert.config.max_position_embeddings
        with tf.control_dependencies(check_shapes(inputs, limit)):
            inputs = {k: tf.identity(x) for k, x in inputs.items()}
        if body.inputs[0].shape[0]:
            return body(**inputs)  # the number of rows is fixed
        rows = block_rows(tf.shape(inputs["input_ids"])[1])
        if most_rows is not None:
            rows = tf.minimum(rows, most_rows)
        return in_blocks(body, inputs, rows)

    def pack(
        self, a: tf.RaggedTensor, b: tf.RaggedTensor | None = None
    ) -> Tensors:
        """Return the inputs [B, T] of the model for ids [B, N] of segments."""
        config = self.config
        return self.text_graph.pack(
            a, b, config.max_seq_length, fixed=config.fixed_length
        )

    def pack_pair(self, text: tf.Tensor, text_pair: tf.Tensor) -> Tensors:
        """Return the inputs [B, T] of the model for pairs of strings [B]."""
        text, text_pair = as_many(text=text, text_pair=text_pair)
        return self.pack(self.segment(text), self.segment(text_pair))

    def with_pieces(self, inputs: Tensors) -> Tensors:
        """Return inputs [B, T] and their pieces as strings [B, T]."""
        pieces = tf.gather(self.vocabulary, inputs["input_ids"])
        return inputs | {"pieces": pieces}

    def ids(self, input_ids, input_mask, segment_ids) -> Tensors:
        """Serve the encoder and the heads for a batch of ids."""
        values = (input_ids, input_mask, segment_ids)
        return self.run(self.outputs, dict(zip(IDS, values, strict=True)))

    def text(self, text) -> Tensors:
        """Serve the encoder and the heads for strings [B]."""
        return self.run(self.outputs, self.pack(self.segment(text)))

    def text_pair(self, text, text_pair) -> Tensors:
        """Serve the encoder and the heads for pairs of strings [B]."""
        return self.run(self.outputs, self.pack_pair(text, text_pair))

    def tokenize(self, text) -> Tensors:
        """Serve the ids, and the pieces, that `text` gives to the model."""
        return self.with_pieces(self.pack(self.segment(text)))

    def tokenize_pair(self, text, text_pair) -> Tensors:
        """Serve the ids, and the pieces, that `text_pair` gives."""
        return self.with_pieces(self.pack_pair(text, text_pair))

    def _embed(self, **inputs) -> Tensors:
        encoded = self.encode(**inputs)
        tokens = encoded["sequence_output"]  # [B, T, H]
        weights = tf.cast(inputs["input_mask"], tf.float32)[..., None]
        total = tf.reduce_sum(tokens * weights, axis=1)
        return {
            "pooled": encoded["pooled_output"],
            "mean": total / tf.reduce_sum(weights, axis=1),
            "tokens": tokens,
        }

    def embed(self, text) -> Tensors:
        """Serve embeddings of strings [B]: pooled, mean and of every piece.

        The mean goes over all tokens, [CLS] and [SEP] too, without padding.
        """
        inputs = self.pack(self.segment(text))
        return self.run(self.body(self._embed), inputs) | {
            "input_mask": inputs["input_mask"],
            "pieces": self.with_pieces(inputs)["pieces"],
        }

    def _attention(self, **inputs) -> Tensors:
        every = self.albert(**inputs, return_all=True)["attention_probs"]
        return {"attention": tf.stack(every, axis=1)}  # [B, L, A, T, T]

    def attention(self, text, text_pair) -> Tensors:
        """Serve what every head of every layer looks at, [B, L, A, T, T].

        The second string may be empty.
        """
        inputs = self.pack_pair(text, text_pair)
        return self.run(self.body(self._attention), inputs) | {
            "input_mask": inputs["input_mask"],
            "segment_ids": inputs["segment_ids"],
            "pieces": self.with_pieces(inputs)["pieces"],
        }

    def _bulk(self, **inputs) -> Tensors:
        embedded = self._embed(**inputs)
        return {name: embedded[name] for name in ("pooled", "mean")}

    def features(self) -> dict[str, tf.io.FixedLenFeature]:
        """Return the features of a serialized `tf.train.Example`."""
        needed = tf.io.FixedLenFeature([], tf.string)
        absent = tf.io.FixedLenFeature([], tf.string, default_value="")
        return {"text": needed, "text_pair": absent}

    def tf_example(self, examples) -> Tensors:
        """Serve what is small of the outputs for `tf.train.Example`s [B]."""
        parsed = tf.io.parse_example(examples, self.features())
        inputs = self.pack_pair(parsed["text"], parsed["text_pair"])
        return self.run(self.body(self._bulk), inputs)

    def number_inputs(self) -> list[tf.TensorSpec]:
        """Return the inputs of `numbers`."""
        return self.id_inputs()

    def numbers(self, **inputs) -> Tensors:
        """Return what formats without strings serve for ids [B, T]."""
        encoded = self._encode(**inputs)
        return encoded | self.heads(encoded)

    def soft_numbers(self, **inputs) -> Tensors:
        """Return `numbers` where the mask is float32, near 1 at padding."""
        return self.numbers(**inputs)

    def signatures(self) -> dict:
        """Return {name: concrete function} of what is served."""
        made = {
            name: function(getattr(self, name), specs).get_concrete_function()
            for name, specs in self.inputs().items()
        }
        return {"serving_default": made[self.default()], **made}
