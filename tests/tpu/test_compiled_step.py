"""`tpu_check` lowers the trainer's step and finds the largest batch size."""

import dataclasses
import json
import types
import zipfile

import numpy as np
import pytest
import tiny

from albert_tf.model.config import training_flops
from albert_tf.tpu import compiled_step
from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiled_step import (
    Plan,
    Step,
    largest,
    parsed,
    shapes,
    sizes,
    write_step,
)
from albert_tf.tpu.compiler import VERSIONS, Compiled, CompileOnlyStrategy
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.training_config import TrainingConfig

GIB = 1 << 30


def plan(config=tiny.CONFIG, **training):
    """Return a plan for a tiny model."""
    settings = TrainingConfig(**({"train_batch_size": 32} | training))
    return Plan(config, "none", OptimizerConfig(), settings, 8, 3)


class Recorder:
    """A stand-in for the compiler; it records modules and needs no extra."""

    def __init__(self, topology):
        self.modules = []

    def compile(self, module):
        self.modules.append(module)
        return Compiled(True, 0.0, 1, {})


@pytest.fixture
def recorded(monkeypatch):
    """Replace the compiler with a `Recorder`."""
    monkeypatch.setattr("albert_tf.tpu.compiled_step.Compiler", Recorder)


@pytest.mark.slow
def test_the_module_is_that_of_the_trainers_step(recorded):
    """The lowered module has the trainer's loops and a sum over replicas."""
    step = Step(plan(gradient_accumulation_steps=2), parse("v5e-8"))
    assert isinstance(step.trainer.strategy, CompileOnlyStrategy)
    assert step.trainer.model.albert.encoder.loop == step.plan.loop
    step.compile(2)
    module = step.compiler.modules[0]
    assert b"all-reduce" in module
    # Loops over micro-batches, layers forward and layers backward.
    assert module.count(b"while") >= 3
    shape = step.specs(2)["input_ids"].shape
    assert shape == (4, 8)


def test_the_loop_is_the_default_of_tpus_unless_given():
    """By default, a plan uses the TPU form of the encoder loop.

    An explicit form is kept.
    """
    assert plan().loop.form == "while" and plan().loop.rematerialize
    assert plan(encoder_loop="unrolled").loop.form == "unrolled"


def test_a_replica_gets_all_of_its_micro_batches():
    """A replica's batch has as many micro-batches as are accumulated."""
    made = plan(gradient_accumulation_steps=2, train_batch_size=48)
    assert made.micro_batch(8) == 3
    specs = Step.specs(types.SimpleNamespace(plan=made), 3)
    assert specs["input_ids"].shape == (6, 8)
    assert specs["masked_lm_ids"].shape == (6, 3)


def test_sizes_grow_by_an_eighth_at_most():
    """Candidate batch sizes include powers of two.

    From 8 on, each size exceeds the previous one by at most 1/8.
    """
    tried = sizes()
    assert tried == sorted(set(tried)) and tried[:9] == list(range(1, 10))
    assert {1 << k for k in range(16)} <= set(tried)
    steps = zip(tried[7:], tried[8:], strict=False)
    assert all((b - a) / a <= 1 / 8 for a, b in steps)


@pytest.mark.parametrize("first", [1, 16, 500])
@pytest.mark.parametrize(
    "fixed, each, expected",
    [(1.0, 0.5, 28), (0.1, 0.011, 1280), (15.0, 0.7, 1), (16.0, 1.0, 0)],
)
@pytest.mark.parametrize("silent", [False, True])
def test_the_largest_batch_is_the_largest(first, fixed, each, expected, silent):
    """The chosen batch size fits, and the next candidate does not.

    The search needs at most five compilations.
    """
    calls = []

    def compile_size(size):
        calls.append(size)
        needed = int((fixed + each * size + 1e-5 * size**1.5) * GIB)
        fits = needed <= 15.75 * GIB
        reported = needed if fits or not silent else None
        parts = {"arguments": int(0.8 * fixed * GIB)} if fits else {}
        return Compiled(fits, 0.0, reported, parts)

    tried = {first: compile_size(first)}
    found = largest(compile_size, tried, int(15.75 * GIB))
    assert found == expected
    assert tried[found].fits if found else not tried[1].fits
    assert len(calls) == len(set(calls)) <= 5


@pytest.mark.slow
def test_a_step_compiles_for_a_tpu():
    """The compiler accepts the real step, with dropout and clipping."""
    for package in VERSIONS:
        pytest.importorskip(package)
    step = Step(plan(gradient_accumulation_steps=2), parse("v5e-8"))
    compiled = step.compile(2)
    assert compiled.fits


@pytest.fixture(scope="module")
def step():
    """Return a step of the tiny model on one replica, with averaged weights."""
    averaging = dataclasses.replace(
        plan(tiny.SHALLOW, train_batch_size=4),
        optimizer=OptimizerConfig(ema_decay=0.5),
    )
    return Step(averaging, parse("v5e-1"))


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


def test_the_first_weights_follow_from_the_seed():
    """The first weights depend on `random_seed`, and on no other state."""
    found = []
    for seed in (1, 1, 2):
        step = Step(plan(tiny.SHALLOW, random_seed=seed), parse("v5e:1x1"))
        table = step.trainer.weights["albert/embeddings/word_embeddings"]
        found.append(table.numpy())
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[1] != found[2]).any()


def test_a_file_has_both_programs_and_the_first_state(
    step, module, tmp_path, monkeypatch
):
    """A step file contains training and evaluation programs and a checkpoint.

    The training program takes a micro-batch. The file also describes the
    arguments, the averages, the settings and the cost.
    """
    batch = {"train_batch_size": 12, "gradient_accumulation_steps": 3}
    monkeypatch.setattr(step, "plan", plan(tiny.SHALLOW, **batch))
    asked, programs = [], []
    monkeypatch.setattr(
        Step, "lower", lambda self, size: asked.append(size) or module
    )
    monkeypatch.setattr(
        compiled_step, "artifact", lambda x: programs.append(x) or x.hlo[:9]
    )
    path = tmp_path / "step.zip"
    write_step(str(path), step, "--seed=1\n")
    assert programs[0] is module and asked == [4]
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
    assert about["examples"] == 12 and about["model_flops"] == 12 * work
    first = {"name": "input_ids", "shape": [4, 8], "dtype": "int32"}
    assert about["arguments"][0] == first
    assert len(about["arguments"]) == len(module.arguments)
    assert about["constants"] == {
        "optimizer/rate_factor": 1.0,
        "optimizer/clock": [0.0, 0.0, 1.0],
    }
    assert about["flags"] == "--seed=1\n"
    weights = step.trainer.weights
    averages = {name: f"optimizer/average/{name}" for name in weights}
    assert about["averages"] == averages
    names = ["mlm_loss", "sop_loss", "mlm_accuracy", "sop_accuracy"]
    assert about["names"] == names
    assert about["encoder_loop"] == {"form": "while", "rematerialize": True}
    assert about["training"]["gradient_accumulation_steps"] == 3
    assert about["optimizer"]["ema_decay"] == step.plan.optimizer.ema_decay
    assert about["facts"]["ema_decay"][0] == 0.5  # of the step's own plan
    assert about["evaluation"] == list(evaluation.arguments)
    assert about["outputs"] == list(module.outputs)
