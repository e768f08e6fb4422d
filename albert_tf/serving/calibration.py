"""Inputs of a model from the user's own text, to measure a model with.

Shapes: B batch, T tokens.
"""

from collections.abc import Iterator

import numpy as np

from albert_tf.base.errors import InputError, require
from albert_tf.data import file_kinds
from albert_tf.serving.server import Server
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


def features(server: Server, path: str) -> Features:
    """Return the inputs that a file gives: the task's own, or lines of text."""
    rule = "`calibration_file` needs a model directory with a tokenizer."
    require(server.encoder.tokenizer, rule, calibration_file=path)
    read = task_features if server.task else text_features
    return read(server, path)


def batches(
    features: Features, batch_size: int, most: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield inputs [B, T] of the first rows; the last batch may be short."""
    inputs = {name: rows[:most] for name, rows in features.dense().items()}
    for start in range(0, len(inputs["input_ids"]), batch_size):
        yield {k: x[start : start + batch_size] for k, x in inputs.items()}
