"""Tables of what the data builder costs: time, memory and disk."""

import contextlib
import io
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from data_builder_builds import (
    BenchmarkConfig,
    configs,
    cut,
    folder,
    small,
    start,
    timed_build,
)

from albert_tf.base import files
from albert_tf.data import records
from albert_tf.data.builder import build
from albert_tf.data.masking import DYNAMIC, STATIC
from albert_tf.describe import table
from albert_tf.text.tokenizers import TokenizerConfig, build_tokenizer

# tokens/s and records/s of the released builder, by length and predictions:
# (33,548 records, 73.5 CPU s), (13,140 records, 80.4 CPU s), each of dupe 8
# times 499,342 tokens.
RELEASED = {
    128: (8 * 499_342 / 73.5, 33_548 / 73.5),
    512: (8 * 499_342 / 80.4, 13_140 / 80.4),
}

BLOCK = 10_000  # lines that are encoded together


def encode_seconds(config: BenchmarkConfig) -> tuple[float, int]:
    """Return the seconds and tokens of SentencePiece alone on the text."""
    model = build_tokenizer(
        TokenizerConfig(spm_model_file=config.spm_model_file)
    )._model
    text = Path(config.text).read_text("utf-8").lower()
    lines = [line for line in text.split("\n") if line]
    seconds = tokens = 0
    for first in range(0, len(lines), BLOCK):
        start = time.process_time()
        ids = model.encode(lines[first : first + BLOCK], num_threads=1)
        seconds += time.process_time() - start
        tokens += sum(map(len, ids))
    return seconds, tokens


def rate_row(
    config: BenchmarkConfig, name: str, processes: int, encode: float
) -> tuple[float, list[str]]:
    """Return the seconds of a build on the wall, and a row without them.

    Args:
      config: what to build.
      name: masking and duplicates.
      processes: how many work.
      encode: seconds of SentencePiece alone.
    """
    masking, dupe = name.split("-")
    with folder() as output:
        seconds, metadata = timed_build(
            configs(
                config,
                config.text,
                output / "out",
                masking=masking,
                dupe_factor=int(dupe),
                num_processes=processes,
            )
        )
    # One process is compared by its CPU seconds, as was the released
    # builder; several, by the time on the wall.
    took = {k: v[int(processes == 1)] for k, v in seconds.items()}
    found = metadata.statistics
    pace = found["records"] / took["all"]
    tokens = pace * found["tokens_per_record"]
    released = RELEASED.get(config.max_seq_length, (np.nan, np.nan))[0]
    return seconds["all"][0], [
        name,
        str(processes),
        f"{took['first']:.1f}",
        f"{took['first'] * processes / encode:.2f}",
        f"{took['second']:.1f}",
        f"{took['probe']:.1f}",
        f"{took['all']:.1f}",
        f"{tokens:,.0f}",
        f"{pace:,.0f}",
        f"{tokens / processes / released:.0f}",
    ]


def rate(config: BenchmarkConfig) -> None:
    """Print throughput beside the limit and the released builder."""
    encode, tokens = encode_seconds(config)
    print(f"SentencePiece alone: {encode:.1f} s, {tokens / encode:,.0f} tok/s")
    rows = [
        "build,processes,first pass s,of encode,rest s,of it probe s,all s,"
        "tokens/s,records/s,of released per process,of 1 process".split(",")
    ]
    for name in config.builds:
        single = np.nan
        for processes in map(int, config.num_processes):
            wall, row = rate_row(config, name, processes, encode)
            single = wall if processes == 1 else single
            rows.append([*row, f"{single / wall:.2f}"])
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print(*table(rows), sep="\n")
    if config.max_seq_length in RELEASED:
        released = RELEASED[config.max_seq_length]
        print(
            f"released builder: {released[0]:,.0f} tokens/s, "
            f"{released[1]:,.0f} records/s, one process"
        )


def _tree_bytes(root: int) -> int:
    """Return the proportional memory of a session's processes."""
    total = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if os.getsid(int(entry.name)) == root:
                text = (entry / "smaps_rollup").read_text()
                total += int(text.split("\nPss:")[1].split()[0]) << 10
    return total


def peak(process: subprocess.Popen) -> int:
    """Wait for a process; return its session's largest memory."""
    most = [0]

    def watch():
        while process.poll() is None:
            most[0] = max(most[0], _tree_bytes(process.pid))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    process.wait()
    watcher.join()
    return most[0]


def memory(config: BenchmarkConfig) -> None:
    """Print peak memory over the whole process tree."""
    rows = [["text MB", "shards", "peak MB", "seconds"]]
    for size in map(int, config.memory_mb):
        with folder() as output:
            text = cut(config.text, size * 10**6, output / "text.txt")
            began = time.perf_counter()
            most = peak(
                start(
                    configs(
                        config,
                        text,
                        output / "out",
                        dupe_factor=1,
                        num_processes=2,
                    )
                )
            )
            seconds = time.perf_counter() - began
            found = records.load_metadata(str(output / "out"))
        shards = found.settings["num_shards"]
        rows.append(
            [str(size), str(shards), f"{most / 1e6:,.0f}", f"{seconds:.0f}"]
        )
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print(*table(rows), sep="\n")


def disk(config: BenchmarkConfig) -> None:
    """Print bytes per token of the text."""
    rows = [["build", "bytes per token", "per token and duplicate"]]
    with folder() as output:
        text = small(config, output)
        for masking, dupe in ((STATIC, 10), (DYNAMIC, 1)):
            _, found = timed_build(
                configs(
                    config,
                    text,
                    output / masking,
                    masking=masking,
                    dupe_factor=dupe,
                    eval_fraction=0.0,
                )
            )
            size = sum(e.bytes for e in found.splits[records.TRAIN])
            each = size / found.statistics["tokens"]
            rows.append(
                [f"{masking}-{dupe}", f"{each:.2f}", f"{each / dupe:.2f}"]
            )
    print(*table(rows), sep="\n")


@contextlib.contextmanager
def reads_counted() -> Iterator[Counter]:
    """Count the bytes that this process reads, by the first word of a name."""
    counts: Counter = Counter()
    opened = files.opened

    class Counted(io.FileIO):
        def _count(self, number):
            counts[Path(self.name).name.split("-")[0]] += number

        def readinto(self, buffer):
            number = super().readinto(buffer)
            self._count(number)
            return number

        def readall(self):
            content = super().readall()
            self._count(len(content))
            return content

    def counted(path, mode):
        if mode == "rb":
            return io.BufferedReader(Counted(path))
        return opened(path, mode)

    files.opened = counted
    try:
        yield counts
    finally:
        files.opened = opened


def launcher(config: BenchmarkConfig) -> None:
    """Print what the launcher of a pipeline reads; other processes work."""
    kinds = ("text.txt", "shard", "train")
    rows = [["text MB", *kinds, "rest"]]
    workers = "--direct_running_mode=multi_processing --direct_num_workers=2"
    for size in map(int, config.launcher_mb):
        with folder() as output:
            text = cut(config.text, size * 10**6, output / "text.txt")
            arguments = configs(
                config,
                text,
                output / "out",
                dupe_factor=1,
                runner="DirectRunner",
                pipeline_options=workers,
            )
            with reads_counted() as counts:
                build.run(*arguments)
        rest = counts.total() - sum(counts[kind] for kind in kinds)
        rows.append(
            [str(size), *(f"{counts[k]:,}" for k in kinds), f"{rest:,}"]
        )
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print(*table(rows), sep="\n")
