"""The builder as a whole: what it writes, resumption, refusals."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import records
from albert_tf.errors import InputError
from albert_tf.masking import MaskingConfig
from albert_tf.pretraining_data import build, shards, text
from albert_tf.pretraining_data.pairs import PairsConfig
from albert_tf.pretraining_data.plan import BuildConfig, Builder
from albert_tf.tokenization import TokenizerConfig, tokenizer_from_files

ROOT = Path(__file__).parent.parent
PAIRS = PairsConfig(max_seq_length=32)
MASKING = MaskingConfig()
TOKENIZER_FILES = {"vocab.txt", "tokenizer.json"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder with a vocabulary and two text files of random words."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(300)] + ["##x", "##y", "."]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join(special + words) + "\n")

    def sentence():
        count = rng.integers(2, 12)
        endings = rng.choice(["", "", "x", "xy"], count)
        chosen = rng.integers(0, 300, count)
        return (
            " ".join(f"w{w}{e}" for w, e in zip(chosen, endings, strict=True))
            + " ."
        )

    for name, count in (("a.txt", 25), ("b.txt", 15)):
        documents = [
            "\n".join(sentence() for _ in range(rng.integers(1, 20)))
            for _ in range(count)
        ]
        (folder / name).write_text("\n\n".join(documents) + "\n")
    return folder


def settings(corpus, output, **changes):
    """Return the arguments of `build.run`; changes go to any of them."""
    configs = (
        BuildConfig(
            input_file=f"{corpus}/a.txt,{corpus}/b.txt",
            output_dir=str(output),
            dupe_factor=2,
            eval_fraction=0.1,
            num_shards=3,
            num_processes=1,
        ),
        TokenizerConfig(vocab_file=f"{corpus}/vocab.txt"),
        PAIRS,
        MASKING,
    )
    return [
        dataclasses.replace(
            config,
            **{k: v for k, v in changes.items() if hasattr(config, k)},
        )
        for config in configs
    ]


def contents(folder):
    """Return the bytes of every file of a folder, by name."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def unmasked(path):
    """Return A + B in the order of the text, for every record of a file."""
    found = []
    for data in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        feature = tf.train.Example.FromString(data).features.feature
        ids, mask, segments, positions, labels, swapped = (
            np.array(feature[name].int64_list.value)
            for name in (
                "input_ids",
                "input_mask",
                "segment_ids",
                "masked_lm_positions",
                "masked_lm_ids",
                "next_sentence_labels",
            )
        )
        real = np.array(feature["masked_lm_weights"].float_list.value) > 0
        ids[positions[real]] = labels[real]
        a = ids[(mask == 1) & (segments == 0)][1:-1].tolist()
        b = ids[(mask == 1) & (segments == 1)][:-1].tolist()
        found.append(tuple(b + a if swapped[0] else a + b))
    return found


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """The output of an unbroken build in one process."""
    output = tmp_path_factory.mktemp("whole") / "out"
    metadata = build.run(*settings(corpus, output))
    return output, metadata


def documents_of(corpus):
    """Return the ids of every document, read naively."""
    tokenizer = tokenizer_from_files(vocab_file=f"{corpus}/vocab.txt")
    texts = "".join(
        (corpus / name).read_text() + "\n" for name in ("a.txt", "b.txt")
    )
    return [
        tuple(
            i for line in document.split("\n") for i in tokenizer.encode(line)
        )
        for document in texts.strip().split("\n\n")
    ]


def contains(document, chunk):
    """Return whether a chunk of ids is a part of a document's ids."""
    return (
        f" {' '.join(map(str, chunk))} " in f" {' '.join(map(str, document))} "
    )


def test_every_token_once_per_duplicate(corpus, whole):
    """Records tile whole documents: train ones twice, held-out ones once."""
    output, metadata = whole
    documents = documents_of(corpus)
    dealt = {}
    for split, times in (("train", 2), ("eval", 1)):
        chunks = []
        for entry in metadata.splits[split]:
            chunks += unmasked(output / entry.file)
        assert len(chunks) == metadata.count(split) > 0
        dealt[split] = {
            d for d in documents if any(contains(d, c) for c in chunks)
        }
        assert all(any(contains(d, c) for d in documents) for c in chunks)
        total = sum(map(len, dealt[split]))
        assert sum(map(len, chunks)) == times * total
    assert dealt["train"] | dealt["eval"] == set(documents)
    assert not dealt["train"] & dealt["eval"]
    share = sum(map(len, dealt["eval"])) / sum(map(len, documents))
    assert 0.1 <= share < 0.2


def test_files_and_metadata(whole):
    """Names, tokenizer, metadata and statistics are as documented."""
    output, metadata = whole
    assert metadata == records.read_metadata(str(output))
    names = {entry.file for e in metadata.splits.values() for entry in e}
    assert "train-00000-of-00006.tfrecord" in names
    assert set(contents(output)) == names | TOKENIZER_FILES | {"metadata.json"}
    records.check(str(output), metadata)
    assert metadata.max_predictions_per_seq == 5
    statistics = metadata.statistics
    assert statistics["documents"] == 40
    assert statistics["records"] == metadata.count("train")
    assert statistics["unknown_share"] == 0
    assert abs(statistics["swapped_share"] - 0.5) < 0.15
    assert statistics["masked_share"] == pytest.approx(0.15, abs=0.02)


def test_duplicates_differ(whole):
    """The duplicates of a shard have other masks, and mostly other pairs."""
    output, metadata = whole
    first, second = (
        (output / f"train-{i:05d}-of-00006.tfrecord").read_bytes()
        for i in (0, 3)
    )
    assert first != second


def test_processes_change_nothing(corpus, whole, tmp_path, monkeypatch):
    """Two processes write the same bytes as one."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    build.run(*settings(corpus, tmp_path / "out", num_processes=2))
    assert contents(tmp_path / "out") == contents(whole[0])


def test_seed_changes_records(corpus, whole, tmp_path):
    """Another seed gives other records of the same text."""
    build.run(*settings(corpus, tmp_path / "out", random_seed=7))
    assert contents(tmp_path / "out") != contents(whole[0])


@contextlib.contextmanager
def small_blocks():
    """Cut the text into many blocks, and write the shards often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", 500)
        patch.setattr(shards, "BUFFER_BYTES", 2000)
        yield patch


@pytest.fixture(scope="module")
def whole_of_blocks(corpus, tmp_path_factory):
    """The output of an unbroken build with small blocks."""
    output = tmp_path_factory.mktemp("whole_of_blocks") / "out"
    with small_blocks():
        build.run(*settings(corpus, output))
    return output


class Interrupted(Exception):
    """Stands for a kill."""


def interrupt(monkeypatch, module, name, calls):
    """Let a function of a module fail after some calls."""
    function, made = getattr(module, name), []

    def failing(*args):
        if len(made) == calls:
            raise Interrupted
        made.append(1)
        return function(*args)

    monkeypatch.setattr(module, name, failing)


@pytest.mark.parametrize(
    "module, name, calls",
    [
        (shards, "deal_block", 4),
        (shards.files, "write_json", 5),
        (build, "make_file", 0),
        (build, "make_file", 3),
        (records.Metadata, "write", 0),
        (Builder, "clean", 0),
    ],
)
def test_interrupted_build_goes_on(
    corpus, whole_of_blocks, tmp_path, module, name, calls
):
    """After an interruption at any stage the same bytes are written."""
    output = tmp_path / "out"
    with small_blocks() as patch:
        interrupt(patch, module, name, calls)
        with pytest.raises(Interrupted):
            build.run(*settings(corpus, output))
        complete = name == "clean"
        assert (output / "metadata.json").exists() == complete
    if not complete:
        (output / "train-00000-of-00006.tfrecord.tmp1").write_text("half")
    with small_blocks():
        build.run(*settings(corpus, output))
    assert contents(output) == contents(whole_of_blocks)


def test_finished_work_is_not_done_again(corpus, tmp_path, monkeypatch):
    """A resumed build reads no text again and makes only missing files."""
    output = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, build, "make_file", 3)
        with pytest.raises(Interrupted):
            build.run(*settings(corpus, output))
    assert len(list(output.glob("*.tfrecord"))) == 3
    interrupt(monkeypatch, shards, "deal_block", 0)
    made = []
    make_file = build.make_file
    monkeypatch.setattr(
        build, "make_file", lambda job: made.append(job.path) or make_file(job)
    )
    metadata = build.run(*settings(corpus, output))
    files = sum(len(entries) for entries in metadata.splits.values())
    assert len(made) == files - 3


def test_complete_build_is_left_alone(corpus, whole, tmp_path):
    """Running again after the end makes nothing."""
    output = whole[0]
    before = {p: p.stat().st_mtime_ns for p in output.iterdir()}
    metadata = build.run(*settings(corpus, output, num_processes=2))
    assert metadata == whole[1]
    assert before == {p: p.stat().st_mtime_ns for p in output.iterdir()}


@pytest.mark.parametrize(
    "changes",
    [{"max_seq_length": 16}, {"ngram": 2}, {"random_seed": 1}],
)
def test_other_settings_are_refused(corpus, whole, changes):
    """A folder made with other flags is refused, and the flag is named."""
    (name,) = changes
    with pytest.raises(InputError, match=f"other settings.*{name}"):
        build.run(*settings(corpus, whole[0], **changes))


def test_other_text_and_records_are_refused(corpus, whole, tmp_path):
    """Another corpus, and a folder with foreign records, are refused."""
    with pytest.raises(InputError, match="other settings.*corpus"):
        changes = {"input_file": f"{corpus}/a.txt"}
        build.run(*settings(corpus, whole[0], **changes))
    (tmp_path / "train-00000-of-00001.tfrecord").write_text("mine")
    with pytest.raises(InputError, match="must not hold other records"):
        build.run(*settings(corpus, tmp_path))


def test_one_document(corpus, tmp_path):
    """A corpus without a blank line is an error that says what to do."""
    path = tmp_path / "one.txt"
    path.write_text("w1 w2 w3 .\nw4 w5 w6 .\nw1 w2 .\n" * 20)
    one = {"input_file": str(path)}
    with pytest.raises(InputError, match="blank line.*--eval_fraction=0"):
        build.run(*settings(corpus, tmp_path / "out", **one))
    assert set(contents(tmp_path / "out")) == TOKENIZER_FILES
    metadata = build.run(
        *settings(corpus, tmp_path / "all", eval_fraction=0.0, **one)
    )
    assert metadata.count("eval") == 0 < metadata.count("train")


def test_no_text(corpus, tmp_path):
    """Files with blank lines only are an error."""
    (tmp_path / "blank.txt").write_text("\n \n\n")
    changes = {"input_file": str(tmp_path / "blank.txt")}
    with pytest.raises(InputError, match="must hold text"):
        build.run(*settings(corpus, tmp_path / "out", **changes))


def test_too_little_text(corpus, tmp_path):
    """Documents of one word give no pair, and that is an error."""
    (tmp_path / "words.txt").write_text("w1\n\nw2\n\nw3\n")
    changes = {"input_file": str(tmp_path / "words.txt")}
    with pytest.raises(InputError, match="at least two words"):
        build.run(*settings(corpus, tmp_path / "out", **changes))
    assert set(contents(tmp_path / "out")) == TOKENIZER_FILES


def test_mended_text_is_taken(corpus, tmp_path):
    """After an error in the text, the mended text builds in the same folder."""
    path = tmp_path / "x.txt"
    changes = {"input_file": str(path)}
    path.write_bytes(b"w1 w2\xff .\n\nw3 w4 .\n")
    with pytest.raises(InputError, match="line 1, byte 5"):
        build.run(*settings(corpus, tmp_path / "out", **changes))
    assert set(contents(tmp_path / "out")) == TOKENIZER_FILES
    path.write_text("w1 w2 .\n\nw3 w4 .\n")
    metadata = build.run(*settings(corpus, tmp_path / "out", **changes))
    assert metadata.count("train") == 2 and metadata.count("eval") == 1


def command(corpus, output, *flags):
    """Return the command line of the script."""
    return [
        sys.executable,
        str(ROOT / "create_pretraining_data.py"),
        f"--input_file={corpus}/*.txt",
        f"--output_dir={output}",
        *flags,
    ]


def test_script_reports_a_mistake(corpus, tmp_path):
    """A user's mistake is one line on stderr and exit status 1."""
    flags = (f"--vocab_file={corpus}/vocab.txt", "--max_seq_length=4")
    done = subprocess.run(
        command(corpus, tmp_path / "out", *flags),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.strip().split("\n")[-1] == (
        "error: `max_seq_length` must be at least 8. Received: max_seq_length=4"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_killed_build_goes_on(corpus, tmp_path):
    """Killed at random moments and run again, the script ends the same."""
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
