"""The checked task, data and model of a fine-tuning run."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.finetuning.finetuning_settings import FinetuningConfig, Settings
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import find, is_finetuned, load_task
from albert_tf.tasks.task import PARTS, Task, read_splits, with_settings
from albert_tf.tasks.task_config import DataConfig, TaskConfig
from albert_tf.text.tokenizers import Tokenizer, load_tokenizer
from albert_tf.training import distribution


@dataclasses.dataclass(frozen=True)
class Split:
    """A part of the data: "eval", or "eval_matched" if there are several."""

    name: str
    examples: Sequence[Any]
    features: Features


def metric_name(split: str, metric: str) -> str:
    """Return a metric's name in curves, such as "matched_accuracy"."""
    suffix = split.partition("_")[2]
    return f"{suffix}_{metric}" if suffix else metric


def choose_task(
    run: FinetuningConfig, data: DataConfig, config: TaskConfig
) -> Task:
    """Return the task that flags select, or a fine-tuned model's own task."""
    if run.do_train:
        require(data.task, "`task` is required for training. Received: none")
        return with_settings(find(data.task), data, config)
    trained = load_task(run.source_dir)
    task = trained
    if data.task and find(data.task).name != trained.name:
        task = find(data.task).for_model(trained)
    return with_settings(task, data, config)


@dataclasses.dataclass(frozen=True)
class Job:
    """A task with its data and model, checked and ready to run."""

    task: Task
    config: AlbertConfig
    tokenizer: Tokenizer
    train: tuple[Split, ...]
    eval: tuple[Split, ...]
    predict: tuple[Split, ...]

    @property
    def best_metric(self) -> str:
        """The name of the main metric among the metrics of all eval splits."""
        split = self.eval[0].name if self.eval else "eval"
        return metric_name(split, self.task.main_metric)

    def summary(self) -> str:
        """Return a summary for the log."""
        length = self.task.config.max_seq_length
        lines = [f"Task {self.task.name} ({self.task.kind}), {length} tokens"]
        for split in (*self.train, *self.eval, *self.predict):
            examples, rows = len(split.examples), len(split.features.lengths)
            in_rows = f" in {rows} rows" * (rows != examples)
            lines.append(
                f"  {split.name}: {examples} examples{in_rows}, "
                f"{split.features.full_rows()} of them fill or exceed "
                f"{length} tokens"
            )
        return "\n".join(lines)


def load_other(directory: str, setting: str, job: Job) -> Task:
    """Return another fine-tuned model's task, which must fit a job's inputs.

    Args:
      directory: the other model's directory.
      setting: the setting that names the directory.
      job: the job that uses the other model.
    """
    place = {setting: directory}
    require(
        is_finetuned(directory),
        f"`{setting}` must name fine-tuned model directories.",
        **place,
    )
    tokenizer = load_tokenizer(directory)
    require(
        tokenizer.fingerprint() == job.tokenizer.fingerprint(),
        f"All models of a run with `{setting}` must have the same tokenizer.",
        **place,
    )
    config = AlbertConfig.from_model_dir(directory)
    config.check_length("max_seq_length", job.task.config.max_seq_length)
    config.check_pieces(tokenizer.vocab_size, directory)
    return load_task(directory)


def prepare(
    run: FinetuningConfig,
    data: DataConfig,
    task_config: TaskConfig,
    parts: Sequence[str] | None = None,
) -> Job:
    """Return a run's job; read and check everything before using a device.

    Args:
      run: the model and the actions.
      data: the task and the location of its examples.
      task_config: how to convert examples to inputs.
      parts: the parts of the data to read; None means the parts that the run
        needs.
    """
    run.check_output()
    config, tokenizer = run.encoder(), load_tokenizer(run.source_dir)
    task = choose_task(run, data, task_config)
    config.check_length("max_seq_length", task.config.max_seq_length)
    config.check_pieces(tokenizer.vocab_size, run.source_dir)
    examples: dict[str, dict[str, Sequence]] = {}
    for part in run.parts() if parts is None else parts:
        examples[part] = read_splits(task, data, part)
        first = next(iter(examples[part].values()))
        if part == "train":
            task = task.fitted(first)
        if part == "eval":
            task = task.evaluated_on(first)
    splits: dict[str, tuple] = dict.fromkeys(PARTS, ())
    for part, examples_of in examples.items():
        for name, rows in examples_of.items():
            features = task.features(rows, tokenizer)
            full_name = "_".join(filter(None, (part, name)))
            splits[part] += (Split(full_name, rows, features),)
    return Job(task, config, tokenizer, **splits)


# Settings whose paths may differ between machines.
PATHS = (
    *("model_dir", "output_dir", "ensemble", "teacher"),
    *("data_dir", "train_file", "eval_file", "predict_file"),
)


def require_alike(
    strategy: tf.distribute.Strategy | None, s: Settings, *jobs: Job
) -> None:
    """Raise an error if workers have different settings or examples."""
    if strategy is None:
        return
    configs = (c for c in s.configs() if c is not s.devices)
    values = {k: v for config in configs for k, v in vars(config).items()}
    contents = {
        f"{x.name} examples of {job.task.name}": x.features.fingerprint()
        for job in jobs
        for x in (*job.train, *job.eval, *job.predict)
    }
    alike = {k: v for k, v in values.items() if k not in PATHS}
    distribution.require_alike(strategy, alike | contents)
