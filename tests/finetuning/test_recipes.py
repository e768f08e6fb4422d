"""Groups of layers, frozen parts and reactions to evaluations."""

import dataclasses

import pytest
import tiny

from albert_tf.base.errors import InputError
from albert_tf.finetuning.recipe import (
    RecipeConfig,
    check_freeze,
    evaluations_without_gain,
    frozen,
    named_weights,
    reductions,
)
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.training.checkpoints import named_variables


def config(**values):
    return dataclasses.replace(tiny.CONFIG, **values)


LAYERS = {"num_hidden_layers": 4}
ATTENTION, FFN = "albert/encoder/attention_", "albert/encoder/ffn_"


@pytest.mark.parametrize(
    ("values", "freeze", "prefixes"),
    [
        ({}, (), ()),
        ({}, ("embeddings",), ("albert/embeddings/",)),
        (
            {},
            ("embeddings", "encoder"),
            ("albert/embeddings/", "albert/encoder/"),
        ),
        ({}, ("pooler",), ("albert/pooler/",)),
        ({}, ("encoder_0",), ("albert/encoder/",)),
        # Without sharing, each layer is a separate group, as in BERT.
        ({"sharing": "none"}, ("encoder_2",), (f"{ATTENTION}2", f"{FFN}2")),
        # Attention that four layers share belongs to the highest layer's group.
        ({"sharing": "attention"}, ("encoder_2",), (f"{FFN}2",)),
        ({"sharing": "attention"}, ("encoder_3",), (ATTENTION, f"{FFN}3")),
        (
            {"num_hidden_groups": 2},
            ("encoder_1",),
            (f"{ATTENTION}1", f"{FFN}1"),
        ),
    ],
)
def test_parts_that_are_frozen(values, freeze, prefixes):
    """`freeze` selects variables by their part or their group of layers."""
    c = config(**LAYERS, **values)
    names = named_variables(AlbertForPretraining(c))
    found = {name for name in names if frozen(name, freeze, c)}
    assert found == {name for name in names if name.startswith(prefixes)}
    assert bool(found) == bool(freeze)


def test_groups_that_can_be_frozen():
    """Only groups that the model has can be frozen."""
    c = config(num_hidden_layers=4, sharing="none")
    check_freeze(("embeddings", "encoder", "encoder_0", "encoder_3"), c)
    for name in ("encoder_4", "encoder_5"):
        with pytest.raises(InputError, match=f"below encoder_4.*{name}"):
            check_freeze((name,), c)


def test_recipes_that_suit_a_run():
    """Each technique has requirements for the run.

    Early stopping needs evaluations. Halving the rate on plateaus also needs a
    constant schedule, and freezing needs pretrained weights. A recipe without
    techniques suits any run.
    """
    RecipeConfig().check_run(False, "linear", "random")
    both = RecipeConfig(early_stopping=1, plateau_patience=1)
    both.check_run(True, "constant", "random")
    RecipeConfig(early_stopping=1).check_run(True, "linear", "random")
    RecipeConfig(freeze=("pooler",)).check_run(False, "linear", "model_dir")
    for recipe, run in (
        (RecipeConfig(early_stopping=1), (False, "constant", "random")),
        (RecipeConfig(plateau_patience=1), (False, "constant", "random")),
        (both, (True, "linear", "random")),
        (RecipeConfig(freeze=("pooler",)), (True, "constant", "random")),
    ):
        with pytest.raises(InputError):
            recipe.check_run(*run)


def test_weights_of_named_classes():
    """A weight may be 0, and a class may have a colon in its name."""
    found = named_weights(("good : 0", "a:b:2.5"))
    assert found == {"good": 0.0, "a:b": 2.5}
    assert named_weights(("balanced",)) == named_weights(()) == {}


def test_waiting_for_a_better_evaluation():
    """A value equal to the best value does not count as a gain."""
    cases = ([], 0), ([0.5], 0), ([0.5, 0.7, 0.7, 0.6], 2), ([0.1, 0.2], 0)
    for values, expected in cases:
        assert evaluations_without_gain(values) == expected


def test_reductions_on_plateaus():
    """Every `patience` evaluations without a gain cause one reduction."""
    values = [0.5, 0.4, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.7]
    assert reductions(values, 2) == 3
    assert reductions(values, 4) == 1
    assert reductions(values[:4], 3) == 0
