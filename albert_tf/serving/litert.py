"""LiteRT files, in full precision or int8."""

import contextlib
import dataclasses
import importlib.util
import io
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import convert_to_constants

from albert_tf.base.errors import InputError, require
from albert_tf.data import file_kinds
from albert_tf.serving.server import Server
from albert_tf.serving.signatures import ServingConfig
from albert_tf.tasks.features import Features


def text_features(server: Server, path: str) -> Features:
    """Return the lines of a plain text as inputs, empty ones left out."""
    lines = file_kinds.read_text(path, "`calibration_file`").splitlines()
    texts = [line for line in lines if line.strip()]
    require(texts, f"`calibration_file` must hold text. Received: {path}")
    encoder = server.encoder
    length = encoder.config.max_seq_length
    return Features.of_texts(encoder.tokenizer, texts, length)


def task_features(server: Server, path: str) -> Features:
    """Return the examples of a file to predict, or else to evaluate on.

    The two have other columns in some data sets.
    """
    try:
        examples = server.task.read("predict", path)
    except InputError:
        examples = server.task.read("eval", path)
    rule = "`calibration_file` must have an example."
    require(examples, rule, calibration_file=path)
    return server.task.features(examples, server.encoder.tokenizer)


def calibration_features(server: Server, path: str) -> Features:
    """Return the inputs that a file gives: the task's own, or lines of text."""
    rule = "`calibration_file` needs a model directory with a tokenizer."
    require(server.encoder.tokenizer, rule, calibration_file=path)
    read = task_features if server.task else text_features
    return read(server, path)


def calibration_batches(
    features: Features, batch_size: int, most: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield inputs [B, T] of the first rows; the last batch may be short."""
    inputs = {name: rows[:most] for name, rows in features.dense().items()}
    for start in range(0, len(inputs["input_ids"]), batch_size):
        yield {k: x[start : start + batch_size] for k, x in inputs.items()}


def require_quantizer(precision: str) -> None:
    """Refuse a missing extra, before any work."""
    require(
        importlib.util.find_spec("ai_edge_quantizer") is not None,
        "`precision` with 8 bits needs `pip install 'albert-tf[litert]'`.",
        precision=precision,
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out bars, of which one has no switch, and warnings of memory."""
    with (
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def output_names(content: bytes) -> str:
    """Return a regular expression of the names of a file's outputs."""
    from ai_edge_litert.interpreter import Interpreter

    details = Interpreter(model_content=content).get_output_details()
    return "|".join(re.escape(detail["name"]) for detail in details)


def rounded(
    content: bytes, examples: Sequence[dict[str, np.ndarray]], is_static: bool
) -> bytes:
    """Return a file of float32 with weights and products of 8 bits.

    What multiplies last gives float32, and its weights have one scale, as
    tables must: the head of masked words shares the table of the front.

    Args:
      content: the file.
      examples: inputs, for the ranges of what static products take and give.
      is_static: whether products take 8 bits in a fixed range, and give such;
        otherwise they round what they take by its own range, and give float32.
    """
    from ai_edge_quantizer import qtyping
    from ai_edge_quantizer.quantizer import Quantizer

    product = qtyping.TFLOperationName.FULLY_CONNECTED
    one_scale = qtyping.TensorQuantizationConfig(8)
    table = qtyping.OpQuantizationConfig(
        activation_tensor_config=one_scale,
        weight_tensor_config=one_scale,
        compute_precision=qtyping.ComputePrecision.INTEGER,
    )
    quantizer = Quantizer(content)
    quantizer.update_quantization_recipe(
        "embeddings", qtyping.TFLOperationName.GATHER, table
    )
    if is_static:
        quantizer.add_static_config(".*", product, 8, 8)
    else:
        quantizer.add_dynamic_config(".*", product, 8)
    with quiet():
        quantizer.add_dynamic_config(
            output_names(content), product, 8, one_scale.granularity
        )
        ranges = quantizer.calibrate(
            {"serving_default": examples}, num_threads=os.cpu_count()
        )
        result = quantizer.quantize(ranges, enable_progress_report=False)
    return bytes(result.quantized_model)


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
    features = calibration_features(server, path)
    size = server.encoder.config.batch_size
    more = {
        spec.name: np.ones(spec.shape, np.int32)  # any position
        for spec in server.number_inputs[3:]
    }
    examples = [
        batch | more
        for batch in calibration_batches(features, size, CALIBRATION_ROWS)
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
        require_quantizer(precision)
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
        return rounded(content, examples, is_int8)
    return content
