"""An interrupted build resumes and writes the same bytes."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from tiny_corpus import (
    command,
    contents,
    interrupted,
    make_records,
    small_blocks,
)

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.data.builder import build, local_runner, text_blocks
from albert_tf.data.builder.build_folder import BuildFolder
from albert_tf.data.records import metadata, tfrecord


@pytest.fixture(scope="module")
def whole_of_blocks(corpus, tmp_path_factory):
    """Return the output folder of an uninterrupted build with small blocks."""
    output = tmp_path_factory.mktemp("whole_of_blocks") / "out"
    with small_blocks():
        make_records(corpus, output)
    return output


def test_small_blocks_have_the_same_text(whole, whole_of_blocks):
    """The numbers of documents and tokens do not depend on block sizes."""
    names = "documents", "sentences", "tokens", "unknown_share"
    found = metadata.load_metadata(str(whole_of_blocks)).statistics
    assert {n: found[n] for n in names} == {
        n: whole[1].statistics[n] for n in names
    }


@pytest.mark.parametrize(
    "module, name, calls",
    [
        (local_runner, "deal_block", 4),
        (files, "write_json", 5),
        (local_runner, "make_file", 0),
        (local_runner, "make_file", 3),
        (build, "write_piece_counts", 0),
        (metadata.Metadata, "write", 0),
        (BuildFolder, "clean", 0),
    ],
)
def test_interrupted_build_goes_on(
    corpus, whole_of_blocks, tmp_path, module, name, calls
):
    """Interrupted at any stage, a build resumes and writes the same bytes."""
    output = tmp_path / "out"
    with small_blocks(), interrupted(module, name, calls):
        make_records(corpus, output)
    complete = name == "clean"
    assert (output / "metadata.json").exists() == complete
    if not complete:
        (output / "train-00000-of-00006.tfrecord.tmp1-0a1b2c3d").write_text(
            "half"
        )
    with small_blocks():
        make_records(corpus, output)
    assert contents(output) == contents(whole_of_blocks)


def test_finished_work_is_not_done_again(corpus, tmp_path, monkeypatch):
    """A build that resumes in its second pass writes only the missing files.

    It does not read the documents again.
    """
    output = tmp_path / "out"
    with interrupted(local_runner, "make_file", 3):
        make_records(corpus, output)
    assert len(list(output.glob("*.tfrecord"))) == 3
    monkeypatch.setattr(local_runner, "deal_block", None)
    made = []
    write = tfrecord.write
    monkeypatch.setattr(
        tfrecord,
        "write",
        lambda path, content: made.append(path) or write(path, content),
    )
    metadata = make_records(corpus, output)
    number = sum(len(entries) for entries in metadata.splits.values())
    assert len(made) == number - 3


@pytest.mark.parametrize("calls", [0, 3])
def test_shards_that_were_cleared_away_are_made_again(
    corpus, whole, tmp_path, calls
):
    """Shards missing from the temporary folder are written again."""
    output, scratch = tmp_path / "out", {"scratch_dir": str(tmp_path / "tmp")}
    with interrupted(local_runner, "make_file", calls):
        make_records(corpus, output, **scratch)
    (lost,) = (tmp_path / "tmp").glob("*/shard-00001")
    lost.unlink()
    make_records(corpus, output, **scratch)
    assert contents(output) == contents(whole[0])


@pytest.mark.parametrize(
    "name, size",
    [
        ("train-00001-of-00006.tfrecord", None),
        ("train-00001-of-00006.tfrecord", 100),
        ("train-00003-of-00006.tfrecord", 0),
        ("vocab.txt", None),
        ("tokenizer.json", None),
        ("piece_counts.json", None),
    ],
)
def test_damaged_files_are_made_again(
    corpus, whole, tmp_path, capsys, name, size
):
    """Repeating a build's command restores missing and truncated files."""
    output = shutil.copytree(whole[0], tmp_path / "out")
    if size is None:
        (output / name).unlink()
    else:
        os.truncate(output / name, size)
    for warns in (True, False):
        make_records(corpus, output)
        assert contents(output) == contents(whole[0])
        printed = capsys.readouterr().out
        assert (f"again, because {output}/{name}" in printed) == warns


def test_two_builds_at_once(corpus, tmp_path, monkeypatch):
    """A build fails and changes nothing if another build uses its folder."""
    output, scratch = tmp_path / "out", {"scratch_dir": str(tmp_path)}
    calls = []

    def run_again(*_):
        calls.append(1)
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(InputError, match="`output_dir` must not be in use"):
            make_records(corpus, output, **scratch)
        with monkeypatch.context() as patch:  # storage without locks
            patch.setattr(files, "locked", remote_is_not_held)
            with pytest.raises(InputError, match="`scratch_dir` must not be"):
                make_records(corpus, output, **scratch)
        assert sorted(tmp_path.rglob("*")) == before

    locked = files.locked

    def remote_is_not_held(folder, name):
        local = name == "scratch_dir"
        return locked(folder, name) if local else contextlib.nullcontext()

    monkeypatch.setattr(build, "write_piece_counts", run_again)
    make_records(corpus, output, **scratch)
    assert calls == [1]


def test_lists_among_the_settings_are_recognized(tmp_path):
    """A build with a tuple among its settings can be repeated."""
    for _ in range(2):
        folder = BuildFolder(str(tmp_path), None, {"a": ("0", "1"), "b": 0.1})
        assert not folder.claim()
    with pytest.raises(InputError, match="a: .* then, .*'2'.* now"):
        BuildFolder(str(tmp_path), None, {"a": ("2",), "b": 0.1}).claim()


def test_builds_that_differ_share_no_scratch(tmp_path, monkeypatch):
    """Only builds into the same folder have the same scratch folder.

    A relative path means different folders in different current folders. A path
    need not be UTF-8.
    """
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    names = "x", "./x", "y\udcff", f"{tmp_path}/x", f"{tmp_path}/a/x"
    folders = [BuildFolder(name, "scratch", {"a": 1}) for name in names]
    first, again, other, absolute, below = (x.scratch for x in folders)
    assert first == again == absolute
    assert len({first, other, below}) == 3
    monkeypatch.chdir("a")
    assert BuildFolder("x", "scratch", {"a": 1}).scratch == below
    assert text_blocks.OUTPUT_NAMES.fullmatch(first.removeprefix("scratch/"))


def test_a_build_elsewhere_leaves_the_scratch_alone(
    corpus, whole, tmp_path, monkeypatch
):
    """Builds into folders of the same name may share a `scratch_dir`."""
    scratch = {"scratch_dir": tmp_path / "scratch"}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    with interrupted(local_runner, "make_file", 3):
        make_records(corpus, "out", **scratch)
    monkeypatch.chdir(tmp_path / "b")
    make_records(corpus, "out", random_seed=7, **scratch)
    monkeypatch.chdir(tmp_path / "a")
    monkeypatch.setattr(local_runner, "deal_block", None)
    make_records(corpus, "out", **scratch)
    assert contents("out") == contents(whole[0])


@pytest.mark.slow
def test_killed_build_goes_on(corpus, tmp_path):
    """Killed at random times and restarted, a build writes the same output."""
    big = tmp_path / "big.txt"
    big.write_text(
        "\n\n".join((corpus / "a.txt").read_text() for _ in "x" * 99)
    )
    flags = (
        f"--vocab_file={corpus}/vocab.txt",
        f"--input_file={big}",
        "--max_seq_length=32",
        "--dupe_factor=8",
        "--num_shards=2",
        "--num_processes=2",
    )
    begin = time.monotonic()
    subprocess.run(command(corpus, tmp_path / "whole", *flags), check=True)
    took = time.monotonic() - begin
    rng = np.random.default_rng(1)
    for _ in range(6):
        process = subprocess.Popen(
            command(corpus, tmp_path / "broken", *flags),
            start_new_session=True,
        )
        time.sleep(took * rng.uniform(0.4, 1.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command(corpus, tmp_path / "broken", *flags), check=True)
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
