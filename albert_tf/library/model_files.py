"""Models on disk, of every layout that the converter knows."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.conversion import huggingface, tf1
from albert_tf.conversion.sources import open_source
from albert_tf.model.config import CONFIG_FILE, AlbertConfig
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.task import Task
from albert_tf.text.tokenizers import Tokenizer, tokenizer_in
from albert_tf.training import checkpoints

ENCODER = "albert/"


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """A model that lies somewhere.

    Attributes:
      path: what the user calls it.
      config: its architecture.
      tokenizer: None if no vocabulary stands beside the weights.
      task: what it was fine-tuned for, if it was.
      shapes: {name: shape} of its weights, and of what else is there.
      read: returns the weight of a name.
    """

    path: str
    config: AlbertConfig
    tokenizer: Tokenizer | None
    task: Task | None
    shapes: dict[str, list[int]]
    read: Callable[[str], np.ndarray]

    def has(self, part: str) -> bool:
        """Return whether there is a weight whose name begins so."""
        return any(name.startswith(part) for name in self.shapes)

    def restore(self, variables: dict[str, tf.Variable]) -> None:
        """Assign every variable, or fail naming what differs."""
        wanted = {name: v.shape.as_list() for name, v in variables.items()}
        shapes = {k: x for k, x in self.shapes.items() if k in wanted}
        differences = checkpoints.explain_differences(wanted, shapes)
        rule = "The weights must fit the model."
        require(not differences, f"{rule} Received: {self.path} {differences}")
        for name, variable in variables.items():
            variable.assign(self.read(name))


def open_finetuned(path: str) -> ModelFiles:
    """Open a model directory with a task."""
    prefix = checkpoints.for_inference(path)
    return ModelFiles(
        path,
        AlbertConfig.from_model_dir(path),
        tokenizer_in(path),
        load_task(path),
        checkpoints.read_table(prefix),
        checkpoints.reader(prefix),
    )


def open_model(path: str) -> ModelFiles:
    """Open a folder with a model, or a checkpoint by its prefix.

    Raises:
      InputError: there is none, or its parts do not fit each other.
    """
    path = str(path)
    if is_finetuned(path):
        opened = open_finetuned(path)
    else:
        require(
            huggingface.is_folder(path) or tf1.find_prefix(path),
            "`path` must be a folder with a model: a model directory, an "
            "unpacked release or a Hugging Face folder.",
            path=path,
        )
        source = open_source(path)
        opened = ModelFiles(
            path,
            source.config,
            source.tokenizer,
            None,
            {name: list(x) for name, x in source.tensors.shapes.items()},
            source.tensors.read,
        )
    if opened.tokenizer:
        opened.config.check_pieces(opened.tokenizer.vocab_size, path)
    return opened


def check_free(path: str, overwrite: bool) -> None:
    """Refuse to write a model directory over anything else than one."""
    replaces = overwrite and files.exists(files.join(path, CONFIG_FILE))
    require(
        files.is_free(path) or replaces,
        "`path` must be a new or empty folder; `overwrite=True` replaces a "
        "model directory.",
        path=path,
    )


def write_model_dir(
    path: str,
    config: AlbertConfig,
    tokenizer: Tokenizer | None,
    task: Task | None,
    weights: dict[str, tf.Variable],
    overwrite: bool = False,
) -> None:
    """Write a model directory, whole or not at all."""
    path = str(path)
    check_free(path, overwrite)
    with files.atomic_folder(path) as temporary:
        config.save(temporary)
        if tokenizer:
            tokenizer.save(temporary)
        if task:
            task.save(temporary)
        checkpoints.save(temporary, weights)
