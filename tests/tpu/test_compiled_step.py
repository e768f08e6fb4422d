"""`tpu_check` lowers the trainer's step and finds the largest batch size."""

import types

import pytest
import tiny

from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiled_step import (
    Plan,
    Step,
    largest,
    sizes,
)
from albert_tf.tpu.compiler import VERSIONS, Compiled, CompileOnlyStrategy
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.training_config import TrainingConfig

GIB = 1 << 30


def plan(**training):
    """Return a plan for the tiny model."""
    settings = TrainingConfig(**({"train_batch_size": 32} | training))
    return Plan(tiny.CONFIG, "none", OptimizerConfig(), settings, 8, 3)


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
