"""The server of a model directory, by the kind of its model."""

import dataclasses

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig
from albert_tf.serving.choices import CHOICES
from albert_tf.serving.classifiers import (
    CLASSIFICATION,
    EMBEDDING,
    MULTILABEL,
    REGRESSION,
)
from albert_tf.serving.encoder import Encoder, ServingConfig
from albert_tf.serving.entities import ENTITIES
from albert_tf.serving.pretrained import pretrained_server
from albert_tf.serving.questions import QUESTIONS
from albert_tf.serving.server import Server, task_server
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.task import Task, TaskConfig
from albert_tf.text.tokenizers import Tokenizer, tokenizer_in
from albert_tf.training import checkpoints

# By the kind of the task that a model was fine-tuned for.
KINDS = {
    "classification": CLASSIFICATION,
    "embedding": EMBEDDING,
    "multiple_choice": CHOICES,
    "multilabel": MULTILABEL,
    "question_answering": QUESTIONS,
    "regression": REGRESSION,
    "token_classification": ENTITIES,
}


def load_own_tokenizer(
    model_dir: str, config: AlbertConfig
) -> Tokenizer | None:
    """Return the tokenizer of a model directory, None if it has none."""
    tokenizer = tokenizer_in(model_dir)
    if tokenizer:
        config.check_pieces(tokenizer.vocab_size, model_dir)
    return tokenizer


def with_length(
    serving: ServingConfig, config: AlbertConfig, usual: int
) -> ServingConfig:
    """Return settings whose `max_seq_length` is given and legal."""
    length = serving.max_seq_length or usual
    config.check_length("max_seq_length", length)
    return dataclasses.replace(serving, max_seq_length=length)


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
    serving = with_length(serving, config, config.max_position_embeddings)
    tokenizer = load_own_tokenizer(model_dir, config)
    model = AlbertForPretraining(config, dtype="float32")
    weights = pretrained_weights(model, model_dir)
    encoder = Encoder(model.albert, serving, tokenizer)
    return pretrained_server(encoder, model, weights)


def served_task(model_dir: str, serving: ServingConfig) -> Task:
    """Return the task of a fine-tuned model, with the threshold to serve."""
    limit = serving.null_score_diff_threshold
    changes = TaskConfig(null_score_diff_threshold=limit)
    return load_task(model_dir).with_config(changes)


def load_finetuned(model_dir: str, serving: ServingConfig) -> Server:
    """Return the server of a fine-tuned model."""
    config = AlbertConfig.from_model_dir(model_dir)
    task = served_task(model_dir, serving)
    serving = with_length(serving, config, task.config.max_seq_length)
    tokenizer = load_own_tokenizer(model_dir, config)
    model = task.head.build_model(config, "float32")
    checkpoints.restore_weights(model, model_dir)
    encoder = Encoder(model.albert, serving, tokenizer)
    return task_server(encoder, model, task, KINDS[task.kind])


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
