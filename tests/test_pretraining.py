"""The pretraining program: its checks, its resume, its numbers."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
import tiny

from albert_tf import checkpoints, records
from albert_tf.distribution import DistributionConfig
from albert_tf.errors import InputError
from albert_tf.masking import MaskingConfig
from albert_tf.optimization import OptimizerConfig
from albert_tf.pretraining import COMPAT, PretrainingConfig, pretrain
from albert_tf.pretraining_data import build
from albert_tf.pretraining_data.pairs import PairsConfig
from albert_tf.pretraining_data.plan import BuildConfig
from albert_tf.tokenization import TokenizerConfig, load_tokenizer
from albert_tf.training import TrainingConfig

ROOT = pathlib.Path(__file__).parents[1]
LENGTH = 16


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, tokenizer_dir):
    """Records of 16 tokens of the tokenizer's own random sentences."""
    folder = tmp_path_factory.mktemp("data")
    lines = (tokenizer_dir / "corpus.txt").read_text("utf-8").splitlines()
    documents = ["\n".join(lines[i : i + 10]) for i in range(0, 200, 10)]
    text = folder / "text.txt"
    text.write_text("\n\n".join(documents), encoding="utf-8")
    build.run(
        BuildConfig(
            input_file=str(text),
            output_dir=str(folder / "records"),
            dupe_factor=1,
            eval_fraction=0.1,
            num_processes=1,
        ),
        TokenizerConfig(spm_model_file=str(tokenizer_dir / "spiece.model")),
        PairsConfig(max_seq_length=LENGTH),
        MaskingConfig(),
    )
    return str(folder / "records")


@pytest.fixture
def config(tmp_path, tokenizer):
    config = dataclasses.replace(tiny.CONFIG, vocab_size=tokenizer.vocab_size)
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    return str(path), config


def run(data_dir, config_file, output_dir, **kwargs):
    values = {
        "num_train_steps": 4,
        "train_batch_size": 8,
        "eval_batch_size": 8,
        "eval_steps": 2,
    }
    return pretrain(
        PretrainingConfig(
            data_dir=data_dir,
            albert_config_file=str(config_file),
            output_dir=str(output_dir),
            **kwargs,
        ),
        OptimizerConfig(learning_rate=0.01, num_warmup_steps=2),
        TrainingConfig(**values),
        DistributionConfig(),
    )


def test_a_run_leaves_a_whole_model_directory(data_dir, config, tmp_path):
    """Config, tokenizer, checkpoint, flags and curves are there and agree."""
    output = tmp_path / "model"
    metrics = run(data_dir, config[0], output)
    assert set(metrics) == {
        "loss",
        "mlm_loss",
        "sop_loss",
        "mlm_accuracy",
        "sop_accuracy",
    }
    assert load_tokenizer(str(output)).vocab_size == config[1].vocab_size
    assert checkpoints.for_inference(str(output)).endswith("ckpt-4")
    flags = (output / "run.flags").read_text().splitlines()
    assert f"--data_dir={data_dir}" in flags and "--optimizer=lamb" in flags
    assert (output / "curves.png").exists()


def test_a_warm_start_takes_the_weights_and_not_the_step(
    data_dir, config, tmp_path
):
    """With `init_checkpoint` a new run begins where another one ended."""
    first, second = tmp_path / "first", tmp_path / "second"
    run(data_dir, config[0], first)
    before = run(data_dir, config[0], first, do_train=False, do_eval=True)
    after = run(
        data_dir,
        config[0],
        second,
        init_checkpoint=str(first),
        do_train=False,
        do_eval=True,
    )
    assert after == pytest.approx(before, rel=1e-6)
    assert checkpoints.latest(str(second)) is None


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"max_position_embeddings": 8}, "max_seq_length=16"),
        ({"vocab_size": 20}, "vocab_size=150, vocab_size=20"),
    ],
)
def test_records_that_do_not_fit_are_refused(
    data_dir, config, tmp_path, changes, named
):
    """Too long or too many pieces: both numbers are named, nothing written."""
    path = tmp_path / "other.json"
    path.write_text(dataclasses.replace(config[1], **changes).to_json())
    output = tmp_path / "model"
    with pytest.raises(InputError, match=named):
        run(data_dir, path, output)
    assert not output.exists()


def test_a_truncated_record_file_is_named(data_dir, config, tmp_path):
    """The file and what to do are in the error, before any training."""
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", data_dir, copy], check=True)
    metadata = records.read_metadata(str(copy))
    path = copy / metadata.splits["train"][0].file
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=f"{path.name} has .* bytes"):
        run(str(copy), config[0], tmp_path / "model")


def test_another_models_directory_is_refused(data_dir, config, tmp_path):
    """A directory with another architecture's checkpoints is left alone."""
    output = tmp_path / "model"
    run(data_dir, config[0], output)
    path = tmp_path / "other.json"
    other = dataclasses.replace(config[1], hidden_size=32)
    path.write_text(other.to_json())
    with pytest.raises(InputError, match="another model's checkpoints"):
        run(data_dir, path, output)


def test_compat_names_settings_that_exist():
    """Every value that a compat mode sets is legal in its dataclass."""
    for values in COMPAT.values():
        fields = OptimizerConfig.__dataclass_fields__
        mine = {k: v for k, v in values.items() if k in fields}
        OptimizerConfig(**mine)
        TrainingConfig(**{k: values[k] for k in values.keys() - mine.keys()})


def command(data_dir, config_file, output_dir):
    return [
        sys.executable,
        str(ROOT / "pretrain.py"),
        f"--data_dir={data_dir}",
        f"--albert_config_file={config_file}",
        f"--output_dir={output_dir}",
        "--num_train_steps=60",
        "--train_batch_size=8",
        "--eval_batch_size=8",
        "--eval_steps=20",
        "--steps_per_loop=5",
        "--save_checkpoints_steps=10",
        "--learning_rate=0.01",
        "--num_warmup_steps=5",
    ]


def values(output_dir):
    prefix = checkpoints.latest(str(output_dir))
    read = checkpoints.reader(prefix)
    return {name: read(name) for name in checkpoints.read_table(prefix)}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_ends_with_the_unbroken_runs_bits(
    data_dir, config, tmp_path, number
):
    """Kill the real program after its first checkpoint, run it again."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(data_dir, config[0], whole), check=True)
    process = subprocess.Popen(command(data_dir, config[0], broken))
    while not list(broken.glob("ckpt-*.index")) and process.poll() is None:
        time.sleep(0.02)
    os.kill(process.pid, number)
    status = process.wait()
    assert status == (0 if number == signal.SIGTERM else -number)
    subprocess.run(command(data_dir, config[0], broken), check=True)
    expected, found = values(whole), values(broken)
    assert expected.keys() == found.keys()
    for name in expected:
        np.testing.assert_array_equal(expected[name], found[name], name)
    assert int(found["optimizer/iterations"]) == 60


@pytest.mark.slow
def test_four_replicas_equal_one(data_dir, config, tmp_path):
    """The program gives the same weights on four logical devices."""
    outputs = [tmp_path / "one", tmp_path / "four"]
    for output, more in zip(
        outputs, ([], ["--num_cpu_replicas=4"]), strict=True
    ):
        line = command(data_dir, config[0], output) + more
        subprocess.run(line, check=True)
    one, four = map(values, outputs)
    assert max(np.abs(one[n] - four[n]).max() for n in one) < 1e-5
    assert tf.io.gfile.exists(str(outputs[1] / "curves.png"))
