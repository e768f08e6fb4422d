"""What the data builder costs and gives, as tables.

    python benchmarks/data_builder.py --text=FILE --spm_model_file=FILE \
        --tables=rate,memory,disk,kill,processes,beam,masking,reading,leak

FILE is text of one sentence per line with blank lines between documents. Each
build runs in a process of its own, as a user's would. Rates count tokens of
training records, duplicates included, and leave out Python's start.

The released builder's rates are those measured with google-research/albert at
b772393, one process, on 2.0 MB of English with an 8,000-piece vocabulary, on
2 cores of an AMD EPYC; it made the instances and wrote no file.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import albert_tf  # noqa: F401  (sets TensorFlow's switches before its import)

# isort: split
import numpy as np
import tensorflow as tf
from scipy import stats

from albert_tf import records, settings
from albert_tf.describe import table
from albert_tf.masking import DYNAMIC, STATIC, MaskingConfig
from albert_tf.pretraining_data import build
from albert_tf.pretraining_data.pairs import PairsConfig
from albert_tf.pretraining_data.plan import BuildConfig
from albert_tf.settings import setting
from albert_tf.tokenization import TokenizerConfig, build_tokenizer

ROOT = Path(__file__).parent.parent

# tokens/s and records/s of the released builder, by length and predictions:
# (33,548 records, 73.5 CPU s), (13,140 records, 80.4 CPU s), each of dupe 8
# times 499,342 tokens.
RELEASED = {
    128: (8 * 499_342 / 73.5, 33_548 / 73.5),
    512: (8 * 499_342 / 80.4, 13_140 / 80.4),
}

KILLS = 20
READ_BATCH, READ_SECONDS = 256, 5
BLOCK = 10_000  # lines that are encoded together


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What to measure, on what."""

    text: str = setting(None, "Text, one sentence per line.", required=True)
    spm_model_file: str = setting(None, "SentencePiece model.", required=True)
    tables: tuple = setting((), "Tables to print; all without the flag.")
    max_seq_length: int = setting(512, "Tokens of an example.")
    num_processes: tuple = setting(("1", "2"), "For the table `rate`.")
    builds: tuple = setting(
        ("static-1", "static-10", "static-40", "dynamic-1"),
        "Masking and duplicates of the builds of the table `rate`.",
    )
    memory_mb: tuple = setting(("5", "45", "450"), "Sizes of text.")
    small_mb: int = setting(
        2, "Text of the tables kill, processes, beam, masking and leak."
    )
    seed: int = setting(0, "Of the moments of the kills.")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a folder and remove it."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def cut(text: str, size: int, path: Path) -> Path:
    """Write the first bytes of a text, repeated where it is shorter."""
    whole = Path(text).read_bytes()
    with open(path, "wb") as file:
        while (left := size - file.tell()) > 0:
            part = whole[:left]
            file.write(part[: part.rfind(b"\n") + 1] or part)
            file.write(b"\n")
    return path


def configs(config: BenchmarkConfig, text, output, **changes) -> list:
    """Return the arguments of `build.run`; changes go to any of them."""
    found = [
        BuildConfig(input_file=str(text), output_dir=str(output)),
        TokenizerConfig(spm_model_file=config.spm_model_file),
        PairsConfig(max_seq_length=config.max_seq_length),
        MaskingConfig(),
    ]
    return [
        dataclasses.replace(
            one, **{k: v for k, v in changes.items() if hasattr(one, k)}
        )
        for one in found
    ]


def _timed(arguments: list, queue) -> None:
    """Build, and put (wall, CPU) seconds and the metadata into a queue.

    CPU seconds are this process's: all there are, if it works alone.
    """

    def now():
        return np.array([time.perf_counter(), time.process_time()])

    hold_out, probe = build.hold_out, build.probe
    begin, first, probed = now(), np.zeros(2), np.zeros(2)

    def marked(*args):
        first[:] = now() - begin
        return hold_out(*args)

    def timed_probe(*args):
        start = now()
        found = probe(*args)
        probed[:] = now() - start
        return found

    build.hold_out, build.probe = marked, timed_probe
    metadata = build.run(*arguments)
    whole = now() - begin
    queue.put((first, whole - first - probed, probed, whole, metadata))


def timed_build(arguments: list) -> tuple:
    """Return seconds of the passes, the probe and all, and the metadata."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_timed, args=(arguments, queue))
    process.start()
    found = queue.get()
    process.join()
    return found


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


def rate(config: BenchmarkConfig) -> None:
    """Print throughput beside the limit and the released builder."""
    seconds, tokens = encode_seconds(config)
    print(
        f"SentencePiece alone: {seconds:.1f} s, {tokens / seconds:,.0f} tok/s"
    )
    rows = [
        "build,processes,first pass s,of encode,second pass s,probe s,all s,"
        "tokens/s,records/s,of released per process,of 1 process".split(",")
    ]
    released = RELEASED.get(config.max_seq_length, (float("nan"),) * 2)
    single = {}
    for name in config.builds:
        masking, dupe = name.split("-")
        for processes in map(int, config.num_processes):
            with folder() as output:
                *parts, metadata = timed_build(
                    configs(
                        config,
                        config.text,
                        output / "out",
                        masking=masking,
                        dupe_factor=int(dupe),
                        num_processes=processes,
                    )
                )
            # One process is compared by its CPU seconds, as was the
            # released builder; several, by the time on the wall.
            first, second, probed, whole = (
                part[int(processes == 1)] for part in parts
            )
            wall = parts[-1][0]
            found = metadata.statistics
            made = found["records"] * found["tokens_per_record"]
            single.setdefault(name, wall if processes == 1 else np.nan)
            rows.append(
                [
                    name,
                    str(processes),
                    f"{first:.1f}",
                    f"{first * processes / seconds:.2f}",
                    f"{second:.1f}",
                    f"{probed:.1f}",
                    f"{whole:.1f}",
                    f"{made / whole:,.0f}",
                    f"{found['records'] / whole:,.0f}",
                    f"{made / whole / processes / released[0]:.0f}",
                    f"{single[name] / wall:.2f}",
                ]
            )
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print(*table(rows), sep="\n")
    print(
        f"released builder: {released[0]:,.0f} tokens/s, "
        f"{released[1]:,.0f} records/s, one process"
    )


def command(arguments: list) -> list[str]:
    """Return a build as a command."""
    flags = settings.flagfile(*arguments).split("\n")
    script = str(ROOT / "create_pretraining_data.py")
    return [sys.executable, script, *filter(None, flags)]


def start(arguments: list) -> subprocess.Popen:
    """Start a build as a user would, in a process group of its own."""
    return subprocess.Popen(
        command(arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
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
            found = records.read_metadata(str(output / "out"))
        shards = found.settings["num_shards"]
        rows.append(
            [str(size), str(shards), f"{most / 1e6:,.0f}", f"{seconds:.0f}"]
        )
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print(*table(rows), sep="\n")


def small(config: BenchmarkConfig, output: Path) -> Path:
    """Write the text of the tables that need little."""
    return cut(config.text, config.small_mb * 10**6, output / "text.txt")


def disk(config: BenchmarkConfig) -> None:
    """Print bytes per token of the text."""
    rows = [["build", "bytes per token", "per token and duplicate"]]
    with folder() as output:
        text = small(config, output)
        for masking, dupe in ((STATIC, 10), (DYNAMIC, 1)):
            *_, found = timed_build(
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


def checksums(output: Path) -> dict[str, str]:
    """Return a hash of every file of a folder."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(output.iterdir())
    }


def kill(config: BenchmarkConfig) -> None:
    """Kill builds at random moments, and compare what is made in the end."""
    rng = random.Random(config.seed)
    with folder() as output:
        text = small(config, output)

        def arguments(name):
            return configs(
                config,
                text,
                output / name,
                num_shards=4,
                dupe_factor=10,
                num_processes=2,
            )

        began = time.perf_counter()
        start(arguments("whole")).wait()
        seconds = time.perf_counter() - began
        whole, killed, equal, builds = checksums(output / "whole"), 0, 0, 0
        while killed < KILLS:
            builds += 1
            finished = False
            while not finished and killed < KILLS:
                process = start(arguments(f"build{builds}"))
                try:
                    process.wait(rng.uniform(0, seconds))
                    finished = True
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    killed += 1
            start(arguments(f"build{builds}")).wait()
            equal += checksums(output / f"build{builds}") == whole
    print(
        f"{killed} SIGKILLs at random moments of {seconds:.1f} s, in "
        f"{builds} builds: {equal} of {builds} byte-identical to an unbroken "
        f"one, {len(whole)} files each"
    )


def processes(config: BenchmarkConfig) -> None:
    """Compare checksums of builds with 1, 2 and 3 processes."""
    rows = [["processes", "SHA-256 of all files"]]
    with folder() as output:
        text = small(config, output)
        for number in (1, 2, 3):
            made = output / str(number)
            timed_build(
                configs(
                    config,
                    text,
                    made,
                    num_shards=4,
                    dupe_factor=2,
                    num_processes=number,
                )
            )
            every = repr(sorted(checksums(made).items())).encode()
            rows.append([str(number), hashlib.sha256(every).hexdigest()])
    print(*table(rows), sep="\n")
    print(f"identical: {len({row[1] for row in rows[1:]}) == 1}")


def beam(config: BenchmarkConfig) -> None:
    """Compare a build by Beam's DirectRunner with a local one."""
    if not importlib.util.find_spec("apache_beam"):
        print("Apache Beam is not installed")
        return
    with folder() as output:
        text, found = small(config, output), {}
        for runner in (None, "DirectRunner"):
            made = output / str(runner)
            *_, seconds, _ = timed_build(
                configs(
                    config,
                    text,
                    made,
                    num_shards=4,
                    dupe_factor=2,
                    num_processes=1,
                    runner=runner,
                )
            )
            found[runner] = checksums(made)
            print(f"{runner or 'local'}: {seconds[0]:.1f} s")
        print(
            f"{len(found[None])} files, byte-identical: "
            f"{found[None] == found['DirectRunner']}"
        )


def _masks(made: Path) -> dict[str, np.ndarray]:
    """Count masks of the first epoch of a data set, as a model sees them."""
    found = records.read_metadata(str(made))
    kinds, runs = np.zeros(3, int), np.zeros(12, int)
    rates, mask_id = [], build_tokenizer_of(made).mask_id
    batches = records.train_batches(str(made), found, batch_size=256, seed=1)
    for batch in batches.take(found.count(records.TRAIN) // 256):
        batch = {name: value.numpy() for name, value in batch.items()}
        real = batch["masked_lm_weights"] > 0
        positions = batch["masked_lm_positions"]
        shown = np.take_along_axis(batch["input_ids"], positions, 1)[real]
        labels = batch["masked_lm_ids"][real]
        kinds += np.bincount(
            np.where(shown == mask_id, 0, np.where(shown == labels, 1, 2)),
            minlength=3,
        )
        rates.append(real.sum() / batch["input_mask"].sum())
        for row, weights in zip(positions, real, strict=True):
            places = row[weights]
            breaks = np.flatnonzero(np.diff(places) != 1)
            ends = np.concatenate([[-1], breaks, [len(places) - 1]])
            runs += np.bincount(np.minimum(np.diff(ends), 11), minlength=12)
    return {"kinds": kinds, "runs": runs[1:], "rate": np.mean(rates)}


def build_tokenizer_of(made: Path):
    """Return the tokenizer beside records."""
    return build_tokenizer(
        TokenizerConfig(spm_model_file=f"{made}/spiece.model")
    )


def masking(config: BenchmarkConfig) -> None:
    """Print what static and dynamic masking do to the same text."""
    found = {}
    with folder() as output:
        text = small(config, output)
        for kind in (STATIC, DYNAMIC):
            timed_build(
                configs(
                    config, text, output / kind, masking=kind, dupe_factor=1
                )
            )
            found[kind] = _masks(output / kind)
    rows = [["", "masked", "[MASK] / same / random", "runs of 1, 2, 3, 4, 5"]]
    for kind, value in found.items():
        shares = value["kinds"] / value["kinds"].sum()
        runs = value["runs"] / value["runs"].sum()
        rows.append(
            [
                kind,
                f"{value['rate']:.2%}",
                " ".join(f"{s:.4f}" for s in shares),
                " ".join(f"{s:.4f}" for s in runs[:5]),
            ]
        )
    print(*table(rows), sep="\n")
    for name in ("kinds", "runs"):
        both = np.array([found[kind][name] for kind in (STATIC, DYNAMIC)])
        test = stats.chi2_contingency(both[:, both.sum(0) > 0])
        print(f"chi-square of {name}: p = {test.pvalue:.3f}")


def reading(config: BenchmarkConfig) -> None:
    """Print how fast records become batches, on one core."""
    rows = [["records", "examples per core and second", "tokens"]]
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    with folder() as output:
        text = small(config, output)
        for kind in (STATIC, DYNAMIC):
            made = output / kind
            *_, found = timed_build(
                configs(config, text, made, masking=kind, dupe_factor=1)
            )
            batches = iter(
                records.train_batches(
                    str(made), found, batch_size=READ_BATCH, seed=0
                ).with_options(options)
            )
            next(batches)
            begin, number = time.process_time(), 0
            while (spent := time.process_time() - begin) < READ_SECONDS:
                next(batches)
                number += READ_BATCH
            pace = number / spent
            tokens = pace * config.max_seq_length
            rows.append([kind, f"{pace:,.0f}", f"{tokens:,.0f}"])
    print(*table(rows), sep="\n")


def paragraphs(text: Path, path: Path, lines: int = 6) -> Path:
    """Write a text with several sentences on each line."""
    documents = text.read_text("utf-8").split("\n\n")
    with open(path, "w", encoding="utf-8") as file:
        for document in documents:
            found = document.split("\n")
            for first in range(0, len(found), lines):
                file.write(" ".join(found[first : first + lines]) + "\n")
            file.write("\n")
    return path


def leak(config: BenchmarkConfig) -> None:
    """Print the leak probe on the released recipe and on the default one."""
    rows = [
        "text,recipe,one segment,swapped,records,accuracy,95 %,"
        "balanced accuracy,95 %".split(",")
    ]
    with folder() as output:
        lines = small(config, output)
        texts = {
            "sentence per line": lines,
            "paragraph per line": paragraphs(lines, output / "p.txt"),
        }
        for number, (kind, text) in enumerate(texts.items()):
            for compat in ("google", "none"):
                made = output / f"{compat}{number}"
                *_, found = timed_build(
                    configs(
                        config,
                        text,
                        made,
                        max_seq_length=128,
                        dupe_factor=1,
                        compat=compat,
                    )
                )
                statistics = found.statistics
                probe = statistics["leak_probe"]
                rows.append(
                    [
                        kind,
                        {"none": "default"}.get(compat, compat),
                        f"{statistics['one_segment_share']:.1%}",
                        f"{statistics['swapped_share']:.1%}",
                        str(probe["records"]),
                        str(probe["accuracy"]),
                        str(probe["accuracy_interval"]),
                        str(probe["balanced_accuracy"]),
                        str(probe["balanced_interval"]),
                    ]
                )
    print(*table(rows), sep="\n")


TABLES = {
    function.__name__: function
    for function in (
        rate,
        memory,
        disk,
        kill,
        processes,
        beam,
        masking,
        reading,
        leak,
    )
}


def main() -> None:
    """Print the tables that were asked for."""
    config = settings.from_flags(BenchmarkConfig)
    for name in config.tables or TABLES:
        print(f"\n{name}", flush=True)
        TABLES[name](config)


if __name__ == "__main__":
    settings.define_flags(BenchmarkConfig)
    settings.run(main)
