"""The exported training step on any device that JAX sees.

    python -m albert_tf.tpu_check --topology=v5e:1x1 --step_file=base.zip \\
        --albert_config_file=configs/models/albert_base_v2.json \\
        --max_seq_length=512 --train_batch_size=32 --dtype=bfloat16 \\
        --optimizer=adamw --encoder_loop=unrolled --rematerialize=none
    python benchmarks/accelerator_step.py base.zip [--peer]

The first command needs TensorFlow and the extra `tpu-check`; the second one
JAX and the file alone, and for `--peer`, PyTorch and transformers, of which
Hugging Face's ALBERT does the same work, compiled, in a process that takes
turns with this one. Each step is fed what the last one put out. The first one
is compared, output by output, with that of JAX's CPU backend.
"""

import argparse
import json
import os
import statistics
import sys
import time
import zipfile

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax  # noqa: E402
import jax.export  # noqa: E402
import numpy as np  # noqa: E402

# Part of a device's name: peaks of its products in bfloat16 and, as XLA makes
# them, in float32 (TF32, or bfloat16 on TPUs), in TFLOP/s, of data sheets.
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


class Step:
    """A step from a file, compiled for a device.

    Args:
      about: what goes in and comes out.
      artifact: the program.
      device: to run on.
    """

    def __init__(self, about: dict, artifact: bytes, device):
        self.about, self.device = about, device
        self.names = [x["name"] for x in about["arguments"]]
        kept = [i for i, n in enumerate(self.names) if n in about["outputs"]]
        self.arguments: dict = {}
        like = [
            jax.ShapeDtypeStruct(
                x["shape"],
                x["dtype"],
                sharding=jax.sharding.SingleDeviceSharding(device),
            )
            for x in about["arguments"]
        ]
        call = jax.export.deserialize(bytearray(artifact)).call
        self.compiled = (
            jax.jit(call, donate_argnums=kept).lower(*like).compile()
        )

    def feed(self, values: dict[str, np.ndarray]) -> None:
        """Take values for the next step."""
        self.arguments = {
            name: jax.device_put(value, self.device)
            for name, value in values.items()
        }

    def step(self) -> dict:
        """Make a step, whose outputs are the next one's inputs; return them."""
        outputs = self.compiled(*(self.arguments[n] for n in self.names))
        named = dict(zip(self.about["outputs"], outputs, strict=True))
        self.arguments |= {n: x for n, x in named.items() if n in self.names}
        return jax.block_until_ready(named)

    def megabytes(self) -> float:
        """Return the largest memory so far, or what the compiler needs."""
        stats = self.device.memory_stats() or {}
        if "peak_bytes_in_use" in stats:
            return stats["peak_bytes_in_use"] / 1e6
        need = self.compiled.memory_analysis()
        size = need.argument_size_in_bytes + need.temp_size_in_bytes
        size += need.output_size_in_bytes - need.alias_size_in_bytes
        return size / 1e6


def filled(argument: dict, rng: np.random.Generator) -> np.ndarray:
    """Return an argument as its `content` says, see the file's writer."""
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


def differences(left: dict, right: dict) -> list[tuple[float, str]]:
    """Return each output's relative difference, the largest first.

    It is the norm of the difference over that of the right side.
    """
    compared = []
    for name, value in right.items():
        x, y = np.asarray(left[name], "f8"), np.asarray(value, "f8")
        size = np.linalg.norm(y) or 1.0
        compared.append((float(np.linalg.norm(x - y) / size), name))
    return sorted(compared, reverse=True)


def product_flops(device, dtype: str, size: int = 2048) -> float:
    """Return the FLOP/s of a matrix product, for a peak that is not known."""
    square = jax.device_put(np.ones((size, size), dtype), device)
    product = jax.jit(lambda x: x @ x).lower(square).compile()
    seconds = []
    for _ in range(WARMUP + 5):
        start = time.perf_counter()
        jax.block_until_ready(product(square))
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds[WARMUP:])


def peak(device, dtype: str) -> tuple[float, str]:
    """Return a device's peak FLOP/s, and where it is from."""
    for part, (half, single) in PEAKS.items():
        if part in device.device_kind:
            rate = half if dtype == "bfloat16" else single
            return rate * 1e12, "data sheet"
    return product_flops(
        device, "float32"
    ), "a float32 product of 2048, measured"


def start_peer(about: dict, python: str):
    """Return the peer's process, or None, and say why there is none."""
    from step_worker import Worker

    config = about["config"]
    case = {
        "batch": about["examples"],
        "tokens": about["tokens"],
        "predictions": about["predictions"],
        "hidden": config["hidden_size"],
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "intermediate": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "embedding": config["embedding_size"],
        "dtype": about["dtype"],
    }
    worker = Worker("Hugging Face compiled", json.dumps(case), python)
    if "missing" in worker.hello:
        print(f"Hugging Face compiled: skipped, {worker.hello['missing']}")
        return None
    return worker


def print_row(name: str, seconds: list[float], about: dict, rate, mb) -> None:
    """Print a line of the table."""
    median = statistics.median(seconds)
    share = about["model_flops"] / median / rate
    cells = (
        f"{median * 1e3:,.1f}",
        f"{min(seconds) * 1e3:,.1f}",
        f"{about['examples'] / median:,.1f}",
        f"{share:.1%}",
        f"{mb:,.0f}",
    )
    print(f"| {name} | {' | '.join(cells)} |")


def measure(path: str, asked: argparse.Namespace) -> None:
    """Compare and time the step of a file; print what was found."""
    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read("step.json"))
        artifact = archive.read("step.jax")
    device = jax.devices()[0]
    rng = np.random.default_rng(asked.seed)
    values = {x["name"]: filled(x, rng) for x in about["arguments"]}
    rate, source = peak(device, about["dtype"])
    print(
        f"\n{path}: {about['examples']} x {about['tokens']} tokens, "
        f"{about['dtype']}, {about['optimizer']['optimizer']}, "
        f"{about['encoder_loop']['form']} loop, "
        f"{about['model_flops'] / 1e9:,.0f} GFLOP of the model; "
        f"{device.device_kind}, jax {jax.__version__}, peak "
        f"{rate / 1e12:,.2f} TFLOP/s ({source})"
    )
    ours = Step(about, artifact, device)
    ours.feed(values)
    first = {n: np.asarray(x) for n, x in ours.step().items()}
    if not asked.nocompare:
        compare(about, artifact, values, first)
    peer = start_peer(about, asked.peer_python) if asked.peer else None
    seconds: list[float] = []
    for _ in range(WARMUP + asked.rounds):
        start = time.perf_counter()
        ours.step()
        seconds.append(time.perf_counter() - start)
        if peer:
            peer.step()
    print("\n| step | ms | min | examples/s | of the peak | MB |")
    print("|---|---|---|---|---|---|")
    print_row("this file", seconds[WARMUP:], about, rate, ours.megabytes())
    if peer:
        size = peer.last["megabytes"]
        print_row(peer.name, peer.seconds[WARMUP:], about, rate, size)
        peer.close()


def compare(about: dict, artifact: bytes, values: dict, first: dict) -> None:
    """Print how the first step differs from that of JAX's CPU backend."""
    reference = Step(about, artifact, jax.devices("cpu")[0])
    reference.feed(values)
    worst = differences(first, reference.step())
    print(f"relative differences of {len(worst)} outputs from the CPU's:")
    for size, name in worst[:WORST]:
        print(f"  {size:.1e} {name}")


def main() -> None:
    """Measure the step of each file."""
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
