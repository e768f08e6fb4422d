"""The step for a TPU is the trainer's; its costs; the largest batch."""

import json

import pytest
import tiny

from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiled_step import (
    Plan,
    Step,
    crossing,
    largest,
    roofline,
    sizes,
)
from albert_tf.tpu.compiler import VERSIONS, Compiled, CompileOnlyStrategy
from albert_tf.tpu.step_check import cost_lines
from albert_tf.training.optimization.optimizers import OptimizerConfig
from albert_tf.training.step.training_config import TrainingConfig

GIB = 1 << 30


def plan(**training):
    """Return a plan for the tiny model."""
    settings = TrainingConfig(**({"train_batch_size": 32} | training))
    return Plan(tiny.CONFIG, "none", OptimizerConfig(), settings, 8, 3)


class Recorder:
    """Stands in for the compiler, which needs an extra."""

    def __init__(self, topology):
        self.modules = []

    def compile(self, module):
        self.modules.append(module)
        return Compiled(True, 0.0, 0.0, 1, {})


@pytest.fixture
def recorded(monkeypatch):
    """Let steps be lowered only."""
    monkeypatch.setattr("albert_tf.tpu.compiled_step.Compiler", Recorder)


def test_the_module_is_that_of_the_trainers_step(recorded):
    """Loops over micro-batches and layers and all sums are in it."""
    step = Step(plan(gradient_accumulation_steps=2), parse("v5e-8"))
    assert isinstance(step.trainer.strategy, CompileOnlyStrategy)
    assert step.trainer.model.albert.encoder.loop == step.plan.loop
    step.compile(2)
    module = step.compiler.modules[0]
    assert b"all-reduce" in module
    # Micro-batches, layers forward, layers backward.
    assert module.count(b"while") >= 3
    shape = step.specs(2)["input_ids"].shape
    assert shape == (4, 8)


def test_the_loop_is_the_default_of_tpus_unless_given():
    """`auto` is what a run with TPUStrategy takes."""
    assert plan().loop.form == "while" and plan().loop.rematerialize
    assert plan(encoder_loop="unrolled").loop.form == "unrolled"


def test_flops_are_by_hand_with_one_more_forward_pass():
    """What is repeated is the forward pass of both halves of the layers."""
    t, p, e, h, i, v, layers = 8, 3, 8, 16, 32, 50, 2
    layer = 4 * t * h * h + 2 * t * t * h + 2 * t * h * i
    last = 2 * t * h * h + (p + 1) * (2 * h * h + 2 * t * h + 2 * h * i)
    encoder = (layers - 1) * layer + last
    rest = t * e * h + h * h + p * (h * e + e * v) + 2 * h
    assert plan().flops() == (3 * 2 * (encoder + rest), 2 * encoder)
    assert plan(rematerialize="none").flops() == (6 * (encoder + rest), 0)


TEXT = """HloModule step
ENTRY %main (a: f32[1000000]) -> f32[1000000] {
  %a = f32[1000000]{0} parameter(0)
  ROOT %r = f32[1000000]{0} all-reduce(%a), replica_groups={{0,1,2,3,4,5,6,7}}
}
"""


def test_the_bound_is_by_hand(recorded):
    """Peak rates of v5e: 197 TFLOP/s, 819 GB/s, links of 200 GB/s."""
    step = Step(plan(), parse("v5e-8"))
    bound = roofline(step, 4, Compiled(True, 1.0, 1.0, 1, {}, TEXT))
    flops, seconds = bound["flops_per_replica"], bound["seconds"]
    assert flops == 4 * sum(plan().flops())
    assert bound["flops_per_byte"] == flops / bound["bytes_per_replica"]
    assert seconds["compute"] == pytest.approx(flops / 197e12)
    assert seconds["memory"] == pytest.approx(8e6 / 819e9)
    assert seconds["network"] == pytest.approx(4e6 * 2 * 7 / 8 / 200e9)
    assert seconds["step"] == seconds["memory"] + seconds["network"]


def test_the_cost_of_the_job_is_that_of_its_steps(recorded):
    """Hours are steps times the bound, chip-hours times the chips."""
    step = Step(plan(num_train_steps=7200), parse("v5e-8"))
    facts = roofline(step, 4, Compiled(True, 1, 1, 1, {}, TEXT))
    seconds = 8e6 / 819e9 + 4e6 * 2 * 7 / 8 / 200e9
    assert facts["seconds"]["step"] == pytest.approx(seconds)
    assert facts["job_hours"] == pytest.approx(2 * seconds)
    assert facts["job_chip_hours"] == pytest.approx(16 * seconds)
    lines = cost_lines(facts)
    assert "all-reduce over 8 replicas: 4.000 MB, 1 times a step" in lines
    assert "lower bound" in lines[-2] and lines[-1].startswith("7,200 steps")
    json.dumps(facts)


def test_sizes_grow_by_an_eighth_at_most():
    """All small sizes, all powers of two, and steps of at most 1/8."""
    tried = sizes()
    assert tried == sorted(set(tried)) and tried[:9] == list(range(1, 10))
    assert {1 << k for k in range(16)} <= set(tried)
    steps = zip(tried[7:], tried[8:], strict=False)
    assert all((b - a) / a <= 1 / 8 for a, b in steps)


def test_a_line_through_two_sizes():
    """1 GiB and 0.5 GiB per example reach 16 GiB at 30."""
    assert crossing({2: 2 * GIB, 4: 3 * GIB}, 16 * GIB) == 30
    assert crossing({0: 0, 2: 2 * GIB, 4: 3 * GIB}, 16 * GIB) == 30
    assert crossing({4: 3 * GIB}, 16 * GIB) == 0


@pytest.mark.parametrize("first", [1, 16, 500])
@pytest.mark.parametrize(
    "fixed, each, expected",
    [(1.0, 0.5, 28), (0.1, 0.011, 1280), (15.0, 0.7, 1), (16.0, 1.0, 0)],
)
@pytest.mark.parametrize("silent", [False, True])
def test_the_largest_batch_is_the_largest(first, fixed, each, expected, silent):
    """It fits, the next one does not, and few compilations find it."""
    calls = []

    def compile_size(size):
        calls.append(size)
        needed = int((fixed + each * size + 1e-5 * size**1.5) * GIB)
        fits = needed <= 15.75 * GIB
        known = needed if fits or not silent else None
        parts = {"arguments": int(0.8 * fixed * GIB)} if fits else {}
        return Compiled(fits, 0.0, 0.0, known, parts)

    tried = {first: compile_size(first)}
    found = largest(compile_size, tried, int(15.75 * GIB))
    assert found == expected
    assert tried[found].fits if found else not tried[1].fits
    assert len(calls) == len(set(calls)) <= 5


@pytest.mark.slow
def test_a_step_compiles_for_a_tpu():
    """The real compiler takes the real step, dropout and clipping included."""
    for package in VERSIONS:
        pytest.importorskip(package)
    step = Step(plan(gradient_accumulation_steps=2), parse("v5e-8"))
    compiled = step.compile(2)
    assert compiled.fits
    bound = roofline(step, 2, compiled)
    assert {x["replicas"] for x in bound["collectives"]} == {8}
    assert bound["bytes_per_replica"] > 0
