"""Finding out what records are in a folder, or behind a glob.

Records of the released code come without a description: their lengths are
those of the first record, and their number is counted.
"""

import os
import posixpath

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.data.records import examples, framing
from albert_tf.data.records.metadata import (
    EVAL,
    INPUT_IDS,
    MASKED_LM_POSITIONS,
    TOKEN_IDS,
    TRAIN,
    Metadata,
    RecordFile,
    is_described,
    load_metadata,
    static_sizes,
)

# What files of records are called, in a folder without metadata.json.
PATTERN = "*.tfrecord*"


def _lengths(path: str) -> tuple[int, int]:
    """Return T and P of the first record of a file without metadata."""
    record = next(framing.read(path), None)
    if record is None:
        raise InputError(
            f"A file of records must not be empty; remove it. Received: {path}"
        )
    try:
        found = examples.parse(record)
    except ValueError:
        found = {}
    if TOKEN_IDS in found:
        raise InputError(
            "Unmasked records (--masking=dynamic) must have their "
            f"metadata.json and tokenizer beside them. Received: {path}"
        )
    sizes = {name: len(found[name]) for name in found}
    missing = sorted(static_sizes(Metadata(0, 0, 0, "", {})).keys() - sizes)
    if missing:
        raise InputError(
            "Records for pretraining must be examples with the features of "
            "the released code. Received: "
            f"{path}, record 0 without {', '.join(missing)}"
        )
    return sizes[INPUT_IDS], sizes[MASKED_LM_POSITIONS]


def _count(path: str) -> int:
    """Return the number of records of a file; reads it whole."""
    return sum(1 for _ in framing.read(path))


def _name(path: str, folder: str) -> str:
    """Return a path relative to a folder, or absolute without a folder."""
    if folder:
        return path.removeprefix(folder.rstrip("/") + "/")
    return path if files.is_remote(path) else os.path.abspath(path)


def describe(paths: list[str], folder: str) -> Metadata:
    """Return what `metadata.json` would say of files of released records.

    Files whose names begin with `eval` are held out. The vocabulary is not
    known.
    """
    print(f"Counting the records of {len(paths)} files without metadata.json")
    tokens, predictions = _lengths(paths[0])
    splits: dict[str, list[RecordFile]] = {TRAIN: [], EVAL: []}
    for path in paths:
        held_out = posixpath.basename(path).startswith(EVAL)
        size = files.size(path)
        splits[EVAL if held_out else TRAIN].append(
            RecordFile(_name(path, folder), _count(path), size)
        )
    return Metadata(
        max_seq_length=tokens,
        max_predictions_per_seq=predictions,
        vocab_size=0,
        tokenizer_fingerprint="",
        splits={split: tuple(entries) for split, entries in splits.items()},
    )


def _refuse(data_dir: str) -> None:
    raise InputError(
        "`data_dir` must be a finished folder of create_pretraining_data.py, "
        "with a metadata.json, a folder of released records, *.tfrecord*, or "
        f"a glob of such files. Received: data_dir={data_dir}"
    )


def read_metadata(data_dir: str) -> Metadata:
    """Return what the records of a folder, or behind a glob, are.

    Args:
      data_dir: a folder of the builder's; a folder of released records; or
        a comma-separated list of globs of released records.
    """
    if is_described(data_dir):
        return load_metadata(data_dir)
    if not files.is_folder(data_dir):
        if not any(mark in data_dir for mark in "*?[,"):
            if not files.exists(data_dir):
                _refuse(data_dir)
        return describe(files.glob(data_dir, "`data_dir`"), "")
    names = files.matches(files.join(data_dir, PATTERN))
    paths = [name for name in names if ".tmp" not in name]
    if not paths or files.exists(files.join(data_dir, "manifest.json")):
        _refuse(data_dir)
    return describe(paths, data_dir)
