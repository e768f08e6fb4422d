"""An export is deleted if its engine cannot run it correctly."""

import dataclasses
import os

import numpy as np
import pytest
import tensorflow as tf
import tiny
from exporting import close, written

from albert_tf.base.errors import InputError
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import ACTIVATIONS
from albert_tf.serving import export, onnx_file, verification
from albert_tf.training import checkpoints

pytest.importorskip("ai_edge_litert")
pytest.importorskip("tf2onnx")

IDS = np.array([[2, 9, 10, 3], [2, 44, 3, 0]], np.int32)


def model_of(folder, **changes):
    """Write a model directory without a tokenizer; return the model."""
    config = dataclasses.replace(
        tiny.CONFIG, num_hidden_layers=1, initializer_range=0.5, **changes
    )
    model = AlbertForPretraining(config)
    os.makedirs(folder)
    config.save(str(folder))
    checkpoints.save(str(folder), checkpoints.named_variables(model))
    return model


def by_tensorflow(folder, inputs):
    """Return the outputs of a SavedModel."""
    signatures = tf.saved_model.load(folder).signatures
    return signatures["ids"](**{k: tf.constant(x) for k, x in inputs.items()})


def by_litert(folder, inputs):
    """Return a LiteRT file's outputs for each row."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(f"{folder}/model.tflite").get_signature_runner()
    shape = runner.get_input_details()["input_ids"]["shape"]
    masks = runner.get_input_details()["mlm_positions"]["shape"]
    rows = []
    for i in range(len(IDS)):
        row = {
            name: np.pad(x[i : i + 1], [(0, 0), (0, shape[1] - x.shape[1])])
            for name, x in inputs.items()
        }
        rows.append(runner(**row, mlm_positions=np.zeros(masks, np.int32)))
    return {k: np.concatenate([row[k] for row in rows]) for k in rows[0]}


def by_onnxruntime(folder, inputs):
    """Return an ONNX file's outputs under our names."""
    import onnxruntime

    session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
    names = {"input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    feed = {names.get(k, k): x.astype(np.int64) for k, x in inputs.items()}
    (pooled,) = session.run(["pooler_output"], feed)
    return {"pooled_output": pooled}


BY = {
    "saved_model": by_tensorflow,
    "litert": by_litert,
    "onnx": by_onnxruntime,
}
QUICK = {("gelu_erf", "onnx"), ("gelu_erf", "litert")}


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("activation", "to"),
    [
        pytest.param(x, to, marks=() if (x, to) in QUICK else pytest.mark.slow)
        for x in ACTIVATIONS
        for to in BY
    ],
)
def test_every_activation_runs_everywhere(activation, to, tmp_path, capsys):
    """Every engine computes Python's outputs; differences are printed."""
    model = model_of(tmp_path / "model", hidden_act=activation)
    out = written(tmp_path / "model", tmp_path / "out", to=to)
    assert (
        "Largest difference from the Python model: " in capsys.readouterr().out
    )
    inputs = {
        "input_ids": IDS,
        "input_mask": (IDS > 0).astype(np.int32),
        "segment_ids": 0 * IDS,
    }
    wanted = model.albert(*map(tf.constant, inputs.values()))["pooled_output"]
    close(BY[to](out, inputs)["pooled_output"], wanted)


def test_the_erf_form_is_that_of_tensorflow():
    """Our erf form of GELU equals TensorFlow's, even with 16 bits."""
    x = tf.constant(np.linspace(-30, 30, 6001), tf.float32)
    wanted = tf.nn.gelu(x, approximate=False)
    close(ACTIVATIONS["gelu_erf"](x), wanted, 1e-6)
    half = ACTIVATIONS["gelu_erf"](tf.cast(x, tf.bfloat16))
    gaps = np.abs(tf.cast(half, tf.float32) - wanted)
    assert half.dtype == tf.bfloat16 and (gaps / (1 + np.abs(x))).max() < 0.01


def broken(server, config):
    """Return bytes that no engine can load."""
    return b"no model"


def shifted(server, config):
    """Return an ONNX file with changed weights."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load_from_string(onnx_file.convert(server, config))
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.ndim == 2:
            tensor.CopyFrom(numpy_helper.from_array(values * 1.1, tensor.name))
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("to", "convert", "reason"),
    [
        ("onnx", broken, "ONNX Runtime must run.*Received: .*model.onnx"),
        ("litert", broken, "LiteRT must run.*Received: "),
        ("onnx", shifted, "ONNX Runtime must run.*largest_difference=.*in "),
    ],
)
def test_a_bad_export_is_not_left_behind(
    to, convert, reason, tmp_path, monkeypatch
):
    """A file that fails or is wrong is removed; an earlier file stays."""
    model_of(tmp_path / "model")
    (tmp_path / "out").mkdir()
    form = export.FORMATS[to]
    for name in (form.model, "albert_config.json"):
        (tmp_path / "out" / name).write_text("earlier")

    contents = []

    def converted(server, config):
        contents.append(contents[0] if contents else convert(server, config))
        return contents[0]

    def write(server, config, folder):
        export.write_file(form.model, converted, server, config, folder)

    monkeypatch.setitem(export.FORMATS, to, form._replace(write=write))
    for out in ("out", "new"):
        with pytest.raises(InputError, match=reason):
            written(tmp_path / "model", tmp_path / out, to=to)
    assert sorted(os.listdir(tmp_path)) == ["model", "out"]
    assert (tmp_path / "out" / form.model).read_text() == "earlier"


@pytest.mark.parametrize(
    ("found", "size", "share"),
    [
        ([1.0, -2.0], 0.0, 0.0),
        ([1.0, -2.5], 0.5, 0.25),
        ([1.5, -2.0], 0.5, 0.25),
        ([np.nan, -2.0], np.inf, np.inf),
        ([np.inf, -2.0], np.inf, np.inf),
    ],
)
def test_differences(found, size, share):
    """Differences are relative to the largest value, and NaN always differs."""
    wanted = np.array([1.0, -2.0], np.float32)
    got = verification.difference("x", np.array(found, np.float32), wanted)
    assert got == (size, share, "x")


@pytest.mark.parametrize(
    ("precision", "share", "passes"),
    [
        ("float32", 9e-4, True),
        ("float32", 2e-3, False),
        ("float16", 0.09, True),
        ("float16", 0.2, False),
        ("dynamic_int8", 0.9, True),
        ("int8", 0.9, True),
        ("int8", np.inf, False),
    ],
)
def test_how_much_a_precision_may_lose(precision, share, passes, monkeypatch):
    """An export passes if its largest relative difference is small enough.

    The largest absolute difference is returned.
    """
    large = verification.Difference(3.0, 1e-5, "large")
    worst = verification.Difference(2 * share, share, "worst")

    def compare(server, folder):
        return iter([large, worst, verification.Difference(0.0, 0.0, "x")])

    monkeypatch.setitem(verification.ENGINES, "litert", ("LiteRT", compare))
    if passes:
        found = verification.verify(None, "out", "litert", precision)
        assert found == max(large, worst)
        return
    with pytest.raises(InputError, match="LiteRT must run.* in worst$"):
        verification.verify(None, "out", "litert", precision)


def test_marks_of_missing_answers_hide_no_difference():
    """The placeholders -1e30 and infinity hide no other differences."""
    wanted = np.array([0.0, -1e30, -np.inf], np.float32)
    found = np.array([0.5, -1e30, -np.inf], np.float32)
    assert verification.difference("x", found, wanted) == (0.5, 0.5, "x")
    found = np.array([0.0, 0.0, -np.inf], np.float32)
    assert verification.difference("x", found, wanted).share == 1.0
    with pytest.raises(InputError, match="`x` must have"):
        verification.difference("x", found[:2], wanted)
