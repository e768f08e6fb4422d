"""Models on disk, of every layout that the converter knows."""

import dataclasses

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.conversion.sources import (
    Reading,
    Source,
    is_model,
    open_source,
    what_else,
)
from albert_tf.model.config import CONFIG_FILE, AlbertConfig
from albert_tf.tasks.task import Task
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.training.model_directory import checkpoints

ENCODER = "albert/"


def restore(model: Source, variables: dict[str, tf.Variable]) -> None:
    """Assign every variable, or fail naming what differs."""
    wanted = {name: v.shape.as_list() for name, v in variables.items()}
    tensors = model.tensors.where(lambda name: name in wanted)
    differences = checkpoints.explain_differences(wanted, tensors.shapes)
    rule = "The weights must fit the model."
    require(not differences, f"{rule} Received: {model.path} {differences}")
    for name, variable in variables.items():
        variable.assign(tensors.read(name))


def open_model(
    path: str, pairs: bool = False, encoder_only: bool = False
) -> Source:
    """Open a folder with a model, or a checkpoint by its prefix.

    Args:
      path: where it lies.
      pairs: whether a Hugging Face folder's classifier is of pairs of texts.
      encoder_only: whether every head is left out.

    Raises:
      InputError: there is none, or its parts do not fit each other.
    """
    path = str(path)
    require(
        is_model(path),
        "`path` must be a folder with a model: a model directory, an "
        f"unpacked release or a Hugging Face folder.{what_else(path)}",
        path=path,
    )
    source = open_source(path, Reading(pairs=pairs, encoder_only=encoder_only))
    if source.tokenizer:
        source.config.check_pieces(source.tokenizer.vocab_size, path)
    for warning in source.warnings:
        print(f"warning: {warning}")
    return dataclasses.replace(source, path=path)


def write_model_dir(
    path: str,
    config: AlbertConfig,
    tokenizer: Tokenizer | None,
    task: Task | None,
    weights: dict[str, tf.Variable],
    overwrite: bool = False,
) -> None:
    """Write a model directory, whole or not at all; over another if asked."""
    path = str(path)
    replaces = overwrite and files.exists(files.join(path, CONFIG_FILE))
    require(
        files.is_free(path) or replaces,
        "`path` must be a new or empty folder; `overwrite=True` replaces a "
        "model directory.",
        path=path,
    )
    with files.atomic_folder(path) as temporary:
        config.save(temporary)
        if tokenizer:
            tokenizer.save(temporary)
        if task:
            task.save(temporary)
        checkpoints.save(temporary, weights)
