"""Lowering of functions in the same way as a replica's step."""

from albert_tf.tpu.compiler import CompileOnlyStrategy, replica_program


def lower(strategy: CompileOnlyStrategy, step, specs: list) -> bytes:
    """Lower a function of tensors to a serialized XLA module."""
    program = replica_program(strategy, step)
    make = program.experimental_get_compiler_ir(*specs)
    return make(stage="hlo_serialized")
