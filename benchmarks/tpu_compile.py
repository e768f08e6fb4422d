"""What the TPU compiler says of every size, slice, depth and form of loop.

    python benchmarks/tpu_compile.py --results=tpu_compile.jsonl

Runs `albert_tf.tpu_check` once for each case of the tables, in order of
importance, each in a process of its own, and appends a JSON line at once. A
case that the file already has is not run again: a later call goes on, and
tables share what they have in common. `--print_only` prints the tables of
what is there.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile

from albert_tf.base import settings
from albert_tf.base.errors import InputError
from albert_tf.base.settings import setting
from albert_tf.describe import table
from albert_tf.model.config import AlbertConfig

SIZES = {"base": 32, "large": 16, "xlarge": 8, "xxlarge": 4}  # micro-batch
SLICES = ("v5e-8", "v6e-8", "v4-8", "v5p-8", "v3-8")
FORMS = (
    ("while", "layer"),
    ("unrolled", "none"),
    ("while", "none"),
    ("unrolled", "layer"),
)
DEPTHS = (12, 6, 24, 48)
UNROLLED_DEPTHS = (12, 6, 24)
RECIPES = {
    **{f"{s}_{t}": t for t in ("v5e-8", "v3-8") for s in SIZES},
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
    """One run of tpu_check; `depth` replaces the layers of the config."""

    topology: str
    flags: tuple[str, ...]
    depth: int = 0

    @property
    def key(self) -> str:
        """What makes the case."""
        return " ".join((self.topology, f"L={self.depth}", *self.flags))


def size_case(
    size: str,
    topology: str = "v5e-8",
    form: tuple[str, str] = FORMS[0],
    depth: int = 0,
) -> Case:
    """Return a case of a size at 512 tokens in bfloat16."""
    replicas = {"v4-8": 4, "v5p-8": 4}.get(topology, 8)
    return Case(
        topology,
        (
            f"--albert_config_file=configs/models/albert_{size}_v2.json",
            f"--train_batch_size={SIZES[size] * replicas}",
            "--dtype=bfloat16",
            f"--encoder_loop={form[0]}",
            f"--rematerialize={form[1]}",
        ),
        depth if depth != 12 else 0,
    )


def with_largest(case: Case) -> Case:
    """Return the case with a search for the largest batch."""
    return dataclasses.replace(
        case, flags=(*case.flags, "--find_largest_batch")
    )


def cases() -> dict[str, list[tuple[str, Case]]]:
    """Return the tables: {title: [(name of the row, case)]}."""
    grid = [(size, size_case(size, t)) for t in SLICES for size in SIZES]
    return {
        "size": grid,
        "depth": [
            (
                f"base {' '.join(form)} L = {n}",
                size_case("base", "v5e-8", form, n),
            )
            for form, depths in zip(
                FORMS, (DEPTHS, UNROLLED_DEPTHS), strict=False
            )
            for n in depths
        ],
        "form": [
            (f"{size} {' '.join(form)}", size_case(size, "v5e-8", form))
            for size in ("base", "xxlarge")
            for form in FORMS
        ],
        "recipe": [
            (n, Case(t, (f"--flagfile=configs/pretraining/{n}.flags",)))
            for n, t in RECIPES.items()
        ],
        "largest": [(size, with_largest(case)) for size, case in grid],
    }


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


def line(name: str, case: Case, row: dict) -> tuple[str, ...]:
    """Return the cells of a row."""
    if "error" in row:
        return (name, case.topology, "", row["error"][:40], *[""] * 5)
    needed = row["hbm_needed_bytes"]
    fits = row["fits"]
    milliseconds = row["seconds"]["step"] * 1e3 if fits else None
    return (
        name,
        row["topology"],
        str(row["micro_batch"]),
        "yes" if fits else "no",
        f"{row['compile_cpu_seconds']:.0f}",
        f"{needed / GIB:.2f}" if needed else "?",
        f"{row['hbm_bytes'] / GIB:.2f}",
        f"{milliseconds:.0f}" if fits else "",
        str(row.get("largest_micro_batch", "")),
    )


def tables(rows: dict[str, dict]) -> list[str]:
    """Return the tables of what is there."""
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
    for title, pairs in cases().items():
        body = [
            line(name, case, rows[case.key])
            for name, case in pairs
            if case.key in rows
        ]
        if body:
            lines += ["", title, *table([head, *body])]
    return lines


def main() -> None:
    """Run what is missing and print the tables."""
    config = settings.from_flags(BenchmarkConfig)
    if not os.path.exists("configs/models"):
        raise InputError("Run it in the root of a clone. Received: another")
    rows = read(config.results)
    everything = [pair for pairs in cases().values() for pair in pairs]
    for name, case in everything if not config.print_only else []:
        if "error" not in rows.get(case.key, {"error": "not run"}):
            continue
        rows[case.key] = {"key": case.key, **run(case)}
        with open(config.results, "a", encoding="utf-8") as file:
            file.write(json.dumps(rows[case.key]) + "\n")
        print(" | ".join(line(name, case, rows[case.key])), flush=True)
    print("\n".join(tables(rows)))


if __name__ == "__main__":
    settings.define_flags(BenchmarkConfig)
    settings.run(main)
