"""Conversion to other layouts keeps the weights of any architecture."""

import conversions
import numpy as np
import pytest
import released_files
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.named_tensors import Tensors, from_layout, to_layout
from albert_tf.conversion.tf1 import layout_for
from albert_tf.conversion.variable_names import (
    HUGGING_FACE,
    MODEL_DIR,
    as_released,
    variable_shapes,
)
from albert_tf.model.config import ACTIVATIONS, AlbertConfig
from albert_tf.training import checkpoints


@st.composite
def configs(draw):
    """Return a strategy for architectures that released files can store."""
    heads = draw(st.integers(1, 3))
    hidden = heads * draw(st.integers(1, 3))
    layers = draw(st.integers(1, 4))
    hidden_norm = draw(st.booleans())
    sharing = draw(st.sampled_from(["all", "all", "none"]))
    groups = draw(st.integers(1, layers))
    alone = hidden_norm or sharing == "none"
    return AlbertConfig(
        vocab_size=draw(st.integers(8, 12)),
        embedding_size=draw(st.sampled_from([1, 2, hidden])),
        hidden_size=hidden,
        num_hidden_layers=1 if hidden_norm and sharing == "none" else layers,
        num_hidden_groups=1 if alone else groups,
        inner_group_num=1 if hidden_norm else draw(st.integers(1, 2)),
        num_attention_heads=heads,
        intermediate_size=draw(st.integers(1, 5)),
        hidden_act=draw(st.sampled_from([*ACTIVATIONS])),
        hidden_dropout_prob=draw(st.sampled_from([0.0, 0.1])),
        max_position_embeddings=draw(st.integers(1, 6)),
        type_vocab_size=draw(st.integers(1, 3)),
        initializer_range=draw(st.sampled_from([0.02, 0.5])),
        sharing=sharing,
        embedding_norm="hidden" if hidden_norm else "embedding",
    )


HEADS = st.sampled_from([("mlm/", "sop/"), ("mlm/",), ("sop/",), ()])


def weights_of(config, heads, slots=False):
    """Return arrays of random weights by name; some values are special floats.

    With `slots`, the table also has the optimizer's slots and step.
    """
    rng = np.random.default_rng(0)
    special = np.float32([0.0, -0.0, 1e-42, -1e38, np.pi, np.inf])
    table = {}
    for name, shape in variable_shapes(config).items():
        if name.startswith(("albert/", *heads)):
            array = rng.normal(size=shape).astype(np.float32)
            some = rng.random(shape) < 0.2
            array[some] = rng.choice(special, int(some.sum()))
            table[name] = array
    if slots:
        table |= {
            f"optimizer/{name}/{slot}": rng.random(x.shape, np.float32)
            for name, x in table.items()
            for slot in "mv"
        }
        table["optimizer/iterations"] = np.int64(7)
    return table


def tensors_of(table):
    """Return `Tensors` that read from the arrays of a table."""
    shapes = {name: x.shape for name, x in table.items()}
    return Tensors(shapes, lambda name: np.asarray(table[name]))


def layouts(config):
    """Return the layouts that can store a model with this config."""
    hub = [HUGGING_FACE] * (config.embedding_norm == "embedding")
    return [MODEL_DIR, layout_for(config), *hub]


@examples(40)
@given(config=configs(), heads=HEADS, slots=st.booleans())
def test_names_of_each_layout_round_trip(config, heads, slots):
    """Each layout stores and restores weights, slots and step.

    Only the hub's layout cannot store slots.
    """
    table = weights_of(config, heads, slots)
    released = as_released(config)
    for layout in layouts(released):
        there = to_layout(tensors_of(table), released, layout)
        back = from_layout(there, released, layout, "x")
        kept = {
            name: x
            for name, x in table.items()
            if layout is not HUGGING_FACE or not name.startswith("optimizer/")
        }
        assert len(there) == len(kept)
        released_files.assert_same(back.read_all(np.asarray), kept)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder for models."""
    return tmp_path_factory.mktemp("models")


@examples(4)
@given(config=configs(), heads=HEADS, number=st.integers(0, 10**9))
def test_folders_round_trip(folder, config, heads, number):
    """Conversion to other folders and back keeps a model's bits and config."""
    table = weights_of(config, heads)
    base = folder / str(len(list(folder.iterdir())))
    config.save(str(base / "own"))
    variables = {n: tf.Variable(x) for n, x in table.items()}
    checkpoints.save(str(base / "own"), variables, 0)
    targets = ["tf1"] * ACTIVATIONS[config.hidden_act].is_released
    if config.embedding_norm == "embedding":
        targets.append("huggingface")
    for to in targets:
        back = str(base / f"{to} back")
        convert(str(base / "own"), str(base / to), to)
        convert(str(base / to), back, "model_dir")
        assert AlbertConfig.from_model_dir(back) == as_released(config)
        released_files.assert_same(conversions.weights_of(back), table)
