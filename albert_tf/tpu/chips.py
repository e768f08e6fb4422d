"""TPU generations, and the names and shapes of their slices.

The names and shapes follow the Cloud TPU documentation of 2026, which has a
page for each generation, such as https://docs.cloud.google.com/tpu/docs/v5e.
This module does not list memory sizes, because the compiler reports how much
memory a program may use.
"""

import dataclasses
import math
import re

from albert_tf.base.errors import InputError

FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
SQUARES = ("2x2", "4x4", "8x8", "8x16", "16x16", "16x32", "32x32")
CUBES = tuple("2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8".split())


@dataclasses.dataclass(frozen=True)
class Chip:
    """A TPU generation.

    Attributes:
      compiler_name: the compiler's name for the generation.
      replicas: number of `TPUStrategy` replicas per chip.
      name_counts: how much each chip adds to the number in a slice's name, such
        as 2 in v3-8, which has 4 chips.
      shapes: the available shapes of slices, in chips.
      chip_config: the compiler's name for the chip's operating mode; None means
        the default mode.
    """

    compiler_name: str
    replicas: int
    name_counts: int
    shapes: tuple[str, ...]
    chip_config: str | None = None


CHIPS = {
    "v2": Chip("v2", 2, 2, SQUARES[:5]),
    "v3": Chip("v3", 2, 2, SQUARES),
    # On v4 and v5p, TensorFlow uses the two cores of a chip as one core.
    "v4": Chip("v4", 1, 2, CUBES, "megacore"),
    "v5e": Chip("v5e", 1, 1, FLAT),
    "v5p": Chip("v5", 1, 2, CUBES),
    "v6e": Chip("v6e", 1, 1, FLAT),
}
# {alternative name: generation}
ALIASES = {"v5litepod": "v5e", "v5lite": "v5e", "v5": "v5p", "v6": "v6e"}


def chips_of(shape: str) -> int:
    """Return the number of chips in a shape such as 2x4."""
    return math.prod(map(int, shape.split("x")))


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice: chips of one generation, arranged in a given shape."""

    generation: str
    shape: str

    @property
    def chip(self) -> Chip:
        """The generation of the chips."""
        return CHIPS[self.generation]

    @property
    def chips(self) -> int:
        """The number of chips."""
        return chips_of(self.shape)

    @property
    def replicas(self) -> int:
        """The number of `TPUStrategy` replicas."""
        return self.chips * self.chip.replicas

    @property
    def accelerator_type(self) -> str:
        """Google Cloud's name for the slice, such as v5litepod-8."""
        number = self.chips * self.chip.name_counts
        name = {"v5e": "v5litepod"}.get(self.generation, self.generation)
        return f"{name}-{number}"

    def __str__(self) -> str:
        return f"{self.generation}:{self.shape}"


def names() -> str:
    """Return the valid slice names, with one line per generation."""
    lines = []
    for generation, chip in CHIPS.items():
        slices = [Topology(generation, shape) for shape in chip.shapes]
        pairs = [f"{s} ({s.accelerator_type})" for s in slices]
        lines.append("  " + ", ".join(pairs))
    return "\n".join(lines)


def parse(text: str) -> Topology:
    """Parse a slice's name, such as `v5e:2x4`, `v5e-8` or `v5litepod-8`."""
    match = re.fullmatch(r"(v\w+?)(?::([\dx]+)|-(\d+))", text.strip().lower())
    generation = match and ALIASES.get(match[1], match[1])
    for shape in CHIPS[generation].shapes if generation in CHIPS else ():
        number = chips_of(shape) * CHIPS[generation].name_counts
        if shape == match[2] or str(number) == match[3]:
            return Topology(generation, shape)
    raise InputError(
        "`topology` must be one of the slices listed below. "
        f"Received: topology={text}\n"
        f"{names()}"
    )
