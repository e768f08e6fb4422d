"""8-bit LiteRT files, which the LiteRT project's quantizer creates."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf
from exporting import TEXTS, close, model_dir, packed

from albert_tf.base.errors import InputError
from albert_tf.model.task_heads import pooled
from albert_tf.serving.export import ExportConfig, export_model
from albert_tf.serving.litert_runner import Runner
from albert_tf.serving.signatures import ServingConfig
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import find

pytest.importorskip("ai_edge_quantizer")


@pytest.fixture
def calibration_file(tmp_path):
    """Return the path of a text file with one text per line."""
    lines = [" ".join(text.split()) or "a" for text in TEXTS]
    (tmp_path / "text.txt").write_text("\n".join(["text", *lines]))
    return str(tmp_path / "text.txt")


def exported(model, out, precision, calibration_file) -> str:
    """Write an 8-bit export; return its folder."""
    config = ExportConfig(
        str(model),
        str(out),
        to="litert",
        precision=precision,
        calibration_file=calibration_file if precision == "int8" else None,
    )
    export_model(config, ServingConfig())
    return str(out)


def tables(folder: str, shape: tuple | None) -> list:
    """Return the types of a file's constant tensors of a given shape.

    For None, return the types of all tensors that are computed.
    """
    from ai_edge_litert import schema_py_generated as schema

    with open(f"{folder}/model.tflite", "rb") as file:
        content = file.read()
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content))
    return [
        tensor.type
        for graph in model.subgraphs
        for tensor in graph.tensors
        if tuple(tensor.shape) == shape or shape is None
        if (model.buffers[tensor.buffer].data is None) == (shape is None)
    ]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("int8", 0.15), ("dynamic_int8", 0.1)]
)
def test_masks_are_filled_from_the_one_table(
    pretrained_dir,
    pretrained_model,
    tokenizer,
    tmp_path,
    calibration_file,
    precision,
    tolerance,
):
    """The file has one embedding table.

    The outputs of the file approximate those of the Python model.
    """
    from ai_edge_litert.schema_py_generated import TensorType

    out = exported(pretrained_dir, tmp_path / "o", precision, calibration_file)
    words = pretrained_model.albert.embeddings.word_embeddings
    assert tables(out, tuple(words.shape)) == [TensorType.INT8]
    runner = Runner(out)
    # In both precisions, two 8-bit tensors come from looking up the table.
    number = tables(out, None).count(TensorType.INT8)
    assert (number > 2) == (precision == "int8")
    text = "the small garden on the river."
    inputs = packed(tokenizer, [text])
    positions = np.arange(8, dtype=np.int32)[None]
    features = Features.from_texts(tokenizer, [text], runner.length)
    found = runner.call(features.dense(), positions)
    wanted = pretrained_model(*map(tf.constant, [*inputs, positions]))
    wanted |= pretrained_model.albert(*map(tf.constant, inputs))
    for name in ("mlm_logits", "sequence_output", "pooled_output"):
        value = wanted[name].numpy()
        difference = np.abs(found[name] - value)
        assert difference.mean() < tolerance * value.std(), name


@pytest.mark.slow
def test_padding_has_no_part_in_int8(
    pretrained_dir, tokenizer, tmp_path, calibration_file, capfd
):
    """Padding does not affect the mean vectors of texts.

    The export prints neither the quantizer's progress bars nor LiteRT's log.
    """
    task = find("embedding").updated(max_seq_length=12)
    model = model_dir(tmp_path / "model", pretrained_dir, task)
    out = exported(tmp_path / "model", tmp_path / "o", "int8", calibration_file)
    output = capfd.readouterr()
    assert "Wrote" in output.out
    assert "%" not in output.err and "INFO" not in output.err
    runner = Runner(out)
    rows = Features.from_texts(tokenizer, ["she walks"], runner.length)
    inputs = rows.dense()
    found = runner.call(inputs)["embedding"]
    outputs = model.albert(*map(tf.constant, inputs.values()))
    wanted = pooled(outputs["sequence_output"], inputs["input_mask"])
    close(found, wanted, 0.1)
    noise = np.where(inputs["input_mask"], inputs["input_ids"], 9)
    np.testing.assert_array_equal(
        runner.call(inputs | {"input_ids": noise})["embedding"], found
    )


def test_a_missing_extra_is_named(pretrained_dir, tmp_path, monkeypatch):
    """The error for a missing package names the extra to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"albert-tf\[litert\].*dynamic_int8"):
        exported(pretrained_dir, tmp_path / "o", "dynamic_int8", None)
