"""Verification of an export against the Python model, in the export's engine.

Shapes: B batch, T tokens, P masks per text, C choices.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.base.errors import InputError, first_line, require
from albert_tf.serving.server import BASIC, ServedModel
from albert_tf.text.packing import INPUTS

Arrays = dict[str, np.ndarray]

DEFAULT_ROWS, DEFAULT_TOKENS, DEFAULT_MASKS = 2, 16, 3

GARDEN = "The small garden lies behind the old house."
TEXTS: dict[str, Any] = {
    "text": GARDEN,
    "text_pair": "Its gate was open.",
    "question": "Where is the garden?",
    "context": GARDEN,
    "choices": ["behind the old house", "by the sea", ""],
}
MASKED = "The small [MASK] lies behind the old house."

# The largest difference allowed, as a share of the largest number in an output
# or of 1, whichever is larger. Because 8-bit models lose precision, their limit
# rejects only outputs that are unrelated to the outputs of the Python model.
LIMITS = {
    "float32": 1e-3,
    "bfloat16": 0.1,
    "float16": 0.1,
    "dynamic_int8": 1.0,
    "int8": 1.0,
}

NONE = 1e5  # larger numbers mark a missing answer


class Difference(NamedTuple):
    """The largest difference between an export and the Python model."""

    size: float
    share: float  # relative to the output's largest number or 1; see `LIMITS`
    output: str


def id_batch(server: ServedModel) -> Arrays:
    """Return random model inputs [B, T], with rows of different lengths."""
    rng = np.random.default_rng(0)
    config = server.encoder.albert.config
    default_length = min(DEFAULT_TOKENS, server.encoder.config.max_seq_length)
    ids, _, _, *extra_specs = server.number_inputs
    rows, length = ids.shape[0] or DEFAULT_ROWS, ids.shape[1] or default_length
    columns = np.arange(length) + np.zeros([rows, 1], int)  # [B, T]
    lengths = length - np.arange(rows)[:, None] % (length // 2 + 1)
    mask = columns < lengths
    segments = mask & (columns >= length // 2) & (config.type_vocab_size > 1)
    values = rng.integers(config.vocab_size, size=[rows, length]) * mask
    inputs = dict(zip(INPUTS, (values, mask, segments), strict=True))
    for spec in extra_specs:
        shape = [rows, spec.shape[1] or DEFAULT_MASKS]
        inputs[spec.name] = rng.integers(length, size=shape)
    return {name: x.astype(np.int32) for name, x in inputs.items()}


def requests(server: ServedModel) -> dict[str, Arrays]:
    """Return requests {signature: inputs} for the signatures not in `BASIC`.

    The default signature is included and comes first, even if it is in `BASIC`.
    For a model without text input, `ids` is the only signature.
    """
    if not server.encoder.takes_text:
        batch = id_batch(server)
        return {"ids": {name: batch[name] for name in INPUTS}}
    rows = server.encoder.config.batch_size or 1
    specific = [name for name in server.signatures if name not in BASIC]
    batches = {}
    for name in dict.fromkeys([server.default, *specific]):
        texts = TEXTS | ({"text": MASKED} if name == "fill_mask" else {})
        names = [spec.name for spec in server.signatures[name].inputs]
        batches[name] = {k: np.array([texts[k]] * rows, object) for k in names}
    return batches


def difference(
    name: str, actual: np.ndarray, expected: np.ndarray
) -> Difference:
    """Return the largest difference in an output; NaN counts as infinity."""
    require(
        actual.shape == expected.shape,
        f"The output `{name}` must have the same shape as in Python, "
        f"{list(expected.shape)}.",
        shape=list(actual.shape),
    )
    expected = expected.astype(np.float64)
    sizes = np.abs(expected)
    # Markers of missing answers are compared relative to their size.
    units = np.where(sizes < NONE, 1.0, sizes)
    with np.errstate(invalid="ignore"):  # from two infinite numbers
        gaps = np.where(
            actual == expected, 0.0, np.abs(actual - expected) / units
        )
    size = float(gaps.max(initial=0.0))
    size = size if np.isfinite(size) else float("inf")
    scale = sizes[sizes < NONE].max(initial=1.0)
    return Difference(size, size / scale, name)


def differences(actual: Arrays, expected: Arrays) -> Iterator[Difference]:
    """Yield the difference of each floating-point output.

    Integers and texts are derived from these outputs and may differ if two
    scores are almost equal.
    """
    missing = sorted(expected.keys() - actual.keys())
    rule = "The export must have every output of the Python model."
    require(not missing, rule, missing=", ".join(missing))
    for name, values in expected.items():
        if values.dtype.kind == "f":
            yield difference(name, actual[name], values)


def arrays(tensors: dict[str, tf.Tensor]) -> Arrays:
    """Return tensors as NumPy arrays."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def tensors(values: Arrays) -> dict[str, tf.Tensor]:
    """Return arrays as tensors."""
    return {name: tf.constant(x) for name, x in values.items()}


def file_differences(
    server: ServedModel, run: Callable[..., Arrays]
) -> Iterator[Difference]:
    """Yield the differences for a file, whose outputs `run` computes."""
    inputs = id_batch(server)
    expected = arrays(server.numbers(**tensors(inputs)))
    yield from differences(run(**inputs), expected)


def saved_model(server: ServedModel, folder: str) -> Iterator[Difference]:
    """Yield the differences for a SavedModel, given ids and `requests`."""
    loaded = tf.saved_model.load(folder)  # the reference keeps variables alive
    signatures = loaded.signatures
    ids = id_batch(server)
    ids = tensors({name: ids[name] for name in INPUTS})
    expected = arrays(server.numbers(**ids))
    yield from differences(arrays(signatures["ids"](**ids)), expected)
    for name, values in requests(server).items():
        request = tensors(values)
        expected = arrays(server.call(name, *request.values()))
        actual = arrays(signatures[name](**request))
        yield from differences(actual, expected)


class Engine(NamedTuple):
    """An engine that runs exports.

    Attributes:
      title: the engine's name in messages.
      differences: a function that yields the differences between the export in
        a folder and a `ServedModel`.
    """

    title: str
    differences: Callable[[ServedModel, str], Iterator[Difference]]


def verify(
    server: ServedModel, folder: str, engine: Engine, precision: str
) -> Difference:
    """Run an export in its engine; return the largest difference from Python.

    Raises:
      InputError: if the engine cannot run the export, or the difference is too
        large.
    """
    rule = f"{engine.title} must run the export and agree with the Python model"
    try:
        results = list(engine.differences(server, folder))
    except Exception as error:  # any error that the engine raises
        raise InputError(
            f"{rule}; nothing was written. Received: {first_line(error)}"
        ) from error
    worst = max(results, key=lambda difference: difference.share)
    require(
        worst.share <= LIMITS[precision],
        f"{rule}; nothing was written.",
        precision=precision,
        largest_difference=f"{worst.size:.1e} in {worst.output}",
    )
    return max(results)
