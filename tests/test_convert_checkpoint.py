"""Conversions are exact both ways, or stop and leave nothing behind."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import goldens
import numpy as np
import pytest
import released_files
import safetensors.numpy
import sentencepiece
import tensorflow as tf

from albert_tf import checkpoints, convert_checkpoint, released_models
from albert_tf.config import AlbertConfig
from albert_tf.convert_checkpoint import convert
from albert_tf.errors import InputError
from albert_tf.model import AlbertForPretraining
from albert_tf.named_tensors import Tensors
from albert_tf.released_models import RELEASES, recognise
from albert_tf.released_names import (
    ALBERT_ZH,
    GOOGLE,
    places,
    variable_shapes,
)

TABLES = json.loads((goldens.FOLDER / "tables.json").read_text())
NO_VOCABULARY = "warning: no vocabulary stands beside the weights"


def with_slots(table: dict, names=("adam_m", "adam_v")) -> dict:
    """Return TF1 variables with the slots of an optimizer and a step."""
    rng = np.random.default_rng(1)
    slots = {
        f"{name}/{slot}": rng.random(value.shape, np.float32)
        for name, value in table.items()
        for slot in names
    }
    return {**table, **slots, "global_step": np.int64(125_000)}


def release(folder: pathlib.Path, config, table, **changes) -> str:
    """Write a TF1 release; return its folder."""
    folder.mkdir()
    released_files.write_saver(str(folder / "model.ckpt-best"), table)
    released_files.write_config(
        folder / "albert_config.json", config, **changes
    )
    return str(folder)


def zh_table(config) -> dict[str, np.ndarray]:
    """Return random weights with the names of albert_zh's first release."""
    ours = goldens.random_weights(config)
    return {
        place.name: ours[name].T.copy() if place.transposed else ours[name]
        for name, place in places(config, ALBERT_ZH).items()
    }


@pytest.fixture
def golden():
    return goldens.load("g1")


def vocabulary(path: pathlib.Path, size: int) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [chr(0x4E00 + i) for i in range(size - len(pieces))]
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")


def check_nothing_left(folder: pathlib.Path, before: set) -> None:
    assert {p.name for p in folder.iterdir()} == before


def refuse(folder, source, message, to="model_dir", config_file=None) -> str:
    """Check that a conversion fails with a message and leaves nothing."""
    before = {p.name for p in folder.iterdir()}
    with pytest.raises(InputError, match=message) as caught:
        convert(str(source), str(folder / "out"), to, config_file)
    check_nothing_left(folder, before)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "slots"),
    [("g1", False), ("g1", True), ("g3", False), ("g4", True)],
)
def test_tf1_round_trip(name, slots, tmp_path):
    """TF1 -> here -> TF1 keeps every bit, slots and step included."""
    golden = goldens.load(name)
    table = with_slots(golden.weights) if slots else golden.weights
    source = release(tmp_path / "in", golden.config, table)
    lines = convert(source, str(tmp_path / "dir"), "model_dir")
    assert f"{2 * len(golden.weights) * slots} of the optimizer" in lines[2]
    convert(str(tmp_path / "dir"), str(tmp_path / "back"), "tf1")
    back = released_files.read_all(str(tmp_path / "back/model.ckpt-best"))
    released_files.assert_same(back, table)
    with open(tmp_path / "in/albert_config.json") as left:
        with open(tmp_path / "back/albert_config.json") as right:
            assert json.load(left) == json.load(right)


def test_a_converted_release_computes_the_released_numbers(golden, tmp_path):
    """The model directory restores strictly and gives the golden outputs."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    directory = str(tmp_path / "dir")
    convert(source, directory, "model_dir")
    model = AlbertForPretraining(AlbertConfig.from_model_dir(directory))
    checkpoints.restore_weights(model, directory)
    inputs = golden.inputs
    out = model(
        inputs["input_ids"],
        inputs["input_mask"],
        inputs["segment_ids"],
        inputs["masked_lm_positions"],
    )
    np.testing.assert_allclose(
        np.reshape(out["mlm_logits"], golden.outputs["mlm_logits"].shape),
        golden.outputs["mlm_logits"],
        atol=2e-5,
    )


def test_slots_and_step_have_the_names_of_the_optimizer(golden, tmp_path):
    """adam_m and adam_v become the slots that training restores."""
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


@pytest.mark.parametrize("name", ["g1", "g3", "g4"])
def test_huggingface_round_trip(name, tmp_path):
    """HF -> here -> HF keeps the file's bits; the optimizer stays behind."""
    golden = goldens.load(name)
    table = with_slots(golden.weights)
    source = release(tmp_path / "in", golden.config, table)
    lines = convert(source, str(tmp_path / "hf"), "huggingface")
    assert "tensors of the optimizer are left out" in lines[-1]
    convert(str(tmp_path / "hf"), str(tmp_path / "dir"), "model_dir")
    convert(str(tmp_path / "dir"), str(tmp_path / "back"), "huggingface")
    for file in ("model.safetensors", "config.json"):
        left, right = tmp_path / "hf" / file, tmp_path / "back" / file
        assert left.read_bytes() == right.read_bytes()
    convert(str(tmp_path / "hf"), str(tmp_path / "tf1"), "tf1")
    released_files.assert_same(
        released_files.read_all(str(tmp_path / "tf1/model.ckpt-best")),
        golden.weights,
    )


@pytest.mark.parametrize("variant", ["unshared", "erf", "relu"])
def test_model_dir_round_trip(variant, tmp_path):
    """A model of our own comes back from HF with the same bits."""
    config = dataclasses.replace(goldens.CONFIG, **goldens.VARIANTS[variant])
    table = goldens.random_weights(config)
    source = str(tmp_path / "dir")
    checkpoints.claim(source, config)
    variables = {name: tf.Variable(v) for name, v in table.items()}
    prefix = checkpoints.save(source, variables)
    convert(source, str(tmp_path / "hf"), "huggingface")
    convert(str(tmp_path / "hf"), str(tmp_path / "back"), "model_dir")
    back = released_files.read_all(str(tmp_path / "back" / "ckpt-0"))
    there = released_files.read_all(prefix)
    key = "_CHECKPOINTABLE_OBJECT_GRAPH"
    del back[key], there[key]
    released_files.assert_same(back, there)
    config = AlbertConfig.from_model_dir(str(tmp_path / "back"))
    assert config.hidden_act == goldens.VARIANTS[variant].get(
        "hidden_act", "gelu"
    )
    if variant == "erf":
        refuse(tmp_path, source, "hidden_act=gelu_erf", "tf1")


def test_the_best_checkpoint_is_converted(golden, tmp_path):
    """A model directory's best checkpoint wins, unless a prefix is given."""
    ours = goldens.to_ours(golden.weights, golden.config)
    source = str(tmp_path / "dir")
    checkpoints.claim(source, golden.config)
    doubled = {n: tf.Variable(2 * v) for n, v in ours.items()}
    last = checkpoints.save(source, doubled, 9)
    variables = {n: tf.Variable(v) for n, v in ours.items()}
    checkpoints.save(str(tmp_path / "dir" / "best"), variables, 5)
    for path, factor in ((source, 1), (last, 2)):
        out = tmp_path / f"out{factor}"
        convert(path, str(out), "tf1")
        found = released_files.read_all(str(out / "model.ckpt-best"))
        name = "bert/pooler/dense/kernel"
        np.testing.assert_array_equal(
            found[name], factor * golden.weights[name]
        )


def test_albert_zh_first_release(tmp_path):
    """brightmart's names and norm are found in the file, and written back."""
    config = dataclasses.replace(goldens.CONFIG, embedding_norm="hidden")
    table = with_slots(zh_table(config))
    source = release(
        tmp_path / "in",
        config,
        table,
        num_hidden_groups=None,
        inner_group_num=None,
        pooler_type="first_token_transform",
        ln_type="postln",
    )
    os.rename(f"{source}/albert_config.json", f"{source}/albert_config_x.json")
    lines = convert(source, str(tmp_path / "dir"), "model_dir")
    assert "albert_zh's first release" in lines[0]
    assert AlbertConfig.from_model_dir(str(tmp_path / "dir")) == config
    convert(str(tmp_path / "dir"), str(tmp_path / "back"), "tf1")
    back = released_files.read_all(str(tmp_path / "back/model.ckpt-best"))
    released_files.assert_same(back, table)
    refuse(tmp_path, tmp_path / "dir", "`embedding_norm`", "huggingface")


def test_lamb_slots_are_read(tmp_path):
    """albert_zh's own LAMB calls its slots lamb_m and lamb_v."""
    config = dataclasses.replace(goldens.CONFIG, embedding_norm="hidden")
    table = with_slots(zh_table(config), ("lamb_m", "lamb_v"))
    source = release(tmp_path / "in", config, table)
    convert(source, str(tmp_path / "dir"), "model_dir")
    convert(str(tmp_path / "dir"), str(tmp_path / "back"), "tf1")
    back = released_files.read_all(str(tmp_path / "back/model.ckpt-best"))
    renamed = {n.replace("/lamb_", "/adam_"): v for n, v in table.items()}
    released_files.assert_same(back, renamed)


def test_hub_module_lacks_the_sentence_order_head(golden, tmp_path):
    """A TF-Hub module's layout is found; what it lacks is said, not made up."""
    module = tmp_path / "module"
    for folder in ("variables", "assets"):
        (module / folder).mkdir(parents=True)
    table = {
        name: value
        for name, value in golden.weights.items()
        if "seq_relationship" not in name
    }
    released_files.write_saver(str(module / "variables/variables"), table)
    config_file = module / "assets" / "albert_config.json"
    released_files.write_config(config_file, golden.config)
    vocabulary(module / "assets" / "vocab.txt", 100)
    lines = convert(str(module), str(tmp_path / "dir"), "model_dir")
    text = "no sentence-order head here, nor in the output"
    assert f"warning: {text}" in lines
    assert (tmp_path / "dir" / "vocab.txt").exists()
    convert(str(tmp_path / "dir"), str(tmp_path / "hf"), "huggingface")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["AlbertForMaskedLM"]
    convert(str(tmp_path / "hf"), str(tmp_path / "back"), "tf1")
    back = released_files.read_all(str(tmp_path / "back/model.ckpt-best"))
    released_files.assert_same(back, table)


def huggingface(tmp_path, golden, **config) -> tuple[pathlib.Path, dict]:
    """Return a Hugging Face folder of a golden, and its tensors."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    folder = tmp_path / "hf"
    convert(source, str(folder), "huggingface")
    if config:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder, safetensors.numpy.load_file(folder / "model.safetensors")


def rewrite(folder: pathlib.Path, tensors: dict) -> None:
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def test_backbone_without_prefix(golden, tmp_path):
    """`AlbertModel` saves no prefix and no heads; so do we for such a model."""
    folder, tensors = huggingface(tmp_path, golden)
    bare = {
        name.removeprefix("albert."): value
        for name, value in tensors.items()
        if name.startswith("albert.")
    }
    rewrite(folder, bare)
    lines = convert(str(folder), str(tmp_path / "dir"), "model_dir")
    assert sum(line.startswith("warning: no ") for line in lines) == 3
    convert(str(tmp_path / "dir"), str(tmp_path / "back"), "huggingface")
    released_files.assert_same(
        safetensors.numpy.load_file(tmp_path / "back/model.safetensors"), bare
    )


def test_tied_copies_must_agree(golden, tmp_path):
    """Older files repeat tied weights: equal copies pass, others do not."""
    folder, tensors = huggingface(tmp_path, golden)
    words = tensors["albert.embeddings.word_embeddings.weight"]
    copies = {
        "predictions.decoder.weight": words.copy(),
        "predictions.decoder.bias": tensors["predictions.bias"].copy(),
        "albert.embeddings.position_ids": np.arange(64)[None],
    }
    rewrite(folder, tensors | copies)
    convert(str(folder), str(tmp_path / "dir"), "model_dir")
    copies["predictions.decoder.weight"][3, 1] += 1
    rewrite(folder, tensors | copies)
    refuse(tmp_path, folder, "`predictions.decoder.weight` must equal")


def test_half_precision_is_widened(golden, tmp_path):
    """float16 files become float32 without a change of value."""
    folder, tensors = huggingface(tmp_path, golden)
    half = {n: v.astype(np.float16) for n, v in tensors.items()}
    rewrite(folder, half)
    convert(str(folder), str(tmp_path / "out"), "huggingface")
    found = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    wide = {n: v.astype(np.float32) for n, v in half.items()}
    released_files.assert_same(found, wide)


def test_a_projection_between_equal_widths(tmp_path):
    """Hugging Face always projects: the identity passes, others do not."""
    folder, tensors = huggingface(tmp_path, goldens.load("g4"))
    name = "albert.encoder.embedding_hidden_mapping_in.weight"
    np.testing.assert_array_equal(tensors[name], np.eye(32))
    tensors[name] = tensors[name] + 1
    rewrite(folder, tensors)
    refuse(tmp_path, folder, "must be the identity")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "`model_type` must be albert"),
        ({"layer_norm_eps": 1e-5}, "`layer_norm_eps` must be 1e-12"),
        ({"hidden_act": "silu"}, "`hidden_act` must be one of gelu_new"),
        ({"position_embedding_type": "relative_key"}, "must be absolute"),
        ({"num_attention_heads": 5}, "`num_attention_heads` must divide"),
    ],
)
def test_configs_that_are_not_alberts(changes, message, golden, tmp_path):
    """A `config.json` that says something else than ALBERT is refused."""
    folder, _ = huggingface(tmp_path, golden, **changes)
    refuse(tmp_path, folder, message)


def test_erf_gelu_is_kept_and_said(golden, tmp_path):
    """Hugging Face's "gelu" is another function than the released one."""
    folder, _ = huggingface(tmp_path, golden, hidden_act="gelu")
    lines = convert(str(folder), str(tmp_path / "dir"), "model_dir")
    assert any("erf form" in line for line in lines)
    config = AlbertConfig.from_model_dir(str(tmp_path / "dir"))
    assert config.hidden_act == "gelu_erf"


def test_pickles_are_tensors_or_nothing(golden, tmp_path):
    """A pickle of tensors converts; one that would run code does not."""
    torch = pytest.importorskip("torch")
    folder, tensors = huggingface(tmp_path, golden)
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    state = {n: torch.from_numpy(v) for n, v in tensors.items()}
    torch.save(state, path)
    convert(str(folder), str(tmp_path / "back"), "huggingface")
    released_files.assert_same(
        safetensors.numpy.load_file(tmp_path / "back/model.safetensors"),
        tensors,
    )
    torch.save(state | {"classifier.weight": torch.zeros(3, 32)}, path)
    refuse(tmp_path, folder, r"unexpected classifier.weight \[3, 32\]")

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save(state | {"x": Evil()}, path)
    refuse(tmp_path, folder, "a whole file of tensors and nothing else")
    path.write_bytes(path.read_bytes()[:900])
    refuse(tmp_path, folder, "a whole file of tensors and nothing else")


POOLER = "bert/pooler/dense/bias"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({POOLER: None}, f"missing {POOLER}"),
        ({"output_bias": np.zeros(3, "f4")}, r"unexpected output_bias \[3\]"),
        ({POOLER: np.zeros(31, "f4")}, rf"mis-shaped {POOLER}: \[31\] instead"),
        (
            {"cls/seq_relationship/output_bias": None},
            "missing cls/seq_relationship/output_bias",
        ),
        ({f"{POOLER}/adam_v": np.zeros(32, "f4")}, f"missing {POOLER}/adam_m"),
    ],
)
def test_differences_are_named(change, message, golden, tmp_path):
    """Whatever is missing, unexpected or mis-shaped is named and stops it."""
    table = {**golden.weights, **change}
    table = {name: v for name, v in table.items() if v is not None}
    source = release(tmp_path / "in", golden.config, table)
    refuse(tmp_path, source, message)


def test_all_differences_are_named_at_once(golden, tmp_path):
    """A wrong config beside right weights names every tensor that differs."""
    source = release(
        tmp_path / "in", golden.config, golden.weights, intermediate_size=48
    )
    text = refuse(tmp_path, source, "must fit its config")
    assert text.count("mis-shaped") == 3
    groups = release(
        tmp_path / "in2", golden.config, golden.weights, num_hidden_groups=3
    )
    assert refuse(tmp_path, groups, "must fit").count("missing") == 32


def test_bert_is_no_albert(golden, tmp_path):
    """A checkpoint of BERT is called that."""
    table = {
        "bert/embeddings/word_embeddings": np.zeros((100, 32), "f4"),
        "bert/encoder/layer_0/output/dense/bias": np.zeros(32, "f4"),
    }
    source = release(
        tmp_path / "in",
        golden.config,
        table,
        embedding_size=None,
        num_hidden_groups=None,
    )
    refuse(tmp_path, source, "this one is of BERT")


@pytest.mark.parametrize("bytes_left", [0, 100, 20_000])
@pytest.mark.parametrize("file", ["data-00000-of-00001", "index"])
def test_truncated_checkpoints(file, bytes_left, golden, tmp_path):
    """A damaged checkpoint is named, whichever of its files it is."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    path = tmp_path / "in" / f"model.ckpt-best.{file}"
    if bytes_left < path.stat().st_size:
        path.write_bytes(path.read_bytes()[:bytes_left])
        refuse(tmp_path, source, "must be whole and readable")


def test_a_truncated_model_directory(golden, tmp_path):
    """A damaged checkpoint of our own is named as well."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    convert(source, str(tmp_path / "dir"), "model_dir")
    path = tmp_path / "dir" / "ckpt-0.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:20_000])
    refuse(tmp_path, tmp_path / "dir", "checkpoint is damaged", "tf1")


@pytest.mark.parametrize("bytes_left", [0, 5, 100, 20_000])
def test_truncated_safetensors(bytes_left, golden, tmp_path):
    """A damaged safetensors file is named."""
    folder, _ = huggingface(tmp_path, golden)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:bytes_left])
    refuse(tmp_path, folder, "must be a whole safetensors file")


def test_a_flipped_bit_is_found(golden, tmp_path):
    """TF's own checksum of a tensor is checked, and reported as damage."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    path = tmp_path / "in" / "model.ckpt-best.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[30_000] ^= 1
    path.write_bytes(content)
    refuse(tmp_path, source, "must be whole and readable")


def test_vocabulary_must_fit_the_word_table(golden, tmp_path):
    """More pieces than word embeddings are refused; fewer are not."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    vocabulary(tmp_path / "in" / "vocab.txt", 101)
    refuse(tmp_path, source, "101 pieces, vocab_size=100")
    vocabulary(tmp_path / "in" / "vocab.txt", 100)
    convert(source, str(tmp_path / "dir"), "model_dir")
    vocabulary(tmp_path / "in" / "vocab_2.txt", 100)
    vocabulary(tmp_path / "in" / "vocab_3.txt", 100)
    (tmp_path / "in" / "vocab.txt").unlink()
    refuse(tmp_path, source, "Only one vocabulary")


def test_sentencepiece_is_carried(golden, tmp_path):
    """The vocabulary keeps its bytes and gets each layout's name."""
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\nabc def ghi jkl\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(tmp_path / "30k-clean"),
        vocab_size=50,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    source = release(tmp_path / "in", golden.config, golden.weights)
    model = (tmp_path / "30k-clean.model").read_bytes()
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
    path.write_text(json.dumps(values | {"do_lower_case": False}))
    convert(str(hf), str(tmp_path / "dir2"), "model_dir")
    there = json.loads((tmp_path / "dir2" / "tokenizer.json").read_text())
    assert there["do_lower_case"] is False


def test_outputs_are_new(golden, tmp_path):
    """A folder that holds something is not written to; an empty one is."""
    source = release(tmp_path / "in", golden.config, golden.weights)
    (tmp_path / "empty").mkdir()
    convert(source, str(tmp_path / "empty") + "/", "model_dir")
    with pytest.raises(InputError, match="`output` must be a new or empty"):
        convert(source, str(tmp_path / "empty"), "model_dir")
    assert (tmp_path / "empty" / "albert_config.json").exists()


def test_inputs_that_are_no_model(golden, tmp_path):
    """Nothing, an empty folder, two checkpoints and no config are named."""
    (tmp_path / "nothing").mkdir()
    refuse(tmp_path, tmp_path / "nothing", "`input` must be a folder with")
    refuse(tmp_path, tmp_path / "nowhere", "`input` must be a folder with")
    two = tmp_path / "two"
    two.mkdir()
    for name in ("a.ckpt", "b.ckpt"):
        released_files.write_saver(str(two / name), golden.weights)
    refuse(tmp_path, two, "several checkpoints.*a.ckpt.*b.ckpt")
    refuse(tmp_path, two / "a.ckpt", "One albert_config.json must stand")
    config_file = tmp_path / "config.json"
    released_files.write_config(config_file, golden.config)
    convert(
        str(two / "a.ckpt"),
        str(tmp_path / "dir"),
        "model_dir",
        str(config_file),
    )


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


def test_checksums_are_tensorflows(tmp_path):
    """Our CRC-32C is the one that TF keeps of records and tensors."""
    for data in (b"", b"123456789", np.arange(300, dtype="f4").tobytes()):
        ours = released_models.masked_crc32c(data)
        assert ours == tf_checksum(data, tmp_path / "record")


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
        (
            "albert_xlarge_v2",
            {"num_attention_heads": 32},
            "heads=16 and not 32",
        ),
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


def test_command_line(golden, tmp_path):
    """A mistake is one line on stderr, status 1, and no output."""
    source = release(
        tmp_path / "in", golden.config, golden.weights, hidden_size=36
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "albert_tf.convert_checkpoint",
            f"--input={source}",
            f"--output={tmp_path / 'out'}",
            "--to=tf1",
        ],
        capture_output=True,
        text=True,
        cwd=pathlib.Path(convert_checkpoint.__file__).parents[1],
    )
    assert done.returncode == 1
    assert "error: The TF1 checkpoint" in done.stderr
    assert "Traceback" not in done.stderr
    check_nothing_left(tmp_path, {"in"})
