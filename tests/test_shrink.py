"""Smaller model directories: their outputs are those of fewer layers."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from exporting import TEXTS, close, finetuned, packed

from albert_tf import checkpoints
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.model import AlbertForPretraining
from albert_tf.shrink import ShrinkConfig, possible, shorter, shrink
from albert_tf.tasks.registry import load_task


def restored(folder):
    """Return the pretraining model of a folder."""
    model = AlbertForPretraining(AlbertConfig.from_model_dir(str(folder)))
    checkpoints.restore_weights(model, str(folder))
    return model


def test_fewer_layers_are_the_first_ones(
    pretrained_dir, pretrained_model, tokenizer, tmp_path
):
    """The smaller model gives what the larger had after so many layers."""
    out = str(tmp_path / "out")
    shrink(ShrinkConfig(pretrained_dir, out, num_layers=2))
    inputs = [tf.constant(x) for x in packed(tokenizer, TEXTS)]
    states = pretrained_model.albert(*inputs, return_all=True)["hidden_states"]
    found = restored(out).albert(*inputs)["sequence_output"]
    close(found, states[1])


def test_weights_are_rounded_to_16_bits(pretrained_dir, tmp_path):
    """Every weight has 8 bits of fraction left, and is the nearest such."""
    out = str(tmp_path / "out")
    shrink(ShrinkConfig(pretrained_dir, out, weights="bfloat16"))
    new = checkpoints.reader(checkpoints.for_inference(out))
    prefix = checkpoints.for_inference(pretrained_dir)
    old = checkpoints.reader(prefix)
    for name in checkpoints.read_table(prefix):
        bits = new(name).view(np.uint32)
        assert not (bits & 0xFFFF).any()
        difference = np.abs(new(name) - old(name))
        assert (difference <= np.abs(old(name)) * 2.0**-8).all()


def test_fine_tuned_models_keep_their_task(pretrained_dir, tmp_path):
    """A classifier stays one, and all of its weights are there."""
    folder, out = tmp_path / "model", str(tmp_path / "out")
    finetuned(folder, pretrained_dir, "classification", ("a", "b"))
    shrink(ShrinkConfig(str(folder), out, num_layers=1))
    task = load_task(out)
    config = AlbertConfig.from_model_dir(out)
    model = task.build_model(config, "float32")
    checkpoints.restore_weights(model, out)
    assert task.labels == ("a", "b") and config.num_hidden_layers == 1


def test_layers_keep_their_groups():
    """Groups, and layers without sharing, stay with their layers."""
    config = AlbertConfig(num_hidden_layers=12, num_hidden_groups=3)
    assert possible(config) == [1, 2, 3, 4, 7, 8, 11, 12]
    assert shorter(config, 8).num_hidden_groups == 2
    with pytest.raises(InputError, match="one of 1, 2, 3, 4, 7, 8, 11, 12"):
        shorter(config, 9)
    own = dataclasses.replace(config, num_hidden_groups=12, sharing="none")
    assert shorter(own, 5).num_hidden_groups == 5
    with pytest.raises(InputError, match="at most.*12"):
        shorter(config, 13)


def test_existing_folders_are_not_touched(pretrained_dir, tmp_path):
    """The new model needs a new folder."""
    with pytest.raises(InputError, match="output_dir.*new"):
        shrink(ShrinkConfig(pretrained_dir, str(tmp_path)))
