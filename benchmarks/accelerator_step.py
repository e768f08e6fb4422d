"""Time the training step of a step file on any device that JAX supports.

    python benchmarks/accelerator_step.py base.zip [--peer]

`tpu_check --step_file` writes the file. With `--peer`, which needs PyTorch and
transformers, Hugging Face's compiled ALBERT performs the same step in a process
that takes turns with this process. Each step starts from the state that the
previous step returned. The outputs of the first step are compared with the
outputs of JAX's CPU backend.
"""

import argparse
import dataclasses
import json
import math
import os
import statistics
import sys
import time

import numpy as np
from train_step_peers import Case
from turns import Worker, present

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from albert_tf.tpu.run_step import StepFile  # noqa: E402

# {part of a device's name: (16-bit rate, float32 rate)}: peak rates of
# matrix products in TFLOP/s, from data sheets. XLA computes float32 products in
# TF32 on GPUs that support TF32, and in bfloat16 on TPUs.
PEAKS = {
    "H200": (989.0, 494.0),
    "H100": (989.0, 494.0),
    "A100": (312.0, 156.0),
    "L40S": (362.0, 183.0),
    "L4": (121.0, 60.0),
    "V100": (125.0, 15.7),
    "T4": (65.0, 8.1),
    "TPU v6": (918.0, 918.0),
    "TPU v5 lite": (197.0, 197.0),
    "TPU v5": (459.0, 459.0),
    "TPU v4": (275.0, 275.0),
    "TPU v3": (61.5, 61.5),
    "TPU v2": (22.5, 22.5),
}
WARMUP, WORST = 2, 5
HEAD = ("step", "ms", "min", "examples/s", "of the peak", "MB")
RULE = ("---",) * len(HEAD)


class Step:
    """A training step loaded from a file, and its arguments on a device.

    Args:
      file: the step file.
      values: {name: value} of the arguments of the first step.
      device: the device to run on.
    """

    def __init__(self, file: StepFile, values: dict, device):
        self.jax, self.names = file.jax, list(file.shapes)
        self.outputs = file.info["outputs"]
        reused = [i for i, n in enumerate(self.names) if n in self.outputs]
        call = file.jax.export.deserialize(bytearray(file.programs[0])).call
        self.call = file.jax.jit(call, donate_argnums=reused)
        self.values = file.jax.device_put(values, device)

    def step(self) -> dict:
        """Run a step; return {name: output}.

        The next step starts from the state in these outputs.
        """
        outputs = self.call(*(self.values[n] for n in self.names))
        named = dict(zip(self.outputs, outputs, strict=True))
        self.values |= {n: x for n, x in named.items() if n in self.values}
        return self.jax.block_until_ready(named)


def case_of(about: dict) -> Case:
    """Return the model and the batch sizes of the step in a description."""
    keys = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers")
    keys += ("num_attention_heads", "intermediate_size")
    return Case(
        about["examples"],
        about["tokens"],
        about["predictions"],
        {key: about["config"][key] for key in keys},
        about["training"]["dtype"],
    )


def peak(device, dtype: str) -> float:
    """Return a device's peak FLOP/s, or NaN if unknown."""
    for part, rates in PEAKS.items():
        if part in device.device_kind:
            return rates[dtype != "bfloat16"] * 1e12
    return math.nan


def peers(case: Case, python: str) -> list[Worker]:
    """Start the peer; return [its process], or [] if a package is missing."""
    name = "Hugging Face compiled"
    arguments = [name, json.dumps(dataclasses.asdict(case))]
    return present([Worker(name, "train_step_peers.py", arguments, python)])


def row(name: str, seconds: list[float], about: dict, rate, mb) -> tuple:
    """Return a row of the table.

    Args:
      name: the name of the row.
      seconds: the duration of each step.
      about: the description of the step.
      rate: the device's peak FLOP/s, or NaN if unknown.
      mb: the peak memory in MB.
    """
    median = statistics.median(seconds)
    return (
        name,
        f"{median * 1e3:,.1f}",
        f"{min(seconds) * 1e3:,.1f}",
        f"{about['examples'] / median:,.1f}",
        f"{about['model_flops'] / median / rate:.1%}",
        f"{mb:,.0f}",
    )


def measure(path: str, args: argparse.Namespace) -> None:
    """Time the step in a file, check its outputs, and print a table."""
    file = StepFile(path)
    about, jax = file.info, file.jax
    device, dtype = jax.devices()[0], about["training"]["dtype"]
    values = file.bundle.read() | file.constants()
    case, rate = case_of(about), peak(device, dtype)
    values |= case.data(args.seed)
    print(
        f"\n{path}: {about['examples']} x {about['tokens']} tokens, "
        f"{dtype}, {about['optimizer']['optimizer']}, "
        f"{about['encoder_loop']['form']} loop, "
        f"{about['model_flops'] / 1e9:,.0f} GFLOP of the model; "
        f"{device.device_kind}, jax {jax.__version__}, peak "
        f"{rate / 1e12:,.1f} TFLOP/s"
    )
    ours = Step(file, values, device)
    first = {n: np.asarray(x) for n, x in ours.step().items()}
    if not args.nocompare:
        compare(file, values, first)
    others = peers(case, args.peer_python) if args.peer else []
    seconds: list[float] = []
    for _ in range(WARMUP + args.rounds):
        start = time.perf_counter()
        ours.step()
        seconds.append(time.perf_counter() - start)
        for peer in others:
            peer.work()
    memory = device.memory_stats() or {}  # None for CPUs
    size = memory.get("peak_bytes_in_use", math.nan) / 1e6
    rows = [HEAD, RULE, row("this file", seconds[WARMUP:], about, rate, size)]
    for peer in others:
        size = peer.last["megabytes"]
        rows.append(row(peer.name, peer.seconds[WARMUP:], about, rate, size))
        peer.close()
    print(*(f"| {' | '.join(cells)} |" for cells in rows), sep="\n")


def compare(file: StepFile, values: dict, first: dict) -> None:
    """Print how the first step differs from the same step on JAX's CPU backend.

    A difference is the norm of the error divided by the norm of the CPU's
    output.
    """
    reference = Step(file, values, file.jax.devices("cpu")[0])
    differences = []
    for name, value in reference.step().items():
        x, y = np.asarray(first[name], "f8"), np.asarray(value, "f8")
        size = np.linalg.norm(y) or 1.0
        differences.append((np.linalg.norm(x - y) / size, name))
    print(f"relative differences of {len(differences)} outputs from the CPU's:")
    for size, name in sorted(differences, reverse=True)[:WORST]:
        print(f"  {size:.1e} {name}")


def main() -> None:
    """Measure the training step in each step file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--rounds", type=int, default=10, help="timed steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nocompare", action="store_true")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--peer_python", default=sys.executable)
    args = parser.parse_args()
    for path in args.files:
        measure(path, args)


if __name__ == "__main__":
    main()
