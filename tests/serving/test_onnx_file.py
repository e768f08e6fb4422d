"""ONNX files are small, and their outputs equal the Python model's."""

import numpy as np
import pytest
import tensorflow as tf
from exporting import LENGTH, TEXTS, close, of_kind, packed, written

from albert_tf.serving import onnx_file
from albert_tf.serving.signatures import ServingConfig
from albert_tf.tasks.predictions import Predictor
from albert_tf.tasks.registry import load_task
from albert_tf.training import checkpoints

pytest.importorskip("tf2onnx")
runtime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def folder(pretrained_dir, tmp_path_factory):
    """Return the folder of the ONNX export."""
    out = tmp_path_factory.mktemp("onnx") / "out"
    written(pretrained_dir, out, to="onnx")
    return out


def feed_of(tokenizer, texts, length):
    """Return inputs in the format of Hugging Face's tokenizers."""
    names = "input_ids", "attention_mask", "token_type_ids"
    inputs = packed(tokenizer, texts, length=length)
    return {k: x.astype(np.int64) for k, x in zip(names, inputs, strict=True)}


def outputs_of(session, feed):
    """Return a session's outputs as {name: array}."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def test_onnx_equals_the_python_model(folder, pretrained_model, tokenizer):
    """For any batch size and length, outputs equal those in Python."""
    session = runtime.InferenceSession(str(folder / "model.onnx"))
    for texts, length in ((TEXTS, 24), (TEXTS[:1], 9)):
        feed = feed_of(tokenizer, texts, length)
        positions = np.ones([len(texts), 3], np.int64)
        found = outputs_of(session, feed | {"mlm_positions": positions})
        inputs = packed(tokenizer, texts, length=length)
        wanted = pretrained_model(*map(tf.constant, inputs))
        close(found["last_hidden_state"], wanted["sequence_output"])
        close(found["pooler_output"], wanted["pooled_output"])
        close(found["sop_logits"], wanted["sop_logits"])
        masked = tf.gather(wanted["mlm_logits"], positions, batch_dims=1)
        close(found["mlm_logits"], masked, 1e-4)


def test_inputs_are_hugging_faces(folder, tokenizer):
    """Inputs have the names, the type and the axes that Hugging Face uses.

    `mlm_positions` is optional.
    """
    session = runtime.InferenceSession(str(folder / "model.onnx"))
    names = "input_ids", "attention_mask", "token_type_ids"
    inputs = {x.name: (x.type, x.shape) for x in session.get_inputs()}
    assert inputs == {k: ("tensor(int64)", ["batch", "tokens"]) for k in names}
    outputs = {x.name: x.shape for x in session.get_outputs()}
    assert outputs == {
        "last_hidden_state": ["batch", "tokens", 16],
        "pooler_output": ["batch", 16],
        "sop_logits": ["batch", 2],
        "mlm_logits": ["batch", "masks", tokenizer.vocab_size],
    }
    feed = feed_of(tokenizer, TEXTS[:3], 7)
    found = outputs_of(session, feed)["mlm_logits"]
    first = {"mlm_positions": np.zeros([3, 1], np.int64)}
    close(found, outputs_of(session, feed | first)["mlm_logits"])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("settings", "sizes", "optional"),
    [
        ({"batch_size": 2}, (2, "tokens", "masks"), True),
        ({"batch_size": 2, "fixed_length": True}, (2, LENGTH, 8), False),
        ({"fixed_length": True}, ("batch", LENGTH, 8), False),
    ],
)
def test_sizes_may_be_fixed(
    pretrained_dir, tokenizer, tmp_path, settings, sizes, optional
):
    """A file may accept only one batch size, only one length, or both.

    `mlm_positions` is optional unless the length is fixed.
    """
    serving = ServingConfig(**settings)
    out = written(pretrained_dir, tmp_path / "out", serving, to="onnx")
    session = runtime.InferenceSession(f"{out}/model.onnx")
    inputs = {x.name: x.shape for x in session.get_inputs()}
    rows, tokens, masks = sizes
    positions = {} if optional else {"mlm_positions": [rows, masks]}
    feed = feed_of(tokenizer, TEXTS[:2], LENGTH)
    assert inputs == dict.fromkeys(feed, [rows, tokens]) | positions
    if optional:
        first = {"mlm_positions": np.zeros([2, 1], np.int64)}
        found, wanted = (outputs_of(session, feed | x) for x in ({}, first))
        close(found["mlm_logits"], wanted["mlm_logits"])


@pytest.mark.slow
def test_an_embedder_gives_its_vectors(pretrained_dir, tokenizer, tmp_path):
    """Vectors of texts are normalized means of token vectors."""
    of_kind("embedding", tmp_path / "model", pretrained_dir)
    out = written(tmp_path / "model", tmp_path / "out", to="onnx")
    session = runtime.InferenceSession(f"{out}/model.onnx")
    feed = feed_of(tokenizer, TEXTS, 12)
    found = outputs_of(session, feed)
    assert set(found) == {"last_hidden_state", "sentence_embedding"}
    mask = feed["attention_mask"][..., None]
    means = (found["last_hidden_state"] * mask).sum(1) / mask.sum(1)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    close(found["sentence_embedding"], means)

    def run(features):
        names = [output.name for output in session.get_outputs()]
        return onnx_file.run(session, names, features.dense())

    answers = Predictor(load_task(str(out)), tokenizer, run)(
        [{"text": text} for text in TEXTS]
    )
    close(np.array([x["embedding"] for x in answers]), means)


def test_weights_are_stored_once(folder, pretrained_model):
    """Shared layers and the tied embedding table are stored only once.

    The file is valid, even for readers that do not sort its operations.
    """
    import onnx

    model = onnx.load(str(folder / "model.onnx"))
    onnx.checker.check_model(model)
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
    assert [x.version for x in model.opset_import if not x.domain] == [18]


def test_vocabulary_and_config_lie_beside(folder):
    """The folder contains only the model, its config and its tokenizer."""
    names = "model.onnx albert_config.json tokenizer.json spiece.model"
    assert {path.name for path in folder.iterdir()} == set(names.split())
