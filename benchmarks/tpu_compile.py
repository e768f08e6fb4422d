"""What the TPU compiler says of every size, slice, depth and form of loop.

    python benchmarks/tpu_compile.py --results=tpu_compile.jsonl

Runs `albert_tf.tpu_check` once for each line of a list, in order of
importance, each in a process of its own, and appends a JSON line at once. A
line that the file already has is not run again: a later call goes on.
`--print_only` prints the tables of what is there.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile

from albert_tf import settings
from albert_tf.config import AlbertConfig
from albert_tf.describe import table
from albert_tf.errors import InputError
from albert_tf.settings import setting

SIZES = {"base": 32, "large": 16, "xlarge": 8, "xxlarge": 4}  # micro-batch
SLICES = ("v5e-8", "v3-8", "v4-8", "v5p-8", "v6e-8")
FORMS = (
    ("while", "layer"),
    ("unrolled", "none"),
    ("while", "none"),
    ("unrolled", "layer"),
)
DEPTHS = (6, 12, 24, 48)
RECIPES = {
    **{f"{s}_{t}": t for s in SIZES for t in ("v5e-8", "v3-8")},
    "base": "v3-256",
    "large": "v3-256",
    "xlarge": "v3-512",
    "xxlarge": "v3-512",
}
GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """Where the results are kept."""

    results: str = setting("tpu_compile.jsonl", "File of JSON lines.")
    print_only: bool = setting(False, "Print the tables and stop.")


@dataclasses.dataclass(frozen=True)
class Case:
    """One run of tpu_check."""

    kind: str
    name: str
    topology: str
    flags: tuple[str, ...]
    depth: int = 0

    @property
    def key(self) -> str:
        """What makes the case."""
        return " ".join((self.kind, self.name, self.topology, *self.flags))


def size_flags(size: str, micro_batch: int, topology: str) -> tuple[str, ...]:
    """Return the flags of a size at 512 tokens in bfloat16."""
    replicas = {"v4-8": 4, "v5p-8": 4}.get(topology, 8)
    return (
        f"--albert_config_file=configs/models/albert_{size}_v2.json",
        f"--train_batch_size={micro_batch * replicas}",
        "--dtype=bfloat16",
    )


def cases() -> list[Case]:
    """Return the list, in order of importance."""
    recipes = [
        Case("recipe", n, t, (f"--flagfile=configs/pretraining/{n}.flags",))
        for n, t in RECIPES.items()
    ]
    forms = [
        Case(
            "form",
            f"{size} {form} {again}",
            "v5e-8",
            size_flags(size, micro_batch, "v5e-8")
            + (f"--encoder_loop={form}", f"--rematerialize={again}"),
        )
        for size, micro_batch in (("base", 32), ("xxlarge", 4))
        for form, again in FORMS
    ]
    depths = [
        Case("depth", f"L = {n}", "v5e-8", size_flags("base", 32, "v5e-8"), n)
        for n in DEPTHS
    ]
    grid = [
        Case(kind, size, topology, size_flags(size, batch, topology) + more)
        for kind, more in (
            ("size", ()),
            ("largest", ("--find_largest_batch",)),
        )
        for topology in SLICES
        for size, batch in SIZES.items()
    ]
    firsts = [c for c in recipes if "v5e" in c.topology]
    rest = [c for c in recipes if c not in firsts]
    return [*forms[:4], *depths, *firsts, *forms[4:], *rest, *grid]


def deeper(path: str, depth: int, folder: str) -> str:
    """Write a config file with another number of layers."""
    config = AlbertConfig.from_json_file(path)
    dataclasses.replace(config, num_hidden_layers=depth).save(folder)
    return os.path.join(folder, "albert_config.json")


def run(case: Case) -> dict:
    """Run one case; what goes wrong is a result too."""
    with tempfile.TemporaryDirectory() as folder:
        flags = list(case.flags)
        if case.depth:
            path = deeper(flags[0].split("=")[1], case.depth, folder)
            flags[0] = f"--albert_config_file={path}"
        out = os.path.join(folder, "out.json")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "albert_tf.tpu_check"),
                *(f"--topology={case.topology}", f"--json={out}", *flags),
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1]}
        with open(out, encoding="utf-8") as file:
            return json.load(file)


def read(path: str) -> dict[str, dict]:
    """Return {key: row} of the results so far."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return {row["key"]: row for row in rows}


def line(case: Case, row: dict) -> tuple[str, ...]:
    """Return the cells of a row."""
    if "error" in row:
        return (case.name, case.topology, "", row["error"][:40], *[""] * 5)
    needed = row["hbm_needed_bytes"]
    fits = row["fits"]
    milliseconds = row["seconds"]["step"] * 1e3 if fits else None
    return (
        case.name,
        row["topology"],
        str(row["micro_batch"]),
        "yes" if fits else "no",
        f"{row['compile_seconds']:.0f}",
        f"{needed / GIB:.2f}" if needed else "?",
        f"{row['hbm_bytes'] / GIB:.2f}",
        f"{milliseconds:.0f}" if fits else "",
        str(row.get("largest_micro_batch", "")),
    )


def tables(rows: dict[str, dict]) -> list[str]:
    """Return the tables of what is there, one for each kind."""
    head = (
        "case",
        "topology",
        "micro-batch",
        "fits",
        "CPU s",
        "HBM GiB",
        "of GiB",
        "bound ms",
        "largest",
    )
    lines = []
    for kind in dict.fromkeys(case.kind for case in cases()):
        found = [c for c in cases() if c.kind == kind and c.key in rows]
        if found:
            body = [line(case, rows[case.key]) for case in found]
            lines += ["", kind, *table([head, *body])]
    return lines


def main() -> None:
    """Run what is missing and print the tables."""
    config = settings.from_flags(BenchmarkConfig)
    if not os.path.exists("configs/models"):
        raise InputError("Run it in the root of a clone. Received: another")
    rows = read(config.results)
    for case in cases() if not config.print_only else []:
        if "error" not in rows.get(case.key, {"error": "not run"}):
            continue
        rows[case.key] = {"key": case.key, **run(case)}
        with open(config.results, "a", encoding="utf-8") as file:
            file.write(json.dumps(rows[case.key]) + "\n")
        print(" | ".join(line(case, rows[case.key])), flush=True)
    print("\n".join(tables(rows)))


if __name__ == "__main__":
    settings.define_flags(BenchmarkConfig)
    settings.run(main)
