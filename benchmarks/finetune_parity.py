"""Whether fine-tuning ends where Hugging Face's ALBERT does.

    python benchmarks/finetune_parity.py --model_dir=DIR --data_dir=GLUE \
        --tasks=sst-2,rte --seeds=1,2,3

Both start from the same weights, converted by `albert_tf.convert_checkpoint`,
and have the same rows of tokens, learning rate, schedule, decay, clipping,
dropout, batch and steps; AdamW is PyTorch's, with bias correction. The seeds
of both decide their own heads, orders and dropout. Printed are each run's
accuracy, and mean and standard deviation. Needs `torch` and `transformers`.
"""

import dataclasses
import os
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf
import torch
import transformers

from albert_tf.base import settings
from albert_tf.base.settings import setting
from albert_tf.convert_checkpoint import convert
from albert_tf.describe import table
from albert_tf.finetuning.feature_cache import ConversionConfig
from albert_tf.finetuning.finetune import Settings, planned, run_job
from albert_tf.finetuning.job import FinetuningConfig, Job, prepare
from albert_tf.tasks.batches import batcher
from albert_tf.tasks.features import Features
from albert_tf.tasks.task import DataConfig, TaskConfig
from albert_tf.training.distribution import DistributionConfig
from albert_tf.training.optimizers import OptimizerConfig
from albert_tf.training.trainer import TrainingConfig

UNDECAYED = ("bias", "LayerNorm.weight", "layer_norm.weight")


@dataclasses.dataclass(frozen=True)
class ParityConfig:
    """What is run on both sides."""

    model_dir: str = setting("", "Pretrained model directory.", required=True)
    data_dir: str = setting("", "Folder of GLUE.", required=True)
    tasks: tuple = setting(("sst-2", "rte"), "Tasks with two classes.")
    seeds: tuple = setting(("1", "2", "3"), "Seeds.")
    max_train_examples: int = setting(0, "A sample of them; 0 is all.")
    num_train_epochs: float = setting(3.0, "Passes over them.")
    train_batch_size: int = setting(32, "Examples of a step.")
    learning_rate: float = setting(3e-5, "Peak learning rate.")
    max_seq_length: int = setting(128, "Tokens of an example.")


def settings_of(c: ParityConfig, task: str, seed: int, folder: str) -> Settings:
    """Return our settings of a run."""
    return Settings(
        FinetuningConfig(
            model_dir=c.model_dir,
            output_dir=os.path.join(folder, f"{task}_{seed}"),
            do_train=True,
            do_eval=True,
            num_train_epochs=c.num_train_epochs,
            max_train_examples=c.max_train_examples,
        ),
        DataConfig(task=task, data_dir=c.data_dir),
        TaskConfig(max_seq_length=c.max_seq_length),
        OptimizerConfig(
            optimizer="adamw",
            learning_rate=c.learning_rate,
            num_warmup_steps=None,
            bias_correction=True,
        ),
        TrainingConfig(
            num_train_steps=None,
            train_batch_size=c.train_batch_size,
            eval_steps=10**6,  # the last weights count on both sides
            random_seed=seed,
        ),
        DistributionConfig(),
        conversion=ConversionConfig(),
    )


def tensors(features: Features, rows: np.ndarray) -> dict[str, torch.Tensor]:
    """Return PyTorch's inputs, padded to the longest row."""
    batch = batcher(features)(tf.constant(rows, tf.int64))
    width = int(features.lengths[rows].max())
    names = {
        "input_ids": "input_ids",
        "attention_mask": "input_mask",
        "token_type_ids": "segment_ids",
    }
    found = {k: batch[v].numpy()[:, :width] for k, v in names.items()}
    found["labels"] = batch["labels"].numpy()
    return {k: torch.tensor(v).long() for k, v in found.items()}


def peer_optimizer(model, optimizer: OptimizerConfig, steps: int):
    """Return AdamW and the rate of `corrected_schedule` for PyTorch."""
    plain, decayed = [], []
    for name, parameter in model.named_parameters():
        (plain if name.endswith(UNDECAYED) else decayed).append(parameter)
    warmup = optimizer.num_warmup_steps
    rule = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": optimizer.weight_decay_rate},
            {"params": plain, "weight_decay": 0.0},
        ],
        lr=optimizer.learning_rate,
        betas=(optimizer.beta_1, optimizer.beta_2),
        eps=optimizer.epsilon,
    )

    def share(step):
        if step < warmup:
            return (step + 1) / warmup
        return max(0.0, 1.0 - (step - warmup) / max(steps - warmup, 1))

    return rule, torch.optim.lr_scheduler.LambdaLR(rule, share)


def peer_accuracy(s: Settings, job: Job, folder: str) -> float:
    """Fine-tune Hugging Face's ALBERT; return its accuracy."""
    torch.manual_seed(s.training.random_seed)
    model = transformers.AlbertForSequenceClassification.from_pretrained(
        folder,
        num_labels=2,
        classifier_dropout_prob=job.task.config.classifier_dropout,
    )
    train, dev = job.train[0].features, job.eval[0].features
    optimizer, training = planned(s.run, s.optimizer, s.training, len(train))
    steps, size = training.num_train_steps, training.train_batch_size
    rule, schedule = peer_optimizer(model, optimizer, steps)
    rng = np.random.default_rng(s.training.random_seed)
    order = np.concatenate(
        [
            rng.permutation(len(train))
            for _ in range(-(-steps * size // len(train)))
        ]
    )
    model.train()
    for step in range(steps):
        rule.zero_grad()
        rows = order[step * size : (step + 1) * size]
        model(**tensors(train, rows)).loss.backward()
        limit = optimizer.clip_norm
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        rule.step()
        schedule.step()
    model.eval()
    right = 0
    with torch.inference_mode():
        for start in range(0, len(dev), 64):
            rows = np.arange(start, min(start + 64, len(dev)))
            batch = tensors(dev, rows)
            chosen = model(**batch).logits.argmax(-1)
            right += int((chosen == batch["labels"]).sum())
    return right / len(dev)


def compare(c: ParityConfig, task: str, folder: str, peer: str) -> list:
    """Return a task's rows of the table: ours, theirs, their difference."""
    found = {"albert_tf": [], "Hugging Face": []}
    job = None
    strategy = tf.distribute.get_strategy()
    for seed in map(int, c.seeds):
        s = settings_of(c, task, seed, folder)
        if job is None:
            job = prepare(s.run, s.data, s.task, s.conversion)
            print(job.summary(), flush=True)
        start = time.perf_counter()
        ours = run_job(s, job, strategy)["eval"]["accuracy"]
        middle = time.perf_counter()
        theirs = peer_accuracy(s, job, peer)
        found["albert_tf"].append(ours)
        found["Hugging Face"].append(theirs)
        print(
            f"{task}, seed {seed}: {ours:.4f} in {middle - start:.0f} s, "
            f"Hugging Face {theirs:.4f} in "
            f"{time.perf_counter() - middle:.0f} s",
            flush=True,
        )
    return [row(task, name, values) for name, values in found.items()]


def row(task: str, name: str, values: list[float]) -> tuple[str, ...]:
    """Return a line of the table."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    runs = " ".join(f"{x:.4f}" for x in values)
    mean = statistics.mean(values)
    return f"{task}, {name}", f"{mean:.4f}", f"{spread:.4f}", runs


def main() -> None:
    """Run both sides with every seed, and print a table."""
    c = settings.from_flags(ParityConfig)
    rows = [("accuracy", "mean", "deviation", "runs")]
    with tempfile.TemporaryDirectory() as folder:
        peer = os.path.join(folder, "huggingface")
        convert(c.model_dir, peer, "huggingface")
        for task in c.tasks:
            rows += compare(c, task, folder, peer)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    settings.define_flags(ParityConfig)
    settings.run(main)
