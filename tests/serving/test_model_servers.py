"""Servers of model directories, and their errors."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from exporting import close, copied, loaded, of_kind, server_of, written

from albert_tf.base.errors import InputError
from albert_tf.model.albert import AlbertForPretraining, AlbertModel
from albert_tf.model.config import AlbertConfig
from albert_tf.serving import verification
from albert_tf.serving.export import ExportConfig
from albert_tf.serving.server import load_server
from albert_tf.serving.signatures import ServingConfig
from albert_tf.text.packing import INPUTS
from albert_tf.training import checkpoints


def test_foreign_weights_are_refused(
    pretrained_dir, pretrained_model, tmp_path
):
    """The error names an unexpected head or a missing weight."""
    folder = copied(pretrained_dir, tmp_path / "model")
    weights = checkpoints.named_variables(pretrained_model)
    extra = weights | {"classifier/bias": tf.Variable([0.0])}
    checkpoints.save(folder, extra)
    with pytest.raises(InputError, match="unexpected classifier/bias"):
        server_of(folder)
    del weights["albert/pooler/bias"]
    checkpoints.save(folder, weights)
    with pytest.raises(InputError, match="missing albert/pooler/bias"):
        server_of(folder)


def test_bfloat16_models_are_served_in_float32(pretrained_dir, tmp_path):
    """Servers compute in float32, regardless of the training precision."""
    folder = copied(pretrained_dir, tmp_path / "model")
    config = AlbertConfig.from_model_dir(folder)
    trained = AlbertForPretraining(config, dtype="mixed_bfloat16")
    checkpoints.save(folder, checkpoints.named_variables(trained))
    plain = AlbertModel(config)
    plain.build()
    checkpoints.restore_weights(plain, folder, only=("albert/",))
    server = server_of(folder)
    ids = tf.constant([[2, 7, 8, 3]])
    found = server.call("ids", ids, tf.ones_like(ids), tf.zeros_like(ids))
    wanted = plain(ids, tf.ones_like(ids), tf.zeros_like(ids))
    close(found["sequence_output"], wanted["sequence_output"])


KINDS = (
    *("pretrained", "question_answering", "classification", "regression"),
    *("embedding", "multiple_choice", "token_classification"),
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_models_are_served_in_bfloat16(kind, pretrained_dir, tmp_path):
    """On request, models compute in bfloat16 and return float32."""
    folder = pretrained_dir
    if kind != "pretrained":
        folder = tmp_path / "m"
        of_kind(kind, folder, pretrained_dir)
    check_bfloat16(folder)


def test_other_formats_do_not_compute_in_bfloat16():
    """Among the export formats, only a SavedModel can compute in bfloat16."""
    for to, legal in (("onnx", "float32"), ("litert", "float32 or float16 or")):
        with pytest.raises(InputError, match=f"{legal}.* for to={to}"):
            ExportConfig("model", "out", to=to, precision="bfloat16")


@pytest.mark.slow
def test_an_export_computes_in_bfloat16(pretrained_dir, tmp_path, capsys):
    """In bfloat16, a SavedModel and its server have equal outputs.

    The printed difference is the difference from float32.
    """
    out = written(pretrained_dir, tmp_path / "o", precision="bfloat16")
    values = map(tf.constant, ([[2, 9, 0]], [[1, 1, 0]], [[0, 1, 0]]))
    inputs = dict(zip(INPUTS, values, strict=True))
    found = loaded(out)["ids"](**inputs)["sequence_output"]
    config = ServingConfig(max_seq_length=12)
    servers = [
        load_server(str(pretrained_dir), config, policy)
        for policy in ("mixed_bfloat16", "float32")
    ]
    half, exact = (
        server.call("ids", *inputs.values())["sequence_output"]
        for server in servers
    )
    close(found, half)
    assert np.abs(found - exact).max() > 1e-4
    _, printed = capsys.readouterr().out.split("from the Python model: ")
    assert float(printed.split(",")[0]) > 1e-4


def check_bfloat16(folder):
    """Compare a model's signatures in bfloat16 with those in float32."""
    config = ServingConfig(max_seq_length=12)
    exact = load_server(str(folder), config)
    server = load_server(str(folder), config, "mixed_bfloat16")
    requests = verification.requests(exact)
    for name in ("embed", "attention"):
        specs = exact.signatures[name].inputs
        requests[name] = {
            spec.name: np.array([verification.TEXTS[spec.name]], object)
            for spec in specs
        }
    for name, request in requests.items():
        values = verification.tensors(request).values()
        wanted = verification.arrays(exact.call(name, *values))
        found = verification.arrays(server.call(name, *values))
        assert {k: x.dtype for k, x in found.items()} == {
            k: x.dtype for k, x in wanted.items()
        }
        shares = [x.share for x in verification.differences(found, wanted)]
        assert 0 < max(shares) < 0.05


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_seq_length": 25}, "at most.*24.*Received: max_seq_length=25"),
        ({"max_seq_length": 2}, "max_seq_length.*at least 3"),
        ({"batch_size": 0}, "batch_size.*at least 1"),
        ({"top_k": 0}, "top_k.*at least 1"),
        ({"top_k": 151}, "top_k.*150.*Received: top_k=151"),
    ],
)
def test_impossible_settings_are_refused(pretrained_dir, values, message):
    """An error for a setting that is out of range states the limit."""
    with pytest.raises(InputError, match=message):
        server_of(pretrained_dir, **values)


def test_a_tokenizer_larger_than_the_model_is_refused(pretrained_dir, tmp_path):
    """A tokenizer with more pieces than embeddings raises an error."""
    folder = copied(pretrained_dir, tmp_path / "model")
    config = AlbertConfig.from_model_dir(folder)
    dataclasses.replace(config, vocab_size=149).save(folder)
    with pytest.raises(InputError, match="pieces=150, vocab_size=149"):
        server_of(folder)
