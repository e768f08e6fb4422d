"""Outputs and gradients equal those of transformers after conversion.

These tests are slow, and run only if the extra `convert` is installed, as in
`make interchange`.
"""

import dataclasses
import json

import goldens
import numpy as np
import pytest
import released_files
import safetensors.numpy
import tensorflow as tf

from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.huggingface import config_json
from albert_tf.conversion.variable_names import (
    HUGGING_FACE,
    as_released,
    stored_tensors,
)
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig
from albert_tf.training import checkpoints
from albert_tf.training.checkpoints import named_variables

pytestmark = [pytest.mark.slow, pytest.mark.interchange]

WIDE = {
    "hidden_size": 64,
    "embedding_size": 16,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "vocab_size": 500,
}
NAMES = "shared groups unshared unfactorized relu erf".split()
VARIANTS = {n: goldens.VARIANTS[n] for n in NAMES} | {"wide": WIDE}


def make_config(variant: str) -> AlbertConfig:
    return dataclasses.replace(goldens.CONFIG, **VARIANTS[variant])


def inputs_of(config: AlbertConfig) -> dict[str, np.ndarray]:
    """Return random inputs, and labels for both heads."""
    rng = np.random.default_rng(7)
    inputs = goldens.random_inputs(config)
    # In transformers, padding (id 0) has no gradient as an input.
    inputs["input_ids"] = np.maximum(inputs["input_ids"], 1)
    inputs["masked_lm_positions"] = np.tile(np.arange(4, dtype="i4"), (3, 1))
    return inputs | {
        "masked_lm_ids": rng.integers(0, config.vocab_size, (3, 4), np.int32),
        "labels": np.array([0, 1, 1], np.int32),
    }


def ours(model, inputs):
    """Return our outputs, the sum of both losses and the sum's gradients."""
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    with tf.GradientTape() as tape:
        out = model(*(inputs[n] for n in names), return_all=True)
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
        mlm = entropy(inputs["masked_lm_ids"], out["mlm_logits"])
        sop = entropy(inputs["labels"], out["sop_logits"])
        loss = tf.reduce_mean(mlm) + tf.reduce_mean(sop)
    variables = named_variables(model)
    gradients = tape.gradient(loss, list(variables.values()))
    table = {
        n: np.asarray(tf.convert_to_tensor(g))
        for n, g in zip(variables, gradients, strict=True)
    }
    return out, float(loss), table


def compare(config, model, transformers, folder) -> dict:
    """Assert that our outputs, loss and gradients equal those of transformers.

    Return the loading report of transformers.
    """
    inputs = inputs_of(config)
    out, loss, gradients = ours(model, inputs)
    other = transformers("compute", str(folder), inputs)

    def close(left, right, name=""):
        np.testing.assert_allclose(left, right, 2e-4, 2e-5, err_msg=name)

    for name in ("mlm_logits", "sop_logits"):
        close(out[name], other[name], name)
    close(loss, other["loss"])
    # Version 5 returns the output of every inner block, not of every layer.
    stride = len(out["hidden_states"]) // len(other["layers"])
    blocks = out["hidden_states"][stride - 1 :: stride]
    for states, layer in zip(blocks, other["layers"], strict=True):
        close(states, layer)
    theirs = other["gradients"]
    for name, stored in stored_tensors(
        as_released(config), HUGGING_FACE
    ).items():
        gradient = theirs.pop(stored.name)
        close(
            gradients.pop(name),
            gradient.T if stored.transposed else gradient,
            name,
        )
    assert not gradients
    assert all("embedding_hidden_mapping_in" in n for n in theirs)
    return other["loading"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_from_here_to_transformers(variant, transformers, tmp_path):
    """transformers loads all weights that we write and computes our outputs."""
    config = make_config(variant)
    table = goldens.random_weights(config)
    model = goldens.build(config, table)
    source = str(tmp_path / "dir")
    checkpoints.create_model_dir(source, config)
    checkpoints.save(source, named_variables(model))
    convert(source, str(tmp_path / "hf"), "huggingface")
    loading = compare(config, model, transformers, tmp_path / "hf")
    for wrong in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert loading[wrong] == []


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_from_transformers_to_here(variant, pickled, transformers, tmp_path):
    """Conversion of transformers' files to our format and back is exact.

    The converted model also has transformers' outputs, loss and gradients.
    """
    config = make_config(variant)
    released = as_released(config)
    values = dataclasses.asdict(released) | {
        "hidden_act": {"gelu": "gelu_new", "gelu_erf": "gelu"}.get(
            config.hidden_act, config.hidden_act
        )
    }
    del values["sharing"], values["embedding_norm"]
    folder = tmp_path / "hf"
    identity = config.embedding_size == config.hidden_size
    transformers("make", str(folder), values, identity)
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    if pickled:
        transformers("pickle_weights", str(folder))
        (folder / "model.safetensors").unlink()
    convert(str(folder), str(tmp_path / "dir"), "model_dir")
    assert AlbertConfig.from_model_dir(str(tmp_path / "dir")) == released
    model = AlbertForPretraining(released)
    checkpoints.restore_weights(model, str(tmp_path / "dir"))
    compare(released, model, transformers, folder)
    convert(str(tmp_path / "dir"), str(tmp_path / "back"), "huggingface")
    back = safetensors.numpy.load_file(tmp_path / "back/model.safetensors")
    released_files.assert_same(back, weights)


def test_the_config_of_a_release(transformers):
    """transformers reads the settings of base v2 from our `config.json`."""
    folder = goldens.FOLDER.parents[2] / "configs" / "models"
    file = folder / "albert_base_v2.json"
    config = AlbertConfig.from_json_file(str(file))
    values = json.loads(json.dumps(config_json(config)))
    theirs = transformers("read_config", values)
    assert theirs["hidden_act"] == "gelu_new"
    assert theirs["num_attention_heads"] == 12
    assert theirs["hidden_dropout_prob"] == 0
