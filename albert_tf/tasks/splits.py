"""The files of a data set, the official ones or the user's own, read."""

from collections.abc import Sequence
from typing import Any

from albert_tf.base import files
from albert_tf.base.errors import InputError, require
from albert_tf.tasks.tables import note_quotes
from albert_tf.tasks.task import Task
from albert_tf.tasks.task_config import DataConfig


def example_file(task: Task, data: DataConfig, file: str) -> str:
    """Return the path of an official file of a data set, which must exist."""
    require(
        data.data_dir,
        f"`data_dir` must be given for task={task.name}, or own files by "
        "`train_file`, `eval_file`, `predict_file`.",
        data_dir=data.data_dir,
    )
    tried = [files.join(data.data_dir, file)]
    if task.folder:
        tried.append(files.join(data.data_dir, task.folder, file))
    for path in tried:
        if files.exists(path):
            return path
    raise InputError(
        f"`data_dir` must hold {file} of {task.name}. Received: "
        f"data_dir={data.data_dir} (there is no {' nor '.join(tried)})"
    )


def split_paths(task: Task, data: DataConfig, part: str) -> dict[str, str]:
    """Return {split: path} of "train", "eval" or "predict"."""
    path = data.own_file(part)
    if path:
        return {"": path}
    official = task.splits.get(part)
    name = f"{part}_file"
    rule = f"`{name}` must be given for task={task.name}."
    require(official, rule, **{name: None})
    return {
        split: example_file(task, data, file)
        for split, file in official.items()
    }


def read_splits(
    task: Task, data: DataConfig, part: str
) -> dict[str, Sequence[Any]]:
    """Return {split: examples} of "train", "eval" or "predict"."""
    splits = {}
    for split, path in split_paths(task, data, part).items():
        if data.own_file(part):
            note_quotes(path)
        splits[split] = task.read(part, path)
        rule = f"The {part} split must have an example."
        require(splits[split], rule, path=path)
    return splits
