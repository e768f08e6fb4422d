"""The released models are known by their bytes."""

import dataclasses
import json
import pathlib

import goldens
import numpy as np
import pytest
import tensorflow as tf
from conversions import release

from albert_tf.conversion import released_models
from albert_tf.conversion.converter import convert
from albert_tf.conversion.named_tensors import Tensors
from albert_tf.conversion.released_models import RELEASES, recognise
from albert_tf.conversion.released_names import (
    ALBERT_ZH,
    GOOGLE,
    places,
    variable_shapes,
)
from albert_tf.model.config import AlbertConfig

TABLES = json.loads((goldens.FOLDER / "tables.json").read_text())


def test_embedding_size_is_taken_from_the_weights(golden, tmp_path):
    """A released config without `embedding_size` loads with a warning."""
    source = release(
        tmp_path / "in", golden.config, golden.weights, embedding_size=None
    )
    lines = convert(source, str(tmp_path / "dir"), "model_dir")
    assert any("no embedding_size" in line for line in lines)
    config = AlbertConfig.from_model_dir(str(tmp_path / "dir"))
    assert config.embedding_size == 16


def tf_checksum(data: bytes, path: pathlib.Path) -> int:
    """Return the masked CRC-32C that TF writes after a record."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(data)
    return int.from_bytes(path.read_bytes()[-4:], "little")


def test_a_release_is_recognised_by_its_checksums(
    golden, tmp_path, monkeypatch
):
    """Known bytes are called by their name, and a foreign config is not."""
    ours = goldens.to_ours(golden.weights, golden.config)
    checksums = tuple(
        tf_checksum(ours[name].tobytes(), tmp_path / "record")
        for name in released_models.CHECKED
    )
    known = released_models.Release(golden.config, checksums)
    monkeypatch.setitem(RELEASES, "albert_g1", known)
    tensors = Tensors({n: v.shape for n, v in ours.items()}, ours.get)
    name, warnings = recognise(tensors, golden.config)
    assert name == "albert_g1, by its checksums" and not warnings
    other = dataclasses.replace(golden.config, hidden_dropout_prob=0.1)
    _, (warning,) = recognise(tensors, other)
    assert "hidden_dropout_prob=0.0 and not 0.1" in warning
    ours["albert/pooler/bias"] = ours["albert/pooler/bias"] + 1
    name, _ = recognise(tensors, golden.config)
    assert name == "the shapes of albert_g1, other or unknown weights"


@pytest.mark.parametrize(
    ("release", "change", "warning"),
    [
        ("albert_xlarge_v2", {"num_attention_heads": 32}, "heads=16 and not"),
        ("albert_large_zh", {"hidden_act": "gelu"}, "hidden_act=relu and not"),
        ("albert_base_v1", {"hidden_act": "gelu_erf"}, "hidden_act=gelu and"),
        ("albert_base_v2", {"num_hidden_layers": 24}, "layers=12 and not 24"),
    ],
)
def test_shapes_that_hide_a_trap(release, change, warning):
    """What no shape shows is warned of: heads, layers and activation."""
    config = RELEASES[release].config
    shapes = variable_shapes(config)
    tensors = Tensors(shapes, lambda name: np.zeros(shapes[name], np.float32))
    assert recognise(tensors, config)[1] == []
    _, (text,) = recognise(tensors, dataclasses.replace(config, **change))
    assert warning in text


def test_other_shapes_are_no_release():
    """An unshared model has the tensors of a shared one, and more."""
    config = AlbertConfig(sharing="none")
    tensors = Tensors(variable_shapes(config), read=None)
    assert recognise(tensors, config) == ("none of the released models", [])


SAME = {
    "albert_base_zh_google": "albert_base_zh",
    "albert_small_zh_google": "albert_small_google_zh",
    "albert_tiny_google_zh": "albert_tiny_google_zh, the copy with E=312",
}


@pytest.mark.parametrize("release", TABLES)
def test_checksums_of_the_releases(release):
    """The package knows the checksums of the real files."""
    known = RELEASES[SAME.get(release, release)]
    table = TABLES[release]["checksums"]
    layout = ALBERT_ZH if "brightmart" in release else GOOGLE
    names = places(known.config, layout)
    found = [table[names[name].name] for name in released_models.CHECKED]
    assert list(known.checksums) == found


@pytest.mark.parametrize("release", RELEASES)
def test_releases_are_the_shipped_configs(release):
    """The table of releases says what configs/models say."""
    path = goldens.FOLDER.parents[2] / "configs" / "models" / f"{release}.json"
    config = RELEASES[release].config
    if "copy" in release:
        assert config.embedding_size == config.hidden_size
    else:
        assert AlbertConfig.from_json_file(str(path)) == config
