"""What identifies the work of a lowered module, whatever its parts are called.

Names, places in source files and numbers of instructions change with what was
traced before and where TensorFlow is installed; operations, shapes, types,
constants, their order and what feeds what do not.
"""

import collections
import dataclasses
import hashlib
import re

from tensorflow.compiler.xla.service import hlo_pb2

from albert_tf.tpu.step_module import parsed

# Of an instruction. The mode follows from the channel and the groups, and only
# some versions of TensorFlow write it.
UNHEARD = {"name", "metadata", "statistics_viz", "collective_op_group_mode"}


def anonymous(hlo: bytes) -> hlo_pb2.HloModuleProto:
    """Return a module without names, its parts numbered in their order."""
    module = parsed(hlo)
    computations = module.computations
    instructions = [x for c in computations for x in c.instructions]
    places = {c.id: place for place, c in enumerate(computations)}
    places |= {x.id: place for place, x in enumerate(instructions)}

    def renumber(message, *fields):
        for field in fields:
            value = getattr(message, field)
            if isinstance(value, int):
                setattr(message, field, places[value])
            else:
                value[:] = [places[number] for number in value]

    renumber(module, "entry_computation_id")
    for field in ("name", "id", "entry_computation_name", "stack_frame_index"):
        module.ClearField(field)
    module.host_program_shape.ClearField("parameter_names")
    for computation in computations:
        renumber(computation, "id", "root_id")
        computation.ClearField("name")
        computation.program_shape.ClearField("parameter_names")
    for x in instructions:
        edges = "operand_ids", "control_predecessor_ids"
        renumber(x, "id", *edges, "called_computation_ids")
        for field in UNHEARD.intersection(x.DESCRIPTOR.fields_by_name):
            x.ClearField(field)
    return module


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """What a module does.

    Attributes:
      digest: equal for modules that do the same.
      operations: {opcode: how many}, to explain a difference.
    """

    digest: str
    operations: dict[str, int]

    def text(self) -> str:
        """Return it as a line: the digest, then the operations."""
        counts = sorted(self.operations.items())
        return f"{self.digest}: " + ", ".join(f"{k} {n}" for k, n in counts)

    @classmethod
    def read(cls, text: str) -> "Fingerprint":
        """Return what `text` wrote."""
        digest, _, counts = text.partition(": ")
        pairs = re.findall(r"(\S+) (\d+)", counts)
        return cls(digest, {name: int(number) for name, number in pairs})

    def difference(self, other: "Fingerprint") -> str:
        """Say how another one differs; empty if it does not."""
        if self.digest == other.digest:
            return ""
        names = sorted({*self.operations, *other.operations})
        before = [self.operations.get(name, 0) for name in names]
        after = [other.operations.get(name, 0) for name in names]
        changed = [
            f"{name} {old} -> {new}"
            for name, old, new in zip(names, before, after, strict=True)
            if old != new
        ]
        said = ", ".join(changed) or "as many operations of each kind"
        return f"module {self.digest} -> {other.digest}: {said}"


def fingerprint(hlo: bytes) -> Fingerprint:
    """Return the fingerprint of a serialized module."""
    module = anonymous(hlo)
    operations = collections.Counter(
        x.opcode for c in module.computations for x in c.instructions
    )
    text = module.SerializeToString(deterministic=True)
    return Fingerprint(hashlib.sha256(text).hexdigest()[:16], operations)
