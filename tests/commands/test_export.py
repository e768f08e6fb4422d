"""The files of exports, how they load, and which folders they replace."""

import json
import logging
import os
import re
import shutil
import types

import programs
import pytest
import tensorflow as tf
import tiny_phonemes
from exporting import (
    TEXTS,
    close,
    loaded,
    of_kind,
    packed,
    question_task,
    server_of,
    without_tokenizer,
    written,
    xla_operations,
)

from albert_tf.base import files
from albert_tf.base.errors import InputError
from albert_tf.serving import export, tensorflow_serving, verification
from albert_tf.serving.export import (
    FORMATS,
    ExportConfig,
    changed_lengths,
    check_target,
    export_model,
    model_size,
    single_file,
)
from albert_tf.serving.playground_model import ExportedModel
from albert_tf.serving.server import ServedModel
from albert_tf.serving.signatures import ServingConfig
from albert_tf.serving.verification import Difference, arrays, tensors
from albert_tf.tasks.registry import load_task
from albert_tf.training import checkpoints


def test_weights_are_stored_once(exported_dir, pretrained_model):
    """The export's file of weights contains each variable once, in float32."""
    prefix = os.path.join(exported_dir, "variables", "variables")
    reader = tf.train.load_checkpoint(prefix)
    ending = "/.ATTRIBUTES/VARIABLE_VALUE"
    kinds = reader.get_variable_to_dtype_map()
    found = {
        name: (kinds[name], shape)
        for name, shape in reader.get_variable_to_shape_map().items()
        if name.endswith(ending)
    }
    names = checkpoints.named_variables(pretrained_model)
    assert found == {
        f"weights/{name.replace('/', '.S')}{ending}": (
            tf.float32,
            variable.shape.as_list(),
        )
        for name, variable in names.items()
    }


FRESH = """
import json, sys
import tensorflow as tf
import tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
found = loaded.signatures["serving_default"](tf.constant([sys.argv[2]]))
filled = loaded.signatures["fill_mask"](tf.constant(["the [MASK]"]))
print(json.dumps({
    "ours": [m for m in sys.modules if m.split(".")[0] == "albert_tf"],
    "pooled": found["pooled_output"].numpy().tolist(),
    "pieces": len(filled["pieces"][0, 0]),
}))
"""


@pytest.mark.slow
def test_loads_without_this_package(
    exported_dir, pretrained_model, tokenizer, tmp_path
):
    """A moved export loads with only TensorFlow and TensorFlow Text."""
    moved = tmp_path / "moved"
    shutil.copytree(exported_dir, moved)
    done = programs.run("-c", FRESH, moved, TEXTS[3], cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["ours"] == []
    assert found["pieces"] == 5
    inputs = map(tf.constant, packed(tokenizer, TEXTS[3:4]))
    close(found["pooled"], pretrained_model.albert(*inputs)["pooled_output"])


def test_the_model_is_described_in_assets(exported_dir, pretrained_dir):
    """The assets contain the config and the vocabulary with its settings."""
    for name in ("albert_config.json", "tokenizer.json", "spiece.model"):
        source = files.read_bytes(f"{pretrained_dir}/{name}")
        assert files.read_bytes(f"{exported_dir}/assets/{name}") == source


def test_without_a_tokenizer_only_ids_are_served(pretrained_dir, tmp_path):
    """A model without a tokenizer is served with only the signature `ids`."""
    folder = without_tokenizer(pretrained_dir, tmp_path / "model")
    server = server_of(folder)
    assert set(server.signatures) == {"ids"} and server.default == "ids"


def test_the_encoder_of_a_phoneme_model_is_served(tmp_path):
    """The export of a phoneme model contains the encoder without the heads."""
    tiny_phonemes.save_model(tmp_path)
    server = server_of(tmp_path)
    assert set(server.signatures) == {"ids"}
    assert all(name.startswith("albert/") for name in server.weights)


@pytest.mark.slow
def test_xla_compiles_the_encoder(pretrained_dir, pretrained_model, tmp_path):
    """With `jit_compile`, XLA compiles the encoder; outputs do not change."""
    source = without_tokenizer(pretrained_dir, tmp_path / "model")
    compiled = ServingConfig(max_seq_length=6, jit_compile=True)
    served = loaded(written(source, tmp_path / "out", compiled))["ids"]
    assert "Softmax" in xla_operations(served)
    ids = tf.constant([[2, 9, 10, 11, 3, 0], [2, 9, 3, 0, 0, 0]])
    mask = tf.cast(ids > 0, tf.int32)
    inputs = {"input_ids": ids, "input_mask": mask, "segment_ids": 0 * ids}
    found, wanted = served(**inputs), pretrained_model.albert(**inputs)
    for name in ("sequence_output", "pooled_output"):
        close(found[name], wanted[name])


@pytest.mark.parametrize("name", ["jit_compile", "ids_only"])
@pytest.mark.parametrize("to", ["litert", "onnx"])
def test_settings_of_savedmodels(pretrained_dir, tmp_path, name, to):
    """`jit_compile` and `ids_only` with LiteRT or ONNX raise an error."""
    serving = ServingConfig(**{name: True})
    rule = f"`{name}` requires to=saved_model.*{name}=True"
    with pytest.raises(InputError, match=rule):
        written(pretrained_dir, tmp_path / "out", serving, to=to)


@pytest.mark.parametrize(
    ("kind", "settings", "to", "signatures"),
    [
        ("classification", {}, "saved_model", "ids, text, .*classify"),
        ("question_answering", {"ids_only": True}, "saved_model", "ids$"),
        (None, {"ids_only": True}, "saved_model", "ids$"),
        (None, {}, "litert", "ids$"),
        ("question_answering", {}, "onnx", "ids$"),
    ],
)
def test_top_k_needs_a_signature_that_uses_it(
    pretrained_dir, tmp_path, kind, settings, to, signatures
):
    """`top_k` raises an error if no signature predicts masks or answers."""
    folder, serving = pretrained_dir, ServingConfig(top_k=2, **settings)
    if kind:
        folder = tmp_path / "model"
        of_kind(kind, folder, pretrained_dir)
    rule = f"`top_k` requires .*top_k=2, to={to}, signatures={signatures}"
    with pytest.raises(InputError, match=rule):
        written(folder, tmp_path / "out", serving, to=to)


def lite_export(folder):
    """Return a folder with the file names of a LiteRT export."""
    folder.mkdir()
    for name in ("model.tflite", *DESCRIPTION):
        (folder / name).write_text(name)
    return folder


def tensorflow_export(folder):
    """Return a folder with the file names of a SavedModel."""
    names = ("saved_model.pb", "fingerprint.pb", "variables/variables.index")
    shards = [f"variables/variables.data-0000{i}-of-00002" for i in (0, 1)]
    assets = [f"assets/{name}" for name in DESCRIPTION]
    for name in (*names, *shards, *assets):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


DESCRIPTION = ("albert_config.json", "task.json", "tokenizer.json", "vocab.txt")


@pytest.mark.parametrize("to", ["saved_model", "litert", "onnx"])
def test_an_export_of_any_format_may_be_replaced(to, tmp_path):
    """An earlier export or an empty folder may be replaced."""
    (tmp_path / "empty").mkdir()
    for folder in (
        lite_export(tmp_path / "lite"),
        tensorflow_export(tmp_path / "full"),
        *(tmp_path / "empty", tmp_path / "none"),
    ):
        check_target(str(folder), to)


@pytest.mark.parametrize("to", ["litert", "onnx"])
def test_another_format_never_replaces_an_operators_file(tmp_path, to):
    """An export fails if it would remove a file that an operator edited."""
    folder = tensorflow_export(tmp_path / "out")
    edited = folder / tensorflow_serving.BATCHING
    edited.write_text(tensorflow_serving.batching(None))
    check_target(str(folder), to)
    edited.write_text("max_batch_size { value: 7 }")
    with pytest.raises(InputError, match="with batching_params.pbtxt$"):
        check_target(str(folder), to)
    check_target(str(folder), "saved_model")


@pytest.mark.parametrize(
    ("make", "to", "message"),
    [
        (lite_export, "onnx", "another format: litert\n"),
        (tensorflow_export, "onnx", "another format: saved_model\n"),
        (lite_export, "litert", ""),
    ],
)
def test_an_export_in_another_format_is_named(
    pretrained_dir, tmp_path, monkeypatch, capsys, make, to, message
):
    """A message names the format of an earlier export that is replaced.

    The message is printed only if the formats differ.
    """
    none = FORMATS[to]._replace(write=lambda *_: None)
    monkeypatch.setitem(FORMATS, to, none)
    same = Difference(0.0, 0.0, "x")
    monkeypatch.setattr(export, "verify", lambda *_: same)
    written(pretrained_dir, make(tmp_path / "out"), to=to)
    _, _, found = capsys.readouterr().out.rpartition("earlier export in ")
    assert (
        found.startswith(message) if message else "another format" not in found
    )
    written(pretrained_dir, tmp_path / "new", to=to)
    assert "earlier export" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lite_export, "ckpt-100.index"),
        (lite_export, "run.flags"),
        (lite_export, "notes/thesis.txt"),
        (lite_export, "model.onnx"),
        (lite_export, ".hidden"),
        (lite_export, "empty/"),
        (tensorflow_export, "ckpt-100.data-00000-of-00001"),
        (tensorflow_export, "variables/mine.npz"),
        (tensorflow_export, "assets/vocab.json"),
        (tensorflow_export, "assets.extra/mine"),
        (tensorflow_export, "model.tflite"),
        (tensorflow_export, "2/saved_model.pb"),
    ],
)
def test_nothing_but_an_export_is_replaced(make, name, tmp_path):
    """The error names a file or folder that exports do not contain."""
    folder = make(tmp_path / "out")
    path = folder / name
    if name.endswith("/"):
        path.mkdir()
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    for to in ("saved_model", "litert", "onnx"):
        with pytest.raises(InputError, match=re.escape(name.rstrip("/"))):
            check_target(str(folder), to)
    with pytest.raises(InputError, match="earlier export"):
        written(tmp_path / "no model", folder)
    assert path.exists()


def test_part_of_an_export_is_not_replaced(tmp_path):
    """An export that is incomplete or contains a link is not replaced."""
    for make, missing in (
        (lite_export, "model.tflite"),
        (lite_export, "albert_config.json"),
        (tensorflow_export, "saved_model.pb"),
        (tensorflow_export, "assets/albert_config.json"),
    ):
        folder = make(tmp_path / "out")
        (folder / missing).unlink()
        with pytest.raises(InputError, match="earlier export"):
            check_target(str(folder), "litert")
        shutil.rmtree(folder)
    folder = lite_export(tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (folder / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="link"):
        check_target(str(folder), "litert")


def test_a_folder_with_other_things_is_not_touched(pretrained_dir, tmp_path):
    """A folder with files that no export wrote is not changed."""
    (tmp_path / "thesis.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(InputError, match="earlier export"):
            written(pretrained_dir, path)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_file_that_comes_during_an_export_stays(
    pretrained_dir, tmp_path, monkeypatch
):
    """A file added to the folder during an export is not deleted."""
    out = lite_export(tmp_path / "out")

    def write(server, config, folder):
        assert set(server.signatures) == {"ids"}  # the file accepts no strings
        (out / "thesis.txt").write_text("mine")

    fake = FORMATS["litert"]._replace(write=write)
    monkeypatch.setitem(FORMATS, "litert", fake)
    monkeypatch.setattr(export, "verify", lambda *_: None)
    with pytest.raises(InputError, match="thesis.txt"):
        written(pretrained_dir, out, to="litert")
    assert (out / "thesis.txt").exists() and (out / "model.tflite").exists()
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("name", ["run[1]", "a\\b", os.fsdecode(b"\xff")])
def test_a_path_that_would_not_load_is_refused(pretrained_dir, tmp_path, name):
    """A path from which TensorFlow could not read weights raises an error.

    TensorFlow treats this path as a pattern. The error of a model directory
    does not claim that the checkpoints are damaged.
    """
    out, rule = tmp_path / name, r"must be UTF-8, .* not contain `\["
    with pytest.raises(InputError, match=f"export_dir.*{rule}"):
        written(pretrained_dir, out)
    assert not out.exists()
    with pytest.raises(InputError, match=f"saved_model.*{rule}"):
        ExportedModel(str(out))
    shutil.copytree(pretrained_dir, out)
    with pytest.raises(InputError, match=f"model directory {rule}"):
        written(out, tmp_path / "new")


@pytest.mark.parametrize("end", ["", "/"])
@pytest.mark.parametrize("vocabulary", [None, "vocab.txt", "spiece.model"])
def test_a_single_file_has_its_description_beside_it(vocabulary, end, tmp_path):
    """The files that describe the model, and no others, are copied.

    A slash at the end of the model's folder makes no difference.
    """
    (tmp_path / "out").mkdir()
    (tmp_path / "model").mkdir()
    for name in ("notes.txt", "ckpt-9.index", *export.DESCRIPTION):
        (tmp_path / "model" / name).write_text(f"content of {name}")
    kind = vocabulary and types.SimpleNamespace(file_name=vocabulary)
    encoder = types.SimpleNamespace(tokenizer=kind)
    server = types.SimpleNamespace(encoder=encoder)
    config = ExportConfig(f"{tmp_path}/model{end}", f"{tmp_path}/other")
    out = str(tmp_path / "out")
    export.write_file("a.onnx", lambda *given: b"a", server, config, out)
    named = ["albert_config.json", "task.json"]
    named += [vocabulary, "tokenizer.json"] if vocabulary else []
    found = {x.name: x.read_text() for x in (tmp_path / "out").iterdir()}
    assert found == {"a.onnx": "a"} | {x: f"content of {x}" for x in named}


def test_an_export_is_replaced_whole_or_not_at_all(
    exported_dir, pretrained_dir, tmp_path, monkeypatch, capsys
):
    """Only a complete export replaces an earlier one.

    The file of batching parameters, which users write, is kept.
    """
    graph = tmp_path / "model" / "saved_model.pb"
    shutil.copytree(exported_dir, graph.parent)
    graph.write_text("earlier")
    batching = graph.parent / "batching_params.pbtxt"
    batching.write_text("max_batch_size { value: 7 }")
    out = f"{graph.parent}/"
    error = OSError("the disk is full")

    def save(root, folder, signatures):
        os.makedirs(folder, exist_ok=True)
        if error:
            raise error
        with open(os.path.join(folder, "saved_model.pb"), "w") as file:
            file.write("new")

    monkeypatch.setattr(tf.saved_model, "save", save)
    monkeypatch.setattr(ServedModel, "concrete", lambda self: {})
    found = Difference(0.0, 0.0, "logits")
    monkeypatch.setattr(export, "verify", lambda *_: found)
    with pytest.raises(OSError, match="full"):
        written(pretrained_dir, out)
    assert graph.read_text() == "earlier"
    assert os.listdir(tmp_path) == ["model"]
    error = None
    written(pretrained_dir, out)
    assert graph.read_text() == "new"
    assert batching.read_text() == "max_batch_size { value: 7 }"
    note = "Kept from the earlier export: batching_params.pbtxt\n"
    printed = capsys.readouterr().out
    assert note in printed and "Lengths" not in printed
    assert os.listdir(tmp_path) == ["model"]


def test_changed_lengths_are_listed():
    """Each length that an export changes is listed with both values."""
    served = question_task("simple").updated(null_score_diff_threshold=0.5)
    assert changed_lengths(served, served.updated(max_seq_length=20)) == ""
    assert changed_lengths(served, served.updated(max_seq_length=7)) == (
        "max_seq_length 20 -> 7, doc_stride 5 -> 3, max_query_length 6 -> 1"
    )


@pytest.mark.parametrize(
    ("to", "assets"), [("saved_model", "assets"), ("onnx", "")]
)
def test_an_export_has_the_settings_it_was_made_with(
    pretrained_dir, tmp_path, monkeypatch, capsys, to, assets
):
    """The task in an export has the lengths and the threshold of the export.

    Windows of fine-tuning would skip parts of a text if rows are shorter. A
    message lists the lengths that differ.
    """
    of_kind("question_answering", tmp_path / "model", pretrained_dir)
    none = FORMATS[to]._replace(write=lambda *_: None)
    monkeypatch.setitem(FORMATS, to, none)
    same = Difference(0.0, 0.0, "x")
    monkeypatch.setattr(export, "verify", lambda *_: same)
    serving = ServingConfig(max_seq_length=7, null_score_diff_threshold=0.5)
    written(tmp_path / "model", tmp_path / "out", serving, to=to)
    config = load_task(str(tmp_path / "out" / assets)).config
    lengths = config.max_seq_length, config.doc_stride, config.max_query_length
    assert lengths == (7, 3, 1)
    assert config.null_score_diff_threshold == 0.5
    line = "max_seq_length 20 -> 7, doc_stride 5 -> 3, max_query_length 6 -> 1"
    assert f"from fine-tuning: {line}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("to", "names", "first_line"),
    [
        (
            "saved_model",
            ("variables/variables.index", "variables/x", "saved_model.pb"),
            "Signatures: text, ids; serving_default is text\n",
        ),
        ("litert", ("model.tflite", "tokenizer.json"), ""),
    ],
)
def test_the_size_of_an_export_is_that_of_its_weights(
    to, names, first_line, tmp_path, capsys
):
    """The report states the parameters and the size relative to float32."""
    for name in names:
        files.write_text(f"{tmp_path}/{name}", "x" * 300_000)
    server = types.SimpleNamespace(
        signatures=["text", "ids"],
        default="text",
        weights={"a": tf.zeros([1000, 250]), "b": tf.zeros([50_000])},
    )
    found = Difference(0.00025, 0.5, "logits")
    config = ExportConfig("m", "x", to)
    export.report(server, config, str(tmp_path), found)
    assert capsys.readouterr().out == (
        f"{first_line}"
        "Largest difference from the Python model: 2.5e-04, in logits\n"
        "300,000 parameters, 1.2 MB in float32; on disk 0.3 MB (25.0%)\n"
        f"Wrote {tmp_path}\n"
    )


def test_all_files_of_weights_count(exported_dir, pretrained_model):
    """The size of a SavedModel is that of its folder `variables`."""
    folder = os.path.join(exported_dir, "variables")
    sizes = [os.path.getsize(f"{folder}/{x}") for x in os.listdir(folder)]
    assert model_size(exported_dir) == sum(sizes)
    variables = checkpoints.named_variables(pretrained_model).values()
    assert sum(sizes) > 4 * sum(v.shape.num_elements() for v in variables)


def test_a_row_describes_a_format(
    pretrained_dir, tmp_path, monkeypatch, capsys
):
    """An entry of `FORMATS` sets the files, precisions, engine and size.

    A bfloat16 model is compared with the float32 model.
    """
    seen, servers, exact = [], [], []

    def convert(server, config):
        servers.append(server)
        return b"x" * 300_000

    def open_file(path):
        seen.append((os.path.basename(path), os.path.getsize(path)))
        numbers = servers[-1].numbers
        return lambda **ids: arrays(numbers(**tensors(ids)))

    def verified(server, *how):
        exact.append(server)
        return verification.verify(server, *how)

    row = single_file("new.bin", convert, "an engine", open_file, ("bfloat16",))
    monkeypatch.setitem(FORMATS, "onnx", row)
    monkeypatch.setattr(export, "verify", verified)
    with pytest.raises(InputError, match="must be bfloat16 for to=onnx"):
        ExportConfig(pretrained_dir, "x", "onnx")
    for _ in range(2):  # the second export replaces the first one
        out = str(tmp_path / "out")
        how = {"to": "onnx", "precision": "bfloat16"}
        result = export.export(model_dir=pretrained_dir, export_dir=out, **how)
        assert (result.export_dir, result.size) == (out, 300_000)
        assert "on disk 0.3 MB" in capsys.readouterr().out
    assert seen == [("new.bin", 300_000)] * 2
    for type_of_products, made in (("bfloat16", servers), ("float32", exact)):
        assert len(made) == 2
        for server in made:
            assert server.encoder.albert.compute_dtype == type_of_products


def test_a_full_disk_is_said(pretrained_dir, tmp_path, monkeypatch):
    """If the disk is full, the error names the folder, which is not created."""

    def save(*args, **kwargs):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left")

    monkeypatch.setattr(tf.saved_model, "save", save)
    monkeypatch.setattr(ServedModel, "concrete", lambda self: {})
    config = ExportConfig(pretrained_dir, str(tmp_path / "x"))
    with pytest.raises(InputError, match="writable: No space left.*/x$"):
        export_model(config, ServingConfig(max_seq_length=4))
    assert not list(tmp_path.iterdir())


def test_a_model_directory_must_be_whole(tmp_path):
    """If the config is missing, the error names it, and nothing is written."""
    with pytest.raises(InputError, match="albert_config.json"):
        written(tmp_path, tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_no_temporary_place_is_told(pretrained_dir, tmp_path, caplog):
    """TensorFlow's message about its temporary folder is not printed."""
    caplog.set_level("INFO", "tensorflow")
    source = without_tokenizer(pretrained_dir, tmp_path / "ids")
    written(source, tmp_path / "out")
    assert ".tmp" not in caplog.text
    assert tf.get_logger().level == logging.INFO
