"""An export is deleted if its engine cannot run it correctly."""

import dataclasses
import os
import re
import types

import numpy as np
import pytest
import tensorflow as tf
import tiny
from exporting import close, written

from albert_tf.base.errors import InputError
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import ACTIVATIONS, erf_gelu
from albert_tf.serving import export, onnx_file, server, verification
from albert_tf.serving.signatures import ServingConfig
from albert_tf.text.packing import INPUTS
from albert_tf.training import checkpoints

pytest.importorskip("ai_edge_litert")
pytest.importorskip("tf2onnx")


def write_model(folder, **changes):
    """Write a model directory without a tokenizer."""
    config = dataclasses.replace(
        tiny.CONFIG, num_hidden_layers=1, initializer_range=0.5, **changes
    )
    model = AlbertForPretraining(config)
    os.makedirs(folder)
    config.save(str(folder))
    checkpoints.save(str(folder), checkpoints.named_variables(model))


QUICK = {("gelu_erf", "onnx"), ("gelu_erf", "litert")}


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("activation", "to"),
    [
        pytest.param(x, to, marks=() if (x, to) in QUICK else pytest.mark.slow)
        for x in ACTIVATIONS
        for to in export.FORMATS
    ],
)
def test_every_activation_runs_everywhere(activation, to, tmp_path, capsys):
    """For each activation, every engine computes the Python model's outputs."""
    write_model(tmp_path / "model", hidden_act=activation)
    written(tmp_path / "model", tmp_path / "out", to=to)
    printed = capsys.readouterr().out
    size = re.search(r"Largest difference from the .*: (\S+), in", printed)
    assert float(size[1]) <= 1e-5


def test_the_erf_form_is_that_of_tensorflow():
    """Our erf form of GELU agrees with TensorFlow's, even in bfloat16."""
    x = tf.constant(np.linspace(-30, 30, 6001), tf.float32)
    wanted = tf.nn.gelu(x, approximate=False)
    close(erf_gelu(x), wanted, 1e-6)
    half = erf_gelu(tf.cast(x, tf.bfloat16))
    gaps = np.abs(tf.cast(half, tf.float32) - wanted)
    assert half.dtype == tf.bfloat16 and (gaps / (1 + np.abs(x))).max() < 0.01


def broken(server, config):
    """Return bytes that no engine can load."""
    return b"no model"


def shifted(server, config):
    """Return the bytes of an ONNX file with changed weights."""
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
    """An export that fails or differs is removed; an earlier one is kept."""
    write_model(tmp_path / "model")
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
    """A difference is relative to the largest absolute expected value.

    If that value is below 1, the difference is relative to 1. NaN and infinite
    values count as infinite differences.
    """
    wanted = np.array([1.0, -2.0], np.float32)
    got = verification.difference("x", np.array(found, np.float32), wanted)
    assert got == (size, share, "x")
    half, less = np.array([0.5], "f4"), np.array([0.25], "f4")
    assert verification.difference("x", half, less) == (0.25, 0.25, "x")
    assert verification.difference("x", half[:0], less[:0]) == (0.0, 0.0, "x")
    outputs = {"n": np.array([3]), "x": np.array(found, np.float32)}
    expected = {"n": np.array([4]), "x": wanted}
    assert [*verification.differences(outputs, expected)] == [got]
    more = {"z": half} | outputs
    assert [*verification.differences(more, expected)] == [got]
    with pytest.raises(InputError, match="must have every.*missing=z$"):
        next(verification.differences(outputs, expected | {"z": half}))


@pytest.mark.parametrize(
    ("precision", "share", "passes"),
    [
        ("float32", 1e-3, True),
        ("float32", 2e-3, False),
        ("bfloat16", 0.09, True),
        ("bfloat16", 0.2, False),
        ("float16", 0.09, True),
        ("float16", 0.2, False),
        ("dynamic_int8", 0.9, True),
        ("dynamic_int8", 1.5, False),
        ("int8", 0.9, True),
        ("int8", 1.5, False),
        ("int8", np.inf, False),
    ],
)
def test_how_much_a_precision_may_lose(precision, share, passes):
    """An export passes if its largest relative difference is small enough.

    The largest absolute difference is returned.
    """
    large = verification.Difference(3.0, 1e-5, "large")
    worst = verification.Difference(2 * share, share, "worst")

    def compare(server, folder):
        return iter([large, worst, verification.Difference(0.0, 0.0, "x")])

    engine = verification.Engine("LiteRT", compare)
    if passes:
        found = verification.verify(None, "out", engine, precision)
        assert found == max(large, worst)
        return
    with pytest.raises(InputError, match="LiteRT must run.* in worst$"):
        verification.verify(None, "out", engine, precision)


def test_each_precision_has_a_limit():
    """The limits on differences cover all precisions of all formats."""
    assert verification.LIMITS.keys() == set(export.PRECISIONS)


@pytest.mark.parametrize(
    ("message", "reason"),
    [("bad node\nat 3", "bad node"), ("", "RuntimeError")],
)
def test_the_first_line_of_an_engines_error_is_quoted(message, reason):
    """An engine's error is reduced to its first line, or else to its type."""

    def compare(server, folder):
        raise RuntimeError(message)

    engine = verification.Engine("ONNX", compare)
    with pytest.raises(
        InputError, match=f"ONNX must run.* Received: {reason}$"
    ):
        verification.verify(None, "out", engine, "float32")


SIGNATURES = {
    "ids": server.Signature([], None),
    "text": server.Signature([tf.TensorSpec([], name="text")], None),
    "fill_mask": server.Signature([tf.TensorSpec([], name="text")], None),
    "choose": server.Signature(
        [tf.TensorSpec([], name=n) for n in ("question", "choices")], None
    ),
}


def served(specs, rows=None, takes_text=True, length=20, **changes):
    """Return the parts of a server that verification reads."""
    albert = types.SimpleNamespace(
        config=dataclasses.replace(tiny.CONFIG, **changes)
    )
    config = ServingConfig(max_seq_length=length, batch_size=rows)
    encoder = types.SimpleNamespace(
        albert=albert, config=config, takes_text=takes_text
    )
    named = zip((*INPUTS, "mlm_positions"), specs, strict=False)
    return types.SimpleNamespace(
        encoder=encoder,
        default="text",
        number_inputs=[tf.TensorSpec(s, tf.int32, name) for name, s in named],
        signatures=SIGNATURES,
    )


@pytest.mark.parametrize(
    ("ids", "masks", "shape", "masks_shape"),
    [
        ([None, None], [None, None], (2, 16), (2, 3)),
        ([None, 5], [None, 8], (2, 5), (2, 8)),
        ([4, 3], [4, 7], (4, 3), (4, 7)),
    ],
)
def test_random_inputs_have_the_shapes_of_a_file(
    ids, masks, shape, masks_shape
):
    """Random inputs have a file's shapes; their rows have different lengths.

    The second half of each row is segment 1, if there are two segments.
    """
    found = verification.id_batch(served([ids] * 3 + [masks]))
    values, mask, segments, positions = found.values()
    assert values.shape == segments.shape == shape
    assert positions.shape == masks_shape and positions.max() < shape[1]
    lengths = [shape[1] - i % (shape[1] // 2 + 1) for i in range(shape[0])]
    half = shape[1] // 2
    for row, length in enumerate(lengths):
        assert mask[row].tolist() == [1] * length + [0] * (shape[1] - length)
        assert segments[row].tolist() == [0] * half + mask[row, half:].tolist()
    assert not values[mask == 0].any() and values.max() < 50
    assert len(np.unique(values[mask == 1])) > mask.sum() / 2
    short = verification.id_batch(served([[None, None]] * 3, length=7))
    assert short["input_ids"].shape == (2, 7)
    one = verification.id_batch(served([ids] * 3, type_vocab_size=1))
    assert set(one) == set(INPUTS) and not one["segment_ids"].any()


def test_each_signature_of_its_own_gets_a_request():
    """The first request is for the default signature, and others for heads.

    One of the choices is empty. Without a tokenizer, the only request is for
    `ids`.
    """
    found = verification.requests(served([[None, None]] * 3))
    assert list(found) == ["text", "fill_mask", "choose"]
    assert found["text"]["text"].tolist() == [verification.GARDEN]
    assert found["fill_mask"]["text"].tolist() == [verification.MASKED]
    assert found["choose"]["choices"].shape == (1, 3)
    assert "" in found["choose"]["choices"]
    found = verification.requests(served([[None, None]] * 3, rows=3))
    assert found["choose"]["choices"].shape == (3, 3)
    found = verification.requests(served([[2, 4]] * 3, takes_text=False))
    assert {k: list(x) for k, x in found.items()} == {"ids": list(INPUTS)}


def test_each_signature_is_compared(monkeypatch):
    """A SavedModel is compared with Python on ids and on every request."""

    def outputs(name, shift):
        return lambda *_, **__: {name: tf.constant([0.5 + shift])}

    model = served([[None, None]] * 3)
    names = ("ids", "text", "fill_mask", "choose")
    model.numbers = outputs("ids", 0.0)
    model.call = lambda name, *request: outputs(name, 0.0)()
    loaded = types.SimpleNamespace(
        signatures={name: outputs(name, 0.25) for name in names}
    )
    monkeypatch.setattr(tf.saved_model, "load", lambda folder: loaded)
    found = list(verification.saved_model(model, "out"))
    assert found == [(0.25, 0.25, name) for name in names]


def test_marks_of_missing_answers_hide_no_difference():
    """The placeholders -1e30 and -infinity hide no other differences."""
    wanted = np.array([0.0, -1e30, -np.inf], np.float32)
    found = np.array([0.5, -1e30, -np.inf], np.float32)
    assert verification.difference("x", found, wanted) == (0.5, 0.5, "x")
    found = np.array([0.0, 0.0, -np.inf], np.float32)
    assert verification.difference("x", found, wanted).share == 1.0
    found = np.array([0.0, -1e30, -3.0], np.float32)
    assert verification.difference("x", found, wanted).share == np.inf
    with pytest.raises(InputError, match="`x` must have"):
        verification.difference("x", found[:2], wanted)
