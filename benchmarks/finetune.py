"""Examples per second of fine-tuning, with and without bucketing by length.

    python benchmarks/finetune.py --data_dir=GLUE --spm_model_file=FILE

GLUE holds `SST-2/train.tsv` and `SST-2/dev.tsv`, or lies in that folder's
place. The model has random weights, on which speed does not depend. With the
packages `torch` and `transformers` the same rows go through Hugging Face's
ALBERT: padded to `max_seq_length`, and sorted and padded to each batch's
longest row, which is the best that its tools do.
"""

import dataclasses
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from albert_tf.base import command_line
from albert_tf.base.settings import setting
from albert_tf.base.text_table import table
from albert_tf.finetuning.recipe_trainer import FinetuningTrainer
from albert_tf.finetuning.recipes import RecipeConfig
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.batches import (
    batcher,
    evaluation_batches,
    training_batches,
)
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import find
from albert_tf.tasks.splits import read_splits
from albert_tf.tasks.task import DataConfig, Task, TaskConfig
from albert_tf.text.tokenizers import tokenizer_from_files
from albert_tf.training.distribution import DistributionConfig, make_strategy
from albert_tf.training.evaluator import Evaluator
from albert_tf.training.optimizers import OptimizerConfig
from albert_tf.training.training_config import TrainingConfig

STEPS_BEFORE = 3  # that compile and do not count
ARCHITECTURE = "AlbertForSequenceClassification"


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    data_dir: str = setting("", "Folder of GLUE or of SST-2.", required=True)
    spm_model_file: str = setting("", "SentencePiece model.", required=True)
    albert_config_file: str = setting(
        "configs/models/albert_base_v2.json", "Architecture."
    )
    max_seq_length: int = setting(128, "Tokens of padded rows.")
    batch_size: int = setting(32, "Examples of a batch.")
    eval_examples: int = setting(872, "Examples to evaluate on.")
    train_steps: int = setting(20, "Steps of training that count.")


def seconds(work: Callable[[], object]) -> float:
    """Return how long a function takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_evaluation(
    c: BenchmarkConfig, task: Task, config: AlbertConfig, features: Features
):
    """Return rows of the table, padded first."""
    outputs = task.head.measured_outputs
    evaluator = Evaluator(
        make_strategy(DistributionConfig()),
        lambda: task.head.build_model(config, "float32"),
        task.head,
        c.batch_size,
    )
    found = []
    for bucketed in (False, True):
        batches = evaluation_batches(features, c.batch_size, bucketed)

        def work(batches=batches):
            return evaluator.predict(lambda: batches, outputs)

        # Every length is traced before it counts.
        first = batches if bucketed else batches.take(1)
        evaluator.predict(lambda first=first: first, outputs)
        taken = seconds(lambda work=work: found.append(work()["logits"]))
        name = "bucketed" if bucketed else "padded"
        yield f"evaluation, {name}", len(features) / taken
    error = float(np.abs(found[0] - found[1]).max())
    print(f"Largest difference of logits with bucketing: {error:.1e}")


def measure_training(
    c: BenchmarkConfig, task: Task, config: AlbertConfig, features: Features
):
    """Return rows of the table, padded first."""
    steps = c.train_steps
    trainer = FinetuningTrainer(
        make_strategy(DistributionConfig()),
        lambda: task.head.build_model(config, "float32"),
        task.head,
        OptimizerConfig(optimizer="adamw", learning_rate=1e-5),
        TrainingConfig(num_train_steps=1000000, train_batch_size=c.batch_size),
        RecipeConfig(),
        config,
    )
    for group in (0, c.batch_size):

        def batches(start, num_shards, shard, batch_size, group=group):
            return training_batches(
                features,
                batch_size=batch_size,
                seed=1,
                start=start,
                group=group,
            )

        iterator = trainer.iterator(batches, 0)
        trainer.run_steps(iterator, tf.constant(STEPS_BEFORE))
        taken = seconds(
            lambda it=iterator: trainer.run_steps(
                it, tf.constant(steps)
            ).report.numpy()
        )
        name = "bucketed" if group else "padded"
        yield f"training, {name}", steps * c.batch_size / taken


def peer_batches(features: Features, size: int, bucketed: bool) -> list[dict]:
    """Return batches of NumPy arrays, padded to T or to the longest row."""
    order = np.arange(len(features))
    if bucketed:
        order = np.argsort(-features.lengths, kind="stable")
    make, batches = batcher(features), []
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        batch = make(tf.constant(rows))
        longest = int(features.lengths[rows].max())
        width = longest if bucketed else features.max_seq_length
        names = {
            "input_ids": "input_ids",
            "attention_mask": "input_mask",
            "token_type_ids": "segment_ids",
        }
        arrays = {k: batch[v].numpy()[:, :width] for k, v in names.items()}
        batches.append(arrays | {"labels": batch["labels"].numpy()})
    return batches


def measure_peer(
    c: BenchmarkConfig, config: AlbertConfig, dev: Features, train: Features
):
    """Return rows of the table of Hugging Face's ALBERT."""
    import torch
    import transformers

    from albert_tf.conversion.huggingface import config_json

    model = transformers.AlbertForSequenceClassification(
        transformers.AlbertConfig(**config_json(config, ARCHITECTURE))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, eps=1e-6)

    def tensors(batch):
        return {k: torch.tensor(v).long() for k, v in batch.items()}

    def evaluate(batches):
        model.eval()
        with torch.inference_mode():
            for batch in batches:
                model(**batch)

    def learn(batches):
        model.train()
        for batch in batches:
            optimizer.zero_grad()
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    rng = np.random.default_rng(1)
    for bucketed in (False, True):
        name = "sorted, padded to the longest" if bucketed else "padded"
        batches = [
            tensors(b) for b in peer_batches(dev, c.batch_size, bucketed)
        ]
        evaluate(batches[-1:])
        taken = seconds(lambda b=batches: evaluate(b))
        yield f"Hugging Face, evaluation, {name}", len(dev) / taken
        every = peer_batches(train, c.batch_size, bucketed)
        chosen = rng.choice(len(every) - 1, c.train_steps, replace=False)
        batches = [tensors(every[i]) for i in chosen]
        learn(batches[:1])
        taken = seconds(lambda b=batches: learn(b))
        rate = c.train_steps * c.batch_size / taken
        yield f"Hugging Face, training, {name}", rate


@command_line.program(BenchmarkConfig)
def main(c: BenchmarkConfig) -> None:
    """Measure, and print a table."""
    config = AlbertConfig.from_json_file(c.albert_config_file)
    tokenizer = tokenizer_from_files(spm_model_file=c.spm_model_file)
    wanted = TaskConfig(max_seq_length=c.max_seq_length)
    task = find("sst-2").with_config(wanted)
    data = DataConfig(data_dir=c.data_dir)
    examples = read_splits(task, data, "train")[""]
    dev = read_splits(task, data, "eval")[""][: c.eval_examples]
    dev_features = task.features(dev, tokenizer)
    train = task.features(examples[: 70 * c.batch_size], tokenizer)
    lengths = dev_features.lengths
    print(
        f"{len(dev)} examples of {lengths.mean():.1f} tokens, longest "
        f"{lengths.max()}, in batches of {c.batch_size}"
    )
    rows = [*measure_evaluation(c, task, config, dev_features)]
    rows += measure_training(c, task, config, train)
    try:
        rows += measure_peer(c, config, dev_features, train)
    except ImportError as error:
        print(f"Hugging Face is left out: {error}")
    cells = [(name, f"{rate:.1f}") for name, rate in rows]
    print("\n".join(table([("", "examples/s"), *cells])))
    rates = dict(rows)
    for part in ("evaluation", "training"):
        ratio = rates[f"{part}, bucketed"] / rates[f"{part}, padded"]
        print(f"Bucketing makes {part} {ratio:.2f} times as fast")


if __name__ == "__main__":
    main.program.cli()
