"""Every program treats paths with `://` like local paths.

`file://` and `ram://` are TensorFlow file systems like `gs://`: remote to the
programs, without a network. TensorFlow cannot read checkpoints in `ram://`,
because it mistakes checkpoint prefixes for folders there.
"""

import os
import pathlib
import shutil

import pytest
import tensorflow as tf
import tiny_runs
from tiny_corpus import contents
from tiny_pretraining import run as run_pretraining

from albert_tf.base import files
from albert_tf.conversion import describe
from albert_tf.conversion.convert_checkpoint import convert
from albert_tf.data.builder import build
from albert_tf.data.builder.build_settings import BuildConfig
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.text_formats import ReadingConfig
from albert_tf.data.masking import MaskingConfig
from albert_tf.data.records import inspect_records
from albert_tf.data.train_tokenizer import TrainTokenizerConfig, make_vocabulary
from albert_tf.finetuning.shrink import ShrinkConfig, shrink_model
from albert_tf.library.embed import EmbedConfig, embed_texts
from albert_tf.serving.export import ExportConfig, export_model
from albert_tf.serving.signatures import ServingConfig
from albert_tf.tasks.task_config import DataConfig
from albert_tf.text.tokenizers import TokenizerConfig


@pytest.fixture(autouse=True)
def _nothing_in_the_working_folder(tmp_path, monkeypatch):
    """Run each test in an empty folder, which must stay empty."""
    folder = tmp_path / "working"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield
    assert os.listdir(folder) == []


@pytest.fixture
def model_dir(pretrained_dir, tmp_path):
    """Return the local path and the remote path of a model directory."""
    folder = shutil.copytree(pretrained_dir, tmp_path / "model")
    return str(folder), f"file://{folder}"


def tree(folder: pathlib.Path) -> dict[str, bytes]:
    """Return {name: bytes} for a local folder, without the model card."""
    paths = [p for p in folder.rglob("*") if p.is_file()]
    paths = [path for path in paths if path.name != "README.md"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths}


def test_weights_are_converted(model_dir, tmp_path):
    """Remote models can be converted to each format and back, byte for byte."""
    local, remote = model_dir[0], f"file://{tmp_path}/remote"
    convert(local, f"{tmp_path}/hf", "huggingface")
    convert(local, f"{remote}/a", "model_dir")
    convert(f"{remote}/a", f"{remote}/b", "tf1")
    convert(f"{remote}/b", f"{remote}/c", "huggingface")
    convert(f"{remote}/c", f"{remote}/d", "model_dir")
    convert(f"{remote}/d", f"{tmp_path}/back", "huggingface")
    expected = tree(tmp_path / "hf")
    assert "model.safetensors" in expected
    assert tree(tmp_path / "back") == expected
    assert files.names(f"{remote}/c") == sorted([*expected, "README.md"])


def test_weights_are_converted_where_there_is_no_disk(model_dir, tmp_path):
    """Conversion works in `ram://`, where safetensors cannot open files."""
    convert(model_dir[0], f"{tmp_path}/hf", "huggingface")
    convert(model_dir[0], "ram://folder/hf", "huggingface")
    convert("ram://folder/hf", f"{tmp_path}/model_dir", "model_dir")
    convert(f"{tmp_path}/model_dir", f"{tmp_path}/back", "huggingface")
    assert tree(tmp_path / "back") == tree(tmp_path / "hf")


def test_vocabulary_and_records_are_made(tmp_path, tokenizer_dir, capsys):
    """Remote text yields the same vocabulary and records as local text."""
    shutil.copy(tokenizer_dir / "corpus.txt", tmp_path)
    for root in (f"{tmp_path}/local", f"file://{tmp_path}/remote"):
        prefix = "file://" if files.is_remote(root) else ""
        text = f"{prefix}{tmp_path}/corpus.txt"
        make_vocabulary(
            TrainTokenizerConfig(
                input_file=text, output_dir=root, vocab_size=150
            )
        )
        build.run(
            BuildConfig(
                input_file=text,
                output_dir=f"{root}/records",
                scratch_dir=f"{tmp_path}/scratch",
                eval_fraction=0.0,
                dupe_factor=1,
                num_processes=1,
            ),
            TokenizerConfig(spm_model_file=f"{root}/spiece.model"),
            PairsConfig(max_seq_length=64),
            MaskingConfig(),
            ReadingConfig(),
        )
    local, remote = (tmp_path / name for name in ("local", "remote"))
    assert (local / "spiece.model").read_bytes() == (
        remote / "spiece.model"
    ).read_bytes()
    assert contents(local / "records") == contents(remote / "records")
    path = files.matches(f"file://{remote}/records/*.tfrecord")[0]
    capsys.readouterr()
    config = inspect_records.InspectConfig()
    inspect_records.inspect_file(path, config, TokenizerConfig())
    inspect_records.inspect_file(
        path.removeprefix("file://"), config, TokenizerConfig()
    )
    remotely, locally = (
        capsys.readouterr()
        .out.removeprefix("file://")
        .split(path.removeprefix("file://"))[1:]
    )
    assert remotely == locally and "Example 0" in locally


def test_a_model_is_described_and_embeds(model_dir, tmp_path):
    """Descriptions and vectors of remote models match local models."""
    local, remote = model_dir
    printed, arrays = [], []
    (tmp_path / "text").write_text("the large bridge\nin winter\n")
    for root, out in ((local, tmp_path / "a"), (remote, tmp_path / "b")):
        printed.append(describe.size_report(f"{root}/albert_config.json"))
        prefix = "file://" if files.is_remote(root) else ""
        text, output = f"{tmp_path}/text", f"{out}.npy"
        embed_texts(EmbedConfig(root, prefix + text, prefix + output))
        arrays.append(pathlib.Path(output).read_bytes())
    assert printed[0] == printed[1] and arrays[0] == arrays[1]


@pytest.mark.slow
def test_a_model_is_exported_and_shrunk(model_dir, tmp_path):
    """Exporting and shrinking write the same files to remote and local paths.

    The file names and the exported weights are equal.
    """
    local, remote = model_dir
    for root, out in (
        (local, f"{tmp_path}/a"),
        (remote, f"file://{tmp_path}/b"),
    ):
        export_model(ExportConfig(root, f"{out}/saved"), ServingConfig())
        config = ShrinkConfig(root, f"{out}/small", num_layers=1)
        shrink_model(config, DataConfig())
    a, b = tree(tmp_path / "a"), tree(tmp_path / "b")
    assert a.keys() == b.keys()
    data = "saved/variables/variables.data-00000-of-00001"
    assert a[data] == b[data]
    assert tf.saved_model.load(f"file://{tmp_path}/b/saved").signatures


@pytest.mark.slow
def test_training_runs_behind_a_scheme(
    data_dir, config, opinions, tmp_path, capsys
):
    """Remote paths do not change the metrics of pretraining and fine-tuning.

    The runs also write files with the same names as runs on local paths.
    """
    metrics = []
    for root in (f"{tmp_path}/a", f"file://{tmp_path}/b"):
        prefix = "file://" if files.is_remote(root) else ""
        flags = {
            name: value if name == "task" else prefix + value
            for name, value in opinions.items()
        }
        metrics.append(
            run_pretraining(prefix + data_dir, prefix + config[0], f"{root}/p")
        )
        metrics[-1] |= tiny_runs.run(
            model_dir=f"{root}/p",
            output_dir=f"{root}/f",
            do_train=True,
            do_eval=True,
            do_predict=True,
            **flags,
        )["eval"]
    assert metrics[0] == metrics[1]
    a, b = tree(tmp_path / "a"), tree(tmp_path / "b")
    same = {name for name in a if "tfevents" not in name}
    assert same == {name for name in b if "tfevents" not in name}
    assert any("tfevents" in name for name in b)
    assert {"p/curves.png", "f/metrics.json"} <= same
