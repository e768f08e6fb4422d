"""What pretraining is worth: tasks from a model directory and from chance.

    python benchmarks/downstream.py --model_dir=DIR --runs=FILE --output_dir=DIR

FILE holds one run a line: the flags of finetune.py without `--model_dir` and
`--output_dir`, for instance `--task=rte --data_dir=glue --do_train --do_eval`.
Each is run from the weights of the model directory and from random ones. The
table shows the main metric beside what is reached without reading the text:
the most frequent label, the first choice, no answer, no entity. A run that is
there already is not made again.
"""

import dataclasses
import os
import pathlib
import shlex
import subprocess
import sys
import time

import numpy as np
from absl.testing import flagsaver

import finetune  # noqa: F401  (defines its flags)
from albert_tf import files, settings
from albert_tf.errors import InputError
from albert_tf.history import History
from albert_tf.settings import setting
from albert_tf.tasks.base import DataConfig, Task, TaskConfig, read_splits
from albert_tf.tasks.registry import find
from albert_tf.tasks.scoring import METRICS_FILE

ROOT = pathlib.Path(__file__).parent.parent
STARTS = ("model_dir", "random")


@dataclasses.dataclass(frozen=True)
class DownstreamConfig:
    """What is run and where it goes."""

    runs: str = setting("", "File with a line of flags a run.", required=True)


def most_frequent(task: Task, train, evaluation) -> float:
    """Return the metric of always giving the most frequent label."""
    labels = task.targets([example.label for example in train])
    counts = np.bincount(np.asarray(labels), minlength=len(task.labels))
    outputs = {"logits": np.tile(counts, (len(evaluation), 1)).astype("f4")}
    predictions = task.predictions(evaluation, outputs, None)
    return task.score(evaluation, predictions)[task.main_metric]


def unanswerable(task: Task, train, evaluation) -> float:
    """Return the share of questions without an answer."""
    return float(np.mean([not example.answers for example in evaluation]))


BASELINES = {
    "classification": most_frequent,
    "regression": lambda task, train, evaluation: 0.0,
    "multiple_choice": lambda task, train, evaluation: 1 / task.number,
    "question_answering": unanswerable,
    "token_classification": lambda task, train, evaluation: 0.0,
}


def task_of(flags: list[str]) -> tuple[Task, dict[str, list]]:
    """Return a run's task, fitted, and its examples by part."""
    with flagsaver.flagsaver():
        settings.FLAGS(["finetune.py", *flags])
        data = settings.from_flags(DataConfig)
        config = settings.from_flags(TaskConfig)
    task = find(data.task).with_data(data).with_config(config)
    examples = {
        part: next(iter(read_splits(task, data, part).values()))
        for part in ("train", "eval")
    }
    return task.fitted(examples["train"]), examples


def run(flags: list[str], folder: str) -> None:
    """Fine-tune in a process of its own, unless it was done before."""
    if os.path.exists(os.path.join(folder, METRICS_FILE)):
        return
    os.makedirs(folder, exist_ok=True)
    start = time.monotonic()
    command = [sys.executable, ROOT / "finetune.py", *flags]
    with open(folder + ".log", "w") as log:
        done = subprocess.run(command, stdout=log, stderr=log)
    if done.returncode:
        raise InputError(
            f"A run must end well; see its log. Received: {folder}.log"
        )
    seconds = time.monotonic() - start
    files.write_json(os.path.join(folder, "seconds.json"), seconds)


def measured(folder: str, metric: str) -> tuple[float, int, float]:
    """Return a run's metric, its steps and its seconds."""
    metrics = files.read_json(os.path.join(folder, METRICS_FILE), METRICS_FILE)
    split = next(v for k, v in metrics.items() if k.startswith("eval"))
    steps = max(row["step"] for row in History.read(folder).rows)
    seconds = files.read_json(os.path.join(folder, "seconds.json"), "seconds")
    return split[metric], steps, seconds


def row(number: int, flags: list[str], model_dir: str, output_dir: str) -> str:
    """Run one line of flags from both starts; return a row of the table."""
    task, examples = task_of(flags)
    results = []
    for start in STARTS:
        folder = os.path.join(output_dir, f"{number:02d}_{task.name}_{start}")
        places = [f"--model_dir={model_dir}", f"--output_dir={folder}"]
        run([*flags, *places, f"--init={start}"], folder)
        results.append(measured(folder, task.main_metric))
    (trained, steps, seconds), (untrained, *_) = results
    baseline = BASELINES[task.kind](task, *examples.values())
    counts = "/".join(f"{len(found)}" for found in examples.values())
    return (
        f"| {task.name} | {task.main_metric} | {100 * trained:.1f} | "
        f"{100 * untrained:.1f} | {100 * baseline:.1f} | {counts} | {steps} | "
        f"{seconds:.0f} |"
    )


def main() -> None:
    """Run every line and print the table."""
    flags = settings.FLAGS
    with open(settings.from_flags(DownstreamConfig).runs) as lines:
        runs = [shlex.split(line, comments=True) for line in lines]
    model_dir, output_dir = flags.model_dir, flags.output_dir
    print(
        "| task | metric | pretrained | random | chance | examples | "
        "steps | seconds |\n|---|---|---|---|---|---|---|---|"
    )
    for number, line in enumerate(filter(None, runs)):
        print(row(number, line, model_dir, output_dir), flush=True)


if __name__ == "__main__":
    settings.define_flags(DownstreamConfig)
    settings.run(main)
