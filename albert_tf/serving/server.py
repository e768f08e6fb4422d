"""What an exported ALBERT serves: signatures of its kind, beside those of all.

Shapes: B batch, T tokens.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from albert_tf.serving.encoder import (
    Encoder,
    Rows,
    Signature,
    Tensors,
    function,
)
from albert_tf.tasks.task import Task
from albert_tf.text.packing import INPUTS
from albert_tf.training.model_directory.checkpoints import named_variables


@dataclasses.dataclass(frozen=True)
class Server:
    """A model and the functions that it serves.

    Attributes:
      encoder: its encoder and tokenizer.
      weights: {name: variable} of all that the functions use.
      signatures: {name: signature}.
      default: the signature that `serving_default` is.
      number_inputs: what `numbers` takes.
      numbers: outputs for ids [B, T], for formats without strings.
      task: of a fine-tuned model.
    """

    encoder: Encoder
    weights: dict[str, tf.Variable]
    signatures: dict[str, Signature]
    default: str
    number_inputs: list[tf.TensorSpec]
    numbers: Callable[..., Tensors]
    task: Task | None = None

    def call(self, name: str, *request) -> Tensors:
        """Return what a signature answers to a request."""
        return self.encoder.serve(self.signatures[name], *request)

    def concrete(self) -> dict:
        """Return {name: concrete function} of what is served."""

        def graph(name: str):
            def serve(*request):
                return self.call(name, *request)

            specs = self.signatures[name].inputs
            return function(serve, specs).get_concrete_function()

        made = {name: graph(name) for name in self.signatures}
        return {"serving_default": made[self.default], **made}


def of_examples(encoder: Encoder, signature: Signature) -> Signature:
    """Return a signature whose request is serialized `tf.train.Example`s [B].

    The features have the names of what it takes; strings of any number, such
    as choices, are those that there are. A second text may be absent.
    """
    any_number = tf.io.RaggedFeature(tf.string)
    one = tf.io.FixedLenFeature([], tf.string)
    features = {
        spec.name: any_number if spec.shape.rank > 1 else one
        for spec in signature.inputs
    }
    if "text_pair" in features:
        features["text_pair"] = tf.io.FixedLenFeature([], tf.string, "")

    def rows(examples: tf.Tensor) -> Rows:
        parsed = tf.io.parse_example(examples, features)
        request = [parsed[spec.name] for spec in signature.inputs]
        if isinstance(request[-1], tf.RaggedTensor):
            request[-1] = request[-1].to_tensor("")
        return signature.rows(*request)

    inputs = encoder.strings("examples")
    return dataclasses.replace(signature, inputs=inputs, rows=rows)


def id_rows(*values: tf.Tensor) -> Rows:
    """Return ids, mask and segments [B, T] as the model's rows."""
    return Rows(dict(zip(INPUTS, values, strict=True)))


# Signatures of models of every kind; without a tokenizer there is only `ids`.
BASIC = (
    *("ids", "text", "text_pair", "tokenize", "tokenize_pair"),
    *("embed", "attention", "tf_example"),
)


def basic_signatures(
    encoder: Encoder,
    heads: Callable[[Tensors, Tensors], Tensors],
) -> dict[str, Signature]:
    """Return the signatures in `BASIC`.

    Args:
      encoder: of the model.
      heads: their outputs for the encoder's outputs and its inputs.
    """

    def encoded_once(**inputs) -> Tensors:
        encoded = encoder.encode(**inputs)
        return encoded | heads(encoded, inputs)

    every = function(encoded_once)
    ids = Signature(encoder.ids(), id_rows, every)
    if not encoder.tokenizer:
        return {"ids": ids}

    def small(**inputs) -> Tensors:
        embedded = encoder.embeddings(**inputs)
        return {name: embedded[name] for name in ("pooled", "mean")}

    def show(*names: str):
        def decode(outputs: Tensors, rows: Rows) -> Tensors:
            known = rows.inputs | {"pieces": encoder.pieces(rows)}
            return outputs | {name: known[name] for name in names}

        return decode

    ids_and_pieces = show(*INPUTS, "pieces")
    embedded = function(encoder.embeddings), show("input_mask", "pieces")
    attended = function(encoder.attention), show(*INPUTS[1:], "pieces")
    examples = encoder.text_pair(function(small))
    return {
        "ids": ids,
        "text": encoder.text(every),
        "text_pair": encoder.text_pair(every),
        "tokenize": encoder.text(None, ids_and_pieces),
        "tokenize_pair": encoder.text_pair(None, ids_and_pieces),
        "embed": encoder.text(*embedded),
        "attention": encoder.text_pair(*attended),
        "tf_example": of_examples(encoder, examples),
    }


# (model, task, the encoder's outputs, its inputs) -> outputs
Heads = Callable[..., Tensors]


class Kind(NamedTuple):
    """What fine-tuned models of a kind serve.

    Attributes:
      name: of the signature that serves the task alone.
      make: of the encoder, what computes `heads`, and the task: what takes
        the task's requests.
      heads: the outputs of the head, and what they mean.
      numbers: those that formats without strings hold; None for the same.
      pooled: whether `heads` need `pooled_output` alone.
      pairs: whether examples may have a second text, even of a task that is
        asked about one.
    """

    name: str
    make: Callable[[Encoder, Callable, Task], Signature]
    heads: Heads
    numbers: Heads | None = None
    pooled: bool = False
    pairs: bool = False


def task_server(encoder: Encoder, model, task: Task, kind: Kind) -> Server:
    """Return the server of a fine-tuned model, restored, with its head."""
    # A shorter input must still reach all of a text.
    task = task.with_length(encoder.config.max_seq_length)

    def of(heads: Heads, encode: Callable) -> Callable[..., Tensors]:
        return lambda **inputs: heads(model, task, encode(**inputs), inputs)

    heads = functools.partial(kind.heads, model, task)
    signatures, default = basic_signatures(encoder, heads), "ids"
    if encoder.tokenizer:
        default = kind.name
        encode = encoder.pool if kind.pooled else encoder.encode
        outputs = function(of(kind.heads, encode))
        asked = signatures[default] = kind.make(encoder, outputs, task)
        example = encoder.text_pair(outputs) if kind.pairs else asked
        signatures["tf_example"] = of_examples(encoder, example)
    encode = encoder.pooled if kind.pooled else encoder.outputs
    numbers = of(kind.numbers or kind.heads, encode)
    return Server(
        encoder,
        named_variables(model),
        signatures,
        default,
        encoder.ids(),
        numbers,
        task,
    )
