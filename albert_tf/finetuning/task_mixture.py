"""One encoder with the heads of several tasks, and their common loss."""

import types
from collections.abc import Sequence

import tensorflow as tf

from albert_tf.base.errors import require
from albert_tf.finetuning.recipes import RecipeConfig
from albert_tf.finetuning.soft_targets import objective_of
from albert_tf.model.albert import AlbertModel
from albert_tf.model.config import AlbertConfig
from albert_tf.model.ops import fold_in
from albert_tf.tasks.task import Task
from albert_tf.training.model_directory import checkpoints
from albert_tf.training.step.evaluator import Batch


class SharedModel:
    """Models of several tasks around one encoder.

    It has what a `Trainer` asks of a model. Variables of a head are named
    `TASK/...`, those of the encoder as everywhere.
    """

    name = "shared"

    def __init__(self, config: AlbertConfig, tasks: dict[str, Task], dtype):
        self.albert = AlbertModel(config, dtype=dtype)
        self.albert.build()
        self.models = {
            name: task.head.build_model(config, dtype, self.albert)
            for name, task in tasks.items()
        }

    def head(self, name: str) -> dict[str, tf.Variable]:
        """Return {name: variable} of what a task has for itself."""
        table = checkpoints.named_variables(self.models[name])
        shared = {id(v) for v in self.encoder().values()}
        return {k: v for k, v in table.items() if id(v) not in shared}

    def encoder(self) -> dict[str, tf.Variable]:
        """Return {name: variable} of the encoder."""
        return checkpoints.named_variables(self.albert)

    @property
    def weights(self) -> list:
        """All weights under their names, as Keras would have them."""
        table = self.encoder()
        for task in self.models:
            head = self.head(task).items()
            table |= {f"{task}/{name}": v for name, v in head}
        return [
            types.SimpleNamespace(path=f"{self.name}/{name}", value=v)
            for name, v in table.items()
        ]


def part_of(batch: Batch, task: str) -> Batch:
    """Return a task's part of a batch."""
    prefix = f"{task}/"
    return {
        name.removeprefix(prefix): value
        for name, value in batch.items()
        if name.startswith(prefix)
    }


class Together:
    """The mean loss of examples whose task is drawn by the weights.

    Args:
      tasks: by name.
      weights: of the tasks, together 1.
      recipe: says whether labels are smoothed.
    """

    def __init__(
        self,
        tasks: dict[str, Task],
        weights: Sequence[float],
        recipe: RecipeConfig,
    ):
        self.objectives = {
            name: objective_of(task, recipe) for name, task in tasks.items()
        }
        self.task_weights = dict(zip(tasks, weights, strict=True))
        self.terms, self.metrics = (
            tuple(f"{n}_{x}" for n, o in self.objectives.items() for x in of(o))
            for of in (lambda o: o.terms, lambda o: o.metrics)
        )

    def weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return each term's weight in a batch."""
        return {
            f"{name}_{term}": weight
            for name, objective in self.objectives.items()
            for term, weight in objective.weights(part_of(batch, name)).items()
        }

    def losses(self, model: SharedModel, batch: Batch, seed):
        """Return each term's sum of losses times the task's weight."""
        sums, metrics = {}, {}
        for i, (name, objective) in enumerate(self.objectives.items()):
            losses, shown = objective.losses(
                model.models[name], part_of(batch, name), fold_in(seed, i)
            )
            weight = self.task_weights[name]
            sums |= {f"{name}_{k}": x * weight for k, x in losses.items()}
            metrics |= {f"{name}_{k}": pair for k, pair in shown.items()}
        return sums, metrics


def portions(weights: Sequence[float], size: int, unit: int) -> list[int]:
    """Return how many of a batch's examples each task gets, by its weight.

    Args:
      weights: of the tasks.
      size: examples of the batch.
      unit: what each portion is a multiple of, for replicas and pieces.
    """
    units = size // unit
    require(
        units >= len(weights),
        "`train_batch_size` must have an example of every task on every "
        "replica, in every micro-batch.",
        train_batch_size=size,
        tasks=len(weights),
    )
    spare = units - len(weights)  # each task gets one to begin with
    exact = [weight / sum(weights) * spare for weight in weights]
    counts = [int(x) for x in exact]
    rests = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for i in rests[: spare - sum(counts)]:
        counts[i] += 1
    return [(n + 1) * unit for n in counts]
