"""Models on disk, of every layout that the converter knows."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.base.replacing import Contents, check_replaceable
from albert_tf.conversion.named_tensors import Tensors
from albert_tf.conversion.sources import (
    Reading,
    Source,
    is_model,
    open_source,
    what_else,
)
from albert_tf.model.config import CONFIG_FILE, AlbertConfig
from albert_tf.serving.exporting import DESCRIPTION
from albert_tf.tasks.task import Task
from albert_tf.text.added_pieces import with_pieces
from albert_tf.text.packing import checked_texts
from albert_tf.text.tokenizers import Tokenizer
from albert_tf.training import checkpoint_files, checkpoints

ENCODER = "albert/"
# Variables with a row for each piece of the vocabulary.
OF_PIECES = ("albert/embeddings/word_embeddings", "mlm/output_bias")
# The files of a model directory that a model of the library was saved to.
WRITTEN = Contents(
    frozenset((CONFIG_FILE, checkpoint_files.STATE_FILE)),
    (*DESCRIPTION, *checkpoint_files.FILES),
)


def restore(model: Source, variables: dict[str, tf.Variable]) -> None:
    """Assign every variable, or fail naming what differs."""
    wanted = {name: v.shape.as_list() for name, v in variables.items()}
    tensors = model.tensors.where(lambda name: name in wanted)
    differences = checkpoints.explain_differences(wanted, tensors.shapes)
    rule = "The weights must fit the model."
    require(not differences, f"{rule} Received: {model.path} {differences}")
    for name, variable in variables.items():
        variable.assign(tensors.read(name))


def with_added_pieces(model: Source, pieces: Sequence[str]) -> Source:
    """Return a model with pieces added to its vocabulary and word table.

    The row of a new piece starts as the mean of the rows of its text.
    """
    pieces = checked_texts(pieces, "added_pieces")
    old, rule = model.tokenizer, "`added_pieces` needs a vocabulary at `path`."
    require(old, rule, path=model.path)
    new = with_pieces(old, pieces)
    rows = max(model.config.vocab_size, new.vocab_size)
    of_pieces = [ids.tolist() for ids in old.encode_batch(pieces)]

    def shape(name: str, size: Sequence[int]) -> Sequence[int]:
        return type(size)([rows, *size[1:]]) if name in OF_PIECES else size

    def read(name: str) -> np.ndarray:
        array = model.tensors.read(name)
        if name not in OF_PIECES:
            return array
        means = [array[ids or slice(None)].mean(axis=0) for ids in of_pieces]
        grown = np.zeros([rows, *array.shape[1:]], array.dtype)
        grown[: len(array)] = array
        grown[old.vocab_size : new.vocab_size] = np.array(means)
        return grown

    shapes = {n: shape(n, size) for n, size in model.tensors.shapes.items()}
    return dataclasses.replace(
        model,
        config=dataclasses.replace(model.config, vocab_size=rows),
        tokenizer=new,
        tensors=Tensors(shapes, read),
    )


def open_model(
    path: str,
    pairs: bool = False,
    added_pieces: Sequence[str] | None = None,
    encoder_only: bool = False,
) -> Source:
    """Open a folder with a model, or a checkpoint by its prefix.

    Args:
      path: where it lies.
      pairs: whether a Hugging Face folder's classifier is of pairs of texts.
      added_pieces: texts that become pieces of the vocabulary.
      encoder_only: whether to leave out every head.

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
    source = dataclasses.replace(source, path=path)
    return with_added_pieces(source, added_pieces) if added_pieces else source


def write_model_dir(
    path: str,
    config: AlbertConfig,
    tokenizer: Tokenizer | None,
    task: Task | None,
    weights: dict[str, tf.Variable],
    overwrite: bool = False,
) -> None:
    """Write a model directory, whole or not at all; over another if asked."""
    path = str(path).rstrip("/")
    rule = "`path` must be a new or empty folder; `overwrite=True` replaces a "
    rule += "model directory with nothing else in it."
    if overwrite:
        check_replaceable("path", path, [WRITTEN], rule)
    require(overwrite or files.is_free(path), rule, path=path)
    with files.atomic_folder(path) as temporary:
        config.save(temporary)
        if tokenizer:
            tokenizer.save(temporary)
        if task:
            task.save(temporary)
        checkpoints.save(temporary, weights)
