"""HDF5 files, TensorFlow 1 heads and unusual encoders are converted."""

import importlib.util

import h5py
import numpy as np
import pytest
import released_files
from conversions import (
    huggingface,
    refuse,
    release,
    rewrite,
    weights_of,
    with_slots,
)
from reference import albert_numpy

import albert_tf
from albert_tf.base.errors import InputError
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.library.models import Classifier, QuestionAnswerer, Regressor
from albert_tf.tasks.registry import load_task
from albert_tf.text.packing import INPUTS


def keras_name(name: str) -> str:
    """Return the variable's name in transformers' TensorFlow classes."""
    *scope, last = name.split(".")
    for group in ("albert_layer_groups", "albert_layers"):
        if group in scope:
            at = scope.index(group)
            scope[at : at + 2] = [f"{group}_._{scope[at + 1]}"]
    if "LayerNorm" in scope[-1] or "layer_norm" in scope[-1]:
        last = {"weight": "gamma", "bias": "beta"}[last]
    elif scope[-1] in ("position_embeddings", "token_type_embeddings"):
        last = "embeddings"
    elif last == "weight" and scope[-1] != "word_embeddings":
        last = "kernel"
    return "/".join([*scope, last])


def as_h5(folder, tensors: dict, model: str) -> None:
    """Replace the weights with an HDF5 file in the format of Keras 2.

    If layers share a variable, each layer stores a copy; for example, the
    masked-LM head stores the embedding table.
    """
    table = "albert.embeddings.word_embeddings.weight"
    with h5py.File(folder / "tf_model.h5", "w") as file:
        for name, array in tensors.items():
            layer, path = name.split(".")[0], keras_name(name)
            value = array.T if path.endswith("kernel") else array
            file[f"{layer}/{model}/{path}:0"] = value
            if layer == "predictions" and "bias" in name.split(".")[1]:
                file[f"{layer}/{model}/{keras_name(table)}:0"] = tensors[table]
                file[f"{layer}/{model}/predictions/decoder/bias:0"] = array
    (folder / "model.safetensors").unlink()


def test_weights_of_keras(golden, tmp_path, monkeypatch):
    """Keras weights, including heads, are converted bit for bit.

    They are not read if there is a safetensors file.
    """
    folder, tensors = huggingface(tmp_path, golden)
    (folder / "tf_model.h5").write_bytes(b"not read")
    convert(str(folder), str(tmp_path / "a"), "model_dir")
    as_h5(folder, tensors, "tf_albert_for_pre_training_1")
    with h5py.File(folder / "tf_model.h5", "a") as file:
        # transformers ignores this bias and uses the other bias.
        name = "predictions/tf_albert_for_pre_training_1/predictions/bias:0"
        file[name][:] = 7.0
    # The pickle next to the file is not opened without torch.
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    convert(str(folder), str(tmp_path / "b"), "model_dir")
    released_files.assert_same(
        weights_of(tmp_path / "b"), weights_of(tmp_path / "a")
    )
    path = folder / "tf_model.h5"
    path.write_bytes(path.read_bytes()[:900])
    refuse(tmp_path, folder, "must be a complete HDF5 file")


def in_another_file(file, name, path, shape):
    """Add a data set whose values are the bytes of another file."""
    size = 4 * int(np.prod(shape))
    file.create_dataset(name, shape, "f4", external=[(str(path), 0, size)])


def in_another_h5(file, name, path, shape):
    """Add a data set whose values are those of another HDF5 file."""
    layout = h5py.VirtualLayout(shape, "f4")
    layout[:] = h5py.VirtualSource(str(path), "x", shape)
    file.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("add", [in_another_file, in_another_h5])
def test_weights_of_keras_are_in_their_file(golden, tmp_path, add):
    """An HDF5 file cannot load the content of another file as weights."""
    folder, tensors = huggingface(tmp_path, golden)
    as_h5(folder, tensors, "tf_albert_for_pre_training_1")
    with h5py.File(folder / "tf_model.h5", "a") as file:
        name = "albert/tf_albert_for_pre_training_1/albert/pooler/bias:0"
        shape = file[name].shape
        del file[name]
        add(file, name, tmp_path / "private", shape)
    refuse(tmp_path, folder, "`.*bias:0` is stored in another file")


def test_a_classifier_of_keras(golden, tmp_path):
    """The head of a Keras classifier is found under its class's names."""
    folder, tensors = huggingface(
        tmp_path,
        golden,
        architectures=["TFAlbertForSequenceClassification"],
        num_labels=3,
    )
    width = golden.config.hidden_size
    rng = np.random.default_rng(0)
    tensors = {n: x for n, x in tensors.items() if n.startswith("albert.")}
    tensors["classifier.weight"] = rng.random((3, width), np.float32)
    tensors["classifier.bias"] = rng.random(3, np.float32)
    as_h5(folder, tensors, "tf_albert_for_sequence_classification")
    convert(str(folder), str(tmp_path / "out"), "model_dir")
    found = weights_of(tmp_path / "out")
    np.testing.assert_array_equal(
        found["classifier/kernel"], tensors["classifier.weight"].T
    )
    assert load_task(str(tmp_path / "out")).labels[2] == "LABEL_2"


def finetuned_release(tmp_path, golden, head: dict, scope: str = "") -> str:
    """Write a TF1 checkpoint with a head and slots; return the folder.

    The slots are those of LAMB if there is a scope, and of Adam otherwise.
    """
    table = {n: x for n, x in golden.weights.items() if n.startswith("bert/")}
    table = {scope + name: x for name, x in table.items()} | head
    rule = "lamb" if scope else "adam"
    table = with_slots(table, (f"{rule}_m", f"{rule}_v"))
    return release(tmp_path / "in", golden.config, table)


@pytest.mark.parametrize(
    "number, scope",
    [
        (3, ""),
        (1, "module/"),
        pytest.param(3, "module/", marks=pytest.mark.slow),
        pytest.param(1, "", marks=pytest.mark.slow),
    ],
)
def test_heads_of_run_classifier(number, scope, golden, tmp_path):
    """Logits equal those that NumPy computes from the released head.

    The checkpoint may contain the optimizer's slots. Names may have a scope.
    """
    rng = np.random.default_rng(number)
    width = golden.config.hidden_size
    weights = rng.normal(size=(number, width)).astype("f4")
    bias = rng.normal(size=number).astype("f4")
    head = {"output_weights": weights, "output_bias": bias}
    source = finetuned_release(tmp_path, golden, head, scope)
    out = str(tmp_path / "out")
    if number == 1:
        refuse(tmp_path, source, "for example to regression")
    convert(source, out, "model_dir", task="sts-b" if number == 1 else None)
    model = (Regressor if number == 1 else Classifier).load(out)
    logits = model({name: golden.inputs[name][:1] for name in INPUTS})
    table = {n: v.numpy() for n, v in model.named_weights().items()}
    row = [golden.inputs[name][0] for name in INPUTS]
    *_, pooled = albert_numpy.encode(table, model.config, *row)
    np.testing.assert_allclose(
        np.ravel(logits), weights @ pooled + bias, atol=2e-5
    )
    task = load_task(out)
    assert task.is_pair == (number == 1)
    assert number == 1 or task.labels == ("0", "1", "2")


def test_tasks_of_heads(golden, tmp_path):
    """`--task` sets the labels; a task that does not fit raises an error."""
    width = golden.config.hidden_size
    head = {"output_bias": np.ones(3, "f4")}
    head["output_weights"] = np.ones((3, width), "f4")
    source = finetuned_release(tmp_path, golden, head)

    def convert_as(task, **more):
        out = tmp_path / task
        convert(source, str(out), "model_dir", task=task, **more)
        return load_task(str(out))

    assert convert_as("mnli").labels[1] == "entailment"
    assert convert_as("classification", pairs=True).is_pair
    with pytest.raises(InputError, match="`task` must be one of"):
        convert_as("nothing")
    with pytest.raises(InputError, match="`task` requires a TF1 checkpoint"):
        convert(str(tmp_path / "mnli"), str(tmp_path / "x"), "tf1", task="mnli")


def beam_head(width: int) -> dict[str, np.ndarray]:
    """Return a head of `run_squad_v2` under the released names."""
    rng = np.random.default_rng(3)
    shapes = {
        "start_logits/dense/kernel": (width, 1),
        "start_logits/dense/bias": (1,),
        "end_logits/dense_0/kernel": (2 * width, width),
        "end_logits/dense_0/bias": (width,),
        "end_logits/LayerNorm/beta": (width,),
        "end_logits/LayerNorm/gamma": (width,),
        "end_logits/dense_1/kernel": (width, 1),
        "end_logits/dense_1/bias": (1,),
        "answer_class/dense_0/kernel": (2 * width, width),
        "answer_class/dense_0/bias": (width,),
        "answer_class/dense_1/kernel": (width, 1),
    }
    return {n: rng.normal(size=s).astype("f4") for n, s in shapes.items()}


# test_task_heads.py compares these layers with the release.
BEAM_LAYERS = {
    "start": "start_logits/dense",
    "end_transform": "end_logits/dense_0",
    "layer_norm": "end_logits/LayerNorm",
    "end": "end_logits/dense_1",
    "answer_transform": "answer_class/dense_0",
    "answer": "answer_class/dense_1",
}


def test_heads_of_run_squad(golden, tmp_path):
    """The variables of a beam head keep their values.

    The logits of a simple head equal those that NumPy computes.
    """
    width = golden.config.hidden_size
    rng = np.random.default_rng(2)
    simple = {
        "cls/squad/output_weights": rng.normal(size=(2, width)).astype("f4"),
        "cls/squad/output_bias": rng.normal(size=2).astype("f4"),
    }
    for name, head in (("simple", simple), ("beam", beam_head(width))):
        (tmp_path / name).mkdir()
        source = finetuned_release(tmp_path / name, golden, head)
        out = str(tmp_path / name / "out")
        convert(source, out, "model_dir")
        task, found = load_task(out), weights_of(out)
        assert task.config.answer_head == name
        assert task.impossible == (name == "beam")
        ours = {n: x for n, x in found.items() if not n.startswith("albert/")}
        assert len(ours) == len(head)
        if name == "beam":
            wanted = {
                f"{layer}/{kind}": head[f"{released}/{kind}"]
                for layer, released in BEAM_LAYERS.items()
                for kind in ("kernel", "bias", "gamma", "beta")
                if f"{released}/{kind}" in head
            }
            released_files.assert_same(ours, wanted)
        model = QuestionAnswerer.load(out)
        inputs = {name: golden.inputs[name] for name in INPUTS}
        encoded = model.network.albert(*inputs.values())
        tokens = encoded["sequence_output"].numpy()
        outputs = model.network(*inputs.values())
        if name == "simple":
            logits = tokens @ simple["cls/squad/output_weights"].T
            logits += simple["cls/squad/output_bias"]
            real = inputs["input_mask"] > 0
            for i, key in enumerate(("start_logits", "end_logits")):
                np.testing.assert_allclose(
                    outputs[key].numpy()[real], logits[real][:, i], atol=2e-5
                )


@pytest.mark.parametrize("kind", ["huggingface", "tf1", "model_dir"])
def test_the_encoder_alone(kind, golden, tmp_path):
    """`encoder_only` keeps the encoder's weights and drops an unknown head."""
    config, width = golden.config, golden.config.hidden_size
    plain = release(tmp_path / "plain", config, golden.weights)
    convert(plain, str(tmp_path / "ours"), "model_dir")
    wanted = {
        name: array
        for name, array in weights_of(tmp_path / "ours").items()
        if name.startswith("albert/")
    }
    odd = np.ones((4, width), "f4")
    if kind == "model_dir":
        source = tmp_path / "ours"
    elif kind == "tf1":
        source = finetuned_release(tmp_path, golden, {"crf/kernel": odd})
    else:
        source, tensors = huggingface(
            tmp_path, golden, architectures=["AlbertForX"]
        )
        scoped = {f"model.{n}": x for n, x in tensors.items()}
        rewrite(source, scoped | {"head.weight": odd})
    if kind != "model_dir":
        refuse(tmp_path, source, "`architectures` must|unexpected crf")
    out = tmp_path / "out"
    convert(str(source), str(out), "model_dir", encoder_only=True)
    released_files.assert_same(weights_of(out), wanted)
    if kind != "model_dir":
        assert albert_tf.load(source, encoder_only=True).heads == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flax_model.msgpack", "Flax weights.*from_flax"),
        ("model.safetensors.index.json", "in several files.*max_shard_size"),
        ("tf_model.h5.index.json", "in several files.*max_shard_size"),
        ("saved_model.pb", "a TensorFlow 2 SavedModel"),
        ("adapter_config.json", "merge_and_unload"),
        ("rust_model.ot", "rust-bert"),
        ("model.weights.h5", "Keras weights, such as a preset of KerasHub"),
        ("model.onnx", "an ONNX model"),
        ("model.tflite", "a LiteRT model"),
        ("config.json", "without its weights"),
    ],
)
def test_other_folders_are_named(name, message, tmp_path):
    """The error for an unsupported folder names its kind and contains advice.

    Most of these folders also have a `config.json`. If a folder has no other
    file, its weights are missing.
    """
    (tmp_path / "in").mkdir()
    for file in ("config.json", name):
        (tmp_path / "in" / file).write_text("{}")
    refuse(tmp_path, tmp_path / "in", f"`input` must be a folder.*{message}")
    with pytest.raises(InputError, match=f"`path` must be.*{message}"):
        albert_tf.load(tmp_path / "in")


def test_a_saved_model_is_no_model_directory(golden, tmp_path):
    """A SavedModel is not mistaken for a model directory."""
    source = release(tmp_path / "plain", golden.config, golden.weights)
    convert(source, str(tmp_path / "ours"), "model_dir")
    (tmp_path / "hub" / "variables").mkdir(parents=True)
    for path in (tmp_path / "ours").glob("ckpt-*"):
        name = path.name.replace(path.name.split(".")[0], "variables", 1)
        path.rename(tmp_path / "hub" / "variables" / name)
    (tmp_path / "hub" / "saved_model.pb").touch()
    refuse(tmp_path, tmp_path / "hub", "TensorFlow 2 SavedModel.*TF-Hub")


def test_a_pointer_of_git_is_named(golden, tmp_path):
    """A Git LFS pointer is identified, not reported as a damaged file."""
    folder, _ = huggingface(tmp_path, golden)
    path = folder / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid x\n")
    refuse(tmp_path, folder, "`git lfs pull`")
