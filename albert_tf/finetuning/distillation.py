"""The outputs of a teacher, a larger fine-tuned model, for every example."""

import dataclasses
import hashlib

import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.finetuning.feature_cache import (
    Cache,
    ConversionConfig,
    content_hash,
)
from albert_tf.finetuning.job import Job, check_fit
from albert_tf.finetuning.recipes import RecipeConfig
from albert_tf.finetuning.soft_targets import with_teacher
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.batches import evaluation_batches
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.task import Task
from albert_tf.text.tokenizers import load_tokenizer
from albert_tf.training import checkpoints
from albert_tf.training.evaluator import Evaluator


def check_targets(recipe: RecipeConfig, task: Task) -> None:
    """Refuse soft targets that the kind of task has no meaning for."""
    if recipe.label_smoothing and not task.smooths:
        raise InputError(
            f"`label_smoothing` has no meaning for a task of {task.kind}. "
            f"Received: label_smoothing={recipe.label_smoothing}"
        )
    if recipe.teacher and not (task.distils and task.averages):
        raise InputError(
            f"`teacher` has no meaning for a task of {task.kind} whose "
            f"outputs are not logits. Received: teacher={recipe.teacher}"
        )


def load_teacher(directory: str, job: Job) -> Task:
    """Return the teacher's task, or refuse a model that cannot be one."""
    if not is_finetuned(directory):
        raise InputError(
            "`teacher` must be the model directory of a fine-tuned model. "
            f"Received: teacher={directory}"
        )
    task = load_task(directory)
    same = dataclasses.replace(job.task.for_model(task), config=job.task.config)
    if same != job.task:
        raise InputError(
            "`teacher` must have the labels of the training examples. "
            f"Received: teacher={directory}"
        )
    tokenizer = load_tokenizer(directory)
    if tokenizer.fingerprint() != job.tokenizer.fingerprint():
        raise InputError(
            "`teacher` must have the tokenizer of `model_dir`. Received: "
            f"teacher={directory}"
        )
    if task.token_outputs != job.task.token_outputs:
        raise InputError(
            "`teacher` must have the `answer_head` of its student, simple. "
            f"Received: teacher={directory}, "
            f"answer_head={task.config.answer_head}"
        )
    check_fit(job.task, AlbertConfig.from_model_dir(directory), tokenizer)
    return task


def key_of(features: Features, directory: str) -> dict:
    """Return what a teacher's outputs follow from: inputs and weights."""
    digest = hashlib.sha256()
    for name in ("tokens", "row_splits", "second_starts"):
        digest.update(np.ascontiguousarray(getattr(features, name)))
    prefix = checkpoints.for_inference(directory)
    parts = files.glob(f"{prefix}.index,{prefix}.data-*", "The checkpoint")
    config = AlbertConfig.from_model_dir(directory)
    return {
        "features": digest.hexdigest(),
        "max_seq_length": features.max_seq_length,
        "teacher": [content_hash(part) for part in parts],
        "config": config.to_json(),
    }


def teach(
    job: Job,
    recipe: RecipeConfig,
    conversion: ConversionConfig,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    bucketed: bool,
) -> Job:
    """Return the job with the teacher's outputs beside its training examples.

    They are computed once, and kept where features are cached.
    """
    directory = recipe.teacher
    task = load_teacher(directory, job)
    config = AlbertConfig.from_model_dir(directory)
    split = job.train[0]

    def make():
        evaluator = Evaluator(
            strategy,
            lambda: task.build_model(config, "float32"),
            task,
            batch_size,
        )
        checkpoints.restore_weights(evaluator.model, directory)
        print(f"Asking the teacher {directory} about the training examples")
        return evaluator.predict(
            lambda: evaluation_batches(split.features, batch_size, bucketed),
            task.outputs,
        )

    cache = Cache(conversion.feature_cache_dir)
    key = key_of(split.features, directory) if cache.folder else {}
    outputs = cache.get(key, make)
    taught = with_teacher(split.features, outputs, job.task)
    train = (dataclasses.replace(split, features=taught),)
    return dataclasses.replace(job, train=train)
