"""Configs are read as in the release; errors name the mistake."""

import dataclasses
import json
import pathlib
import shlex

import numpy as np
import pytest
import tensorflow as tf
from reference import albert_numpy

from albert_tf.base.errors import InputError
from albert_tf.model.config import (
    ACTIVATIONS,
    IGNORED_KEYS,
    SHARING,
    AlbertConfig,
)

MODELS = pathlib.Path(__file__).parents[2] / "configs" / "models"
BASE = json.loads((MODELS / "albert_base_v2.json").read_text())
ABLATIONS = sorted((MODELS / "ablations").glob("*.json"))

# https://arxiv.org/abs/1909.11942 Table 1 and the released JSON files, where
# xlarge has 16 heads.
WIDTHS = (
    *("embedding_size", "hidden_size", "num_hidden_layers"),
    *("num_attention_heads", "intermediate_size"),
)
SIZES = {
    "base": (128, 768, 12, 12, 3072),
    "large": (128, 1024, 24, 16, 4096),
    "xlarge": (128, 2048, 24, 16, 8192),
    "xxlarge": (128, 4096, 12, 64, 16384),
}


def read(name: str) -> AlbertConfig:
    return AlbertConfig.from_json_file(str(MODELS / f"{name}.json"))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("version", ["v1", "v2", "zh"])
def test_released_sizes(size, version):
    """Shipped configs have the released sizes, activations and dropout."""
    config = read(f"albert_{size}_{version}")
    chinese = version == "zh"
    assert tuple(getattr(config, name) for name in WIDTHS) == SIZES[size]
    assert config.vocab_size == (21128 if chinese else 30000)
    assert config.hidden_act == ("relu" if chinese else "gelu")
    dropout = 0.1 if version == "v1" and size != "xxlarge" else 0.0
    assert config.hidden_dropout_prob == dropout
    assert config.attention_probs_dropout_prob == dropout


@pytest.mark.parametrize("name", ["gelu_new", "gelu_pytorch_tanh"])
def test_gelu_has_the_names_of_hugging_face(name):
    """Hugging Face's names for the tanh form of GELU are read as `gelu`."""
    values = {**vars(AlbertConfig()), "hidden_act": name}
    assert AlbertConfig.from_dict(values) == AlbertConfig()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_activation_computes_its_formula(name):
    """Each activation agrees with NumPy, without a custom gradient."""
    function = ACTIVATIONS[name].function
    x = np.linspace(-9, 9, 1001)
    graph = tf.function(function, autograph=False)
    wanted = albert_numpy.ACTIVATIONS[name](x)
    np.testing.assert_allclose(graph(tf.constant(x)), wanted, 1e-6, 1e-6)
    concrete = graph.get_concrete_function(tf.TensorSpec([3]))
    for node in concrete.graph.as_graph_def().node:
        assert "_gradient_op_type" not in node.attr


def test_the_activations_of_the_release():
    """The released function `modeling.get_activation` has four activations."""
    released = {name for name, x in ACTIVATIONS.items() if x.is_released}
    assert released == {"linear", "relu", "gelu", "tanh"}


def test_every_shipped_config_is_legal():
    """All files in `configs/models` load, and ablations match their names."""
    paths = sorted(MODELS.rglob("*.json"))
    assert len(paths) > 20
    for path in paths:
        AlbertConfig.from_json_file(str(path))
    for path in ABLATIONS:
        config = AlbertConfig.from_json_file(str(path))
        _, embedding, _, sharing = path.stem.split("_")
        assert embedding == f"e{config.embedding_size}"
        assert sharing == config.sharing


def test_historical_keys_are_ignored():
    """Released keys that do not affect the architecture are ignored."""
    values = {key: 7 for key in IGNORED_KEYS}
    config = AlbertConfig.from_dict({**BASE, **values, "ln_type": "postln"})
    assert config == AlbertConfig()


def test_config_survives_its_file(tmp_path):
    """A saved config is read back without changes."""
    config = dataclasses.replace(
        AlbertConfig(), sharing="ffn", num_hidden_groups=3, hidden_act="relu"
    )
    config.save(str(tmp_path))
    assert AlbertConfig.from_model_dir(str(tmp_path)) == config


@pytest.mark.parametrize(
    "names", [("config.json",), ("albert_config.json", "model.ckpt-best.index")]
)
def test_other_projects_folders_are_told_how_to_come(tmp_path, names):
    """Errors for Hugging Face and released folders name the converter."""
    for name in names:
        (tmp_path / name).write_text(AlbertConfig().to_json())
    command = rf"convert_checkpoint --input={tmp_path} .* --to=model_dir"
    with pytest.raises(InputError, match=command):
        AlbertConfig.from_model_dir(str(tmp_path))


def test_a_folder_of_models_names_its_models(tmp_path):
    """The error for a folder of model directories names these directories.

    The folder of an export is not a model directory.
    """
    for name in ("seed_2", "seed_1", "onnx"):
        (tmp_path / name).mkdir()
        AlbertConfig().save(str(tmp_path / name))
    for name in ("seed_1", "seed_2"):
        (tmp_path / name / "checkpoint").touch()
    models = f"{tmp_path}/seed_1, {tmp_path}/seed_2"
    message = f"one of the models in this folder: {models}. Received"
    with pytest.raises(InputError, match=message):
        AlbertConfig.from_model_dir(str(tmp_path))


def test_the_command_quotes_a_path_with_spaces(tmp_path):
    """A shell can run the command that the error contains."""
    folder = tmp_path / "my model"
    folder.mkdir()
    with pytest.raises(InputError) as error:
        AlbertConfig.from_model_dir(str(folder))
    command = str(error.value).split("`")[1]
    assert f"--input={folder}" in shlex.split(command)


def test_a_folder_that_is_not_there_is_told_so(tmp_path):
    """The error for a missing folder does not suggest conversion."""
    message = f"existing folder. Received: model_dir={tmp_path}/gone$"
    with pytest.raises(InputError, match=message):
        AlbertConfig.from_model_dir(f"{tmp_path}/gone")


def test_a_prefix_is_no_model_directory(tmp_path):
    """The error for a checkpoint's prefix names the converter and the flag."""
    (tmp_path / "model.ckpt-best.index").touch()
    prefix = f"{tmp_path}/model.ckpt-best"
    message = f"--input={prefix} .*Received: init_checkpoint={prefix}$"
    with pytest.raises(InputError, match=message):
        AlbertConfig.from_model_dir(prefix, "init_checkpoint")
    AlbertConfig().save(prefix)
    assert AlbertConfig.from_model_dir(prefix) == AlbertConfig()


def test_pruned_heads_are_written_and_others_not(tmp_path):
    """A config file states the head size only if heads were pruned."""
    AlbertConfig().save(str(tmp_path / "whole"))
    text = (tmp_path / "whole" / "albert_config.json").read_text()
    assert "attention_head_size" not in text
    assert text.startswith('{\n  "vocab_size": 30000,\n')
    values = {**BASE, "num_attention_heads": 5, "attention_head_size": 64}
    config = AlbertConfig.from_dict(values)
    for each, width in ((config, 320), (AlbertConfig(), 768)):
        assert (each.head_size, each.attention_width) == (64, width)
    config.save(str(tmp_path / "pruned"))
    path = tmp_path / "pruned" / "albert_config.json"
    assert json.loads(path.read_text())["attention_head_size"] == 64
    assert AlbertConfig.from_json_file(str(path)) == config
    values = {**BASE, "attention_head_size": None}
    assert AlbertConfig.from_dict(values) == AlbertConfig()


def test_lengths_and_vocabularies_fit_the_tables():
    """Tokens and pieces may not outnumber the rows of the embedding tables."""
    config = AlbertConfig(vocab_size=90, max_position_embeddings=8)
    for tokens in (None, 0, 8):
        config.check_length("x", tokens)
    with pytest.raises(InputError, match="`x` must be at most.*, 8.*x=9"):
        config.check_length("x", 9)
    config.check_pieces(90, "a file")
    with pytest.raises(InputError, match="a file.*pieces=91, vocab_size=90"):
        config.check_pieces(91, "a file")


def test_group_of_a_layer():
    """Of L layers in G groups, layer i uses the blocks of group i * G // L.

    Parts that layers do not share have a block for each layer.
    """
    config = AlbertConfig(num_hidden_layers=5, num_hidden_groups=2)
    assert [config.group(i) for i in range(5)] == [0, 0, 0, 1, 1]
    for sharing in SHARING:
        own = dataclasses.replace(config, sharing=sharing)
        attention, ffn = own.blocks("attention"), own.blocks("ffn")
        shared = sharing in ("all", "attention")
        assert (attention == [0, 0, 0, 1, 1]) == shared
        assert (ffn == [0, 0, 0, 1, 1]) == (sharing in ("all", "ffn"))
        assert attention in ([0, 0, 0, 1, 1], list(range(5)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_atention_heads": 3}, "Unknown key `num_atention_heads`"),
        ({"num_attention_heads": 5}, "`num_attention_heads` must divide"),
        ({"attention_head_size": 0}, "`attention_head_size` must be at least"),
        ({"attention_head_size": "64"}, "must be a whole number"),
        ({"num_hidden_groups": 13}, "`num_hidden_groups` must be at most"),
        (
            {"hidden_act": "no_such_activation"},
            "`hidden_act` must be one of gelu",
        ),
        ({"hidden_size": None}, "`hidden_size` must be given"),
        ({"sharing": "some"}, "`sharing` must be one of all, attention"),
        ({"embedding_norm": "E"}, "`embedding_norm` must be one of"),
        ({"vocab_size": 0}, "`vocab_size` must be at least 8"),
        ({"vocab_size": "30000"}, "`vocab_size` must be a whole number"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` must be at least 1"),
        ({"num_hidden_layers": 10**30}, "`num_hidden_layers` must be at most"),
        ({"inner_group_num": 10**30}, "`inner_group_num` must be at most"),
        ({"num_hidden_layers": True}, "`num_hidden_layers` must be a whole"),
        ({"hidden_dropout_prob": 1.0}, "`hidden_dropout_prob` must be at most"),
        ({"hidden_dropout_prob": -0.1}, "must be at least 0.0"),
        ({"ln_type": "preln"}, "`ln_type` must be postln"),
        # Initializing a new model divides by this value.
        ({"initializer_range": 0.0}, "`initializer_range` must be"),
    ],
)
def test_mistakes_are_named(change, message, tmp_path):
    """Each error begins with the file, and names the key and the rule."""
    path = tmp_path / "albert_config.json"
    path.write_text(json.dumps({**BASE, **change}))
    with pytest.raises(InputError) as caught:
        AlbertConfig.from_json_file(str(path))
    text = str(caught.value)
    assert message in text
    assert text.startswith(f"{path}: ")
    assert next(iter(change)) in text


def test_missing_keys_are_named():
    """The error for a config lists the required keys that are missing."""
    values = {k: v for k, v in BASE.items() if k != "hidden_size"}
    del values["embedding_size"]
    missing = "Missing key `embedding_size`, `hidden_size`. The required keys"
    with pytest.raises(InputError, match=missing):
        AlbertConfig.from_dict(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "must be JSON.*line 1"), ("[1]", "must be a JSON object")],
)
def test_a_file_that_is_no_config(text, message, tmp_path):
    """The error for a broken file states the path and the fault."""
    path = tmp_path / "albert_config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        AlbertConfig.from_json_file(str(path))


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "albert", "hidden_size": 768, "bos_token_id": 2},
        {"architectures": ["AlbertForMaskedLM"], "vocab_size": 30000},
        {"transformers_version": "4.40.0", "model_type": "bert"},
    ],
)
def test_a_hugging_face_config_names_the_converter(values, tmp_path):
    """The error for a Hugging Face config names the file and the remedy."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    with pytest.raises(InputError) as error:
        AlbertConfig.from_json_file(str(path))
    text = str(error.value)
    assert "Hugging Face" in text and "albert_tf.convert_checkpoint" in text
    assert f"Received: albert_config_file={path}, model_type=" in text
