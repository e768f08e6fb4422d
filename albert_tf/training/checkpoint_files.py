"""Which checkpoints lie in a folder, and whether their files are whole.

A checkpoint `ckpt-STEP` is an index, data files and a manifest `ckpt-STEP.json`
with the size and the checksum of each. The manifest is written after them, and
the folder's `checkpoint` file, which names the checkpoints, last of all: a kill
at any moment leaves the earlier ones as they were.
"""

import os
import re
import zlib

import tensorflow as tf

from albert_tf.base import files
from albert_tf.base.errors import InputError

NAME = "ckpt-"
STATE_FILE = "checkpoint"
_CHUNK = 1 << 22
# What belongs to a checkpoint; `_temp` is a folder of an unfinished write.
_PART = re.compile(rf"{NAME}(\d+)(\.index|\.data-\d+-of-\d+|\.json|_temp/?)$")


def prefix(directory: str, step: int) -> str:
    """Return the path of a checkpoint without `.index`."""
    return files.join(directory, f"{NAME}{step}")


def manifest_path(prefix: str) -> str:
    """Return the path of a checkpoint's manifest."""
    return f"{prefix}.json"


def number(prefix: str) -> int:
    """Return the step in a checkpoint's name, -1 if it has none."""
    found = re.search(rf"{NAME}(\d+)$", prefix)
    return int(found[1]) if found else -1


def checksum(path: str) -> int:
    """Return the CRC-32 of a file."""
    value = 0
    with files.opened(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def _tensor_files(prefix: str) -> list[str]:
    directory, name = os.path.split(prefix)
    found = files.names(directory or ".")
    starts = (f"{name}.index", f"{name}.data-")
    return sorted(file for file in found if file.startswith(starts))


def write_manifest(prefix: str, about: dict) -> None:
    """Write what the files of a finished checkpoint are like.

    Args:
      prefix: the checkpoint's path without `.index`.
      about: facts of the run to keep beside it.
    """
    directory = os.path.dirname(prefix)
    entries = {}
    for name in _tensor_files(prefix):
        path = files.join(directory, name)
        size = files.size(path)
        entries[name] = {"bytes": size, "crc32": checksum(path)}
    files.write_json(manifest_path(prefix), {"about": about, "files": entries})


def about(prefix: str) -> dict:
    """Return the facts of the run that a manifest keeps; {} without one."""
    path = manifest_path(prefix)
    if not files.exists(path):
        return {}
    return files.read_json(path, "The manifest")["about"]


def _missing_part(prefix: str) -> str:
    """Return what a checkpoint without a manifest lacks, or nothing."""
    found = _tensor_files(prefix)
    if f"{os.path.basename(prefix)}.index" not in found:
        return "it has no index"
    shards = [re.search(r"data-(\d+)-of-(\d+)$", name) for name in found]
    shards = [match for match in shards if match]
    whole = shards and len(shards) == int(shards[0][2])
    return "" if whole else "a data file is missing"


def fault(prefix: str) -> str:
    """Return what is wrong with a checkpoint's files, "" if nothing is."""
    path = manifest_path(prefix)
    if not files.exists(path):
        return _missing_part(prefix)
    try:
        entries = files.read_json(path, "The manifest")["files"]
        for name, entry in entries.items():
            part = files.join(os.path.dirname(prefix), name)
            if not files.exists(part):
                return f"{name} is missing"
            size = files.size(part)
            if size != entry["bytes"]:
                return f"{name} has {size} bytes instead of {entry['bytes']}"
            if checksum(part) != entry["crc32"]:
                return f"{name} has another checksum than when it was written"
    except (InputError, KeyError, TypeError, AttributeError):
        return f"{os.path.basename(path)} is damaged"
    return ""


def listed(directory: str) -> list[str]:
    """Return the prefixes that a folder names, the one to resume first.

    Without a readable `checkpoint` file these are all that have a manifest.
    """
    try:
        state = tf.train.get_checkpoint_state(directory)
    except ValueError:  # the file is empty
        state = None
    if state is None:
        if not files.is_folder(directory):
            return []
        matches = map(_PART.match, files.names(directory))
        steps = {int(m[1]) for m in matches if m and m[2] == ".json"}
        return [prefix(directory, step) for step in sorted(steps, reverse=True)]
    newest, *others = (
        files.join(directory, os.path.basename(path))
        for path in (
            state.model_checkpoint_path,
            *state.all_model_checkpoint_paths,
        )
    )
    earlier = {p for p in others if number(p) < number(newest)}
    return [newest, *sorted(earlier, key=number, reverse=True)]


def latest(directory: str) -> str | None:
    """Return the newest whole checkpoint; None if the folder has none.

    A damaged one is skipped with a warning.

    Raises:
      InputError: there are checkpoints, and none is whole.
    """
    faults = []
    for path in listed(directory):
        wrong = fault(path)
        if not wrong:
            for line in faults:
                print(f"Warning: {line}; taking {path} instead", flush=True)
            return path
        faults.append(f"the checkpoint {path} is damaged: {wrong}")
    if faults:
        raise InputError(
            "One checkpoint must be whole; remove them all, with the file "
            f"`{STATE_FILE}`, to begin anew. Received: {'; '.join(faults)}"
        )
    return None


def remove(directory: str, step: int) -> None:
    """Remove whatever there is of one checkpoint."""
    for name in files.names(directory):
        match = _PART.match(name)
        if match and int(match[1]) == step:
            path = files.join(directory, name)
            if files.is_folder(path):
                files.remove_folder(path)
            else:
                files.remove(path)


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
    matches = map(_PART.match, files.names(directory))
    for n in {int(match[1]) for match in matches if match} - set(kept):
        remove(directory, n)
