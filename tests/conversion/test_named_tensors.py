"""Damaged or mismatched weights stop a conversion."""

import numpy as np
import pytest
import released_files
from conversions import huggingface, refuse, release

from albert_tf.base.errors import InputError
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.named_tensors import Tensors, from_layout
from albert_tf.conversion.variable_names import HUGGING_FACE

POOLER = "bert/pooler/dense/bias"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({POOLER: None}, f"missing {POOLER}"),
        ({"output_bias": np.zeros(3, "f4")}, r"unexpected output_bias \[3\]"),
        ({POOLER: np.zeros(31, "f4")}, rf"mis-shaped {POOLER}: \[31\] instead"),
        (
            {"cls/seq_relationship/output_bias": None},
            "missing cls/seq_relationship/output_bias",
        ),
        ({f"{POOLER}/adam_v": np.zeros(32, "f4")}, f"missing {POOLER}/adam_m"),
    ],
)
def test_differences_are_named(change, message, golden, tmp_path):
    """Errors name tensors that are missing, surplus or of the wrong shape."""
    table = {**golden.weights, **change}
    table = {name: v for name, v in table.items() if v is not None}
    source = release(tmp_path / "in", golden.config, table)
    refuse(tmp_path, source, message)


def test_all_differences_are_named_at_once(golden, tmp_path):
    """With a wrong config, one error lists all tensors that do not match."""
    source = release(
        tmp_path / "in", golden.config, golden.weights, intermediate_size=48
    )
    text = refuse(tmp_path, source, "must fit its config")
    assert text.count("mis-shaped") == 3
    groups = release(
        tmp_path / "in2", golden.config, golden.weights, num_hidden_groups=3
    )
    assert refuse(tmp_path, groups, "must fit").count("missing") == 32


def test_bert_is_no_albert(golden, tmp_path):
    """The error for a BERT checkpoint identifies the model as BERT."""
    table = {
        "bert/embeddings/word_embeddings": np.zeros((100, 32), "f4"),
        "bert/encoder/layer_0/output/dense/bias": np.zeros(32, "f4"),
    }
    source = release(
        tmp_path / "in",
        golden.config,
        table,
        embedding_size=None,
        num_hidden_groups=None,
    )
    refuse(tmp_path, source, "this is a BERT")
    hub = Tensors({"bert.encoder.layer.0.output.dense.bias": (32,)}, None)
    with pytest.raises(InputError, match="this is a BERT .*: x with bert.enc"):
        from_layout(hub, golden.config, HUGGING_FACE, "x")


@pytest.mark.parametrize("bytes_left", [0, 100, 20_000])
@pytest.mark.parametrize("file", ["data-00000-of-00001", "index"])
def test_truncated_checkpoints(file, bytes_left, golden, tmp_path):
    """A checkpoint is rejected as damaged if any of its files is truncated."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    path = tmp_path / "in" / f"model.ckpt-best.{file}"
    if bytes_left < path.stat().st_size:
        path.write_bytes(path.read_bytes()[:bytes_left])
        refuse(tmp_path, source, "The checkpoint is damaged")


def test_a_truncated_model_directory(golden, tmp_path):
    """A model directory whose only checkpoint is truncated is rejected."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    convert(source, str(tmp_path / "dir"), "model_dir")
    path = tmp_path / "dir" / "ckpt-0.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:20_000])
    refuse(
        tmp_path,
        tmp_path / "dir",
        "At least one checkpoint must be intact",
        "tf1",
    )


@pytest.mark.parametrize("bytes_left", [0, 5, 100, 20_000])
def test_truncated_safetensors(bytes_left, golden, tmp_path):
    """The error for a damaged safetensors file quotes the library's reason."""
    folder, _ = huggingface(tmp_path, golden)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:bytes_left])
    message = "must be a complete safetensors file: Error.*header"
    refuse(tmp_path, folder, message)


def test_a_flipped_bit_is_found(golden, tmp_path):
    """A checkpoint that contains a tensor with a wrong checksum is rejected."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    path = tmp_path / "in" / "model.ckpt-best.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[30_000] ^= 1
    path.write_bytes(content)
    refuse(tmp_path, source, "The checkpoint is damaged")


def test_inputs_that_are_no_model(golden, tmp_path):
    """Errors name folders that are missing, empty, ambiguous or incomplete."""
    (tmp_path / "nothing").mkdir()
    refuse(tmp_path, tmp_path / "nothing", "`input` must be a folder with")
    refuse(tmp_path, tmp_path / "nowhere", "`input` must be a folder with")
    two = tmp_path / "two"
    two.mkdir()
    for name in ("a.ckpt", "b.ckpt"):
        released_files.write_saver(str(two / name), golden.weights)
    (two / "checkpoint").touch()
    refuse(tmp_path, two, "several checkpoints.*a.ckpt.*b.ckpt")
    refuse(tmp_path, two / "a.ckpt", "one albert_config.json next to the")
    for name in ("a_config.json", "b_config.json"):
        released_files.write_config(two / name, golden.config)
    refuse(tmp_path, two / "a.ckpt", "one albert_config.json next to the")
    config_file = tmp_path / "config.json"
    released_files.write_config(config_file, golden.config)
    convert(
        str(two / "a.ckpt"),
        str(tmp_path / "dir"),
        "model_dir",
        albert_config_file=str(config_file),
    )


def test_large_tensors_are_read_first():
    """`read_all` reads the largest tensors first, which lowers peak memory."""
    shapes = {"a": (2,), "b": (3, 4), "c": (), "d": (5,)}
    tensors = Tensors(shapes, lambda name: np.zeros(shapes[name]))
    assert len(tensors) == 4
    assert [*tensors.read_all()] == ["b", "d", "a", "c"]
    assert tensors.read_all(np.size) == {"b": 12, "d": 5, "a": 2, "c": 1}
