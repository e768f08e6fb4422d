"""Finding out what records are in a folder, or behind a glob.

Records of the released code come without a description: their lengths are
those of the first record, and their number is counted.
"""

import os
import posixpath

from albert_tf.base import files
from albert_tf.base.errors import require
from albert_tf.data.records import examples, framing
from albert_tf.data.records.metadata import (
    EVAL,
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
    require(
        record is not None,
        "A file of records must not be empty; remove it.",
        file=path,
    )
    try:
        feature = examples.parse(record)
    except ValueError:
        feature = {}
    require(
        "token_ids" not in feature,
        "Unmasked records (--masking=dynamic) must have their metadata.json "
        "and tokenizer beside them.",
        file=path,
    )
    missing = sorted(static_sizes(Metadata(0, 0, 0, "", {})).keys() - feature)
    require(
        not missing,
        "Records for pretraining must be examples with the features of the "
        "released code.",
        file=f"{path}, record 0 without {', '.join(missing)}",
    )
    return len(feature["input_ids"]), len(feature["masked_lm_positions"])


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
    lengths = _lengths(paths[0])
    splits: dict[str, list[RecordFile]] = {TRAIN: [], EVAL: []}
    for path in paths:
        held_out = posixpath.basename(path).startswith(EVAL)
        count = sum(1 for _ in framing.read(path))
        require(
            not count or _lengths(path) == lengths,
            "Records that are read together must have the same lengths, here "
            "those of {} tokens and {} predictions.".format(*lengths),
            file=path,
        )
        splits[EVAL if held_out else TRAIN].append(
            RecordFile(_name(path, folder), count, files.size(path))
        )
    return Metadata(
        max_seq_length=lengths[0],
        max_predictions_per_seq=lengths[1],
        vocab_size=0,
        tokenizer_fingerprint="",
        splits={split: tuple(entries) for split, entries in splits.items()},
    )


def read_metadata(data_dir: str) -> Metadata:
    """Return what the records of a folder, or behind a glob, are.

    Args:
      data_dir: a folder of the builder's; a folder of released records; or
        a comma-separated list of globs of released records.
    """
    if is_described(data_dir):
        return load_metadata(data_dir)
    if files.exists(files.join(data_dir, "manifest.json")):
        paths = []  # of a build that is not finished
    elif files.is_folder(data_dir):
        folder, paths = data_dir, files.matches(PATTERN, data_dir)
    elif files.exists(data_dir) or any(mark in data_dir for mark in "*?[,"):
        folder, paths = "", files.glob(data_dir, "`data_dir`")
    else:
        paths = []
    require(
        paths,
        "`data_dir` must be a finished folder of create_pretraining_data.py, "
        "with a metadata.json, a folder of released records, *.tfrecord*, or "
        "a glob of such files.",
        data_dir=data_dir,
    )
    return describe(paths, folder)
