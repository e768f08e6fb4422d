"""Functions are lowered in the way that a replica's step is lowered."""

from albert_tf.tpu.compiler import CompileOnlyStrategy, replica_program


def lower(strategy: CompileOnlyStrategy, step, specs: list) -> bytes:
    """Return a function of tensors as a serialised XLA module."""
    program = replica_program(strategy, step)
    make = program.experimental_get_compiler_ir(*specs)
    return make(stage="hlo_serialized")
