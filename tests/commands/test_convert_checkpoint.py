"""Conversions keep weights exactly, in both directions."""

import dataclasses
import json
import os
import pathlib
import shutil

import goldens
import numpy as np
import programs
import pytest
import released_files
import tensorflow as tf
import vocabularies
from conversions import (
    check_nothing_left,
    refuse,
    release,
    update,
    vocabulary,
    weights_of,
    with_slots,
    zh_table,
)

from albert_tf.base.errors import InputError
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import ACTIVATIONS, AlbertConfig
from albert_tf.training import checkpoints


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("name", "slots"),
    [("g3", False), ("g1", True), ("g1", False), ("g4", True)],
)
def test_tf1_round_trip(name, slots, tmp_path):
    """A round trip through TF1 keeps all bits of weights, slots and step."""
    golden = goldens.load(name)
    table = with_slots(golden.weights) if slots else golden.weights
    source = release(tmp_path / "in", golden.config, table)
    lines = convert(source, str(tmp_path / "dir"), "model_dir")
    assert f"{2 * len(golden.weights) * slots} of the optimizer" in lines[2]
    convert(str(tmp_path / "dir"), str(tmp_path / "back"), "tf1")
    back = released_files.read_all(str(tmp_path / "back/model.ckpt-best"))
    released_files.assert_same(back, table)
    left, right = (
        json.loads((tmp_path / folder / "albert_config.json").read_text())
        for folder in ("in", "back")
    )
    assert left == right


def test_a_converted_release_computes_the_released_numbers(golden, tmp_path):
    """A converted release loads completely and computes the recorded logits."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    directory = str(tmp_path / "dir")
    convert(source, directory, "model_dir")
    model = AlbertForPretraining(AlbertConfig.from_model_dir(directory))
    checkpoints.restore_weights(model, directory)
    theirs = golden.outputs["mlm_logits"]
    ours = golden.outputs_of(model)["mlm_logits"]
    np.testing.assert_allclose(np.reshape(ours, theirs.shape), theirs, 0, 2e-5)


@pytest.mark.parametrize("form", ["tf1", "huggingface"])
def test_layers_that_share_no_weights_become_groups(form, tmp_path):
    """Another format stores unshared layers, and their config, as groups."""
    config = goldens.variant("unshared")
    table = goldens.random_weights(config)
    source = str(tmp_path / "dir")
    checkpoints.create_model_dir(source, config)
    variables = {name: tf.Variable(x) for name, x in table.items()}
    checkpoints.save(source, variables)
    convert(source, str(tmp_path / form), form)
    convert(str(tmp_path / form), str(tmp_path / "back"), "model_dir")
    back = AlbertConfig.from_model_dir(str(tmp_path / "back"))
    assert back.num_hidden_groups == config.num_hidden_layers > 1
    assert back.sharing == "all"
    released_files.assert_same(weights_of(tmp_path / "back"), table)


def test_slots_and_step_have_the_names_of_the_optimizer(golden, tmp_path):
    """`adam_m` and `adam_v` become the slots that training resumes with."""
    table = with_slots(golden.weights)
    source = release(tmp_path / "in", golden.config, table)
    convert(source, str(tmp_path / "dir"), "model_dir")
    prefix = str(tmp_path / "dir" / "ckpt-125000")
    slot = tf.Variable(tf.zeros([32, 2]))
    step = tf.Variable(0, dtype=tf.int64)
    name = "optimizer/sop/classifier/kernel/v"
    wanted = {name: slot, "optimizer/iterations": step}
    checkpoints.restore(prefix, wanted, ignore=("",))
    theirs = table["cls/seq_relationship/output_weights/adam_v"]
    np.testing.assert_array_equal(slot, theirs.T)
    assert int(step) == 125_000


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["g3", "g1", "g4"])
def test_huggingface_round_trip(name, tmp_path):
    """A round trip through Hugging Face keeps all weights and drops slots."""
    golden = goldens.load(name)
    table = with_slots(golden.weights)
    source = release(tmp_path / "in", golden.config, table)
    lines = convert(source, str(tmp_path / "hf"), "huggingface")
    left = 2 * len(golden.weights) + 1
    assert f"warning: {left} tensors of the optimizer are omitted" in lines[-1]
    convert(str(tmp_path / "hf"), str(tmp_path / "dir"), "model_dir")
    convert(str(tmp_path / "dir"), str(tmp_path / "back"), "huggingface")
    for file in ("model.safetensors", "config.json"):
        left, right = tmp_path / "hf" / file, tmp_path / "back" / file
        assert left.read_bytes() == right.read_bytes()
    convert(str(tmp_path / "hf"), str(tmp_path / "tf1"), "tf1")
    back = released_files.read_all(str(tmp_path / "tf1/model.ckpt-best"))
    released_files.assert_same(back, golden.weights)


def model_dir(folder, config):
    """Write a model with random weights; return its folder and checkpoint."""
    checkpoints.create_model_dir(str(folder), config)
    table = goldens.random_weights(config)
    variables = {name: tf.Variable(v) for name, v in table.items()}
    return str(folder), checkpoints.save(str(folder), variables)


@pytest.mark.parametrize("layout", ["tf1", "model_dir", "huggingface"])
def test_a_config_may_be_chosen(layout, golden, tmp_path):
    """`albert_config_file` takes the place of a model's own config.

    Warnings about the model's own config then do not apply.
    """
    source = release(tmp_path / "in", golden.config, golden.weights)
    if layout != "tf1":
        convert(source, str(tmp_path / "model"), layout)
        source = str(tmp_path / "model")
    if layout == "huggingface":
        update(tmp_path / "model" / "config.json", hidden_act="gelu")
    mine = dataclasses.replace(golden.config, hidden_dropout_prob=0.375)
    assert mine != golden.config
    mine.save(str(tmp_path / "mine"))
    path = str(tmp_path / "mine" / "albert_config.json")
    out = str(tmp_path / "out")
    lines = convert(source, out, "model_dir", albert_config_file=path)
    assert AlbertConfig.from_model_dir(out) == mine
    assert not any("hidden_act" in line for line in lines)


UNRELEASED = [name for name, x in ACTIVATIONS.items() if not x.is_released]


@pytest.mark.parametrize("name", UNRELEASED)
def test_other_activations_have_no_place_in_tf1(name, tmp_path):
    """A model with an activation that the release lacks has no TF1 form.

    Its conversion to TF1 raises an error.
    """
    config = goldens.variant("shared", hidden_act=name)
    source, _ = model_dir(tmp_path / "dir", config)
    refuse(tmp_path, source, f"hidden_act={name}", "tf1")


def test_pruned_heads_have_no_place_elsewhere(tmp_path):
    """A model with pruned heads can be converted only to a model directory."""
    config = goldens.variant("pruned heads")
    source, _ = model_dir(tmp_path / "dir", config)
    for to in ("tf1", "huggingface"):
        refuse(tmp_path, source, "pruned heads.*attention_head_size=4", to)
    convert(source, str(tmp_path / "copy"), "model_dir")
    assert AlbertConfig.from_model_dir(str(tmp_path / "copy")) == config


def test_the_best_checkpoint_is_converted(golden, tmp_path):
    """A folder's best checkpoint is converted, unless a prefix is passed."""
    ours = goldens.to_ours(golden.weights, golden.config)
    source = str(tmp_path / "dir")
    checkpoints.create_model_dir(source, golden.config)
    doubled = {n: tf.Variable(2 * v) for n, v in ours.items()}
    last = checkpoints.save(source, doubled, 9)
    variables = {n: tf.Variable(v) for n, v in ours.items()}
    checkpoints.save(str(tmp_path / "dir" / "best"), variables, 5)
    for path, factor in ((source, 1), (last, 2)):
        out = tmp_path / f"out{factor}"
        convert(path, str(out), "tf1")
        found = released_files.read_all(str(out / "model.ckpt-best"))
        name = "bert/pooler/dense/kernel"
        assert (found[name] == factor * golden.weights[name]).all()


def test_the_newest_of_a_folder_from_elsewhere(golden, tmp_path):
    """The file `checkpoint` selects a checkpoint, even in a moved folder."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    for file in (tmp_path / "in").glob("model.ckpt-best*"):
        for step in ("9", "10"):
            name = file.name.replace("best", step)
            file.with_name(name).write_bytes(file.read_bytes())
        file.unlink()
    line = 'model_checkpoint_path: "gs://bucket/run/model.ckpt-10"\n'
    (tmp_path / "in" / "checkpoint").write_text(line)
    lines = convert(source, str(tmp_path / "dir"), "model_dir")
    assert lines[0].endswith("in/model.ckpt-10")


def test_averages_stay_behind(tmp_path):
    """Conversion keeps weights and slots, but omits averages of weights."""
    weights = goldens.random_weights(goldens.CONFIG)
    pairs = {f"optimizer/{n}/{s}": w for n, w in weights.items() for s in "mv"}
    state = weights | pairs | {"optimizer/iterations": np.int64(7)}
    averages = {f"optimizer/average/{n}": 2 * w for n, w in weights.items()}
    folder = str(tmp_path / "dir")
    checkpoints.create_model_dir(folder, goldens.CONFIG)
    variables = {n: tf.Variable(v) for n, v in (state | averages).items()}
    prefix = checkpoints.save(folder, variables, 7)
    lines = convert(prefix, str(tmp_path / "copy"), "model_dir")
    assert "warning: the weight averages are omitted; see best/" in lines
    table = weights_of(tmp_path / "copy")
    table["optimizer/iterations"] = np.int64(table["optimizer/iterations"])
    released_files.assert_same(table, state)


@pytest.mark.parametrize(
    ("to", "library"),
    [
        ("huggingface", "transformers"),
        ("sentence_transformers", "sentence-transformers"),
    ],
)
def test_a_card_describes_the_converted_model(
    to, library, pretrained_dir, tmp_path
):
    """A converted folder's card states the run and metrics of its source.

    The library that reads the folder is that of the new format.
    """
    source = pathlib.Path(shutil.copytree(pretrained_dir, tmp_path / "mine"))
    (source / "run.flags").write_text("--data_dir=records\n")
    row = {"step": 9, "split": "eval", "loss": 0.875}
    (source / "history.jsonl").write_text(json.dumps(row) + "\n")
    convert(str(source), str(tmp_path / "out"), to)
    text = (tmp_path / "out/README.md").read_text("utf-8")
    for expected in (
        f"library_name: {library}",
        "# `mine`",
        "- Data: `records`",
        "| eval | loss | 0.875 |",
    ):
        assert f"\n{expected}\n" in text


FULL_DISK = """
import resource
from albert_tf.convert_checkpoint import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
cli()
"""


@pytest.mark.parametrize("to", ["model_dir", "tf1", "huggingface"])
def test_a_full_disk_is_said(to, golden, tmp_path):
    """A full disk causes a one-line error, and the output is removed."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    flags = f"--input={source}", f"--output={tmp_path / 'out'}", f"--to={to}"
    done = programs.run("-c", FULL_DISK, *flags)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "must be writable" in done.stderr and "disk full?" in done.stderr
    check_nothing_left(tmp_path, {"in"})


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("rule", ["lamb", "adam"])
def test_albert_zh_first_release(tmp_path, rule):
    """albert_zh's first release is recognized by the names of its variables.

    The converted config normalizes embeddings at the hidden width. Slots are
    named `lamb_m` and `lamb_v` if the optimizer was LAMB.
    """
    config = goldens.variant("norm at H")
    table = with_slots(zh_table(config), (f"{rule}_m", f"{rule}_v"))
    older = {"num_hidden_groups": None, "inner_group_num": None}
    older |= {"pooler_type": "first_token_transform", "ln_type": "postln"}
    source = release(tmp_path / "in", config, table, **older)
    os.rename(f"{source}/albert_config.json", f"{source}/albert_config_x.json")
    lines = convert(source, str(tmp_path / "dir"), "model_dir")
    assert "albert_zh's first release" in lines[0]
    assert AlbertConfig.from_model_dir(str(tmp_path / "dir")) == config
    convert(str(tmp_path / "dir"), str(tmp_path / "back"), "tf1")
    back = released_files.read_all(str(tmp_path / "back/model.ckpt-best"))
    renamed = {n.replace("/lamb_", "/adam_"): v for n, v in table.items()}
    released_files.assert_same(back, renamed)
    refuse(tmp_path, tmp_path / "dir", "`embedding_norm`", "huggingface")


def test_hub_module_lacks_the_sentence_order_head(golden, tmp_path):
    """A TF-Hub module, which lacks a sentence-order head, can be converted.

    A warning reports the missing head.
    """
    module = tmp_path / "module"
    for folder in ("variables", "assets"):
        (module / folder).mkdir(parents=True)
    table = golden.weights.items()
    table = {n: value for n, value in table if "seq_relationship" not in n}
    released_files.write_saver(str(module / "variables/variables"), table)
    config_file = module / "assets" / "albert_config.json"
    released_files.write_config(config_file, golden.config)
    vocabulary(module / "assets" / "vocab.txt", 100)
    lines = convert(str(module), str(tmp_path / "dir"), "model_dir")
    text = "no sentence-order head, so the output has none"
    assert f"warning: {text}" in lines
    assert (tmp_path / "dir" / "vocab.txt").exists()
    convert(str(tmp_path / "dir"), str(tmp_path / "hf"), "huggingface")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["AlbertForMaskedLM"]
    convert(str(tmp_path / "hf"), str(tmp_path / "back"), "tf1")
    back = released_files.read_all(str(tmp_path / "back/model.ckpt-best"))
    released_files.assert_same(back, table)


def test_vocabulary_must_fit_the_word_table(golden, tmp_path):
    """A vocabulary may be smaller than the embedding table, but not larger."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    message = "needs a model that has a tokenizer.*task=None"
    refuse(tmp_path, source, message, "sentence_transformers")
    vocabulary(tmp_path / "in" / "vocab.txt", 101)
    refuse(tmp_path, source, "pieces=101, vocab_size=100")
    vocabulary(tmp_path / "in" / "vocab.txt", 100)
    convert(source, str(tmp_path / "dir"), "model_dir")
    vocabulary(tmp_path / "in" / "vocab_2.txt", 100)
    vocabulary(tmp_path / "in" / "vocab_3.txt", 100)
    (tmp_path / "in" / "vocab.txt").unlink()
    refuse(tmp_path, source, "only one vocabulary")


def test_sentencepiece_is_carried(golden, tmp_path):
    """Each format stores the SentencePiece model under a fixed file name.

    The content of the file does not change.
    """
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\nabc def ghi jkl\n" * 20)
    source = release(tmp_path / "in", golden.config, golden.weights)
    model = vocabularies.trained(vocab_size=50, input=str(text))
    (tmp_path / "in" / "30k-clean.model").write_bytes(model)
    convert(source, str(tmp_path / "dir"), "model_dir")
    assert (tmp_path / "dir" / "spiece.model").read_bytes() == model
    convert(str(tmp_path / "dir"), str(tmp_path / "tf1"), "tf1")
    assert (tmp_path / "tf1" / "30k-clean.model").read_bytes() == model
    hf = tmp_path / "hf"
    convert(str(tmp_path / "dir"), str(hf), "huggingface")
    assert (hf / "spiece.model").read_bytes() == model
    path = hf / "tokenizer_config.json"
    values = json.loads(path.read_text())
    assert values["do_lower_case"] and not values["keep_accents"]
    assert values["model_max_length"] == golden.config.max_position_embeddings
    # The settings of this tokenizer class override the others.
    update(path, do_lower_case=False, tokenizer_class="AlbertTokenizer")
    convert(str(hf), str(tmp_path / "dir2"), "model_dir")
    settings = json.loads((tmp_path / "dir2" / "tokenizer.json").read_text())
    assert settings["do_lower_case"] is False


@pytest.mark.parametrize("to", ["tf1", "model_dir"])
def test_weights_that_tensorflow_could_not_read_are_not_written(
    to, golden, tmp_path
):
    """An output path that TensorFlow would treat as a pattern is rejected."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    with pytest.raises(InputError, match="must not contain `\\["):
        convert(source, str(tmp_path / "new[1]"), to)
    assert os.listdir(tmp_path) == ["in"]


def test_outputs_are_new(golden, tmp_path):
    """An output folder must be new or empty."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    (tmp_path / "empty").mkdir()
    convert(source, str(tmp_path / "empty") + "/", "model_dir")
    with pytest.raises(InputError, match="`output` must be a new or empty"):
        convert(source, str(tmp_path / "empty"), "model_dir")
    assert (tmp_path / "empty" / "albert_config.json").exists()
