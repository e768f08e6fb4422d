"""Checkpoints load exactly or fail with every difference named."""

import numpy as np
import pytest
import tensorflow as tf
import tiny

from albert_tf.base.errors import InputError
from albert_tf.model.albert import AlbertForPretraining, AlbertModel
from albert_tf.training import checkpoints


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("model"))
    model = AlbertForPretraining(tiny.CONFIG)
    checkpoints.claim(directory, tiny.CONFIG)
    checkpoints.save(directory, checkpoints.named_variables(model), 5)
    return directory, model


def test_every_weight_is_restored(saved):
    """A model restored from a directory equals the one that was saved."""
    directory, model = saved
    other = AlbertForPretraining(tiny.CONFIG)
    checkpoints.restore_weights(other, directory)
    for left, right in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(left, right)


def test_names_may_hold_any_mark(tmp_path):
    """As of a task's head, squad-2.0/...; a point before a slash too."""
    names = ("squad-2.0/kernel", "a./b", "a.S/..c", "plain")
    saved, found = (
        {name: tf.Variable(x * i) for i, name in enumerate(names, 1)}
        for x in (1.0, 0.0)
    )
    checkpoints.save(str(tmp_path), saved)
    prefix = checkpoints.for_inference(str(tmp_path))
    assert checkpoints.read_table(prefix).keys() == set(names)
    checkpoints.restore(prefix, found)
    assert [float(v) for v in found.values()] == [1.0, 2.0, 3.0, 4.0]
    assert checkpoints.reader(prefix)("a.S/..c") == 3.0


def test_an_encoder_is_restored_from_a_pretrained_model(saved):
    """Names do not depend on the model that the encoder stands in."""
    directory, model = saved
    encoder = AlbertModel(tiny.CONFIG)
    encoder.build()
    checkpoints.restore_weights(encoder, directory, only=("albert/",))
    np.testing.assert_array_equal(
        encoder.pooler.kernel, model.albert.pooler.kernel
    )


def test_missing_unexpected_and_misshaped_are_named(saved):
    """One error names each variable that differs, and how."""
    directory, model = saved
    prefix = checkpoints.for_inference(directory)
    table = checkpoints.named_variables(model)
    table["head/kernel"] = table.pop("sop/classifier/kernel")
    table["mlm/output_bias"] = table["albert/pooler/bias"]
    with pytest.raises(InputError) as error:
        checkpoints.restore(prefix, table)
    text = str(error.value)
    assert "missing head/kernel" in text
    assert "unexpected sop/classifier/kernel [16, 2]" in text
    assert "mis-shaped mlm/output_bias: [50] instead of [16]" in text


def test_a_truncated_checkpoint_is_named(saved, tmp_path):
    """A data file cut short is an error with its path, not garbage."""
    directory, model = saved
    checkpoints.save(str(tmp_path), checkpoints.named_variables(model))
    data = next(tmp_path.glob("ckpt-0.data*"))
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(InputError, match="ckpt-0 is damaged"):
        checkpoints.restore_weights(model, str(tmp_path))


def test_a_directory_without_a_checkpoint_is_named(tmp_path):
    """The error says what a model directory must hold."""
    with pytest.raises(InputError, match="must hold a checkpoint"):
        checkpoints.for_inference(str(tmp_path))
