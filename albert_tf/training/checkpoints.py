"""Checkpoints of named variables, and the model directory that holds them.

A checkpoint is a flat table {name: variable}. Names of weights begin with the
part of the model (`albert/encoder/...`, `mlm/...`, `sop/...`, a task's head),
names of the optimizer's slots with `optimizer/`. Loading is exact or fails.
"""

import contextlib
import re
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.model.albert import AlbertModel
from albert_tf.model.config import CONFIG_FILE, AlbertConfig
from albert_tf.training import checkpoint_files

OPTIMIZER = "optimizer/"
BEST = "best"  # the folder of the best checkpoint inside a model directory
_PREFIX, _SUFFIX = "variables/", "/.ATTRIBUTES/VARIABLE_VALUE"
_ESCAPES = {".": "..", "/": ".S"}  # of `tf.train.Checkpoint`, in names


def named_variables(model) -> dict[str, tf.Variable]:
    """Return {name: variable} of a model, without the root model's own name.

    `tf.train.Checkpoint(model=layer)` would leave out layers that are kept in
    lists or dicts, and Keras's `variable.name` is only the last part.
    """
    root = "" if isinstance(model, AlbertModel) else f"{model.name}/"
    return {v.path.removeprefix(root): v.value for v in model.variables}


def _checkpoint(variables: dict[str, tf.Variable]) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(variables=variables)


def _key(name: str) -> str:
    """Return the key of a variable in a checkpoint."""
    return _PREFIX + "".join(_ESCAPES.get(c, c) for c in name) + _SUFFIX


def _name(key: str) -> str:
    """Return the name that `_key` made a key of."""
    escaped = key.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    meanings = {code: c for c, code in _ESCAPES.items()}
    return re.sub(r"\.[.S]", lambda match: meanings[match[0]], escaped)


def read_table(prefix: str) -> dict[str, list[int]]:
    """Return {name: shape} of a checkpoint written by this module."""
    try:
        shapes = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"The checkpoint must be whole and readable: {reason}. "
            f"Received: {prefix}"
        ) from None
    return {
        _name(key): shape
        for key, shape in shapes.items()
        if key.startswith(_PREFIX)
    }


def reader(prefix: str) -> Callable[[str], np.ndarray]:
    """Return a function from a name to the value in a checkpoint."""
    stored = tf.train.load_checkpoint(prefix)

    def read(name: str) -> np.ndarray:
        try:
            return stored.get_tensor(_key(name))
        except (IndexError, tf.errors.OpError) as error:
            raise damaged(prefix, error) from None

    return read


def damaged(prefix: str, error: Exception) -> InputError:
    """Return the error of a checkpoint that cannot be read to its end."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(
        f"The checkpoint is damaged: {reason}. Received: {prefix}"
    )


def explain_differences(
    wanted: dict[str, list[int]],
    found: dict[str, list[int]],
    ignore: tuple[str, ...] = (),
) -> str:
    """Name every missing, unexpected and mis-shaped variable; "" if none.

    Args:
      wanted: {name: shape} that the model has.
      found: {name: shape} that the checkpoint has.
      ignore: prefixes of names that the checkpoint may have beyond the model.
    """
    lines = [f"missing {name}" for name in wanted if name not in found]
    lines += [
        f"unexpected {name} {list(shape)}"
        for name, shape in found.items()
        if name not in wanted and not name.startswith(ignore)
    ]
    lines += [
        f"mis-shaped {name}: {list(found[name])} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in found and list(found[name]) != list(shape)
    ]
    return "\n  ".join(lines)


def restore(
    prefix: str,
    variables: dict[str, tf.Variable],
    ignore: tuple[str, ...] = (OPTIMIZER,),
) -> None:
    """Assign every variable from a checkpoint, or fail naming what differs.

    Args:
      prefix: the checkpoint's path without `.index`.
      variables: what to restore; each must be in the checkpoint.
      ignore: prefixes of names that the checkpoint may have beyond these.

    Raises:
      InputError: a variable is missing, unexpected or of another shape, or
        the checkpoint is damaged.
    """
    wanted = {name: v.shape.as_list() for name, v in variables.items()}
    differences = explain_differences(wanted, read_table(prefix), ignore)
    if differences:
        raise InputError(
            f"The checkpoint must fit the model. Received: {prefix}\n"
            f"  {differences}"
        )
    try:
        _checkpoint(variables).read(prefix).expect_partial()
    except (tf.errors.OpError, IndexError, RuntimeError) as error:
        raise damaged(prefix, error) from None


class Saver:
    """Writes checkpoints `ckpt-STEP` and keeps the newest ones.

    Args:
      directory: where to write.
      variables: {name: variable} of what to write.
      keep: how many to keep.
    """

    def __init__(
        self, directory: str, variables: dict[str, tf.Variable], keep: int
    ):
        self.directory, self.keep = directory, keep
        self._checkpoint = _checkpoint(variables)

    def save(self, step: int, about: dict | None = None) -> str:
        """Write one checkpoint, with facts of the run; return its prefix.

        Raises:
          InputError: it could not be written; the earlier ones are untouched.
        """
        prefix = checkpoint_files.prefix(self.directory, step)
        try:
            files.make_folder(self.directory)
            self._checkpoint.write(prefix)
            checkpoint_files.write_manifest(prefix, about or {})
            checkpoint_files.adopt(self.directory, step, self.keep)
        except (tf.errors.OpError, OSError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            with contextlib.suppress(tf.errors.OpError, OSError):
                checkpoint_files.remove(self.directory, step)
            raise InputError(
                f"The checkpoint must be writable: {reason}. Is the disk "
                f"full? Received: {prefix}"
            ) from None
        return prefix


def save(
    directory: str, variables: dict[str, tf.Variable], step: int = 0
) -> str:
    """Write one checkpoint `ckpt-STEP`, the only one kept; return its prefix.

    The folder's `checkpoint` file names it only once it is whole.
    """
    return Saver(directory, variables, keep=1).save(step)


def latest(model_dir: str) -> str | None:
    """Return the prefix of the newest whole checkpoint, the one to resume."""
    return checkpoint_files.latest(model_dir)


def for_inference(model_dir: str) -> str:
    """Return the prefix of the best checkpoint, or else of the newest."""
    prefix = latest(files.join(model_dir, BEST)) or latest(model_dir)
    if prefix is None:
        raise InputError(
            "A model directory must hold a checkpoint (`ckpt-*` and the file "
            f"`checkpoint`). Received: {model_dir}"
        )
    return prefix


def fingerprint(model_dir: str) -> str:
    """Return what tells a model's weights from others: step and checksum.

    The index that is summed holds the checksum of each variable.
    """
    prefix = for_inference(model_dir)
    crc = checkpoint_files.checksum(f"{prefix}.index")
    return f"step {checkpoint_files.number(prefix)}, {crc:08x}"


def check_claim(model_dir: str, config: AlbertConfig) -> None:
    """Refuse a folder that holds another model than a config's."""
    path = files.join(model_dir, CONFIG_FILE)
    if not files.exists(path):
        if latest(model_dir):
            raise InputError(
                f"`output_dir` holds checkpoints but no {CONFIG_FILE}; choose "
                f"another folder. Received: output_dir={model_dir}"
            )
    elif AlbertConfig.from_json_file(path) != config:
        raise InputError(
            "`output_dir` holds another model's checkpoints (its "
            f"{CONFIG_FILE} differs); choose another folder. "
            f"Received: output_dir={model_dir}"
        )


def claim(model_dir: str, config: AlbertConfig) -> None:
    """Make a model directory for a config, or refuse another model's."""
    check_claim(model_dir, config)
    config.save(model_dir)


def restore_weights(
    model, model_dir: str, only: tuple[str, ...] = ("",)
) -> str:
    """Restore a model's weights from a model directory; return the prefix.

    Args:
      model: a built model.
      model_dir: a model directory.
      only: prefixes of the names to restore; others keep their values and
        may be missing in the checkpoint (`("albert/",)` for a new head).
    """
    prefix = for_inference(model_dir)
    variables = {
        name: variable
        for name, variable in named_variables(model).items()
        if name.startswith(only)
    }
    heads = () if "" in only else _other_parts(prefix, only)
    restore(prefix, variables, ignore=(OPTIMIZER, *heads))
    return prefix


def _other_parts(prefix: str, only: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(n for n in read_table(prefix) if not n.startswith(only))
