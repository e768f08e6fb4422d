"""Builds with and without Apache Beam write the same records."""

import builtins
import importlib
import sys
from pathlib import Path

import pytest
import tiny_beam
from tiny_corpus import (
    Interrupted,
    change_times,
    contents,
    make_records,
    write_corpus,
)

from albert_tf.base.errors import InputError
from albert_tf.data.builder import build, build_folder, text_blocks
from albert_tf.data.builder.build_settings import BuildConfig

BEAM = "--runner=DirectRunner"


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Return a folder with a vocabulary and two texts of several blocks."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(build_folder, "PIECE_BYTES", 3000)
    write_corpus(tmp_path)
    return tmp_path


def run(corpus, name, **changes):
    """Build into a folder; return {name: bytes} of its files."""
    make_records(corpus, corpus / name, **changes)
    return contents(corpus / name)


def files_in(folder):
    """Return the paths of all files in a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.interchange
@pytest.mark.parametrize(
    "changes, number", [({}, 8), ({"input_format": "files"}, None)]
)
def test_beam_writes_the_same_bytes(corpus, changes, number):
    """A Beam pipeline writes the same files as a single process.

    One of the builds divides a document to hold out part of the document.
    """
    pytest.importorskip("apache_beam")
    here = run(corpus, "here", **changes)
    beam = run(corpus, "beam", pipeline_options=BEAM, **changes)
    records = sum(name.endswith(".tfrecord") for name in here)
    assert number in (records, None)
    assert beam == here


@pytest.fixture
def readers(monkeypatch):
    """Return {"launcher": names, "workers": names}: the names of files read.

    The sets of names grow during a build. Files that are read while no pipeline
    runs are attributed to the launcher.
    """
    beam = pytest.importorskip("apache_beam")
    names = {"launcher": set(), "workers": set()}
    running = []
    leave, opened = beam.Pipeline.__exit__, builtins.open

    def run_pipeline(pipeline, *error):
        running.append(pipeline)
        try:
            return leave(pipeline, *error)
        finally:
            running.pop()

    def noted(path, mode="r", *args, **kwargs):
        if "r" in mode and isinstance(path, str | Path):
            names["workers" if running else "launcher"].add(Path(path).name)
        return opened(path, mode, *args, **kwargs)

    monkeypatch.setattr(beam.Pipeline, "__exit__", run_pipeline)
    monkeypatch.setattr(builtins, "open", noted)
    return names


@pytest.mark.interchange
def test_launcher_reads_no_text(corpus, readers):
    """Only workers read text and shards, whose size grows with the corpus."""
    run(corpus, "beam", pipeline_options=BEAM)
    grows = {"a.txt", "b.txt", *(f"shard-{i:05d}" for i in range(3))}
    assert grows <= readers["workers"]
    assert not grows & readers["launcher"]
    assert "metadata.json" in readers["launcher"]


@pytest.mark.interchange
def test_beam_goes_on(corpus, monkeypatch):
    """A build that failed in its second pass reuses the work of both passes.

    The build resumes only with unchanged text. For changed text, an error is
    raised and no work is lost.
    """
    beam = pytest.importorskip("albert_tf.data.builder.beam_runner")
    here = run(corpus, "here")

    def interrupted(runner, jobs):
        list(whole(runner, jobs[:4]))
        raise Interrupted

    whole = beam.BeamRunner.make_files
    monkeypatch.setattr(beam.BeamRunner, "make_files", interrupted)
    with pytest.raises(Interrupted):
        run(corpus, "beam", pipeline_options=BEAM)
    monkeypatch.setattr(beam.BeamRunner, "make_files", whole)
    finished = change_times(files_in(corpus / "beam"))
    words = (corpus / "b.txt").read_text()
    (corpus / "b.txt").write_text(words.replace("w7", "w8", 1))
    with pytest.raises(InputError, match=r"different settings.*\(corpus: "):
        run(corpus, "beam", pipeline_options=BEAM)
    assert files_in(corpus / "beam") == list(finished)
    (corpus / "b.txt").write_text(words)
    monkeypatch.setattr(beam, "deal_block", None)  # runs in the first pass
    assert run(corpus, "beam", pipeline_options=BEAM) == here
    made = [path for path in finished if path.suffix == ".tfrecord"]
    assert change_times(made).items() <= finished.items()
    assert len(made) == 4


@pytest.mark.parametrize("layout", ["lines", "files"])
def test_workers_may_finish_in_any_order(corpus, monkeypatch, layout):
    """The files are the same even if elements arrive in reverse order.

    With one document per file, one document is divided. The launcher does not
    check the text.
    """
    tiny_beam.install(monkeypatch)
    here = run(corpus, "here", input_format=layout)
    monkeypatch.setattr(build, "check_files", None)
    options = f"{BEAM} --name='a b'"
    changes = {"pipeline_options": options, "input_format": layout}
    assert run(corpus, "beam", **changes) == here
    assert tiny_beam.Pipeline.options == [BEAM, "--name=a b"]


def test_a_pass_that_is_complete_is_not_repeated(corpus, monkeypatch):
    """If the second pass fails, the first pass is not run again."""
    tiny_beam.install(monkeypatch)
    here = run(corpus, "here")
    module = importlib.import_module("albert_tf.data.builder.beam_runner")
    with monkeypatch.context() as patch:
        patch.setattr(module, "make_file", None)
        with pytest.raises(TypeError):
            run(corpus, "beam", pipeline_options=BEAM)
    monkeypatch.setattr(module, "deal_block", None)
    assert run(corpus, "beam", pipeline_options=BEAM) == here


def test_runner_without_beam(corpus, monkeypatch):
    """Without Beam, pipeline options raise an error that names the package."""
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(
        sys.modules, "albert_tf.data.builder.beam_runner", raising=False
    )
    with pytest.raises(InputError, match=r"albert-tf\[beam\]"):
        run(corpus, "beam", pipeline_options=BEAM)


def test_settings_that_contradict():
    """Pipeline options must name a runner; remote scratch folders need options.

    A remote output folder needs either options or a local scratch folder.
    """
    paths = {"input_file": "a.txt", "output_dir": "out"}
    with pytest.raises(InputError, match="must name a --runner"):
        BuildConfig(**paths, pipeline_options="--project=p")
    with pytest.raises(InputError, match="must name a local folder"):
        BuildConfig(**paths, scratch_dir="gs://bucket/scratch")
    remote = paths | {"output_dir": "gs://bucket/out"}
    with pytest.raises(InputError, match="must name a local folder"):
        BuildConfig(**remote)
    BuildConfig(**remote, scratch_dir="scratch")
    BuildConfig(**paths, scratch_dir="gs://bucket/s", pipeline_options=BEAM)
