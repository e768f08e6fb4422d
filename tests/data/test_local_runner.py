"""Builds on this machine show their progress."""

import re
from collections import Counter
from types import SimpleNamespace

import pytest

from albert_tf.data.builder import local_runner, shards, text_blocks
from albert_tf.data.builder.build_settings import BuildConfig
from albert_tf.data.builder.shards import ShardStore
from albert_tf.data.builder.text_formats import ReadingConfig

RECIPE = SimpleNamespace(
    build=BuildConfig(input_file="x", output_dir="y"), reading=ReadingConfig()
)


@pytest.fixture
def shown(monkeypatch):
    """Return a list that collects the arguments of calls to progress bars."""
    calls = []

    class Progress:
        def __init__(self, *args):
            self.total = args[0]
            calls.append(args)

        def advance(self, *args):
            calls.append(args)

        def close(self):
            calls.append("closed")

    monkeypatch.setattr(local_runner, "Progress", Progress)
    return calls


def working(result):
    """Return workers that produce the same result for every item."""
    return SimpleNamespace(map=lambda work, items: (result for _ in items))


@pytest.mark.parametrize(
    "size, steps",
    [
        (5 << 19, [(5, 1, "MB"), (2, "700 tokens"), (1, "1,400 tokens")]),
        (0, [(1, 1, "MB"), (2, "700 tokens"), (1, "1,400 tokens")]),
    ],
)
def test_progress_of_reading(tmp_path, monkeypatch, shown, size, steps):
    """Progress of reading is in MB and begins where an earlier run ended."""
    text = {"a": ["one", "two"], "b": ["three"]}
    monkeypatch.setattr(local_runner, "blocks", lambda path, *_: text[path])
    monkeypatch.setattr(text_blocks.files, "size", lambda path: size)
    store = ShardStore(str(tmp_path), 2)
    store.add({}, Counter(blocks=1, bytes=3 << 19))
    workers = working(({1: b"abc"}, Counter(bytes=3 << 19, tokens=700)))
    local_runner.fill(store, ["a", "b"], RECIPE, workers)
    assert shown == [*steps, "closed"]
    again = ShardStore(str(tmp_path), 2)
    assert again.done and again.counts == store.counts
    assert (tmp_path / "shard-00001").read_bytes() == b"abcabc"
    local_runner.fill(again, ["a", "b"], RECIPE, None)  # nothing is left to do


def test_shards_are_written_when_a_buffer_is_full(tmp_path, monkeypatch):
    """Frames are collected until they have `BUFFER_BYTES`, and then written."""
    monkeypatch.setattr(shards, "BUFFER_BYTES", 10)
    store, sizes = ShardStore(str(tmp_path), 2), []
    for _ in range(5):
        store.add({0: b"abc", 1: b"de"}, Counter(blocks=1))
        sizes.append(
            [(tmp_path / f"shard-0000{i}").stat().st_size for i in (0, 1)]
        )
    assert sizes == [[0, 0], [6, 4], [6, 4], [12, 8], [12, 8]]
    again = ShardStore(str(tmp_path), 2)
    assert again.counts == {"blocks": 4} and not again.done


def test_progress_never_exceeds_the_total(tmp_path, monkeypatch, capsys):
    """If compressed text is longer than estimated, the total grows.

    The time left is never negative, and most blocks print no line.
    """
    monkeypatch.setattr(local_runner, "blocks", lambda *_: ["block"] * 90)
    monkeypatch.setattr(text_blocks.files, "size", lambda path: 2 << 20)
    store = ShardStore(str(tmp_path), 2)
    workers = working(({1: b"abc"}, Counter(bytes=1 << 20, tokens=7)))
    local_runner.fill(store, ["a.gz"], RECIPE, workers)
    lines = capsys.readouterr().err.splitlines()
    shown = [re.match(r"(\d+)/(\d+) .* (\d+):\d+ left$", x) for x in lines]
    assert all(int(match[1]) == int(match[2]) for match in shown)
    assert lines[0].startswith("6/6 ") and 5 < len(lines) < 20


def test_progress_of_writing(shown):
    """Each file is a step, shown with the number of records so far."""
    runner = local_runner.LocalRunner(working(Counter(records=1000)))
    assert len(list(runner.make_files(["first job", "second job"]))) == 2
    steps = [(1, "1,000 records"), (1, "2,000 records")]
    assert shown == [(2, 0, "file"), *steps, "closed"]
