"""Graphs of the encoder and the tokenizer, which the signatures use.

A text that is too long for one row of the model's input is split into windows,
one per row.

Shapes: B batch, R input rows, T tokens, W tokens per window, H hidden width, L
layers, A heads.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from albert_tf.base.settings import (
    DEVICES,
    MAX_SEQ_LENGTH,
    SERVING,
    TOP_K,
    Validated,
    setting,
    variant,
)
from albert_tf.model.albert import AlbertModel
from albert_tf.model.task_heads import token_mean
from albert_tf.tasks.task_config import NULL_THRESHOLD
from albert_tf.text.packing import INPUTS
from albert_tf.text.text_graph import TextGraph, valid
from albert_tf.text.tokenizers import Tokenizer


class Windows(NamedTuple):
    """The windows over the tokens of a batch of texts.

    Attributes:
      texts: int64 [R], the index of each row's text.
      token_indices: ragged [R, W], indices of a row's tokens among the tokens
        of all texts.
      is_best: ragged bool [R, W], whether a token has the most context in this
        window.
    """

    texts: tf.Tensor
    token_indices: tf.RaggedTensor
    is_best: tf.RaggedTensor


def make_windows(ids: tf.RaggedTensor, size: tf.Tensor, stride: int) -> Windows:
    """Return windows of at most `size` [B] tokens over ids [B, N].

    A text's windows start every `stride` tokens.
    """
    text_lengths = ids.row_lengths()
    excess = tf.maximum(text_lengths - size, 0)
    counts = 1 + (excess + stride - 1) // stride
    texts = tf.repeat(tf.range(ids.nrows()), counts)
    start = tf.ragged.range(counts).values * stride
    length = tf.minimum(
        tf.gather(text_lengths, texts) - start, tf.gather(size, texts)
    )
    first = tf.gather(ids.row_starts(), texts) + start
    token_indices = tf.ragged.range(first, first + length)
    offsets = tf.ragged.range(length).values
    token_lengths = tf.repeat(length, length)
    context = tf.minimum(offsets, token_lengths - 1 - offsets)
    # As in `best_windows`, 100 tokens of window length weigh as much as one
    # token of context, and the first of equally good windows wins.
    rows = tf.cast(token_indices.value_rowids(), tf.int64)
    score = (context * 100 + token_lengths) * (1 << 32) - rows
    total = tf.cast(tf.size(ids.values), tf.int64)
    best_scores = tf.math.unsorted_segment_max(
        score, token_indices.values, total
    )
    is_best = score == tf.gather(best_scores, token_indices.values)
    return Windows(texts, token_indices, token_indices.with_values(is_best))


def cut(
    strings: tf.Tensor, rows, starts, ends
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Extract substrings at character offsets.

    Bytes that are not UTF-8 become U+FFFD in the substrings, because JSON, as
    in a server's responses, must be UTF-8.

    Args:
      strings: [B].
      rows: [...], the index of the string that contains each substring.
      starts: [...], the position of the first character.
      ends: [...], the position after the last character.

    Returns:
      The substrings, and the byte offsets at which they begin and end.
    """
    _, offsets = tf.strings.unicode_decode_with_offsets(
        strings, "UTF-8", errors="replace"
    )
    sizes = tf.strings.length(strings)[:, None]
    bounds = tf.concat([tf.cast(offsets, tf.int32), sizes], axis=1)
    base = tf.gather(tf.cast(bounds.row_starts(), tf.int32), rows)
    first = tf.gather(bounds.values, base + starts)
    last = tf.gather(bounds.values, base + ends)
    text = tf.strings.substr(tf.gather(strings, rows), first, last - first)
    return valid(text), first, last


ENCODED = ("sequence_output", "pooled_output")

Tensors = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class ServingConfig(Validated):
    """Settings of exported models."""

    help_group = SERVING

    max_seq_length: int | None = variant(
        MAX_SEQ_LENGTH,
        means="the value used in fine-tuning, otherwise the model's number of "
        "positions",
        minimum=3,
    )
    fixed_length: bool = setting(
        False,
        "Pad every input to max_seq_length, for compilers that need fixed "
        "shapes. By default, pad to the length of the longest input in the "
        "batch.",
    )
    batch_size: int | None = setting(
        None, "The only batch size to accept.", means="any", minimum=1
    )
    jit_compile: bool = setting(
        False,
        "Compile the encoder of a SavedModel with XLA, once for each shape of "
        "its inputs. To avoid recompilation, fix the length and possibly the "
        "batch size.",
        group=DEVICES,
    )
    ids_only: bool = setting(
        False,
        "Serve ids instead of strings. The SavedModel has only the signature "
        "`ids` and loads without tensorflow-text.",
    )
    top_k: int = variant(TOP_K)
    null_score_diff_threshold: float | None = variant(NULL_THRESHOLD)


def graph_function(body: Callable, inputs: list[tf.TensorSpec] | None = None):
    """Wrap a function as a graph, optionally with fixed input specs."""
    return tf.function(body, input_signature=inputs, autograph=False)


def check_shapes(inputs: Tensors, limit: int) -> list[tf.Operation]:
    """Return assertions on the shapes of a model's inputs.

    The assertions must run before the model: fused kernels do not check shapes
    and would read past the end of a mask that is too short.
    """
    ids, mask, segments = (tf.shape(inputs[name]) for name in INPUTS)
    same = "`input_ids`, `input_mask` and `segment_ids` must have equal shapes"
    length = f"`input_ids` must have 1 to {limit} tokens"
    return [
        tf.debugging.assert_equal(ids, mask, same),
        tf.debugging.assert_equal(ids, segments, same),
        tf.debugging.assert_positive(ids[1], length),
        tf.debugging.assert_less_equal(ids[1], limit, length),
    ]


def same_batch_size(**inputs: tf.Tensor) -> list[tf.Tensor]:
    """Check that tensors have the same batch size B; return the tensors.

    Later operations wait for this check, because their own errors would mention
    internal shapes.
    """
    counts = [tf.shape(values)[0] for values in inputs.values()]
    names = " and ".join(f"`{name}`" for name in inputs)
    message = f"{names} must have the same number of rows"
    checks = [
        tf.debugging.assert_equal(counts[0], count, message)
        for count in counts[1:]
    ]
    with tf.control_dependencies(checks):
        return [tf.identity(values) for values in inputs.values()]


class Signature(NamedTuple):
    """A function that a model serves.

    Attributes:
      inputs: the arguments, in order.
      call: the function.
    """

    inputs: list[tf.TensorSpec]
    call: Callable[..., Tensors]


class Encoder:
    """An ALBERT model with its tokenizer.

    Args:
      albert: the encoder.
      config: the settings, in which `max_seq_length` must be set.
      tokenizer: the tokenizer, or None for a model without a vocabulary.

    Attributes:
      takes_text: whether the signatures accept strings.
      encode, pool: `outputs` and `pooled` as graphs, which a SavedModel stores
        only once, even if several functions call them.
    """

    def __init__(
        self,
        albert: AlbertModel,
        config: ServingConfig,
        tokenizer: Tokenizer | None,
    ):
        self.albert, self.config, self.tokenizer = albert, config, tokenizer
        # The owners of a SavedModel's lookup tables.
        self.graphs: list[tf.Module] = []
        self.takes_text = tokenizer is not None and not config.ids_only
        if self.takes_text:
            self.text_graph = TextGraph(tokenizer)
            self.graphs.append(self.text_graph)
            self.vocabulary = tf.constant(
                tokenizer.pieces(range(tokenizer.vocab_size))
            )
            strings = tf.TensorSpec([None], tf.string, "text")
            self.segment = graph_function(self.text_graph, [strings])
            ids = tf.RaggedTensorSpec([None, None], tf.int32)
            self._pack = graph_function(self._packed, [ids, ids])
        self._compiled = albert
        if config.jit_compile:
            self._compiled = tf.function(
                albert, jit_compile=True, autograph=False
            )
        self.encode = graph_function(self.outputs)
        self.pool = graph_function(self.pooled)

    def outputs(self, **inputs) -> Tensors:
        """Return `AlbertModel`'s outputs for ids, mask and segments [R, T].

        With `positions` [R, P], `sequence_output` is [R, P, H], the vectors at
        these positions only.
        """
        encoded = self._compiled(**inputs)
        return {name: tf.cast(encoded[name], tf.float32) for name in ENCODED}

    def pooled(self, **inputs) -> Tensors:
        """Return only `pooled_output` [R, H], which needs less computation."""
        no_tokens = inputs["input_ids"][:, :0]
        encoded = self._compiled(**inputs, positions=no_tokens)
        return {"pooled_output": tf.cast(encoded["pooled_output"], tf.float32)}

    def embeddings(self, **inputs) -> Tensors:
        """Return vectors: `pooled` and `mean` [R, H], and `tokens` [R, T, H].

        The mean includes all tokens, even [CLS] and [SEP], but not padding.
        """
        encoded = self.encode(**inputs)
        tokens = encoded["sequence_output"]  # [R, T, H]
        mean = token_mean(tokens, inputs["input_mask"])
        pooled = encoded["pooled_output"]
        return {"pooled": pooled, "mean": mean, "tokens": tokens}

    def attention(self, **inputs) -> Tensors:
        """Return the attention of every head of every layer [R, L, A, T, T]."""
        probs = self.albert(**inputs, return_all=True)["attention_probs"]
        return {"attention": tf.cast(tf.stack(probs, axis=1), tf.float32)}

    def id_specs(self, one_row_per_text: bool = True) -> list[tf.TensorSpec]:
        """Return the input specs of a function that accepts ids.

        Args:
          one_row_per_text: see `run`.
        """
        config = self.config
        length = config.max_seq_length if config.fixed_length else None
        shape = [config.batch_size if one_row_per_text else None, length]
        return [tf.TensorSpec(shape, tf.int32, name) for name in INPUTS]

    def string_specs(self, *names: str) -> list[tf.TensorSpec]:
        """Return the input specs of a function that accepts strings [B]."""
        shape = [self.config.batch_size]
        return [tf.TensorSpec(shape, tf.string, name) for name in names]

    def run(
        self, compute, inputs: Tensors, one_row_per_text: bool = True
    ) -> Tensors:
        """Return the outputs of a `graph_function` for rows.

        Args:
          compute: the function.
          inputs: the model's inputs [R, T], and additional inputs [R, ...].
          one_row_per_text: whether there is one row for each element of the
            batch.
        """
        specs = self.id_specs(one_row_per_text)
        for name in inputs.keys() - set(INPUTS):
            shape = [specs[0].shape[0], None]
            specs.append(tf.TensorSpec(shape, inputs[name].dtype, name))
        # TensorFlow traces the function once, so all signatures share it.
        graph = compute.get_concrete_function(**{x.name: x for x in specs})
        limit = self.albert.config.max_position_embeddings
        with tf.control_dependencies(check_shapes(inputs, limit)):
            return graph(**{k: tf.identity(x) for k, x in inputs.items()})

    def pack(
        self, a: tf.RaggedTensor, b: tf.RaggedTensor | None = None
    ) -> Tensors:
        """Pack the ids [R, N] of segments into the model's inputs [R, T]."""
        if b is None:
            b = a[:, :0]
        return self._pack(a, b)

    def _packed(self, a: tf.RaggedTensor, b: tf.RaggedTensor) -> Tensors:
        config = self.config
        return self.text_graph.pack(
            a, b, config.max_seq_length, fixed=config.fixed_length
        )

    def two_part_rows(self, a: tf.RaggedTensor, b: tf.RaggedTensor) -> Tensors:
        """Return the model's inputs [R, T] for rows `[CLS] a [SEP] b [SEP]`.

        Unlike `pack`, this method does not truncate. T is the length of the
        longest row, unless the length is fixed.

        Args:
          a, b: ragged ids [R, N]; rows of `b` may be empty.
        """
        config, pair = self.config, tf.ones_like(a.row_lengths())
        length = config.max_seq_length if config.fixed_length else None
        return self.text_graph.rows(a, b, pair, length)

    def text_signature(
        self, compute, added: Sequence[str] = (), pair: bool = False
    ) -> Signature:
        """Return a signature that accepts strings [B], or pairs of strings.

        Args:
          compute: a `graph_function` of rows; None to serve only the rows.
          added: additional outputs: names of the rows' inputs, or "pieces", the
            pieces of the rows as strings [R, T].
          pair: whether the signature accepts pairs.
        """
        names = ("text", "text_pair")[: 1 + pair]

        def call(*texts: tf.Tensor) -> Tensors:
            texts = same_batch_size(**dict(zip(names, texts, strict=True)))
            inputs = self.pack(*map(self.segment, texts))
            outputs = self.run(compute, inputs) if compute else {}
            if "pieces" in added:
                pieces = tf.gather(self.vocabulary, inputs["input_ids"])
                inputs = inputs | {"pieces": pieces}
            return outputs | {name: inputs[name] for name in added}

        return Signature(self.string_specs(*names), call)
