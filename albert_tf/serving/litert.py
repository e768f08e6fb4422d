"""A model as a LiteRT (TensorFlow Lite) file, for phones and browsers.

Shapes: B batch, T tokens, P masks of a text.
"""

import dataclasses
import tempfile
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import convert_to_constants

from albert_tf.base.errors import require
from albert_tf.serving import calibration, litert_int8
from albert_tf.serving.encoder import ServingConfig
from albert_tf.serving.server import Server

CALIBRATION_ROWS = 200

# "float16" and "dynamic_int8" keep activations in float32.
PRECISIONS = ("float32", "float16", "dynamic_int8", "int8")


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


def examples_of(
    server: Server, path: str | None
) -> list[dict[str, np.ndarray]]:
    """Return the inputs to calibrate with: those that a file gives."""
    require(
        path,
        "`calibration_file` must be given for precision=int8: a file of the "
        "task's examples, or of plain text for a pretrained model.",
        calibration_file=path,
    )
    features = calibration.features(server, path)
    size = server.encoder.config.batch_size
    more = {
        spec.name: np.ones(spec.shape, np.int32)  # any position
        for spec in server.number_inputs[3:]
    }
    examples = [
        batch | more
        for batch in calibration.batches(features, size, CALIBRATION_ROWS)
        if len(batch["input_ids"]) == size
    ]
    require(
        examples,
        "`calibration_file` must have at least `batch_size` examples.",
        batch_size=size,
        calibration_file=path,
    )
    return examples


def fixed(config: ServingConfig) -> ServingConfig:
    """Return settings with every shape fixed, for one text by default."""
    size = config.batch_size or 1
    return dataclasses.replace(config, fixed_length=True, batch_size=size)


def convert(server: Server, config) -> bytes:
    """Return a LiteRT model with the outputs `numbers`.

    Args:
      server: what to serve; its shapes must be fixed.
      config: `precision`, one of `PRECISIONS`, and for "int8"
        `calibration_file`, with examples of the task, or text.
    """
    precision, specs = config.precision, server.number_inputs
    is_int8 = precision == "int8"
    if "int8" in precision:
        litert_int8.require_quantizer(precision)
    # Nothing but tables has a range in "dynamic_int8", and any ids show it.
    examples = [{spec.name: np.zeros(spec.shape, np.int32) for spec in specs}]
    if is_int8:
        examples = examples_of(server, config.calibration_file)
    module = frozen(server.numbers, specs)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, module.signature)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        if precision == "float16":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.target_spec.supported_types = [tf.float16]
        content = converter.convert()
    if "int8" in precision:
        return litert_int8.rounded(content, examples, is_int8)
    return content
