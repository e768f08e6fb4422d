"""Run passes over the examples with one library, for `finetune.py`.

python benchmarks/finetune_peers.py IMPLEMENTATION CASE
"""

import json
import sys
from collections.abc import Callable

import numpy as np
from train_step_peers import CLIP, EPSILON
from turns import CORES, serve

OURS = "albert_tf"
PEERS = ("Hugging Face", "Hugging Face compiled")
RATE = 1e-5


def our_trainer(case: dict):
    """Return a trainer like the trainer of the command `finetune`."""
    from albert_tf.finetuning.finetuning_trainer import FinetuningTrainer
    from albert_tf.finetuning.recipe import RecipeConfig
    from albert_tf.model.config import AlbertConfig
    from albert_tf.tasks.registry import find
    from albert_tf.training import distribution
    from albert_tf.training.optimizer import OptimizerConfig
    from albert_tf.training.training_config import TrainingConfig

    task = find(case["task"]).updated(max_seq_length=case["max_seq_length"])
    config = AlbertConfig.from_json_file(case["albert_config_file"])
    training = TrainingConfig(
        num_train_steps=1000000,
        train_batch_size=case["batch_size"],
        eval_batch_size=case["batch_size"],
        dtype=case["dtype"],
    )
    return FinetuningTrainer(
        distribution.make_strategy(distribution.DistributionConfig()),
        lambda: task.build_model(config, training.dtype_policy),
        task.objective,
        OptimizerConfig(optimizer="adamw", learning_rate=RATE),
        training,
        recipe=RecipeConfig(),
        config=config,
    )


def ours(case: dict) -> Callable[[], int]:
    """Return a function that runs a pass with this project's code.

    The function returns the number of examples.
    """
    from albert_tf.base import program

    with program.quiet_start():
        import tensorflow as tf

    from albert_tf.tasks import batches
    from albert_tf.tasks.features import Features

    arrays, size = dict(np.load(case["rows"])), case["batch_size"]
    labels, most = {"labels": arrays.pop("labels")}, case["max_seq_length"]
    rows = Features(**arrays, arrays=labels, pad_id=0, max_seq_length=most)
    trainer = our_trainer(case)

    def evaluate() -> int:
        trainer.evaluator.predict(
            lambda: batches.evaluation_batches(rows, size, True),
            trainer.objective.measured_outputs,
        )
        return len(rows)

    def place_batches(batch_size, **place):
        return batches.training_batches(
            rows, batch_size=batch_size, seed=1, group=size, step=1, **place
        )

    iterator, number = trainer.iterator(place_batches, 0), len(rows) // size

    def learn() -> int:
        trainer.run_steps(iterator, tf.constant(number)).report.numpy()
        return number * size

    return evaluate if case["part"] == "evaluation" else learn


def sorted_batches(case: dict) -> list[dict[str, np.ndarray]]:
    """Return batches sorted by length, each cut to its longest row's length."""
    arrays, size = np.load(case["rows"]), case["batch_size"]
    splits, tokens = arrays["row_splits"], arrays["tokens"]
    lengths, made = np.diff(splits), []
    order = np.argsort(-lengths, kind="stable")
    for chosen in np.split(order, range(size, len(order), size)):
        ids = np.zeros((len(chosen), lengths[chosen].max()), np.int64)
        mask, position = np.zeros_like(ids), np.arange(ids.shape[1])
        for i, row in enumerate(chosen):
            ids[i, : lengths[row]] = tokens[splits[row] : splits[row + 1]]
            mask[i, : lengths[row]] = 1
        second = position >= arrays["second_starts"][chosen][:, None]
        batch = {"input_ids": ids, "attention_mask": mask}
        batch["token_type_ids"] = mask * second
        labels = arrays["labels"][chosen].astype(np.int64)
        if labels.ndim == 1:
            batch["labels"] = labels
        else:
            batch["start_positions"], batch["end_positions"] = labels.T
        made.append(batch)
    return made


def hugging_face(case: dict, compiled: bool) -> Callable[[], int]:
    """Return a function that runs a pass with Hugging Face's ALBERT.

    The function returns the number of examples.
    """
    import torch
    import transformers

    torch.set_num_threads(CORES)
    with open(case["albert_config_file"]) as file:
        values = json.load(file) | {"hidden_act": "gelu_new"}
    config = transformers.AlbertConfig(**values)
    batches = [
        {k: torch.from_numpy(np.ascontiguousarray(x)) for k, x in b.items()}
        for b in sorted_batches(case)
    ]
    spans = "start_positions" in batches[0]
    kind = "QuestionAnswering" if spans else "SequenceClassification"
    model = getattr(transformers, f"AlbertFor{kind}")(config)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, eps=EPSILON, fused=True
    )
    learns, rng = case["part"] == "training", np.random.default_rng(1)
    half = case["dtype"] == "bfloat16"
    model.train(learns)
    if learns:  # only full batches
        size = case["batch_size"]
        batches = [b for b in batches if len(b["input_ids"]) == size]
    call = torch.compile(model, dynamic=True) if compiled else model

    def learn(batch):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, half):
            loss = call(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    def evaluate(batch):
        precision = torch.autocast("cpu", torch.bfloat16, half)
        with torch.inference_mode(), precision:
            call(**batch)

    def work() -> int:
        for i in rng.permutation(len(batches)):
            (learn if learns else evaluate)(batches[i])
        return sum(len(batch["input_ids"]) for batch in batches)

    return work


def make_work() -> Callable[[str], dict]:
    """Return a function that runs one pass, as the command line specifies."""
    name, case = sys.argv[1], json.loads(sys.argv[2])
    compiled = name.endswith("compiled")
    work = ours(case) if name == OURS else hugging_face(case, compiled)
    return lambda _: {"examples": work()}


if __name__ == "__main__":
    serve(make_work)
