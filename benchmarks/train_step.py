"""Seconds per pretraining step beside other libraries, in one run.

    python benchmarks/train_step.py --case=base-128 [--peer_python=PYTHON]

Each implementation runs in a process of its own, and they take turns step by
step, so that a slow moment of the machine hits all. Peers that are not
installed in PYTHON are skipped with a line. The matrix-product rate, measured
among the steps, is the machine's limit; FLOPs are those of the model's matrix
products, forward and backward.

A peer's environment, for example:

    pip install torch transformers keras-hub
"""

import argparse
import dataclasses
import json
import statistics
import sys

from step_worker import Worker
from train_step_cases import CASES
from train_step_peers import IMPLEMENTATIONS

from albert_tf.base.text_table import table
from albert_tf.model.config import AlbertConfig
from albert_tf.model.flops import training_flops

LIMIT = "matrix product"
PRODUCT_FLOPS = 2 * 2048**3
OURS = (LIMIT, "albert_tf", "albert_tf XLA")
WARMUP = 1


def flops(case: str) -> int:
    """Return the FLOPs of one step of a case."""
    c = CASES[case]
    config = AlbertConfig(
        vocab_size=c.vocab,
        embedding_size=c.embedding,
        hidden_size=c.hidden,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        intermediate_size=c.intermediate,
    )
    return c.batch * training_flops(config, c.tokens, c.predictions)


def start(
    names: list[str], case: str, dtype: str, peer_python: str
) -> list[Worker]:
    """Start the implementations one after the other; say which are missing."""
    workers = []
    fields = dataclasses.replace(CASES[case], dtype=dtype)
    case = json.dumps(dataclasses.asdict(fields))
    for name in names:
        python = sys.executable if name in OURS else peer_python
        worker = Worker(name, case, python)
        if "missing" in worker.hello:
            print(f"{name}: skipped, {worker.hello['missing']}", flush=True)
        else:
            workers.append(worker)
    return workers


def report(workers: list[Worker], case: str) -> list[str]:
    """Return the table of what was measured."""
    medians = {w.name: statistics.median(w.seconds) for w in workers}
    limit = None
    lines = []
    if LIMIT in medians:
        rate = PRODUCT_FLOPS / medians[LIMIT]
        limit = flops(case) / rate
        lines.append(
            f"{flops(case) / 1e9:.0f} GFLOP a step, such matrix products at "
            f"{rate / 1e9:.0f} GFLOP/s: {limit:.3f} s at the limit"
        )
    head = ("s / step", "min", "examples / s", "of the limit", "peak MB")
    rows = [("", *head, "first s", "loss")]
    for worker in (w for w in workers if w.name != LIMIT):
        median = medians[worker.name]
        rows.append(
            (
                worker.name,
                f"{median:.3f}",
                f"{min(worker.seconds):.3f}",
                f"{CASES[case].batch / median:.2f}",
                f"{limit / median:.0%}" if limit else "",
                f"{worker.last['megabytes']:,.0f}",
                f"{worker.hello['first']:.0f}",
                f"{worker.last['loss']:.3f}",
            )
        )
    return lines + table(rows)


def main() -> None:
    """Measure one case and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, default="base-128")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32"
    )
    parser.add_argument("--rounds", type=int, default=9, help="steps of each")
    parser.add_argument("--peer_python", default=sys.executable)
    parser.add_argument(
        "--only", nargs="*", choices=IMPLEMENTATIONS, help="default: all"
    )
    given = parser.parse_args()
    names = given.only or list(IMPLEMENTATIONS)
    workers = start(names, given.case, given.dtype, given.peer_python)
    for _ in range(WARMUP + given.rounds):
        for worker in workers:
            worker.step()
    for worker in workers:
        worker.seconds = worker.seconds[WARMUP:]
    print(
        f"{given.case}, {given.dtype}, medians of {given.rounds} "
        "interleaved steps"
    )
    print("\n".join(report(workers, given.case)))
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
