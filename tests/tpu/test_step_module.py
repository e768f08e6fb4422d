"""Inputs and outputs of a lowered step have the right names."""

import json
import zipfile

import pytest
import tiny

from albert_tf.model.config import training_flops
from albert_tf.tpu import compiled_step
from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiled_step import (
    Plan,
    Step,
    parsed,
    shapes,
    write_step,
)
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.training_config import TrainingConfig


@pytest.fixture(scope="module")
def step():
    """Return the step of the tiny model on one replica."""
    training = TrainingConfig(train_batch_size=4)
    plan = Plan(tiny.SHALLOW, "none", OptimizerConfig(), training, 8, 3)
    return Step(plan, parse("v5e-1"))


@pytest.fixture(scope="module")
def module(step):
    """Return the lowered module of the step, for a batch of four examples."""
    return step.lower(4)


def shapes_of(module):
    """Return the shapes of the module's arguments and outputs."""
    shape = parsed(module.hlo).host_program_shape
    return (
        [tuple(s.dimensions) for s in shape.parameters],
        [tuple(s.dimensions) for s in shape.result.tuple_shapes],
    )


def test_arguments_and_outputs_are_named_as_the_module_orders_them(
    step, module
):
    """The names of arguments and outputs are in the order of the module.

    A step updates all variables of the trainer's state, and no others.
    """
    taken, made = shapes_of(module)
    specs = module.arguments
    assert [tuple(spec.shape) for spec in specs.values()] == taken
    results = {"report": (2, 4), "norm": ()}
    by_name = {n: tuple(spec.shape) for n, spec in specs.items()} | results
    assert [by_name[name] for name in module.outputs] == made
    assert list(specs)[:8] == list(step.specs(4))
    assert module.outputs[:2] == ("report", "norm")
    assert sorted(module.outputs[2:]) == sorted(step.trainer.state())
    specs = shapes(module)
    assert {n: tuple(x.shape) for n, x in specs.items()} == by_name


def test_a_file_has_both_programs_and_the_first_state(
    step, module, tmp_path, monkeypatch
):
    """A step file contains training and evaluation programs and a checkpoint.

    The file also describes the arguments, the settings and the cost.
    """
    monkeypatch.setattr(Step, "lower", lambda self, size: module)
    programs = []
    monkeypatch.setattr(
        compiled_step, "artifact", lambda x: programs.append(x) or x.hlo[:9]
    )
    path = tmp_path / "step.zip"
    write_step(str(path), step, "--seed=1\n")
    assert programs[0] is module
    evaluation = programs[1]
    assert evaluation.outputs == ("report",)
    assert tuple(evaluation.arguments["input_ids"].shape) == (64, 8)
    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read("step.json"))
        assert archive.read("step.jax") == module.hlo[:9]
        assert archive.read("evaluation.jax") == evaluation.hlo[:9]
        assert {"ckpt-0.index", "ckpt-0.json"} < set(archive.namelist())
    assert (about["tokens"], about["predictions"]) == (8, 3)
    work = training_flops(tiny.SHALLOW, 8, 3)
    assert about["examples"] == 4 and about["model_flops"] == 4 * work
    first = {"name": "input_ids", "shape": [4, 8], "dtype": "int32"}
    assert about["arguments"][0] == first
    assert len(about["arguments"]) == len(module.arguments)
    assert about["constants"] == {
        "optimizer/rate_factor": 1.0,
        "optimizer/clock": [0.0, 0.0, 1.0],
    }
    assert about["averages"] == {} and about["flags"] == "--seed=1\n"
    assert about["evaluation"] == list(evaluation.arguments)
    assert about["outputs"] == list(module.outputs)
