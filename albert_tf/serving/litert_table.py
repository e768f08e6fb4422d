"""The word table of a LiteRT file of a pretrained model, once instead of twice.

Where weights have 8 bits, the converter rounds the table that words are looked
up in with one scale, and the one that masked words are predicted with by a
scale for each word. Shapes: V vocabulary, E embedding width.
"""

import numpy as np
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

LOOK_UP = schema.BuiltinOperator.GATHER
PRODUCT = schema.BuiltinOperator.FULLY_CONNECTED
INT8, INT32 = schema.TensorType.INT8, schema.TensorType.INT32


def operators(model, graph, kind: int) -> list:
    """Return the operators of a kind."""
    codes = [
        max(code.builtinCode, code.deprecatedBuiltinCode)
        for code in model.operatorCodes
    ]
    return [o for o in graph.operators if codes[o.opcodeIndex] == kind]


def values(model, tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return what an 8-bit table [V, E] stands for, and its scales [V, 1]."""
    content = np.asarray(model.buffers[tensor.buffer].data, np.uint8)
    scale = np.asarray(tensor.quantization.scale, np.float32)[:, None]
    return content.view(np.int8).reshape(tensor.shape) * scale, scale


def are_same(model, one, other) -> bool:
    """Return whether two tables differ by no more than how they round."""
    if list(one.shape) != list(other.shape):
        return False
    (a, scale_a), (b, scale_b) = values(model, one), values(model, other)
    return bool((np.abs(a - b) <= 0.51 * (scale_a + scale_b)).all())


def is_constant(model, tensor) -> bool:
    """Return whether a tensor is an 8-bit table of the file."""
    data = model.buffers[tensor.buffer].data
    return tensor.type == INT8 and data is not None and len(data) > 0


def without_copies(content: bytes) -> bytes:
    """Return a LiteRT file whose products use the tables of its look-ups.

    Where a product adds a bias in int32, whose scale belongs to that of the
    weights, nothing changes.
    """
    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    (graph,) = model.subgraphs
    tables = {o.inputs[0] for o in operators(model, graph, LOOK_UP)}
    tables = {i for i in tables if is_constant(model, graph.tensors[i])}
    for product in operators(model, graph, PRODUCT):
        weights = graph.tensors[product.inputs[1]]
        biases = [graph.tensors[i] for i in product.inputs[2:] if i >= 0]
        fixed = any(bias.type == INT32 for bias in biases)
        if fixed or not is_constant(model, weights):
            continue
        for table in tables - {product.inputs[1]}:
            if are_same(model, graph.tensors[table], weights):
                product.inputs[1] = table
                model.buffers[weights.buffer].data = None
                weights.quantization = None
                break
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))
