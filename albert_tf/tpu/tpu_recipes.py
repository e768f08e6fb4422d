"""The recipes for TPUs, and what the compiler made of them when last accepted.

`recipes.json` has a row for each flagfile of `configs/pretraining/` that names
its slice. `benchmarks/tpu_recipes.py` writes it.
"""

import dataclasses
import importlib.resources
import json
import re

from albert_tf.base import files
from albert_tf.base.command_line import Program
from albert_tf.base.errors import require
from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiled_step import Step
from albert_tf.tpu.compiler import GIB
from albert_tf.tpu.fingerprint import Fingerprint
from albert_tf.tpu.step_check import OPTIONAL, SETTINGS, make_plan

TOLERANCE = 0.02  # of memory
SLICE = re.compile(r"^# .*tpu_check --topology=(\S+)", re.MULTILINE)
FLAG = re.compile(r"^--(\w+)=(.*)$", re.MULTILINE)


def _value(text: str):
    """Return a flag's text as a keyword has it."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_step(path: str) -> tuple[Step, int]:
    """Return the step of a flagfile on the slice it names, and its batch."""
    text = files.read_text(path, "The flagfile")
    named = SLICE.search(text)
    require(named, "The flagfile must name its `tpu_check` command.", file=path)
    values = {name: _value(value) for name, value in FLAG.findall(text)}
    settings = Program(make_plan, SETTINGS, optional=OPTIONAL)
    *configs, _ = settings.configs(topology=named[1], **values)
    plan, topology = make_plan(*configs), parse(named[1])
    return Step(plan, topology), plan.micro_batch(topology.replicas)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What a recipe's step is, and what the compiler gives it.

    Attributes:
      topology: the slice.
      module: of a replica's step.
      compiler: whose memory it is.
      memory: bytes of a replica at its peak, {part: bytes}.
    """

    topology: str
    module: Fingerprint
    compiler: str = ""
    memory: dict[str, int] = dataclasses.field(default_factory=dict)

    def row(self) -> dict:
        """Return it for JSON, of which a line is a fact to review."""
        return vars(self) | {"module": self.module.text()}

    def changes(self, other: "Recipe") -> list[str]:
        """Say what another state of the same recipe has changed."""
        lines = [self.module.difference(other.module)]
        if self.topology != other.topology:
            lines.append(f"slice {self.topology} -> {other.topology}")
        old, new = sum(self.memory.values()), sum(other.memory.values())
        if old and new and abs(new - old) > TOLERANCE * old:
            lines.append(
                f"memory {old / GIB:.3f} -> {new / GIB:.3f} GiB "
                f"({new / old - 1:+.1%}), {self.compiler} -> {other.compiler}"
            )
        return [line for line in lines if line]


def accepted() -> dict[str, Recipe]:
    """Return {name of a flagfile: what was last accepted}."""
    path = importlib.resources.files(__package__) / "recipes.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Recipe(**row | {"module": Fingerprint.read(row["module"])})
        for name, row in rows.items()
    }
