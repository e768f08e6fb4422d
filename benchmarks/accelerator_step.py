"""Time the exported training step on any device that JAX supports.

    python -m albert_tf.tpu_check --topology=v5e:1x1 --step_file=base.zip \\
        --albert_config_file=configs/models/albert_base_v2.json \\
        --max_seq_length=512 --train_batch_size=32 --dtype=bfloat16 \\
        --optimizer=adamw --encoder_loop=unrolled --rematerialize=none
    python benchmarks/accelerator_step.py base.zip [--peer]

The first command needs TensorFlow and the extra `tpu-check`. The second needs
only JAX and the file, and for `--peer`, PyTorch and transformers: Hugging
Face's compiled ALBERT then does the same work in a process that takes turns
with this one. The outputs of each step are the inputs of the next. The outputs
of the first step are compared with those of JAX's CPU backend.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
import zipfile

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax  # noqa: E402
import jax.export  # noqa: E402
import numpy as np  # noqa: E402

# {part of a device's name: peak rates of matrix products in bfloat16 and in
# float32 as XLA computes them (TF32, or bfloat16 on TPUs)}, in TFLOP/s, from
# data sheets.
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
    """A step loaded from a file, on a device.

    Args:
      about: the description of its inputs and outputs.
      artifact: the serialised program.
      values: its arguments for the first step.
      device: the device to run on.
    """

    def __init__(self, about: dict, artifact: bytes, values: dict, device):
        self.names, self.outputs = list(values), about["outputs"]
        kept = [i for i, n in enumerate(self.names) if n in self.outputs]
        call = jax.export.deserialize(bytearray(artifact)).call
        self.call = jax.jit(call, donate_argnums=kept)
        self.values = jax.device_put(values, device)

    def step(self) -> dict:
        """Run a step; return its outputs, which are the next step's inputs."""
        outputs = self.call(*(self.values[n] for n in self.names))
        named = dict(zip(self.outputs, outputs, strict=True))
        self.values |= {n: x for n, x in named.items() if n in self.values}
        return jax.block_until_ready(named)


def filled(argument: dict, rng: np.random.Generator) -> np.ndarray:
    """Return an argument filled as its `content` field specifies."""
    shape, content = argument["shape"], argument["content"]
    kind, *numbers = content if isinstance(content, list) else (None, content)
    if kind == "integers":
        value = rng.integers(*numbers, shape)
    elif kind == "places":
        rows = [rng.permutation(*numbers)[: shape[1]] for _ in range(shape[0])]
        value = np.sort(rows)
    elif kind == "normal":
        value = rng.normal(0, *numbers, shape)
    else:
        value = np.full(shape, *numbers)
    return value.astype(argument["dtype"])


def peak(device, dtype: str) -> float:
    """Return a device's peak FLOP/s, NaN if unknown."""
    for part, rates in PEAKS.items():
        if part in device.device_kind:
            return rates[dtype != "bfloat16"] * 1e12
    return math.nan


def peers(about: dict, python: str) -> list:
    """Return the peer's process in a list, empty if it failed to start."""
    from turns import Worker, present

    keys = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers")
    keys += ("num_attention_heads", "intermediate_size")
    case = {
        "batch": about["examples"],
        "tokens": about["tokens"],
        "predictions": about["predictions"],
        "model": {key: about["config"][key] for key in keys},
        "dtype": about["dtype"],
    }
    name = "Hugging Face compiled"
    arguments = [name, json.dumps(case)]
    return present([Worker(name, "train_step_peers.py", arguments, python)])


def row(name: str, seconds: list[float], about: dict, rate, mb) -> tuple:
    """Return a line of the table."""
    median = statistics.median(seconds)
    return (
        name,
        f"{median * 1e3:,.1f}",
        f"{min(seconds) * 1e3:,.1f}",
        f"{about['examples'] / median:,.1f}",
        f"{about['model_flops'] / median / rate:.1%}",
        f"{mb:,.0f}",
    )


def measure(path: str, asked: argparse.Namespace) -> None:
    """Compare and time the step in a file; print the results."""
    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read("step.json"))
        artifact = archive.read("step.jax")
    device = jax.devices()[0]
    rng = np.random.default_rng(asked.seed)
    values = {x["name"]: filled(x, rng) for x in about["arguments"]}
    rate = peak(device, about["dtype"])
    print(
        f"\n{path}: {about['examples']} x {about['tokens']} tokens, "
        f"{about['dtype']}, {about['optimizer']['optimizer']}, "
        f"{about['encoder_loop']['form']} loop, "
        f"{about['model_flops'] / 1e9:,.0f} GFLOP of the model; "
        f"{device.device_kind}, jax {jax.__version__}, peak "
        f"{rate / 1e12:,.1f} TFLOP/s"
    )
    ours = Step(about, artifact, values, device)
    first = {n: np.asarray(x) for n, x in ours.step().items()}
    if not asked.nocompare:
        compare(about, artifact, values, first)
    others = peers(about, asked.peer_python) if asked.peer else []
    seconds: list[float] = []
    for _ in range(WARMUP + asked.rounds):
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


def compare(about: dict, artifact: bytes, values: dict, first: dict) -> None:
    """Print how the first step differs from that of JAX's CPU backend.

    A difference is the norm of the error over the norm of the CPU's output.
    """
    reference = Step(about, artifact, values, jax.devices("cpu")[0])
    differences = []
    for name, value in reference.step().items():
        x, y = np.asarray(first[name], "f8"), np.asarray(value, "f8")
        size = np.linalg.norm(y) or 1.0
        differences.append((np.linalg.norm(x - y) / size, name))
    print(f"relative differences of {len(differences)} outputs from the CPU's:")
    for size, name in sorted(differences, reverse=True)[:WORST]:
        print(f"  {size:.1e} {name}")


def main() -> None:
    """Measure the step in each file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--rounds", type=int, default=10, help="steps timed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nocompare", action="store_true")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--peer_python", default=sys.executable)
    asked = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for path in asked.files:
        measure(path, asked)


if __name__ == "__main__":
    main()
