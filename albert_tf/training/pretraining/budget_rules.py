"""Rules that choose the settings of a run with a budget, each with a reason.

`RULES` has a rule for each setting that is chosen once the speed is estimated.
The rules are applied in order, and each rule receives the earlier choices and
the user's settings. `choose_start` chooses the settings that depend on the
model and its records. Values found in trials are constants; comments describe
the trials. A trial is a run on records of 64 tokens; its result is the held-out
MLM loss after the rate has fully decayed.
"""

import dataclasses
import math
from collections.abc import Callable, Set
from typing import Any, NamedTuple

from albert_tf.model.config import AlbertConfig

# Results of 1,000 steps at batch size 64 with `tiny`, 30,000 pieces and
# informed weights: 4.31 with Muon at a rate of 1.4e-3; 4.44 with AdamW; 4.57
# and 4.58 with AdamW at half and twice the rate. Results of 2,500 steps without
# an informed start, with width 128, 3 layers and 8,000 pieces: 4.42 with AdamW
# at 2e-3; 4.50 with LAMB at 0.02; 5.13 with LAMB as released.
OPTIMIZER = "muon"
OPTIMIZERS = {
    "muon": {"learning_rate": 2e-3, "weight_decay_rate": 0.1},
    "adamw": {"learning_rate": 2e-3, "weight_decay_rate": 0.1},
    "lamb": {"learning_rate": 0.02, "weight_decay_rate": 0.01},
}
TRIAL_WIDTH = 128
# The rate grows with the square root of the batch size: trials with 512
# examples, 120 steps, `tiny` and Muon at rates of 2e-3, 2.8e-3, 4e-3 and 5.6e-3
# ended at 4.64, 4.54, 4.47 and 4.48; the rule chooses 4e-3.
TRIAL_TOKENS = 64 * 64  # in a batch
# The rate decreases with this power of the width. The power suits AdamW for
# widths between 128 and 256.
WIDTH_POWER = 0.5
# In the trials, a beta_2 of 0.98 means a half-life of 34 steps. Other batch
# sizes keep the same half-life in tokens (https://arxiv.org/abs/2507.07101),
# but beta_2 never falls below its usual value for large batches.
HALF_LIFE_TOKENS = TRIAL_TOKENS * math.log(0.5) / math.log(0.98)
SMALLEST_BETA_2 = 0.95
LEAST_STEPS = 10  # minimum of the estimate, so that each phase has steps
# The trials had 50 steps of warm-up in 600 to 2,500 steps; without warm-up,
# AdamW collapses.
WARMUP_SHARE = 0.05
# The best batch size grows with about the square root of the number of tokens
# read (https://arxiv.org/abs/2505.13738). No trial has shown yet where this
# growth begins.
SMALL_BATCHES_UP_TO = 1e8  # number of tokens in a run
# With Muon, 1,000 steps took 501 s on one core. With half of the layers for 40%
# of the steps, 1,250 steps took 496 s and reached a loss of 4.27. With the mask
# schedule as well, 1,250 steps took 605 s and reached 4.16; with a mask rate
# of 0.40 instead of 0.30, they took 667 s and reached 4.14. In these trials,
# 40% of the steps took about 30% of the run's time; with a budget, the shares
# in a schedule are shares of the time.
SHALLOW_SHARE = 0.3
MASK_SCHEDULE = "0.30:0.7,0.20:0.2,0.15"
# Number of evaluations in a run, and the share of its time that they may take.
EVALUATIONS = 10
EVALUATION_SHARE = 0.05
EVALUATION_COST = 0.4  # per example, relative to training
# Bounds on the seconds between checkpoints; a run has at least two checkpoints.
MOST_SECONDS, LEAST_SECONDS = 900.0, 60.0


class Choice(NamedTuple):
    """The value chosen for a setting, and the reason."""

    value: Any
    reason: str


@dataclasses.dataclass(frozen=True)
class Resources:
    """The resources of a run, and the sizes that its settings depend on.

    Attributes:
      seconds: the time for steps and evaluations.
      example_seconds: the time that training takes per example.
      tokens: length of an example.
      hidden_size: width of the model.
      eval_examples: number of held-out examples.
      replicas: number of replicas that share a batch.
      dtype: the faster precision on the run's devices.
    """

    seconds: float
    example_seconds: float
    tokens: int
    hidden_size: int
    eval_examples: int = 0
    replicas: int = 1
    dtype: Choice = Choice("float32", "the devices are unknown")


def batch_size(resources: Resources, values: dict) -> Choice:
    """Choose the batch size: a power of 2, adjusted to the devices.

    The result is a multiple of the number of replicas times the number of
    micro-batches.
    """
    tokens = resources.seconds / resources.example_seconds * resources.tokens
    growth = math.sqrt(max(tokens / SMALL_BATCHES_UP_TO, 1.0))
    examples = TRIAL_TOKENS * growth / resources.tokens
    unit = resources.replicas * values["gradient_accumulation_steps"]
    power = 2 ** round(math.log2(max(examples, 1.0)))
    batch = max(power // unit, 1) * unit
    of_run = f"for a run of {float(f'{tokens:.2g}'):,.0f}"
    return Choice(batch, f"{batch * resources.tokens:,} tokens, {of_run}")


def train_steps(resources: Resources, values: dict) -> Choice:
    """Estimate the number of steps that fit in the time budget."""
    share = 1.0 - EVALUATION_SHARE * bool(resources.eval_examples)
    step = resources.example_seconds * values["train_batch_size"]
    steps = max(int(resources.seconds * share / step), LEAST_STEPS)
    return Choice(
        steps,
        f"{resources.seconds:.0f} s at {step:.3g} s a step; adapts to the pace",
    )


def learning_rate(resources: Resources, values: dict) -> Choice:
    """Choose the peak rate of the optimizer."""
    rate = OPTIMIZERS[values["optimizer"]]["learning_rate"]
    width = (TRIAL_WIDTH / resources.hidden_size) ** WIDTH_POWER
    tokens = values["train_batch_size"] * resources.tokens
    batch = math.sqrt(tokens / TRIAL_TOKENS)
    return Choice(
        float(f"{rate * width * batch:.2g}"),  # two significant digits
        f"{rate:g} of the trials x {width:.2f} for the width x {batch:.2f} "
        "for the batch",
    )


def weight_decay_rate(resources: Resources, values: dict) -> Choice:
    """Choose the weight decay of the optimizer."""
    rule = OPTIMIZERS.get(values["optimizer"], OPTIMIZERS[OPTIMIZER])
    return Choice(rule["weight_decay_rate"], "as in the trials")


def beta_2(resources: Resources, values: dict) -> Choice:
    """Choose the decay of the second moment from its half-life in tokens."""
    tokens = values["train_batch_size"] * resources.tokens
    beta = max(0.5 ** (tokens / HALF_LIFE_TOKENS), SMALLEST_BETA_2)
    return Choice(
        round(beta, 4), f"a half-life of {HALF_LIFE_TOKENS:,.0f} tokens"
    )


def warmup_steps(resources: Resources, values: dict) -> Choice:
    """Choose the number of warm-up steps."""
    steps = max(round(WARMUP_SHARE * values["num_train_steps"]), 1)
    return Choice(steps, f"{WARMUP_SHARE:.0%} of the steps")


def eval_steps(resources: Resources, values: dict) -> Choice:
    """Choose the number of steps between evaluations."""
    seconds = (
        resources.eval_examples * resources.example_seconds * EVALUATION_COST
    )
    affordable = (
        EVALUATION_SHARE * resources.seconds / seconds
        if seconds
        else EVALUATIONS
    )
    number = max(min(int(affordable), EVALUATIONS), 2)
    steps = math.ceil(values["num_train_steps"] / number)
    return Choice(steps, f"{number} evaluations of about {seconds:.2g} s")


def checkpoint_steps(resources: Resources, values: dict) -> Choice:
    """Choose the steps between two checkpoints."""
    interval = max(resources.seconds / EVALUATIONS, LEAST_SECONDS)
    interval = min(interval, MOST_SECONDS, resources.seconds / 2)
    steps = math.ceil(values["num_train_steps"] * interval / resources.seconds)
    reason = f"every {interval:.0f} s, the most time that can be lost"
    return Choice(steps, reason)


def choose_start(config: AlbertConfig, dynamic: bool) -> dict[str, Choice]:
    """Choose a new model's initial weights, mask schedule and depth schedule.

    Args:
      config: the architecture.
      dynamic: whether all records are masked while they are read.
    """
    layers = config.num_hidden_layers
    shallow = max(math.ceil(layers / 2), config.num_hidden_groups)
    reason = "skips the plateau of predicting by frequency alone"
    choices = {"initial_weights": Choice("informed", reason)}
    if dynamic:
        reason = "more masks teach more at first; the end has the usual rate"
        choices["mask_schedule"] = Choice(MASK_SCHEDULE, reason)
    if config.sharing == "all" and shallow < layers:
        depths = f"{shallow}:{SHALLOW_SHARE:g},{layers}"
        reason = "at first, the shared weights learn with half of the layers"
        choices["depth_schedule"] = Choice(depths, reason)
    return choices


RULES: dict[str, Callable[[Resources, dict], Choice]] = {
    "dtype": lambda resources, _: resources.dtype,
    "optimizer": lambda *_: Choice(OPTIMIZER, "the best of the trials"),
    "train_batch_size": batch_size,
    "num_train_steps": train_steps,
    "learning_rate": learning_rate,
    "weight_decay_rate": weight_decay_rate,
    "beta_2": beta_2,
    "bias_correction": lambda *_: Choice(True, "AdamW collapses without it"),
    "num_warmup_steps": warmup_steps,
    "eval_steps": eval_steps,
    "save_checkpoints_steps": checkpoint_steps,
}


def choose_values(
    resources: Resources, values: dict, fixed: Set[str]
) -> dict[str, Choice]:
    """Choose the settings that the user did not set.

    Args:
      resources: the resources and sizes of the run.
      values: {setting: value} of all settings.
      fixed: names of the settings that the user set.
    """
    values, choices = dict(values), {}
    for name, rule in RULES.items():
        if name not in fixed:
            choices[name] = rule(resources, values)
            values[name] = choices[name].value
    return choices


def format_choices(choices: dict[str, Choice]) -> list[str]:
    """Format choices as aligned lines: the flag, then the reason."""
    reasons = {f"--{k}={c.value}": c.reason for k, c in choices.items()}
    width = max(map(len, reasons), default=0)
    return [f"  {flag:{width}}  {why}" for flag, why in reasons.items()]
