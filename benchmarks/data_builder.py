"""Time, memory and disk of the data builder, as a table.

    python benchmarks/data_builder.py --text=FILE --spm_model_file=FILE

FILE is text of one sentence per line with blank lines between documents. Each
build is the program that a user runs, from its start to its end. The released
builder made 54,350 tokens a second at length 128 and 49,686 at length 512:
google-research/albert at b772393, one process, on 2.0 MB of English with an
8,000-piece vocabulary, on 2 cores of an AMD EPYC; it wrote no file.
"""

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from albert_tf.base import command_line
from albert_tf.base.settings import setting
from albert_tf.base.text_table import table
from albert_tf.data import records

SCRIPT = Path(__file__).parents[1] / "create_pretraining_data.py"
RELEASED = {128: 54_350, 512: 49_686}  # tokens a second


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What to build, of what."""

    text: str = setting(None, "Text, one sentence per line.", required=True)
    spm_model_file: str = setting(None, "SentencePiece model.", required=True)
    max_seq_length: int = setting(512, "Tokens of an example.")
    num_processes: tuple = setting(("1", "2"), "Processes of the builds.")
    builds: tuple = setting(
        ("static-1", "static-10", "static-40", "dynamic-1"),
        "Masking and duplicates of the builds.",
    )


def session_bytes(root: int) -> int:
    """Return the proportional memory of a session's processes."""
    total = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if os.getsid(int(entry.name)) == root:
                text = (entry / "smaps_rollup").read_text()
                total += int(text.split("\nPss:")[1].split()[0]) << 10
    return total


def measured(command: list[str]) -> tuple[float, int]:
    """Run a command; return its seconds and its processes' peak memory."""
    most = [0]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, start_new_session=True
    )

    def watch():
        while process.poll() is None:
            most[0] = max(most[0], session_bytes(process.pid))
            time.sleep(0.5)  # a look costs milliseconds

    watcher = threading.Thread(target=watch)
    watcher.start()
    if process.wait():
        raise SystemExit(f"The build failed: {' '.join(command)}")
    seconds = time.perf_counter() - start
    watcher.join()
    return seconds, most[0]


def row(config: BenchmarkConfig, name: str, processes: str) -> list[str]:
    """Build once; return its row of the table."""
    masking, duplicates = name.split("-")
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
        command = [sys.executable, str(SCRIPT)]
        command += [f"--{flag}={value}" for flag, value in flags.items()]
        seconds, memory = measured(command)
        metadata = records.load_metadata(folder)
        size = sum(e.bytes for split in metadata.splits.values() for e in split)
    counts = metadata.statistics
    tokens = counts["records"] * counts["tokens_per_record"] / seconds
    released = RELEASED.get(config.max_seq_length)
    return [
        name,
        processes,
        f"{seconds:.1f}",
        f"{tokens:,.0f}",
        f"{tokens / released:.0f}" if released else "",
        f"{memory / 1e6:,.0f}",
        f"{size / counts['tokens']:.2f}",
    ]


@command_line.program(BenchmarkConfig)
def main(config: BenchmarkConfig) -> None:
    """Print the table."""
    head = "build,processes,s,tokens/s,of released,peak MB,bytes/token of text"
    rows = [head.split(",")]
    for name in config.builds:
        for processes in config.num_processes:
            rows.append(row(config, name, processes))
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print(*table(rows), sep="\n")


if __name__ == "__main__":
    main.program.cli()
