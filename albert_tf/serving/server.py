"""The signatures of a model: those of its kind, and the basic ones.

Shapes: B batch, T tokens.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from albert_tf.serving.classifiers import choice_signature, class_names, texts
from albert_tf.serving.entities import entities
from albert_tf.serving.questions import answer
from albert_tf.serving.signatures import (
    Encoder,
    Signature,
    Tensors,
    graph_function,
)
from albert_tf.tasks.task import Task
from albert_tf.text.packing import INPUTS
from albert_tf.training.checkpoints import named_variables


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """A model and the functions that it serves.

    Attributes:
      encoder: its encoder and tokenizer.
      weights: {name: variable} for every variable that the functions use.
      signatures: {name: signature}.
      default: the name of the signature to serve as `serving_default`.
      number_inputs: the inputs of `numbers`.
      numbers: returns outputs for ids [B, T], for formats without strings.
      task: the task of a fine-tuned model.
    """

    encoder: Encoder
    weights: dict[str, tf.Variable]
    signatures: dict[str, Signature]
    default: str
    number_inputs: list[tf.TensorSpec]
    numbers: Callable[..., Tensors]
    task: Task | None = None

    def call(self, name: str, *request) -> Tensors:
        """Return a signature's answer to a request."""
        return self.signatures[name].call(*request)

    def concrete(self) -> dict:
        """Return {name: concrete function} for all signatures."""

        def graph(name: str):
            def serve(*request):
                return self.call(name, *request)

            specs = self.signatures[name].inputs
            return graph_function(serve, specs).get_concrete_function()

        made = {name: graph(name) for name in self.signatures}
        return {"serving_default": made[self.default], **made}


def of_examples(encoder: Encoder, signature: Signature) -> Signature:
    """Return a signature that takes serialized `tf.train.Example`s [B].

    Features have the names of the signature's inputs, and those for lists, such
    as choices, have any number of strings. A second text is optional.
    """
    any_number = tf.io.RaggedFeature(tf.string)
    one = tf.io.FixedLenFeature([], tf.string)
    features = {
        spec.name: any_number if spec.shape.rank > 1 else one
        for spec in signature.inputs
    }
    if "text_pair" in features:
        features["text_pair"] = tf.io.FixedLenFeature([], tf.string, "")

    def call(examples: tf.Tensor) -> Tensors:
        parsed = tf.io.parse_example(examples, features)
        request = [parsed[spec.name] for spec in signature.inputs]
        if isinstance(request[-1], tf.RaggedTensor):
            request[-1] = request[-1].to_tensor("")
        return signature.call(*request)

    return Signature(encoder.strings("examples"), call)


# Signatures of every kind of model; if it takes no text, there is only `ids`.
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
      encoder: the model's encoder.
      heads: returns the heads' outputs for the encoder's outputs and inputs.
    """

    def encoded_once(**inputs) -> Tensors:
        encoded = encoder.encode(**inputs)
        return encoded | heads(encoded, inputs)

    every = graph_function(encoded_once)

    def of_ids(*values: tf.Tensor) -> Tensors:
        return encoder.run(every, dict(zip(INPUTS, values, strict=True)))

    ids = Signature(encoder.ids(), of_ids)
    if not encoder.takes_text:
        return {"ids": ids}

    def small(**inputs) -> Tensors:
        embedded = encoder.embeddings(**inputs)
        return {name: embedded[name] for name in ("pooled", "mean")}

    def show(*names: str):
        def decode(outputs: Tensors, inputs: Tensors) -> Tensors:
            known = inputs | {"pieces": encoder.pieces(inputs)}
            return outputs | {name: known[name] for name in names}

        return decode

    ids_and_pieces = show(*INPUTS, "pieces")
    embedded = graph_function(encoder.embeddings), show("input_mask", "pieces")
    attended = graph_function(encoder.attention), show(*INPUTS[1:], "pieces")
    examples = encoder.text_pair(graph_function(small))
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


# Makers of signatures that take more than a text or a pair.
MAKERS = {"answer": answer, "choose": choice_signature, "entities": entities}


def task_server(encoder: Encoder, model, task: Task) -> ServedModel:
    """Return the server of a restored fine-tuned model and its head."""
    # Windows over shorter inputs must still cover all of a text.
    task = task.updated(max_seq_length=encoder.config.max_seq_length)

    def numbers(encoded: Tensors, inputs: Tensors) -> Tensors:
        outputs = task.head.named(model.head(encoded, inputs))
        return outputs | task.served(outputs)

    def named(encoded: Tensors, inputs: Tensors) -> Tensors:
        outputs = numbers(encoded, inputs)
        is_class = task.signature == "classify"
        return outputs | (class_names(task, outputs) if is_class else {})

    def exported(**inputs) -> Tensors:
        encode = encoder.pooled if model.reads_pooled else encoder.outputs
        encoded = encode(**inputs)
        names = ("sequence_output",) if task.kind == "embedding" else ()
        return {k: encoded[k] for k in names} | numbers(encoded, inputs)

    signatures, default = basic_signatures(encoder, named), "ids"
    if encoder.takes_text:
        default = task.signature
        encode = encoder.pool if model.reads_pooled else encoder.encode
        outputs = graph_function(
            lambda **inputs: named(encode(**inputs), inputs)
        )
        make = MAKERS.get(default, texts)
        asked = signatures[default] = make(encoder, outputs, task)
        # Examples may have a second text, even for single-text tasks.
        pairs = "text_pair" in task.fields
        example = encoder.text_pair(outputs) if pairs else asked
        signatures["tf_example"] = of_examples(encoder, example)
    return ServedModel(
        encoder,
        named_variables(model),
        signatures,
        default,
        encoder.ids(),
        exported,
        task,
    )
