"""The replica step as one XLA module, and what goes into it and out of it.

XLA numbers arguments and outputs. The arguments are the batch's tensors and
then the variables, in the order in which the step came upon them; the outputs
are what the step returns and then the variables that it updates, which the
module calls the successors of arguments.
"""

import dataclasses

import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2

RESULTS = ("report", "norm")  # of `Trainer.replica_step`


@dataclasses.dataclass(frozen=True)
class StepModule:
    """A lowered step.

    Attributes:
      hlo: XLA's serialized module.
      arguments: {name: shape and type} in the module's order.
      outputs: their names in order; an updated variable has that of the
        argument whose place it takes.
    """

    hlo: bytes
    arguments: dict[str, tf.TensorSpec]
    outputs: tuple[str, ...]


def parsed(hlo: bytes) -> hlo_pb2.HloModuleProto:
    """Return a serialized module as a message."""
    return hlo_pb2.HloModuleProto.FromString(hlo)


def lower_step(
    function,
    batch: dict[str, tf.TensorSpec],
    variables: dict[str, tf.Variable],
) -> StepModule:
    """Lower a replica's step and name its arguments and outputs.

    Args:
      function: a compiled `tf.function` of the batch's tensors, in order.
      batch: its tensors.
      variables: all that the step reads.
    """
    specs = list(batch.values())
    hlo = function.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    names = {id(v.handle): name for name, v in variables.items()}
    captured = function.get_concrete_function(*specs).captured_inputs
    arguments = dict(batch)
    for handle in captured:
        name = names[id(handle)]
        variable = variables[name]
        arguments[name] = tf.TensorSpec(variable.shape, variable.dtype, name)
    order = list(arguments)
    outputs = dict(enumerate(RESULTS))
    for successor in parsed(hlo).input_output_alias.entries:
        (place,) = successor.output_shape_index
        outputs[place] = order[successor.parameter_number]
    return StepModule(
        hlo, arguments, tuple(outputs[place] for place in range(len(outputs)))
    )
