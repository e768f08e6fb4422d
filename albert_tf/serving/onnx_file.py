"""Conversion to ONNX files, for `onnxruntime` and other engines.

Inputs and outputs have Hugging Face's names, so Hugging Face's libraries can
run the file. Shapes: B batch, T tokens, P masks per text.
"""

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from albert_tf.base.packages import need
from albert_tf.serving.litert_runner import POSITIONS
from albert_tf.serving.server import ServedModel

ONNX_FILE = "model.onnx"
OPSET = 18

# {our name: Hugging Face's name}, for names that differ.
NAMES = {
    "input_mask": "attention_mask",
    "segment_ids": "token_type_ids",
    "sequence_output": "last_hidden_state",
    "pooled_output": "pooler_output",
    "embedding": "sentence_embedding",
}


def tie(model) -> None:
    """Merge pairs of tensors that are transposes of each other.

    The embeddings and the masked-LM head share the embedding table, but the
    converter writes a transposed copy of the table for the head.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    shapes = {tuple(t.dims): t for t in graph.initializer if len(t.dims) == 2}
    for candidate in [t for t in graph.initializer if len(t.dims) == 2]:
        tensor = shapes.get(tuple(candidate.dims)[::-1])
        if tensor is None or tensor.name == candidate.name:
            continue
        value = numpy_helper.to_array(tensor)
        if np.array_equal(value.T, numpy_helper.to_array(candidate)):
            node = helper.make_node(
                "Transpose", [tensor.name], [candidate.name], perm=[1, 0]
            )
            graph.node.insert(0, node)
            graph.initializer.remove(candidate)
            del shapes[tuple(candidate.dims)]


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    """Return {name in the file: value} for {our name: value}."""
    return {NAMES.get(name, name): value for name, value in values.items()}


def run(session, names: Sequence[str], inputs: dict) -> dict[str, np.ndarray]:
    """Run an ONNX file, with our names for inputs and outputs.

    Args:
      session: an `onnxruntime.InferenceSession` for the file.
      names: the requested outputs, by their names in the file.
      inputs: {name: array}.
    """
    our_names = {file_name: name for name, file_name in NAMES.items()}
    feed = {k: x.astype(np.int64) for k, x in renamed(inputs).items()}
    outputs = zip(names, session.run(names, feed), strict=True)
    return {our_names.get(name, name): value for name, value in outputs}


def open_file(path: str) -> Callable[..., dict[str, np.ndarray]]:
    """Return a function that computes a file's outputs from named arrays."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # do not warn about inputs with defaults
    session = onnxruntime.InferenceSession(path, options)
    names = [output.name for output in session.get_outputs()]
    return lambda **inputs: run(session, names, inputs)


def name_axes(graph) -> None:
    """Name the axes of variable size: the batch, and the tokens or masks."""
    for value in [*graph.input, *graph.output]:
        second = "masks" if value.name.startswith("mlm_") else "tokens"
        dims = value.type.tensor_type.shape.dim
        for dim, name in zip(dims, ("batch", second), strict=False):
            if not dim.dim_value:
                dim.dim_param = name


def make_positions_optional(graph) -> None:
    """Let callers omit `mlm_positions`; the default is the first token, P = 1.

    Hugging Face's libraries do not pass this input, and ONNX Runtime does not
    accept P = 0.
    """
    from onnx import TensorProto, helper

    for value in graph.input:
        if value.name == POSITIONS:
            rows = value.type.tensor_type.shape.dim[0].dim_value or 1
            kind, zeros = TensorProto.INT64, [0] * rows
            first = helper.make_tensor(POSITIONS, kind, [rows, 1], zeros)
            graph.initializer.append(first)


def make_graph(server: ServedModel) -> tuple[Callable, list[tf.TensorSpec]]:
    """Return the function to convert, and the specs of its inputs.

    The function calls `ServedModel.numbers`; its inputs and outputs have the
    same names as in the file.
    """
    names = [spec.name for spec in server.number_inputs]
    specs = [
        tf.TensorSpec(spec.shape, tf.int64, NAMES.get(spec.name, spec.name))
        for spec in server.number_inputs
    ]

    def compute(*inputs):
        values = [tf.cast(x, tf.int32) for x in inputs]
        values = dict(zip(names, values, strict=True))
        if POSITIONS in values:
            # The default is [1, P]; the graph needs [B, P].
            values[POSITIONS] += tf.zeros_like(values["input_ids"][:, :1])
        return renamed(server.numbers(**values))

    return tf.function(compute, input_signature=specs, autograph=False), specs


def convert(server: ServedModel, config) -> bytes:
    """Convert a `ServedModel` to an ONNX file with the outputs of `numbers`.

    The layers are unrolled, but the file has a single copy of their shared
    weights: all layers refer to the same tensors.
    """
    need("`to`", "onnx", "onnxruntime", "tf2onnx", to="onnx")
    import tf2onnx.convert
    from tf2onnx import optimizer

    graph, specs = make_graph(server)
    with mock.patch.dict(optimizer._optimizers):
        # This optimizer confuses reshapes to [B, T, H] with reshapes to [B * T,
        # H].
        del optimizer._optimizers["reshape_optimizer"]
        model, _ = tf2onnx.convert.from_function(graph, specs, opset=OPSET)
    tie(model)
    name_axes(model.graph)
    if not server.encoder.config.fixed_length:
        make_positions_optional(model.graph)
    return model.SerializeToString()
