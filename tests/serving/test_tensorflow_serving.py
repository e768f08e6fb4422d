"""Files for TensorFlow Serving, and changes that operators make."""

import types

import numpy as np
import pytest
import tensorflow as tf
from exporting import strings

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.data.records import tfrecord
from albert_tf.serving import tensorflow_serving
from albert_tf.serving.tensorflow_serving import (
    BATCHING,
    WARM_UP,
    ask,
    batching,
    warm_up_records,
    write_files,
)

HELLO = {"text": np.array([b"hello"], object)}


def field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field in the protobuf wire format."""
    return bytes([number << 3 | 2, len(content)]) + content


def test_a_request_has_the_bytes_of_tensorflow_servings_message():
    """A request has the bytes of a PredictionLog encoded by hand."""
    # The type (field 1) is string (7); the shape (field 2) is one dimension, 1.
    tensor = b"\x08\x07" + field(2, field(2, b"\x08\x01")) + field(8, b"hello")
    request = field(1, field(3, b"classify"))
    request += field(2, field(1, b"text") + field(2, tensor))
    wanted = field(6, field(1, request))
    (record,) = warm_up_records({"classify": HELLO})
    mark = record.removesuffix(wanted)
    assert mark == field(1, field(1, field(1, mark[6:])))
    assert mark[6:].startswith(b"albert_tf ")


@pytest.mark.slow
def test_an_export_answers_its_own_requests(exported_dir, signatures):
    """Each request warms up one signature, beginning with the default."""
    names = []

    def watch(name):
        def run(**inputs):
            names.append(name)
            return signatures[name](**inputs)

        inputs = signatures[name].structured_input_signature
        run.structured_input_signature = inputs
        return run

    watched = {name: watch(name) for name in signatures}
    for record in tfrecord.read(f"{exported_dir}/{WARM_UP}"):
        ask(watched, record)
    assert names == ["text", "fill_mask", "sentence_order"]
    text = files.read_text(f"{exported_dir}/{BATCHING}", "it")
    assert text == batching(None)


def test_the_batching_parameters_are_those_that_were_measured():
    """A fixed batch size is the maximum and the only size allowed."""
    assert batching(None) == (
        "max_batch_size { value: 32 }\n"
        "batch_timeout_micros { value: 1000 }\n"
        "num_batch_threads { value: 2 }\n"
        "max_enqueued_batches { value: 100 }\n"
    )
    fixed = batching(None).replace("32", "8")
    assert batching(8) == f"{fixed}allowed_batch_sizes: 8\n"


class Echo(tf.Module):
    """A SavedModel with one signature."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def classify(self, text):
        return {"label": text}


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    """Return the folder of a SavedModel that accepts texts."""
    folder = tmp_path_factory.mktemp("echo")
    module = Echo()
    names = "classify", "serving_default"
    signatures = dict.fromkeys(names, module.classify)
    tf.saved_model.save(module, str(folder), signatures)
    return folder


@pytest.fixture
def write(echo, monkeypatch):
    """Return a function that writes files into the folder `echo`."""
    monkeypatch.setattr(
        tensorflow_serving, "requests", lambda _: {"classify": HELLO}
    )

    def write(earlier, rows=None):
        config = types.SimpleNamespace(batch_size=rows)
        encoder = types.SimpleNamespace(config=config)
        server = types.SimpleNamespace(encoder=encoder)
        return write_files(server, str(echo), str(earlier))

    return write


def requests_of(signature, *names):
    """Return a record that an operator could add to a warm-up file."""
    inputs = {name: np.array([b"mine"], object) for name in names}
    (record,) = warm_up_records({signature: inputs})
    log = tensorflow_serving.make_message("PredictionLog").FromString(record)
    log.ClearField("log_metadata")
    return log.SerializeToString()


def write_warm_up(folder, records):
    """Write the warm-up file of an earlier export."""
    (folder / "assets.extra").mkdir()
    tfrecord.write(f"{folder}/{WARM_UP}", records)


def test_an_operators_files_are_kept(echo, write, tmp_path):
    """A new export keeps requests and parameters that an operator changed."""
    assert write(tmp_path / "none") == []
    assert [*tfrecord.read(f"{echo}/{WARM_UP}")] == warm_up_records(
        {"classify": HELLO}
    )
    mine = [requests_of("classify", "text")] * 3
    write_warm_up(tmp_path, mine)
    parameters = batching(None).replace("32", "64")
    (tmp_path / BATCHING).write_text(parameters)
    assert write(tmp_path) == [WARM_UP, BATCHING]
    assert [*tfrecord.read(f"{echo}/{WARM_UP}")] == mine
    assert (echo / BATCHING).read_text() == parameters


GENERATED = warm_up_records({"classify": HELLO, "serving_default": HELLO})


@pytest.mark.parametrize(
    "records",
    [
        [],
        GENERATED * 2,
        GENERATED[:1],
        GENERATED[::-1],
        [record.replace(b"hello", b"other") for record in GENERATED],
        [GENERATED[0], requests_of("classify", "text")],
    ],
)
def test_a_changed_warm_up_file_is_kept(echo, write, tmp_path, records):
    """A file that is empty or differs from a generated file is kept."""
    write_warm_up(tmp_path, records)
    assert write(tmp_path) == [WARM_UP]
    assert [*tfrecord.read(f"{echo}/{WARM_UP}")] == records


def test_every_request_of_a_changed_file_must_be_answered(write, tmp_path):
    """A changed file must not contain generated requests that now fail."""
    write_warm_up(tmp_path, warm_up_records({"answer": HELLO}) * 2)
    with pytest.raises(InputError, match="request 0: .*no signature `answer`"):
        write(tmp_path)


@pytest.mark.parametrize("rows", [None, 8])
def test_files_of_an_export_are_replaced(rows, echo, write, tmp_path):
    """The generated requests and parameters of an old export are replaced."""
    records = warm_up_records({"answer": HELLO})
    write_warm_up(tmp_path, records)
    (tmp_path / BATCHING).write_text(batching(rows))
    assert write(tmp_path, 4) == []
    assert [*tfrecord.read(f"{echo}/{WARM_UP}")] != records
    text = (echo / BATCHING).read_text()
    assert "max_batch_size { value: 4 }" in text
    assert "allowed_batch_sizes: 4" in text


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (requests_of("answer", "text"), "no signature `answer`"),
        (requests_of("classify", "question"), "1: .*be text. .*=question"),
        (requests_of("classify", ""), "request 1: .*be text. .*inputs="),
        (requests_of("classify"), "request 1: .*be text. .*inputs="),
        (requests_of("classify", "a", "text"), "1: .*text. .*inputs=a, text"),
        (b"\xff\xff no message", "request 1: "),
    ],
)
def test_a_request_that_fails_stops_the_export(record, reason, write, tmp_path):
    """An error names a warm-up file that a server could not replay."""
    write_warm_up(tmp_path, [requests_of("classify", "text"), record])
    with pytest.raises(InputError, match=f"warm-up file.*{reason}"):
        write(tmp_path)


SIXTEEN = batching(16).replace("1000", "500")


@pytest.mark.parametrize(
    ("content", "rows", "reason"),
    [
        (SIXTEEN, 16, None),
        (SIXTEEN, None, None),
        (f"{SIXTEEN}pad_variable_length_inputs: true\n", 16, None),
        (SIXTEEN, 4, r"must be 4; .*max_batch_size=16, .*sizes=\[16\]"),
        (f"{SIXTEEN}allowed_batch_sizes: 32\n", 16, r"sizes=\[16, 32\]"),
        (batching(None).replace("32", "8"), 8, r"must be 8; .*sizes=\[\]"),
        ("max_batch_size { value: 8", None, "protocol buffer; correct.*pbtxt"),
        ("# nothing", 8, "max_batch_size=0"),
    ],
)
def test_kept_parameters_suit_the_model(content, rows, reason, write, tmp_path):
    """An operator's parameters must allow only the batch size of the model.

    If the model accepts any batch size, the parameters may allow any. The
    parameters must be a protocol buffer; fields of newer servers are legal.
    """
    (tmp_path / BATCHING).write_text(content)
    if reason is None:
        assert write(tmp_path, rows) == [BATCHING]
        return
    with pytest.raises(InputError, match=f"earlier export must.*{reason}"):
        write(tmp_path, rows)


def test_a_request_is_answered():
    """`ask` passes the recorded strings to the signature."""
    found = []

    def classify(text):
        found.append(text.numpy().tolist())

    classify.structured_input_signature = (), {"text": None}
    ask({"classify": classify}, requests_of("classify", "text"))
    assert found == [[b"mine"]] and strings(["a"]).dtype == tf.string


def test_requests_of_earlier_exports_are_generated():
    """Files of earlier versions, marked without a hash, are recognized."""
    log = tensorflow_serving.make_message("PredictionLog")()
    log.log_metadata.model_spec.name = tensorflow_serving.AUTHOR
    records = [log.SerializeToString()]
    assert tensorflow_serving.is_generated(records * 2)
    assert tensorflow_serving.is_generated(tensorflow_serving.marked([log]))
    log.log_metadata.model_spec.name = "operator"
    assert not tensorflow_serving.is_generated([log.SerializeToString()])
    assert not tensorflow_serving.is_generated([])
