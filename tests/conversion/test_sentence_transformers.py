"""Sentence-transformers folders are read and written with their pooling."""

import json

import numpy as np
import pytest
import safetensors.numpy
import vocabularies
from conversions import edit, huggingface, refuse, rewrite, update
from exporting import model_dir

from albert_tf.base.errors import InputError
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.huggingface import write_tokenizer
from albert_tf.conversion.huggingface_heads import Modules, read_modules
from albert_tf.conversion.sources import open_source
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.registry import find, load_task
from albert_tf.text.packing import INPUTS
from albert_tf.training import checkpoints


def sentence_folder(tmp_path, golden, **changes):
    """Return a sentence-transformers folder with the encoder in a subfolder."""
    folder, _ = huggingface(tmp_path, golden, architectures=["AlbertModel"])
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    heads = ("predictions.", "sop_classifier.")
    rewrite(
        folder, {n: x for n, x in tensors.items() if not n.startswith(heads)}
    )
    home = tmp_path / "st"
    (home / "1_Pooling").mkdir(parents=True)
    folder.rename(home / "0_Transformer")
    kinds = changes.get("kinds", ["Transformer", "Pooling", "Normalize"])
    rows = [
        {"path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (home / "modules.json").write_text(json.dumps(rows))
    pooling = changes.get("pooling", {"pooling_mode_mean_tokens": True})
    (home / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    path = home / "0_Transformer" / "sentence_bert_config.json"
    path.write_text(json.dumps({"max_seq_length": 24, "do_lower_case": False}))
    return home


@pytest.mark.parametrize(
    ("pooling", "name"),
    [
        ({"pooling_mode_mean_tokens": True}, "mean"),
        (
            {
                "pooling_mode_cls_token": "true",
                "pooling_mode_mean_tokens": "false",
            },
            "cls",
        ),
        ({"pooling_mode": "max", "embedding_dimension": 32}, "max"),
    ],
)
@pytest.mark.slow_after(4)
@pytest.mark.parametrize("unit", [True, False])
def test_sentence_transformers_come_in(unit, pooling, name, golden, tmp_path):
    """Vectors are pooled and normalized as the folder's modules specify."""
    kinds = ["Transformer", "Pooling", "Normalize"][: 2 + unit]
    home = sentence_folder(tmp_path, golden, pooling=pooling, kinds=kinds)
    out = str(tmp_path / "out")
    convert(str(home), out, "model_dir")
    task = load_task(out)
    assert task.config.max_seq_length == 24
    model = task.build_model(AlbertConfig.from_model_dir(out), "float32")
    checkpoints.restore_weights(model, out)
    inputs = [golden.inputs[name] for name in INPUTS]
    tokens = model.albert(*inputs)["sequence_output"].numpy()
    for vector, row, mask in zip(
        model(*inputs).numpy(), tokens, inputs[1], strict=True
    ):
        real = row[mask > 0]
        wanted = {"mean": real.mean(0), "cls": row[0], "max": real.max(0)}[name]
        wanted = wanted / np.linalg.norm(wanted) if unit else wanted
        np.testing.assert_allclose(vector, wanted, atol=1e-5)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("pooling", "unit"), [("cls", False), ("max", True), ("mean", False)]
)
def test_sentence_transformers_go_back(pooling, unit, pretrained_dir, tmp_path):
    """A round trip keeps the pooling, the normalization and the length."""
    source, ours, back = (tmp_path / name for name in ("there", "ours", "back"))
    convert(pretrained_dir, str(source), "sentence_transformers")
    modes = {"pooling_mode": pooling}
    (source / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    if not unit:
        edit(source / "modules.json", lambda rows: rows[:2])
    edit(source / "sentence_bert_config.json", lambda x: {"max_seq_length": 19})
    convert(str(source), str(ours), "model_dir")
    convert(str(ours), str(back), "sentence_transformers")
    assert (back / "2_Normalize").exists() == unit
    found = read_modules(str(back))
    assert (found.pooling, found.unit_length) == (pooling, unit)
    assert found.length == 19


def test_our_own_description_comes_first(pretrained_dir, tmp_path):
    """A folder that we wrote has settings that its modules cannot express."""
    task = find("embedding").updated(max_seq_length=11, temperature=0.5)
    model_dir(tmp_path / "ours", pretrained_dir, task)
    ours, there, back = (str(tmp_path / x) for x in ("ours", "there", "back"))
    convert(ours, there, "sentence_transformers")
    assert read_modules(there).task(24) != task
    convert(there, back, "model_dir")
    assert load_task(back) == task


@pytest.mark.parametrize(
    ("own", "of_tokenizer", "length"),
    [(24, 20, 24), (None, 20, 20), (None, None, 40), (64, 20, 40)],
)
def test_lengths_of_sentence_transformers(own, of_tokenizer, length, tmp_path):
    """The length is the module's or, if it has none, the tokenizer's.

    It is at most the model's number of positions, which is also the default.
    """
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"model_max_length": of_tokenizer}))
    modules = Modules(str(tmp_path), "mean", True, own, False)
    assert modules.task(40).config.max_seq_length == length


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ],
)
def test_lengths_must_be_numbers(file, name, golden, tmp_path):
    """The error names a length that is written as a string."""
    home = sentence_folder(tmp_path, golden)
    encoder = home / "0_Transformer"
    (encoder / "sentence_bert_config.json").write_text("{}")
    assert read_modules(str(home)).task(40).config.max_seq_length == 40
    (encoder / file).write_text(json.dumps({name: "24"}))
    with pytest.raises(InputError, match=f"`{name}` must be a number"):
        read_modules(str(home)).task(40)


@pytest.mark.parametrize(
    ("flag", "lowers"),
    [(True, True), ("true", True), (False, False), ("false", False)],
)
def test_a_transformer_that_lower_cases(flag, lowers, golden, tmp_path):
    """If the module's flag is set, even as a string, texts are lower-cased."""
    home = sentence_folder(tmp_path, golden)
    path = home / "0_Transformer" / "sentence_bert_config.json"
    update(path, do_lower_case=flag)
    tokenizer = vocabularies.english(do_lower_case=False)
    modules = read_modules(str(home))
    assert modules.tokenizer(tokenizer).config.do_lower_case == lowers
    write_tokenizer(str(home / "0_Transformer"), tokenizer, 24)
    read = open_source(str(home)).tokenizer
    assert read.config.do_lower_case == lowers
    assert modules.tokenizer(None) is None


def test_modules_that_have_no_place(golden, tmp_path):
    """An error names unsupported modules; `encoder_only` ignores them."""
    kinds = ["Transformer", "Pooling", "Dense"]
    home = sentence_folder(tmp_path, golden, kinds=kinds)
    refuse(tmp_path, home, "modules=Transformer, Pooling, Dense")
    convert(str(home), str(tmp_path / "a"), "model_dir", encoder_only=True)
    edit(home / "modules.json", lambda rows: rows[:2])
    for pooling, received in (
        ({"pooling_mode": ["mean", "max"]}, "mean, max in "),
        ({"pooling_mode": "weightedmean"}, "weightedmean in "),
        ({"pooling_mode_lasttoken": 1}, "pooling_mode_lasttoken in "),
        ({}, " in "),
    ):
        (home / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        message = f"must be one of mean, cls, max.*pooling={received}"
        with pytest.raises(InputError, match=message):
            read_modules(str(home))
    edit(home / "modules.json", lambda rows: rows[:1])
    with pytest.raises(InputError, match="modules=Transformer in"):
        read_modules(str(home))


def test_a_prompt_is_named(golden, tmp_path):
    """A warning names a default prompt; optional prompts cause no warning."""
    home = sentence_folder(tmp_path, golden)
    settings = {"prompts": {"query": "query: "}, "default_prompt_name": None}
    path = home / "config_sentence_transformers.json"
    path.write_text(json.dumps(settings))
    assert not any("prompt" in x for x in open_source(str(home)).warnings)
    path.write_text(json.dumps(settings | {"default_prompt_name": "query"}))
    assert any("'query: '" in x for x in open_source(str(home)).warnings)
    for wrong in (
        {"prompts": [1]},
        {"prompts": {"query": 3}},
        {"default_prompt_name": 3},
    ):
        path.write_text(json.dumps(settings | wrong))
        with pytest.raises(InputError, match="json: `.*prompt.*` must be"):
            read_modules(str(home))
    path.write_text(json.dumps({"prompts": {"query": None}}))
    assert read_modules(str(home)).prompt == ""


@pytest.mark.parametrize(
    "rows",
    [
        {},
        ["x"],
        [{"type": "a.Transformer"}],
        [{"type": "a.Transformer", "path": "a\0b"}],
        [{"type": "a.Transformer", "path": "a\ud800"}],
    ],
)
def test_modules_that_are_none(rows, golden, tmp_path):
    """A `modules.json` without a list of modules and paths raises an error."""
    home = sentence_folder(tmp_path, golden)
    (home / "modules.json").write_text(json.dumps(rows))
    refuse(tmp_path, home, "modules.json: `(modules|path)` must be")
