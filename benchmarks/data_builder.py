"""Measure time, memory and disk use of the data builder.

    python benchmarks/data_builder.py --text=TEXT --spm_model_file=MODEL \\
        [--trees=BASELINE,. --rounds=5] [--runner=DirectRunner]

TEXT has one sentence per line, and blank lines between documents. BASELINE is
another checkout of the project. Each build runs `create_pretraining_data.py`
from start to finish. The released builder (google-research/albert at b772393)
processed 54,350 tokens per second at length 128 and 49,686 at length 512. It
ran in one process that wrote no files, on 2.0 MB of English text with a
vocabulary of 8,000 pieces, on 2 cores of an AMD EPYC.
"""

import contextlib
import dataclasses
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from albert_tf.base import program
from albert_tf.base.console import format_table
from albert_tf.base.settings import setting
from albert_tf.data.records import metadata
from albert_tf.data.records.metadata import Metadata

HERE = str(Path(__file__).parents[1])
RELEASED = {128: 54_350, 512: 49_686}  # tokens per second


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """The builds, the checkouts to measure, and the number of rounds."""

    text: str = setting(None, "Text, one sentence per line.", required=True)
    spm_model_file: str = setting(None, "SentencePiece model.", required=True)
    max_seq_length: int = setting(512, "Tokens per example.")
    num_processes: tuple = setting(("1", "2"), "Numbers of processes to try.")
    builds: tuple = setting(
        ("static-1", "static-10", "static-40", "dynamic-1"),
        "Builds to measure, each as MASKING-DUPE_FACTOR.",
    )
    trees: tuple = setting((HERE,), "Checkouts to measure in turn.")
    rounds: int = setting(1, "Repetitions; the median duration is reported.")
    runner: str | None = setting(
        None, "Apache Beam runner, with `num_processes` workers."
    )


def session_bytes(root: int) -> int:
    """Return the proportional set size of a session's processes, in bytes."""
    total = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if os.getsid(int(entry.name)) == root:
                text = (entry / "smaps_rollup").read_text()
                total += int(text.split("\nPss:")[1].split()[0]) << 10
    return total


def measured(command: list[str]) -> tuple[float, int]:
    """Run a command; return its duration (s) and its peak memory (bytes)."""
    start, peak = time.perf_counter(), 0
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, start_new_session=True
    )
    while process.poll() is None:
        peak = max(peak, session_bytes(process.pid))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)  # sampling memory takes milliseconds
    if process.returncode:
        raise SystemExit(f"The build failed: {' '.join(command)}")
    return time.perf_counter() - start, peak


def build(
    config: BenchmarkConfig, kind: str, processes: str, tree: str
) -> tuple[float, int, Metadata]:
    """Build records; return the duration, the peak memory and the metadata.

    The duration is in seconds, and the memory in bytes.
    """
    masking, duplicates = kind.split("-")
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            "input_file": config.text,
            "spm_model_file": config.spm_model_file,
            "output_dir": folder,
            "max_seq_length": config.max_seq_length,
            "masking": masking,
            "dupe_factor": duplicates,
            "num_processes": processes,
        }
        if config.runner:
            flags["pipeline_options"] = (
                f"--runner={config.runner} --direct_num_workers={processes} "
                "--direct_running_mode=multi_processing"
            )
        command = [sys.executable, f"{tree}/create_pretraining_data.py"]
        command += [f"--{flag}={value}" for flag, value in flags.items()]
        return *measured(command), metadata.load_metadata(folder)


def row(config: BenchmarkConfig, case: tuple, runs: list) -> list[str]:
    """Return the table row of a case."""
    seconds, memory, made = zip(*runs, strict=True)
    counts, middle = made[0].statistics, statistics.median(seconds)
    size = sum(e.bytes for split in made[0].splits.values() for e in split)
    tokens = counts["records"] * counts["tokens_per_record"] / middle
    released = RELEASED.get(config.max_seq_length)
    return [
        *case,
        f"{middle:.1f}",
        f"{tokens:,.0f}",
        f"{tokens / released:.0f}" if released else "",
        f"{max(memory) / 1e6:,.0f}",
        f"{size / counts['tokens']:.2f}",
    ]


@program.command(BenchmarkConfig)
def main(config: BenchmarkConfig) -> None:
    """Run the builds, and print a table of the results."""
    cases = itertools.product(config.builds, config.num_processes, config.trees)
    runs = {case: [] for case in cases}
    for _ in range(config.rounds):
        for case in runs:
            runs[case].append(build(config, *case))
            print(*case, *runs[case][-1][:2], file=sys.stderr, flush=True)
    head = "build,processes,checkout,s,tokens/s,x released,peak MB"
    rows = [[*head.split(","), "bytes/token of text"]]
    rows += [row(config, case, runs[case]) for case in runs]
    print(*format_table(rows), sep="\n")


if __name__ == "__main__":
    main.program.cli()
