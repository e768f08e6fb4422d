"""Builds as Apache Beam pipelines: the same records as without Beam."""

import sys

import numpy as np
import pytest

from albert_tf.errors import InputError
from albert_tf.masking import MaskingConfig
from albert_tf.pretraining_data import build, text
from albert_tf.pretraining_data.pairs import PairsConfig
from albert_tf.pretraining_data.plan import BuildConfig
from albert_tf.tokenization import TokenizerConfig


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A folder with a vocabulary and two texts of several blocks."""
    monkeypatch.setattr(text, "BLOCK_BYTES", 2000)
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(50)] + ["."]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join(special + words) + "\n")
    for name in ("a.txt", "b.txt"):
        lines = [" ".join(rng.choice(words, 8)) for _ in range(300)]
        lines[::12] = [""] * len(lines[::12])
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return tmp_path


def run(corpus, name, **changes):
    """Build into a folder; return the bytes of its files, by name."""
    output = corpus / name
    build.run(
        BuildConfig(
            input_file=f"{corpus}/?.txt",
            output_dir=str(output),
            dupe_factor=2,
            eval_fraction=0.1,
            num_shards=3,
            num_processes=1,
            **changes,
        ),
        TokenizerConfig(vocab_file=f"{corpus}/vocab.txt"),
        PairsConfig(max_seq_length=32),
        MaskingConfig(),
    )
    return {path.name: path.read_bytes() for path in output.iterdir()}


def test_beam_writes_the_same_bytes(corpus):
    """A pipeline of whole shards gives the files that one process gives."""
    pytest.importorskip("apache_beam")
    here = run(corpus, "here")
    beam = run(corpus, "beam", runner="DirectRunner")
    assert sum(name.endswith(".tfrecord") for name in here) == 9
    assert beam == here


def test_beam_goes_on(corpus, monkeypatch):
    """A build that failed in its second pass keeps what was finished."""
    beam = pytest.importorskip("albert_tf.pretraining_data.beam")
    here = run(corpus, "here")

    class Interrupted(Exception):
        """Stands for a lost pipeline."""

    def interrupted(jobs, runner, options):
        whole(jobs[:4], runner, options)
        raise Interrupted

    whole = beam.make_files
    monkeypatch.setattr(beam, "make_files", interrupted)
    with pytest.raises(Interrupted):
        run(corpus, "beam", runner="DirectRunner")
    finished = corpus / "beam" / "train-00000-of-00006.tfrecord"
    written = finished.stat().st_mtime_ns
    monkeypatch.setattr(beam, "make_files", whole)
    assert run(corpus, "beam", runner="DirectRunner") == here
    assert finished.stat().st_mtime_ns == written


def test_runner_without_beam(corpus, monkeypatch):
    """Without the extra, `runner` is refused with what to install."""
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(
        sys.modules, "albert_tf.pretraining_data.beam", raising=False
    )
    with pytest.raises(InputError, match=r"albert-tf\[beam\]"):
        run(corpus, "beam", runner="DirectRunner")


def test_settings_that_contradict():
    """Options without a runner, and a remote folder without one, are wrong."""
    paths = {"input_file": "a.txt", "output_dir": "out"}
    with pytest.raises(InputError, match="must come with a `runner`"):
        BuildConfig(**paths, pipeline_options="--project=p")
    with pytest.raises(InputError, match="must name a local folder"):
        BuildConfig(**paths, scratch_dir="gs://bucket/scratch")
    BuildConfig(**paths, scratch_dir="gs://bucket/s", runner="DirectRunner")
