"""Eight bits for a LiteRT file, by the quantizer of the LiteRT project.

Tables and products with weights have 8 bits. The rest, the products of
attention, softmax, norms and sums, has no weights: 8 bits would make it slower
and cannot hold the bias of padding beside scores.
"""

import contextlib
import importlib.util
import io
import os
import re
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from albert_tf.base.errors import require


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
