"""Inputs and outputs of a lowered step have the right names."""

import pytest
import tiny

from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiled_step import Plan, Step, parsed
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.training_config import TrainingConfig


@pytest.fixture(scope="module")
def step():
    """Return the step of the tiny model on one replica."""
    training = TrainingConfig(train_batch_size=4)
    plan = Plan(tiny.SHALLOW, "none", OptimizerConfig(), training, 8, 3)
    return Step(plan, parse("v5e-1"))


def shapes_of(module):
    """Return the shapes of the module's arguments and outputs."""
    shape = parsed(module.hlo).host_program_shape
    return (
        [tuple(s.dimensions) for s in shape.parameters],
        [tuple(s.dimensions) for s in shape.result.tuple_shapes],
    )


def test_arguments_and_outputs_are_named_as_the_module_orders_them(step):
    """Names and shapes match; exactly the state is updated."""
    module = step.lower(4)
    taken, made = shapes_of(module)
    specs = module.arguments
    assert [tuple(spec.shape) for spec in specs.values()] == taken
    results = {"report": (2, 4), "norm": ()}
    by_name = {n: tuple(spec.shape) for n, spec in specs.items()} | results
    assert [by_name[name] for name in module.outputs] == made
    assert list(specs)[:8] == list(step.specs(4))
    assert module.outputs[:2] == ("report", "norm")
    assert sorted(module.outputs[2:]) == sorted(step.trainer.state())
