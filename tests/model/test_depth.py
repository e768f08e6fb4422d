"""A model can run with fewer layers than its config has."""

import functools

import goldens
import numpy as np
import pytest
import tensorflow as tf
from reference import albert_numpy

from albert_tf.model.layers import ON_TPU, PLAIN


def at_depth(layers, loop=PLAIN, **changes):
    """Return random inputs, and a function that runs the first layers."""
    model, inputs = goldens.random_model(**changes)
    model.albert.encoder.loop = loop
    compute = functools.partial(model, *inputs.values(), layers=layers)
    return inputs, compute


@pytest.mark.parametrize(
    "layers, changes",
    [
        (1, {}),
        (3, {}),
        (2, {"num_hidden_groups": 2, "inner_group_num": 2}),
        (3, {"num_hidden_groups": 2, "inner_group_num": 2}),
    ],
)
def test_fewer_layers_are_the_model_of_a_smaller_config(layers, changes):
    """Outputs match a NumPy model with the same number of layers."""
    inputs, model = at_depth(layers, **changes)
    table = goldens.random_weights(goldens.variant("shared", **changes))
    small = goldens.variant("shared", num_hidden_layers=layers, **changes)
    out = model(return_all=True)
    for i in range(len(inputs["input_ids"])):
        _, states, maps, pooled = albert_numpy.encode(
            {k: v.astype("f8") for k, v in table.items()},
            small,
            *(inputs[k][i] for k in ("input_ids", "input_mask", "segment_ids")),
        )
        assert len(states) == len(out["hidden_states"])
        assert len(maps) == len(out["attention_probs"])
        for ours, theirs in zip(out["hidden_states"], states, strict=True):
            np.testing.assert_allclose(ours[i], theirs, 0, 2e-5)
        np.testing.assert_allclose(out["pooled_output"][i], pooled, 0, 2e-5)


@pytest.mark.parametrize("layers", [2, 3])
def test_every_form_of_the_loop_has_fewer_layers(layers):
    """Both forms of the loop return equal outputs with dropout at any depth."""
    changes = {
        "num_hidden_groups": 2,
        "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.2,
    }
    outputs = []
    for loop in (PLAIN, ON_TPU):
        _, model = at_depth(layers, loop, **changes)
        outputs.append(model(seed=tf.constant([3, 4]))["sequence_output"])
    np.testing.assert_allclose(*outputs, 0, 1e-5)


def test_the_first_layers_do_not_depend_on_how_many_follow():
    """The first two layers' outputs do not depend on the number of layers."""
    dropout = {"hidden_dropout_prob": 0.2}
    _, few = at_depth(2, **dropout)
    _, all_layers = at_depth(None, **dropout)
    seed = tf.constant([1, 2])
    first_states, all_states = (
        model(return_all=True, seed=seed)["hidden_states"]
        for model in (few, all_layers)
    )
    for ours, theirs in zip(first_states, all_states[:2], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert len(all_states) == goldens.CONFIG.num_hidden_layers
