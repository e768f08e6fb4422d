"""Servers of model directories, and their errors."""

import dataclasses

import pytest
import tensorflow as tf
from exporting import close, copied, server_of

from albert_tf.base.errors import InputError
from albert_tf.model.albert import AlbertForPretraining, AlbertModel
from albert_tf.model.config import AlbertConfig
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
    """Servers compute in float32, whatever the precision of training."""
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
