"""Checkpoints of named variables, and the model directories that contain them.

A checkpoint is a flat table {name: variable}. Names of weights begin with the
name of a part of the model: `albert/`, `mlm/`, `sop/`, or a task's head. Names
of optimizer slots begin with `optimizer/`. A checkpoint must match the model
exactly.
"""

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError, first_line, require
from albert_tf.base.replacing import check_unused
from albert_tf.base.settings import FLAG_FILE
from albert_tf.model.albert import AlbertModel
from albert_tf.model.config import CONFIG_FILE, AlbertConfig
from albert_tf.training import checkpoint_files, distribution
from albert_tf.training.checkpoint_files import (
    damage_named,
    is_variable,
    key_of,
    latest,
    name_of,
)
from albert_tf.training.history import RUN_FILES
from albert_tf.training.optimizer import AVERAGE

OPTIMIZER = "optimizer/"
BEST = "best"  # the folder of the best checkpoint inside a model directory
# Largest size of a data file in bytes. Larger checkpoints have several data
# files, which are written in parallel: while one file is uploaded, the checksum
# of another file is computed.
SHARD_BYTES = 1 << 28


def named_variables(model) -> dict[str, tf.Variable]:
    """Return {name: variable} for a model; names omit the root model's name.

    `tf.train.Checkpoint(model=layer)` would omit layers in lists or dicts, and
    Keras's `variable.name` is only the last part of the name.
    """
    root = "" if isinstance(model, AlbertModel) else f"{model.name}/"
    # `weights` are `variables` without the dropout state of `fit`.
    return {v.path.removeprefix(root): v.value for v in model.weights}


def present(
    model, stored: Iterable[str]
) -> tuple[dict[str, tf.Variable], tuple[str, ...]]:
    """Return the variables of a model's stored parts, and the missing heads.

    Args:
      model: the model.
      stored: names of the stored variables; a head is missing if none of these
        names begins with the head's name.

    Returns:
      {name: variable} without the missing heads, and the prefixes of the
      missing heads' names, such as ("sop/",).
    """

    def parts(names: Iterable[str]) -> dict[str, None]:
        return dict.fromkeys(f"{name.split('/')[0]}/" for name in names)

    table = named_variables(model).items()
    heads = parts(name for name, _ in table).keys() - {"albert/"}
    absent = tuple(sorted(heads - parts(stored).keys()))
    return {n: v for n, v in table if not n.startswith(absent)}, absent


class _WholeVariables(tf.train.experimental.ShardingCallback):
    """A policy that packs whole variables into shards of up to `SHARD_BYTES`.

    A larger variable occupies a separate shard. TensorFlow's
    `MaxShardSizePolicy` would split such a variable, on the variable's device.
    """

    description = "whole variables"

    def __call__(self, shardable_tensors):
        shards, left = [], 0
        for x in shardable_tensors:
            size = x.dtype.size * x.shape.num_elements()
            if not shards or size > left:
                shards.append({})
                left = SHARD_BYTES
            left -= size
            slices = shards[-1].setdefault(x.checkpoint_key, {})
            slices[x.slice_spec] = x.tensor
        return shards


def _write(prefix: str, variables: dict[str, tf.Variable]) -> None:
    """Write a checkpoint's index and data files."""
    checkpoint = tf.train.Checkpoint(variables=variables)
    sizes = (v.dtype.size * v.shape.num_elements() for v in variables.values())
    if sum(sizes) <= SHARD_BYTES:
        checkpoint.write(prefix)
        return
    options = tf.train.CheckpointOptions(
        experimental_sharding_callback=_WholeVariables()
    )
    # A graph writes independent files in parallel.
    tf.function(lambda: checkpoint.write(prefix, options), autograph=False)()


def read_table(prefix: str) -> dict[str, list[int]]:
    """Return {name: shape} for a checkpoint that this module wrote."""
    with damage_named(prefix):
        shapes = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    return {
        name_of(key): shape for key, shape in shapes.items() if is_variable(key)
    }


def reader(prefix: str) -> Callable[[str], np.ndarray]:
    """Return a function that reads a variable from a checkpoint by name."""
    with damage_named(prefix):
        stored = tf.train.load_checkpoint(prefix)

    def read(name: str) -> np.ndarray:
        with damage_named(prefix):
            return stored.get_tensor(key_of(name))

    return read


def explain_differences(
    expected: dict[str, list[int]],
    stored: dict[str, list[int]],
    ignore: tuple[str, ...] = (),
) -> str:
    """Describe missing, unexpected and mis-shaped variables, one per line.

    The result is "" if there are none.

    Args:
      expected: {name: shape} of the model.
      stored: {name: shape} of the checkpoint.
      ignore: prefixes of other names that the checkpoint may contain.
    """
    lines = [f"missing {name}" for name in expected if name not in stored]
    lines += [
        f"unexpected {name} {list(shape)}"
        for name, shape in stored.items()
        if name not in expected and not name.startswith(ignore)
    ]
    lines += [
        f"mis-shaped {name}: {list(stored[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in stored and list(stored[name]) != list(shape)
    ]
    return "\n  ".join(lines)


def restore(
    prefix: str,
    variables: dict[str, tf.Variable],
    ignore: tuple[str, ...] = (OPTIMIZER,),
) -> None:
    """Restore variables from a checkpoint; names and shapes must match.

    Args:
      prefix: the checkpoint's path without `.index`.
      variables: the variables to restore; each must be in the checkpoint.
      ignore: prefixes of other names that the checkpoint may contain.

    Raises:
      InputError: if a variable is missing, is unexpected or has a different
        shape, or if the checkpoint is damaged.
    """
    expected = {name: v.shape.as_list() for name, v in variables.items()}
    differences = explain_differences(expected, read_table(prefix), ignore)
    rule = "The checkpoint must match the model."
    require(not differences, f"{rule} Received: {prefix}\n  {differences}")
    with damage_named(prefix):
        checkpoint = tf.train.Checkpoint(variables=variables)
        checkpoint.read(prefix).expect_partial()


def save(
    directory: str,
    variables: dict[str, tf.Variable],
    step: int = 0,
    keep: int = 1,
    facts: dict | None = None,
) -> str:
    """Write a checkpoint `ckpt-STEP`; return its prefix.

    Args:
      directory: the folder to write to; its `checkpoint` file lists the new
        checkpoint only once the checkpoint is complete.
      variables: the variables to write.
      step: the number of updates so far.
      keep: the number of newest checkpoints to keep, including the new one.
      facts: facts about the run.

    Raises:
      InputError: if the checkpoint cannot be written; earlier checkpoints stay
        intact.
    """
    prefix = checkpoint_files.prefix(directory, step)
    try:
        files.make_folder(directory)
        _write(prefix, variables)
        checkpoint_files.write_about(prefix, facts or {})
        checkpoint_files.adopt(directory, step, keep)
    except (tf.errors.OpError, OSError) as error:
        with contextlib.suppress(tf.errors.OpError, OSError):
            # A listed checkpoint of this step may still be intact.
            is_listed = prefix in checkpoint_files.listed(directory)
            suffix = "_temp" if is_listed else ""
            checkpoint_files.remove(directory, step, suffix)
        raise InputError(
            "The checkpoint must be writable (is the disk full?): "
            f"{first_line(error)}. Received: {prefix}"
        ) from None
    return prefix


def restore_run(
    prefix: str, variables: dict[str, tf.Variable], without_slots: str
) -> None:
    """Restore all variables that a run needs to resume.

    Restoring a variable also verifies its checksum, so this function reads the
    checkpoint only once. If the checkpoint has no averaged weights, the
    averages start at the restored weights.

    Args:
      prefix: the checkpoint's path without `.index`.
      variables: the variables of the run.
      without_slots: the error message for a checkpoint without slots.

    Raises:
      InputError: as for `restore`, or if the checkpoint has no slots, or has
        averages that the run does not have.
    """
    stored = read_table(prefix)

    def names(table: Iterable[str], start: str) -> list[str]:
        # A converted checkpoint may have the step but no slots.
        step = f"{OPTIMIZER}iterations"
        return [n for n in table if n.startswith(start) and n != step]

    has_slots = names(stored, OPTIMIZER) or not names(variables, OPTIMIZER)
    require(has_slots, f"{without_slots} Received: {prefix}")
    averages, averaged = names(variables, AVERAGE), names(stored, AVERAGE)
    rule = "`ema_decay` must be set to read a run that averages its weights."
    require(averages or not averaged, f"{rule} Received: {prefix}")
    new = [] if averaged else averages
    stored_variables = {n: v for n, v in variables.items() if n not in new}
    restore(prefix, stored_variables, ignore=())
    for name in new:
        weight = variables[name.removeprefix(AVERAGE)]
        variables[name].assign(tf.identity(weight))


def restore_latest(
    model_dir: str, variables: dict[str, tf.Variable]
) -> str | None:
    """Restore the newest intact checkpoint, if any, and return its prefix."""
    rule = "`output_dir` has weights but no optimizer state; pass it as "
    rule += "`init_checkpoint`, with another `output_dir`."
    return latest(
        model_dir, lambda prefix: restore_run(prefix, variables, rule)
    )


def for_inference(model_dir: str) -> str:
    """Return the prefix of the best checkpoint, or else of the newest one."""
    prefix = latest(files.join(model_dir, BEST)) or latest(model_dir)
    rule = "A model directory must contain a checkpoint (`ckpt-*` and the file "
    require(prefix, f"{rule}`checkpoint`). Received: {model_dir}")
    return prefix


def has_weights(model_dir: str) -> bool:
    """Return whether a folder lists checkpoints, intact or not."""
    folders = files.join(model_dir, BEST), model_dir
    return any(map(checkpoint_files.listed, folders))


def fingerprint(prefix: str) -> str:
    """Return a fingerprint of a checkpoint: its step and a checksum.

    The checksum covers the index, which contains each variable's checksum.
    """
    crc = zlib.crc32(files.read_bytes(f"{prefix}.index"))
    return f"step {checkpoint_files.number(prefix)}, {crc:08x}"


def check_claim(model_dir: str, config: AlbertConfig) -> None:
    """Raise an error if a folder's model has a different config, or no config.

    The files of a run that ended before its first checkpoint do not count as a
    model.
    """
    path, flags = (files.join(model_dir, n) for n in (CONFIG_FILE, FLAG_FILE))
    described = files.exists(path)
    weights = has_weights(model_dir)
    require(
        described or not weights,
        f"`output_dir` has checkpoints without {CONFIG_FILE}: copy this file "
        "and the tokenizer's files back, or choose another folder.",
        output_dir=model_dir,
    )
    if weights or described and not files.exists(flags):
        require(
            AlbertConfig.from_json_file(path) == config,
            "`output_dir` contains another model's checkpoints (its "
            f"{CONFIG_FILE} differs); choose another folder.",
            output_dir=model_dir,
        )


def create_model_dir(model_dir: str, config: AlbertConfig) -> None:
    """Create a model directory; raise an error if it has a different model.

    A folder without a model must not contain files that a run overwrites.
    """
    check_claim(model_dir, config)
    if not files.exists(files.join(model_dir, CONFIG_FILE)):
        check_unused(model_dir, RUN_FILES)
    config.save(model_dir)


@contextlib.contextmanager
def locked_model_dir(
    strategy: tf.distribute.Strategy, output_dir: str, claim: Callable
) -> Iterator[None]:
    """Lock a model directory against other runs while the block runs.

    Args:
      strategy: the strategy, which determines the process that writes; if this
        process fails, all processes raise an error.
      output_dir: the model directory, created if necessary.
      claim: a function that writes the files next to the checkpoints, or raises
        an error. The folder is locked during the call, so no other run can
        change it.
    """
    with contextlib.ExitStack() as stack:
        with distribution.raise_everywhere(strategy):
            if distribution.is_chief(strategy):
                stack.enter_context(files.locked(output_dir, "output_dir"))
                claim()
        yield


def restore_model(prefix: str, model, only: tuple[str, ...] = ("",)) -> None:
    """Restore a model's weights from a checkpoint.

    Args:
      prefix: the checkpoint's path without `.index`.
      model: a built model.
      only: prefixes of the names to restore, such as `("albert/",)` for a model
        with a new head; other variables keep their values and may be missing
        from the checkpoint.
    """
    variables = {
        name: variable
        for name, variable in named_variables(model).items()
        if name.startswith(only)
    }
    ignored = [name for name in read_table(prefix) if not name.startswith(only)]
    restore(prefix, variables, ignore=(OPTIMIZER, *ignored))


def restore_weights(
    model, model_dir: str, only: tuple[str, ...] = ("",)
) -> str:
    """Restore weights from a model directory; return the checkpoint's prefix.

    For the other arguments, see `restore_model`.
    """
    prefix = for_inference(model_dir)
    restore_model(prefix, model, only)
    return prefix
