"""Records of the released code, which have no `metadata.json`, are read."""

import pytest
from tiny_records import SLOTS, TOKENS, example, write, write_records

from albert_tf.base.errors import InputError
from albert_tf.data.records import input_pipeline, metadata
from albert_tf.data.records.metadata import is_described, read_metadata


@pytest.fixture
def folder(tmp_path):
    """Return a folder with two released training files and a held-out one.

    Only the name of the held-out file begins with `eval`.
    """
    folder = tmp_path / "evaluated"
    folder.mkdir()
    write(folder / "part-0.tfrecord", map(example, range(20)))
    write(folder / "part-1-eval.tf_record-001", map(example, range(20, 33)))
    write(folder / "eval.tfrecord", map(example, range(33, 38)))
    return folder


def epoch(data_dir, count):
    """Return the sorted indices of one epoch of training examples."""
    metadata = read_metadata(str(data_dir))
    input_pipeline.check_files(str(data_dir), metadata)
    batches = input_pipeline.train_batches(
        str(data_dir), metadata, batch_size=1, seed=0
    )
    return sorted(int(b["input_ids"][0, 0]) for b in batches.take(count))


def test_folder_of_released_records(folder):
    """The first record determines the lengths; all records are counted."""
    metadata = read_metadata(str(folder))
    assert metadata.max_seq_length == TOKENS
    assert metadata.max_predictions_per_seq == SLOTS
    assert metadata.vocab_size == 0 and not metadata.tokenizer_fingerprint
    assert (metadata.count("train"), metadata.count("eval")) == (33, 5)
    assert not is_described(str(folder))
    assert epoch(folder, 33) == list(range(33))
    batch = next(
        iter(input_pipeline.eval_batches(str(folder), metadata, batch_size=5))
    )
    assert batch["input_ids"][:, 0].numpy().tolist() == list(range(33, 38))


def test_paths_of_files(folder, monkeypatch):
    """Paths are relative to the folder `data_dir`, but absolute for a glob.

    `data_dir` may end with a slash, or name a single file.
    """
    path = f"{folder}/part-0.tfrecord"
    monkeypatch.chdir(folder)
    for data_dir, number, name in (
        (f"{folder}/", 33, "part-0.tfrecord"),
        (f"{folder}/part-*", 33, path),
        ("part-[01]*", 33, path),
        ("part-?.tfrecord", 20, path),
        ("part-[0-1].tfrecord", 20, path),
        (path, 20, path),
    ):
        found = metadata.read_metadata(data_dir)
        assert found.count("train") == number
        assert found.splits["train"][0] == metadata.RecordFile(
            name, 20, (folder / "part-0.tfrecord").stat().st_size
        )


@pytest.mark.parametrize(
    ("path", "folder", "name"),
    [
        ("gs://b/d/x", "gs://b/d", "x"),
        ("gs://b/d/x", "gs://b/d/", "x"),
        ("gs://b/d/x", "", "gs://b/d/x"),
        ("/d/x", "", "/d/x"),
    ],
)
def test_names_of_files_in_remote_storage(path, folder, name):
    """The path of a file can be restored from the name of its entry."""
    assert metadata._name(path, folder) == name
    entry = metadata.RecordFile(name, 1, 16)
    assert metadata.entry_path(folder or "elsewhere", entry) == path


def test_names_of_unfinished_files(folder):
    """Only unfinished files are skipped, regardless of the folder's name."""
    folder = folder.rename(folder.parent / "x.tmp1")
    (folder / "part-0.tfrecord.tmp41-0a1b2c3d").write_text("half")
    for data_dir in (folder, f"{folder}/part-*"):
        assert metadata.read_metadata(str(data_dir)).count("train") == 33


@pytest.mark.slow
def test_globs_of_released_records(folder, monkeypatch):
    """`data_dir` may be globs or a file, with absolute or relative paths."""
    assert epoch(f"{folder}/part-*", 33) == list(range(33))
    assert epoch(f"{folder}/part-0*,{folder}/part-1*", 33) == list(range(33))
    monkeypatch.chdir(folder)
    assert epoch("part-0.tfrecord", 20) == list(range(20))
    metadata = read_metadata("part-*")
    with pytest.raises(InputError, match="must contain eval records"):
        input_pipeline.eval_batches("part-*", metadata, batch_size=2)


def test_files_of_several_lengths(folder):
    """If a file's lengths differ from those of other files, an error names it.

    A file without records has no length.
    """
    write(folder / "part-2.tfrecord", [])
    assert metadata.read_metadata(str(folder)).count("train") == 33
    write(folder / "part-3.tfrecord", [example(0, slots=SLOTS + 1)])
    message = f"same lengths, .* {TOKENS} tokens and {SLOTS} pred.*part-3"
    with pytest.raises(InputError, match=message):
        metadata.read_metadata(str(folder))


@pytest.mark.parametrize("end", ["", "/", "/*", "/train-*"])
def test_several_folders_need_shares(tmp_path, end):
    """The error for a list of built folders explains how to use several."""
    for name in "ab":
        (tmp_path / name).mkdir()
        write_records(tmp_path / name)
    paths = ",".join(f"{tmp_path}/{name}{end}" for name in "ab")
    with pytest.raises(InputError, match="FOLDER:SHARE,FOLDER, such as a:0.5"):
        metadata.read_metadata(paths)


def test_several_globs_of_one_folder(tmp_path):
    """Globs of files in one built folder need no shares."""
    write_records(tmp_path)
    globs = f"{tmp_path}/train-00000*,{tmp_path}/train-00003*"
    assert metadata.read_metadata(globs).count("train") == 30 + 40


def test_nothing_there(tmp_path):
    """Missing or empty folders and globs without matches raise errors."""
    for data_dir in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="create_pretraining_data.py"):
            metadata.read_metadata(str(data_dir))
    with pytest.raises(InputError, match="match at least one file"):
        metadata.read_metadata(f"{tmp_path}/*.tfrecord")


def test_unfinished_build_is_no_released_data(folder):
    """Records beside the manifest of an unfinished build raise an error."""
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="must be a folder finished"):
        metadata.read_metadata(str(folder))


@pytest.mark.parametrize(
    "content, message",
    [
        (b"no record at all", "uncompressed TFRecord"),
        (b"", "must not be empty"),
    ],
)
def test_files_that_are_no_records(tmp_path, content, message):
    """The error names a file that is empty or not a record file."""
    (tmp_path / "a.tfrecord").write_bytes(content)
    with pytest.raises(InputError, match=f"{message}|a.tfrecord.*{message}"):
        metadata.read_metadata(str(tmp_path))


def test_features_that_are_missing(tmp_path):
    """The error for records of a different kind names the missing features."""
    lacking = ("masked_lm_ids", "next_sentence_labels")
    write(tmp_path / "a.tfrecord", [example(0, without=lacking)])
    with pytest.raises(
        InputError, match="without masked_lm_ids, next_sentence_labels"
    ):
        metadata.read_metadata(str(tmp_path))
    write(tmp_path / "a.tfrecord", [b"\x99 no example"])
    with pytest.raises(InputError, match="a.tfrecord, record 0 without"):
        metadata.read_metadata(str(tmp_path))
