"""A model as a LiteRT (TensorFlow Lite) file, for phones and browsers.

Shapes: B batch, T tokens, P masks of a text.
"""

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import convert_to_constants

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.model.encoder_blocks import MASK_BIAS
from albert_tf.serving import calibration
from albert_tf.serving.encoder import ServingConfig
from albert_tf.serving.litert_table import without_copies
from albert_tf.serving.server import Server

LITERT_FILE = "model.tflite"
CALIBRATION_ROWS = 200

# Padding gets this instead of `MASK_BIAS` where activations are 8-bit: the
# step between their values is a 256th of the range that calibration saw.
INT8_MASK_BIAS = -24.0


def _float32(converter, examples) -> None:
    """Leave everything as it is."""


def _float16(converter, examples) -> None:
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_types = [tf.float16]


def _dynamic_int8(converter, examples) -> None:
    converter.optimizations = [tf.lite.Optimize.DEFAULT]


def _int8(converter, examples) -> None:
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = examples
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS_INT8,
        tf.lite.OpsSet.TFLITE_BUILTINS,
    ]


# What a precision changes of the converter. "float16" and "dynamic_int8" keep
# activations in float32; "int8" has both in 8 bits, but for ids and outputs.
PRECISIONS: dict[str, Callable] = {
    "float32": _float32,
    "float16": _float16,
    "dynamic_int8": _dynamic_int8,
    "int8": _int8,
}


def soften(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return inputs whose mask gives padding the bias `INT8_MASK_BIAS`."""
    padding = 1.0 - tf.cast(inputs["input_mask"], tf.float32)
    softer = 1.0 - padding * (INT8_MASK_BIAS / MASK_BIAS)
    return {**inputs, "input_mask": softer}


def frozen(compute: Callable, specs: list[tf.TensorSpec]) -> tf.Module:
    """Return a module with a signature whose weights are constants.

    The converter loses weights that are Keras variables.
    """
    by_name = {spec.name: spec for spec in specs}
    graph = tf.function(compute, autograph=False)
    graph = graph.get_concrete_function(**by_name)
    constant = convert_to_constants.convert_variables_to_constants_v2(graph)
    order = [tensor.name.split(":")[0] for tensor in constant.inputs]
    names = sorted(graph.structured_outputs)

    def call(**inputs):
        outputs = constant(*[inputs[name] for name in order])
        return dict(zip(names, outputs, strict=True))

    module = tf.Module()
    module.call = tf.function(call, autograph=False)
    module.signature = module.call.get_concrete_function(**by_name)
    return module


@contextlib.contextmanager
def converter_of(module: tf.Module) -> Iterator:
    """Yield LiteRT's converter of a frozen module."""
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(
            module, folder, {"serving_default": module.signature}
        )
        yield tf.lite.TFLiteConverter.from_saved_model(folder)


def examples_of(server: Server, path: str) -> Callable[[], Iterator[dict]]:
    """Return what gives the inputs to calibrate with, as converters want."""
    features = calibration.features(server, path)
    size = server.encoder.config.batch_size
    more = {
        spec.name: np.ones(spec.shape, np.int32)  # any position
        for spec in server.number_inputs[3:]
    }

    def examples() -> Iterator[dict]:
        for batch in calibration.batches(features, size, CALIBRATION_ROWS):
            if len(batch["input_ids"]) == size:
                yield batch | more

    if next(examples(), None) is None:
        raise InputError(
            "`calibration_file` must have at least `batch_size` examples. "
            f"Received: batch_size={size}, calibration_file={path}"
        )
    return examples


def fixed(config: ServingConfig) -> ServingConfig:
    """Return settings with every shape fixed, for one text by default."""
    size = config.batch_size or 1
    return dataclasses.replace(config, fixed_length=True, batch_size=size)


def convert(server: Server, precision: str, calibration_file: str | None):
    """Return the bytes of a LiteRT model with the outputs `numbers`.

    Args:
      server: what to serve; its shapes must be fixed.
      precision: a key of `PRECISIONS`.
      calibration_file: examples of the task, or text, for "int8".
    """
    is_int8, examples = precision == "int8", None
    if is_int8 and not calibration_file:
        raise InputError(
            "`calibration_file` must be given for precision=int8: a file of "
            "the task's examples, or of plain text for a pretrained model. "
            "Received: calibration_file=None"
        )
    if is_int8:
        examples = examples_of(server, calibration_file)

    def compute(**inputs):
        if is_int8:
            return server.soft_numbers(**soften(inputs))
        return server.numbers(**inputs)

    module = frozen(compute, server.number_inputs)
    with converter_of(module) as converter:
        PRECISIONS[precision](converter, examples)
        content = converter.convert()
    return without_copies(content) if "int8" in precision else content


def write(
    server: Server, folder: str, precision: str, calibration_file: str | None
) -> None:
    """Write `model.tflite` into a folder."""
    content = convert(server, precision, calibration_file)
    files.write_bytes(files.join(folder, LITERT_FILE), content)
