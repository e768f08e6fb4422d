"""Several fine-tuned models as one: their outputs are averaged."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from albert_tf.base.errors import InputError
from albert_tf.finetuning.job import Job, check_fit
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.registry import is_finetuned, load_task
from albert_tf.tasks.task import Task
from albert_tf.text.tokenizers import load_tokenizer
from albert_tf.training import checkpoints
from albert_tf.training.evaluator import Batch, Evaluator


class Ensemble:
    """Models of one task; has what an `Evaluator` asks of a model."""

    name = "ensemble"
    variables = ()

    def __init__(self, members: Sequence):
        self.members = members


def averaged_outputs(task: Task) -> Callable:
    """Return (ensemble, batch) -> the mean outputs, and their losses."""

    def outputs(ensemble: Ensemble, batch: Batch) -> dict[str, tf.Tensor]:
        every = [task.outputs(member, batch) for member in ensemble.members]
        mean = {
            name: tf.reduce_mean(tf.stack([x[name] for x in every]), axis=0)
            for name in every[0]
        }
        return task.with_losses(mean, batch)

    return outputs


def check_members(directories: Sequence[str], job: Job) -> None:
    """Refuse models that differ in their task or their tokenizer."""
    if not job.task.averages:
        raise InputError(
            "The outputs of an `ensemble` must be logits, those of this task "
            f"cannot be averaged. Received: task={job.task.name}"
        )
    first = directories[0]
    for directory in directories:
        if not is_finetuned(directory):
            raise InputError(
                "`ensemble` must name fine-tuned model directories. "
                f"Received: ensemble={directory}"
            )
        if load_task(directory).identity() != load_task(first).identity():
            raise InputError(
                "The models of an `ensemble` must have the same task, labels "
                f"and lengths. Received: ensemble={first},{directory}"
            )
        tokenizer = load_tokenizer(directory)
        if tokenizer.fingerprint() != job.tokenizer.fingerprint():
            raise InputError(
                "The models of an `ensemble` must have the same tokenizer. "
                f"Received: ensemble={first},{directory}"
            )
        check_fit(job.task, AlbertConfig.from_model_dir(directory), tokenizer)


def load_ensemble(
    directories: Sequence[str],
    job: Job,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    dtype: str,
) -> Evaluator:
    """Return an evaluator of several models, for `averaged_outputs`."""

    def build():
        configs = map(AlbertConfig.from_model_dir, directories)
        return Ensemble([job.task.build_model(c, dtype) for c in configs])

    evaluator = Evaluator(strategy, build, job.task, batch_size)
    for model, directory in zip(
        evaluator.model.members, directories, strict=True
    ):
        checkpoints.restore_weights(model, directory)
    return evaluator
