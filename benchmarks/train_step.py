"""Compare the duration of a pretraining step in this and other libraries.

    python benchmarks/train_step.py --case=base-128 [--peer_python=PYTHON]

Each implementation runs in a separate process; the processes take turns, step
by step. Peers that are not installed in PYTHON are skipped with a message. The
limit of the machine is the speed of matrix products, measured between the
steps. FLOPs are counted for the model's matrix products, forward and backward.

For example, set up an environment for peers with:

    pip install torch transformers keras-hub
"""

import argparse
import dataclasses
import json
import sys

from train_step_peers import CASES, IMPLEMENTATIONS, LIMIT, PRODUCT_SIZE, Case
from turns import Worker, machine, present, take_turns

from albert_tf.base.console import format_table
from albert_tf.model.config import AlbertConfig, training_flops

OURS = (LIMIT, "albert_tf", "albert_tf XLA")
HEAD = ("s / step", "min", "examples / s", "of the limit", "peak MB")


def limit(worker: Worker, case: Case) -> float:
    """Print and return the time of a step's matrix products, in seconds."""
    config = AlbertConfig(**case.model)
    example = training_flops(config, case.tokens, case.predictions)
    flops, rate = case.batch * example, 2 * PRODUCT_SIZE**3 / worker.median
    print(
        f"{flops / 1e9:.0f} GFLOP a step, matrix products at "
        f"{rate / 1e9:.0f} GFLOP/s: {flops / rate:.3f} s at the limit"
    )
    return flops / rate


def row(worker: Worker, case: Case, least: float | None) -> tuple[str, ...]:
    """Return a row of the table."""
    return (
        worker.name,
        f"{worker.median:.3f}",
        f"{min(worker.seconds):.3f}",
        f"{case.batch / worker.median:.2f}",
        f"{least / worker.median:.0%}" if least else "",
        f"{worker.last['megabytes']:,.0f}",
        f"{worker.hello['first']:.0f}",
        f"{worker.last['loss']:.3f}",
    )


def main() -> None:
    """Measure one case and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, default="base-128")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32"
    )
    parser.add_argument("--rounds", type=int, default=9, help="timed steps")
    parser.add_argument("--peer_python", default=sys.executable)
    parser.add_argument("--only", nargs="*", choices=IMPLEMENTATIONS)
    args = parser.parse_args()
    case = dataclasses.replace(CASES[args.case], dtype=args.dtype)
    fields = json.dumps(dataclasses.asdict(case))
    workers = {}
    for name in args.only or IMPLEMENTATIONS:
        python = sys.executable if name in OURS else args.peer_python
        worker = Worker(name, "train_step_peers.py", [name, fields], python)
        workers |= {w.name: w for w in present([worker])}
    take_turns(list(workers.values()), args.rounds, warmup=1)
    print(
        f"{args.case}, {args.dtype}, medians of {args.rounds} interleaved "
        f"steps; {machine('tensorflow')}"
    )
    least = limit(workers.pop(LIMIT), case) if LIMIT in workers else None
    rows = [row(worker, case, least) for worker in workers.values()]
    print(*format_table([("", *HEAD, "first s", "loss"), *rows]), sep="\n")


if __name__ == "__main__":
    main()
