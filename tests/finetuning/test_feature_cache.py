"""Features from a cache are the same features."""

import dataclasses
import os

import numpy as np
import pytest
import tiny_tasks

from albert_tf.finetuning.feature_cache import (
    cached_features,
    content_hash,
    from_arrays,
    to_arrays,
)
from albert_tf.tasks.features import Features
from albert_tf.tasks.registry import TASKS
from albert_tf.tasks.tables import Columns


@pytest.fixture
def source(tmp_path):
    return tiny_tasks.write_opinions(tmp_path / "t.tsv", 40, 1)


def task():
    found = TASKS["classification"]
    return dataclasses.replace(found, columns=Columns(), labels=("bad", "good"))


def same(one, two):
    one, two = to_arrays(one), to_arrays(two)
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name])
        assert value.dtype == two[name].dtype


class Counting:
    """Converts with a task, and counts how often."""

    def __init__(self, monkeypatch):
        self.number = 0
        whole = type(task()).features

        def features(own, examples, tokenizer):
            self.number += 1
            return whole(own, examples, tokenizer)

        monkeypatch.setattr(type(task()), "features", features)


def test_a_table_keeps_all_that_features_have():
    """Notes, arrays of tokens, choices: everything comes back as it was."""
    features = Features(
        tokens=np.arange(9, dtype=np.int32),
        row_splits=np.array([0, 2, 5, 7, 9]),
        second_starts=np.array([1, 1, 2, 2], np.int32),
        arrays={"labels": np.array([0, 1])},
        pad_id=3,
        max_seq_length=12,
        token_arrays={"tags": np.arange(9, dtype=np.int32)},
        fills={"tags": -1e30},
        notes={"words": np.array(["a", "bcd"])},
        rows_per_example=2,
    )
    found = from_arrays(to_arrays(features))
    same(found, features)
    assert (found.pad_id, len(found)) == (3, 2)
    assert found.fills == {"tags": -1e30}


def test_what_makes_a_new_entry(words, source, tmp_path, monkeypatch):
    """Other content, length, labels or pieces are other features."""
    folder = str(tmp_path / "cache")
    examples = task().read("train", source)
    counting = Counting(monkeypatch)

    def convert_(task_=None, tokenizer=words, path=source, part="train"):
        task_ = task_ or task()
        cached_features(task_, examples, tokenizer, folder, part, path)
        return counting.number

    assert convert_() == 1
    longer = dataclasses.replace(task().config, max_seq_length=20)
    assert convert_(dataclasses.replace(task(), config=longer)) == 2
    assert convert_(dataclasses.replace(task(), labels=("good", "bad"))) == 3
    other = tiny_tasks.write_opinions(tmp_path / "u.tsv", 40, 2)
    assert convert_(path=other) == 4
    config_ = dataclasses.replace(words.config, do_lower_case=False)
    cased = type(words)(words.content, config_)
    assert convert_(tokenizer=cased) == 5
    assert convert_(part="eval") == 6
    assert convert_() == 6


@pytest.mark.parametrize("fault", ["cut", "altered", "empty", "text"])
def test_a_damaged_entry_is_made_anew(
    words, source, tmp_path, monkeypatch, fault, capsys
):
    """It is noticed, said and written over."""
    folder = str(tmp_path / "cache")
    examples = task().read("train", source)
    arguments = (task(), examples, words, folder, "train", source)
    first = cached_features(*arguments)
    (name,) = os.listdir(tmp_path / "cache")
    path = tmp_path / "cache" / name
    content = bytearray(path.read_bytes())
    if fault == "cut":
        content = content[:-30]
    elif fault == "altered":
        content[200] ^= 255  # inside the first array
    else:
        content = b"" if fault == "empty" else b"hello"
    path.write_bytes(content)
    counting = Counting(monkeypatch)
    same(cached_features(*arguments), first)
    assert "damaged" in capsys.readouterr().out
    same(cached_features(*arguments), first)
    assert counting.number == 1


def test_a_folder_has_a_hash_of_names_and_content(tmp_path):
    """Renaming a file or changing a byte changes it."""
    folder = tmp_path / "data"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "a").write_text("1")
    first = content_hash(str(folder))
    (folder / "in" / "a").write_text("2")
    second = content_hash(str(folder))
    (folder / "in" / "a").rename(folder / "in" / "b")
    assert len({first, second, content_hash(str(folder))}) == 3
