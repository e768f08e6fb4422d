"""The checkpoint files in a folder, and checks that they are intact.

A checkpoint `ckpt-STEP` consists of an index, data files, and `ckpt-STEP.json`,
which contains facts about the run and is written after the other files. The
folder's `checkpoint` file lists the checkpoints and is written last, so a
process that is killed at any moment leaves earlier checkpoints intact.
TensorFlow stores a checksum of every variable and of the index. This module
imports TensorFlow only to read checkpoints.
"""

import contextlib
import re
from collections.abc import Callable, Iterator

from albert_tf.base import files
from albert_tf.base.errors import InputError, first_line, require
from albert_tf.base.json_values import field
from albert_tf.base.remote_files import RemoteError
from albert_tf.base.settings import RunFact

NAME = "ckpt-"
STATE_FILE = "checkpoint"
# Glob patterns for the files of finished checkpoints.
FILES = (
    *(STATE_FILE, f"{NAME}[0-9]*.index", f"{NAME}[0-9]*.json"),
    f"{NAME}[0-9]*.data-?????-of-?????",
)
# A pattern for names of checkpoint files; an unfinished write has a `_temp`
# folder.
_PART = re.compile(rf"{NAME}(\d+)(\.index|\.data-\d+-of-\d+|\.json|_temp/?)$")
# A pattern for paths in the `checkpoint` file; the first path is the newest.
_LISTED = re.compile(r'^(?:all_)?model_checkpoint_paths?: "([^\0\n]*)"', re.M)

_PREFIX, _SUFFIX = "variables/", "/.ATTRIBUTES/VARIABLE_VALUE"
_ESCAPES = {".": "..", "/": ".S"}  # `tf.train.Checkpoint`'s escapes


def key_of(name: str) -> str:
    """Return the key under which a checkpoint stores a variable."""
    return _PREFIX + "".join(_ESCAPES.get(c, c) for c in name) + _SUFFIX


def is_variable(key: str) -> bool:
    """Return whether a checkpoint's key belongs to a variable."""
    return key.startswith(_PREFIX)


def name_of(key: str) -> str:
    """Return the name of the variable with a given key; see `key_of`."""
    escaped = key.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    meanings = {code: c for c, code in _ESCAPES.items()}
    return re.sub(r"\.[.S]", lambda match: meanings[match[0]], escaped)


def prefix(directory: str, step: int) -> str:
    """Return a checkpoint's path without `.index`."""
    return files.join(directory, f"{NAME}{step}")


def number(prefix: str) -> int:
    """Return the step in a checkpoint's name, or -1 if the name has none."""
    match = re.search(rf"{NAME}(\d+)$", prefix)
    return int(match[1]) if match else -1


def write_about(prefix: str, facts: dict) -> None:
    """Write facts about the run next to a finished checkpoint."""
    files.write_json(f"{prefix}.json", {"about": facts})


def read_facts(prefix: str) -> dict:
    """Return the facts stored with a checkpoint, or {} if there are none."""
    path = f"{prefix}.json"
    if not files.exists(path):
        return {}
    content = files.read_json(path, "The facts of a checkpoint")
    return field(content, "about", dict, path)


def changes(prefix: str, facts: dict[str, RunFact]) -> list[str]:
    """Describe how facts differ from the facts stored with a checkpoint."""
    earlier = read_facts(prefix)
    return [
        f"{name} was {earlier[name]} and is {value}: {change}"
        for name, (value, change) in facts.items()
        if earlier.get(name, value) != value
    ]


class Damaged(InputError):
    """An error about a damaged checkpoint.

    Its `__cause__` is the original error.
    """


def _damage() -> tuple[type[Exception], ...]:
    """Return the types of errors that TensorFlow raises for damaged files."""
    import tensorflow as tf

    # A damaged size may make TensorFlow request more memory than is available.
    builtin = ValueError, IndexError, RuntimeError, MemoryError
    return tf.errors.OpError, *builtin


@contextlib.contextmanager
def damage_named(prefix: str) -> Iterator[None]:
    """Convert TensorFlow's errors about a damaged checkpoint to `Damaged`.

    A file without read permission raises a plain `InputError`.
    """
    try:
        yield
    except _damage() as error:
        readable = "Permission denied" not in str(error)
        require(readable, "A checkpoint must be readable.", checkpoint=prefix)
        raise Damaged(
            f"The checkpoint is damaged: {first_line(error)}. "
            f"Received: {prefix}"
        ) from error


def read_all(prefix: str) -> None:
    """Read all variables of a checkpoint; TensorFlow verifies the checksums."""
    import tensorflow as tf

    with damage_named(prefix):
        stored = tf.train.load_checkpoint(prefix)
        for name in stored.get_variable_to_shape_map():
            stored.get_tensor(name)


def fault(prefix: str, read: Callable[[str], None]) -> str:
    """Describe the fault in a checkpoint; return "" if it is intact.

    Args:
      prefix: the checkpoint's path without `.index`.
      read: a function that reads a checkpoint or raises `Damaged`.
    """
    try:
        read_facts(prefix)
    except RemoteError:  # the checkpoint itself may be intact
        raise
    except InputError:
        return f"{prefix}.json cannot be read"
    try:
        read(prefix)
    except Damaged as error:
        return first_line(error.__cause__)
    return ""


def _parts(directory: str) -> list[tuple[int, str, str]]:
    """Return (step, suffix, name) for every checkpoint file in a folder."""
    matches = map(_PART.match, files.names(directory))
    return [(int(m[1]), m[2], m[0]) for m in matches if m]


def listed(directory: str) -> list[str]:
    """Return the prefixes of a folder's checkpoints, newest first.

    The folder's `checkpoint` file lists the checkpoints and names the newest
    one; listed checkpoints of later steps are ignored. If the file is missing
    or lists none, the result contains all checkpoints that have a `.json` file.
    """
    files.require_tensorflow_path("The path of a model directory", directory)
    path = files.join(directory, STATE_FILE)
    content = files.read_bytes(path) if files.is_file(path) else b""
    # The newest checkpoint comes first. Paths may be absolute and may come from
    # a different machine.
    paths = _LISTED.findall(content.decode(errors="replace"))
    if not paths:
        if not files.is_folder(directory):
            return []
        steps = {n for n, kind, _ in _parts(directory) if kind == ".json"}
        return [prefix(directory, step) for step in sorted(steps, reverse=True)]
    newest, *older = (
        files.join(directory, path.rpartition("/")[2]) for path in paths
    )
    earlier = {p for p in older if number(p) < number(newest)}
    return [newest, *sorted(earlier, key=number, reverse=True)]


def latest(
    directory: str, read: Callable[[str], None] = read_all
) -> str | None:
    """Return the newest intact checkpoint's prefix, or None if none is listed.

    A damaged checkpoint is skipped with a warning.

    Args:
      directory: the folder.
      read: a function that reads a checkpoint or raises `Damaged`.

    Raises:
      InputError: if all checkpoints are damaged.
    """
    paths, faults = listed(directory), []
    for path in paths:
        problem = fault(path, read)
        if not problem:
            for line in faults:
                print(f"Warning: {line}; using {path} instead", flush=True)
            return path
        faults.append(f"the checkpoint {path} is damaged: {problem}")
    if faults and paths != listed(directory):  # a run has replaced them
        return latest(directory, read)
    rule = "At least one checkpoint must be intact; to start over, remove all "
    rule += f"checkpoints and the file `{STATE_FILE}`."
    require(not faults, f"{rule} Received: {'; '.join(faults)}")
    return None


def remove(directory: str, step: int, suffix: str = "") -> None:
    """Remove a checkpoint's files, or only files with a given suffix.

    The suffix may be incomplete, such as `_temp`.
    """
    for n, kind, name in _parts(directory):
        if n == step and kind.startswith(suffix):
            path = files.join(directory, name)
            folder = files.is_folder(path)
            (files.remove_folder if folder else files.remove)(path)


def adopt(directory: str, step: int, keep: int) -> None:
    """List a complete checkpoint as the newest; keep at most `keep` of them.

    Checkpoints of later steps are removed too, because a resumed run repeats
    those steps.
    """
    steps = {number(path) for path in listed(directory)} | {step}
    remaining = sorted(n for n in steps if 0 <= n <= step)[-keep:]
    lines = [f'model_checkpoint_path: "{NAME}{step}"\n'] + [
        f'all_model_checkpoint_paths: "{NAME}{n}"\n' for n in remaining
    ]
    files.write_text(files.join(directory, STATE_FILE), "".join(lines))
    for n in {n for n, *_ in _parts(directory)} - set(remaining):
        remove(directory, n)


@contextlib.contextmanager
def naming_last_checkpoint(run) -> Iterator[None]:
    """Add a run's `last_good` checkpoint to errors raised in the block."""
    try:
        yield
    except (InputError, OSError) as error:
        good = f"The last good checkpoint: {run.last_good or 'none yet'}"
        if good in str(error):
            raise
        raise InputError(f"{error}. {good}") from error
