"""Checkpoints written with and without TensorFlow are equal."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.tpu import tensor_bundle
from albert_tf.training import checkpoint_files, checkpoints
from albert_tf.training.checkpoint_files import Damaged

FILES = "ckpt-{}.index", "ckpt-{}.data-00000-of-00001"


def variables(seed):
    """Return {name: variable} with long names that share prefixes."""
    rng = np.random.default_rng(seed)
    values = {
        f"albert/encoder/layer_{i}/kernel": rng.normal(size=(i, 7))
        for i in range(20)
    }
    table = {n: tf.Variable(x, dtype=tf.float32) for n, x in values.items()}
    return table | {
        "optimizer/iterations": tf.Variable(seed, dtype=tf.int64),
        "counts": tf.Variable([seed, -seed], dtype=tf.int32),
    }


def numpy(table):
    """Return {name: value} for variables."""
    return {name: variable.numpy() for name, variable in table.items()}


def assert_equal(found, expected):
    """Assert that names, shapes, types and values are equal."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name, strict=True)


def test_a_checkpoint_is_read(tmp_path, monkeypatch):
    """All variables are read, even from several data files."""
    expected = variables(1)
    prefix = checkpoints.save(str(tmp_path), expected)
    assert_equal(tensor_bundle.read(prefix), numpy(expected))
    monkeypatch.setattr(checkpoints, "SHARD_BYTES", 1000)
    prefix = checkpoints.save(str(tmp_path), expected, 1)
    assert len(list(tmp_path.glob("ckpt-1.data-*"))) > 2
    assert_equal(tensor_bundle.read(prefix), numpy(expected))


@pytest.mark.parametrize("shard_bytes", [1 << 30, 1000])
def test_a_written_checkpoint_has_the_bytes_of_tensorflows(
    tmp_path, monkeypatch, shard_bytes
):
    """A checkpoint with new values has the bytes that TensorFlow writes.

    The checkpoint may have several data files.
    """
    monkeypatch.setattr(checkpoints, "SHARD_BYTES", shard_bytes)
    first, second = variables(1), variables(2)
    prefix = checkpoints.save(str(tmp_path), first)
    bundle = tensor_bundle.open_bundle(prefix)
    bundle.write(str(tmp_path / "ckpt-5"), numpy(second))
    checkpoint_files.adopt(str(tmp_path), 5, 1)
    (tmp_path / "other").mkdir()
    checkpoints.save(str(tmp_path / "other"), second, 6)
    names = {p.name for p in (tmp_path / "other").glob("ckpt-6.[di]*")}
    assert (len(names) > 3) == (shard_bytes == 1000)
    for name in names:
        theirs = tmp_path / "other" / name
        ours = tmp_path / name.replace("6", "5", 1)
        assert ours.read_bytes() == theirs.read_bytes()
    checkpoints.restore_latest(str(tmp_path), first)
    assert_equal(numpy(first), numpy(second))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("position", [0.1, 0.4, None])
def test_a_damaged_checkpoint_is_an_error(tmp_path, file, position):
    """A checkpoint with a changed byte or a truncated file raises an error."""
    prefix = checkpoints.save(str(tmp_path), variables(1))
    path = Path(tmp_path, file.format(0))
    content = bytearray(path.read_bytes())
    if position:
        content[int(position * len(content))] ^= 4
    else:
        del content[len(content) // 2 :]
    path.write_bytes(content)
    with pytest.raises(Damaged, match="ckpt-0"):
        tensor_bundle.read(prefix)
