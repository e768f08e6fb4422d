"""Both directions against transformers, forward and gradients.

Slow, and only where the extra `convert` is installed, as `make interchange`
does.
"""

import dataclasses
import json

import goldens
import numpy as np
import pytest
import released_files
import safetensors.numpy
import tensorflow as tf

from albert_tf import checkpoints
from albert_tf.checkpoints import named_variables
from albert_tf.config import AlbertConfig
from albert_tf.convert_checkpoint import convert
from albert_tf.model import AlbertForPretraining
from albert_tf.weight_files.huggingface import config_json
from albert_tf.weight_files.released_names import (
    HUGGING_FACE,
    as_released,
    places,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.interchange]

VARIANTS = {
    name: goldens.VARIANTS[name]
    for name in (
        "shared",
        "groups",
        "unshared",
        "unfactorized",
        "relu",
        "erf",
    )
} | {
    "wide": {
        "hidden_size": 64,
        "embedding_size": 16,
        "intermediate_size": 256,
        "num_attention_heads": 8,
        "num_hidden_layers": 6,
        "vocab_size": 500,
    }
}
INDEX = {"input_ids": "input_ids", "attention_mask": "input_mask"}
INDEX |= {"token_type_ids": "segment_ids"}


def make_config(variant: str) -> AlbertConfig:
    return dataclasses.replace(goldens.CONFIG, **VARIANTS[variant])


def inputs_of(config: AlbertConfig) -> dict[str, np.ndarray]:
    """Return inputs, and labels for both heads."""
    rng = np.random.default_rng(7)
    inputs = goldens.random_inputs(config)
    # transformers gives the padding piece, id 0, no gradient as an input.
    inputs["input_ids"] = np.maximum(inputs["input_ids"], 1)
    inputs["masked_lm_positions"] = np.tile(np.arange(4, dtype="i4"), (3, 1))
    return inputs | {
        "masked_lm_ids": rng.integers(0, config.vocab_size, (3, 4), np.int32),
        "labels": np.array([0, 1, 1], np.int32),
    }


def ours(model, inputs):
    """Return our outputs, and gradients of both losses added up."""
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


def theirs(model, inputs):
    """Return transformers' outputs, and gradients of the same loss."""
    model.eval()
    batch = {n: torch.from_numpy(inputs[m]).long() for n, m in INDEX.items()}
    out = model(**batch, output_hidden_states=True, output_attentions=True)
    positions = torch.from_numpy(inputs["masked_lm_positions"]).long()
    logits = torch.stack(
        [
            row[p]
            for row, p in zip(out.prediction_logits, positions, strict=True)
        ]
    )
    entropy = torch.nn.functional.cross_entropy
    words = torch.from_numpy(inputs["masked_lm_ids"]).long()
    labels = torch.from_numpy(inputs["labels"]).long()
    loss = entropy(logits.flatten(0, 1), words.flatten())
    loss = loss + entropy(out.sop_logits, labels)
    loss.backward()
    gradients = {n: p.grad.numpy() for n, p in model.named_parameters()}
    return out, logits, loss.item(), gradients


def compare(config, our_model, their_model):
    """Check outputs, loss and every gradient of two models."""
    inputs = inputs_of(config)
    out, loss, gradients = ours(our_model, inputs)
    other, logits, their_loss, their_gradients = theirs(their_model, inputs)

    def close(left, right, name=""):
        right = right.detach().numpy() if torch.is_tensor(right) else right
        np.testing.assert_allclose(left, right, 2e-4, 2e-5, err_msg=name)

    close(out["mlm_logits"], logits)
    close(out["sop_logits"], other.sop_logits)
    close(loss, their_loss)
    # Version 5 returns every inner block, older ones every layer.
    layers = other.hidden_states[1:]
    every = len(out["hidden_states"]) // len(layers)
    blocks = out["hidden_states"][every - 1 :: every]
    for states, layer in zip(blocks, layers, strict=True):
        close(states, layer)
    for name, place in places(as_released(config), HUGGING_FACE).items():
        gradient = their_gradients.pop(place.name)
        close(
            gradients.pop(name),
            gradient.T if place.transposed else gradient,
            name,
        )
    assert not gradients
    assert all("embedding_hidden_mapping_in" in n for n in their_gradients)


@pytest.mark.parametrize("variant", VARIANTS)
def test_from_here_to_transformers(variant, tmp_path):
    """transformers loads what we write, whole, and computes the same."""
    config = make_config(variant)
    table = goldens.random_weights(config)
    model = goldens.build(config, table)
    source = str(tmp_path / "dir")
    checkpoints.claim(source, config)
    checkpoints.save(source, named_variables(model))
    convert(source, str(tmp_path / "hf"), "huggingface")
    other, info = transformers.AlbertForPreTraining.from_pretrained(
        str(tmp_path / "hf"),
        output_loading_info=True,
        attn_implementation="eager",
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    compare(config, model, other)


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_from_transformers_to_here(variant, pickled, tmp_path):
    """We load what transformers writes, and give it back bit by bit."""
    config = make_config(variant)
    released = as_released(config)
    values = dataclasses.asdict(released) | {
        "hidden_act": {"gelu": "gelu_new", "gelu_erf": "gelu"}.get(
            config.hidden_act, config.hidden_act
        )
    }
    del values["sharing"], values["embedding_norm"]
    torch.manual_seed(3)
    other = transformers.AlbertForPreTraining(
        transformers.AlbertConfig(**values, attn_implementation="eager")
    )
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            identity = "embedding_hidden_mapping_in" in name and (
                config.embedding_size == config.hidden_size
            )
            if not identity:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif parameter.ndim == 2:
                parameter.copy_(torch.eye(config.hidden_size))
            else:
                parameter.zero_()
    folder = tmp_path / "hf"
    other.save_pretrained(folder)
    there = safetensors.numpy.load_file(folder / "model.safetensors")
    if pickled:
        torch.save(other.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    convert(str(folder), str(tmp_path / "dir"), "model_dir")
    assert AlbertConfig.from_model_dir(str(tmp_path / "dir")) == released
    model = AlbertForPretraining(released)
    checkpoints.restore_weights(model, str(tmp_path / "dir"))
    compare(released, model, other)
    convert(str(tmp_path / "dir"), str(tmp_path / "back"), "huggingface")
    back = safetensors.numpy.load_file(tmp_path / "back/model.safetensors")
    released_files.assert_same(back, there)


def test_the_config_of_a_release():
    """Our `config.json` of base v2 says what transformers needs to know."""
    folder = goldens.FOLDER.parents[2] / "configs" / "models"
    file = folder / "albert_base_v2.json"
    config = AlbertConfig.from_json_file(str(file))
    values = json.loads(json.dumps(config_json(config, "AlbertForPreTraining")))
    theirs = transformers.AlbertConfig(**values)
    assert theirs.hidden_act == "gelu_new"
    assert theirs.num_attention_heads == 12
    assert theirs.hidden_dropout_prob == 0
