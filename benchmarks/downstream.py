"""What pretraining is worth: tasks from a model directory and from chance.

    python benchmarks/downstream.py --model_dir=DIR --runs=FILE --output_dir=DIR

FILE holds one run a line: its name, and the flags of finetune.py without
`--model_dir` and `--output_dir`, for instance

    RTE --task=rte --data_dir=glue --num_train_steps=200

Each is trained and evaluated from the weights of the model directory and from
random ones. The table shows the main metric beside what is reached without
reading the text: the most frequent label, the first choice, no answer, no
entity. A run that was finished is not made again.
"""

import dataclasses
import os
import pathlib
import runpy
import shlex
import shutil
import subprocess
import sys
import time

import numpy as np
from absl.testing import flagsaver

from albert_tf.base import files, settings
from albert_tf.base.errors import InputError
from albert_tf.base.settings import setting
from albert_tf.finetuning.job import FinetuningConfig, read_parts
from albert_tf.tasks.registry import find
from albert_tf.tasks.scoring import METRICS_FILE
from albert_tf.tasks.task import DataConfig, Task, TaskConfig
from albert_tf.training.history import History

ROOT = pathlib.Path(__file__).parent.parent
STARTS = ("model_dir", "random")
SECONDS_FILE = "seconds.json"  # of a finished run
WANTED = ("--do_train", "--do_eval")
HEADER = (
    "task",
    "metric",
    "pretrained",
    "random",
    "chance",
    "train examples",
    "eval examples",
    "steps",
    "seconds",
)


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


def task_of(flags: list[str]) -> tuple[Task, list, list]:
    """Return a run's task and its examples to learn and to evaluate."""
    with flagsaver.flagsaver():
        settings.FLAGS(["finetune.py", *flags])
        configs = FinetuningConfig, DataConfig, TaskConfig
        run, data, config = map(settings.from_flags, configs)
    task = find(data.task).with_data(data).with_config(config)
    task, parts = read_parts(run, data, task)
    train, evaluation = (next(iter(x.values())) for x in parts.values())
    return task, train, evaluation


def run(flags: list[str], folder: str) -> None:
    """Fine-tune in a process of its own, unless it was done before."""
    mark = os.path.join(folder, SECONDS_FILE)
    if os.path.exists(mark):
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    start = time.monotonic()
    command = [sys.executable, ROOT / "finetune.py", *flags]
    with open(folder + ".log", "w") as log:
        done = subprocess.run(command, stdout=log, stderr=log)
    if done.returncode:
        raise InputError(
            f"A run must end well; see its log. Received: {folder}.log"
        )
    files.write_json(mark, time.monotonic() - start)


def measured(folder: str, metric: str) -> tuple[float, int, float]:
    """Return a run's metric, its steps and its seconds."""
    metrics = files.read_json(os.path.join(folder, METRICS_FILE), METRICS_FILE)
    split = next(v for k, v in metrics.items() if k.startswith("eval"))
    steps = max(row["step"] for row in History.read(folder).rows)
    mark = os.path.join(folder, SECONDS_FILE)
    return split[metric], steps, files.read_json(mark, SECONDS_FILE)


def row(
    name: str, flags: list[str], model_dir: str, output_dir: str
) -> tuple[str, ...]:
    """Run one line of flags from both starts; return a row of the table."""
    flags = [*flags, *WANTED]
    task, train, evaluation = task_of(flags)
    baseline = BASELINES[task.kind](task, train, evaluation)
    results = []
    for start in STARTS:
        folder = os.path.join(output_dir, f"{name}_{start}")
        places = [f"--model_dir={model_dir}", f"--output_dir={folder}"]
        run([*flags, *places, f"--init={start}"], folder)
        results.append(measured(folder, task.main_metric))
    scores = [score for score, _, _ in results] + [baseline]
    return (
        name,
        task.main_metric,
        *(f"{100 * score:.1f}" for score in scores),
        str(len(train)),
        str(len(evaluation)),
        str(results[0][1]),
        " and ".join(f"{seconds:.0f}" for _, _, seconds in results),
    )


def line(cells: tuple[str, ...]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run every line and print the table."""
    flags = settings.FLAGS
    with open(settings.from_flags(DownstreamConfig).runs) as text:
        runs = [shlex.split(words, comments=True) for words in text]
    print(line(HEADER))
    print(line(("---",) * len(HEADER)))
    for name, *given in filter(None, runs):
        cells = row(name, given, flags.model_dir, flags.output_dir)
        print(line(cells), flush=True)


if __name__ == "__main__":
    runpy.run_path(str(ROOT / "finetune.py"))  # defines its flags
    settings.define_flags(DownstreamConfig)
    settings.run(main)
