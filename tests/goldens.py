"""Values recorded from the released code, and random models.

The released code is google-research/albert at commit b772393. The files
`testdata/released/gN.npz` contain a config, weights, inputs, outputs
and gradients of the released code; `g1_train.npz` contains weights after 1 and
3 training steps of that code. The arrays have the released names.
"""

import dataclasses
import json
import pathlib

import numpy as np

from albert_tf.conversion.variable_names import (
    GOOGLE,
    stored_tensors,
    variable_shapes,
)
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig
from albert_tf.training.checkpoints import named_variables

FOLDER = pathlib.Path(__file__).parent / "testdata" / "released"
NAMES = ("g1", "g2", "g3", "g4", "g5")

# A config in which all widths differ.
CONFIG = AlbertConfig(
    vocab_size=60,
    embedding_size=6,
    hidden_size=12,
    num_hidden_layers=4,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=16,
)
VARIANTS = {
    "shared": {},
    "groups": {"num_hidden_groups": 2, "inner_group_num": 2},
    "groups that do not divide": {"num_hidden_groups": 3},
    "unshared": {"sharing": "none"},
    "attention shared": {"sharing": "attention"},
    "ffn shared": {"sharing": "ffn", "inner_group_num": 2},
    "unfactorized": {"embedding_size": 12},
    "pruned heads": {"num_attention_heads": 2, "attention_head_size": 4},
    "relu": {"hidden_act": "relu"},
    "erf": {"hidden_act": "gelu_erf"},
    "norm at H": {"embedding_norm": "hidden"},
    "norm at H, unfactorized": {
        "embedding_norm": "hidden",
        "embedding_size": 12,
    },
}


@dataclasses.dataclass(frozen=True)
class Golden:
    """A config with recorded weights, inputs, outputs and gradients."""

    config: AlbertConfig
    weights: dict[str, np.ndarray]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    grads: dict[str, np.ndarray]

    def model(self, **kwargs) -> AlbertForPretraining:
        """Return a model with the recorded weights."""
        return build(self.config, to_ours(self.weights, self.config), **kwargs)

    def outputs_of(self, model, **kwargs) -> dict:
        """Return a model's outputs for the recorded inputs."""
        names = "input_ids input_mask segment_ids masked_lm_positions".split()
        return model(*(self.inputs[name] for name in names), **kwargs)


def section(arrays, prefix: str) -> dict[str, np.ndarray]:
    """Return {rest of the name: array} for names that begin with a prefix."""
    return {
        name.removeprefix(prefix): arrays[name]
        for name in arrays
        if name.startswith(prefix)
    }


def load(name: str) -> Golden:
    """Return a recorded configuration and its arrays."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        config = AlbertConfig.from_dict(json.loads(str(arrays["config"])))
        parts = ("weights/", "inputs/", "outputs/", "grads/")
        return Golden(config, *(section(arrays, part) for part in parts))


def to_ours(table: dict, config: AlbertConfig) -> dict[str, np.ndarray]:
    """Return released weights with this project's names and layouts."""
    return {
        name: table[stored.name].T if stored.transposed else table[stored.name]
        for name, stored in stored_tensors(config, GOOGLE).items()
    }


def assign(model, table: dict[str, np.ndarray]) -> None:
    """Assign the arrays of a table to the variables of a model."""
    for name, variable in named_variables(model).items():
        variable.assign(table[name])


def build(config: AlbertConfig, table: dict, **kwargs) -> AlbertForPretraining:
    """Return a model with the given weights."""
    model = AlbertForPretraining(config, **kwargs)
    assign(model, table)
    return model


def variant(name: str, **changes) -> AlbertConfig:
    """Return `CONFIG` with a variant's changes and further changes."""
    return dataclasses.replace(CONFIG, **VARIANTS[name] | changes)


def random_weights(config: AlbertConfig) -> dict:
    """Return random weights, even where the default would be 0 or 1."""
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(0.5 * name.endswith("gamma"), 0.3, shape).astype("f4")
        for name, shape in variable_shapes(config).items()
    }


def random_inputs(config: AlbertConfig) -> dict:
    """Return inputs for three sequences of 10 positions; two are padded."""
    rng = np.random.default_rng(0)
    b, t, p = 3, 10, 4
    lengths = np.array([[10], [7], [4]])
    return {
        "input_ids": rng.integers(0, config.vocab_size, (b, t), np.int32),
        "input_mask": (np.arange(t) < lengths).astype(np.int32),
        "segment_ids": rng.integers(0, 2, (b, t), np.int32),
        "masked_lm_positions": rng.integers(0, 4, (b, p), np.int32),
    }


def random_model(name: str = "shared", **changes):
    """Return a variant's model with random weights, and random inputs."""
    config = variant(name, **changes)
    return build(config, random_weights(config)), random_inputs(config)
