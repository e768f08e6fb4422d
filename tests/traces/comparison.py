"""Recorded traces, and how a run is compared with one.

On the kind of machine that recorded it (the same processor features and the
same TensorFlow, Keras and NumPy) a run must match to the bit. Elsewhere sums
are rounded in another order, and training amplifies the differences from step
to step: there every value must lie within `TOLERANCE`.
"""

import dataclasses
import json
import platform
from importlib import metadata
from pathlib import Path

FOLDER = Path(__file__).parent / "recorded"
LIBRARIES = ("tensorflow", "keras", "numpy")
# What libraries choose their vectorized code by.
FEATURES = ("sse4_2", "avx", "fma", "avx2", "avx512", "avx_vnni", "amx")
# Relative, of a loss, norm or rate.
TOLERANCE = 0.02


def machine() -> dict[str, str]:
    """Return what the last bits of a run depend on."""
    flags: set[str] = set()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        flags |= {f for x in lines if x.startswith("flags") for f in x.split()}
    found = sorted(flag for flag in flags if flag.startswith(FEATURES))
    versions = {name: metadata.version(name) for name in LIBRARIES}
    return versions | {"processor": " ".join([platform.machine(), *found])}


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A run's figures, and where they were measured.

    Attributes:
      machine: see `machine`.
      recipes: the recipes or kinds of tasks that the run stands for.
      rows: {loss, gradient norm or rate: value} of each step.
      evaluation: {metric: value} after the last step.
    """

    machine: dict[str, str]
    recipes: list[str]
    rows: list[dict[str, float]]
    evaluation: dict[str, float]

    def save(self, name: str) -> None:
        """Write a recorded trace, one line per step."""
        head = dataclasses.asdict(self)
        del head["rows"]
        lines = [json.dumps(part) + "\n" for part in (head, *self.rows)]
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}.jsonl").write_text("".join(lines))


def is_recorded(name: str) -> bool:
    """Return whether there is a recorded trace."""
    return (FOLDER / f"{name}.jsonl").exists()


def read(name: str) -> Recorded:
    """Read a recorded trace."""
    lines = (FOLDER / f"{name}.jsonl").read_text().splitlines()
    head, *rows = map(json.loads, lines)
    return Recorded(**head, rows=rows)


def unequal(expected: dict, found: dict, tolerance: float) -> list[str]:
    """Describe the values that differ by more than a relative tolerance."""
    return [
        f"{name} is {found.get(name)!r}, recorded {expected.get(name)!r}"
        for name in {**expected, **found}
        if name not in expected
        or name not in found
        or not abs(found[name] - expected[name])
        <= tolerance * abs(expected[name])
    ]


def first_difference(recorded: Recorded, run: Recorded) -> str | None:
    """Describe the first step where a run departs from its record.

    Returns None where there is none: to the bit on the recording kind of
    machine, within `TOLERANCE` elsewhere.
    """
    tolerance = 0.0 if run.machine == recorded.machine else TOLERANCE
    if run.recipes != recorded.recipes:
        return f"stands for {run.recipes}, recorded for {recorded.recipes}"
    if len(run.rows) != len(recorded.rows):
        return f"{len(run.rows)} steps, recorded {len(recorded.rows)}"
    pairs = zip(recorded.rows, run.rows, strict=True)
    for step, (expected, found) in enumerate(pairs, 1):
        if different := unequal(expected, found, tolerance):
            return f"step {step}: {'; '.join(different)}"
    if different := unequal(recorded.evaluation, run.evaluation, tolerance):
        return f"evaluation: {'; '.join(different)}"
    return None
