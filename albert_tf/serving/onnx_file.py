"""A model as an ONNX file, which `onnxruntime` and others run."""

import importlib.util
from unittest import mock

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.serving.server import Server

ONNX_FILE = "model.onnx"
OPSET = 18


def tie(model) -> None:
    """Make one tensor of two that are each other's transposition.

    The word table stands at the front and, in the head of masked words, at
    the end; the converter transposes it there.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    shapes = {tuple(t.dims): t for t in graph.initializer if len(t.dims) == 2}
    for other in [t for t in graph.initializer if len(t.dims) == 2]:
        tensor = shapes.get(tuple(other.dims)[::-1])
        if tensor is None or tensor.name == other.name:
            continue
        value = numpy_helper.to_array(tensor)
        if np.array_equal(value.T, numpy_helper.to_array(other)):
            node = helper.make_node(
                "Transpose", [tensor.name], [other.name], perm=[1, 0]
            )
            graph.node.insert(0, node)
            graph.initializer.remove(other)
            del shapes[tuple(other.dims)]


def convert(server: Server, config) -> bytes:
    """Return an ONNX model with the outputs `Server.numbers`.

    The layers are written out one after the other, but what they share
    stands in the file once: all of them name the same tensors.
    """
    require(
        importlib.util.find_spec("tf2onnx"),
        "`to=onnx` needs the packages of `pip install 'albert-tf[onnx]'`. "
        "Received: no tf2onnx",
    )
    import tf2onnx.convert
    from tf2onnx import optimizer

    specs = server.number_inputs

    def compute(*inputs):
        names = [spec.name for spec in specs]
        return server.numbers(**dict(zip(names, inputs, strict=True)))

    graph = tf.function(compute, input_signature=specs, autograph=False)
    with mock.patch.dict(optimizer._optimizers):
        # It mistakes [B, T, H] for [B * T, H] where one follows the other.
        del optimizer._optimizers["reshape_optimizer"]
        model, _ = tf2onnx.convert.from_function(graph, specs, opset=OPSET)
    tie(model)
    return model.SerializeToString()
