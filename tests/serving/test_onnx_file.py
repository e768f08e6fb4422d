"""ONNX files: their answers in onnxruntime, and their size."""

import numpy as np
import pytest
import tensorflow as tf
from exporting import TEXTS, close, packed, written

from albert_tf.text.packing import INPUTS
from albert_tf.training.model_directory import checkpoints

pytest.importorskip("tf2onnx")
runtime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def folder(pretrained_dir, tmp_path_factory):
    """The folder of the ONNX export."""
    out = tmp_path_factory.mktemp("onnx") / "out"
    written(pretrained_dir, out, to="onnx")
    return out


def test_onnx_equals_the_python_model(folder, pretrained_model, tokenizer):
    """onnxruntime gives Python's numbers for any batch size and length."""
    session = runtime.InferenceSession(str(folder / "model.onnx"))
    for texts, length in ((TEXTS, 24), (TEXTS[:1], 9)):
        inputs = packed(tokenizer, texts, length=length)
        positions = np.ones([len(texts), 2], np.int32)
        feed = dict(zip(INPUTS, inputs, strict=True))
        feed["mlm_positions"] = positions
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(names, feed), strict=True))
        wanted = pretrained_model(*map(tf.constant, inputs))
        for name in ("sequence_output", "pooled_output", "sop_logits"):
            close(found[name], wanted[name])
        masked = tf.gather(wanted["mlm_logits"], positions, batch_dims=1)
        close(found["mlm_logits"], masked, 1e-4)


def test_weights_are_stored_once(folder, pretrained_model):
    """Shared layers and the tied word table stand in the file once."""
    import onnx

    model = onnx.load(str(folder / "model.onnx"))
    stored = [
        np.prod(tensor.dims)
        for tensor in model.graph.initializer
        if len(tensor.dims) >= 2
    ]
    wanted = sum(
        v.shape.num_elements()
        for v in checkpoints.named_variables(pretrained_model).values()
        if len(v.shape) == 2
    )
    assert wanted * 0.9 <= sum(stored) <= wanted * 1.02


def test_vocabulary_and_config_lie_beside(folder):
    """What is needed to make ids is in the folder."""
    names = "model.onnx albert_config.json tokenizer.json spiece.model"
    assert {path.name for path in folder.iterdir()} == set(names.split())
