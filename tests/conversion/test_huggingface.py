"""Hugging Face files in all common forms are read and written."""

import dataclasses
import json
import os
import pathlib
import re

import goldens
import numpy as np
import pytest
import released_files
import safetensors.numpy
import tensorflow as tf
import tiny
import tiny_tasks
import vocabularies
from conversions import huggingface, refuse, rewrite
from exporting import finetuned

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.huggingface import (
    LocalCopy,
    as_config,
    config_json,
    extract_encoder,
)
from albert_tf.conversion.named_tensors import Tensors
from albert_tf.conversion.tokenizer_json import character_class
from albert_tf.model.config import ACTIVATIONS, AlbertConfig
from albert_tf.text.normalization import TextConfig
from albert_tf.text.tokenizers import SentencePieceTokenizer
from albert_tf.training import checkpoints


def test_backbone_without_prefix(golden, tmp_path):
    """A round trip keeps weights that are in the form of `AlbertModel`.

    The names have no prefix, and there are no heads.
    """
    folder, tensors = huggingface(tmp_path, golden)
    named = {n.partition("albert.")[2]: v for n, v in tensors.items()}
    bare = {name: value for name, value in named.items() if name}
    rewrite(folder, bare)
    lines = convert(str(folder), str(tmp_path / "dir"), "model_dir")
    assert sum(line.startswith("warning: no ") for line in lines) == 3
    convert(str(tmp_path / "dir"), str(tmp_path / "back"), "huggingface")
    released_files.assert_same(
        safetensors.numpy.load_file(tmp_path / "back/model.safetensors"), bare
    )


def test_tied_copies_must_agree(golden, tmp_path):
    """Copies of tied weights in older files are accepted only if equal."""
    folder, tensors = huggingface(tmp_path, golden)
    words = tensors["albert.embeddings.word_embeddings.weight"]
    copies = {
        "predictions.decoder.weight": words.copy(),
        "predictions.decoder.bias": tensors["predictions.bias"].copy(),
        "albert.embeddings.position_ids": np.arange(64)[None],
    }
    rewrite(folder, tensors | copies)
    convert(str(folder), str(tmp_path / "dir"), "model_dir")
    for name in ("predictions.decoder.weight", "predictions.decoder.bias"):
        changed = copies[name].copy()
        changed[-1] += 1
        rewrite(folder, tensors | copies | {name: changed})
        refuse(tmp_path, folder, f"`{name}` must equal")


def test_other_types_of_numbers_are_named(golden, tmp_path):
    """An error names a tensor whose type NumPy does not support."""
    folder, tensors = huggingface(tmp_path, golden)
    name = "albert.pooler.bias"
    rewrite(folder, tensors | {name: tensors[name].astype(np.int8)})
    path = folder / "model.safetensors"
    content = path.read_bytes().replace(b'"I8"', b'"F8_E5M2"', 1)
    header = int.from_bytes(content[:8], "little") + 5
    path.write_bytes(header.to_bytes(8, "little") + content[8:])
    message = f"`{name}` must be float32, float16 or bfloat16: .*Received"
    refuse(tmp_path, folder, message)


@pytest.mark.parametrize("dtype", ["float64", "int8", "uint8", "bool"])
def test_numbers_that_float32_would_change_are_refused(golden, tmp_path, dtype):
    """A tensor that is not a 16- or 32-bit float raises an error.

    The error names the tensor.
    """
    folder, tensors = huggingface(tmp_path, golden)
    name = "albert.pooler.bias"
    rewrite(folder, tensors | {name: tensors[name].astype(dtype)})
    message = f"`{name}` must be float32, float16 or bfloat16: it is {dtype}."
    refuse(tmp_path, folder, message)


def test_the_encoder_is_found_by_its_table():
    """There must be exactly one word-embedding table, under any prefix."""
    table = "embeddings.word_embeddings.weight"
    shapes = {f"x.{table}": (3, 2), "x.pooler.bias": (2,), "y.pooler": (1,)}
    tensors = Tensors(shapes | {"x.head.bias": (1,)}, lambda name: name)
    found = extract_encoder(tensors, "a file")
    assert found.shapes == {
        f"albert.{table}": (3, 2),
        "albert.pooler.bias": (2,),
    }
    assert found.read("albert.pooler.bias") == "x.pooler.bias"
    for others, names in (
        ({"y": (1,)}, "a file with $"),
        (shapes | {f"y.{table}": (3, 2)}, rf"x.{table}, y.{table}$"),
    ):
        with pytest.raises(InputError, match=f"must have one encoder.*{names}"):
            extract_encoder(Tensors(others, None), "a file")


def test_weights_are_stored_in_half_precision(golden, tmp_path):
    """`half_precision` rounds each weight to float16.

    Reading such weights produces float32 weights with equal values.
    """
    folder, tensors = huggingface(tmp_path, golden)
    out = tmp_path / "half"
    convert(str(folder), str(out), "huggingface", half_precision=True)
    found = safetensors.numpy.load_file(out / "model.safetensors")
    half = {n: v.astype(np.float16) for n, v in tensors.items()}
    assert {v.dtype for v in found.values()} == {np.dtype(np.float16)}
    released_files.assert_same(found, half)
    assert json.loads((out / "config.json").read_text())["dtype"] == "float32"
    convert(str(out), str(tmp_path / "wide"), "huggingface")
    wide = safetensors.numpy.load_file(tmp_path / "wide/model.safetensors")
    equal = {n: v.astype(np.float32) for n, v in half.items()}
    released_files.assert_same(wide, equal)


def test_others_can_read_the_weights(golden, tmp_path):
    """All files in an output folder have the permissions of a new file.

    The weights are marked as PyTorch's, because transformers requires it.
    """
    folder, _ = huggingface(tmp_path, golden)
    out = tmp_path / "out"
    old = os.umask(0o022)
    try:
        convert(str(folder), str(out), "huggingface")
    finally:
        os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in out.iterdir()}
    assert set(modes.values()) == {0o644}, modes
    with safetensors.safe_open(out / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("step", [2049, 100_001])
def test_half_precision_leaves_the_step_alone(pretrained_dir, tmp_path, step):
    """The report states the exact step, even if float16 cannot represent it."""
    model = albert_tf.load(pretrained_dir)
    model.save(tmp_path / "model")
    counter = {"optimizer/iterations": tf.Variable(step, dtype=tf.int64)}
    checkpoints.save(str(tmp_path / "model"), model.named_weights() | counter)
    out = str(tmp_path / "half")
    paths = str(tmp_path / "model"), out
    lines = convert(*paths, "huggingface", half_precision=True)
    assert f"step: {step}" in lines


def test_half_precision_needs_a_format_and_small_weights(golden, tmp_path):
    """`half_precision` raises an error for other formats and for large weights.

    Only the formats of Hugging Face and Sentence Transformers support
    `half_precision`. If weights are too large, nothing is written.
    """
    folder, tensors = huggingface(tmp_path, golden)
    name = next(iter(tensors))
    out = tmp_path / "half"
    for to in "model_dir", "tf1":
        with pytest.raises(InputError, match=f"needs `to=.*Received: to={to}"):
            convert(str(folder), str(out), to, half_precision=True)
    tensors[name] = np.full_like(tensors[name], 65504)
    rewrite(folder, tensors)
    convert(str(folder), str(out), "huggingface", half_precision=True)
    rewrite(folder, tensors | {name: tensors[name] + 100})
    with pytest.raises(InputError, match="at most 65504"):
        convert(str(folder), f"{out}2", "huggingface", half_precision=True)
    assert not (tmp_path / "half2").exists()


def test_a_projection_between_equal_widths(tmp_path):
    """A projection between equal widths must be the identity.

    When it is added to a file, it has the type of the weights.
    """
    folder, tensors = huggingface(tmp_path, goldens.load("g4"))
    name = "albert.encoder.embedding_hidden_mapping_in.weight"
    np.testing.assert_array_equal(tensors[name], np.eye(32))
    out = str(tmp_path / "half")
    convert(str(folder), out, "huggingface", half_precision=True)
    half = safetensors.numpy.load_file(f"{out}/model.safetensors")
    assert name in half and {x.dtype.name for x in half.values()} == {"float16"}
    bias = name.replace("weight", "bias")
    for changed in (name, bias):
        rewrite(folder, tensors | {changed: tensors[changed] + 1})
        refuse(tmp_path, folder, "must be the identity")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "`model_type` must be albert"),
        ({"layer_norm_eps": 1e-5}, "`layer_norm_eps` must be 1e-12"),
        (
            {"hidden_act": "no_such_activation"},
            "`hidden_act` must be one of gelu_new",
        ),
        ({"hidden_act": ["gelu"]}, "`hidden_act` must be one of gelu_new"),
        ({"position_embedding_type": "relative_key"}, "must be absolute"),
        ({"tie_word_embeddings": False}, "must be True"),
        ({"num_attention_heads": 5}, "`num_attention_heads` must divide"),
    ],
)
def test_configs_that_are_not_alberts(changes, message, golden, tmp_path):
    """A `config.json` that does not fit an ALBERT model raises an error."""
    folder, _ = huggingface(tmp_path, golden, **changes)
    refuse(tmp_path, folder, message)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_settings_are_json_objects(name, golden, tmp_path):
    """If a settings file contains a list, the error names the file."""
    folder, _ = huggingface(tmp_path, golden)
    (folder / name).write_text("[1]")
    refuse(tmp_path, folder, f"`{name}` must be a JSON object.*{name}")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_activation_has_its_own_names(name):
    """A converted config has the first of Hugging Face's activation names.

    Each of Hugging Face's names for the activation is read back as ours.
    """
    config = AlbertConfig(hidden_act=name)
    values, names = config_json(config), ACTIVATIONS[name].hub_names
    assert values["hidden_act"] == names[0]
    for theirs in names:
        found, _ = as_config(values | {"hidden_act": theirs}, "config.json")
        assert found == config


def test_absent_keys_have_their_defaults_in_transformers():
    """Optional keys that a `config.json` lacks have transformers' defaults."""
    sizes = {"vocab_size": 30, "embedding_size": 8, "hidden_size": 12}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 16}
    defaults = {"hidden_act": "gelu_new", "hidden_dropout_prob": 0}
    defaults |= {"attention_probs_dropout_prob": 0, "inner_group_num": 1}
    defaults |= {"num_hidden_groups": 1, "max_position_embeddings": 512}
    defaults |= {"type_vocab_size": 2, "initializer_range": 0.02}
    defaults |= {"layer_norm_eps": 1e-12}
    assert as_config(sizes, "x") == as_config(sizes | defaults, "x")


def test_erf_gelu_is_kept_and_said(golden, tmp_path):
    """Hugging Face's "gelu" is converted to `gelu_erf` with a warning."""
    folder, _ = huggingface(tmp_path, golden, hidden_act="gelu")
    lines = convert(str(folder), str(tmp_path / "dir"), "model_dir")
    assert any("erf form" in line for line in lines)
    config = AlbertConfig.from_model_dir(str(tmp_path / "dir"))
    assert config.hidden_act == "gelu_erf"


@pytest.mark.interchange
def test_pickles_are_tensors_or_nothing(golden, tmp_path):
    """Pickled tensors are converted; a pickle with code is rejected."""
    torch = pytest.importorskip("torch")
    folder, tensors = huggingface(tmp_path, golden)
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    state = {n: torch.from_numpy(v) for n, v in tensors.items()}
    half = {n: x.bfloat16() for n, x in state.items()}
    forms = (
        (state, state, True),
        (state, state, False),  # the format of torch until 2020
        ({n: torch.nn.Parameter(x) for n, x in state.items()}, state, True),
        (half, half, True),
    )
    for i, (saved, values, zipped) in enumerate(forms):
        torch.save(saved, path, _use_new_zipfile_serialization=zipped)
        out = tmp_path / f"back{i}"
        convert(str(folder), str(out), "huggingface")
        released_files.assert_same(
            safetensors.numpy.load_file(out / "model.safetensors"),
            {n: x.float().numpy() for n, x in values.items()},
        )
    torch.save(state | {"classifier.weight": torch.zeros(3, 32)}, path)
    refuse(tmp_path, folder, r"unexpected classifier.weight \[3, 32\]")

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save(state | {"x": Evil()}, path)
    refuse(tmp_path, folder, "a complete file that contains only tensors")
    path.write_bytes(path.read_bytes()[:900])
    refuse(tmp_path, folder, "a complete file that contains only tensors")


def test_a_config_says_what_the_released_ones_do():
    """`config.json` has the epsilon and the special ids of albert-base-v2."""
    written = config_json(tiny.CONFIG)
    released = {
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "layer_norm_eps": 1e-12,
        "model_type": "albert",
        "hidden_act": "gelu_new",
        "classifier_dropout_prob": 0.1,
    }
    assert {name: written[name] for name in released} == released


def test_a_config_has_the_ids_of_its_tokenizer(tmp_path):
    """`config.json` has the ids of the tokenizer's special pieces.

    Otherwise, transformers would never train the row of another piece, because
    it takes this row for padding.
    """
    special = "<unk>", "[CLS]", "[MASK]", "<pad>", "[SEP]"
    tokenizer = SentencePieceTokenizer(
        vocabularies.sentencepiece_model(special), TextConfig()
    )
    config = dataclasses.replace(tiny.SHALLOW, vocab_size=tokenizer.vocab_size)
    tiny_tasks.write_model(tmp_path / "model", config, tokenizer)
    convert(str(tmp_path / "model"), str(tmp_path / "hub"), "huggingface")
    values = json.loads((tmp_path / "hub" / "config.json").read_text())
    names = "pad_token_id", "bos_token_id", "eos_token_id"
    assert [values[name] for name in names] == [3, 1, 4]


def test_heads_go_to_the_hub(pretrained_dir, tmp_path):
    """`huggingface` stores a task's head; `sentence_transformers` does not."""
    source = str(tmp_path / "model")
    model = finetuned(source, pretrained_dir, "classification", ("a", "b", "c"))
    message = "needs a model.*embed.*task=classification$"
    refuse(tmp_path, source, message, "sentence_transformers")
    convert(source, str(tmp_path / "out"), "huggingface")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == ["AlbertForSequenceClassification"]
    assert config["id2label"] == {"0": "a", "1": "b", "2": "c"}
    table = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    np.testing.assert_array_equal(
        table["classifier.weight"], model.classifier.kernel.numpy().T
    )
    assert "text-classification" in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize("is_finetuned", [False, True])
def test_the_card_of_a_copied_folder(
    pretrained_dir, tmp_path, monkeypatch, is_finetuned
):
    """A copy's card describes the model, not files in the current folder."""
    source = str(pretrained_dir)
    if is_finetuned:
        source = str(tmp_path / "model")
        finetuned(source, pretrained_dir, "classification", ("a", "b", "c"))
    current = tmp_path / "current"
    current.mkdir()
    for name in ("albert_config.json", "task.json"):
        (current / name).write_text('{"hidden_size": 7, "name": "other"}')
    monkeypatch.chdir(current)
    first, copy = tmp_path / "first", tmp_path / "copy"
    convert(source, str(first), "huggingface")
    convert(str(first), str(copy), "huggingface")
    sentences = [
        re.search(r"An ALBERT model \(.+ pieces\).*", text)[0]
        for text in ((x / "README.md").read_text() for x in (first, copy))
    ]
    assert sentences[0] == sentences[1]
    assert ("(classification)" in sentences[0]) == is_finetuned


def test_a_folder_of_sentence_transformers(pretrained_dir, tmp_path):
    """A Sentence Transformers folder has no heads and describes the pooling."""
    out = tmp_path / "out"
    report = convert(pretrained_dir, str(out), "sentence_transformers")
    assert re.fullmatch(
        r"warning: \d+ tensors of the optimizer or of heads are omitted, "
        "because a sentence_transformers folder cannot store them",
        report[-1],
    )
    table = safetensors.numpy.load_file(out / "model.safetensors")
    assert not [n for n in table if n.startswith(("predictions", "sop"))]
    modules = json.loads((out / "modules.json").read_text())
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    kinds |= {"2_Normalize": "Normalize"}
    assert modules == [
        {
            "idx": i,
            "name": str(i),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, (path, kind) in enumerate(kinds.items())
    ]
    pooling = json.loads((out / "1_Pooling/config.json").read_text())
    config = AlbertConfig.from_model_dir(pretrained_dir)
    assert pooling == {
        "word_embedding_dimension": config.hidden_size,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_cls_token": False,
        "pooling_mode_max_tokens": False,
    }
    length = json.loads((out / "sentence_bert_config.json").read_text())
    assert length == {"max_seq_length": 24}
    text = (out / "config_sentence_transformers.json").read_text()
    assert json.loads(text) == {"similarity_fn_name": "cosine"}
    rules = json.loads((out / "tokenizer.json").read_text("utf-8"))
    assert rules["model"]["vocab"][4][0] == "[MASK]"


def test_characters_as_ranges():
    """A character class consists of sorted ranges of its characters."""
    pattern = character_class("cab\U0001d165")
    assert pattern == r"[\x{61}-\x{63}\x{1d165}-\x{1d165}]"


def test_a_local_copy_lasts_as_long_as_it_is_held(tmp_path):
    """Only remote files are copied; a copy is deleted with its `LocalCopy`."""
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert LocalCopy(str(path)).path == str(path)
    copy = LocalCopy(f"file://{path}")
    copied = pathlib.Path(copy.path)
    assert copied.read_bytes() == b"abc" and copied != path
    del copy
    assert not copied.parent.exists() and path.exists()
