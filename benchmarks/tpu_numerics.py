"""The module that the TPU compiler takes, trained with on the CPU.

    python benchmarks/tpu_numerics.py --data_dir=RECORDS --output_dir=DIR

Writes the mean losses of every 50 steps of four kinds of runs to DIR, one CSV
each, and prints how far they are apart: the module of one replica, which XLA
runs on the CPU with bfloat16 products, and ordinary training in float32 from
three seeds of weights and in bfloat16 from the first. The module begins with
the first seed's weights; all see the same batches in the same order. Files
that are there already are not made again. Needs the extra `tpu-check`.
"""

import argparse
import csv
import functools
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable

import numpy as np

from albert_tf.base import program
from albert_tf.base.text_table import table

with program.quiet_start():
    import keras
    import tensorflow as tf
    from step_twin import Twin

    from albert_tf.data.records import find, input_pipeline
    from albert_tf.model.config import AlbertConfig
    from albert_tf.tpu.chips import parse
    from albert_tf.tpu.compiled_step import Plan, Step
    from albert_tf.training.distribution import (
        DistributionConfig,
        make_strategy,
    )
    from albert_tf.training.optimizers import OptimizerConfig
    from albert_tf.training.pretraining import make_trainer
    from albert_tf.training.trainer import Trainer
    from albert_tf.training.training_config import TrainingConfig

WINDOW = 50  # steps of a line
HELD_OUT = -1  # in the place of the step
SEEDS = (0, 1, 2)  # of the weights
LOSSES = ("loss", "mlm_loss", "sop_loss")
COLUMNS = ("step", *LOSSES, "cpu_seconds")


class Work:
    """What all runs share: the model, its settings, and the batches."""

    def __init__(self, options):
        self.options = options
        self.metadata = find.read_metadata(options.data_dir)
        self.config = AlbertConfig.from_json_file(options.config)
        self.optimizer = OptimizerConfig(
            learning_rate=options.learning_rate,
            num_warmup_steps=options.steps // 20,
        )

    def training(self, dtype: str) -> TrainingConfig:
        """Return the settings of a run."""
        return TrainingConfig(
            num_train_steps=self.options.steps,
            train_batch_size=self.options.batch,
            dtype=dtype,
        )

    def trainer(self, seed: int, dtype: str) -> Trainer:
        """Return an ordinary trainer, its weights drawn from a seed."""
        keras.utils.set_random_seed(seed)
        return make_trainer(
            self.config,
            "none",
            self.optimizer,
            self.training(dtype),
            make_strategy(DistributionConfig()),
        )

    def batches(self, **keywords) -> tf.data.Dataset:
        """Return the batches that every run sees."""
        return input_pipeline.train_batches(
            self.options.data_dir, self.metadata, seed=0, **keywords
        )

    def held_out(self, trainer: Trainer) -> dict[str, float]:
        """Return the losses on the held-out records."""
        size = trainer.training.eval_batch_size
        return trainer.evaluator.evaluate(
            lambda: input_pipeline.eval_batches(
                self.options.data_dir, self.metadata, batch_size=size
            )
        )


def ordinary(work: Work, seed: int, dtype: str) -> tuple[Callable, Callable]:
    """Return what trains for a window, and what returns the trainer."""
    trainer = work.trainer(seed, dtype)
    iterator = trainer.iterator(work.batches, 0)

    def window():
        sums = trainer.run_steps(iterator, tf.constant(WINDOW))
        return trainer.evaluator.summarize(sums.report.numpy())

    return window, lambda: trainer


def twin(work: Work) -> tuple[Callable, Callable]:
    """Return the same of the module, with the first seed's weights."""
    trainer = work.trainer(SEEDS[0], "float32")
    lengths = (
        work.metadata.max_seq_length,
        work.metadata.max_predictions_per_seq,
    )
    training = work.training("bfloat16")
    plan = Plan(work.config, "none", work.optimizer, training, *lengths)
    step = Step(plan, parse("v5e:1x1"))
    first = step.variables() | trainer.state()
    values = {name: variable.numpy() for name, variable in first.items()}
    twin = Twin(step.lower(work.options.batch), values)
    batches = work.batches(batch_size=work.options.batch).as_numpy_iterator()

    def window():
        reports = (twin.step(next(batches))["report"] for _ in range(WINDOW))
        return trainer.evaluator.summarize(sum(reports))

    def trained():
        values = twin.variables
        for name, variable in trainer.state().items():
            variable.assign(values[name])
        return trainer

    return window, trained


RUNS = {
    "module, bfloat16": twin,
    **{
        f"seed {seed}, float32": functools.partial(
            ordinary, seed=seed, dtype="float32"
        )
        for seed in SEEDS
    },
    "seed 0, bfloat16": functools.partial(ordinary, seed=0, dtype="bfloat16"),
}


def curve(work: Work, name: str) -> np.ndarray:
    """Return a run's rows of COLUMNS, made unless its file is there."""
    path = os.path.join(work.options.output_dir, f"{name}.csv")
    if not os.path.exists(path):
        window, trained = RUNS[name](work)
        start = time.process_time()
        with open(f"{path}.part", "w", newline="", buffering=1) as file:
            lines = csv.writer(file)
            lines.writerow(COLUMNS)
            for step in range(0, work.options.steps, WINDOW):
                means = [*map(window().get, LOSSES)]
                seconds = round(time.process_time() - start, 1)
                lines.writerow([step + WINDOW, *means, seconds])
            means = [*map(work.held_out(trained()).get, LOSSES)]
            lines.writerow([HELD_OUT, *means, seconds])
        os.rename(f"{path}.part", path)
    return np.loadtxt(path, delimiter=",", skiprows=1)


def losses_table(curves: dict[str, np.ndarray]) -> list[str]:
    """Return the loss of every run at some steps and on held-out records."""
    steps = next(iter(curves.values()))[:, 0].astype(int)
    last = len(steps) - 1
    chosen = sorted({0, *range(last // 8, last, last // 8 or 1), last})
    rows = [("loss", *curves)]
    for row in chosen:
        name = "held-out" if steps[row] == HELD_OUT else f"to step {steps[row]}"
        rows.append((name, *(f"{c[row, 1]:.4f}" for c in curves.values())))
    seconds = (f"{c[-1, -1]:.0f}" for c in curves.values())
    return table([*rows, ("CPU seconds", *seconds)])


def distances(curves: dict[str, np.ndarray]) -> list[str]:
    """Say how far the module is from ordinary training, beside the seeds."""
    losses = {name: curve[:, 1] for name, curve in curves.items()}
    module, *seeds, bfloat16 = losses.values()
    spread = np.ptp(seeds, axis=0)
    apart = {
        "module from seed 0": np.abs(module - seeds[0]),
        "bfloat16 from float32, seed 0": np.abs(bfloat16 - seeds[0]),
        "largest from smallest of three seeds": spread,
    }
    rows = [("loss, difference", "mean", "largest", "held-out")]
    for name, x in apart.items():
        numbers = np.mean(x[:-1]), np.max(x[:-1]), x[-1]
        rows.append((name, *(f"{number:.4f}" for number in numbers)))
    inside = np.sum(apart["module from seed 0"] <= spread)
    return [
        *table(rows),
        f"the module is within the seeds' spread in {inside} of {len(spread)} "
        "lines",
    ]


def main() -> None:
    """Make what is missing of the runs and compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--config", default="configs/models/tiny.json")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--learning_rate", type=float, default=0.00176)
    work = Work(parser.parse_args())
    os.makedirs(work.options.output_dir, exist_ok=True)
    curves = {name: curve(work, name) for name in RUNS}
    packages = "tensorflow", "jaxlib", "libtpu"
    versions = (f"{p} {importlib.metadata.version(p)}" for p in packages)
    print(f"{platform.machine()}, {os.cpu_count()} CPUs;", *versions)
    print("\n".join([*losses_table(curves), *distances(curves)]))


if __name__ == "__main__":
    main()
