"""Measure how this project's numbers differ from google-research/albert.

    python benchmarks/released_parity.py --golden=FOLDER

FOLDER contains one folder per configuration, recorded from the released code:
`albert_config.json`, `schedules.json`, a TF1 checkpoint `ckpt/model.ckpt-0`,
`inputs.npz`, `outputs.npz`, `grads.npz` and `train_*.npz`. As a user would,
this program converts each checkpoint, restores it and trains the model with the
project's own loop. The limit is ten times the float32 noise of the release; the
margin is the limit divided by the difference.

There are two kinds of recordings. `onehot` is the computation on TPUs, which
this project reproduces. `lookup` is the computation on CPUs and GPUs, in which
the release clips by the norm of a gradient whose repeated rows have not been
added up. In the table, the rows for `lookup` therefore use the recorded norm
for clipping, which shows that nothing else differs.
"""

import dataclasses
import json
import os
import tempfile

import numpy as np

from albert_tf.base import program
from albert_tf.base.console import format_table
from albert_tf.base.settings import setting
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.variable_names import GOOGLE, stored_tensors
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import CONFIG_FILE, AlbertConfig
from albert_tf.model.ops import cross_entropy
from albert_tf.training import checkpoints
from albert_tf.training.distribution import DistributionConfig, make_strategy
from albert_tf.training.objectives import PretrainingObjective
from albert_tf.training.optimizer import OptimizerConfig
from albert_tf.training.trainer import Trainer
from albert_tf.training.training_config import TrainingConfig

import tensorflow as tf  # isort: skip

BARS = {"outputs": 2e-5, "losses": 1e-5, "gradients": 1e-5, "weights": 2e-4}
# Limits for a configuration that has gaps in masks and an example without
# tokens. All scores of this example are near -10000, where float32 has a
# spacing of 1e-3. The ReLU of the configuration has ties: merely reversing the
# order of the examples changes LAMB's weights by 8e-4.
HARD_BARS = dict.fromkeys(BARS, 2e-3) | {"outputs": 1e-4}
ALL_MASKED_BAR = 5e-3
STEPS = 3


@dataclasses.dataclass(frozen=True)
class ParityConfig:
    """The location of the recorded numbers."""

    golden: str = setting("", "Folder of recordings.", required=True)


@dataclasses.dataclass
class Row:
    """The largest difference in one kind of number, and its limit."""

    bar: float
    largest: float = 0.0

    def add(self, ours, theirs) -> None:
        """Update the largest difference, given two tensors of the same size."""
        if theirs.size:
            ours = np.asarray(ours, np.float64).reshape(theirs.shape)
            self.largest = max(self.largest, np.abs(ours - theirs).max())

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the row."""
        margin = self.bar / self.largest if self.largest else float("inf")
        return (
            f"{self.largest:.1e}",
            f"{self.bar:.0e}",
            f"{margin:.1f}x" if margin >= 1 else f"{margin:.2f}x FAILS",
        )


def forward_and_backward(model, batch: dict[str, tf.Tensor]):
    """Return outputs, the released losses, and gradients of their sum."""
    with tf.GradientTape() as tape:
        out = model(
            batch["input_ids"],
            batch["input_mask"],
            batch["segment_ids"],
            batch["masked_lm_positions"],
            return_all=True,
        )
        mlm = cross_entropy(out["mlm_logits"], batch["masked_lm_ids"])
        sop = cross_entropy(out["sop_logits"], batch["sentence_order_labels"])
        w = batch["masked_lm_weights"]
        mlm_loss = tf.reduce_sum(w * mlm) / (tf.reduce_sum(w) + 1e-5)
        total = mlm_loss + tf.reduce_mean(sop)
    losses = {
        "mlm_per_example_loss": mlm,
        "sop_per_example_loss": sop,
        "mlm_loss": mlm_loss,
        "total_loss": total,
    }
    variables = list(checkpoints.named_variables(model).values())
    gradients = tape.gradient(total, variables)
    return out, losses, [tf.convert_to_tensor(g) for g in gradients]


class Recording:
    """The recorded arrays of one configuration, and its converted model."""

    def __init__(self, folder: str):
        self.folder = folder
        self.config = AlbertConfig.from_model_dir(folder)
        self.inputs = self.arrays("inputs")
        self.stored_tensors = stored_tensors(self.config, GOOGLE)
        self.empty = ~self.inputs["input_mask"].any(axis=1)
        self.bars = BARS | (HARD_BARS if self.empty.any() else {})
        self.work = tempfile.TemporaryDirectory()
        self.model_dir = os.path.join(self.work.name, "model")
        convert(
            os.path.join(folder, "ckpt", "model.ckpt-0"),
            self.model_dir,
            "model_dir",
            albert_config_file=os.path.join(folder, CONFIG_FILE),
        )

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return {name: array} of one file of recorded arrays."""
        with np.load(os.path.join(self.folder, f"{name}.npz")) as file:
            return dict(file)

    def released(self, name: str, arrays: dict, prefix: str = ""):
        """Return a variable's recorded array, in the layout of this project."""
        stored = self.stored_tensors[name]
        array = arrays[prefix + stored.name]
        return array.T if stored.transposed else array

    def batch(self) -> dict[str, tf.Tensor]:
        """Return the inputs with the names that the training loop uses."""
        batch = {k: tf.constant(v) for k, v in self.inputs.items()}
        batch["sentence_order_labels"] = batch.pop("next_sentence_labels")[:, 0]
        batch["example_weights"] = tf.ones(len(self.empty))
        return batch

    def add_by_example(self, rows: dict, ours, theirs) -> None:
        """Compare outputs; add the results to the rows of the table.

        Examples without tokens are compared in a separate row.
        """
        empty = np.repeat(self.empty, len(theirs) // len(self.empty))
        ours = np.asarray(ours).reshape(theirs.shape)
        rows["outputs"].add(ours[~empty], theirs[~empty])
        if empty.any():
            row = rows.setdefault("outputs, no token", Row(ALL_MASKED_BAR))
            row.add(ours[empty], theirs[empty])

    def compare_forward(self) -> dict[str, Row]:
        """Return the table rows for outputs, losses and gradients."""
        model = AlbertForPretraining(self.config)
        checkpoints.restore_weights(model, self.model_dir)
        out, losses, gradients = forward_and_backward(model, self.batch())
        recorded = self.arrays("outputs")
        kinds = ("outputs", "losses", "gradients")
        rows = {kind: Row(self.bars[kind]) for kind in kinds}
        for i, states in enumerate(out["hidden_states"]):
            self.add_by_example(rows, states, recorded[f"layer_{i:02d}"])
        for name in ("embedding_output", "pooled_output", "mlm_logits"):
            self.add_by_example(rows, out[name], recorded[name])
        self.add_by_example(rows, out["sop_logits"], recorded["sop_logits"])
        for name, loss in losses.items():
            rows["losses"].add(loss, recorded[name])
        recorded = self.arrays("grads")
        names = checkpoints.named_variables(model)
        for name, gradient in zip(names, gradients, strict=True):
            rows["gradients"].add(gradient, self.released(name, recorded))
        return rows

    def trainer(self, optimizer: str, schedule: str, **values) -> Trainer:
        """Return a trainer with the recorded settings and weights."""
        with open(os.path.join(self.folder, "schedules.json")) as file:
            recorded = json.load(file)[schedule]
        trainer = Trainer(
            make_strategy(DistributionConfig()),
            lambda: AlbertForPretraining(self.config),
            PretrainingObjective(),
            OptimizerConfig(
                optimizer=optimizer,
                learning_rate=recorded["init_lr"],
                num_warmup_steps=recorded["num_warmup_steps"],
                schedule="released",
                **values,
            ),
            TrainingConfig(
                num_train_steps=recorded["num_train_steps"],
                train_batch_size=len(self.empty),
            ),
            per_replica=True,
        )
        checkpoints.restore_weights(trainer.model, self.model_dir)
        return trainer

    def train_by_loop(self, optimizer: str, schedule: str) -> Trainer:
        """Train with the project's own loop; return the trainer."""
        trainer = self.trainer(optimizer, schedule)
        batch = self.batch()
        iterator = trainer.iterator(
            lambda **_: tf.data.Dataset.from_tensors(batch).repeat(), 0
        )
        trainer.run_steps(iterator, tf.constant(STEPS))
        return trainer

    def train_by_norms(self, optimizer: str, schedule: str, norms) -> Trainer:
        """Return a trainer after training with recorded clipping norms."""
        trainer = self.trainer(optimizer, schedule, clip_norm=0.0)
        for norm in norms:
            gradients = forward_and_backward(trainer.model, self.batch())[-1]
            scale = 1.0 / max(norm, 1.0)
            trainer.optimizer.apply([g * scale for g in gradients])
        return trainer

    def compare_training(self, file: str) -> Row:
        """Return the table row for the weights after three recorded steps."""
        _, optimizer, schedule, embedding = file.split("_")
        row, recorded = Row(self.bars["weights"]), self.arrays(file)
        if embedding == "onehot":
            trainer = self.train_by_loop(optimizer, schedule)
        else:
            norms = recorded["global_norm"]
            trainer = self.train_by_norms(optimizer, schedule, norms)
        for name, variable in trainer.weights.items():
            theirs = self.released(name, recorded, f"step{STEPS}/")
            row.add(variable, theirs)
        return row

    def rows(self) -> dict[str, Row]:
        """Return all rows of this configuration."""
        rows = self.compare_forward()
        for file in sorted(os.listdir(self.folder)):
            name = file.removesuffix(".npz")
            if name.startswith("train_") and name != file:
                title = "weights, " + name.removeprefix("train_")
                rows[title] = self.compare_training(name)
        return rows


@program.command(ParityConfig)
def main(c: ParityConfig) -> None:
    """Print the table of differences from the recordings."""
    lines = [("", "", "difference", "limit", "margin")]
    for name in sorted(os.listdir(c.golden)):
        recording = Recording(os.path.join(c.golden, name))
        for title, row in recording.rows().items():
            lines.append((name, title, *row.cells()))
    print("\n".join(format_table(lines)))


if __name__ == "__main__":
    main.program.cli()
