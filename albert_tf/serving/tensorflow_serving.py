"""TensorFlow Serving's files for a SavedModel: warm-up and batching.

The package `tensorflow-serving-api` defines the request messages, but this
module does not need the package.
"""

import functools
import hashlib
import os
import re

import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.framework import tensor_pb2

from albert_tf.base import files
from albert_tf.base.errors import InputError, first_line, input_errors, require
from albert_tf.data.records import tfrecord
from albert_tf.serving.server import ServedModel
from albert_tf.serving.verification import Arrays, requests, tensors

WARM_UP = files.join("assets.extra", "tf_serving_warmup_requests")
BATCHING = "batching_params.pbtxt"
FILES = (WARM_UP, BATCHING)

# The first three values were chosen by measurement; see docs/experiments.md.
BATCH_ROWS = 32
WAIT_MICROSECONDS = 1000
BATCH_THREADS = 2
WAITING_BATCHES = 100

AUTHOR = "albert_tf"  # marks a file that an export wrote; see `marked`

# The fields of the messages in `tensorflow_serving/apis` that are used here. A
# tensor is stored as the bytes of its own message.
MESSAGES = {
    "ModelSpec": ["string name = 1", "string signature_name = 3"],
    "Input": ["string key = 1", "bytes value = 2"],
    "PredictRequest": ["ModelSpec model_spec = 1", "repeated Input inputs = 2"],
    "PredictLog": ["PredictRequest request = 1"],
    "LogMetadata": ["ModelSpec model_spec = 1"],
    "PredictionLog": [
        "LogMetadata log_metadata = 1",
        "PredictLog predict_log = 6",
    ],
    "Int64Value": ["int64 value = 1"],
    "BatchingParameters": [
        "Int64Value max_batch_size = 1",
        "repeated int64 allowed_batch_sizes = 6",
    ],
}


@functools.cache
def make_message(name: str) -> type:
    """Return the class of a message in `MESSAGES`."""
    return tfrecord.message_class(MESSAGES, name)


def marked(logs: list) -> list[bytes]:
    """Serialize `PredictionLog`s, and mark each with a hash of all requests."""
    content = [log.predict_log.SerializeToString() for log in logs]
    mark = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    for log in logs:
        log.log_metadata.model_spec.name = f"{AUTHOR} {mark}"
    return [log.SerializeToString() for log in logs]


def warm_up_records(inputs_by_signature: dict[str, Arrays]) -> list[bytes]:
    """Serialize requests {signature: inputs} for a warm-up file."""
    make, logs = make_message("PredictionLog"), []
    for signature, inputs in inputs_by_signature.items():
        log = make()
        request = log.predict_log.request
        request.model_spec.signature_name = signature
        for name, tensor in tensors(inputs).items():
            value = tf.make_tensor_proto(tensor).SerializeToString()
            request.inputs.add(key=name, value=value)
        logs.append(log)
    return marked(logs)


def is_generated(records: list[bytes]) -> bool:
    """Return whether an export wrote exactly these records of a warm-up file.

    The hash from `marked` identifies such records. Records of earlier versions,
    which contain `AUTHOR` without a hash, always count as written by an export.
    """
    try:
        logs = [*map(make_message("PredictionLog").FromString, records)]
    except DecodeError:
        return False
    names = {log.log_metadata.model_spec.name for log in logs}
    return names == {AUTHOR} or bool(logs) and records == marked(logs)


def ask(signatures, record: bytes) -> None:
    """Run a request from a warm-up file."""
    log = make_message("PredictionLog").FromString(record)
    request = log.predict_log.request
    name = request.model_spec.signature_name or "serving_default"
    require(name in signatures, f"there is no signature `{name}`")
    protos = {
        x.key: tensor_pb2.TensorProto.FromString(x.value)
        for x in request.inputs
    }
    expected = signatures[name].structured_input_signature[1]
    rule = f"the inputs of `{name}` must be {', '.join(sorted(expected))}."
    require(
        protos.keys() == expected.keys(), rule, inputs=", ".join(sorted(protos))
    )
    values = {k: tf.constant(tf.make_ndarray(x)) for k, x in protos.items()}
    signatures[name](**values)


def check_warm_up(path: str, folder: str) -> None:
    """Raise an error unless a new model answers all requests of a file.

    Otherwise, a server would fail to load the new model.

    Args:
      path: an operator's warm-up file.
      folder: the new export.
    """
    loaded = tf.saved_model.load(folder)  # the reference keeps variables alive
    for number, record in enumerate(tfrecord.read(path)):
        try:
            ask(loaded.signatures, record)
        except (ValueError, TypeError, DecodeError, tf.errors.OpError) as error:
            raise InputError(
                "The new model must answer every request in the warm-up file "
                "of the earlier export; correct or remove the file. "
                f"Received: {path}, request {number}: {first_line(error)}"
            ) from None


def batching(rows: int | None) -> str:
    """Return the batching parameters, as the text of their file.

    Args:
      rows: the export's batch size, or None if any size is accepted.
    """
    lines = [
        f"max_batch_size {{ value: {rows or BATCH_ROWS} }}",
        f"batch_timeout_micros {{ value: {WAIT_MICROSECONDS} }}",
        f"num_batch_threads {{ value: {BATCH_THREADS} }}",
        f"max_enqueued_batches {{ value: {WAITING_BATCHES} }}",
    ]
    if rows:
        lines.append(f"allowed_batch_sizes: {rows}")
    return "\n".join(lines) + "\n"


def is_edited(path: str) -> bool:
    """Return whether a file differs from every output of `batching`."""
    content = files.read_text(path, BATCHING)
    rows = re.search(r"^allowed_batch_sizes: (\d+)$", content, re.M)
    return content != batching(int(rows[1]) if rows else None)


def check_batching(path: str, rows: int | None) -> None:
    """Raise an error unless batching parameters suit a new model.

    Args:
      path: an operator's file. Only the fields in `MESSAGES` are checked.
      rows: the new model's batch size, or None if it accepts any size.
    """
    content = files.read_text(path, BATCHING)
    change = "correct or remove the file"
    rule = f"{BATCHING} of the earlier export must be a text-format protocol "
    rule += f"buffer; {change}"
    with input_errors(text_format.ParseError, rule, path=path):
        parameters = text_format.Parse(
            content,
            make_message("BatchingParameters")(),
            allow_unknown_field=True,
        )
    sizes = parameters.max_batch_size.value, [*parameters.allowed_batch_sizes]
    require(
        rows is None or sizes == (rows, [rows]),
        f"{BATCHING} of the earlier export must allow only the batch size of "
        f"the new model: `max_batch_size` and `allowed_batch_sizes` must be "
        f"{rows}; {change}.",
        batching_params=path,
        max_batch_size=sizes[0],
        allowed_batch_sizes=sizes[1],
    )


def edited_files(folder: str) -> list[str]:
    """Return the names in `FILES` of files that an operator changed.

    Args:
      folder: an export; the folder need not exist.
    """
    paths = {name: files.join(folder, name) for name in FILES}
    paths = {name: path for name, path in paths.items() if files.exists(path)}
    edited = []
    if WARM_UP in paths and not is_generated([*tfrecord.read(paths[WARM_UP])]):
        edited.append(WARM_UP)
    if BATCHING in paths and is_edited(paths[BATCHING]):
        edited.append(BATCHING)
    return edited


def write_files(server: ServedModel, folder: str, earlier: str) -> list[str]:
    """Write `FILES` to an export; return the names of copied files.

    A file that an operator changed in the earlier export is copied, and must
    suit the new model.

    Args:
      server: the exported model.
      folder: the new export.
      earlier: the export to replace; the folder need not exist.
    """
    warm_up, parameters = (files.join(folder, name) for name in FILES)
    files.make_folder(os.path.dirname(warm_up))
    tfrecord.write(warm_up, warm_up_records(requests(server)))
    rows = server.encoder.config.batch_size
    files.write_text(parameters, batching(rows))
    edited = edited_files(earlier)
    if WARM_UP in edited:
        check_warm_up(files.join(earlier, WARM_UP), folder)
    if BATCHING in edited:
        check_batching(files.join(earlier, BATCHING), rows)
    for name in edited:
        files.copy(files.join(earlier, name), files.join(folder, name))
    return edited
