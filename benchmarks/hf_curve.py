"""Pretraining curves beside Hugging Face's ALBERT, on the same records.

    python benchmarks/hf_curve.py --data_dir=RECORDS --output=docs/curves/hf

Both start from the same weights (written by this project, converted), see the
same batches in the same order, and use AdamW with the same rates, decay and
clipping, in float32 without dropout. Writes OUTPUT.csv and OUTPUT.png and
prints how far the curves are apart. Needs torch and transformers.
"""

import argparse
import csv
import os
import tempfile

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.nn.functional import cross_entropy
from transformers import AlbertForPreTraining

from albert_tf.base import program

with program.quiet_start():
    import keras
    import tensorflow as tf

    from albert_tf.conversion.converter import convert
    from albert_tf.data.records import find, input_pipeline
    from albert_tf.model.albert import AlbertForPretraining
    from albert_tf.model.config import AlbertConfig
    from albert_tf.training import checkpoints
    from albert_tf.training.distribution import (
        DistributionConfig,
        make_strategy,
    )
    from albert_tf.training.objectives import PretrainingObjective
    from albert_tf.training.optimizers import EXCLUDED, OptimizerConfig
    from albert_tf.training.trainer import Trainer
    from albert_tf.training.training_config import TrainingConfig

SEED = 12345
LOSSES = ("mlm_loss", "sop_loss")
COLUMNS = ("step", *LOSSES, *(f"hf_{name}" for name in LOSSES))
WINDOW = 25  # steps that the drawn curves are averaged over


def make_trainer(config: AlbertConfig, given) -> Trainer:
    """Return the project's trainer, with torch's AdamW spelled out."""
    keras.utils.set_random_seed(SEED)
    return Trainer(
        make_strategy(DistributionConfig()),
        lambda: AlbertForPretraining(config),
        PretrainingObjective(),
        OptimizerConfig(
            optimizer="adamw",
            learning_rate=given.learning_rate,
            num_warmup_steps=given.steps // 10,
            bias_correction=True,
            decay_placement="decoupled",
        ),
        TrainingConfig(
            num_train_steps=given.steps, train_batch_size=given.batch
        ),
    )


class HuggingFace:
    """Hugging Face's model with the weights and the settings of a trainer."""

    def __init__(self, trainer: Trainer):
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.trainer = trainer
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "model")
            trainer.model.config.save(source)
            checkpoints.save(source, trainer.weights)
            output = os.path.join(folder, "hf")
            convert(source, output, "huggingface")
            # The library drops out before its sentence-order classifier.
            self.model = AlbertForPreTraining.from_pretrained(
                output, classifier_dropout_prob=0.0
            ).train()
        spared = ("bias", "LayerNorm.weight", "layer_norm.weight")
        groups = {True: [], False: []}
        for name, parameter in self.model.named_parameters():
            # `_layer_norm`: full_layer_layer_norm.
            plain = name.endswith(spared) or "layer_norm" in name.lower()
            groups[plain].append(parameter)
        ours = [bool(EXCLUDED.search(n)) for n in trainer.trained]
        assert_same(len(groups[True]), sum(ours))
        c = trainer.optimizer.config
        self.optimizer = torch.optim.AdamW(
            [
                {"params": groups[False], "weight_decay": c.weight_decay_rate},
                {"params": groups[True], "weight_decay": 0.0},
            ],
            betas=(c.beta_1, c.beta_2),
            eps=c.epsilon,
        )

    def losses(self, batch: dict) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the means of both losses, masked words and order."""
        data = {k: torch.from_numpy(v) for k, v in batch.items()}
        found = self.model.albert(
            data["input_ids"].long(),
            data["input_mask"],
            data["segment_ids"].long(),
        )
        hidden = found.last_hidden_state
        at = data["masked_lm_positions"].long()[..., None]
        at = at.expand(-1, -1, hidden.shape[-1])
        logits = self.model.predictions(hidden.gather(1, at))
        labels = data["masked_lm_ids"].long().flatten()
        each = cross_entropy(logits.flatten(0, 1), labels, reduction="none")
        weights = data["masked_lm_weights"].flatten()
        sop = self.model.sop_classifier(found.pooler_output)
        return (
            (each * weights).sum() / weights.sum(),
            cross_entropy(sop, data["sentence_order_labels"].long()),
        )

    def step(self, batch: dict, number: int) -> tuple[float, float]:
        """Train on a batch; return both losses before the update."""
        rate = float(self.trainer.optimizer.learning_rate(number))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        losses = self.losses(batch)
        sum(losses).backward()
        limit = self.trainer.optimizer.config.clip_norm
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step()
        return tuple(loss.item() for loss in losses)


def assert_same(left: int, right: int) -> None:
    """Stop if both sides do not spare the same number of variables."""
    if left != right:
        raise SystemExit(f"spared from decay: {left} there, {right} here")


def train_both(config: AlbertConfig, given) -> list[tuple]:
    """Train both on the same batches; return rows of `COLUMNS`."""
    metadata = find.read_metadata(given.data_dir)
    trainer = make_trainer(config, given)
    other = HuggingFace(trainer)

    def batches(start, num_shards, shard, batch_size):
        return input_pipeline.train_batches(
            given.data_dir,
            metadata,
            seed=SEED,
            start=start,
            batch_size=batch_size,
        )

    iterator = trainer.iterator(batches, 0)
    dataset = batches(0, 1, 0, given.batch).as_numpy_iterator()
    rows = []
    for number in range(given.steps):
        sums = trainer.run_steps(iterator, tf.constant(1))
        values = trainer.evaluator.summarize(sums.report.numpy())
        theirs = other.step(next(dataset), number)
        rows.append((number + 1, *(values[k] for k in LOSSES), *theirs))
        if not rows[-1][0] % 50:
            print(*(f"{x:.4f}" for x in rows[-1]), flush=True)
    return rows


def smooth(values: np.ndarray) -> np.ndarray:
    """Return means over a window of steps."""
    return np.convolve(values, np.ones(WINDOW) / WINDOW, mode="valid")


def draw(rows: list[tuple], path: str) -> None:
    """Draw both losses of both libraries."""
    table = np.array(rows)
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    axes = figure.subplots(1, 2)
    steps = table[WINDOW - 1 :, 0]
    for axis, name in zip(axes, LOSSES, strict=True):
        here = smooth(table[:, COLUMNS.index(name)])
        there = smooth(table[:, COLUMNS.index(f"hf_{name}")])
        axis.plot(steps, here, lw=3, alpha=0.5, label="albert_tf")
        axis.plot(steps, there, lw=1, color="k", label="Hugging Face")
        axis.set(title=f"{name}, mean of {WINDOW} steps", xlabel="step")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train, write, draw and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--output", required=True, help="without a suffix")
    parser.add_argument(
        "--albert_config_file", default="configs/models/tiny.json"
    )
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    given = parser.parse_args()
    config = AlbertConfig.from_json_file(given.albert_config_file)
    os.makedirs(os.path.dirname(given.output) or ".", exist_ok=True)
    rows = train_both(config, given)
    with open(f"{given.output}.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((n, *(f"{x:.6f}" for x in xs)) for n, *xs in rows)
    draw(rows, f"{given.output}.png")
    table = np.array(rows)
    for name in LOSSES:
        here = table[:, COLUMNS.index(name)]
        apart = np.abs(here - table[:, COLUMNS.index(f"hf_{name}")])
        print(
            f"{name}: apart at most {apart.max():.4f} at a step, "
            f"{apart.mean():.5f} on average; from {here[0]:.3f} to "
            f"{here[-WINDOW:].mean():.3f}"
        )


if __name__ == "__main__":
    main()
