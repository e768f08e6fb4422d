"""What models of sentences serve, against the Python model."""

import numpy as np
import tensorflow as tf
from exporting import TEXTS, close, finetuned, packed, strings

from albert_tf.serving.encoder import ServingConfig
from albert_tf.serving.exporting import ExportConfig, export
from albert_tf.serving.model_servers import load_server


def test_classification_names_its_labels(tmp_path, pretrained_dir, tokenizer):
    """`classify` gives Python's probabilities and the label of the largest."""
    labels = ("bad", "fair", "好")
    folder, out = str(tmp_path / "model"), str(tmp_path / "out")
    model = finetuned(folder, pretrained_dir, "classification", labels)
    inputs = packed(tokenizer, TEXTS, length=12)
    wanted = tf.nn.softmax(model(*map(tf.constant, inputs))).numpy()
    export(ExportConfig(folder, out), ServingConfig())
    signatures = tf.saved_model.load(out).signatures
    for name in ("classify", "serving_default"):
        found = signatures[name](strings(TEXTS))
        assert set(found) == {"label", "labels", "probabilities", "logits"}
        close(found["probabilities"], wanted)
        best = [x.decode() for x in found["label"].numpy()]
        assert best == [labels[i] for i in wanted.argmax(-1)]
        every = [tuple(x.decode() for x in r) for r in found["labels"].numpy()]
        assert every == [labels] * len(TEXTS)
    found = signatures["text"](strings(TEXTS))
    close(found["probabilities"], wanted)
    assert found["sequence_output"].shape == [len(TEXTS), 12, 16]


def test_multilabel_says_what_is_chosen(tmp_path, pretrained_dir, tokenizer):
    """Every class has its own probability, chosen above a half."""
    folder = tmp_path / "model"
    model = finetuned(folder, pretrained_dir, "multilabel", ("a", "b", "c"))
    inputs = packed(tokenizer, TEXTS, length=12)
    wanted = tf.sigmoid(model(*map(tf.constant, inputs))).numpy()
    found = load_server(str(folder), ServingConfig()).call(
        "classify", strings(TEXTS)
    )
    close(found["probabilities"], wanted)
    np.testing.assert_array_equal(found["chosen"], wanted > 0.5)


def test_regression_gives_the_score(tmp_path, pretrained_dir, tokenizer):
    """`score` is the model's number."""
    folder = tmp_path / "model"
    model = finetuned(folder, pretrained_dir, "regression", pair="b")
    inputs = packed(tokenizer, TEXTS, TEXTS[::-1], length=12)
    wanted = model(*map(tf.constant, inputs))[:, 0]
    server = load_server(str(folder), ServingConfig())
    found = server.call("score", strings(TEXTS), strings(TEXTS[::-1]))
    close(found["score"], wanted)
