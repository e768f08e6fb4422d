"""Train from a step file; print the speed, and check that resuming is exact.

    python benchmarks/run_step.py base.zip records runs --steps=400

The first run is interrupted after half of the steps and resumed; the second run
is not. Both need `albert_tf` and JAX, but not TensorFlow. On a GPU, set
XLA_FLAGS=--xla_gpu_deterministic_ops=true; otherwise, the results of GPU
kernels differ between runs.
"""

import argparse
import os
import statistics
import subprocess
import sys

import numpy as np

from albert_tf.tpu import tensor_bundle
from albert_tf.training import checkpoint_files
from albert_tf.training.history import History

COMPILING = 2  # number of windows at the start that include compilation


def train(args: argparse.Namespace, output: str, steps: int) -> None:
    """Train up to a given step."""
    flags = {
        "step_file": args.step_file,
        "data_dir": args.records,
        "output_dir": output,
        "stop_step": steps,
    }
    command = [sys.executable, "-m", "albert_tf.run_step"]
    flags = [f"--{name}={value}" for name, value in flags.items()]
    subprocess.run(command + flags, check=True)


def report(output: str) -> None:
    """Print the speed and the losses of a run."""
    history = History.read(output)
    steps, losses = history.column("train", "loss")
    speeds = history.column("train", "examples_per_second")[1][COMPILING:]
    print(
        f"{output}: {statistics.median(speeds):,.1f} examples/s, loss "
        f"{losses[0]:.4f} at step {steps[0]}, {losses[-1]:.4f} at {steps[-1]}, "
        f"held out {history.last('eval').get('loss', np.nan):.4f}"
    )


def main() -> None:
    """Train with and without a resume, and compare the last checkpoints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in "step_file", "records", "output":
        parser.add_argument(name)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    outputs = [os.path.join(args.output, n) for n in ("resumed", "whole")]
    train(args, outputs[0], args.steps // 2)
    for output in outputs:
        train(args, output, args.steps)
        report(output)
    first, second = (
        tensor_bundle.read(checkpoint_files.prefix(output, args.steps))
        for output in outputs
    )
    apart = {n: np.abs(x - second[n]).max() for n, x in first.items()}
    name = max(apart, key=apart.get)
    print(f"largest difference between the runs: {apart[name]:.1e} in {name}")


if __name__ == "__main__":
    main()
