"""Errors name damaged records; to find a record, only its file is read."""

import dataclasses
import re
import threading
from glob import glob
from pathlib import Path

import pytest
import tensorflow as tf
from tiny_records import COUNTS, example, first_file, write, write_records

from albert_tf.base.errors import InputError
from albert_tf.data.masking import DYNAMIC
from albert_tf.data.records import input_pipeline, metadata, tfrecord
from albert_tf.data.records.metadata import EVAL, read_metadata
from albert_tf.data.records.record_checks import check_record


@pytest.fixture
def data_dir(tmp_path):
    """Return a folder of numbered examples."""
    write_records(tmp_path)
    return str(tmp_path)


def rewrite(change):
    """Return a function that changes the third record of a file."""

    def damage(path):
        found = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
        found[2:3] = change(found[2])
        write(path, found)

    return damage


def with_float_mask(record):
    """Convert a record's `input_mask` to floats; return [record]."""
    changed = tf.train.Example.FromString(record)
    feature = changed.features.feature["input_mask"]
    feature.float_list.value.extend(feature.int64_list.value)
    return [changed.SerializeToString()]


def flip(offset):
    """Return a function that inverts one byte in a file's third record."""

    def damage(path):
        content = bytearray(Path(path).read_bytes())
        record = len(content) // COUNTS[Path(path).name.split("-")[0]][0]
        content[2 * record + offset] ^= 255
        Path(path).write_bytes(content)

    return damage


def cut_off(path):
    """Truncate a file inside its third record."""
    size = Path(path).stat().st_size
    record = size // COUNTS[Path(path).name.split("-")[0]][0]
    with open(path, "rb+") as file:
        file.truncate(2 * record + 99)


NO_EXAMPLE = ", record 2: not a tf.train.Example"
FAULTS = {
    "cut off": (cut_off, ", damaged or truncated in record 2"),
    "length": (flip(3), ", damaged or truncated in record 2"),
    "content": (flip(50), ", damaged or truncated in record 2"),
    "fewer": (rewrite(lambda r: []), " ended before its last record"),
    "no example": (rewrite(lambda r: [b"\x99?"]), NO_EXAMPLE),
    "half": (rewrite(lambda r: [r[:99]]), NO_EXAMPLE),
    "key": (
        rewrite(lambda r: [example(1, without=["input_mask"])]),
        ", record 2: `input_mask` has 0 values instead of 8",
    ),
    "illegal id": (
        rewrite(lambda r: [example(128)]),
        ", record 2: `input_ids` contains 128, but values must be from 0 to 12",
    ),
    "type": (
        rewrite(with_float_mask),
        ", record 2: `input_mask` contains float instead of int",
    ),
    "long": (
        rewrite(lambda r: [example(1, tokens=10)]),
        ", record 2: `input_ids` has 10 values instead of 8; ",
    ),
}


def read_all(data_dir, metadata, split):
    """Read all records of a split as a run does."""
    if split == EVAL:
        batches = input_pipeline.eval_batches(data_dir, metadata, batch_size=4)
    else:
        batches = input_pipeline.train_batches(
            data_dir, metadata, batch_size=31, seed=3
        ).take(3)
    for _ in batches:
        pass


def with_sizes(data_dir, metadata):
    """Return metadata that state the current sizes of the files."""
    splits = {
        split: tuple(
            dataclasses.replace(e, bytes=Path(data_dir, e.file).stat().st_size)
            for e in entries
        )
        for split, entries in metadata.splits.items()
    }
    return dataclasses.replace(metadata, splits=splits)


@pytest.fixture
def looked_at(monkeypatch):
    """Return a set that collects the paths that Python code accesses."""
    paths = set()

    def noted(function):
        def call(path, *args, **kwargs):
            if isinstance(path, str):
                paths.add(path)
            return function(path, *args, **kwargs)

        return call

    for name in ("exists", "size", "opened"):
        monkeypatch.setattr(
            input_pipeline.files,
            name,
            noted(getattr(input_pipeline.files, name)),
        )
    monkeypatch.setattr(
        tf.data, "TFRecordDataset", noted(tf.data.TFRecordDataset)
    )
    return paths


@pytest.mark.slow_after(4)
@pytest.mark.parametrize("split", [metadata.TRAIN, metadata.EVAL])
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_named_and_nothing_else_read(
    data_dir, looked_at, fault, split
):
    """The error names the record that stopped a run; no other file is read."""
    damage, message = FAULTS[fault]
    metadata = read_metadata(data_dir)
    path = first_file(data_dir, split)
    damage(path)
    metadata = with_sizes(data_dir, metadata)
    looked_at.clear()
    with pytest.raises(InputError, match=re.escape(path + message)):
        with input_pipeline.errors_explained({data_dir: metadata}):
            read_all(data_dir, metadata, split)
    assert looked_at == {path}


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("split", [metadata.TRAIN, metadata.EVAL])
@pytest.mark.parametrize("inside", ["ffff", "0a01", "0a021205", "0a051209ff"])
def test_a_fault_inside_the_features(data_dir, split, inside):
    """The error names the record even if TensorFlow's message does not.

    The record is an `Example` whose field `features` is damaged.
    """
    content = bytes.fromhex(inside)
    record = bytes([10, len(content)]) + content
    path = first_file(data_dir, split)
    rewrite(lambda r: [record])(path)
    metadata = with_sizes(data_dir, read_metadata(data_dir))
    with pytest.raises(InputError, match=re.escape(f"{path}, record 2")):
        with input_pipeline.errors_explained({data_dir: metadata}):
            read_all(data_dir, metadata, split)


def test_the_folder_with_the_fault_is_named(tmp_path):
    """If a run reads several folders, the error names the damaged one."""
    folders = [str(tmp_path / name) for name in ("first", "second")]
    for folder in folders:
        Path(folder).mkdir()
        write_records(Path(folder))
    path = first_file(folders[0], EVAL)
    rewrite(lambda r: [bytes([10, 2, 255, 255])])(path)
    stored = [with_sizes(folder, read_metadata(folder)) for folder in folders]
    with pytest.raises(InputError, match=re.escape(f"{path}, record 2")):
        run = dict(zip(folders, stored, strict=True))
        with input_pipeline.errors_explained(run):
            read_all(folders[0], stored[0], EVAL)


@pytest.mark.parametrize("split", [metadata.TRAIN, metadata.EVAL])
def test_vanished_file_is_named(data_dir, looked_at, split):
    """An error names a file that vanished while a run was reading it."""
    metadata = read_metadata(data_dir)
    path = first_file(data_dir, split)
    tf.io.gfile.remove(path)
    looked_at.clear()
    with pytest.raises(InputError, match=f"{path} is missing"):
        with input_pipeline.errors_explained({data_dir: metadata}):
            read_all(data_dir, metadata, split)
    assert looked_at == {path}


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.DataLossError,
        tf.errors.FailedPreconditionError,
        tf.errors.InvalidArgumentError,
        tf.errors.NotFoundError,
    ],
)
def test_other_errors_pass_at_once(data_dir, looked_at, error):
    """An error that records did not cause is raised without reading records.

    The records are damaged, so reading them would change the error.
    """
    metadata = read_metadata(data_dir)
    cut_off(first_file(data_dir))
    looked_at.clear()
    compile_failure = error(None, None, "Compilation failure: out of memory")
    with pytest.raises(error) as caught:
        with input_pipeline.errors_explained({data_dir: metadata}):
            raise compile_failure
    assert caught.value is compile_failure
    assert looked_at == set()


def test_a_run_begins_with_a_check(data_dir, monkeypatch):
    """A run first checks all file sizes in parallel, then the first records."""
    metadata = read_metadata(data_dir)
    together, size = threading.Barrier(2, timeout=20), input_pipeline.files.size
    train = [path for path in glob(f"{data_dir}/train-*") if size(path)]

    def waiting_size(path):
        if path in train[:2]:
            together.wait()
        return size(path)

    monkeypatch.setattr(input_pipeline.files, "size", waiting_size)
    input_pipeline.check_files(data_dir, metadata)
    monkeypatch.undo()
    shorter = dataclasses.replace(metadata, max_seq_length=6)
    message = "train-00000.*`input_ids` has 8 values instead of 6"
    with pytest.raises(InputError, match=message):
        input_pipeline.check_files(data_dir, shorter)
    # The first training records have ids up to 15; held-out ids are larger.
    for size, fault in ((15, "train.*contains 15"), (16, "eval.*contains 93")):
        smaller = dataclasses.replace(metadata, vocab_size=size)
        with pytest.raises(
            InputError, match=f"{fault}, but .* from 0 to {size - 1}"
        ):
            input_pipeline.check_files(data_dir, smaller)
    path = first_file(data_dir)
    with open(path, "rb+") as file:
        file.truncate(700)
    with pytest.raises(InputError, match="train-00000.*700 bytes instead"):
        input_pipeline.check_files(data_dir, metadata)
    write(path, [b"\x99 no example"])
    with pytest.raises(InputError, match="record 0: not a tf.train.Example"):
        input_pipeline.check_files(data_dir, with_sizes(data_dir, metadata))
    tf.io.gfile.remove(path)
    with pytest.raises(InputError, match="train-00000.*is missing"):
        input_pipeline.check_files(data_dir, metadata)


def test_the_first_sixteen_records_are_checked(data_dir):
    """At its start, a run checks sixteen records, but not the seventeenth."""
    path = first_file(data_dir)
    metadata = read_metadata(data_dir)
    records = list(map(example, range(30)))
    for number in (16, 15):
        write(path, [*records[:number], b"\x99", *records[number + 1 :]])
        if number == 16:
            input_pipeline.check_files(data_dir, with_sizes(data_dir, metadata))
    with pytest.raises(InputError, match="record 15: not a tf.train"):
        input_pipeline.check_files(data_dir, with_sizes(data_dir, metadata))


@pytest.mark.parametrize(
    "changes, fault",
    [
        ({"segment_lengths": [13, 0], "word_starts": [b"12"]}, "is 6 bytes"),
        ({"segment_lengths": [7, 7]}, "sum to 14 instead of 1 to 13"),
        ({"segment_lengths": [0, 0]}, "sum to 0 instead of 1 to 13"),
        ({"segment_lengths": [3]}, "`segment_lengths` has 1 values instead"),
        ({"word_starts": [b"ab"]}, "`word_starts` is 2 bytes long for 3"),
        ({"segment_lengths": [8, 1], "token_ids": [b"ab" * 9]}, "is 1 bytes"),
        ({"token_ids": []}, "`token_ids` has 0 values instead of 1"),
        ({"token_ids": [], "segment_lengths": [3]}, "of 1; `segment_lengths`"),
        ({"next_sentence_labels": [0, 1]}, "labels` has 2 values instead of 1"),
    ],
)
def test_faults_of_dynamic_records(changes, fault):
    """A fault's description states a feature, its size and the legal size."""
    feature = {
        "token_ids": [b"abcdef"],
        "word_starts": [b"a"],
        "segment_lengths": [1, 2],
        "next_sentence_labels": [0],
    }
    described = metadata.Metadata(16, 1, 1 << 16, "", {})
    check_record(feature, described, DYNAMIC)
    with pytest.raises(ValueError, match=fault):
        check_record(feature | changes, described, DYNAMIC)
    eight = {"segment_lengths": [8, 0], "token_ids": [b"ab" * 8]}
    check_record(feature | eight, described, DYNAMIC)


def test_the_file_with_the_longest_name_is_meant(tmp_path):
    """If an error message matches several file names, the longest is used."""
    entries = [metadata.RecordFile(x, 1, 9) for x in ("a", "a-b", "a-")]
    described = metadata.Metadata(8, 1, 9, "", {"train": tuple(entries)})
    message = f"wrong [in {tmp_path}/a-b, record 3]\nat a node"
    (tmp_path / "a-b").write_bytes(b"123456789")
    with pytest.raises(InputError, match=f"{tmp_path}/a-b, damaged"):
        input_pipeline._explained(message, {str(tmp_path): described})
    tfrecord.write(str(tmp_path / "a-b"), [])
    entry = metadata.RecordFile("a-b", 0, 0)
    described = dataclasses.replace(described, splits={"train": (entry,)})
    error = input_pipeline._explained(message, {str(tmp_path): described})
    assert str(error).endswith(f"Received: {tmp_path}/a-b, record 3")
    assert (
        input_pipeline._explained("of memory", {str(tmp_path): described})
        is None
    )
