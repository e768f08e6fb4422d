"""Conversion to LiteRT files with float32, float16 or 8-bit numbers."""

import contextlib
import dataclasses
import io
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import InputError, require
from albert_tf.base.packages import is_installed, need
from albert_tf.data import file_kinds
from albert_tf.serving.server import ServedModel
from albert_tf.serving.signatures import ServingConfig
from albert_tf.tasks.features import Features


def text_features(server: ServedModel, path: str) -> Features:
    """Return the features of the nonblank lines in a plain text file."""
    lines = file_kinds.read_text(path, "`calibration_file`").splitlines()
    texts = [line for line in lines if line.strip()]
    require(texts, f"`calibration_file` must contain text. Received: {path}")
    encoder = server.encoder
    length = encoder.config.max_seq_length
    return Features.from_texts(encoder.tokenizer, texts, length)


def task_features(server: ServedModel, path: str) -> Features:
    """Return the features of a file's examples.

    The file is read as test data or, if that fails, as evaluation data. In some
    data sets, these two parts have different columns.
    """
    try:
        examples = server.task.read("predict", path)
    except InputError:
        try:
            examples = server.task.read("eval", path)
        except InputError as error:
            # `error` may name settings of fine-tuning, which exports lack.
            columns = ", ".join(server.task.table(1).texts)
            raise InputError(
                "`calibration_file` must contain examples of the model's task; "
                f"a table must have the text columns of fine-tuning, {columns}."
                f" {error}"
            ) from None
    rule = "`calibration_file` must contain at least one example."
    require(examples, rule, calibration_file=path)
    return server.task.features(examples, server.encoder.tokenizer)


def require_quantizer(precision: str) -> None:
    """Raise `InputError` if the package for 8-bit models is not installed."""
    need("`precision`", "ai_edge_quantizer", precision=precision)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings and all output to stderr, such as progress bars."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def output_names(content: bytes) -> str:
    """Return a regular expression that matches the output names of a file."""
    from ai_edge_litert.interpreter import Interpreter

    details = Interpreter(model_content=content).get_output_details()
    return "|".join(re.escape(detail["name"]) for detail in details)


def quantized(
    content: bytes, examples: Sequence[dict[str, np.ndarray]], is_static: bool
) -> bytes:
    """Quantize the weights and matrix products of a float32 file to 8 bits.

    The final matrix product returns float32. Its weights have a single scale,
    because the masked-LM head shares the embedding table, and the lookup of
    embeddings requires a single scale.

    Args:
      content: the file.
      examples: inputs for calibrating the ranges of static products.
      is_static: whether products accept and return 8-bit numbers in fixed
        ranges; otherwise, products quantize each input by its actual range and
        return float32.
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

# With "float16" and "dynamic_int8", activations stay in float32.
PRECISIONS = ("float32", "float16", "dynamic_int8", "int8")


def calibration_examples(
    server: ServedModel, path: str | None
) -> list[dict[str, np.ndarray]]:
    """Return calibration inputs {name: [B, ...]} from a file, in full batches.

    The file contains the task's examples, or lines of text.
    """
    require(
        path,
        "`calibration_file` must be set for precision=int8: a file with "
        "examples of the task or, for a pretrained model, with plain text.",
        calibration_file=path,
    )
    rule = "`calibration_file` needs a model directory with a tokenizer."
    require(server.encoder.tokenizer, rule, calibration_file=path)
    read = task_features if server.task else text_features
    inputs = read(server, path).dense()
    size = server.encoder.config.batch_size
    rows = min(len(inputs["input_ids"]), CALIBRATION_ROWS)
    require(
        rows >= size,
        "`calibration_file` must contain at least `batch_size` examples.",
        batch_size=size,
        calibration_file=path,
    )
    positions = {
        spec.name: np.ones(spec.shape, np.int32)  # any position suffices
        for spec in server.number_inputs[3:]
    }
    return [
        {k: x[end - size : end] for k, x in inputs.items()} | positions
        for end in range(size, rows + 1, size)
    ]


def fixed(config: ServingConfig) -> ServingConfig:
    """Return settings with fixed shapes, by default for one text."""
    size = config.batch_size or 1
    return dataclasses.replace(config, fixed_length=True, batch_size=size)


def convert(server: ServedModel, config) -> bytes:
    """Convert a `ServedModel` to a LiteRT file with the outputs of `numbers`.

    Args:
      server: the server, with fixed shapes.
      config: the `ExportConfig`, with a `precision` and, for "int8", a
        `calibration_file` that contains the task's examples, or text.
    """
    precision, specs = config.precision, server.number_inputs
    is_int8 = precision == "int8"
    if "int8" in precision:
        require_quantizer(precision)
    # With "dynamic_int8", only embedding tables need ranges; any ids suffice.
    examples = [{spec.name: np.zeros(spec.shape, np.int32) for spec in specs}]
    if is_int8:
        examples = calibration_examples(server, config.calibration_file)
    root = tf.Module()
    root.weights = server.weights
    numbers = tf.function(server.numbers, autograph=False)
    signature = numbers.get_concrete_function(**{x.name: x for x in specs})
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(root, folder, signature)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        if precision == "float16":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.target_spec.supported_types = [tf.float16]
        content = converter.convert()
    if "int8" in precision:
        return quantized(content, examples, is_int8)
    return content


def open_file(path: str) -> Callable[..., dict[str, np.ndarray]]:
    """Return a function that computes a file's outputs from named arrays."""
    interpreter = tf.lite.Interpreter  # TensorFlow contains a copy of LiteRT
    if is_installed("ai_edge_litert"):
        from ai_edge_litert.interpreter import Interpreter as interpreter

    opened = interpreter(path)
    opened.allocate_tensors()
    return opened.get_signature_runner()
