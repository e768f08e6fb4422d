"""Errors about unusable text state the problem and its position."""

import dataclasses
import errno
import gzip
import io
import itertools
import json
import os
import shutil
import subprocess

import pytest
from tiny_corpus import (
    change_times,
    command,
    contents,
    make_records,
    records_of,
    small_blocks,
)
from vocabularies import english

import albert_tf
from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.base.remote_files import RemoteError
from albert_tf.data.builder import local_runner, shards
from albert_tf.data.records import tfrecord
from albert_tf.text.tokenizers import TokenizerConfig, build_tokenizer


@pytest.mark.parametrize("fraction", [0.1, 0.0])
@pytest.mark.parametrize(
    ("text", "received"),
    [("\n \n\n", "0 of 0 documents"), ("w1 .\n\n\x01\n", "1 of 2 documents")],
)
def test_no_text(corpus, tmp_path, text, received, fraction):
    """Text that has only blank lines or short documents raises an error."""
    (tmp_path / "x.txt").write_text(text)
    changes = {"min_document_tokens": 9, "eval_fraction": fraction}
    changes["input_file"] = tmp_path / "x.txt"
    with pytest.raises(InputError, match=f"must contain text.*{received}"):
        make_records(corpus, tmp_path / "out", **changes)


def test_text_is_that_of_the_vocabulary(corpus, tmp_path):
    """`do_lower_case` must match the `tokenizer.json` next to the vocabulary.

    A `tokenizer.json` from another library is ignored, but a
    `tokenizer.json` from this package with an unknown setting raises an error.
    """
    vocabulary = TokenizerConfig(vocab_file=f"{corpus}/vocab.txt")
    cased = dataclasses.replace(vocabulary, do_lower_case=False)
    build_tokenizer(cased).save(str(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.json").write_text('{"model": {}}')
    shutil.copy(tmp_path / "vocab.txt", tmp_path / "other")
    for folder, lower in (("", False), ("other", True)):
        path = tmp_path / folder / "vocab.txt"
        changes = {"vocab_file": path, "do_lower_case": lower}
        make_records(corpus, tmp_path / f"{folder} out", **changes)
    changes = {"vocab_file": tmp_path / "vocab.txt"}
    with pytest.raises(InputError, match="do_lower_case=True, but False in"):
        make_records(corpus, tmp_path / " out", **changes)
    unknown = {"type": "wordpiece", "of_a_later_version": 3}
    (tmp_path / "tokenizer.json").write_text(json.dumps(unknown))
    with pytest.raises(InputError, match="of_a_later_version=None, but 3 in"):
        make_records(corpus, tmp_path / " out", **changes)


@pytest.mark.parametrize("fraction", [0.1, 0.0])
def test_too_little_text(corpus, tmp_path, fraction):
    """Documents of one sentence yield no pairs and raise an error.

    The held-out share has no effect on this error.
    """
    (tmp_path / "words.txt").write_text("w1 .\n\nw2 .\n\nw3 w4\n")
    changes = {"input_file": tmp_path / "words.txt", "eval_fraction": fraction}
    message = "two sentences of a document.*max_seq_length=32"
    with pytest.raises(InputError, match=message):
        make_records(corpus, tmp_path / "out", **changes)
    assert not contents(tmp_path / "out")


def test_a_models_folder_keeps_its_files(corpus, tmp_path, monkeypatch):
    """A folder with a different tokenizer is rejected and left unchanged.

    The text is not read.
    """
    english(do_lower_case=False).save(str(tmp_path))
    before = contents(tmp_path)
    monkeypatch.delattr(local_runner.LocalRunner, "corpus_hash")
    with pytest.raises(InputError, match="another tokenizer.*with spiece"):
        make_records(corpus, tmp_path)
    assert contents(tmp_path) == before


def test_mended_text_is_taken(corpus, tmp_path):
    """After an error, a build of the corrected text can use the same folder.

    Each line of the corrected text contains two sentences.
    """
    path, output = tmp_path / "x.txt", tmp_path / "out"
    path.write_bytes(b"w1 w2\xff .\n\nw3 w4 .\n")
    with pytest.raises(InputError, match="line 1, byte 5"):
        make_records(corpus, output, input_file=path)
    assert not contents(output)
    path.write_text("w1 w2 . w3 .\n\nw4 w5 . w6 .\n")
    metadata = make_records(corpus, output, input_file=path)
    assert metadata.count("train") == 2 and metadata.count("eval") == 1


def test_script_reports_a_mistake(corpus, tmp_path):
    """For a wrong flag, the script ends with status 1 and a one-line error."""
    flags = f"--vocab_file={corpus}/vocab.txt", "--max_seq_length=4"
    script = command(corpus, tmp_path / "out", *flags)
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.strip().split("\n")[-1] == (
        "error: `max_seq_length` must be at least 8. Received: max_seq_length=4"
    )
    assert not (tmp_path / "out").exists()


def test_more_predictions_than_tokens(corpus, tmp_path):
    """More predictions than `max_seq_length` raise an error."""
    with pytest.raises(InputError, match="at most `max_seq_length`, 32"):
        make_records(corpus, tmp_path / "out", max_predictions_per_seq=33)


# The time is fixed, so that the test's name does not change.
CUT = gzip.compress(b"w1 w2 .\n" * 999, mtime=0)[:-9]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("folder", None, "must name files. Received a folder"),
        ("no*thing", None, "must match at least one file"),
        ("empty.txt", b"", "must name files that are not empty"),
        ("cut.gz", CUT, "damaged .gz file"),
        ("other.gz", b"w1 \xff\xf0 w2 .\n", "damaged .gz file"),
        ("x.jsonl", b'{"text": "w1"}\n{"a": 1}\n', "x.jsonl, line 2$"),
    ],
)
def test_files_that_cannot_be_read(corpus, tmp_path, name, content, message):
    """The error states what is wrong with a file, and no record is kept."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    kind = "jsonl" if name.endswith("jsonl") else "lines"
    output = tmp_path / "out"
    changes = {"input_file": tmp_path / name, "input_format": kind}
    with pytest.raises(InputError, match=message):
        make_records(corpus, output, **changes)
    assert not output.exists() or not contents(output)


def test_control_characters(corpus, tmp_path):
    """Control characters are removed; lines that become empty are counted."""
    clean = "w1 w2 .\nw3 w4 .\n\nw5 w6 .\n"
    dirty = "w1\x00 w2\x07 .\nw3\x1b w4 .\x7f\n\x01\x02\n\nw5 w6\u200b .\n"
    found = []
    for name, text in (("clean", clean), ("dirty", dirty)):
        (tmp_path / name).write_text(text * 20)
        changes = {"input_file": tmp_path / name, "eval_fraction": 0.0}
        metadata = make_records(corpus, tmp_path / f"{name}_out", **changes)
        found.append(metadata.statistics)
    assert found[0]["tokens"] == found[1]["tokens"]
    assert found[0]["documents"] == found[1]["documents"]
    assert found[1]["sentences_without_tokens"] == 20
    assert found[0]["sentences_without_tokens"] == 0


def full(*args, **kwargs):
    """Raise the error of a write to a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_remote(*args, **kwargs):
    """Raise TensorFlow's error for a full remote disk."""
    raise RemoteError("No space left")


@pytest.mark.parametrize(
    "module, name, failure",
    [
        (shards.ShardStore, "flush", full),
        (tfrecord, "write", full),
        (tfrecord, "write", full_remote),
        (files, "write_json", full),
        (files, "write_json", full_remote),
    ],
)
def test_full_disk(corpus, whole, tmp_path, module, name, failure):
    """The error for a full disk advises repeating the command.

    The repeated command completes the build.
    """
    output = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, failure)
        with pytest.raises(OSError, match="No space left.*run the same comm"):
            make_records(corpus, output)
        assert not list(output.glob("*.tfrecord"))
        assert not (output / "metadata.json").exists()
    make_records(corpus, output)
    assert contents(output) == contents(whole[0])


def test_a_lost_connection_costs_no_work(corpus, whole, tmp_path, monkeypatch):
    """If remote storage fails, the finished files stay as they are.

    The repeated command writes only the other files.
    """
    output, writes, write = tmp_path / "out", itertools.count(), tfrecord.write

    def write_three(*args):
        return write(*args) if next(writes) < 3 else full_remote()

    with monkeypatch.context() as patch:
        patch.setattr(tfrecord, "write", write_three)
        with pytest.raises(OSError, match="run the same command"):
            make_records(corpus, output)
    finished = change_times(output.glob("*.tfrecord"))
    assert len(finished) == 3
    make_records(corpus, output)
    assert change_times(finished) == finished
    assert contents(output) == contents(whole[0])


@pytest.fixture
def bad_in_the_middle(corpus, tmp_path):
    """Return the path of a JSON lines file in which line 21 has no text."""
    texts = (corpus / "a.txt").read_text().split("\n\n")
    lines = [json.dumps({"text": text}) for text in texts]
    path = tmp_path / "x"
    path.write_text("\n".join([*lines[:20], '{"text": null}', *lines[20:]]))
    return str(path)


@pytest.mark.parametrize("processes", [1, 2])
def test_one_bad_row_costs_no_work(
    corpus, tmp_path, monkeypatch, capsys, bad_in_the_middle, processes
):
    """After an error for a bad row, a run that skips the row resumes the build.

    The run reuses the earlier shards and writes the files of an uninterrupted
    build. A warning names the row.
    """
    changes = {"input_file": bad_in_the_middle, "num_processes": processes}
    skip = changes | {"on_bad_text": "skip"}
    with small_blocks():
        make_records(corpus, tmp_path / "whole", **skip)
        printed = capsys.readouterr().out
        assert "1 row was without readable text" in printed
        assert "x, line 21\n" in printed
        with pytest.raises(InputError, match="on_bad_text=skip.*x, line 21$"):
            make_records(corpus, tmp_path / "out", **changes)
        dealt = []
        fill = shards.ShardStore.add
        monkeypatch.setattr(
            shards.ShardStore,
            "add",
            lambda self, *args: dealt.append(1) or fill(self, *args),
        )
        metadata = make_records(corpus, tmp_path / "out", **skip)
    assert metadata.statistics["bad_rows"] == 1
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert len(dealt) < 15


def test_other_text_after_a_bad_row(corpus, whole, tmp_path, bad_in_the_middle):
    """A build of different text removes the shards that a failed build left.

    The scratch folder is then empty.
    """
    changes = {"input_file": bad_in_the_middle}
    scratch = {"scratch_dir": tmp_path / "scratch"}
    for more in ({}, scratch):
        output = tmp_path / f"out{len(more)}"
        with small_blocks(), pytest.raises(InputError, match="line 21$"):
            make_records(corpus, output, **changes, **more)
        make_records(corpus, output, **more)
        assert contents(output) == contents(whole[0])
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input(corpus, tmp_path, monkeypatch, pack):
    """Text from standard input yields the same records as text from a file."""
    text = (corpus / "a.txt").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(pack(text))))
    shared = {
        "vocab_file": corpus / "vocab.txt",
        "max_seq_length": 32,
        "num_processes": 1,
    }
    create = albert_tf.create_pretraining_data
    create(input_file="-", output_dir=tmp_path / "pipe", **shared)
    create(input_file=corpus / "a.txt", output_dir=tmp_path / "file", **shared)
    found, expected = map(records_of, (tmp_path / "pipe", tmp_path / "file"))
    assert found == expected


@pytest.mark.parametrize("output, scratch", [("", None), ("out", "scratch")])
def test_a_glob_that_matches_the_output(corpus, tmp_path, output, scratch):
    """If a glob also matches the output, only the text is read."""
    shutil.copy(corpus / "a.txt", tmp_path)
    changes = {"input_file": tmp_path / "**"}
    if scratch:
        changes["scratch_dir"] = tmp_path / scratch
    output = tmp_path / output
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecord, "write", full)
        with pytest.raises(OSError, match="run the same command again"):
            make_records(corpus, output, **changes)
    first = make_records(corpus, output, **changes)
    assert make_records(corpus, output, **changes) == first


def test_text_beside_a_sentencepiece_model(corpus, tmp_path):
    """A repeated build does not read its own files, such as compiled rules."""
    shutil.copy(corpus / "a.txt", tmp_path)
    english().save(str(tmp_path))
    changes = {"spm_model_file": tmp_path / "spiece.model", "vocab_file": None}
    changes["input_file"] = tmp_path / "*"
    first = make_records(corpus, tmp_path, **changes)
    assert make_records(corpus, tmp_path, **changes) == first


def test_one_document(corpus, tmp_path):
    """A single document is divided; if it is too short, an error is raised."""
    text = (corpus / "a.txt").read_text().replace("\n\n", "\n")
    (tmp_path / "x.txt").write_text(text)
    changes = {"input_file": tmp_path / "x.txt", "eval_fraction": 0.1}
    made = make_records(corpus, tmp_path / "out", **changes)
    share = made.statistics["eval"]["held_out_share"]
    assert share == pytest.approx(0.1, rel=1 / 3)
    assert made.count("train") and made.count("eval")
    (tmp_path / "x.txt").write_text("w1 w2 .\nw3 w4 .\n\nw5\n")
    message = "two different documents.*enough.*, 1 documents of 3 sentences"
    with pytest.raises(InputError, match=message):
        make_records(
            corpus, tmp_path / "short", min_document_tokens=2, **changes
        )
    assert not contents(tmp_path / "short")
    changes["eval_fraction"] = 0.0
    made = make_records(corpus, tmp_path / "all", **changes)
    assert made.count("eval") == 0 < made.count("train")


@pytest.mark.parametrize(
    "name, content, received",
    [
        ("x.csv", "id,text\n1,2,3\n", "Received: 3 columns"),
        ("x.jsonl", '{"text": "w1"}\n{"text": 5}\n', "text=5 in .*line 2"),
        ("y.jsonl", '{"text": "w1"}\n{"text": null}\n', "text=null in"),
    ],
)
def test_advice_is_given_once(corpus, tmp_path, name, content, received):
    """The error for a bad row states the wrong value, and its advice once."""
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=received) as caught:
        make_records(corpus, tmp_path / "out", input_file=tmp_path / name)
    assert str(caught.value).count("fix it, or pass --on_bad_text=skip") == 1
