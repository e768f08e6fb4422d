"""Comparison of runs with recorded traces.

On the kind of machine that recorded the trace (the same processor, TensorFlow,
Keras and NumPy), a run must match bit for bit. Other machines round sums in a
different order, and training amplifies the differences from step to step. On
such machines, losses, gradient norms and learning rates must be close; after
the first `EARLY` steps of fine-tuning, losses must be similar, and norms may
differ. Scores that count examples are compared only on the same kind of
machine, because a rounding error can decide between two predictions.
"""

import dataclasses
import json
import math
import platform
from importlib import metadata
from pathlib import Path

FOLDER = Path(__file__).parent / "recorded"
LIBRARIES = ("tensorflow", "keras", "numpy")
# Libraries partition sums by cache size and select vectorized code by CPU
# features.
MODEL = ("vendor_id", "cpu family", "model", "cache size")
FEATURES = ("sse4_2", "avx", "fma", "avx2", "avx512", "avx_vnni", "amx")
EARLY = 20
# Relative differences. Between three processors of AMD and Intel, the losses of
# pretraining differed by less than 1%. Those of fine-tuning differed by up to
# 13% after step 20, and single gradient norms by a factor of 2.5.
TOLERANCE = 0.01
NORM_TOLERANCE = 0.3
LATE_TOLERANCE = 0.25


def machine() -> dict[str, str]:
    """Return the machine's properties that affect the last bits of results."""
    facts: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        facts = {
            k.strip(): v.strip()
            for k, _, v in (x.partition(":") for x in lines)
        }
    features = facts.get("flags", "").split()
    processor = [
        platform.machine(),
        *(facts[name] for name in MODEL if name in facts),
        *sorted(flag for flag in features if flag.startswith(FEATURES)),
    ]
    versions = {name: metadata.version(name) for name in LIBRARIES}
    return versions | {"processor": " ".join(processor)}


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The measurements of a run, and the machine on which it ran.

    Attributes:
      machine: see `machine`.
      recipes: the recipes or kinds of tasks that the run represents.
      rows: {loss, gradient norm or rate: value} of each step.
      evaluation: {metric: value} after the last step.
    """

    machine: dict[str, str]
    recipes: list[str]
    rows: list[dict[str, float]]
    evaluation: dict[str, float]

    def save(self, name: str) -> None:
        """Write a recorded trace: a header line, then one line per step."""
        head = dataclasses.asdict(self)
        del head["rows"]
        lines = [json.dumps(part) + "\n" for part in (head, *self.rows)]
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}.jsonl").write_text("".join(lines))


def is_recorded(name: str) -> bool:
    """Return whether a trace with this name is recorded."""
    return (FOLDER / f"{name}.jsonl").exists()


def read(name: str) -> Recorded:
    """Return the recorded trace with this name."""
    lines = (FOLDER / f"{name}.jsonl").read_text().splitlines()
    head, *rows = map(json.loads, lines)
    return Recorded(**head, rows=rows)


def tolerance(name: str, late: bool) -> float:
    """Return the relative tolerance for a value on another machine."""
    if name == "gradient_norm":
        return math.inf if late else NORM_TOLERANCE
    return LATE_TOLERANCE if late and name.endswith("loss") else TOLERANCE


def unequal(expected: dict, found: dict, exact: bool, late: bool) -> list[str]:
    """Return a description of each value that differs beyond the tolerance."""
    return [
        f"{name} is {found.get(name)!r}, recorded {expected.get(name)!r}"
        for name in {**expected, **found}
        if name not in expected
        or name not in found
        or not abs(found[name] - expected[name])
        <= (0 if exact else tolerance(name, late)) * abs(expected[name])
    ]


def first_difference(recorded: Recorded, run: Recorded) -> str | None:
    """Describe the first step at which a run differs from its record.

    The result is None if values are bit-identical or, on another kind of
    machine, within the tolerances.
    """
    exact = run.machine == recorded.machine
    tuned = "task_loss" in recorded.rows[0]
    if run.recipes != recorded.recipes:
        return f"stands for {run.recipes}, recorded for {recorded.recipes}"
    if len(run.rows) != len(recorded.rows):
        return f"{len(run.rows)} steps, recorded {len(recorded.rows)}"
    pairs = zip(recorded.rows, run.rows, strict=True)
    for step, (expected, found) in enumerate(pairs, 1):
        late = tuned and step > EARLY
        if different := unequal(expected, found, exact, late):
            return f"step {step}: {'; '.join(different)}"
    scores = recorded.evaluation, run.evaluation
    if not exact:
        scores = tuple(
            {name: x for name, x in part.items() if name.endswith("loss")}
            for part in scores
        )
    if different := unequal(*scores, exact, late=tuned):
        return f"evaluation: {'; '.join(different)}"
    return None
