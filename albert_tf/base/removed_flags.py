"""Flags of earlier releases and of google-research/albert.

Old flagfiles and commands may contain these flags.
"""

import collections
from collections.abc import Container, Iterable
from typing import NamedTuple

from albert_tf.base.errors import InputError


class Removed(NamedTuple):
    """A flag that a program does not support, or no longer supports.

    Attributes:
      advice: the current behavior, or what to do instead of setting the flag.
      same: values that match the current behavior; the program ignores flags
        with these values.
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
        "all weights use `learning_rate`; `freeze` excludes parts of the model",
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

_CHECKPOINT = Removed(
    "use --model_dir with a checkpoint that `convert_checkpoint` wrote"
)
_TOKENIZER = Removed(
    "the tokenizer is in the model directory; `convert_checkpoint` copies it"
)
_NO_FEATURES = Removed(
    "each run converts its examples itself, so omit the flag"
)
_RECORDS = Removed(
    "the metadata.json of the records contains this value; omit the flag"
)
_FALSE, _TRUE = ("false", "False", "0"), ("true", "True", "1")

# {flag of google-research/albert that some programs do not support: its entry}
RELEASED = {
    "albert_config_file": Removed(
        "the config is in the model directory; `convert_checkpoint` copies it"
    ),
    "albert_hub_module_handle": _CHECKPOINT,
    "cached_dir": _NO_FEATURES,
    "do_lower_case": Removed(
        "the tokenizer.json in the model directory contains this setting"
    ),
    "export_dir": Removed("run `python -m albert_tf.export` after training"),
    "high_only": Removed("use --task=race-high", _FALSE),
    "init_checkpoint": _CHECKPOINT,
    "init_from_group0": Removed(
        "groups missing from a checkpoint start from another group", _FALSE
    ),
    "input_file": Removed("use --data_dir"),
    "input_file_mode": Removed("text files must be UTF-8", ("r",)),
    "iterations_per_loop": Removed("use --steps_per_loop, or omit the flag"),
    "masked_lm_budget": Removed(
        "build the records with --masking=dynamic", ("0", "0.0")
    ),
    "master": Removed("use --tpu_name"),
    "max_eval_steps": Removed(
        "all held-out records are evaluated; omit the flag"
    ),
    "max_predictions_per_seq": _RECORDS,
    "max_seq_length": _RECORDS,
    "middle_only": Removed("use --task=race-middle", _FALSE),
    "num_keep_checkpoint": Removed("use --keep_checkpoint_max"),
    "num_tpu_cores": Removed("all cores are used; omit the flag"),
    "output_file": Removed("use --output_dir, which names a folder"),
    "predict_batch_size": Removed("use --eval_batch_size"),
    "predict_feature_file": _NO_FEATURES,
    "predict_feature_left_file": _NO_FEATURES,
    "spm_model_file": _TOKENIZER,
    "threshold_to_export": Removed(
        "run `python -m albert_tf.export` after training", ("nan",)
    ),
    "train_feature_file": _NO_FEATURES,
    "use_einsum": Removed("all layers use einsum or matmul", (*_TRUE, *_FALSE)),
    "use_tpu": Removed("a TPU is used if --tpu_name is set", _FALSE),
    "vocab_file": _TOKENIZER,
}

ABSENT = REMOVED | RELEASED

# Arguments of earlier releases, and their current forms.
RENAMED = {
    "--initial_weights=released": "--initial_weights=random",
    "--init_vocabulary=transplant": "--init_state=transplant",
}


def absent_from(flags: Container[str]) -> dict[str, Removed]:
    """Return the old flags that a program recognizes, as {flag: entry}.

    Every program recognizes `REMOVED`. Programs that replace scripts of
    google-research/albert also recognize other flags of those scripts.

    Args:
      flags: names of the program's own flags.
    """
    replaces = "do_train" in flags or "dupe_factor" in flags
    return ABSENT if replaces else REMOVED


def gone(name: str, value: object) -> InputError:
    """Return the error for a flag in `ABSENT`, with advice."""
    released = "is a flag of google-research/albert"
    why = "was removed" if name in REMOVED else released
    message = f"`{name}` {why}: {ABSENT[name].advice}."
    return InputError(f"{message} Received: {name}={value}")


def _parts(argument: str) -> tuple[str, str]:
    """Return a flag's name and value.

    For flags in `ABSENT`, `--noNAME` has the value "false", and a switch
    without an explicit value has the value "true".
    """
    name, equals, value = argument.lstrip("-").partition("=")
    positive = name.removeprefix("no")
    if name not in ABSENT and positive in ABSENT:
        return positive, "false"
    is_switch = name in ABSENT and "false" in ABSENT[name].same
    return name, "true" if is_switch and not equals else value


def without_removed(
    arguments: Iterable[str], flags: Container[str]
) -> list[str]:
    """Drop removed flags that have no effect; reject other removed flags.

    Arguments in `RENAMED` are replaced with their current forms. A single
    `InputError` lists all rejected flags.

    Args:
      arguments: command-line arguments, including the lines of flagfiles.
      flags: names of the program's own flags, which are never dropped.
    """
    remaining, faults, table = [], [], absent_from(flags)
    rest = collections.deque(arguments)
    while rest:
        argument = rest.popleft()
        argument = RENAMED.get(argument, argument)
        name, value = _parts(argument)
        absent = argument.startswith("-") and name not in flags
        if not absent or name not in table:
            remaining.append(argument)
            continue
        separate = not value and "=" not in argument
        if separate and rest and not rest[0].startswith("-"):
            value = rest.popleft()  # as in `--master local`
        if value not in ABSENT[name].same:
            faults.append(str(gone(name, value)))
    if faults:
        raise InputError("\n".join(faults))
    return remaining
