"""Which checkpoints lie in a folder, and whether their files are whole.

A checkpoint `ckpt-STEP` is an index, data files and `ckpt-STEP.json` with facts
of the run, written after them; the folder's `checkpoint` file, which names the
checkpoints, is written last of all. So a kill at any moment leaves the earlier
ones as they were. TensorFlow keeps a checksum of every variable and of the
index.
"""

import contextlib
import re
from collections.abc import Callable, Iterator

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError, require

NAME = "ckpt-"
STATE_FILE = "checkpoint"
# Glob patterns of the files of finished checkpoints.
FILES = (
    *(STATE_FILE, f"{NAME}[0-9]*.index", f"{NAME}[0-9]*.json"),
    f"{NAME}[0-9]*.data-?????-of-?????",
)
# What TensorFlow raises where it reads a damaged checkpoint.
DAMAGE = (tf.errors.OpError, ValueError, IndexError, RuntimeError)
# What belongs to a checkpoint; `_temp` is a folder of an unfinished write.
_PART = re.compile(rf"{NAME}(\d+)(\.index|\.data-\d+-of-\d+|\.json|_temp/?)$")


def prefix(directory: str, step: int) -> str:
    """Return the path of a checkpoint without `.index`."""
    return files.join(directory, f"{NAME}{step}")


def number(prefix: str) -> int:
    """Return the step in a checkpoint's name, -1 if it has none."""
    match = re.search(rf"{NAME}(\d+)$", prefix)
    return int(match[1]) if match else -1


def reason(error: Exception) -> str:
    """Return the first line of an error of TensorFlow, without its places."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"\{\{.*?\}\} ?| ?\[Op:\w+\]", "", line)


def write_about(prefix: str, about: dict) -> None:
    """Keep facts of the run beside a finished checkpoint."""
    files.write_json(f"{prefix}.json", {"about": about})


def about(prefix: str) -> dict:
    """Return the facts beside a checkpoint; {} if there are none."""
    path = f"{prefix}.json"
    if not files.exists(path):
        return {}
    return files.read_json(path, "The facts of a checkpoint")["about"]


class Damaged(InputError):
    """A checkpoint that TensorFlow cannot read; its error is the cause."""


@contextlib.contextmanager
def damage_named(prefix: str) -> Iterator[None]:
    """Turn what a damaged checkpoint raises into an error with its path."""
    try:
        yield
    except DAMAGE as error:
        raise Damaged(
            f"The checkpoint is damaged: {reason(error)}. Received: {prefix}"
        ) from error


def read_all(prefix: str) -> None:
    """Read every variable, and so compare its checksum."""
    with damage_named(prefix):
        stored = tf.train.load_checkpoint(prefix)
        for name in stored.get_variable_to_shape_map():
            stored.get_tensor(name)


def fault(prefix: str, read: Callable[[str], None]) -> str:
    """Return what is wrong with a checkpoint's files, "" if nothing is."""
    try:
        about(prefix)
    except (InputError, KeyError, TypeError):
        return f"{prefix}.json cannot be read"
    try:
        read(prefix)
    except Damaged as error:
        return reason(error.__cause__)
    return ""


def _parts(directory: str) -> list[tuple[int, str, str]]:
    """Return (step, kind, name) of everything that is of a checkpoint."""
    matches = map(_PART.match, files.names(directory))
    return [(int(m[1]), m[2], m[0]) for m in matches if m]


def listed(directory: str) -> list[str]:
    """Return the prefixes that a folder names, the one to resume first.

    Without a readable `checkpoint` file these are all that have their facts.
    """
    files.require_no_pattern("The path of a model directory", directory)
    try:
        state = tf.train.get_checkpoint_state(directory)
    except ValueError:  # the file is empty
        state = None
    if state is None:
        if not files.is_folder(directory):
            return []
        steps = {n for n, kind, _ in _parts(directory) if kind == ".json"}
        return [prefix(directory, step) for step in sorted(steps, reverse=True)]
    newest, *others = (
        files.join(directory, path.rpartition("/")[2])
        for path in (
            state.model_checkpoint_path,
            *state.all_model_checkpoint_paths,
        )
    )
    earlier = {p for p in others if number(p) < number(newest)}
    return [newest, *sorted(earlier, key=number, reverse=True)]


def latest(
    directory: str, read: Callable[[str], None] = read_all
) -> str | None:
    """Return the newest whole checkpoint; None if the folder has none.

    A damaged one is skipped with a warning.

    Args:
      directory: where they are.
      read: reads one; raises `Damaged`.

    Raises:
      InputError: there are checkpoints, and none is whole.
    """
    faults: list[str] = []
    for path in listed(directory):
        wrong = fault(path, read)
        if not wrong:
            for line in faults:
                print(f"Warning: {line}; taking {path} instead", flush=True)
            return path
        faults.append(f"the checkpoint {path} is damaged: {wrong}")
    rule = "One checkpoint must be whole; remove them all, with the file "
    rule += f"`{STATE_FILE}`, to begin anew."
    require(not faults, f"{rule} Received: {'; '.join(faults)}")
    return None


def remove(directory: str, step: int) -> None:
    """Remove whatever there is of one checkpoint."""
    for n, _, name in _parts(directory):
        if n == step:
            path = files.join(directory, name)
            folder = files.is_folder(path)
            (files.remove_folder if folder else files.remove)(path)


def adopt(directory: str, step: int, keep: int) -> None:
    """Make a written checkpoint the newest; remove all but the last ones.

    Checkpoints of later steps belong to a stretch that was lost.
    """
    known = {number(path) for path in listed(directory)} | {step}
    kept = sorted(n for n in known if 0 <= n <= step)[-keep:]
    lines = [f'model_checkpoint_path: "{NAME}{step}"\n'] + [
        f'all_model_checkpoint_paths: "{NAME}{n}"\n' for n in kept
    ]
    files.write_text(files.join(directory, STATE_FILE), "".join(lines))
    for n in {n for n, *_ in _parts(directory)} - set(kept):
        remove(directory, n)
