"""The TPU compiler receives correct modules; its messages are understood."""

import contextlib
import importlib.metadata
import types

import pytest
import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.model.ops import dropout, fold_in
from albert_tf.tpu import compiler as compiler_module
from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiled_step import parsed
from albert_tf.tpu.compiler import (
    VERSIONS,
    Compiled,
    CompileOnlyStrategy,
    Compiler,
    ReplicaContext,
    needed_and_available,
    replica_program,
    require_versions,
    stablehlo,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    "message, sizes",
    [
        (
            "Ran out of memory in memory space hbm. Used 17.5G of 15.75G hbm. "
            "Exceeded hbm capacity by 1.75G.",
            (17.5 * GIB, 15.75 * GIB),
        ),
        (
            "the total memory required for HLO temporaries (512.00G) exceeds "
            "available HBM (7.5G).",
            (512 * GIB, 7.5 * GIB),
        ),
        ("Used 512.0K of 2.5M hbm", (512 << 10, 2.5 * (1 << 20))),
        ("Used 1.5T of 100 hbm", (1536 * GIB, 100)),
        ("RESOURCE_EXHAUSTED: out of vmem", None),
    ],
)
def test_sizes_are_read_from_what_the_compiler_says(message, sizes):
    """Needed and available bytes are parsed from messages of the compiler."""
    assert needed_and_available(message) == sizes


@pytest.mark.parametrize(
    "found, received",
    [
        ({}, "jax not installed, jaxlib not installed, libtpu not installed"),
        (
            {"jax": "0.10.3", "jaxlib": "0.10.3", "libtpu": "0.0.43"},
            "jax 0.10.3, jaxlib 0.10.3, libtpu 0.0.43",
        ),
    ],
)
def test_missing_and_other_versions_are_refused(monkeypatch, found, received):
    """The error for missing or wrong versions contains a `pip` command.

    It also states the versions found.
    """

    def version(package):
        if package in found:
            return found[package]
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(InputError) as error:
        require_versions("tpu-check")
    assert "pip install 'albert-tf[tpu-check]'" in str(error.value)
    assert str(error.value).endswith(f"Received: {received}")


def test_the_supported_versions_are_taken(monkeypatch):
    """Any build of the supported libtpu version is valid.

    Step files need no libtpu.
    """
    found = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}
    monkeypatch.setattr(importlib.metadata, "version", found.__getitem__)
    require_versions("tpu-check")
    del found["libtpu"]
    require_versions("step-file")
    found["jaxlib"] = "0.10.3"
    with pytest.raises(InputError, match="jax 0.10.2, jaxlib 0.10.3$"):
        require_versions("step-file")


class Simulated(Compiler):
    """A compiler that returns predefined results.

    Args:
      answer: an error's message, or the program's memory statistics.
    """

    def __init__(self, answer):
        self.answer, self.compiled = answer, []
        self.mlir = types.SimpleNamespace(
            make_ir_context=contextlib.nullcontext
        )
        module = types.SimpleNamespace(parse=lambda text: text)
        self.ir = types.SimpleNamespace(Module=module)
        self.devices = ["device"] * 8

    def _executable(self, module, replicas):
        self.compiled.append((module, replicas))
        if isinstance(self.answer, str):
            raise RuntimeError(self.answer)
        return types.SimpleNamespace(
            get_compiled_memory_stats=lambda: self.answer
        )


FULL = "RESOURCE_EXHAUSTED: Used 17.5G of 15.75G hbm"


def test_the_memory_is_read_from_an_error():
    """If a program is too large, a replica's memory is read from the error.

    The program is for one replica; any other error is raised.
    """
    compiler = Simulated(FULL)
    assert compiler.memory() == 15.75 * GIB
    ((probe, replicas),) = compiler.compiled
    assert "68719476736xf32" in probe and replicas == 1
    with pytest.raises(RuntimeError, match="^another$"):
        Simulated("another").memory()
    with pytest.raises(RuntimeError, match="accepted a program"):
        Simulated(None).memory()


def test_a_result_has_the_parts_of_the_memory(monkeypatch):
    """A result states the parts of the memory that a step needs.

    Insufficient memory is also a result; other errors are raised.
    """
    monkeypatch.setattr(compiler_module, "stablehlo", lambda hlo: hlo + b"!")
    ticks = iter([1.0, 3.5] * 4)
    clock = types.SimpleNamespace(monotonic=lambda: next(ticks))
    monkeypatch.setattr(compiler_module, "time", clock)
    stats = types.SimpleNamespace(
        argument_size_in_bytes=5,
        peak_memory_in_bytes=7,
        generated_code_size_in_bytes=11,
    )
    compiler = Simulated(stats)
    parts = {"arguments": 5, "temporaries": 2, "code": 11}
    assert compiler.compile(b"x") == Compiled(True, 2.5, 18, parts)
    assert compiler.compiled == [(b"x!", 8)]
    needed = int(17.5 * GIB)
    found = Simulated(FULL).compile(b"x")
    assert found == Compiled(False, 2.5, needed, {})
    found = Simulated("RESOURCE_EXHAUSTED").compile(b"x")
    assert found == Compiled(False, 2.5, None, {})
    with pytest.raises(RuntimeError, match="^another$"):
        Simulated("another").compile(b"x")


@pytest.mark.parametrize(
    "name, slice, options",
    [
        ("v5e-1", "v5e:1x1", {"chips_per_host_bounds": (1, 1, 1)}),
        ("v5e-8", "v5e:2x4", {}),
        ("v4-8", "v4:2x2x1", {"chip_config_name": "megacore"}),
        ("v5p-8", "v5:2x2x1", {}),
    ],
)
def test_the_compiler_is_asked_for_the_slice(monkeypatch, name, slice, options):
    """Single-chip slices and v4 chips need special options."""
    calls = []

    def described(**values):
        calls.append(values)
        return types.SimpleNamespace(devices=["device"])

    topologies = types.SimpleNamespace(get_topology_desc=described)
    extras = "mlir", "_jax", "xla", topologies, "ir", "stablehlo"
    monkeypatch.setattr(compiler_module, "require_versions", lambda _: None)
    monkeypatch.setattr(compiler_module, "libraries", lambda: extras)
    compiler = Compiler(parse(name))
    assert (compiler.mlir, compiler.xla, compiler.ir) == ("mlir", "xla", "ir")
    assert compiler.devices == ["device"]
    assert calls == [{"platform": "tpu", "topology_name": slice} | options]


def test_other_reductions_than_sums_are_refused():
    """A reduction other than a sum, such as a mean, raises an error."""
    context = ReplicaContext(CompileOnlyStrategy(2), 0)
    with pytest.raises(NotImplementedError, match="MEAN on a TPU"):
        context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.constant(1.0))


def lower(strategy, step, specs):
    """Lower a function of tensors to a serialized XLA module."""
    program = replica_program(strategy, step)
    make = program.experimental_get_compiler_ir(*specs)
    return make(stage="hlo_serialized")


def summed(replicas):
    """Return the module of a step with a sum over replicas."""
    strategy = CompileOnlyStrategy(replicas)
    with strategy.scope():
        total = tf.Variable(0.0)

    def step(x):
        context = tf.distribute.get_replica_context()
        assert context.num_replicas_in_sync == replicas
        number = tf.cast(context.replica_id_in_sync_group, tf.float32)
        value = tf.reduce_sum(x) + number
        value = context.all_reduce(tf.distribute.ReduceOp.SUM, value)
        context.merge_call(lambda s: s.extended.update(total, add, (value,)))
        return value

    def add(variable, value):
        return variable.assign_add(value)

    return lower(strategy, step, [tf.TensorSpec([4], tf.float32)])


def test_a_replicas_program_has_the_sum_over_all_replicas():
    """The module sums over all replicas, and uses the ID of a replica."""
    module = summed(4)
    assert b"replica-id" in module
    sums = [
        instruction.collective_device_list.replica_groups
        for computation in parsed(module).computations
        for instruction in computation.instructions
        if instruction.opcode == "all-reduce"
    ]
    groups = [[list(group.replica_ids) for group in x] for x in sums]
    assert groups == [[[0, 1, 2, 3]]]


@pytest.fixture(scope="module")
def compiler():
    """Return the compiler for a v5e-8, if the extra is installed."""
    for package in VERSIONS:
        pytest.importorskip(package)
    return Compiler(parse("v5e-8"))


def optimized(compiler: Compiler, hlo: bytes) -> str:
    """Return the text of the optimized module."""
    with compiler.mlir.make_ir_context():
        module = compiler.ir.Module.parse(stablehlo(hlo))
        executable = compiler._executable(module, len(compiler.devices))
        return executable.hlo_modules()[0].to_string()


@pytest.mark.slow
def test_the_compiler_knows_its_slice(compiler):
    """For a v5e-8, the compiler reports eight replicas of 15.75 GiB each."""
    assert len(compiler.devices) == 8
    assert compiler.memory() == int(15.75 * GIB)


@pytest.mark.slow
def test_a_step_is_compiled_for_all_replicas(compiler):
    """The optimized module sums over eight replicas, and fits in memory."""
    compiled = compiler.compile(summed(8))
    assert compiled.fits
    assert 0 < compiled.needed < GIB
    text = optimized(compiler, summed(8))
    assert "replica_groups={{0,1,2,3,4,5,6,7}}" in text


@pytest.mark.slow
def test_memory_is_what_lives_at_once(compiler):
    """In a chain of nine 1 GiB arrays, only two are in memory at once."""

    def step(x):
        for _ in range(8):
            x = tf.tanh(tf.matmul(x, x))
        return tf.reduce_sum(x)

    side = int((GIB / 4) ** 0.5)
    spec = tf.TensorSpec([side, side], tf.float32)
    compiled = compiler.compile(lower(CompileOnlyStrategy(8), step, [spec]))
    assert compiled.parts["arguments"] == GIB
    assert 2 * GIB <= compiled.needed <= 2.1 * GIB
    assert compiled.needed == sum(compiled.parts.values())


@pytest.mark.slow
def test_masks_are_of_the_tpus_own_generator(compiler):
    """A single instruction of the TPU's generator creates a dropout mask."""

    def step(x):
        return dropout(x, 0.1, fold_in(tf.constant([1, 2]), 3))

    spec = tf.TensorSpec([64, 512], tf.float32)
    hlo = lower(CompileOnlyStrategy(8), step, [spec])
    lines = optimized(compiler, hlo).splitlines()
    drawn = [line for line in lines if "rng-bit-gen" in line]
    assert "u32[64,512]" in drawn[0] and "algorithm=rng_default" in drawn[0]


@pytest.mark.slow
def test_too_large_a_step_is_a_result_with_its_size(compiler):
    """The result for a step of three 8 GiB arrays says that it does not fit.

    The result also states the needed memory.
    """
    strategy = CompileOnlyStrategy(8)

    def step(x):
        return tf.sort(x @ x, axis=0)

    side = int((8 * GIB / 4) ** 0.5)
    spec = tf.TensorSpec([side, side], tf.float32)
    compiled = compiler.compile(lower(strategy, step, [spec]))
    assert not compiled.fits
    assert compiled.needed > compiler.memory()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["v2-8", "v3-512", "v4-8", "v5e-1", "v5p-8", "v6e-8"]
)
def test_slices_have_as_many_replicas_as_their_names_say(compiler, name):
    """The table of slices and the compiler agree on numbers of replicas."""
    other = Compiler(parse(name))
    assert len(other.devices) == parse(name).replicas
    assert other.memory() > 7 * GIB
