"""Examples a second of fine-tuning and evaluation beside Hugging Face.

    python benchmarks/finetune.py --data_dir=GLUE --spm_model_file=FILE \\
        [--task=squad-1.1] [--peer_python=PYTHON] [--landed=CHECKOUT]

Batches go together by length, the best that either library does. The model
has random weights, on which speed does not depend. Each implementation runs in
a process of its own, and they take turns pass by pass. The environment
PYTHON has `torch` and `transformers`; CHECKOUT is another version of this
project, for a row of its own.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile

import numpy as np
from finetune_peers import IMPLEMENTATIONS
from step_worker import Worker

from albert_tf.base.text_table import table
from albert_tf.tasks.registry import find
from albert_tf.tasks.task import DataConfig, TaskConfig, read_splits
from albert_tf.text.tokenizers import tokenizer_from_files

PARTS = {"training": "train", "evaluation": "eval"}


def write_rows(given: argparse.Namespace, folder: str) -> dict[str, str]:
    """Convert examples to tokens; return {part: file of arrays}."""
    tokenizer = tokenizer_from_files(spm_model_file=given.spm_model_file)
    wanted = TaskConfig(max_seq_length=given.max_seq_length)
    task = find(given.task).with_config(wanted)
    paths, number = {}, given.batches * given.batch_size
    for part, split in PARTS.items():
        data = DataConfig(data_dir=given.data_dir)
        examples = next(iter(read_splits(task, data, split).values()))
        rows = task.features(examples[:number], tokenizer)
        paths[part] = os.path.join(folder, f"{part}.npz")
        lengths = rows.lengths
        np.savez(
            paths[part],
            tokens=rows.tokens,
            row_splits=rows.row_splits[: number + 1],
            second_starts=rows.second_starts[:number],
            labels=rows.arrays["labels"][:number],
        )
        print(
            f"{part}: {min(number, len(lengths))} rows of "
            f"{lengths[:number].mean():.1f} tokens, longest "
            f"{lengths[:number].max()}, in batches of {given.batch_size}"
        )
    return paths


def start(given: argparse.Namespace, case: dict) -> list[Worker]:
    """Start all implementations; say which are missing."""
    versions = {"albert_tf": (sys.executable, "albert_tf", None)}
    if given.landed:
        versions["albert_tf, landed"] = (sys.executable, "albert_tf", "landed")
    for name in given.peers:
        versions[name] = (given.peer_python, name, None)
    workers = []
    for title, (python, name, landed) in versions.items():
        path = {"PYTHONPATH": given.landed} if landed else {}
        worker = Worker(
            name, json.dumps(case), python, "finetune_peers.py", path
        )
        worker.name = title
        if "missing" in worker.hello:
            print(f"{title}: skipped, {worker.hello['missing']}", flush=True)
        else:
            workers.append(worker)
    return workers


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--spm_model_file", required=True)
    parser.add_argument("--task", default="sst-2")
    parser.add_argument(
        "--albert_config_file", default="configs/models/small.json"
    )
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=27, help="of a pass")
    parser.add_argument("--rounds", type=int, default=5, help="passes of each")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--peer_python", default=sys.executable)
    parser.add_argument("--peers", nargs="*", default=IMPLEMENTATIONS[1:])
    parser.add_argument("--landed", help="another checkout of this project")
    given = parser.parse_args()
    head = ("", "examples/s", "of the first", "CPU s / pass", "peak MB")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for part, path in write_rows(given, folder).items():
            workers = start(given, vars(given) | {"part": part, "rows": path})
            for _ in range(given.rounds):
                for worker in workers:
                    worker.step()
            first = statistics.median(workers[0].seconds)
            for worker in workers:
                taken = statistics.median(worker.seconds)
                cells = (
                    f"{worker.last['examples'] / taken:.1f}",
                    f"{first / taken:.2f}",
                    f"{worker.last['cpu']:.2f}",
                    f"{worker.last['megabytes']:,.0f}",
                )
                rows.append((f"{part}, {worker.name}", *cells))
                worker.close()
    print("\n".join(table([head, *rows])))


if __name__ == "__main__":
    main()
