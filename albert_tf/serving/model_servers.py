"""The server of a model directory, by the kind of its model."""

import dataclasses

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.model.albert import AlbertForPretraining, AlbertModel
from albert_tf.model.config import AlbertConfig
from albert_tf.serving.encoder import Encoder, ServingConfig
from albert_tf.serving.pretrained import pretrained_server
from albert_tf.serving.server import Server, task_server
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.task import Task
from albert_tf.text.tokenizers import tokenizer_in
from albert_tf.training import checkpoints


def encoder_of(
    albert: AlbertModel, model_dir: str, serving: ServingConfig, usual: int
) -> Encoder:
    """Return an encoder with its tokenizer, if the model directory has one.

    Args:
      albert: the encoder.
      model_dir: the model directory.
      serving: what to fix.
      usual: the `max_seq_length` where none is given.
    """
    length = serving.max_seq_length or usual
    albert.config.check_length("max_seq_length", length)
    tokenizer = tokenizer_in(model_dir)
    if tokenizer:
        albert.config.check_pieces(tokenizer.vocab_size, model_dir)
    serving = dataclasses.replace(serving, max_seq_length=length)
    return Encoder(albert, serving, tokenizer)


def pretrained_weights(model, model_dir: str) -> dict[str, tf.Variable]:
    """Restore a pretrained model; return its weights without absent heads."""
    prefix = checkpoints.for_inference(model_dir)
    weights, _ = checkpoints.present(model, checkpoints.read_table(prefix))
    checkpoints.restore(prefix, weights)
    return weights


def load_pretrained(model_dir: str, serving: ServingConfig) -> Server:
    """Return the server of a pretrained model."""
    limit = serving.null_score_diff_threshold
    rule = "`null_score_diff_threshold` is for models fine-tuned for questions."
    require(limit is None, rule, null_score_diff_threshold=limit)
    config = AlbertConfig.from_model_dir(model_dir)
    model = AlbertForPretraining(config, dtype="float32")
    usual = config.max_position_embeddings
    encoder = encoder_of(model.albert, model_dir, serving, usual)
    weights = pretrained_weights(model, model_dir)
    return pretrained_server(encoder, model, weights)


def served_task(model_dir: str, serving: ServingConfig) -> Task:
    """Return the task of a fine-tuned model, with the threshold to serve."""
    limit = serving.null_score_diff_threshold
    return load_task(model_dir).updated(null_score_diff_threshold=limit)


def load_finetuned(model_dir: str, serving: ServingConfig) -> Server:
    """Return the server of a fine-tuned model."""
    config = AlbertConfig.from_model_dir(model_dir)
    task = served_task(model_dir, serving)
    model = task.head.build_model(config, "float32")
    usual = task.config.max_seq_length
    encoder = encoder_of(model.albert, model_dir, serving, usual)
    checkpoints.restore_weights(model, model_dir)
    return task_server(encoder, model, task)


def load_server(model_dir: str, serving: ServingConfig) -> Server:
    """Return what a model directory serves, with its weights in float32.

    Args:
      model_dir: a model directory, pretrained or fine-tuned.
      serving: what to fix.

    Raises:
      InputError: the directory is not whole, or does not fit the settings.
    """
    load = load_finetuned if is_finetuned(model_dir) else load_pretrained
    return load(model_dir, serving)
