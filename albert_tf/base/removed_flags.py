"""Flags of earlier releases, which old flagfiles and commands may contain."""

from collections.abc import Container, Iterable
from typing import NamedTuple

from albert_tf.base.errors import InputError


class Removed(NamedTuple):
    """A flag that no longer exists.

    Attributes:
      advice: the current behavior, and the replacement of the flag.
      same: values that match the current behavior; flags with these values are
        ignored.
    """

    advice: str
    same: tuple[str, ...] = ()


# {removed flag: its entry}
REMOVED = {
    "beta_2_half_life": Removed(
        "set `beta_2` to 2 ^ -(tokens in a batch / half-life); "
        "`budget_hours` sets it for you",
        ("0", "0.0"),
    ),
    "clip_placement": Removed(
        "the gradient of the whole batch is clipped; with --compat=google, "
        "pretrain.py clips each replica's gradient",
        ("global",),
    ),
    "decay_placement": Removed(
        "weight decay is part of the update, inside LAMB's trust ratio",
        ("update",),
    ),
    "feature_cache_dir": Removed(
        "each run now converts its examples itself, so omit the flag"
    ),
    "init_vocabulary": Removed("use --init_state=transplant", ("same",)),
    "layer_decay": Removed(
        "all weights use `learning_rate`; `freeze` excludes whole parts",
        ("1", "1.0"),
    ),
    "loss_normalization": Removed(
        "a loss is divided by its weight in the whole batch; with "
        "--compat=google, pretrain.py divides it in each replica",
        ("global",),
    ),
    "runner": Removed("use --pipeline_options='--runner=NAME ...'"),
    "threads": Removed(
        "all processors are used; `taskset -c 0,1 COMMAND` uses only two"
    ),
    "weights": Removed(
        "weights are float32; bfloat16 was only simulated", ("float32",)
    ),
}

# Arguments of earlier releases, and their current forms.
RENAMED = {
    "--initial_weights=released": "--initial_weights=random",
    "--init_vocabulary=transplant": "--init_state=transplant",
}


def gone(name: str, value: object) -> InputError:
    """Return the error for a flag in `REMOVED`, with advice."""
    said = f"`{name}` was removed: {REMOVED[name].advice}."
    return InputError(f"{said} Received: {name}={value}")


def without_removed(
    arguments: Iterable[str], known: Container[str]
) -> list[str]:
    """Drop removed flags that change nothing; raise `InputError` for others.

    Renamed values receive their current names.

    Args:
      arguments: command-line arguments, with the lines of flagfiles.
      known: names of the program's own flags, which are never dropped.
    """
    kept = []
    for argument in arguments:
        argument = RENAMED.get(argument, argument)
        name, _, value = argument.lstrip("-").partition("=")
        removed = argument.startswith("-") and name not in known
        if not removed or name not in REMOVED:
            kept.append(argument)
        elif value not in REMOVED[name].same:
            raise gone(name, value)
    return kept
