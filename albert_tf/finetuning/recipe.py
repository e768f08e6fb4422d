"""Fine-tuning techniques, such as frozen weights and early stopping."""

import dataclasses
import math
import re
from collections.abc import Sequence

from albert_tf.base.errors import require
from albert_tf.base.settings import (
    LENGTH,
    OPTIMIZER,
    TASK,
    TECHNIQUES,
    Validated,
    setting,
)
from albert_tf.model.config import BLOCK, BLOCK_TYPES, AlbertConfig

BALANCED = "balanced"
TEMPERATURE, TEACHER_SHARE = 2.0, 0.5
PARTS = ("embeddings", "encoder", "pooler")


def named_weights(entries: Sequence[str]) -> dict[str, float]:
    """Return {label: weight} from `class_weights`, or {} for `balanced`."""
    table: dict[str, float] = {}
    if tuple(entries) == (BALANCED,):
        return table
    for entry in entries:
        label, _, number = entry.rpartition(":")
        label = label.strip()
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        require(
            label and label not in table and 0 <= weight < math.inf,
            f"`class_weights` must be {BALANCED}, or label:weight,... with "
            "each label once and finite weights of at least 0.",
            class_weights=",".join(entries),
        )
        table[label] = weight
    return table


@dataclasses.dataclass(frozen=True)
class RecipeConfig(Validated):
    """Techniques for a fine-tuning run, all off by default."""

    help_group = TECHNIQUES

    freeze: tuple = setting(
        (),
        "Parts of the encoder to freeze: embeddings, encoder, pooler, or "
        "encoder_0, encoder_1, ... for single groups of layers.",
    )
    label_smoothing: float = setting(
        0.0,
        "Share of the target to spread over all labels.",
        minimum=0.0,
        maximum=0.99,
    )
    class_weights: tuple = setting(
        (),
        "Weights of the labels in the training loss: `balanced`, which "
        "gives every class the same total weight, or label:weight,... with "
        "weight 1 for all other labels.",
    )
    fgm_epsilon: float = setting(
        0.0,
        "Adversarial training: also train on word embeddings moved this far "
        "in the direction that increases the loss.",
        means="none",
        minimum=0.0,
    )
    early_stopping: int = setting(
        0,
        "Stop after this many evaluations without a better main metric.",
        means="never",
        minimum=0,
        group=LENGTH,
    )
    plateau_patience: int = setting(
        0,
        "Halve the learning rate after this many evaluations without a "
        "better main metric; needs schedule=constant.",
        means="never",
        minimum=0,
        group=OPTIMIZER,
    )
    teacher: str | None = setting(
        None,
        "Directory of a model that was fine-tuned on the same task; the new "
        "model learns its outputs along with the labels.",
    )
    distillation_temperature: float = setting(
        TEMPERATURE, "Temperature of the logits in distillation.", minimum=0.01
    )
    distillation_weight: float = setting(
        TEACHER_SHARE,
        "Share of the teacher's outputs in the loss.",
        minimum=0.0,
        maximum=1.0,
    )

    task_weights: tuple = setting(
        (),
        "With several tasks, `task=A,B`: the relative frequency of each task's "
        "examples.",
        means="each task's number of training examples",
        group=TASK,
    )

    def __post_init__(self):
        super().__post_init__()
        named_weights(self.class_weights)
        require(
            not (self.teacher and self.label_smoothing),
            "`label_smoothing` and `teacher` both soften the labels; use only "
            "one of them.",
            label_smoothing=self.label_smoothing,
            teacher=self.teacher,
        )
        require(
            self.teacher
            or self.distillation_temperature == TEMPERATURE
            and self.distillation_weight == TEACHER_SHARE,
            "`distillation_temperature` and `distillation_weight` need a "
            "`teacher`.",
            distillation_temperature=self.distillation_temperature,
            distillation_weight=self.distillation_weight,
        )
        for name in self.freeze:
            require(
                name in PARTS or re.fullmatch(r"encoder_(0|[1-9][0-9]*)", name),
                f"`freeze` must list only {', '.join(PARTS)} or encoder_N.",
                freeze=name,
            )

    def check_run(self, evaluates: bool, schedule: str, init: str) -> None:
        """Raise an error for conflicting settings, before reading any data.

        Args:
          evaluates: whether the run evaluates during training.
          schedule: the schedule of the learning rate.
          init: the source of the initial weights.
        """
        for name in ("early_stopping", "plateau_patience"):
            value = getattr(self, name)
            rule = f"In training, `{name}` needs `do_eval`."
            require(evaluates or not value, rule, **{name: value})
        require(
            schedule == "constant" or not self.plateau_patience,
            "`plateau_patience` needs schedule=constant.",
            plateau_patience=self.plateau_patience,
            schedule=schedule,
        )
        require(
            init != "random" or not self.freeze,
            "`freeze` needs pretrained weights.",
            freeze=",".join(self.freeze),
            init=init,
        )


def group_number(config: AlbertConfig) -> int:
    """Return the number of layer groups with separate weights."""
    return max(len(set(config.blocks(kind))) for kind in BLOCK_TYPES)


def group_of(name: str, config: AlbertConfig) -> int | None:
    """Return the layer group of a variable, or None if it is in no layer.

    If only attention or only feed-forward layers are shared, shared variables
    belong to the highest group that uses them.
    """
    block = BLOCK.match(name)
    if not block:
        return None
    number = config.blocks(block[1])[-1] + 1
    return -(-(int(block[2]) + 1) * group_number(config) // number) - 1


def frozen(name: str, freeze: Sequence[str], config: AlbertConfig) -> bool:
    """Return whether a variable is in a part to freeze."""
    if any(
        name.startswith(f"albert/{part}/") for part in freeze if part in PARTS
    ):
        return True
    return f"encoder_{group_of(name, config)}" in freeze


def check_freeze(freeze: Sequence[str], config: AlbertConfig) -> None:
    """Raise an error if `freeze` names groups that the model does not have."""
    groups = group_number(config)
    for name in freeze:
        number = name.removeprefix("encoder_")
        require(
            not number.isdigit() or int(number) < groups,
            f"`freeze` must name groups of layers below encoder_{groups}, "
            f"because the model has {groups} groups.",
            freeze=name,
        )


def evaluations_without_gain(values: Sequence[float]) -> int:
    """Return the number of evaluations since the best evaluation."""
    if not values:
        return 0
    return len(values) - 1 - values.index(max(values))


def reductions(values: Sequence[float], patience: int) -> int:
    """Return how many times plateaus have reduced the learning rate.

    A plateau is `patience` consecutive evaluations without a new best value of
    the metric; the count restarts after each plateau.
    """
    best, stale, number = float("-inf"), 0, 0
    for value in values:
        stale = 0 if value > best else stale + 1
        best = max(best, value)
        if stale == patience:
            stale, number = 0, number + 1
    return number
