"""Compare the speed of fine-tuning and evaluation with Hugging Face.

    python benchmarks/finetune.py --data_dir=GLUE --spm_model_file=FILE \\
        [--task=squad-1.1] [--peer_python=PYTHON]

Batches contain examples of similar length, which is the fastest option in both
libraries. The model has random weights, which do not affect speed. Each
implementation runs in its own process; the processes take turns, pass by pass.
The environment of PYTHON must have `torch` and `transformers`.
"""

import argparse
import json
import os
import sys
import tempfile

import numpy as np
from finetune_peers import OURS, PEERS
from turns import Worker, machine, present, take_turns

from albert_tf.base.console import format_table
from albert_tf.tasks.registry import find
from albert_tf.tasks.task import read_splits
from albert_tf.tasks.task_config import DataConfig
from albert_tf.text.tokenizers import tokenizer_from_files

PARTS = {"training": "train", "evaluation": "eval"}


def write_rows(args: argparse.Namespace, folder: str) -> dict[str, str]:
    """Tokenize examples; return {part of the data: file of its arrays}."""
    tokenizer = tokenizer_from_files(spm_model_file=args.spm_model_file)
    task = find(args.task).updated(max_seq_length=args.max_seq_length)
    paths, number = {}, args.batches * args.batch_size
    for part, split in PARTS.items():
        data = DataConfig(data_dir=args.data_dir)
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
            f"{lengths[:number].max()}, in batches of {args.batch_size}"
        )
    return paths


def start(args: argparse.Namespace, case: dict) -> list[Worker]:
    """Start all implementations; return the workers that started.

    A message names each implementation that did not start.
    """
    workers = []
    for name in (OURS, *args.peers):
        python = sys.executable if name == OURS else args.peer_python
        arguments = [name, json.dumps(case)]
        workers.append(Worker(name, "finetune_peers.py", arguments, python))
    return present(workers)


def row(part: str, worker: Worker, first: Worker) -> tuple[str, ...]:
    """Return a worker's table row, with its speed relative to `first`."""
    return (
        f"{part}, {worker.name}",
        f"{worker.last['examples'] / worker.median:.1f}",
        f"{first.median / worker.median:.2f}",
        f"{worker.last['cpu']:.2f}",
        f"{worker.last['megabytes']:,.0f}",
    )


def main() -> None:
    """Measure all implementations and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--spm_model_file", required=True)
    parser.add_argument("--task", default="sst-2")
    parser.add_argument(
        "--albert_config_file", default="configs/models/small.json"
    )
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=27, help="per pass")
    parser.add_argument("--rounds", type=int, default=5, help="timed passes")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--peer_python", default=sys.executable)
    parser.add_argument("--peers", nargs="*", default=PEERS)
    args = parser.parse_args()
    print(machine("tensorflow"))
    rows = [("", "examples/s", "relative", "CPU s / pass", "peak MB")]
    with tempfile.TemporaryDirectory() as folder:
        for part, path in write_rows(args, folder).items():
            workers = start(args, vars(args) | {"part": part, "rows": path})
            take_turns(workers, args.rounds)
            rows += [row(part, worker, workers[0]) for worker in workers]
            for worker in workers:
                worker.close()
    print(*format_table(rows), sep="\n")


if __name__ == "__main__":
    main()
