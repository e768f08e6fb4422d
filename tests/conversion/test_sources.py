"""Models that differ from the releases cause warnings."""

import dataclasses
import json
import math

import goldens
import numpy as np
import pytest
import released_files
import tensorflow as tf
import tiny
import tiny_phonemes
from conversions import release, with_slots
from exporting import finetuned

from albert_tf.base.errors import InputError
from albert_tf.conversion import tf1, variable_names
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.conversion.named_tensors import Tensors
from albert_tf.conversion.sources import (
    Reading,
    Source,
    compare_with_released,
    describe_source,
    open_source,
)
from albert_tf.conversion.variable_names import (
    MODEL_DIR,
    Layout,
    variable_shapes,
)
from albert_tf.model.albert import AlbertForPretraining
from albert_tf.model.config import AlbertConfig
from albert_tf.tasks.registry import find
from albert_tf.text.symbols import preset
from albert_tf.training import checkpoints

MODELS = goldens.FOLDER.parents[2] / "configs" / "models"
RELEASES = sorted(path.stem for path in MODELS.glob("albert_*.json"))
TABLES = json.loads((goldens.FOLDER / "tables.json").read_text())


def test_embedding_size_is_taken_from_the_weights(golden, tmp_path):
    """If a config lacks `embedding_size`, the weights provide this size.

    The report contains a warning.
    """
    source = release(
        tmp_path / "in", golden.config, golden.weights, embedding_size=None
    )
    lines = convert(source, str(tmp_path / "dir"), "model_dir")
    assert any("no embedding_size" in line for line in lines)
    config = AlbertConfig.from_model_dir(str(tmp_path / "dir"))
    assert config.embedding_size == 16


def test_a_row_describes_a_layout(golden, tmp_path, monkeypatch):
    """A TF1 file is read with the names in its `Layout` and its table column.

    The `Layout` has the names of the slots and of the step, and the prefix that
    selects the encoder.
    """
    rows = variable_names._TABLE
    rows = [(*row, row[2].replace("bert", "x")) for row in rows]
    monkeypatch.setattr(variable_names, "_TABLE", rows)
    layout = Layout("new", 5, "x/", "embedding", (("{}/a", "{}/b"),), "steps")
    monkeypatch.setattr(tf1, "GOOGLE", layout)
    weights = {n.replace("bert", "x"): w for n, w in golden.weights.items()}
    table = with_slots(weights, ("a", "b"))
    table["steps"] = table.pop("global_step")
    source = release(tmp_path / "in", golden.config, table, embedding_size=None)
    ours = goldens.to_ours(golden.weights, golden.config)
    encoder = {n: w for n, w in ours.items() if n.startswith("albert/")}
    whole = open_source(source).tensors.read_all()
    assert int(whole["optimizer/iterations"]) == 125_000
    assert len(whole) == 3 * len(ours) + 1
    alone = open_source(source, Reading(encoder_only=True)).tensors.read_all()
    for found, wanted in ((whole, ours), (alone, encoder)):
        same = {name: found[name] for name in wanted}
        released_files.assert_same(same, wanted)
    assert alone.keys() == encoder.keys()


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        *(("float16", "float32"), ("bfloat16", "float32")),
        *(("float32", "float32"), ("float64", "float64"), ("int64", "int64")),
        ("int8", "int8"),
    ],
)
def test_half_precision_is_read_as_float32(stored, read, tmp_path):
    """16-bit floats become float32; other values keep their type."""
    value = tf.cast([[1.5, -3.0]], stored)
    prefix = str(tmp_path / "model.ckpt")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=["x"],
        shape_and_slices=[""],
        tensors=[value],
    )
    found = tf1.open_checkpoint(prefix).read("x")
    assert found.dtype == read
    np.testing.assert_array_equal(found, tf.cast(value, read))


def shipped(name: str) -> AlbertConfig:
    """Return a config from `configs/models`."""
    return AlbertConfig.from_json_file(str(MODELS / f"{name}.json"))


@pytest.mark.parametrize("name", RELEASES)
def test_shipped_configs_have_released_sizes(name):
    """Each of the 16 shipped configs has the sizes of a released model."""
    assert len(RELEASES) == 16
    found = compare_with_released(shipped(name))
    assert found == ("the sizes of a released model", [])


@pytest.mark.parametrize("name", TABLES)
def test_released_configs_are_not_warned_of(name, tmp_path):
    """No released config causes a warning, even without a projection."""
    shapes = {n: tuple(s) for n, s in TABLES[name]["tensors"].items()}
    path = tmp_path / "albert_config.json"
    path.write_text(json.dumps(TABLES[name]["config"]))
    config, _ = tf1.read_config(str(path), Tensors(shapes, read=None))
    same = config.embedding_size == config.hidden_size
    summary = f"{'not ' * same}the sizes of a released model"
    assert compare_with_released(config) == (summary, [])


@pytest.mark.parametrize(
    ("release", "change", "warning"),
    [
        ("albert_xlarge_v2", {"num_attention_heads": 32}, "heads=16, not"),
        ("albert_xlarge_zh", {"num_attention_heads": 32}, "heads=16, not"),
        ("albert_large_zh", {"hidden_act": "gelu"}, "hidden_act=relu, not"),
        ("albert_base_v1", {"hidden_act": "gelu_erf"}, "hidden_act=gelu, not"),
        ("albert_base_v2", {"num_hidden_layers": 24}, "layers=12, not 24"),
        (
            "albert_large_zh_brightmart",
            {"hidden_act": "relu"},
            "hidden_act=gelu, not relu",
        ),
    ],
)
def test_shapes_that_hide_a_trap(release, change, warning):
    """A warning names a value that differs from the release with these sizes.

    The values are the numbers of heads and layers, and the activation.
    """
    config = dataclasses.replace(shipped(release), **change)
    summary, (text,) = compare_with_released(config)
    assert summary == "the sizes of a released model" and warning in text


@pytest.mark.parametrize(
    "change",
    [
        {"sharing": "none"},
        {"num_hidden_groups": 2},
        {"vocab_size": 30001},
        {"embedding_size": 64},
        {"intermediate_size": 1024},
        {"max_position_embeddings": 1024},
    ],
)
def test_other_sizes_are_of_no_release(change):
    """At unreleased sizes, head counts and activations cause no warning."""
    config = AlbertConfig(num_attention_heads=6, hidden_act="relu", **change)
    assert compare_with_released(config) == (
        "not the sizes of a released model",
        [],
    )


def described(shapes, *warnings, **parts) -> list[str]:
    """Return the lines of a report on a model with the given shapes.

    The first line, which states the path, is omitted.
    """
    tensors = Tensors(shapes, lambda name: 7)
    source = Source(
        MODEL_DIR, "x", goldens.CONFIG, tensors, None, [*warnings], **parts
    )
    return describe_source(source)[1:]


def test_a_report_counts_variables():
    """A report states the numbers of weights and slots, and the step.

    The report also names missing parts.
    """
    weights = variable_shapes(goldens.CONFIG)
    size = sum(math.prod(shape) for shape in weights.values())
    slots = {f"optimizer/{n}/{s}": (1,) for n in weights for s in "mv"}
    step = {"optimizer/iterations": ()}
    count = f"variables: {len(weights)} of the model ({size:,} parameters), "
    model = "model: not the sizes of a released model"
    last = "warning: no vocabulary next to the weights; to encode text, add it "
    last += "and convert again"
    assert described(weights, "a", "b") == [
        *(model, f"{count}0 of the optimizer"),
        *("warning: a", "warning: b", last),
    ]
    assert described(weights | slots | step)[1:] == [
        *(f"{count}{2 * len(weights)} of the optimizer", "step: 7", last),
    ]
    encoder = {n: s for n, s in weights.items() if n.startswith("albert/")}
    assert described(encoder)[2:] == [
        last,
        "warning: no masked-LM head, so the output has none",
        "warning: no sentence-order head, so the output has none",
    ]
    assert described(encoder, symbols=preset("plbert"))[2:] == [
        "symbols: 177",
        "warning: no symbol head, so the output has none",
        "warning: no word head, so the output has none",
    ]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("sts-b", "sts-b (regression of pairs), 512 tokens, labels: none"),
        ("cola", "cola (classification), 512 tokens, labels: 0, 1"),
        ("squad-2.0", "squad-2.0 (question_answering), 384 tokens, labels: "),
    ],
)
def test_a_report_has_the_task(name, line):
    """The task's line lists the labels, and states whether texts are pairs."""
    task = find(name)
    lines = described(variable_shapes(goldens.CONFIG), task=task)
    length = task.config.max_seq_length
    assert lines[2].startswith(f"task: {line.replace('512', str(length))}")
    assert len(lines) == 4 and "no vocabulary next to" in lines[3]


def save_finetuned(folder, pretrained_dir):
    """Save a fine-tuned model."""
    finetuned(folder, pretrained_dir, "classification", ("a", "b"))


def save_phonemes(folder, pretrained_dir):
    """Save a phoneme model."""
    tiny_phonemes.save_model(folder)


@pytest.mark.parametrize("save", [save_finetuned, save_phonemes])
def test_the_encoder_of_a_model_directory(save, pretrained_dir, tmp_path):
    """With `encoder_only`, a model directory has neither a task nor heads."""
    save(tmp_path / "model", pretrained_dir)
    whole = open_source(str(tmp_path / "model"))
    alone = open_source(str(tmp_path / "model"), Reading(encoder_only=True))
    names = {n for n in whole.tensors.shapes if n.startswith("albert/")}
    assert alone.tensors.shapes.keys() == names < whole.tensors.shapes.keys()
    assert alone.task is None and alone.symbols == whole.symbols


def test_which_checkpoint_of_a_folder_is_read(tmp_path):
    """The best checkpoint is read, then the newest, a module's or the only one.

    The newest is the first that the `checkpoint` file names. If none of these
    exists, several checkpoints raise an error.
    """
    names = ["model.ckpt-best", "model.ckpt-9", "variables/variables"]
    (tmp_path / "variables").mkdir()
    for name in (*names, "model.ckpt-7", "a"):
        (tmp_path / f"{name}.index").touch()
    listed = [f'all_model_checkpoint_paths: "model.ckpt-{i}"' for i in (7, 9)]
    lines = 'model_checkpoint_path: "model.ckpt-9"', *listed
    (tmp_path / "checkpoint").write_text("\n".join(lines))
    for name in names:
        assert tf1.find_prefix(str(tmp_path)) == f"{tmp_path}/{name}"
        (tmp_path / f"{name}.index").unlink()
    with pytest.raises(InputError, match="several checkpoints.*a, .*7"):
        tf1.find_prefix(str(tmp_path))
    (tmp_path / "model.ckpt-7.index").unlink()
    assert tf1.find_prefix(str(tmp_path)) == f"{tmp_path}/a"
    (tmp_path / "a.index").unlink()
    assert tf1.find_prefix(str(tmp_path)) is None


def test_which_config_belongs_to_a_checkpoint(tmp_path):
    """A module's config is in its assets, or else in the module's own folder.

    In each folder, `albert_config.json` comes first, then the only file with a
    similar name.
    """
    (tmp_path / "assets").mkdir()
    names = ["assets/albert_config.json", "assets/bert_config_1.json"]
    names += ["albert_config.json", "my_config.json"]
    for name in names:
        (tmp_path / name).touch()
    prefix = f"{tmp_path}/variables/variables"
    for name in names:
        assert tf1.find_config(prefix) == f"{tmp_path}/{name}"
        in_folder = name if name in names[2:] else names[2]
        released = tf1.find_config(f"{tmp_path}/model.ckpt-best")
        assert released == f"{tmp_path}/{in_folder}"
        (tmp_path / name).unlink()
    for name in ("a_config.json", "b_config.json"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=f"Received: {prefix}$"):
        tf1.find_config(prefix)


@pytest.mark.parametrize("kind", [".index", ".data-00000-of-00001"])
def test_a_damaged_checkpoint_is_passed_over(kind, tmp_path, capsys):
    """In a model directory, the newest intact checkpoint is read."""
    tiny.SHALLOW.save(str(tmp_path))
    model = AlbertForPretraining(tiny.SHALLOW)
    for step in (1, 2):
        weights = checkpoints.named_variables(model)
        checkpoints.save(str(tmp_path), weights, step, keep=2)
    path = tmp_path / f"ckpt-2{kind}"
    path.write_bytes(path.read_bytes()[:100])
    assert open_source(str(tmp_path)).path.endswith("ckpt-1")
    assert "ckpt-2 is damaged" in capsys.readouterr().out
