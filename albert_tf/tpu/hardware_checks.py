"""What is asked of a machine: each check stands alone and never stops another.

A check returns what came of it, or raises: `NotRun` says why it has nothing
to say here, and any other error is its failure.
"""

import dataclasses
import functools
import json
from importlib import resources
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.settings import Checked, setting
from albert_tf.model.config import AlbertConfig
from albert_tf.model.devices import is_tpu
from albert_tf.tpu.chips import parse
from albert_tf.tpu.compiler import GIB
from albert_tf.tpu.fingerprint import fingerprint
from albert_tf.tpu.made_up_records import VOCABULARY, write_records
from albert_tf.tpu.tpu_recipes import accepted, read_step
from albert_tf.training.machines import distribution
from albert_tf.training.machines.distribution import DistributionConfig
from albert_tf.training.model_directory import checkpoints
from albert_tf.training.optimization.optimizers import OptimizerConfig
from albert_tf.training.pretraining.pretraining_config import PretrainingConfig
from albert_tf.training.pretraining.pretraining_run import pretrain
from albert_tf.training.runs.history import History
from albert_tf.training.step.training_config import TrainingConfig

RECIPE = "base_v5e-8"
STEPS, STRETCH = 200, 20
SMALL = AlbertConfig(
    vocab_size=len(VOCABULARY),
    embedding_size=64,
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=64,
)
TRAINING = TrainingConfig(
    num_train_steps=STEPS,
    train_batch_size=64,
    steps_per_loop=STRETCH,
    eval_steps=STEPS,
    random_seed=1,
)
BASE_BATCH, BASE_STEPS = 32, 30  # examples of a replica, of 512 tokens
# Relative errors of a mean loss whose products have 8 bits, on TPUs, 11, on
# GPUs, and 24.
ROUNDING = {"TPU": 2e-2, "GPU": 2e-3, "CPU": 1e-5}
# The compiler's figure has no batches that wait beside the one in work.
MEMORY_FACTOR = 1.25


@dataclasses.dataclass(frozen=True)
class HardwareReportConfig(Checked):
    """Where the report goes, and what is known of the machine."""

    output_dir: str = setting(
        "", "Folder for the report and its runs.", required=True
    )
    topology: str | None = setting(
        None,
        "Slice of TPUs, such as v5e-8: its peak, and what the compiler says.",
    )
    num_steps: int = setting(
        STEPS,
        "Steps of the small model to make, of 200; fewer are a quicker look.",
        minimum=2,
        maximum=STEPS,
    )


class NotRun(Exception):
    """Why a check has nothing to say on this machine."""


class Outcome(NamedTuple):
    """What came of a check; `table` has rows for the report."""

    passed: bool
    got: str
    table: tuple[tuple[str, ...], ...] = ()


def run(
    folder: str,
    output_dir: str,
    devices: DistributionConfig,
    training: TrainingConfig = TRAINING,
    model: AlbertConfig = SMALL,
    **what,
) -> dict[str, float]:
    """Train a model, or go on with it; return held-out metrics.

    Args:
      folder: for the records and the model's config.
      output_dir: the model directory.
      devices, training, model: where, how and what.
      **what: more fields of `PretrainingConfig`.
    """
    tokens = model.max_position_embeddings
    config_file = files.join(folder, f"model-{tokens}.json")
    files.write_text(config_file, model.to_json())
    asked = PretrainingConfig(
        data_dir=write_records(folder, tokens),
        albert_config_file=config_file,
        output_dir=output_dir,
        **what,
    )
    optimizer = OptimizerConfig(learning_rate=0.01, num_warmup_steps=20)
    return pretrain(asked, optimizer, training, devices)


class Bench:
    """The machine, and the runs that checks share.

    Args:
      config: what is asked.
      devices: where to run.

    Attributes:
      strategy: over all replicas, to be asked of them; runs make their own.
      kind: what the replicas are: CPU, GPU or TPU.
    """

    def __init__(
        self, config: HardwareReportConfig, devices: DistributionConfig
    ):
        chip = parse(config.topology).chip if config.topology else None
        if chip and not devices.peak_tflops:
            peak = chip.flops / chip.replicas / 1e12
            devices = dataclasses.replace(devices, peak_tflops=peak)
        self.config, self.devices = config, devices
        self.folder = files.join(config.output_dir, "runs")
        prepared = distribution.prepare_devices(devices)
        self.strategy = prepared or distribution.make_strategy(devices)
        gpus = tf.config.list_physical_devices("GPU")
        self.kind = "GPU" if gpus else "CPU"
        if is_tpu(self.strategy):
            self.kind = "TPU"

    def small(self, name: str, steps: int) -> str:
        """Train the small model up to a step; return its model directory."""
        model_dir = files.join(self.folder, name)
        training = dataclasses.replace(TRAINING, stop_step=steps)
        run(self.folder, model_dir, self.devices, training)
        return model_dir

    @functools.cached_property
    def unbroken(self) -> str:
        """The model directory of a run that was never interrupted."""
        return self.small("unbroken", self.config.num_steps)

    def evaluated(self, devices: DistributionConfig) -> float:
        """Return the loss of the unbroken run's model on some devices."""
        asked = {"do_train": False, "do_eval": True}
        return run(self.folder, self.unbroken, devices, **asked)["loss"]


@functools.cache
def expected_figures() -> dict:
    """Return the committed curve and what the compiler predicted."""
    file = resources.files(__package__) / "expected_figures.json"
    return json.loads(file.read_text("utf-8"))


def module(bench: Bench) -> Outcome:
    """Lower a recipe here, and compare it with what was compiled for a TPU."""
    path = f"configs/pretraining/{RECIPE}.flags"
    if not files.exists(path):
        raise NotRun(f"{path} is not in this folder")
    step, micro_batch = read_step(path)
    lowered = fingerprint(step.lower(micro_batch).hlo)
    difference = accepted()[RECIPE].module.difference(lowered)
    return Outcome(not difference, difference or lowered.digest)


def compare_losses(measured: list[float], seeds: list[list[float]]) -> Outcome:
    """Compare the losses of stretches with those of several seeds.

    They may be as far from the first seed's as two seeds have been from each
    other up to there.
    """
    spread = np.ptp(np.array(seeds), axis=0)
    allowed = np.maximum.accumulate(spread)[: len(measured)]
    expected = seeds[0][: len(measured)]
    distances = np.abs(np.subtract(measured, expected))
    worst = np.max(distances / allowed)
    rows = zip(measured, expected, distances, allowed, strict=True)
    return Outcome(
        bool(worst <= 1),  # not a number is no pass
        f"{worst:.1%} of the distance that is allowed",
        (
            ("to step", "loss", "committed", "distance", "allowed"),
            *(
                (str((i + 1) * STRETCH), *(f"{x:.4f}" for x in row))
                for i, row in enumerate(rows)
            ),
        ),
    )


def losses(bench: Bench) -> Outcome:
    """Compare the small model's losses with the committed ones."""
    measured = History.read(bench.unbroken).column("train", "loss")[1]
    measured = measured[: bench.config.num_steps // STRETCH]
    if not measured:
        raise NotRun(f"fewer than {STRETCH} steps were made")
    return compare_losses(measured, expected_figures()["losses"])


def resume(bench: Bench) -> Outcome:
    """Stop a run in the middle and go on with it."""
    steps = bench.config.num_steps
    bench.small("interrupted", steps // 2)
    model_dirs = bench.small("interrupted", steps), bench.unbroken
    broken, whole = map(checkpoints.latest, model_dirs)
    read = checkpoints.reader(broken), checkpoints.reader(whole)
    unlike = {}
    for name in checkpoints.read_table(whole):
        a, b = (value(name) for value in read)
        if a.tobytes() != b.tobytes():
            unlike[name] = np.abs(a - b.astype(float)).max()
    if not unlike:
        return Outcome(True, "equal bits of weights, slots and step")
    name = max(unlike, key=unlike.get)
    return Outcome(
        False,
        f"{len(unlike)} variables differ, most {name} by {unlike[name]:.1e}; "
        "a GPU may add in another order each time",
    )


def evaluation(bench: Bench) -> Outcome:
    """Evaluate on all replicas, and on one: of a TPU's, on the host."""
    replicas = bench.strategy.num_replicas_in_sync
    if replicas == 1:
        raise NotRun("there is one replica")
    alone = DistributionConfig(distribution_strategy="one_device")
    every, one = bench.evaluated(bench.devices), bench.evaluated(alone)
    error, allowed = abs(every / one - 1), ROUNDING[bench.kind]
    return Outcome(
        bool(error <= allowed),
        f"loss {every:.6f} on {replicas} replicas, {one:.6f} on one: relative "
        f"difference {error:.1e}, allowed {allowed:.0e}",
    )


def speed(model_dir: str) -> Outcome:
    """Say how fast a run was, without its first stretch, which compiles."""
    rows = History.read(model_dir).rows
    rows = [row for row in rows if row["split"] == "train"]
    rows = rows[1:] or rows
    pace = np.median([row["examples_per_second"] for row in rows])
    share = "the peak is not known: --peak_tflops or --topology"
    if "model_flops_utilization" in rows[0]:
        shares = [row["model_flops_utilization"] for row in rows]
        share = f"{np.median(shares):.1%} of the peak"
    return Outcome(bool(pace > 0), f"{pace:,.1f} examples/s, {share}")


def base_speed(bench: Bench) -> Outcome:
    """Train the base model for some steps."""
    if bench.kind == "CPU":
        raise NotRun("a step takes a CPU minutes")
    model_dir = files.join(bench.folder, "base")
    batch = BASE_BATCH * bench.strategy.num_replicas_in_sync
    training = dataclasses.replace(
        TRAINING,
        num_train_steps=BASE_STEPS,
        train_batch_size=batch,
        eval_batch_size=batch,
        steps_per_loop=BASE_STEPS // 3,
        dtype="bfloat16",
    )
    run(bench.folder, model_dir, bench.devices, training, AlbertConfig())
    return speed(model_dir)


def memory(bench: Bench) -> Outcome:
    """Compare a device's memory at its peak with what was predicted."""
    if bench.kind == "CPU":
        raise NotRun("a CPU has no memory of its own")
    peak = tf.config.experimental.get_memory_info(f"{bench.kind}:0")["peak"]
    got, generation = f"{peak / GIB:.2f} GiB", None
    if bench.config.topology:
        generation = parse(bench.config.topology).generation
    predicted = expected_figures()["base_gib"].get(generation)
    if predicted is None:
        raise NotRun(f"{got}; predicted for TPUs alone, see --topology")
    return Outcome(
        peak / GIB <= MEMORY_FACTOR * predicted,
        f"{got}, predicted {predicted:.2f}",
    )


# {name: (when it passes, the check)}, in their order.
CHECKS = {
    f"lowered module of {RECIPE}": (
        "the fingerprint of what the TPU's compiler took",
        module,
    ),
    "losses of 200 steps": (
        "no further from the committed ones than another seed's",
        losses,
    ),
    "save and resume": ("the bits of an unbroken run", resume),
    "evaluation": ("the loss of one replica, to rounding", evaluation),
    "speed, small model, float32": (
        "steps are made",
        lambda bench: speed(bench.unbroken),
    ),
    f"speed, base, {BASE_BATCH} x 512 a replica, bfloat16": (
        "steps are made",
        base_speed,
    ),
    "memory of a device after that": (
        f"at most {MEMORY_FACTOR} times what the TPU's compiler said",
        memory,
    ),
}
